"""What a running pipeline says, and that saying it never stops or holds up the driver."""

import json
import os
import sys
import threading
from pathlib import Path

import pytest

from penstock.cli.telling import Teller
from penstock.spark.progress import PipelineProgress
from tests.children import Child
from tests.cli.service import COMMAND, SHOP, Service, configure


def progress(sequence: int) -> PipelineProgress:
    return PipelineProgress(
        pipeline="p", batch_id=sequence, entries=1, rows=1, rejected=0, sequence=sequence, seconds=1
    )


def test_a_batch_is_told_to_who_reads_the_output(capsys: pytest.CaptureFixture[str]) -> None:
    tell = Teller(as_json=True, stop=threading.Event())
    tell(progress(1))
    tell(progress(2))
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["sequence"] for line in lines] == [1, 2]


@pytest.mark.parametrize("as_json", [True, False])
def test_the_pipeline_is_stopped_quietly_when_nobody_reads_its_output(
    monkeypatch: pytest.MonkeyPatch, as_json: bool
) -> None:
    read, write = os.pipe()
    os.close(read)
    stop = threading.Event()
    with os.fdopen(write, "w") as unread:
        monkeypatch.setattr(sys, "stdout", unread)
        tell = Teller(as_json=as_json, stop=stop)
        tell(progress(1))
        assert stop.is_set()
        tell(progress(2))


@pytest.mark.spark
@pytest.mark.soak
def test_a_pipeline_whose_reader_went_away_ends_without_an_error(tmp_path: Path) -> None:
    """`penstock pipeline run orders --json | head -1`."""
    config = configure(
        tmp_path, SHOP.format(rate=200) + '[pipelines.shop]\nsource = "shop"\npath = "lake"\n'
    )
    with Service(config, "--one-process") as service:
        command = (*COMMAND, "pipeline", "run", "shop", "--json", "--config", config)
        with Child(*command, "--endpoint", service.ready["flight"], lines_max=1) as running:
            assert json.loads(running.line())["pipeline"] == "shop"
            assert running.wait() == 0, running.errors()
            assert "BrokenPipeError" not in running.errors()
