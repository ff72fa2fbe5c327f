"""What retention removed before we read it: a gap of that table, always, and then as configured."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import PositionLostError, SourceUnavailableError
from penstock.event import AnyEvent, ChangeEvent, Fragment, SystemEvent
from penstock.state.facts import Facts
from penstock.state.layout import Name
from penstock.store import Retention, Store
from tests.seeds import cases
from tests.sources_store.support import (
    Rows,
    Story,
    caught_up,
    contents,
    make,
    source_of,
    standing_at,
)
from tests.store.support import BOTH, SetClock, opened
from tests.telling import follow

TABLES = ("a", "b")


def gaps(story: Story) -> list[tuple[str, str, Any]]:
    """Operation, table and facts of each gap."""
    return [
        (event.operation, event.collection, msgspec.json.decode(event.description))
        for event in story.events
        if isinstance(event, SystemEvent) and event.operation in {"gap", "gap_ended"}
    ]


async def one_loses(db: Store, path: Path, **options: Any) -> Story:
    """A source that had read three changes, of which table `a` has lost the next two."""
    for number in range(3):
        db.put(TABLES[number % 2], {"id": number})
    story = await caught_up(db, source_of(path, start="beginning", **options))
    for number in range(3, 9):
        db.put(TABLES[number % 2], {"id": number})
    db.prune_stream("a", until_sequence=12)
    return story


async def test_halt_says_the_gap_of_the_table_once_and_stops(tmp_path: Path) -> None:
    """Invariant 4."""
    with opened(tmp_path) as db:
        make(db, *TABLES)
        story = await one_loses(db, tmp_path)
        before = len(story.changes)
        for _ in range(2):
            with pytest.raises(PositionLostError, match="removed changes of 'a'"):
                await follow(source_of(tmp_path), story, lambda _: False)
        ((operation, table, facts),) = gaps(story)
        assert (operation, table) == ("gap", "a")
        assert facts["reason"] == "trimmed"
        assert facts["to"] is None
        assert facts["collection"] == "shop.a"
        assert len(story.changes) == before
        # More is lost while we stand.
        db.prune_stream("b", until_sequence=9)
        with pytest.raises(PositionLostError, match="'b', 'a'"):
            await follow(source_of(tmp_path), story, lambda _: False)
        assert [(operation, table) for operation, table, _ in gaps(story)] == [
            ("gap", "a"),
            ("gap", "b"),
        ]
        # Somebody decides: the gaps have both ends, and what is left comes.
        await caught_up(db, source_of(tmp_path, on_position_lost="gap"), story)
        ended = gaps(story)[2:]
        assert {(operation, table) for operation, table, _ in ended} == {
            ("gap_ended", "a"),
            ("gap_ended", "b"),
        }
        assert all(facts["to"] for _, _, facts in ended)
        assert len({event.event_id for event in story.events}) == len(story.events)


async def test_gap_goes_on_with_all_that_is_left_of_every_table(tmp_path: Path) -> None:
    with opened(tmp_path) as db:
        make(db, *TABLES)
        story = await one_loses(db, tmp_path)
        later = Story(story.position)
        await caught_up(db, source_of(tmp_path, on_position_lost="gap"), later)
        ((_, table, facts),) = gaps(later)
        assert (table, facts["to"]) == ("a", f"{story.place.store}:11")
        told = [(event.collection, event.document_id) for event in later.changes]
        assert told == [("b", "3"), ("b", "5"), ("b", "7"), ("a", "8")]
        assert later.place.known == {}, "what was passed need not be known any more"


async def test_snapshot_copies_the_table_that_lost_changes_and_no_other(tmp_path: Path) -> None:
    with opened(tmp_path) as db:
        make(db, *TABLES)
        story = await one_loses(db, tmp_path)
        db.delete("a", {"id": 0})
        source = source_of(tmp_path, on_position_lost="snapshot", snapshot_chunk_documents=1)
        later = await caught_up(db, source, Story(story.position))
        assert [table for _, table, _ in gaps(later)] == ["a"]
        assert {event.collection for event in later.changes if event.snapshot} == {"a"}
        assert ("snapshot_completed", "") in later.said
        assert later.rows(story.rows()) == contents(db, *TABLES)


@pytest.mark.parametrize("mode", ["snapshot", "gap"])
async def test_a_loss_while_tables_are_copied_begins_the_copy_anew(
    tmp_path: Path, mode: str
) -> None:
    """What was copied before it is no proof of what is there now."""
    with opened(tmp_path) as db:
        make(db, *TABLES)
        for number in range(6):
            db.put("a", {"id": number})
        source = source_of(
            tmp_path, start="snapshot", on_position_lost=mode, snapshot_chunk_documents=2
        )
        story = await follow(source, Story(), lambda story: len(story.changes) == 4)
        db.delete("a", {"id": 0})
        db.put("a", {"id": 1, "n": 1})
        with db.view() as view:
            db.prune_stream("a", until_sequence=view.sequence)
        await caught_up(db, source, story)
        assert [table for _, table, _ in gaps(story)] == ["a"]
        begun = [one for one in story.said if one[0] == "snapshot_started"]
        assert len(begun) == 2
        told = {bytes(event.key) for event in story.changes[4:]}
        assert len(told) == 5, "every row that is there, and so the one that is not is gone"
        known, _ = complete(story.events)
        assert "a" not in known, "until the row that is gone is told as deleted"


async def test_a_start_from_the_beginning_takes_what_each_stream_still_holds_for_no_loss(
    tmp_path: Path,
) -> None:
    """And what is removed after the start, before it is read, is one."""
    with opened(tmp_path) as db:
        make(db, *TABLES)
        for number in range(8):
            db.put(TABLES[number % 2], {"id": number})
        db.prune_stream("a", until_sequence=8)
        story = await caught_up(db, source_of(tmp_path, start="beginning"))
        assert gaps(story) == []
        told = [event.document_id for event in story.changes]
        assert told == ["1", "3", "4", "5", "6", "7"]
        assert ("create", "a") not in story.said, "of `a` not all was told"
        begun = await follow(source_of(tmp_path, start="beginning"), Story(), lambda _: True)
        db.prune_stream("b", until_sequence=6)
        await caught_up(db, source_of(tmp_path, on_position_lost="gap"), begun)
        assert [table for _, table, _ in gaps(begun)] == ["b"]


@pytest.mark.parametrize("start", ["beginning", "now"])
async def test_a_table_that_was_made_anew_and_lost_changes_is_not_called_empty(
    tmp_path: Path, start: str
) -> None:
    """The drop of the one before it is told, behind which all of the name would be known."""
    with opened(tmp_path) as db:
        make(db, "a")
        story = Story()
        if start == "now":
            await caught_up(db, source_of(tmp_path, start="beginning"), story)
        db.drop_table("a")
        make(db, "a")
        for number in range(3):
            db.put("a", {"id": number})
        with db.view() as view:
            db.prune_stream("a", until_sequence=view.sequence - 1)
        source = source_of(tmp_path, start="beginning", on_position_lost="gap")
        await caught_up(db, source, story)
        known, rows = complete(story.events)
        assert len(rows["a"]) == 1
        assert "a" not in known


async def test_a_stream_that_was_disabled_emptied_and_forgotten_is_a_loss(tmp_path: Path) -> None:
    """F10, F19."""
    clock = SetClock()
    with opened(tmp_path, clock) as db:
        make(db, *TABLES)
        db.put("a", {"id": 1})
        story = await caught_up(db, source_of(tmp_path, start="beginning"))
        db.put("a", {"id": 2})
        db.disable_stream("a")
        clock.pass_(8 * 86_400)
        while db.sweep():
            pass
        with db.view() as view:
            assert [stream.table for stream in view.streams()] == ["b"]
        with pytest.raises(PositionLostError, match="'a'"):
            await follow(source_of(tmp_path), story, lambda _: False)


@pytest.mark.parametrize("mode", ["halt", "gap", "snapshot"])
async def test_where_it_cannot_be_told_whose_history_it_is_everything_is_a_gap(
    tmp_path: Path, mode: str
) -> None:
    """Who wrote what we read is forgotten with what it wrote: the rest may be another history."""
    with opened(tmp_path) as db:
        make(db, *TABLES)
        db.write_batch(puts=[(table, {"id": 0}) for table in TABLES])
        story = await caught_up(db, source_of(tmp_path, start="beginning"))
    for number in range(1, 4):
        with opened(tmp_path) as db:
            db.write_batch(puts=[(table, {"id": number}) for table in TABLES])
    with opened(tmp_path) as db:
        for table in TABLES:
            db.alter_table_stream_retention(table, Retention(records_max=1))
        while db.sweep():
            pass
        with db.view() as view:
            assert view.life(story.place.sequence) == ""
        source = source_of(tmp_path, on_position_lost=mode)
        if mode == "halt":
            with pytest.raises(PositionLostError):
                await follow(source, story, lambda _: False)
        else:
            await caught_up(db, source, story)
            known, rows = complete(story.events)
            assert known == set(), "until what the copy did not find is told as deleted"
            assert (rows == contents(db, *TABLES)) is (mode == "snapshot")
        assert [table for _, table, _ in gaps(story)] == [""]


async def test_a_loss_within_a_transaction_that_is_being_read_starts_over(tmp_path: Path) -> None:
    """A gap never ends a transaction of which only a part is staged."""
    with opened(tmp_path) as db:
        make(db, *TABLES)
        with db.transact() as transaction:
            for number in range(20):
                transaction.put("a", {"id": number})
        source, story = source_of(tmp_path, start="beginning", batch_events_max=5), Story()

        def prune(item: object) -> None:
            if isinstance(item, Fragment):
                db.prune_stream("a", until_sequence=15)

        with pytest.raises(SourceUnavailableError, match="starts over"):
            await follow(source, story, lambda _: False, on_item=prune)
        changes = [item for item in story.items if ChangeEvent in map(type, item.events)]
        assert all(isinstance(item, Fragment) for item in changes)
        story.items = [item for item in story.items if not isinstance(item, Fragment)]
        with pytest.raises(PositionLostError):
            await follow(source, story, lambda _: False)


# --- what the state makes of it -------------------------------------------------------------------


def complete(events: list[AnyEvent]) -> tuple[set[str], Rows]:
    """The tables of which the state calls every row known, and the rows that it has."""
    facts, rows = Facts({}, {}, next_number=1), dict[str, dict[str, Any]]()
    for sequence, event in enumerate(events, 1):
        table = event.collection
        if isinstance(event, ChangeEvent):
            facts.heard(Name(event.source, event.database, table), sequence)
            of_table = rows.setdefault(table, {})
            if event.full_document is None:
                of_table.pop(bytes(event.key).decode(), None)
            else:
                of_table[bytes(event.key).decode()] = msgspec.json.decode(event.full_document)
        else:
            facts.control(event, sequence, is_empty=lambda _, of=table: not rows.get(of))  # type: ignore[misc]
            if event.operation == "drop":
                rows.pop(table, None)
    found = {name.collection for name, known in facts.collections.items() if known.complete}
    return found, rows


steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from(TABLES), st.integers(0, 3)),
        st.tuples(st.just("put"), st.sampled_from(TABLES), st.integers(0, 3)),
        st.tuples(st.just("delete"), st.sampled_from(TABLES), st.integers(0, 3)),
        st.tuples(
            st.sampled_from(["disable", "enable", "drop", "forget"]),
            st.sampled_from(TABLES),
            st.none(),
        ),
        st.tuples(st.just("capture"), st.none(), st.integers(1, 6)),
    ),
    max_size=25,
)


@pytest.mark.slow
@settings(max_examples=cases(25))
@given(
    steps=steps,
    start=st.sampled_from(["now", "beginning", "snapshot"]),
    mode=st.sampled_from(["gap", "snapshot"]),
    records_max=st.integers(1, 6),
)
def test_what_the_log_calls_complete_is_what_the_store_holds_whatever_was_lost(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[Any],
    start: str,
    mode: str,
    records_max: int,
) -> None:
    """Invariant 4: no loss is silent. Streams that hold a few records, tables without a stream,
    dropped and made anew, streams forgotten; capture that comes and goes at any moment."""

    async def run() -> None:
        path, clock = tmp_path_factory.mktemp("store"), SetClock()
        options = {"start": start, "on_position_lost": mode, "snapshot_chunk_documents": 2}
        source, story = source_of(path, **options), Story()
        with opened(path, clock) as db:
            make(db, *TABLES, records_max=records_max)
            for what, table, number in steps:
                if what == "capture":
                    stop, at_end = len(story.items) + number, standing_at(db)

                    def enough(story: Story, stop: int = stop, at_end: Any = at_end) -> bool:
                        return len(story.items) >= stop or at_end(story)

                    await follow(source, story, enough)
                else:
                    apply(db, clock, what, table, number, records_max)
            await caught_up(db, source, story)
            followed = {name for name in TABLES if db.describe_table(name).stream is not None}
            known, rows = complete(story.events)
            held = contents(db, *TABLES)
        for table in known & followed:
            assert rows.get(table, {}) == held.get(table, {}), table
        assert known <= followed, "of a table without a stream nobody knows all"
        ids = [event.event_id for event in story.events]
        assert len(ids) == len(set(ids))

    asyncio.run(run())


def apply(db: Store, clock: SetClock, what: str, table: str, number: int, records_max: int) -> None:
    """One step of a random story."""
    streams = db.describe_table(table).stream is not None
    match what:
        case "put":
            db.put(table, {"id": number, "n": clock.now_ms})
            clock.pass_(1)
        case "delete":
            db.delete(table, {"id": number})
        case "disable" if streams:
            db.disable_stream(table)
        case "enable" if not streams:
            db.enable_stream(table, BOTH, retention=Retention(records_max=records_max))
        case "drop":
            db.drop_table(table)
            make(db, table, records_max=records_max)
        case "forget":
            clock.pass_(8 * 86_400)
            while db.sweep():
                pass
        case _:
            pass
