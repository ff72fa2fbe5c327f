"""Rejected changes of a history, replayed: as if they had never been rejected."""

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from penstock.client.flight import ReadRequest
from penstock.event import AnyEvent, ChangeEvent, SchemaEvent, SystemEvent
from penstock.spark.config import HistoryPipelineConfig
from penstock.spark.history.columns import VERSION_COLUMNS
from penstock.spark.history.replaying import HistoryReplay
from penstock.spark.table.apply import table_cells
from penstock.spark.table.decode import documents_of
from penstock.spark.table.lake import KeptTable
from penstock.spark.transform.fate import Replayed
from tests.spark.histories import history, rows
from tests.spark.stepped import MemoryLog
from tests.spark.tables import Entries, apply, change, put, rejects_of, schema_event, version_of

SPANS = ("n", "_from_sequence", "_to_sequence", "_rejected_sequence")


class Torn(HistoryReplay):
    """A replay that ends before the rejects say so."""

    def _mark(self, rejects: KeptTable, settled: Sequence[Replayed]) -> None:
        pass


def replay(
    config: HistoryPipelineConfig,
    entries: Entries,
    trimmed: int = 0,
    kind: type[HistoryReplay] = HistoryReplay,
) -> dict[int, str]:
    """What became of each, in words where it is left."""
    found = kind("p", config, MemoryLog(entries, trimmed), None).run()
    return {one.sequence: one.reason or one.state for one in found}


def everything(path: Path) -> list[Any]:
    """All that a table of versions says, in an order of its own."""
    table = DeltaTable(str(path)).to_pyarrow_table()
    documents = documents_of(table_cells(table, own=VERSION_COLUMNS), range(table.num_rows))
    said = table.select(VERSION_COLUMNS.names).to_pylist()
    both = [{**row, "document": document} for row, document in zip(said, documents, strict=True)]
    return sorted(both, key=lambda row: (row["_database"], row["_key"], row["_from_sequence"]))


def pair(*commits: AnyEvent | Callable[[Any], AnyEvent]) -> tuple[Entries, Entries]:
    """A log, and one as a step of today would have it: a callable is given the bad value, or 5."""
    entries, mended = Entries(), Entries()
    for log, value in ((entries, "x"), (mended, 5)):
        for event in commits:
            if isinstance(event, ChangeEvent | SchemaEvent | SystemEvent):
                log.commit(event)
            else:
                log.commit(event(value))
    return entries, mended


def test_a_change_that_fits_now_opens_a_version_where_it_belongs(tmp_path: Path) -> None:
    entries, mended = pair(put(1, n=1), lambda n: put(1, n=n), put(1, n=7), put(1, n=8))
    config = history(tmp_path / "t")
    for after in range(4):
        apply(entries.table(after, after + 1), config, batch_id=after)
    assert rows(tmp_path / "t", *SPANS) == [(1, 1, 3, 2), (7, 3, 4, None), (8, 4, None, None)]
    assert replay(config, entries) == {
        2: "the field n holds a value of kind string, and its column is int32"
    }
    before = version_of(tmp_path / "t")
    assert replay(config, mended, trimmed=2) == {2: "the log no longer has it"}
    assert version_of(tmp_path / "t") == before
    assert replay(config, mended) == {2: "replayed"}
    assert rows(tmp_path / "t", *SPANS) == [
        (1, 1, 2, None),
        (5, 2, 3, None),
        (7, 3, 4, None),
        (8, 4, None, None),
    ]
    assert [row["state"] for row in rejects_of(tmp_path / "t")] == ["replayed"]
    assert replay(config, mended) == {}


def test_a_history_with_whatever_fields_is_replayed(tmp_path: Path) -> None:
    entries, mended = pair(put(1, n=1, _gone="a"), lambda n: put(1, n=n), put(1, n=5, _gone="b"))
    config = history(tmp_path / "t")
    apply(entries.table(), config)
    assert replay(config, mended) == {2: "replayed"}
    assert rows(tmp_path / "t", "n", "_gone") == [(1, "a"), (5, None), (5, "b")]


def test_what_followed_ends_where_it_tells_nothing_new(tmp_path: Path) -> None:
    """A version is what changed; one that says what the mended change says has not."""
    entries, mended = pair(put(1, n=1), lambda n: put(1, n=n), put(1, n=5), change(1, "delete"))
    config = history(tmp_path / "t")
    apply(entries.table(0, 3), config)
    apply(entries.table(3), config, batch_id=1)
    assert rows(tmp_path / "t", *SPANS) == [(1, 1, 3, 2), (5, 3, 4, None)]
    assert replay(config, mended, kind=Torn) == {2: "replayed"}
    assert rows(tmp_path / "t", *SPANS) == [(1, 1, 2, None), (5, 2, 4, None)]
    before = version_of(tmp_path / "t")
    assert replay(config, mended) == {2: "replayed"}
    assert version_of(tmp_path / "t") == before


def test_what_builds_on_a_change_that_is_still_refused_is_left_with_it(tmp_path: Path) -> None:
    update = change(1, "update", update={"updatedFields": {"m": 1}})
    entries, mended = pair(put(1, n=1), put(1, n="x"), update, lambda n: put(2, n=n), update)
    config = history(tmp_path / "t")
    for after in range(entries.head):
        apply(entries.table(after, after + 1), config, batch_id=after)
    assert [row["sequence"] for row in rejects_of(tmp_path / "t")] == [2, 3, 4, 5]
    found = replay(config, mended)
    assert found.pop(4) == "replayed"
    assert [found[at].partition(" holds")[0] for at in (2, 3, 5)] == ["the field n"] * 3
    assert rows(tmp_path / "t", *SPANS) == [(1, 1, None, 2), (5, 4, None, None)]


def test_what_builds_on_a_change_that_the_log_lost_is_left_with_it(tmp_path: Path) -> None:
    update = change(1, "update", update={"updatedFields": {"m": 1}})
    entries, mended = pair(put(1, n=1), lambda n: put(1, n=n), update)
    config = history(tmp_path / "t")
    for after in range(entries.head):
        apply(entries.table(after, after + 1), config, batch_id=after)
    before = everything(tmp_path / "t")
    assert replay(config, mended, trimmed=2) == {
        2: "the log no longer has it",
        3: "it builds on the change at sequence 2, which was rejected",
    }
    assert everything(tmp_path / "t") == before


def test_a_version_that_was_set_since_says_so_where_it_joins_another(tmp_path: Path) -> None:
    """Though what is not tracked is by now as the mended change says."""
    entries, mended = pair(
        put(1, n=1, seen=1),
        lambda n: put(1, n=n, seen=2),
        put(1, n=5, seen=3),
        put(1, n=5, seen=2),
    )
    lists = {"track_history_column_list": ["n"]}
    config, anew = history(tmp_path / "t", **lists), history(tmp_path / "anew", **lists)
    apply(entries.table(), config)
    assert replay(config, mended) == {2: "replayed"}
    assert rows(tmp_path / "t", "_sequence", *SPANS)[1] == (4, 5, 2, None, None)
    apply(mended.table(), anew)
    assert everything(tmp_path / "t") == everything(tmp_path / "anew")


def test_a_column_that_becomes_wider_is_so_in_all_versions(tmp_path: Path) -> None:
    entries, mended = Entries(), Entries()
    for log, n in ((entries, "x"), (mended, 1.5)):
        for event in (put(1, n=1), put(2, n=2), put(1, n=n), put(1, n=7), put(1, n=1.5)):
            log.commit(event)
    config, anew = history(tmp_path / "t"), history(tmp_path / "anew")
    apply(entries.table(0, 4), config)
    assert replay(config, mended) == {3: "replayed"}
    assert rows(tmp_path / "t", *SPANS)[1] == (1.5, 3, 4, None)
    apply(entries.table(4), config, batch_id=1)
    apply(mended.table(), anew)
    assert everything(tmp_path / "t") == everything(tmp_path / "anew")


def test_of_a_replay_and_a_batch_that_commit_at_once_one_is_refused(tmp_path: Path) -> None:
    """A replay beside a batch would take the table back to where it was before that."""
    entries, mended = pair(put(1, n=1), lambda n: put(1, n=n), put(1, n=7))
    config = history(tmp_path / "t")
    apply(entries.table(0, 2), config)

    class Beside(MemoryLog):
        def read(self, request: ReadRequest) -> Iterator[pa.RecordBatch]:
            apply(entries.table(2), config, batch_id=1)
            yield from super().read(request)

    with pytest.raises(CommitFailedError):
        HistoryReplay("p", config, Beside(mended, 0), None).run()
    assert rows(tmp_path / "t", *SPANS) == [(1, 1, 3, 2), (7, 3, None, None)]
    assert replay(config, mended) == {2: "replayed"}
    assert rows(tmp_path / "t", *SPANS) == [
        (1, 1, 2, None),
        (5, 2, 3, None),
        (7, 3, None, None),
    ]


@pytest.mark.parametrize("to", ["archive", "gone"])
def test_a_row_that_was_renamed_before_it_was_known_is_left(tmp_path: Path, to: str) -> None:
    """It is stale under the new name too, and two tables have no commit in common."""
    rename = schema_event("rename", to={"db": "db", "coll": to})
    entries, mended = pair(put(1, n=1), lambda n: put(1, n=n), rename, put(1, n=7))
    config = history(tmp_path, "orders", "archive")
    for after in range(entries.head):
        apply(entries.table(after, after + 1), config, batch_id=after)
    if to == "gone":
        assert replay(config, mended) == {2: "replayed"}
        spans: list[Any] = [(1, 1, 2, None), (5, 2, 3, None), (7, 4, None, None)]
    else:
        why = "its collection was renamed at sequence 3, before its row was known"
        assert replay(config, mended) == {2: why}
        assert rows(tmp_path / "archive", *SPANS) == [(1, 3, None, 2)]
        spans = [(1, 1, 3, 2), (7, 4, None, None)]
    assert rows(tmp_path / "orders", *SPANS) == spans


def test_a_row_whose_place_another_collection_took_ends_there(tmp_path: Path) -> None:
    rename = schema_event("rename", collection="archive", to={"db": "db", "coll": "orders"})
    other = change(3, "insert", {"_id": 3, "n": 9}, collection="archive")
    entries, mended = pair(put(2, n=1), lambda n: put(1, n=n), other, rename, put(1, n=7))
    names = ("orders", "archive")
    config, anew = history(tmp_path / "t", *names), history(tmp_path / "anew", *names)
    apply(entries.table(), config)
    assert replay(config, mended) == {2: "replayed"}
    assert rows(tmp_path / "t" / "orders", *SPANS) == [
        (5, 2, 4, None),
        (7, 5, None, None),
        (1, 1, 4, None),
        (9, 4, None, None),
    ]
    apply(mended.table(), anew)
    for name in names:
        assert everything(tmp_path / "t" / name) == everything(tmp_path / "anew" / name)


def logs(seed: int) -> tuple[Entries, Entries, Entries]:
    """A log of few rows with many bad values; the same with some of them mended, and with all."""
    dice = random.Random(seed)
    entries, partly, mended = Entries(), Entries(), Entries()
    live = set[int]()

    def put_all(make: Callable[[Any], Any], n: Any = None) -> None:
        half = 5 if n == "x" and dice.random() < 0.5 else n
        for log, value in ((entries, n), (partly, half), (mended, 5 if n == "x" else n)):
            log.commit(make(value))

    put_all(lambda n: put(0, n=n, big="b", m=0), 1)
    for at in range(70):
        key, n, m = dice.randrange(1, 5), dice.choice([at % 3, 5, "x"]), dice.randrange(3)
        kind = dice.choices(
            ["drop", "put", "delete", "unchanged", "n", "m"], [4, 20, 16, 24, 18, 18]
        )
        if kind == ["drop"]:
            put_all(lambda _: schema_event("drop"))
            live.clear()
        elif kind == ["put"] or key not in live:
            put_all(partial(_whole, key, m), n)
            live.add(key)
        elif kind == ["delete"]:
            put_all(partial(_deleted, key))
            live.discard(key)
        elif kind == ["unchanged"]:
            put_all(partial(_unchanged, key, m), n)
        else:
            put_all(partial(_delta, key, m), n if kind == ["n"] else None)
    return entries, partly, mended


def _whole(key: int, m: int, n: Any) -> ChangeEvent:
    return change(key, "replace", {"_id": key, "n": n, "m": m, "big": "b"})


def _deleted(key: int, _: Any) -> ChangeEvent:
    return change(key, "delete")


def _unchanged(key: int, m: int, n: Any) -> ChangeEvent:
    return change(key, "update", {"_id": key, "n": n, "m": m}, unchanged=["big"])


def _delta(key: int, m: int, n: Any) -> ChangeEvent:
    said = {"m": m} if n is None else {"m": m, "n": n}
    return change(key, "update", update={"updatedFields": said})


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_a_replayed_history_is_one_made_anew(tmp_path: Path, seed: int) -> None:
    """Whatever was rejected, in whatever batches, and replayed in between, whole or torn, from half
    a log, or with half of the values mended."""
    dice = random.Random(seed)
    entries, partly, mended = logs(seed)
    lists = {"track_history_except_column_list": ["m"]} if seed % 2 else {}
    config, anew = history(tmp_path / "t", **lists), history(tmp_path / "anew", **lists)
    ends = sorted({1, entries.head, *dice.sample(range(2, entries.head), 12)})
    for batch, (after, end) in enumerate(itertools.pairwise([0, *ends])):
        apply(entries.table(after, end), config, batch_id=batch)
        if batch and dice.random() < 0.4:
            trimmed = dice.choice([0, dice.randrange(end)])
            some = dice.choice([partly, mended])
            replay(config, some, trimmed, dice.choice([HistoryReplay, Torn]))
    assert set(replay(config, mended).values()) <= {"replayed"}
    apply(mended.table(), anew)
    assert everything(tmp_path / "t") == everything(tmp_path / "anew")
    before = version_of(tmp_path / "t")
    assert replay(config, mended) == {}
    assert version_of(tmp_path / "t") == before
