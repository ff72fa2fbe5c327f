"""Killed at any moment, a pipeline's changelog ends as the log, entry by entry."""

import random
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.event import AnyEvent
from penstock.serve.flight import FlightServer
from penstock.wire import to_arrow
from tests.flight.blocks import BlockLog
from tests.seeds import seed_of
from tests.spark.changelogs import changelog, counted, expected, files_of, rows_of
from tests.spark.drivers import run_and_kill
from tests.spark.tables import change, gap, put, schema_event

_KILLS = 2
_KILLS_WITHOUT_SPARK = 5


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


def check(path: Path, form: str, log: BlockLog) -> None:
    """Every entry is there once, and every file that counts."""
    config = changelog(path, format=form)
    whole = pa.Table.from_batches([to_arrow((block,)) for block in log.blocks])
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
        command = ("tests.spark.driver", server.address, path, form)
        run_and_kill(*command, dice=dice, kills=_KILLS)
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
    entries = pa.Table.from_batches([to_arrow((block,)) for block in log.blocks])
    with pa.ipc.new_file(str(tmp_path / "entries"), entries.schema) as file:
        file.write_table(entries)
    path = tmp_path / "changes"
    command = ("tests.spark.adding", path, form, tmp_path / "entries")
    assert run_and_kill(*command, dice=dice, kills=_KILLS_WITHOUT_SPARK)
    check(path, form, log)
