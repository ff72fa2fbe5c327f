"""A MongoDB's collections in Zero: discriminated, nested, renamed, they are what a find says."""

import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from bson import Decimal128, Int64, ObjectId
from pymongo import MongoClient

from penstock.event import Operation, SchemaEvent
from penstock.wire import Stream
from penstock.zero.changes import Teller, Told
from penstock.zero.config import ZeroTablesConfig
from penstock.zero.mapping import Mapping
from tests.mongodb.support import reading
from tests.seeds import seed_of
from tests.zero.endpoint import SHIPPED, connection, fold, served
from tests.zero.endpoint import Replica as Shipped
from tests.zero.folding import Replica
from tests_support.servers import MongoReplicaSet

pytestmark = pytest.mark.server

Client = MongoClient[dict[str, Any]]
COLUMNS = {
    "id": {"from": "_id", "type": "objectid"},
    "n": "int",
    "name": {"from": "author.name", "type": "text"},
    "at": "timestamp",
    "price": "decimal",
}


def gone(_: Stream, __: bytes) -> None:
    """What was looked up already, and was not there any more."""


async def test_documents_that_change_and_move_between_tables_are_what_a_find_says_z7(
    mongo: MongoReplicaSet, mongo_client: Client, mongo_database: str
) -> None:
    database, dice = mongo_client[mongo_database], random.Random(seed_of("moves"))
    ids = [ObjectId() for _ in range(12)]
    kinds = ["article", "note", "other"]
    config: dict[str, Any] = {
        "tables": {
            f"{kind}s": {
                "source": "shop",
                "collection": "things",
                "where": {"kind": kind},
                "columns": COLUMNS,
            }
            for kind in kinds
        },
        "sources": {"shop": {}},
    }
    async with reading(mongo.uri, database=mongo_database) as read:
        for _ in range(150):
            one = {"_id": dice.choice(ids)}
            fields = {
                "kind": dice.choice(kinds),
                "n": Int64(dice.randrange(100)),
                "author": {"name": dice.choice("abc")},
                "at": datetime(2026, 1, dice.randrange(1, 29), tzinfo=UTC),
                "price": Decimal128(f"{dice.randrange(10)}.50"),
            }
            chosen = dice.sample([*fields], 2)
            update = {name: fields[name] for name in chosen}
            match dice.randrange(4):
                case 0:
                    database["things"].delete_one(one)
                case 1:
                    database["things"].replace_one(one, fields, upsert=True)
                case _:
                    database["things"].update_one(one, {"$set": update, "$unset": {"gone": 1}})
        database["first"].insert_one({"_id": "x", "n": 1})
        database["first"].rename("second")
        database["second"].insert_one({"_id": "y", "n": 2.5})
        database["third"].insert_one({"_id": 1})
        database["third"].drop()
        await read.until(
            lambda r: any(
                isinstance(event, SchemaEvent)
                and (event.operation, event.collection) == ("drop", "third")
                for event in r.events
            )
        )
    teller, replica = Teller((), Mapping(ZeroTablesConfig.model_validate(config))), Replica()
    for event in read.events:
        for message in teller.told(Told.of(event), gone):
            replica.apply(message)
    for kind in kinds:
        found = {row["id"]: row for row in replica.rows(f"{kind}s")}
        assert found == {
            str(one["_id"]): {
                name: value
                for name, value in {
                    "id": str(one["_id"]),
                    "n": one.get("n"),
                    "name": one.get("author", {}).get("name"),
                    "at": int(one["at"].replace(tzinfo=UTC).timestamp() * 1000),
                    "price": str(one["price"]),
                }.items()
                if value is not None
            }
            for one in database["things"].find({"kind": kind})
        }
    assert sorted(name for _, name in replica.tables) == ["articles", "notes", "others", "second"]
    assert replica.rows("second") == [{"_id": "x", "n": 1}, {"_id": "y", "n": 2.5}]


@pytest.mark.slow
async def test_an_update_without_its_document_that_a_rename_follows_reaches_the_replica(
    mongo: MongoReplicaSet,
    mongo_client: Client,
    mongo_database: str,
    tmp_path: Path,
) -> None:
    database = mongo_client[mongo_database]
    async with (
        reading(mongo.uri, database=mongo_database, full_document="default") as read,
        served(tmp_path, sources={"shop": {}}) as endpoint,
    ):
        database["first"].insert_many([{"_id": 1, "n": 1}, {"_id": 2, "n": 1}])
        await read.until_events(2)
        for commit in read.commits:
            await endpoint.append(*commit.events)
        await endpoint.applied()
        replica, begun = Shipped(), len(read.commits)
        async with connection(endpoint, **SHIPPED) as socket:
            await fold(socket, replica)
        database["first"].update_one({"_id": 1}, {"$set": {"n": 9}})
        database["first"].rename("second")
        await read.until(
            lambda r: any(
                isinstance(event, SchemaEvent) and event.operation == "rename" for event in r.events
            )
        )
        (update,) = [one for one in read.changes if one.operation is Operation.UPDATE]
        assert update.full_document is None
        last = 0
        for commit in read.commits[begun:]:
            last = await endpoint.append(*commit.events)
        await endpoint.applied()
        async with connection(endpoint, **SHIPPED, **replica.resuming()) as socket:
            await fold(socket, replica, last)
        found = {row["_id"]: row for row in database["second"].find()}
    assert not replica.resets
    assert {key: row for (key,), row in replica.rows["second"].items()} == found
