"""SIGTERM to all processes of a pipeline, one by one as systemd sends it, or to their group as
`timeout` does: the batch is finished first."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.children import Child
from tests.cli.service import SHOP, Service, configure
from tests.cli.test_killed import JVM, PIPELINE, RUNNER, Marked, written


@pytest.fixture
def marked(tmp_path: Path) -> Iterator[Marked]:
    one = Marked(tmp_path)
    yield one
    one.close()


def terminate_group(marked: Marked, process: Child) -> None:
    del marked
    os.killpg(process.pid, signal.SIGTERM)


def terminate_all(marked: Marked, process: Child) -> None:
    del process
    for pid in marked.alive():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)


@pytest.mark.spark
@pytest.mark.parametrize("terminate", [terminate_all, terminate_group])
def test_a_pipeline_ends_cleanly(
    tmp_path: Path, marked: Marked, terminate: Callable[[Marked, Child], None]
) -> None:
    config = configure(tmp_path, SHOP.format(rate=100) + PIPELINE)
    with Service(config) as service:
        at = ("--config", str(config), "--endpoint", service.ready["flight"])
        with marked.start("pipeline", "run", *at, whole=True) as process:
            process.wait_until(lambda: marked.alive(RUNNER) and written(tmp_path))
            terminate(marked, process)
            assert process.wait() == 0, process.tail()
            said = process.rest() + process.errors()
            assert not [line for line in said.splitlines() if "rror" in line], said
        marked.wait_until_all_are_gone()
        with marked.start("pipeline", "list", "--json", *at) as process:
            assert process.wait() == 0, process.tail()
            assert '"ended"' in process.rest()


@pytest.mark.spark
def test_a_pipeline_that_only_starts_spark_ends_cleanly(tmp_path: Path, marked: Marked) -> None:
    config = configure(tmp_path, SHOP.format(rate=100) + PIPELINE)
    with marked.start("pipeline", "run", "--config", str(config), whole=True) as process:
        process.wait_until(lambda: marked.alive(JVM))
        terminate_group(marked, process)
        assert process.wait() == 0, process.tail()
    marked.wait_until_all_are_gone()
