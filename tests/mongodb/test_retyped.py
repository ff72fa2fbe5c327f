"""Writes that give a document's `_id` another type: to MongoDB one document, to us two keys."""

import json
from typing import Any

import bson
import pytest
from bson import Decimal128, Int64, Timestamp
from hypothesis import given
from hypothesis import strategies as st
from pymongo import MongoClient

from penstock.errors import UndecodableError
from penstock.event import ChangeEvent
from penstock.sources.mongodb.documents import OPTIONS
from penstock.sources.mongodb.normalise import Normaliser
from tests.mongodb.support import folded, reading
from tests_support.servers import MongoReplicaSet

TOKEN = "826B00207E00000014" + "AB" * 30
LONG = "x" * 300


def changes(operation: str, *, images: bool = False, **fields: Any) -> list[ChangeEvent]:
    """What one raw event becomes."""
    event = {
        "_id": {"_data": TOKEN},
        "operationType": operation,
        "clusterTime": Timestamp(1_700_000_000, 7),
        "ns": {"db": "shop", "coll": "orders"},
        **fields,
    }
    normaliser = Normaliser("shop", database=None, tenant=None, post_images=images)
    change = normaliser.change(bson.encode(event, codec_options=OPTIONS))
    assert change is not None
    events = (change.event, *change.also)
    assert len({event.event_id for event in events}) == len(events)
    return [event for event in events if isinstance(event, ChangeEvent)]


def said(events: list[ChangeEvent]) -> list[tuple[str, str, Any]]:
    return [
        (
            event.operation.value,
            json.dumps(json.loads(bytes(event.key))["_id"]),
            event.full_document and json.loads(bytes(event.full_document)).get("v"),
        )
        for event in events
    ]


def key_of(value: Any) -> str:
    """The key of a document that has this `_id`."""
    (event,) = changes("delete", documentKey={"_id": value})
    return bytes(event.key).decode()


def update(**updated: Any) -> dict[str, Any]:
    return {
        "updatedFields": updated,
        "removedFields": [],
        "truncatedArrays": [],
        "disambiguatedPaths": {},
    }


NUMBERS: st.SearchStrategy[Any] = st.sampled_from(
    [5, Int64(5), 5.0, Decimal128("5"), Decimal128("5.0"), 0.0, -0.0, 6, "5", float("nan")]
)
KEYS = st.recursive(
    NUMBERS, lambda inner: st.dictionaries(st.sampled_from("ab"), inner, max_size=2), max_leaves=3
)


@given(KEYS, KEYS)
def test_a_replace_is_two_changes_exactly_where_the_key_is_another(old: Any, new: Any) -> None:
    """A ghost, or a delete of what is there, would be the price of being wrong."""
    events = changes("replace", documentKey={"_id": old}, fullDocument={"_id": new, "v": 1})
    keys = [key_of(value).encode() for value in (old, new)]
    assert keys[-1] == bytes(events[-1].key)
    assert events[-1].full_document is not None
    if keys[0] == keys[1]:
        assert [event.operation.value for event in events] == ["replace"]
    else:
        assert [event.operation.value for event in events] == ["delete", "insert"]
        assert bytes(events[0].key) == keys[0]


def test_the_document_before_goes_with_the_key_that_it_had() -> None:
    gone, come = changes(
        "replace",
        documentKey={"_id": 5},
        fullDocument={"_id": 5.0, "v": 2},
        fullDocumentBeforeChange={"_id": 5, "v": 1},
    )
    assert json.loads(bytes(gone.full_document_before_change or b"")) == {"_id": 5, "v": 1}
    assert gone.full_document is None
    assert come.full_document_before_change is None
    assert come.full_document_as_of_event


@pytest.mark.parametrize(
    ("old", "updated", "new"),
    [
        ({"a": 1}, {"_id": {"a": 1.0}}, {"a": 1.0}),
        ({"a": 1, "b": LONG}, {"_id.a": 1.0, "v": 2}, {"a": 1.0, "b": LONG}),
        (
            {"a": {"b": [1, 2]}},
            {"_id.a.b.1": Decimal128("2.0")},
            {"a": {"b": [1, Decimal128("2.0")]}},
        ),
    ],
)
def test_an_update_that_retypes_is_a_delete_and_an_insert(old: Any, updated: Any, new: Any) -> None:
    fields: dict[str, Any] = {
        "documentKey": {"_id": old},
        "updateDescription": update(**updated),
    }
    for images in (True, False):
        gone, come = changes("update", images=images, fullDocument={"_id": new, "v": 2}, **fields)
        assert (gone.operation.value, come.operation.value) == ("delete", "insert")
        assert bytes(come.key).decode() == key_of(new)
        assert come.full_document_as_of_event is images
        assert gone.update_description is come.update_description is None


def test_a_retyping_update_whose_look_up_is_of_no_use_leaves_the_new_key_to_what_follows() -> None:
    """P25: the document was retyped again, or deleted, before it was looked up."""
    fields: dict[str, Any] = {
        "documentKey": {"_id": {"a": 1}},
        "updateDescription": update(_id={"a": 1.0}),
    }
    for found in (None, {"_id": {"a": Int64(1)}, "v": 9}):
        events = changes("update", fullDocument=found, **fields)
        assert said(events) == [("delete", '{"a": 1}', None), ("update", '{"a": 1.0}', None)]
        assert events[1].update_description is not None


def test_a_looked_up_document_of_another_key_says_nothing_of_this_one() -> None:
    """P25: the update was of 5; by the look-up a replace had made it 5.0, and that follows."""
    (event,) = changes(
        "update",
        documentKey={"_id": 5},
        updateDescription=update(v=2),
        fullDocument={"_id": 5.0, "v": 3},
    )
    assert said([event]) == [("update", "5", None)]
    assert event.update_description is not None
    assert not event.full_document_as_of_event


def test_a_field_whose_own_name_looks_like_a_path_into_the_id_is_none() -> None:
    description = {**update(**{"_id.a": 1.0}), "disambiguatedPaths": {"_id.a": ["_id.a"]}}
    told: list[dict[str, Any]] = [
        {"updateDescription": description},
        {"rawUpdateDescription": {"$v": 2, "diff": {"i": {"_id.a": 1.0}}}},
    ]
    for fields in told:
        (event,) = changes("update", documentKey={"_id": {"a": 1}}, **fields)
        assert event.operation.value == "update"


@pytest.mark.parametrize("images", [False, True])
def test_a_retyping_update_without_its_document_stops_with_type_and_position(images: bool) -> None:
    """Invariant 10: the row of the new key could not be told."""
    fields: dict[str, Any] = {"fullDocument": None} if images else {}
    with pytest.raises(UndecodableError, match=rf"update of shop\.orders: its _id .*{TOKEN}"):
        changes(
            "update",
            images=images,
            documentKey={"_id": {"a": 1}},
            updateDescription=update(_id={"a": 1.0}),
            **fields,
        )


@pytest.mark.server
@pytest.mark.parametrize("full_document", ["updateLookup", "whenAvailable"])
async def test_no_key_is_left_behind_by_any_write_that_retypes_it(
    mongo: MongoReplicaSet, full_document: str
) -> None:
    """Every way that the server lets an `_id` get another type, then deletes: what is left is
    what the collection holds, by keys with their types."""
    with MongoClient[dict[str, Any]](mongo.uri) as client:
        database = client["retyped"]
        client.drop_database("retyped")
        images = full_document == "whenAvailable"
        orders = database.create_collection(
            "orders", changeStreamPreAndPostImages={"enabled": images}
        )
        keep = database.create_collection("keep")
        async with reading(mongo.uri, database="retyped", full_document=full_document) as read:
            for key in (5, 6, 7, 8, {"a": 1}, {"a": 2, "b": LONG}, Decimal128("9.0"), 0.0):
                orders.insert_one({"_id": key, "v": 1, "big": LONG})
            orders.replace_one({"_id": 5}, {"_id": 5.0, "v": 2})
            orders.update_one({"_id": 5}, {"$set": {"v": 3}})
            orders.find_one_and_replace({"_id": 6}, {"_id": Int64(6), "v": 2})
            orders.update_one({"_id": 7}, [{"$set": {"_id": 7.0, "v": 2}}])
            orders.update_one({"_id": 8}, [{"$replaceWith": {"_id": Decimal128("8")}}])
            orders.update_one({"_id": {"a": 1}}, [{"$set": {"_id": {"a": 1.0}}}])
            orders.update_one({"_id.a": 2}, [{"$set": {"_id.a": 2.0, "v": 2}}])
            orders.replace_one({"_id": 9}, {"_id": Decimal128("9.00"), "v": 2})
            orders.replace_one({"_id": 0}, {"_id": -0.0, "v": 2})
            with client.start_session() as session, session.start_transaction():
                orders.replace_one({"_id": 5}, {"_id": 5, "v": 4}, session=session)
                orders.update_one({"_id": 5}, {"$inc": {"v": 1}}, session=session)
                orders.replace_one({"_id": 5}, {"_id": Decimal128("5"), "v": 6}, session=session)
            held = {f"orders/{key_of(row['_id'])}" for row in orders.find()}
            keep.insert_one({"_id": "held"})
            await read.until(lambda r: bool(r.changes) and r.changes[-1].document_id == "held")
            rows = folded(read.events)
            assert {key for key in rows if key.startswith("orders/")} == held
            orders.delete_many({"_id": {"$in": [5, 7, {"a": 1}, 9, 0]}})
            keep.insert_one({"_id": "end"})
            await read.until(lambda r: r.changes[-1].document_id == "end")
        rows = folded(read.events)
        assert {key for key in rows if key.startswith("orders/")} == {
            'orders/{"_id":{"$numberLong":"6"}}',
            'orders/{"_id":{"$numberDecimal":"8"}}',
            f'orders/{{"_id":{{"a":2.0,"b":"{LONG}"}}}}',
        }
        assert len({event.event_id for event in read.events}) == len(read.events)


@pytest.mark.server
async def test_the_two_changes_of_a_retyping_write_are_one_commit_whatever_is_read_again(
    mongo: MongoReplicaSet,
) -> None:
    """Invariants 2 and 3: a restart right before it gives the same two, with the same ids."""
    with MongoClient[dict[str, Any]](mongo.uri) as client:
        client.drop_database("retyped_again")
        orders = client["retyped_again"].create_collection("orders")
        async with reading(mongo.uri, database="retyped_again") as read:
            orders.insert_one({"_id": 5, "v": 1})
            await read.until_events(1)
            before = read.position
            orders.replace_one({"_id": 5}, {"_id": 5.0, "v": 2})
            orders.delete_one({"_id": 5})
            await read.until_events(4)
        async with reading(mongo.uri, database="retyped_again", position=before) as again:
            await again.until_events(3)
    assert [len(commit.events) for commit in read.commits] == [1, 2, 1]
    assert [len(commit.events) for commit in again.commits] == [2, 1]
    assert said(read.changes)[1:] == [
        ("delete", "5", None),
        ("insert", "5.0", 2),
        ("delete", "5.0", None),
    ]
    assert read.events[1:] == again.events
