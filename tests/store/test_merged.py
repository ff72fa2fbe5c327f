"""The changes of all tables as one story."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.store import (
    AheadOfStreamError,
    ChangesMissingError,
    Item,
    KeyType,
    Retention,
    Store,
    StreamRecord,
    StreamViewType,
)
from penstock.store.merged import Part, Recorded
from tests.seeds import cases
from tests.store.support import BOTH, SetClock, opened

TABLES = ("a", "b", "c")


def with_tables(db: Store, **limits: Any) -> None:
    """Tables `a` and `b` with streams of that retention, and `c` without."""
    for name in TABLES:
        table = db.create_table(name).partition_key("id", KeyType.NUMBER)
        if name != "c":
            table.stream(BOTH).retention(Retention(**limits))
        table.execute()


def read(db: Store, *, after: int = 0, **options: Any) -> list[Part]:
    """All parts behind a sequence, page by page."""
    found, more = list[Part](), True
    while more:
        with db.view() as view:
            page = view.changes(after=after, **options)
        found += page.parts
        assert page.sequence > after or page.at_end
        after, more = page.sequence, not page.at_end
    return found


def records(parts: list[Part]) -> list[Recorded]:
    """The records of parts, in order."""
    return [record for part in parts for record in part.records]


def said(parts: list[Part]) -> list[tuple[str, object]]:
    """What parts say: of an item its table and what it is now, of a table what happened to it."""
    found = list[tuple[str, object]]()
    for record in records(parts):
        change = record.change
        if isinstance(change, StreamRecord):
            found.append((change.table_name, change.new_image))
        else:
            found.append((change.table.name, change.operation))
    return found


writes = st.lists(
    st.lists(
        st.tuples(st.sampled_from(TABLES), st.integers(0, 3), st.integers(0, 2) | st.none()),
        min_size=1,
        max_size=5,
    ),
    max_size=8,
)


@pytest.mark.slow
@settings(max_examples=cases(40))
@given(writes=writes, records_max=st.integers(1, 7), bytes_max=st.integers(1, 400))
def test_from_any_place_a_reader_gets_every_later_change_of_every_table_once_and_in_order(
    tmp_path_factory: pytest.TempPathFactory,
    writes: list[list[tuple[str, int, int | None]]],
    records_max: int,
    bytes_max: int,
) -> None:
    """Commits come whole or in parts of which the last says so, however little is read at once."""
    told = list[list[tuple[str, Item | None]]]()
    with opened(tmp_path_factory.mktemp("store")) as db:
        with_tables(db)
        model = dict[tuple[str, int], Item]()
        for transaction in writes:
            changes = list[tuple[str, Item | None]]()
            with db.transact() as under_way:
                for table, key, value in transaction:
                    before = model.pop((table, key), None)
                    item: Item | None = None if value is None else {"id": key, "n": value}
                    if item is None:
                        under_way.delete(table, {"id": key})
                    else:
                        under_way.put(table, item)
                        model[table, key] = item
                    if before != item and table != "c":
                        changes.append((table, item))
            if changes:
                told.append(changes)
        options = {"records_max": records_max, "bytes_max": bytes_max}
        everything = read(db, **options)
        with db.view() as view:
            newest = view.sequence
        begins = [0, *(part.sequence for part in everything if part.ends)]
        for begin in begins:
            rest = records(read(db, after=begin, **options))
            assert rest == [one for one in records(everything) if one.sequence > begin]
        items = [one for one in everything if isinstance(one.records[0].change, StreamRecord)]
    commits = list[list[tuple[str, object]]]()
    for part in items:
        if commits and part.commit == items[items.index(part) - 1].commit:
            commits[-1] += said([part])
        else:
            commits.append(said([part]))
    assert commits == told
    sequences = [record.sequence for record in records(everything)]
    assert sequences == list(range(1, newest + 1)), "nothing is left out where all are read"
    ended = [part.commit for part in everything if part.ends]
    assert ended == sorted(set(ended))


def test_a_reader_of_some_tables_moves_past_the_changes_of_others(tmp_path: Path) -> None:
    with opened(tmp_path) as db:
        with_tables(db)
        with db.transact() as transaction:
            transaction.put("a", {"id": 1})
            transaction.put("b", {"id": 1})
            transaction.put("a", {"id": 2})
            transaction.put("b", {"id": 2})
        with db.view() as view:
            page = view.changes(after=0, tables="a".__eq__)
            whole = page.parts[-1]
        assert said(page.parts) == [
            ("a", "createTable"),
            ("a", "enableStream"),
            ("a", {"id": 1}),
            ("a", {"id": 2}),
        ]
        assert [record.sequence for record in whole.records] == [6, 8]
        assert whole.sequence == page.sequence == 9, "the commit ends with another table's record"


def test_a_reader_is_told_of_which_tables_changes_were_trimmed_beyond_its_place(
    tmp_path: Path,
) -> None:
    """F4: and goes on with what is left once it knows."""
    with opened(tmp_path) as db:
        with_tables(db)
        for number in range(4):
            db.put("a", {"id": number})
            db.put("b", {"id": number})
        db.prune_stream("a", until_sequence=8)
        with db.view() as view:
            assert view.missing(after=8) == [], "nothing that follows is missing"
            with pytest.raises(ChangesMissingError, match="a: changes after sequence") as caught:
                view.changes(after=7)
        assert caught.value.facts() == {"missing": {"a": 8}}
        known = {one.stream: one.until for one in caught.value.missing}
        assert said(read(db, after=7, known=known)) == [
            ("b", {"id": 1}),
            ("a", {"id": 2}),
            ("b", {"id": 2}),
            ("a", {"id": 3}),
            ("b", {"id": 3}),
        ]
        assert said(read(db, after=7, tables="b".__eq__))[0] == ("b", {"id": 1})


def test_a_stream_that_is_forgotten_is_told_as_missing(tmp_path: Path) -> None:
    """F10, F19: it was disabled, emptied by retention, and nothing of it is left but the catalog's
    word; who had read it to its end has lost nothing."""
    clock = SetClock()
    with opened(tmp_path, clock) as db:
        with_tables(db)
        db.put("a", {"id": 1})
        db.put("b", {"id": 1})
        db.disable_stream("a")
        clock.pass_(8 * 86_400)
        while db.sweep():
            pass
        with pytest.raises(ChangesMissingError) as caught:
            read(db, after=5, tables="a".__eq__)
        known = {one.stream: one.until for one in caught.value.missing}
        assert said(read(db, after=5, known=known, tables="a".__eq__)) == [("a", "disableStream")]
        assert read(db, after=8) == []
        assert read(db, after=5, tables="c".__eq__) == []


def test_a_sequence_that_was_never_written_is_refused(tmp_path: Path) -> None:
    """F10."""
    with opened(tmp_path) as db:
        with_tables(db)
        with pytest.raises(AheadOfStreamError, match="never written"):
            read(db, after=6)


def test_who_wrote_a_sequence_tells_a_store_from_its_restored_backup(tmp_path: Path) -> None:
    """F10: wherever retention has trimmed it to."""
    path, backup = tmp_path / "store", tmp_path / "backup"
    with opened(path) as db:
        with_tables(db)
    with opened(path) as db:
        db.put("a", {"id": 1})
        with db.view() as view:
            ((first, made), (second, mine)) = view.lives()
            assert (first, second) == (1, 6)
            assert [view.life(sequence) for sequence in (0, 1, 5, 6)] == ["", made, made, mine]
    shutil.copytree(path, backup)
    with opened(path) as db:
        db.put("a", {"id": 2})
        with db.view() as view:
            lost = view.life(7)
    with opened(backup) as db:
        db.put("a", {"id": 3})
        with db.view() as view:
            assert view.life(6) == mine
            assert view.life(7) not in {lost, mine, ""}


def test_lives_are_forgotten_with_what_they_wrote(tmp_path: Path) -> None:
    """But the one of the newest record that is gone: exactly there nothing is missing."""
    for number in range(6):
        with opened(tmp_path) as db:
            if not number:
                db.create_table("a").partition_key("id", KeyType.NUMBER).stream(BOTH).execute()
            db.put("a", {"id": number})
    with opened(tmp_path) as db:
        with db.view() as view:
            assert [first for first, _ in view.lives()] == [1, 4, 5, 6, 7, 8]
        db.alter_table_stream_retention("a", Retention(records_max=1))
        while db.sweep():
            pass
        with db.view() as view:
            assert view.missing(after=7) == []
            assert [first for first, _ in view.lives()] == [7, 8, 9]


def test_items_come_in_chunks_and_expired_ones_until_they_are_removed(tmp_path: Path) -> None:
    """F8, F11."""
    clock = SetClock()
    with opened(tmp_path, clock) as db:
        db.create_table("a").partition_key("id", KeyType.NUMBER).ttl("until").execute()
        db.create_table("b").partition_key("id", KeyType.NUMBER).execute()
        for number in range(10):
            until = {"until": clock.now_ms // 1000} if number in {3, 4, 9} else {}
            db.put("a", {"id": number, **until})
            db.put("b", {"id": number})
        found, after, last = list[object](), None, False
        with db.view() as view:
            table = view.table("a")
            assert table is not None
            while not last:
                chunk = view.items(table, after=after, limit=2, bytes_max=1 << 20)
                assert len(chunk.items) <= 2
                found += [item["id"] for item in chunk.items]
                after, last = chunk.after, chunk.last
            assert found == list(range(10))
            one = view.items(table, after=None, limit=100, bytes_max=1)
            assert len(one.items) == 1
            other = view.table("b")
            assert other is not None
            anew = view.items(other, after=after, limit=100, bytes_max=1 << 20)
            assert len(anew.items) == 10, "a key of another table is no place in this one"
        while db.sweep():
            pass
        with db.view() as view:
            left = view.items(table, after=None, limit=100, bytes_max=1 << 20)
            assert [item["id"] for item in left.items] == [0, 1, 2, 5, 6, 7, 8]


def test_a_view_leaves_out_streams_that_are_not_wanted(tmp_path: Path) -> None:
    with opened(tmp_path) as db:
        with_tables(db)
        db.enable_stream("c", StreamViewType.KEYS_ONLY)
        db.put("c", {"id": 1})
        with db.view() as view:
            (keys_only,) = [one.id for one in view.streams() if one.table == "c"]
            page = view.changes(after=0, without={keys_only})
        assert ("c", None) not in said(page.parts)
        assert ("c", "enableStream") in said(page.parts)
