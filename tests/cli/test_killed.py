"""kill -9 of a command: whatever it started, at any distance, ends with it."""

import os
import select
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.children import Child
from tests.cli.service import COMMAND, SHOP, Service, configure
from tests.serve.dynamodb.support import served
from tests.waiting import wait_until
from tests_support.leftovers import kill_marked, marked_processes

MARK = "PENSTOCK_TEST_KILLED"
WAITS_FOR_SERVICE_SECONDS = 30.0
"""How long the process that plans a pipeline's batches would wait for a service by itself."""
RUNNER = "python_streaming_source_runner"
JVM = "org.apache.spark.deploy.SparkSubmit"

PIPELINE = """
[pipelines.orders]
source = "shop"
path = "lake/orders"
trigger = 0.2
"""

# Both programs start one of their own that takes no notice of anything.
FUNCTION = """
import subprocess


def handle(event, context):
    with open("seen", "w") as seen:
        seen.write("x")
    subprocess.run(["sleep", "900"])
"""
PROGRAM = """
import subprocess

input()
with open("seen", "w") as seen:
    seen.write("x")
subprocess.run(["sleep", "900"])
"""


class Marked:
    """The processes that a command has started, and it itself."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._mark = str(folder)
        self.environment = {**os.environ, MARK: self._mark}

    def start(self, *arguments: str, whole: bool = False) -> Child:
        """A command; with `whole` it has a process group of its own."""
        environment = self.environment
        return Child(*COMMAND, *arguments, cwd=self._folder, env=environment, whole=whole)

    def alive(self, word: str = "") -> dict[int, str]:
        """Their command lines that have that word."""
        found: dict[int, str] = {}
        for pid in marked_processes(MARK, self._mark):
            try:
                line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if word in line:
                found[pid] = line
        return found

    def wait_until_all_are_gone(self) -> float:
        """Nothing that runs here would end by itself before a test is stuck. How many seconds it
        took; those of Spark: once its JVM has ended."""
        for jvm in self.alive(JVM):
            _wait_until_ended(jvm)
        began = time.monotonic()
        wait_until(lambda: not self.alive(), diagnose=lambda: f"{self.alive()}")
        return time.monotonic() - began

    def close(self) -> None:
        kill_marked(MARK, self._mark)


@pytest.fixture
def marked(tmp_path: Path) -> Iterator[Marked]:
    one = Marked(tmp_path)
    yield one
    one.close()


@pytest.mark.slow
def test_a_trigger_ends_with_its_function_and_what_that_runs(
    tmp_path: Path, marked: Marked
) -> None:
    (tmp_path / "app.py").write_text(FUNCTION)
    with served(tmp_path / "store") as everything:
        table = everything.table()
        table.put_item(Item={"id": "a"})
        options = (
            "--table",
            table.name,
            "--endpoint",
            f"http://{everything.address}",
            "--state",
            "s",
        )
        with marked.start("trigger", "app:handle", *options) as process:
            process.wait_until(lambda: marked.alive("sleep"))
            process.kill()
            marked.wait_until_all_are_gone()


@pytest.mark.slow
def test_a_consumer_ends_with_its_program_and_what_that_runs(
    tmp_path: Path, marked: Marked
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    with Service(configure(tmp_path, SHOP.format(rate=100))) as service:
        config = tmp_path / "served.toml"
        text = SHOP.format(rate=100)
        for name in ("grpc", "flight"):
            text = text.replace(f'{name} = "127.0.0.1:0"', f'{name} = "{service.ready[name]}"')
        config.write_text(text)
        with marked.start(
            *("consume", "--config", str(config), "--from-beginning"),
            *("--exec", f"{sys.executable} program.py", "--progress", "progress"),
        ) as process:
            process.wait_until(lambda: marked.alive("sleep"))
            process.kill()
            marked.wait_until_all_are_gone()


@pytest.mark.spark
def test_a_pipeline_ends_with_spark_also_while_the_service_is_gone(
    tmp_path: Path, marked: Marked
) -> None:
    """The process that plans its batches does not wait for the service."""
    config = configure(tmp_path, SHOP.format(rate=100) + PIPELINE)
    with Service(config) as service:
        at = ("--config", str(config), "--endpoint", service.ready["flight"])
        with marked.start("pipeline", "run", *at) as process:
            process.wait_until(lambda: marked.alive(RUNNER) and written(tmp_path))
            service.process.kill()
            for pid in service.ready["pids"].values():
                _wait_until_ended(pid)
            # A second later: a batch is planned five times a second, so that waits for the service
            # too.
            process.wait_until(lambda: "service not told" in process.errors())
            process.kill()
            assert marked.wait_until_all_are_gone() < WAITS_FOR_SERVICE_SECONDS / 2


@pytest.mark.spark
def test_the_quickstart_ends_with_its_service_and_spark(tmp_path: Path, marked: Marked) -> None:
    words = ("quickstart", "--folder", str(tmp_path / "shop"), "--transactions", "100000")
    with marked.start(*words) as process:
        process.wait_until(lambda: marked.alive(RUNNER) and written(tmp_path))
        process.kill()
        marked.wait_until_all_are_gone()


def written(folder: Path) -> list[Path]:
    """What a pipeline has committed: Spark's processes have started, then."""
    return list(folder.glob("**/_delta_log/*.json"))


def _wait_until_ended(pid: int) -> None:
    try:
        ended = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    select.select([ended], [], [])
    os.close(ended)
