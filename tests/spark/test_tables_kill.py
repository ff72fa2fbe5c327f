"""Killed at any moment, a pipeline's tables end as the fold of the log."""

import random
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from penstock.event import ChangeEvent
from penstock.serve.flight import FlightServer
from penstock.spark.table.arrow import compute
from penstock.spark.table.plan import DATABASE, KEY, REJECTED, SEQUENCE
from penstock.wire import to_arrow
from tests.flight.blocks import BlockLog
from tests.seeds import seed_of
from tests.spark.drivers import run_and_kill
from tests.spark.tables import apply, change, fold, pipeline, put, rejects_of, rows_of

_KILLS = 3
_BAD_KEY = 1
"""Of the row in orders whose last change is rejected."""


def history(dice: random.Random) -> list[list[ChangeEvent]]:
    """Commits over two collections. One row is there from the first to the last."""
    commits = [[put(_BAD_KEY, n=0, name="first")]]
    live = {("orders", _BAD_KEY)}
    for _ in range(120):
        events: list[ChangeEvent] = []
        for _ in range(dice.randrange(1, 5)):
            collection, key = dice.choice(["orders", "lines"]), dice.randrange(30)
            own = (collection, key)
            if own in live and key != _BAD_KEY and dice.random() < 0.2:
                events.append(change(key, "delete", collection=collection))
                live.discard(own)
            elif own in live and dice.random() < 0.3:
                update = {"updatedFields": {"n": dice.randrange(1000)}}
                events.append(change(key, "update", update=update, collection=collection))
            else:
                document = {"_id": key, "n": dice.randrange(1000), "name": f"name {key}"}
                events.append(change(key, "replace", document, collection=collection))
                live.add(own)
        commits.append(events)
    return commits


def of_collection(entries: pa.Table, name: str) -> pa.Table:
    return entries.filter(compute.equal(entries["collection"], name))


def without(entries: pa.Table, sequence: int) -> pa.Table:
    return entries.filter(compute.not_equal(entries["sequence"], sequence))


def until(entries: pa.Table, sequence: int) -> pa.Table:
    return entries.filter(compute.less_equal(entries["sequence"], sequence))


@pytest.mark.soak
@pytest.mark.spark
def test_a_driver_killed_at_any_moment_neither_loses_nor_repeats(tmp_path: Path) -> None:
    seed = seed_of("tables-kill")
    dice = random.Random(seed)
    log = BlockLog(block_events=11)
    log.append(history(dice))
    log.append([[put(_BAD_KEY, n="not a number"), put(99, n=1)]])
    server = FlightServer(log)
    server.start()
    command = ("tests.spark.driver", server.address, tmp_path / "lake")
    try:
        run_and_kill(*command, dice=dice, kills=_KILLS)
    finally:
        server.stop()
    whole = pa.Table.from_batches([to_arrow((block,)) for block in log.blocks])
    rejected = whole.num_rows - 1
    for collection in ("orders", "lines"):
        entries = of_collection(whole, collection)
        lake = tmp_path / "lake" / collection
        # The row whose newest change is rejected stays as it was at a sequence that it names: a
        # change that shares a batch with the rejected one was overwritten by it.
        stale = {
            (row[DATABASE], row[KEY]): row[SEQUENCE]
            for row in DeltaTable(str(lake)).to_pyarrow_table().to_pylist()
            if row[REJECTED] == rejected
        }
        bad = {("db", f'{{"_id":{_BAD_KEY}}}')}
        assert set(stale) == (bad if collection == "orders" else set())
        expected = fold(without(entries, rejected))
        for own, sequence in stale.items():
            expected[own] = fold(until(entries, sequence))[own]
        assert rows_of(lake) == expected
    assert [row["sequence"] for row in rejects_of(tmp_path / "lake")] == [rejected]


def test_a_crash_between_the_rejects_and_the_table_ends_as_if_there_was_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each commit is idempotent on its own, and the rejects come first."""
    from penstock.spark.table.delta import Table
    from tests.spark.tables import Entries

    entries, config = Entries(), pipeline(tmp_path / "t")
    entries.commit(put(1, n=1), put(2, n="x"))

    def power_cut(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Table, "merge", power_cut)
        with pytest.raises(KeyboardInterrupt):
            apply(entries.table(), config)
    assert [row["sequence"] for row in rejects_of(tmp_path / "t")] == [2]
    assert not DeltaTable.is_deltatable(str(tmp_path / "t"))
    apply(entries.table(), config)
    assert [row["sequence"] for row in rejects_of(tmp_path / "t")] == [2]
    assert list(rows_of(tmp_path / "t")) == [("db", '{"_id":1}')]
