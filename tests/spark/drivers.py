"""Drivers of pipelines in processes of their own, killed with their JVM and workers."""

import os
import random
from pathlib import Path

from tests.children import MODULE, Child
from tests.cli.service import COMMAND

ROOT = Path(__file__).parents[2]


def driver(*arguments: object) -> Child:
    """A module of the tests that drives a pipeline."""
    # A test runner's own settings are not the driver's.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT / "src", ROOT)))}
    return Child(*MODULE, *arguments, cwd=ROOT, env=environment, whole=True)


def run_and_kill(
    *arguments: object, dice: random.Random, kills: int, seconds_max: float = 0.5
) -> int:
    """Run the driver again and again, each killed soon after its first word; the last one ends.

    Its word is that a batch is done, so it is killed in the midst of the next. How many were killed
    before they ended by themselves.
    """
    killed = 0
    for _ in range(kills):
        with driver(*arguments) as running:
            running.line()
            killed += running.kill_after(dice.uniform(0.0, seconds_max))
    with driver(*arguments) as last:
        assert last.wait() == 0, last.tail()
    return killed


def once(config: Path, endpoint: str) -> Child:
    """`penstock pipeline run p --once` as its users start it."""
    return Child(
        *(*COMMAND, "pipeline", "run", "p", "--once", "--json"),
        *("--master", "local[2]", "--conf", "spark.driver.memory=512m"),
        *("--config", config, "--endpoint", endpoint),
        whole=True,
    )


def run_once(config: Path, endpoint: str) -> None:
    """The same, to its end."""
    with once(config, endpoint) as running:
        assert running.wait() == 0, running.tail()
