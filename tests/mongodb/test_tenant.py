"""Whose an event is, and flattened documents, on a real server."""

import json
from typing import Any

import pytest
from pymongo import MongoClient

from penstock.client import unflatten
from penstock.errors import ConfigError
from tests.mongodb.support import reading
from tests_support.servers import MongoReplicaSet

Client = MongoClient[dict[str, Any]]
IMAGES: dict[str, Any] = {"changeStreamPreAndPostImages": {"enabled": True}}


async def test_deletes_have_the_tenant_that_their_document_named(
    mongo: MongoReplicaSet, mongo_client: Client, mongo_database: str
) -> None:
    """P24: copied rows, changes and deletes agree, and none is empty."""
    orders = mongo_client[mongo_database].create_collection("orders", **IMAGES)
    orders.insert_one({"_id": 0, "org": {"id": "acme"}})
    options: dict[str, Any] = {
        "database": mongo_database,
        "tenant": {"field": "org.id"},
        "start": "snapshot",
    }
    async with reading(mongo.uri, **options) as read:
        await read.until(lambda r: any(e.operation == "snapshot_completed" for e in r.events))
        orders.insert_one({"_id": 1, "org": {"id": 7}})
        orders.update_one({"_id": 0}, {"$set": {"n": 1}})
        orders.delete_many({})
        await read.until(lambda r: len(r.changes) == 5)
    assert [(c.operation.value, c.document_id, c.tenant) for c in read.changes] == [
        ("insert", "0", "acme"),
        ("insert", "1", "7"),
        ("update", "0", "acme"),
        ("delete", "0", "acme"),
        ("delete", "1", "7"),
    ]
    assert {event.tenant for event in read.events} == {"acme", "7", mongo_database}


async def test_a_document_that_becomes_another_tenants_ends_for_the_one_before(
    mongo: MongoReplicaSet, mongo_client: Client, mongo_database: str
) -> None:
    """By operators, a pipeline, a replace, and where it is gone before it is looked up."""
    orders = mongo_client[mongo_database].create_collection("orders", **IMAGES)
    options: dict[str, Any] = {"database": mongo_database, "tenant": {"field": "org"}}
    async with reading(mongo.uri, **options) as read:
        orders.insert_one({"_id": 0, "org": "a", "n": 1})
        orders.update_one({"_id": 0}, {"$set": {"org": "b"}})
        await read.until(lambda r: len(r.changes) == 3)
        orders.update_one({"_id": 0}, [{"$set": {"org": "c", "n": {"$add": ["$n", 1]}}}])
        await read.until(lambda r: len(r.changes) == 5)
        orders.replace_one({"_id": 0}, {"org": "d"})
        await read.until(lambda r: len(r.changes) == 7)
        with mongo_client.start_session() as session, session.start_transaction():
            orders.update_one({"_id": 0}, {"$set": {"org": "e"}}, session=session)
            orders.delete_one({"_id": 0}, session=session)
        await read.until(lambda r: len(r.changes) == 10)
    assert [
        (
            one.operation.value,
            one.tenant,
            one.full_document and json.loads(bytes(one.full_document)),
            one.full_document_before_change
            and json.loads(bytes(one.full_document_before_change))["org"],
            one.update_description is None,
        )
        for one in read.changes
    ] == [
        ("insert", "a", {"_id": 0, "org": "a", "n": 1}, None, True),
        ("delete", "a", None, "a", True),
        ("insert", "b", {"_id": 0, "org": "b", "n": 1}, None, True),
        ("delete", "b", None, "b", True),
        ("insert", "c", {"_id": 0, "org": "c", "n": 2}, None, True),
        ("delete", "c", None, "c", True),
        ("insert", "d", {"_id": 0, "org": "d"}, None, True),
        ("delete", "d", None, "d", True),
        ("update", "e", None, None, False),
        ("delete", "e", None, "e", True),
    ]
    assert len({one.event_id for one in read.changes}) == 10


async def test_a_field_is_refused_at_the_start_where_deletes_would_not_have_it(
    mongo: MongoReplicaSet, mongo_client: Client, mongo_database: str
) -> None:
    """P24: before anything is captured, with the collection and the remedy."""
    database = mongo_client[mongo_database]
    database.create_collection("with", **IMAGES)
    database.create_collection("without")
    options: dict[str, Any] = {"database": mongo_database, "tenant": {"field": "org"}}
    with pytest.raises(ConfigError, match=rf"no before images: {mongo_database}\.without\."):
        async with reading(mongo.uri, **options):
            pass
    async with reading(mongo.uri, include=("with",), **options):
        pass


async def test_flattened_documents_come_back_as_the_server_has_them(
    mongo: MongoReplicaSet, mongo_client: Client, mongo_database: str
) -> None:
    """P32: copied rows and changes, before and after images."""
    things = mongo_client[mongo_database].create_collection("things", **IMAGES)
    first: dict[str, Any] = {"_id": 0, "a": {"b": {}, "c": [{"d": {"e": None}}]}, "x\\": {"": 1}}
    things.insert_one(first)
    options: dict[str, Any] = {"database": mongo_database, "flatten": "dot", "start": "snapshot"}
    async with reading(mongo.uri, **options) as read:
        await read.until(lambda r: bool(r.changes))
        things.update_one({"_id": 0}, {"$set": {"a.f": {"g": 1}}})
        await read.until(lambda r: len(r.changes) == 2)
    copied, updated = read.changes
    assert unflatten(json.loads(bytes(copied.full_document or b""))) == first
    assert unflatten(json.loads(bytes(updated.full_document or b""))) == things.find_one()
    assert unflatten(json.loads(bytes(updated.full_document_before_change or b""))) == first
    assert json.loads(bytes(updated.update_description or b""))["updatedFields"] == {
        "a.f": {"g": 1}
    }
