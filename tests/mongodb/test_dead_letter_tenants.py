"""A change that cannot be decoded is told to every tenant that it may concern."""

import asyncio
from typing import Any

import pytest
from bson.raw_bson import RawBSONDocument
from pymongo import MongoClient

from penstock.capture.deadletter import COLLECTION
from penstock.capture.tenant import TenantRule
from penstock.event import ChangeEvent, SystemEvent
from penstock.sources.mongodb.normalise import Change
from penstock.sources.mongodb.positions import parse_position
from penstock.subscribe import Criteria
from penstock.subscribe.scope import Grant, Scope
from tests.capture.test_deadletter import delivered
from tests.mongodb.support import Reading, folded, loaded, source
from tests.mongodb.test_dead_letters import TWICE, damaged, lettered, letters_of
from tests.mongodb.test_normalise import raw
from tests_support.servers import MongoReplicaSet

Client = MongoClient[dict[str, Any]]
IMAGES: dict[str, Any] = {"changeStreamPreAndPostImages": {"enabled": True}}
RULE = TenantRule.model_validate({"field": "org"})
ACME: dict[str, Any] = {"fullDocumentBeforeChange": {"_id": 1, "org": "acme"}}
BOLT: dict[str, Any] = {"fullDocument": {"_id": 1, "org": "bolt"}}


def update(*removed: str, **updated: Any) -> dict[str, Any]:
    return {"updateDescription": {"updatedFields": updated, "removedFields": list(removed)}}


def whose(change: Change) -> list[tuple[str, bool]]:
    """The tenants of the letters, which are those of the gaps, and whether they lost a document."""
    events = [change.event, *change.also]
    letters = [one for one in events if isinstance(one, ChangeEvent)]
    gaps = [one for one in events if isinstance(one, SystemEvent)]
    assert [one.tenant for one in gaps] == [one.tenant for one in letters]
    assert len({one.event_id for one in events}) == len(events)
    told = [loaded(one.full_document) for one in letters]
    return [(one["tenant"], one["left"]) for one in told]


MIMIC: dict[str, Any] = {"k": {"$oid": "none"}}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (raw("replace", documentKey=MIMIC, **ACME, **BOLT), [("bolt", False), ("acme", True)]),
        (damaged("update", TWICE, **ACME, **update(org="bolt")), [("bolt", False), ("acme", True)]),
        (damaged("update", TWICE, **ACME, **update(n=1)), [("acme", False)]),
        (damaged("update", TWICE, **update(n=1)), [("shop", False)]),
        (damaged("update", TWICE, **ACME), [("acme", True), ("shop", False)]),
        (damaged("update", TWICE, **ACME, **update("org")), [("acme", True), ("shop", False)]),
        (damaged("replace", TWICE, **ACME), [("acme", True), ("shop", False)]),
        (raw("replace", documentKey={"_id": 1}, **BOLT), [("bolt", False), ("shop", False)]),
        (damaged("insert", TWICE), [("shop", False)]),
    ],
)
def test_a_letter_is_told_to_the_tenant_that_a_document_leaves_too(
    change: bytes, expected: list[tuple[str, bool]]
) -> None:
    """P24: who cannot be told of is nobody, as in other events about no document."""
    assert whose(lettered(change, tenant=RULE)) == expected
    assert lettered(change, tenant=RULE) == lettered(change, tenant=RULE)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (damaged("update", TWICE, **ACME, **update(org="bolt")), ["fullDocument", "BeforeChange"]),
        (damaged("replace", TWICE, **ACME), ["BeforeChange", ""]),
        (raw("replace", documentKey=MIMIC, **ACME, **BOLT), ["fullDocument", "BeforeChange"]),
    ],
)
def test_neither_letter_has_the_document_of_the_other_tenant(
    change: bytes, expected: list[str]
) -> None:
    """And nothing that came is in none of them. A letter of the database's is for its operators."""
    told = lettered(change, tenant=RULE)
    letters = [one for one in (told.event, *told.also) if isinstance(one, ChangeEvent)]
    found: list[str] = []
    whole: dict[str, Any] = {}
    for letter in letters:
        (part,) = loaded(letter.full_document)["raw"]
        fields = dict(RawBSONDocument(bytes(part)).items())
        whole |= fields
        after = {"fullDocument", "updateDescription"}.intersection(fields)
        before = "fullDocumentBeforeChange" in fields
        found.append("" if after and before else "BeforeChange" if before else "fullDocument")
    assert found == expected
    assert whole.keys() == dict(RawBSONDocument(change).items()).keys()


@pytest.mark.parametrize("tenant", ["acme", {"id_prefix": ":", "otherwise": "acme"}])
def test_where_no_field_tells_the_tenant_there_is_one_letter(tenant: Any) -> None:
    rule = tenant if isinstance(tenant, str) else TenantRule.model_validate(tenant)
    change = damaged("update", TWICE, **ACME, **update(org="bolt"))
    assert whose(lettered(change, tenant=rule)) == [("acme", False)]


@pytest.mark.parametrize("tenant", ["acme", "bolt"])
async def test_who_follows_either_tenant_is_stopped_by_the_loss(tenant: str) -> None:
    change = lettered(damaged("update", TWICE, **ACME, **update(org="bolt")), tenant=RULE)
    events = (change.event, *change.also)
    scope = Scope((Grant(tenants=frozenset({tenant})),))
    orders = Criteria(collections=frozenset({"orders"}), scope=scope)
    assert await delivered(events, orders) == ([], True)
    letters = Criteria(collections=frozenset({COLLECTION}), scope=scope)
    assert await delivered(events, letters) == (["insert"], False)
    others = Scope((Grant(tenants=frozenset({"others"})),))
    assert await delivered(events, Criteria(scope=others)) == ([], False)


@pytest.mark.parametrize("step", [1, -1])
async def test_a_replay_ends_a_document_for_the_tenant_that_it_left(
    mongo: MongoReplicaSet, mongo_client: Client, mongo_database: str, step: int
) -> None:
    """In whatever order the letters are dealt with: the row is there at the end."""
    orders = mongo_client[mongo_database].create_collection("orders", **IMAGES)
    options: dict[str, Any] = {
        "database": mongo_database,
        "on_undecodable": "dead_letter",
        "tenant": {"field": "org"},
    }
    async with source(mongo.uri, **options) as opened:
        read = Reading(opened)
        await read.next()
        orders.insert_one({"_id": 1, "org": "acme"})
        # The document is looked up behind both updates, and has no fault any more.
        with mongo_client.start_session() as session, session.start_transaction():
            orders.update_one({}, {"$set": {"org": "bolt", **MIMIC}}, session=session)
            orders.update_one({}, {"$unset": {"k": ""}}, session=session)
        orders.insert_one({"_id": "last", "org": "bolt"})
        await read.until(lambda r: r.changes[-1:] != [] and r.changes[-1].document_id == "last")
        letters = await letters_of(read)
        # The fault of the second is in its image of before.
        expected = [("bolt", False), ("acme", True), ("bolt", False)]
        assert [(one.tenant, one.left) for one in letters] == expected
        assert opened.dead_letters == parse_position(read.position or "").letters == 3
        asked = asyncio.create_task(opened.replay(letters[::step], settle=False))
        await read.until(lambda r: parse_position(r.position or "").letters == 0)
        assert [outcome.done for outcome in await asked] == [True] * 3
        await read.stop()
    told = [one for one in read.changes if one.collection == "orders"]
    assert [one.operation for one in told if one.tenant == "acme"] == ["insert", "delete"]
    assert sorted(folded([*told])) == ['orders/{"_id":"last"}', 'orders/{"_id":1}']
