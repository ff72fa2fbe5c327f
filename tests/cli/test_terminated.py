"""SIGTERM to all processes of a pipeline, as systemd sends it: its batch is finished first."""

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.cli.service import SHOP, Service, configure
from tests.cli.test_killed import JVM, PIPELINE, RUNNER, Marked, written


@pytest.fixture
def marked(tmp_path: Path) -> Iterator[Marked]:
    one = Marked(tmp_path)
    yield one
    one.close()


def terminate_all(marked: Marked) -> None:
    for pid in marked.alive():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)


@pytest.mark.spark
def test_a_pipeline_ends_cleanly(tmp_path: Path, marked: Marked) -> None:
    config = configure(tmp_path, SHOP.format(rate=100) + PIPELINE)
    with Service(config) as service:
        at = ("--config", str(config), "--endpoint", service.ready["flight"])
        process = marked.start("pipeline", "run", *at)
        marked.wait_for(process, lambda: marked.alive(RUNNER) and written(tmp_path))
        terminate_all(marked)
        assert process.wait() == 0, marked.output()
        assert not [line for line in marked.output().splitlines() if "rror" in line]
        marked.wait_until_all_are_gone()
        assert '"ended"' in listed(marked, *at)


def listed(marked: Marked, *at: str) -> str:
    """What the service says of the pipeline."""
    assert marked.start("pipeline", "list", "--json", *at).wait() == 0
    return marked.output()


@pytest.mark.spark
def test_a_pipeline_that_only_starts_spark_ends_cleanly(tmp_path: Path, marked: Marked) -> None:
    config = configure(tmp_path, SHOP.format(rate=100) + PIPELINE)
    process = marked.start("pipeline", "run", "--config", str(config))
    marked.wait_for(process, lambda: marked.alive(JVM))
    terminate_all(marked)
    assert process.wait() == 0, marked.output()
    marked.wait_until_all_are_gone()
