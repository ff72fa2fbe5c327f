"""What is done with a row's rejected changes, against the history that the row really had."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from penstock.spark.table.rejects import REPLAYED, SUPERSEDED
from penstock.spark.transform.replay import Fate, Replay, Row, decide
from tests.spark.stepped import MemoryLog
from tests.spark.tables import Entries, apply, change, pipeline, put, rows_of

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
    moved = decide([5], row=None, applied=9, known_from=1, others=[5])
    assert moved.reason == "an event about its whole collection moved it"
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
