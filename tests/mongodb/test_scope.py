"""A source that is told to capture other collections says so, and copies what is new to it."""

import uuid
from typing import Any

import msgspec
import pytest
from pymongo import MongoClient

from penstock.errors import GapError
from penstock.event import ChangeEvent, SystemEvent
from penstock.log.memory import MemoryLog
from penstock.progress import Progress
from penstock.sources.mongodb.positions import parse_position
from penstock.subscribe.criteria import Criteria
from penstock.subscribe.deliver import Subscription, deliver
from penstock.wire import Block, decode_message
from tests.mongodb.support import Reading, folded, reading, stored_rows
from tests_support.servers import MongoReplicaSet

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
@pytest.mark.parametrize("version", ["mongo", "mongo6027"])
@pytest.mark.server
async def test_a_scope_that_leaves_out_the_last_event_goes_on_after_it(
    request: pytest.FixtureRequest, version: str, narrower: str
) -> None:
    """The server calls such an event's token lost; nothing is. 6.0.27 writes tokens otherwise."""
    mongo: MongoReplicaSet = request.getfixturevalue(version)
    kept = f"test_{uuid.uuid4().hex[:12]}"
    last = f"{kept}_last"
    with MongoClient[dict[str, Any]](mongo.uri) as client:
        try:
            await goes_on_after_the_last(mongo.uri, client, kept, last, narrower)
        finally:
            client.drop_database(kept)
            client.drop_database(last)


async def goes_on_after_the_last(
    uri: str, client: Client, kept: str, last: str, narrower: str
) -> None:
    async with reading(uri, include=(f"{kept}.*", f"{last}.*")) as first:
        client[last]["orders"].insert_one({"_id": 1})
        await first.until(lambda r: len(r.changes) == 1)
    client[kept]["orders"].insert_one({"_id": 2})
    scopes: dict[str, dict[str, Any]] = {
        "database": {"database": kept},
        "include": {"include": (f"{kept}.*",)},
        "exclude": {"exclude": (f"{last}.*",)},
    }
    options = scopes[narrower]
    async with reading(uri, position=first.position, **options) as second:
        await second.until(lambda r: bool(r.changes))
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


def gaps(read: Reading) -> dict[str, dict[str, Any]]:
    """The facts of each gap, by its collection."""
    found: dict[str, dict[str, Any]] = {}
    for event in read.events:
        if event.operation == "gap":
            assert isinstance(event, SystemEvent)
            name = f"{event.database}.{event.collection}"
            assert name not in found
            found[name] = msgspec.json.decode(event.description)
    return found


async def logged(*readings: Reading) -> list[Block]:
    """The blocks of a log of what was read."""
    async with MemoryLog() as log:
        for read in readings:
            await log.append(read.commits)
        return await log.read(after=0)


def followed(blocks: list[Block], *collections: str) -> tuple[list[str], GapError | None]:
    """The ids that a reader without control events gets from the start, and what ends it."""
    wanted = Criteria(collections=frozenset(collections))
    start = Progress(blocks[0].log_id, 0, 0)
    delivery = deliver(Subscription(criteria=wanted, progress=start), blocks)
    ids = [
        event.document_id
        for block, entries in delivery.slices
        for i in entries
        if isinstance(event := decode_message(block.message(i)).event, ChangeEvent)
    ]
    return ids, delivery.gap


async def test_only_followers_of_a_collection_that_is_left_out_are_stopped(
    mongo: MongoReplicaSet, mongo_client: Client, mongo_database: str
) -> None:
    """Invariant 4: left out and taken in again, it has a hole where nobody listened."""
    orders, other = (mongo_client[mongo_database][name] for name in ("orders", "other"))
    options: dict[str, Any] = {"database": mongo_database}
    async with reading(mongo.uri, include=("orders", "other"), **options) as first:
        orders.insert_one({"_id": "x1"})
        await first.until(lambda r: bool(r.changes))
    async with reading(mongo.uri, include=("other",), position=first.position, **options) as second:
        orders.insert_one({"_id": "lost"})
        orders.delete_one({"_id": "x1"})
        other.insert_one({"_id": "o1"})
        await second.until(lambda r: bool(r.changes))
    async with reading(
        mongo.uri,
        include=("orders", "other"),
        position=second.position,
        start="snapshot",
        **options,
    ) as third:
        orders.insert_one({"_id": "x2"})
        await third.until(completed)
    assert changed(second)["removed"] == [f"{mongo_database}.orders"]
    said = gaps(second)
    assert list(said) == [f"{mongo_database}.orders"]
    facts = said[f"{mongo_database}.orders"]
    assert (facts["reason"], facts["to"]) == ("scope", None)
    assert facts["from"] == parse_position(first.position or "").token.data
    # Taken in again, it is said and copied.
    assert changed(third)["added"] == [f"{mongo_database}.orders"]
    assert changed(third)["copied"] is True
    assert gaps(third) == {}
    assert {"x2", "lost"} <= {change.document_id for change in third.changes if change.snapshot}

    blocks = await logged(first, second, third)
    ids, gap = followed(blocks, "orders")
    assert ids == ["x1"]
    assert gap is not None
    assert "scope" in str(gap)
    ids, gap = followed(blocks, "other")
    assert "o1" in ids
    assert gap is None
    assert followed(blocks)[1] is not None, "whoever follows everything follows it too"


async def test_a_collection_that_is_gone_when_it_is_left_out_has_its_gap_where_it_is_named(
    mongo: MongoReplicaSet, mongo_client: Client, mongo_database: str
) -> None:
    """Its drop is not captured any more, so it cannot tell its followers either."""
    database = mongo_client[mongo_database]
    options: dict[str, Any] = {"database": mongo_database}
    async with reading(mongo.uri, include=("orders", "other", "o*"), **options) as first:
        for name in ("orders", "other", "oats"):
            database[name].insert_one({"_id": name})
        await first.until(lambda r: len(r.changes) == 3)
    database["orders"].drop()
    async with reading(mongo.uri, include=("other",), position=first.position, **options) as second:
        await second.until(lambda r: bool(r.events))
    assert set(gaps(second)) == {f"{mongo_database}.orders", f"{mongo_database}.oats"}


async def test_where_we_may_not_look_all_followers_of_the_source_are_stopped(
    guarded: str,
) -> None:
    """Capture moves to another database, and its user may not look into the old one any more."""

    def uri(user: str) -> str:
        return f"mongodb://{user}:{user[0]}@{guarded}&authSource=admin"

    both = [{"role": "read", "db": "here"}, {"role": "read", "db": "there"}]
    with MongoClient[dict[str, Any]](uri("root")) as root:
        root.admin.command("createUser", "reader", pwd="r", roles=both)
        async with reading(uri("reader"), database="here") as first:
            root["here"]["orders"].insert_one({"_id": 1})
            await first.until(lambda r: bool(r.changes))
        root.admin.command("revokeRolesFromUser", "reader", roles=both[:1])
        position = first.position
        async with reading(uri("reader"), database="there", position=position) as second:
            await second.until(lambda r: bool(r.events))
    assert list(gaps(second)) == ["here."]
    assert followed(await logged(first, second), "orders")[1] is not None


async def test_a_scope_that_keeps_the_last_event_goes_on_right_after_it(
    mongo: MongoReplicaSet, mongo_client: Client, mongo_database: str
) -> None:
    """A server that gives several inserts one time has more of them at that time, so a place that
    is merely later could lie behind them."""
    database = mongo_client[mongo_database]
    options: dict[str, Any] = {"database": mongo_database}
    async with reading(mongo.uri, include=("orders", "other"), **options) as first:
        database["orders"].insert_one({"_id": 1})
        await first.until(lambda r: bool(r.changes))
    database["orders"].insert_one({"_id": 2})
    async with reading(
        mongo.uri, include=("orders",), position=first.position, **options
    ) as second:
        await second.until(lambda r: bool(r.changes))
    assert changed(second)["since"] == parse_position(first.position or "").token.data
    assert [change.document_id for change in second.changes] == ["2"]
