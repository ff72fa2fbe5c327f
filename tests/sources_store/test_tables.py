"""What happens to tables and their streams, and to what is configured to be captured."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.event import SchemaEvent, SystemEvent
from penstock.store import KeyType, Store
from tests.sources_store.support import Story, caught_up, contents, make, source_of
from tests.store.support import BOTH, opened
from tests.telling import follow


def reasons(story: Story) -> list[tuple[str, str]]:
    """The gaps: of which table, and why."""
    return [
        (event.collection, msgspec.json.decode(event.description)["reason"])
        for event in story.events
        if isinstance(event, SystemEvent) and event.operation == "gap"
    ]


def facts(story: Story, operation: str) -> list[dict[str, Any]]:
    """What the events of that operation say."""
    return [
        msgspec.json.decode(event.description)
        for event in story.events
        if isinstance(event, SchemaEvent | SystemEvent) and event.operation == operation
    ]


def without_stream(db: Store, name: str) -> None:
    """A table with two items and no stream."""
    db.create_table(name).partition_key("id", KeyType.NUMBER).execute()
    for number in range(2):
        db.put(name, {"id": number})


async def test_tables_that_are_made_and_dropped_are_told_of_in_their_place(tmp_path: Path) -> None:
    """F19."""
    with opened(tmp_path) as db:
        story = await caught_up(db, source_of(tmp_path))
        table = (
            db.create_table("a").partition_key("id", KeyType.NUMBER).sort_key("at", KeyType.STRING)
        )
        table.stream(BOTH).execute()
        db.put("a", {"id": 1, "at": "x"})
        db.set_ttl("a", "until")
        db.drop_table("a")
        make(db, "a")
        db.put("a", {"id": 2})
        await caught_up(db, source_of(tmp_path), story)
        order = [(event.operation, event.collection) for event in story.events]
        assert order == [
            ("create", "a"),
            ("insert", "a"),
            ("modify", "a"),
            ("drop", "a"),
            ("create", "a"),
            ("insert", "a"),
        ]
        assert reasons(story) == [], "the stream of a table that is dropped loses nothing"
        created, _ = facts(story, "create")
        assert created == {
            "ns": {"db": "shop", "coll": "a"},
            "key": [{"name": "id", "type": "N"}, {"name": "at", "type": "S"}],
            "ttlAttribute": None,
        }
        assert facts(story, "modify")[0]["ttlAttribute"] == "until"
        assert story.rows() == contents(db, "a")


async def test_a_stream_that_is_disabled_is_a_gap_of_its_table(tmp_path: Path) -> None:
    with opened(tmp_path) as db:
        make(db, "a", "b")
        story = await caught_up(db, source_of(tmp_path))
        db.put("a", {"id": 1})
        db.disable_stream("a")
        db.put("a", {"id": 2})
        db.put("b", {"id": 1})
        await caught_up(db, source_of(tmp_path), story)
        assert reasons(story) == [("a", "stream_disabled")]
        assert [event.collection for event in story.changes] == ["a", "b"]


@pytest.mark.parametrize("start", ["now", "snapshot"])
async def test_a_stream_that_begins_on_a_table_with_items_is_copied_or_its_gap_is_said(
    tmp_path: Path, start: str
) -> None:
    with opened(tmp_path) as db:
        make(db, "a")
        without_stream(db, "t")
        story = await caught_up(db, source_of(tmp_path, start=start))
        db.enable_stream("t", BOTH)
        db.put("t", {"id": 3})
        await caught_up(db, source_of(tmp_path, start=start), story)
        assert ("create", "t") not in story.said, "it is not new"
        if start == "snapshot":
            assert reasons(story) == []
            assert story.rows() == contents(db, "t")
        else:
            assert reasons(story) == [("t", "stream_enabled")]
            assert len(story.changes) == 1


@pytest.mark.parametrize("start", ["now", "snapshot"])
async def test_a_captured_table_that_is_dropped_and_made_without_a_stream_is_a_gap(
    tmp_path: Path, start: str
) -> None:
    """F19: it was told to be dropped, so it would be taken for empty, and it is not."""
    with opened(tmp_path) as db:
        make(db, "a", "b")
        db.put("a", {"id": 1})
        story = await caught_up(db, source_of(tmp_path, start=start))
        db.drop_table("a")
        without_stream(db, "a")
        await caught_up(db, source_of(tmp_path, start=start), story)
        assert story.said[-2:] == [("drop", "a"), ("gap", "a")]
        assert reasons(story) == [("a", "no_stream")]
        db.drop_table("a")
        await caught_up(db, source_of(tmp_path, start=start), story)
        assert story.said[-1] == ("drop", "a"), "now it is known to be empty again"


async def test_a_table_that_is_made_without_a_stream_after_a_whole_copy_is_a_gap(
    tmp_path: Path,
) -> None:
    """Else it would be called complete: whatever was not heard of holds nothing."""
    with opened(tmp_path) as db:
        make(db, "a")
        story = await caught_up(db, source_of(tmp_path, start="snapshot"))
        without_stream(db, "t")
        await caught_up(db, source_of(tmp_path, start="snapshot"), story)
        assert reasons(story) == [("t", "no_stream")]
        db.enable_stream("t", BOTH)
        await caught_up(db, source_of(tmp_path, start="snapshot"), story)
        assert facts(story, "snapshot_completed")[-1]["collections"] == ["shop.t"]
        assert story.rows() == contents(db, "t")


async def test_a_table_whose_stream_begins_before_its_items_is_no_gap(tmp_path: Path) -> None:
    """Whether capture looked between the two or not; if it did, a copy closes what it said."""
    with opened(tmp_path) as db:
        make(db, "a")
        story = await caught_up(db, source_of(tmp_path, start="snapshot"))
        for name in ("at_once", "in_two"):
            db.create_table(name).partition_key("id", KeyType.NUMBER).execute()
            if name == "in_two":
                await caught_up(db, source_of(tmp_path, start="snapshot"), story)
            db.enable_stream(name, BOTH)
            db.put(name, {"id": 1})
            await caught_up(db, source_of(tmp_path, start="snapshot"), story)
        assert reasons(story) == [("in_two", "no_stream")]
        assert facts(story, "snapshot_completed")[-1]["collections"] == ["shop.in_two"]
        assert [one for one in story.said if one[0] == "create"] == [
            ("create", "at_once"),
            ("create", "in_two"),
        ]
        assert story.rows() == contents(db, "at_once", "in_two")


async def test_a_table_that_is_remade_without_a_stream_while_it_is_copied_is_not_called_copied(
    tmp_path: Path,
) -> None:
    with opened(tmp_path) as db:
        make(db, "a", "b")
        for number in range(6):
            db.put("a", {"id": number})
            db.put("b", {"id": number})
        source = source_of(tmp_path, start="snapshot", snapshot_chunk_documents=2)
        story = Story()
        await follow(source, story, lambda story: len(story.changes) >= 4)
        db.drop_table("a")
        without_stream(db, "a")
        await caught_up(db, source, story)
        assert reasons(story) == [("a", "no_stream")]
        (completed,) = facts(story, "snapshot_completed")
        assert (completed["collections"], completed["whole"]) == (["shop.b"], False)


async def test_a_copy_is_of_everything_only_where_every_table_has_a_stream(tmp_path: Path) -> None:
    """Else rows of a table that is not copied would be taken for gone."""
    with opened(tmp_path) as db:
        make(db, "a")
        whole = await caught_up(db, source_of(tmp_path, start="snapshot"))
        without_stream(db, "t")
        part = await caught_up(db, source_of(tmp_path, start="snapshot"))
        left_out = source_of(tmp_path, start="snapshot", exclude=["t"])
        again = await caught_up(db, left_out)
    told = [facts(story, "snapshot_completed")[0]["whole"] for story in (whole, part, again)]
    assert told == [True, False, True]
    assert part.rows() == {}


async def test_a_table_that_loses_its_stream_while_it_is_copied_is_not_called_copied(
    tmp_path: Path,
) -> None:
    with opened(tmp_path) as db:
        make(db, "a", "b")
        for number in range(6):
            db.put("a", {"id": number})
            db.put("b", {"id": number})
        source = source_of(tmp_path, start="snapshot", snapshot_chunk_documents=2)
        story = Story()
        await follow(source, story, lambda story: len(story.changes) >= 4)
        db.disable_stream("a")
        db.put("a", {"id": 0, "n": 1})
        await caught_up(db, source, story)
        assert reasons(story) == [("a", "stream_disabled")]
        (completed,) = facts(story, "snapshot_completed")
        assert completed["collections"] == ["shop.b"]
        assert not completed["whole"]
        first, second = facts(story, "snapshot_started")
        assert first["snapshot"] != second["snapshot"] == completed["snapshot"]


async def test_a_change_of_what_is_captured_is_said_and_what_comes_new_is_copied(
    tmp_path: Path,
) -> None:
    with opened(tmp_path) as db:
        make(db, "orders", "customers", "log_1")
        for table in ("orders", "customers", "log_1"):
            db.put(table, {"id": 1})
        story = await caught_up(db, source_of(tmp_path, start="snapshot", include=["o*", "log_?"]))
        assert story.rows() == contents(db, "orders", "log_1")
        db.put("customers", {"id": 2})
        again = source_of(tmp_path, start="snapshot", exclude=["log_*"])
        await caught_up(db, again, story)
        (scope,) = facts(story, "scope_changed")
        assert scope["added"] == ["shop.customers"]
        assert scope["removed"] == ["shop.log_1"]
        assert scope["copied"] is True
        assert reasons(story) == [("log_1", "scope")]
        assert story.rows() == contents(db, "orders", "customers", "log_1")
        await caught_up(db, again, story)
        assert len(facts(story, "scope_changed")) == 1, "said once"


async def test_tables_that_come_new_without_a_copy_begin_at_the_position(tmp_path: Path) -> None:
    """What retention had removed of them by then was never promised."""
    with opened(tmp_path) as db:
        make(db, "a", "b")
        story = await caught_up(db, source_of(tmp_path, exclude=["b"]))
        for number in range(3):
            db.put("b", {"id": number})
        db.prune_stream("b", until_sequence=5)
        await caught_up(db, source_of(tmp_path), story)
        assert [event.document_id for event in story.changes] == ["1", "2"]
        assert reasons(story) == []
        assert facts(story, "scope_changed")[0]["copied"] is False


async def test_another_name_for_the_database_is_another_scope(tmp_path: Path) -> None:
    with opened(tmp_path) as db:
        make(db, "a")
        db.put("a", {"id": 1})
        story = await caught_up(db, source_of(tmp_path, start="snapshot"))
        await caught_up(db, source_of(tmp_path, start="snapshot", database="store"), story)
        (scope,) = facts(story, "scope_changed")
        assert (scope["added"], scope["removed"]) == (["store.a"], ["shop.a"])
        (gap,) = [event for event in story.events if event.operation == "gap"]
        assert gap.database == "shop"
        assert [event.database for event in story.changes] == ["shop", "store"]
