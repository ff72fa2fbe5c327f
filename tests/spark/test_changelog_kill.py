"""Killed at any moment, a pipeline's changelog ends as the log, entry by entry."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.event import AnyEvent
from penstock.serve.flight import FlightServer
from tests.flight.blocks import BlockLog
from tests.seeds import seed_of
from tests.spark.changelogs import changelog, counted, expected, files_of, rows_of
from tests.spark.tables import change, gap, put, schema_event

_KILLS = 2
_KILLS_WITHOUT_SPARK = 5
_ROOT = Path(__file__).parents[2]


def history(dice: random.Random, *, commits: int) -> list[list[AnyEvent]]:
    """Commits over two collections, and what else there is."""
    made: list[list[AnyEvent]] = []
    for number in range(commits):
        if number % 20 == 7:
            alone: list[AnyEvent] = [gap(), schema_event("drop")]
            made.append([dice.choice(alone)])
            continue
        made.append(
            [
                put(dice.randrange(30), n=number)
                if dice.random() < 0.5
                else change(dice.randrange(30), "delete", collection="lines")
                for _ in range(dice.randrange(1, 5))
            ]
        )
    return made


def seeded() -> random.Random:
    seed = seed_of("changelog-kill")
    return random.Random(seed)


def run_and_kill(arguments: list[str], dice: random.Random, *, kills: int) -> int:
    """Run the driver again and again, each killed soon after its first word; the last one ends.

    How many were killed before they ended by themselves.
    """
    # A test runner's own settings are not the driver's.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (_ROOT / "src", _ROOT)))}
    killed = 0
    for kill in range(kills + 1):
        with subprocess.Popen(
            [sys.executable, "-m", *arguments],
            cwd=_ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as driver:
            assert driver.stdout is not None
            if kill < kills:
                driver.stdout.readline()
                try:
                    driver.wait(dice.uniform(0.0, 0.5))
                except subprocess.TimeoutExpired:
                    os.killpg(driver.pid, signal.SIGKILL)
                    killed += 1
            driver.communicate()
        assert driver.returncode == 0 or kill < kills
    return killed


def check(path: Path, form: str, log: BlockLog) -> None:
    """Every entry is there once, and every file that counts."""
    config = changelog(path, format=form)
    whole = pa.Table.from_batches([block.to_arrow() for block in log.blocks])
    assert rows_of(config) == expected(whole)
    assert {*counted(config)} <= {*files_of(config)}


@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.parametrize("form", ["delta", "parquet"])
def test_a_driver_killed_at_any_moment_neither_loses_nor_repeats(tmp_path: Path, form: str) -> None:
    """In the midst of tidying, too."""
    dice = seeded()
    log = BlockLog(block_events=11)
    log.append(history(dice, commits=150))
    server = FlightServer(log)
    server.start()
    path = tmp_path / "changes"
    try:
        # Its first word is that a batch is done, so it is killed in the midst of the next.
        run_and_kill(["tests.spark.driver", server.address, str(path), form], dice, kills=_KILLS)
    finally:
        server.stop()
    check(path, form, log)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["delta", pytest.param("parquet", marks=pytest.mark.soak)])
def test_killed_over_and_over_between_any_two_writes_it_neither_loses_nor_repeats(
    tmp_path: Path, form: str
) -> None:
    """Without Spark a driver dies in the midst of its commits, renames and tidying."""
    dice = seeded()
    log = BlockLog(block_events=11)
    log.append(history(dice, commits=60))
    entries = pa.Table.from_batches([block.to_arrow() for block in log.blocks])
    with pa.ipc.new_file(str(tmp_path / "entries"), entries.schema) as file:
        file.write_table(entries)
    path = tmp_path / "changes"
    arguments = ["tests.spark.adding", str(path), form, str(tmp_path / "entries")]
    assert run_and_kill(arguments, dice, kills=_KILLS_WITHOUT_SPARK)
    check(path, form, log)
