"""What is done with a row's rejected changes, against the history that the row really had."""

import itertools
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.spark.table.lake import KeptTable
from penstock.spark.table.rejects import REPLAYED, SUPERSEDED
from penstock.spark.transform.fate import Fate, Replayed, Row, decide
from penstock.spark.transform.replay import Replay
from tests.spark.stepped import MemoryLog
from tests.spark.tables import (
    Entries,
    apply,
    change,
    fold,
    pipeline,
    put,
    rejects_of,
    rows_of,
    schema_event,
)

EVENTS = st.lists(st.sampled_from(["good", "bad", "patch", "delete"]), max_size=8)


@given(EVENTS)
def test_exactly_the_changes_since_the_rows_last_good_one_are_tried(events: list[str]) -> None:
    """Never one that a later change of the row, or its deletion, has made the past."""
    row: Row | None = None
    pending: list[int] = []
    others: list[int] = []
    for sequence, event in enumerate(events, 1):
        current = row is not None and row.rejected is None
        if event == "delete":
            row = None
        elif event == "good" or (event == "patch" and current):
            row = Row(sequence=sequence, rejected=None)
        else:
            pending.append(sequence)
            row = None if row is None else Row(sequence=row.sequence, rejected=sequence)
            continue
        others.append(sequence)
    last = max(others, default=0)
    fate = decide(pending, row=row, applied=len(events), known_from=1, others=others)
    assert fate.tried == tuple(at for at in pending if at > last)
    assert fate.states == {at: SUPERSEDED for at in pending if at < last}
    assert bool(fate.reason) is not bool(pending)
    trimmed = decide(pending, row=row, applied=len(events), known_from=100, others=[])
    assert trimmed.tried == ()
    if pending and fate.tried:
        assert "no longer" in trimmed.reason


def test_a_crash_before_the_rejects_say_so_is_seen_in_the_row() -> None:
    applied = Row(sequence=5, rejected=None)
    assert decide([5], row=applied, applied=9, known_from=1, others=[]).states == {5: REPLAYED}


def test_what_the_table_has_not_come_to_is_left() -> None:
    assert decide([5], row=None, applied=4, known_from=1, others=[]) == Fate(
        reason="its batch is not in the table yet"
    )
    unknown = decide([5], row=Row(sequence=3, rejected=None), applied=9, known_from=1, others=[])
    assert unknown.tried == ()
    assert "neither applied nor rejected" in unknown.reason


def test_what_a_rejected_change_builds_on_is_replayed_with_it(tmp_path: Path) -> None:
    """Of the changes of a row in a batch only the last is in the rejects; the others are as bad."""
    config, entries = pipeline(tmp_path / "t"), Entries()
    entries.commit(put(1, n=1, big="old"))
    apply(entries.table(), config)
    entries.commit(change(1, "update", {"_id": 1, "n": "1.5", "big": "new"}))
    entries.commit(change(1, "update", update={"updatedFields": {"m": 7}}))
    apply(entries.table(1), config, batch_id=1)
    before = rows_of(config.path)
    for trimmed, why in ((0, "kind string"), (2, "no longer")):
        (one,) = Replay("p", config, MemoryLog(entries, trimmed), None).run()
        assert (one.sequence, one.state) == (3, "left")
        assert why in one.reason
    assert rows_of(config.path) == before
    # As a step of today would have it.
    mended = Entries()
    mended.commit(put(1, n=1, big="old"))
    mended.commit(change(1, "update", {"_id": 1, "n": 5, "big": "new"}))
    mended.commit(change(1, "update", update={"updatedFields": {"m": 7}}))
    (one,) = Replay("p", config, MemoryLog(mended, 0), None).run()
    assert (one.sequence, one.state) == (3, "replayed")
    assert [*rows_of(config.path).values()] == [{"_id": 1, "n": 5, "big": "new", "m": 7}]


UPDATES: list[dict[str, Any]] = [
    {"document": {}, "unchanged": ["big"]},
    {"update": {"updatedFields": {"m": 7}}},
]


@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("before", [0, 2])
def test_a_row_that_never_was_there_is_replayed_from_its_insert(
    tmp_path: Path, update: dict[str, Any], before: int
) -> None:
    """Its batch rejects the last change alone, which does not say the row."""

    def log(n: Any) -> Entries:
        entries = Entries()
        entries.commit(put(1, n=1, big="b"))
        for _ in range(before // 2):
            # A row of this key that was, and is gone.
            entries.commit(put(2, n=5, old=True))
            entries.commit(change(2, "delete"))
        entries.commit(put(2, n=n, big="TOAST"))
        known: dict[str, Any] = dict(update)
        if "document" in known:
            known["document"] = {"_id": 2, "n": n}
        entries.commit(change(2, "update", **known))
        return entries

    config, entries = pipeline(tmp_path / "t"), log("x")
    apply(entries.table(0, 1 + before), config)
    apply(entries.table(1 + before), config, batch_id=1)
    last = entries.head
    assert [row["sequence"] for row in rejects_of(config.path)] == [last]
    for trimmed, why in ((0, "kind string"), (last - 1, "no longer")):
        (one,) = Replay("p", config, MemoryLog(entries, trimmed), None).run()
        assert (one.sequence, one.state) == (last, "left")
        assert why in one.reason
    # As a step of today would have it.
    mended = log(6)
    (one,) = Replay("p", config, MemoryLog(mended, 0), None).run()
    assert (one.sequence, one.state) == (last, "replayed")
    assert rows_of(config.path) == fold(mended.table())
    assert Replay("p", config, MemoryLog(mended, 0), None).run() == []


def test_a_row_that_was_deleted_or_made_anew_since_is_not_replayed(tmp_path: Path) -> None:
    config, entries = pipeline(tmp_path / "t"), Entries()
    entries.commit(put(1, n=1))
    apply(entries.table(), config)
    for key in (2, 3):
        entries.commit(put(key, n="x"))
        entries.commit(change(key, "update", update={"updatedFields": {"m": 7}}))
    apply(entries.table(1), config, batch_id=1)
    entries.commit(change(2, "delete"))
    entries.commit(put(3, n=8))
    apply(entries.table(5), config, batch_id=2)
    assert [row["sequence"] for row in rejects_of(config.path)] == [3, 5]
    before = rows_of(config.path)
    found = Replay("p", config, MemoryLog(entries, 0), None).run()
    assert {one.sequence: one.state for one in found} == {3: "superseded", 5: "superseded"}
    assert rows_of(config.path) == before


def test_a_row_is_as_stale_as_the_last_of_its_changes_that_a_batch_rejects(tmp_path: Path) -> None:
    """What its column does not take, and what says nothing, in one batch: both are replayed."""
    config, entries, mended = pipeline(tmp_path / "t"), Entries(), Entries()
    for log, n in ((entries, "x"), (mended, 2)):
        log.commit(put(1, n=1))
        log.commit(change(1, "update", {"_id": 1, "n": n}))
    entries.commit(change(1, "update"))
    mended.commit(change(1, "update", update={"updatedFields": {"m": 7}}))
    apply(entries.table(0, 1), config)
    apply(entries.table(1), config, batch_id=1)
    assert [row["sequence"] for row in rejects_of(config.path)] == [2, 3]
    found = Replay("p", config, MemoryLog(mended, 0), None).run()
    assert {one.sequence: one.state for one in found} == {2: "superseded", 3: "replayed"}
    assert rows_of(config.path) == fold(mended.table())


NAMES = ("orders", "archive")


class Torn(Replay):
    """A replay that ends before the rejects say so."""

    def _mark(self, rejects: KeptTable, settled: Sequence[Replayed]) -> None:
        pass


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_what_is_replayed_is_what_the_log_comes_to(tmp_path: Path, seed: int) -> None:
    """Whatever was rejected, in whatever batches, and renamed since, the mended log's fold is what
    rows are then; with odd seeds some is replayed between them too, be it from half a log."""
    dice, live = random.Random(seed), {name: set[int]() for name in NAMES}
    config, entries, mended = pipeline(tmp_path, *NAMES), Entries(), Entries()

    def commit(key: int, operation: str, *, n: Any = None, **said: Any) -> None:
        for log, value in ((entries, n), (mended, 5 if n == "x" else n)):
            told: dict[str, Any] = dict(said)
            if "document" in said:
                told["document"] = {**said["document"], "n": value}
            elif "update" in said:
                fields = {**said["update"], "n": value} if value else said["update"]
                told["update"] = {"updatedFields": fields}
            log.commit(change(key, operation, **told))

    def rename(old: str, new: str) -> None:
        for log in (entries, mended):
            log.commit(schema_event("rename", collection=old, to={"db": "db", "coll": new}))
        live[old], live[new] = set[int](), live[old]

    def check(until: int) -> None:
        for name in NAMES:
            assert rows_of(tmp_path / name) == fold(mended.table(0, until), name)

    for name in NAMES:
        commit(0, "insert", document={"_id": 0}, n=1, collection=name)
    first = entries.head
    for at in range(60):
        # Mostly of the one; the other has rows that a rename replaces.
        name, other = NAMES if dice.random() < 0.8 else NAMES[::-1]
        key, n = dice.randrange(1, 6), dice.choice([at, "x", "x"])
        if dice.random() < 0.06:
            rename(name, other)
        elif key not in live[name] or dice.random() < 0.15:
            document = {"_id": key, "big": f"b{at}", "m": at}
            commit(key, "replace", document=document, n=n, collection=name)
            live[name].add(key)
        elif dice.random() < 0.25:
            commit(key, "delete", collection=name)
            live[name].discard(key)
        elif dice.random() < 0.5:
            document = {"_id": key, "m": at}
            said = {"document": document, "unchanged": ["big"]}
            commit(key, "update", n=n, collection=name, **said)
        else:
            value = dice.choice([n, None])
            commit(key, "update", update={"m": at}, n=value, collection=name)
    ends = sorted({entries.head, first, *dice.sample(range(first + 1, entries.head), 9)})
    for batch, (after, end) in enumerate(itertools.pairwise([0, *ends])):
        apply(entries.table(after, end), config, batch_id=batch)
        if batch and seed % 2 and dice.random() < 0.5:
            trimmed = dice.choice([0, dice.randrange(end)])
            dice.choice([Replay, Torn])("p", config, MemoryLog(mended, trimmed), None).run()
            if not trimmed:
                check(end)
    found = Replay("p", config, MemoryLog(mended, 0), None).run()
    assert found or seed % 2
    assert {one.state for one in found} <= {"replayed", "superseded"}
    check(entries.head)
    assert Replay("p", config, MemoryLog(mended, 0), None).run() == []


@pytest.mark.parametrize(
    ("event", "state", "there"),
    [
        (schema_event("drop"), SUPERSEDED, None),
        (schema_event("rename", to={"db": "db", "coll": "archive"}), "replayed", ("archive", "db")),
        (
            schema_event("rename", to={"db": "other", "coll": "orders"}),
            "replayed",
            ("orders", "other"),
        ),
    ],
    ids=["dropped", "renamed", "renamed to another database"],
)
def test_what_was_rejected_before_its_collection_went_is_where_that_went(
    tmp_path: Path, event: Any, state: str, there: tuple[str, str] | None
) -> None:
    """Though the table had no row any more that went with it: gone, or under the new name."""
    config = pipeline(tmp_path, "orders", "archive")
    entries, mended = Entries(), Entries()
    for log, value in ((entries, "text"), (mended, 5)):
        log.commit(put(1, n=1))
        log.commit(change(1, "delete"))
        log.commit(put(2, n=value))
        log.commit(event)
    for after in range(4):
        apply(entries.table(after, after + 1), config, batch_id=after)
    (one,) = Replay("p", config, MemoryLog(mended, 0), None).run()
    assert (one.sequence, one.state) == (3, state)
    found = {
        (name, database): row["n"]
        for name in ("orders", "archive")
        if (tmp_path / name).exists()
        for (database, _), row in rows_of(tmp_path / name).items()
    }
    assert found == ({there: 5} if there else {})
