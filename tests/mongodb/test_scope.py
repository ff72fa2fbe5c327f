"""A source that is told to capture other collections says so, and copies what is new to it."""

from typing import Any

import msgspec
import pytest
from pymongo import MongoClient

from penstock.event import SystemEvent
from penstock.sources.mongodb.positions import parse_position
from penstock.testing.servers import MongoReplicaSet
from tests.mongodb.support import Reading, folded, reading, stored_rows

Client = MongoClient[dict[str, Any]]


def completed(read: Reading) -> bool:
    return any(event.operation == "snapshot_completed" for event in read.events)


def changed(read: Reading) -> dict[str, Any]:
    """What the first event says; it must be that the scope changed."""
    first = read.events[0]
    assert isinstance(first, SystemEvent)
    assert first.operation == "scope_changed"
    facts: dict[str, Any] = msgspec.json.decode(first.description)
    assert facts["since"] == first.position
    return facts


async def test_a_collection_that_is_included_later_is_copied_beside_the_stream(
    mongo: MongoReplicaSet, mongo_client: Client, mongo_database: str
) -> None:
    database = mongo_client[mongo_database]
    for name in ("orders", "customers", "other"):
        database[name].insert_many({"_id": n} for n in range(5))
    options: dict[str, Any] = {"start": "snapshot", "snapshot_chunk_documents": 2}
    async with reading(mongo.uri, database=mongo_database, include=("orders",), **options) as first:
        await first.until(completed)
    database["customers"].insert_one({"_id": "between"})
    database["customers"].delete_one({"_id": 0})
    include = ("orders", "customers")
    async with reading(
        mongo.uri, database=mongo_database, include=include, position=first.position, **options
    ) as second:
        await second.next()
        await second.stop()
        await second.until(completed)
        database["customers"].insert_one({"_id": "after"})
        await second.until(lambda r: r.changes[-1].document_id == "after")
    facts = changed(second)
    assert facts["added"] == [f"{mongo_database}.customers"]
    assert facts["copied"] is True
    assert facts["before"]["include"] == ["orders"]
    assert [e.operation for e in second.events].count("scope_changed") == 1
    events = [*first.events, *second.events]
    assert folded(events) == stored_rows(database, ["orders", "customers"])
    assert len({event.event_id for event in events}) == len(events)


async def test_without_a_snapshot_it_is_said_from_when_on_the_new_collections_are_captured(
    mongo: MongoReplicaSet,
    mongo_client: Client,
    mongo_database: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Never silent; and the changes since the last position are among what is captured."""
    database = mongo_client[mongo_database]
    database["customers"].insert_one({"_id": "before"})
    async with reading(mongo.uri, database=mongo_database, include=("orders",)) as first:
        database["orders"].insert_one({"_id": 1})
        await first.until(lambda r: bool(r.changes))
    database["customers"].insert_one({"_id": "between"})
    options: dict[str, Any] = {"database": mongo_database, "position": first.position}
    async with reading(mongo.uri, exclude=("other",), **options) as second:
        await second.until(lambda r: bool(r.changes))
    facts = changed(second)
    assert facts["added"] == [f"{mongo_database}.customers"]
    assert facts["copied"] is False
    assert [change.document_id for change in second.changes] == ["between"]
    assert "what they held before is not copied" in capsys.readouterr().out


async def test_a_change_of_scope_while_copying_copies_what_is_left_and_what_is_new(
    mongo: MongoReplicaSet, mongo_client: Client, mongo_database: str
) -> None:
    database = mongo_client[mongo_database]
    names = ["a", "b", "c", "d"]
    for name in names:
        database[name].insert_many({"_id": n} for n in range(5))
    options: dict[str, Any] = {"start": "snapshot", "snapshot_chunk_documents": 2}
    async with reading(
        mongo.uri, database=mongo_database, include=("a", "b", "c"), **options
    ) as first:
        await first.until(lambda r: len(r.changes) >= 6)
    # b was under way, c was still to come.
    async with reading(
        mongo.uri, database=mongo_database, exclude=("b",), position=first.position, **options
    ) as second:
        await second.until(completed)
    assert {change.collection for change in second.changes} == {"c", "d"}
    events = [*first.events, *second.events]
    wanted = stored_rows(database, ["a", "c", "d"])
    assert wanted.items() <= folded(events).items()
    assert len({event.event_id for event in events}) == len(events)


@pytest.mark.parametrize("narrower", ["database", "include", "exclude"])
async def test_a_scope_that_leaves_out_the_last_event_goes_on_after_it(
    mongo: MongoReplicaSet, mongo_client: Client, mongo_database: str, narrower: str
) -> None:
    """The server calls such an event's token lost; nothing is."""
    last, kept = f"{mongo_database}_last", mongo_database
    async with reading(mongo.uri, include=(f"{kept}.*", f"{last}.*")) as first:
        mongo_client[last]["orders"].insert_one({"_id": 1})
        await first.until(lambda r: len(r.changes) == 1)
    mongo_client[kept]["orders"].insert_one({"_id": 2})
    scopes: dict[str, dict[str, Any]] = {
        "database": {"database": kept},
        "include": {"include": (f"{kept}.*",)},
        "exclude": {"exclude": (f"{last}.*",)},
    }
    options = scopes[narrower]
    async with reading(mongo.uri, position=first.position, **options) as second:
        await second.until(lambda r: bool(r.changes))
    mongo_client.drop_database(last)
    assert changed(second)["copied"] is False
    assert [change.document_id for change in second.changes] == ["2"]


async def test_the_order_of_patterns_and_a_position_without_a_scope_change_nothing(
    mongo: MongoReplicaSet, mongo_client: Client, mongo_database: str
) -> None:
    options: dict[str, Any] = {"database": mongo_database}
    async with reading(mongo.uri, include=("orders", "other"), **options) as first:
        mongo_client[mongo_database].create_collection("orders")
        await first.until(lambda r: bool(r.events))
        position = parse_position(first.position or "")
    mongo_client[mongo_database]["orders"].insert_one({"_id": 1})
    old = msgspec.structs.replace(position, scope=None)
    for known, include in ((position, ("other", "orders")), (old, ("orders",))):
        async with reading(mongo.uri, include=include, position=known.text(), **options) as second:
            await second.until(lambda r: bool(r.events))
        assert [event.operation for event in second.events] == ["insert"]
        assert parse_position(second.position or "").scope is not None
