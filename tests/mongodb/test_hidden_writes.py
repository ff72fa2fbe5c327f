"""Which commands of a server write documents that no change stream tells, and what becomes of the
rows where others move documents."""

import json
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from bson import Timestamp
from pymongo import MongoClient

from penstock.event import SchemaEvent
from tests.mongodb.support import folded, reading, stored_rows
from tests_support.servers import MongoReplicaSet

Client = MongoClient[dict[str, Any]]
Act = Callable[[Client, str, str], Any]
pytestmark = pytest.mark.server


@pytest.fixture(params=["mongo", "mongo6027"])
def server(request: pytest.FixtureRequest) -> MongoReplicaSet:
    found: MongoReplicaSet = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def client(server: MongoReplicaSet) -> Iterator[Client]:
    with MongoClient[dict[str, Any]](server.uri) as client:
        yield client


@pytest.fixture
def names(client: Client) -> Iterator[tuple[str, str]]:
    """Two databases of this test's own."""
    one, other = (f"test_{uuid.uuid4().hex[:12]}" for _ in range(2))
    yield one, other
    for name in (one, other):
        client.drop_database(name)


def _out(client: Client, one: str, other: str) -> None:
    list(client[other]["a"].aggregate([{"$out": {"db": one, "coll": "b"}}]))


def _merge(client: Client, one: str, other: str) -> None:
    list(client[other]["a"].aggregate([{"$merge": {"into": {"db": one, "coll": "b"}}}]))


def _rename(client: Client, one: str, other: str) -> None:
    client.admin.command("renameCollection", f"{other}.a", to=f"{one}.b", dropTarget=True)


def _map_reduce(client: Client, one: str, other: str) -> None:
    client[other].command(
        "mapReduce",
        "a",
        map="function() { emit(this._id, 1); }",
        reduce="function(key, values) { return 1; }",
        out={"replace": "b", "db": one},
    )


def _smaller(client: Client, one: str, other: str) -> None:
    client[one].command("collMod", "capped", cappedMax=2)
    client[one]["capped"].insert_one({"_id": "last"})


def _of_fewer_bytes(client: Client, one: str, other: str) -> None:
    client[one]["capped"].insert_many({"_id": n, "text": "x" * 1000} for n in range(5, 30))
    client[one].command("collMod", "capped", cappedSize=8192)
    client[one]["capped"].insert_one({"_id": "last"})
    assert client[one]["capped"].count_documents({}) < 10


def _delete(client: Client, one: str, other: str) -> None:
    client[one]["b"].delete_many({})


def _validate(client: Client, one: str, other: str) -> None:
    client[one].command("validate", "b", fixMultikey=True)


def _to_capped(client: Client, one: str, other: str) -> None:
    client[one].command("convertToCapped", "b", size=1 << 16)


def _clone(client: Client, one: str, other: str) -> None:
    client[one].command("cloneCollectionAsCapped", "b", toCollection="c", size=1 << 16)


def _applied(client: Client, one: str, other: str) -> None:
    inserts = [{"op": "i", "ns": f"{one}.b", "o": {"_id": n}} for n in (101, 102)]
    client.admin.command("applyOps", inserts)


def _compact(client: Client, one: str, other: str) -> None:
    client[one].command("compact", "b", force=True)


MOVES: list[Act] = [
    *(_out, _merge, _rename, _map_reduce),
    *(_smaller, _of_fewer_bytes),
    *(_to_capped, _clone, _delete),
]


def fill(client: Client, one: str, other: str) -> None:
    client[one].create_collection("capped", capped=True, size=1 << 16)
    client[one]["capped"].insert_many({"_id": n} for n in range(5))
    client[one]["b"].insert_many({"_id": n} for n in range(3))
    client[other]["a"].insert_many({"_id": n, "other": True} for n in range(2, 6))


@pytest.mark.parametrize("move", MOVES)
async def test_rows_follow_every_command_that_moves_documents(
    server: MongoReplicaSet, client: Client, names: tuple[str, str], move: Act
) -> None:
    """P6: also where what they come from is not captured."""
    one, other = names
    fill(client, one, other)
    captured = ["b", "c", "capped", "end"]
    async with reading(
        server.uri, start="snapshot", include=tuple(f"{one}.{name}" for name in captured)
    ) as read:
        await read.until_events(1)
        move(client, one, other)
        client[one]["end"].insert_one({"_id": 1})
        # The copy that some of them need comes after it.
        await read.until(lambda r: folded(r.events) == stored_rows(client[one], captured))


async def test_what_never_has_events_says_so_when_it_is_made(
    server: MongoReplicaSet, client: Client, names: tuple[str, str]
) -> None:
    """It would be taken for a collection without rows."""
    database = client[names[0]]
    async with reading(server.uri, database=names[0]) as read:
        database.create_collection("view", viewOn="b", pipeline=[])
        database.create_collection("series", timeseries={"timeField": "at"})
        database.create_collection("b")
        await read.until_events(3)
    made = {
        event.collection: json.loads(bytes(event.description)).get("hasNoEvents", False)
        for event in read.events
        if isinstance(event, SchemaEvent)
    }
    assert made == {"view": True, "series": True, "b": False}


def _hidden(client: Client, since: Timestamp, names: tuple[str, str]) -> set[str]:
    """In what ways the oplog has writes that no stream tells, from a time on."""
    found: set[str] = set()
    for entry in client["local"]["oplog.rs"].find({"ts": {"$gte": since}}):
        if entry.get("fromMigrate") and entry["ns"].split(".")[0] in names:
            found.add("fromMigrate")
        applied = entry["o"].get("applyOps", ())
        inside = {one["ns"].split(".")[0] for one in applied}
        if "lsid" not in entry and inside.intersection(names):
            found.add("applyOps")
    return found


def test_only_these_commands_write_what_no_stream_tells(
    client: Client, names: tuple[str, str]
) -> None:
    """The rows of a collection that is made capped are copied; applyOps is not supported."""
    one, other = names
    fill(client, one, other)
    hidden: dict[str, set[str]] = {}
    for act in (*MOVES, _compact, _validate, _applied):
        if act is _rename:
            client[other]["kept"].insert_many(client[other]["a"].find())
        client[one]["clock"].insert_one({})
        since: Timestamp = client.admin.command("hello")["operationTime"]
        act(client, one, other)
        hidden[act.__name__] = _hidden(client, since, names)
        if act is _rename:
            client[other]["kept"].rename("a")
    assert {name: ways for name, ways in hidden.items() if ways} == {
        "_to_capped": {"fromMigrate"},
        "_clone": {"fromMigrate"},
        "_applied": {"applyOps"},
    }
