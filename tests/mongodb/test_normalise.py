"""What a raw event becomes, for events that the test servers do not send."""

import hashlib
import json
import math
from typing import Any

import bson
import pytest
from bson import (
    Binary,
    Code,
    DatetimeMS,
    DBRef,
    Decimal128,
    Int64,
    MaxKey,
    MinKey,
    ObjectId,
    Timestamp,
)
from hypothesis import given
from pydantic import ValidationError

from penstock.capture.tenant import TenantRule
from penstock.errors import UndecodableError
from penstock.event import AnyEvent, ChangeEvent, ClusterTime, SchemaEvent
from penstock.flatten import flatten, unflatten
from penstock.sources.mongodb.documents import OPTIONS, BsonEncoder, decode
from penstock.sources.mongodb.normalise import SCHEMA_OPERATIONS, Normaliser
from tests.mongodb.support import config, loaded
from tests.mongodb.test_documents import DOCUMENTS

ORGANISATION = TenantRule.model_validate({"field": "org.id"})
TOKEN = "826B00207E00000014" + "AB" * 30


def raw(operation: str, **fields: Any) -> bytes:
    event = {
        "_id": {"_data": TOKEN},
        "operationType": operation,
        "clusterTime": Timestamp(1_700_000_000, 7),
        "ns": {"db": "shop", "coll": "orders"},
        **fields,
    }
    return bson.encode(event, codec_options=OPTIONS)


def normalised(data: bytes, **options: Any) -> AnyEvent:
    """The last of the events that are told, mostly the only one."""
    options = {"database": None, "tenant": None, "post_images": False, **options}
    change = Normaliser("shop", **options).change(data)
    assert change is not None
    assert change.token.data == TOKEN
    return (change.event, *change.also)[-1]


def test_an_operation_that_is_not_known_stops_with_its_name_and_position() -> None:
    """P6, invariant 10."""
    with pytest.raises(UndecodableError, match=f"'resizeUniverse'.* at position {TOKEN}"):
        normalised(raw("resizeUniverse"))


@pytest.mark.parametrize("operation", sorted(SCHEMA_OPERATIONS))
def test_every_change_of_shape_is_a_schema_event(operation: str) -> None:
    event = normalised(raw(operation, operationDescription={"n": Int64(1)}), tenant="acme")
    assert isinstance(event, SchemaEvent)
    assert (event.operation, event.tenant) == (operation, "acme")
    assert b'{"n":{"$numberLong":"1"}}' in bytes(event.description)


def test_an_event_without_a_wall_time_has_the_second_of_its_cluster_time() -> None:
    """P26: servers before 6.0 send no wallTime."""
    event = normalised(raw("delete", documentKey={"_id": 1}))
    assert (event.timestamp, event.cluster_time) == (
        1_700_000_000_000,
        ClusterTime(1_700_000_000, 7),
    )
    later = normalised(
        raw("delete", documentKey={"_id": 1}, wallTime=DatetimeMS(1_700_000_000_123))
    )
    assert later.timestamp == 1_700_000_000_123


def test_the_key_of_a_sharded_collection_is_refused() -> None:
    """A copied row would have another identity than its changes. A shard may be reached directly,
    and then nothing but its events tells that it is one."""
    with pytest.raises(
        UndecodableError, match=r"delete of shop\.orders: a sharded collection's key"
    ):
        normalised(raw("delete", documentKey={"region": "eu", "_id": ObjectId("0" * 24)}))


def test_disambiguated_paths_are_kept_beside_the_update() -> None:
    """Servers since 6.1 tell a field named 0 from the first element of an array."""
    update: dict[str, Any] = {
        "updatedFields": {"a.0": 1},
        "removedFields": [],
        "truncatedArrays": [],
    }
    event = normalised(
        raw(
            "update",
            documentKey={"_id": 1},
            updateDescription={**update, "disambiguatedPaths": {"a.0": ["a", "0"]}},
        )
    )
    assert isinstance(event, ChangeEvent)
    assert bytes(event.disambiguated_paths or b"") == b'{"a.0":["a","0"]}'
    assert b"disambiguated" not in bytes(event.update_description or b"")
    assert event.full_document is None


def test_a_name_with_a_dot_is_not_the_path_of_a_tenant() -> None:
    """An update is nobody else's because it has a field that is called like the path."""
    changed: dict[str, Any] = {
        "documentKey": {"_id": 1},
        "fullDocumentBeforeChange": {"_id": 1, "org": {"id": "acme"}},
    }
    for diff, tenant in (
        ({"i": {"org.id": "other"}}, "acme"),
        ({"d": {"org.id": False}}, "acme"),
        ({"sorg": {"u": {"id": "other"}}}, "other"),
    ):
        event = normalised(
            raw("update", **changed, rawUpdateDescription={"$v": 2, "diff": diff}),
            tenant=ORGANISATION,
        )
        assert event.tenant == tenant


def test_an_update_that_cannot_be_described_has_no_tenant_of_before() -> None:
    diff = {"i": {"org.id": "x"}, "sorg": {"u": {"id": "other"}}}
    data = raw(
        "update",
        documentKey={"_id": 1},
        fullDocumentBeforeChange={"_id": 1, "org": {"id": "acme"}},
        rawUpdateDescription={"$v": 2, "diff": diff},
    )
    with pytest.raises(UndecodableError, match="its tenant cannot be told"):
        normalised(data, tenant=ORGANISATION)
    event = normalised(data)
    assert isinstance(event, ChangeEvent)
    assert (event.update_description, event.disambiguated_paths) == (None, None)


def test_a_transaction_is_named_by_its_session_and_number() -> None:
    session = {"id": Binary(bytes(range(16)), 4), "uid": b""}
    event = normalised(raw("delete", documentKey={"_id": 1}, lsid=session, txnNumber=Int64(9)))
    assert isinstance(event, ChangeEvent)
    assert event.transaction == "000102030405060708090a0b0c0d0e0f:9"
    assert event.txn_number == 9


def test_fields_that_we_do_not_know_are_no_reason_to_stop() -> None:
    event = normalised(raw("insert", documentKey={"_id": 1}, fullDocument={"_id": 1}, nsType="x"))
    assert isinstance(event, ChangeEvent)
    assert event.full_document_as_of_event


def changed(operation: str, tenant: Any, **fields: Any) -> ChangeEvent:
    event = normalised(
        raw(operation, **{"documentKey": {"_id": 1}, **fields}),
        tenant=TenantRule.model_validate(tenant) if isinstance(tenant, dict) else tenant,
    )
    assert isinstance(event, ChangeEvent)
    return event


def test_the_tenant_is_the_database_a_constant_or_what_the_event_says() -> None:
    """P24."""
    insert = {"fullDocument": {"_id": 1, "org": {"id": ObjectId("a" * 24)}}}
    assert changed("insert", None, **insert).tenant == "shop"
    assert changed("insert", "acme", **insert).tenant == "acme"
    assert changed("insert", {"field": "org.id"}, **insert).tenant == "a" * 24
    compound = {"documentKey": {"_id": {"t": Binary(bytes(16), 4), "n": 1}}}
    told = changed("delete", {"id_field": "t"}, **compound).tenant
    assert told == "00000000-0000-0000-0000-000000000000"


def test_a_delete_has_the_tenant_of_its_document_or_key_and_never_an_empty_one() -> None:
    """P24."""
    key = {"documentKey": {"_id": "acme:42"}}
    assert changed("delete", {"id_prefix": ":"}, **key).tenant == "acme"
    before = {"fullDocumentBeforeChange": {"_id": 1, "org": Int64(7)}}
    assert changed("delete", {"field": "org"}, **before).tenant == "7"
    with pytest.raises(
        UndecodableError, match=r"delete of shop\.orders: its tenant cannot be told"
    ):
        changed("delete", {"field": "org"})


def test_an_update_whose_document_is_gone_has_a_tenant_by_what_it_set_or_what_was_there() -> None:
    """P24, P25: a look-up that finds nothing must not make the event another tenant's."""
    update: dict[str, Any] = {"updateDescription": {"updatedFields": {"n": 1}, "removedFields": []}}
    before = {"fullDocumentBeforeChange": {"_id": 1, "org": "old"}}
    assert changed("update", {"field": "org"}, **update, **before).tenant == "old"
    moved = {"updateDescription": {"updatedFields": {"org": "new"}}}
    assert changed("update", {"field": "org"}, **moved, **before).tenant == "new"


def test_an_update_that_may_move_a_document_says_from_whom() -> None:
    """Else the tenant before would keep it, and nobody would hear of that."""
    after: dict[str, Any] = {"fullDocument": {"_id": 1, "org": "new"}}
    moved: dict[str, Any] = {
        "updateDescription": {"updatedFields": {"org": "new"}, "removedFields": []}
    }
    for operation, fields in (("update", {**after, **moved}), ("replace", after)):
        with pytest.raises(UndecodableError, match="does not say which it had"):
            changed(operation, {"field": "org"}, **fields)
        assert changed(operation, {"id_prefix": ":", "otherwise": "x"}, **fields).tenant == "x"
    other = {"updateDescription": {"updatedFields": {"n": 1}}}
    assert changed("update", {"field": "org"}, **after, **other).tenant == "new"


def test_what_is_about_no_database_has_a_tenant_too() -> None:
    """P24."""
    event = decode(raw("invalidate"))
    del event["ns"]
    assert normalised(bson.encode(event, codec_options=OPTIONS)).tenant == "shop"
    assert normalised(raw("drop", ns={"db": "d", "coll": "c"})).tenant == "d"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (ObjectId("0123456789abcdef01234567"), "0123456789abcdef01234567"),
        ("a/b:c", "a/b:c"),
        ("", ""),
        (5, "5"),
        (Int64(5), "5"),
        (-(1 << 40), "-1099511627776"),
        (5.0, "5.0"),
        (math.nan, '{"$numberDouble":"NaN"}'),
        (True, "true"),
        (None, "null"),
        (Decimal128("1.10"), '{"$numberDecimal":"1.10"}'),
        (DatetimeMS(0), '{"$date":"1970-01-01T00:00:00.000Z"}'),
        (Timestamp(1, 2), '{"$timestamp":{"t":1,"i":2}}'),
        (b"\x01", '{"$binary":{"base64":"AQ==","subType":"00"}}'),
        (Binary(bytes(16), 4), '{"$binary":{"base64":"AAAAAAAAAAAAAAAAAAAAAA==","subType":"04"}}'),
        (Code("f()"), '{"$code":"f()"}'),
        (MinKey(), '{"$minKey":1}'),
        (MaxKey(), '{"$maxKey":1}'),
        (DBRef("c", 1), '{"$ref":"c","$id":1}'),
        ({}, "{}"),
        ({"region": "eu", "n": Int64(1)}, '{"region":"eu","n":{"$numberLong":"1"}}'),
    ],
    ids=repr,
)
def test_a_key_of_every_type_has_a_text_and_keeps_its_type(value: Any, text: str) -> None:
    """The text is for people; `key` is the identity, in which 5 and "5" differ."""
    event = normalised(raw("delete", documentKey={"_id": value}))
    assert isinstance(event, ChangeEvent)
    assert event.document_id == text
    again = loaded(event.key)
    assert bson.encode(again, codec_options=OPTIONS) == bson.encode(
        {"_id": value}, codec_options=OPTIONS
    )


def test_a_key_without_an_id_is_named_by_a_hash_of_it() -> None:
    """As the puller's sheet says: the first half of the SHA-256 of the key's BSON."""
    events = [normalised(raw("delete", documentKey=key)) for key in ({}, {"n": 1}, {"n": Int64(1)})]
    ids = [event.document_id for event in events if isinstance(event, ChangeEvent)]
    assert ids[0] == hashlib.sha256(bson.encode({})).hexdigest()[:32]
    assert len(set(ids)) == 3


def test_flattened_documents_and_paths_have_one_spelling() -> None:
    """P32."""
    event = normalised(
        raw(
            "update",
            documentKey={"_id": 1},
            fullDocument={"_id": 1, "a": {"b": Int64(1), "c.d": {}}, "e": [{"f": {"g": 1}}]},
            fullDocumentBeforeChange={"_id": 1, "a": {"b": None}},
            updateDescription={
                "updatedFields": {"a.b": Int64(1), "a.c.d": {}},
                "removedFields": ["a.x"],
                "truncatedArrays": [],
                "disambiguatedPaths": {"a.c.d": ["a", "c.d"]},
            },
        ),
        flat=True,
    )
    assert isinstance(event, ChangeEvent)
    one = '{"_id":1,"a.b":{"$numberLong":"1"},"a.c\\\\.d":{},"e":[{"f":{"g":1}}]}'
    assert bytes(event.full_document or b"").decode() == one
    assert bytes(event.full_document_before_change or b"").decode() == '{"_id":1,"a.b":null}'
    update = json.loads(bytes(event.update_description or b""))
    assert update["updatedFields"] == {"a.b": {"$numberLong": "1"}, "a.c\\.d": {}}
    assert update["removedFields"] == ["a.x"]
    assert json.loads(bytes(event.disambiguated_paths or b"")) == {"a.c\\.d": ["a", "c.d"]}
    assert bytes(event.key) == b'{"_id":1}'


def test_of_a_flattened_document_no_path_is_stated_to_be_of_plain_names() -> None:
    """Its rows have one level, so no update without its document can be applied to them."""
    update = {"updatedFields": {"a.b": 1}, "disambiguatedPaths": {}}
    event = normalised(raw("update", documentKey={"_id": 1}, updateDescription=update), flat=True)
    assert isinstance(event, ChangeEvent)
    assert event.disambiguated_paths is None


@given(DOCUMENTS)
def test_every_flattened_document_of_bson_comes_back_exactly(original: dict[str, Any]) -> None:
    """P32: through capture's own encoding, for every type that BSON has."""
    data = bson.encode({"v": original}, codec_options=OPTIONS)
    nested = json.loads(bytes(BsonEncoder().encode(decode(data))))
    flat = json.loads(bytes(BsonEncoder().encode(flatten(decode(data)))))
    assert json.dumps(unflatten(flat)) == json.dumps(nested)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tenant": ""}, "at least 1 character"),
        ({"tenant": {}}, "name one of"),
        ({"tenant": {"field": "a"}, "full_document_before_change": "off"}, "before a delete"),
        ({"tenant": {"field": "a"}, "full_document": "default"}, "tenant.field needs"),
        ({"flatten": "dot", "full_document": "default"}, "flatten = 'dot' needs"),
    ],
)
def test_settings_that_would_leave_events_without_a_tenant_or_a_document_are_refused(
    options: dict[str, Any], message: str
) -> None:
    """P24, P32."""
    with pytest.raises(ValidationError, match=message):
        config("mongodb://localhost", **options)
