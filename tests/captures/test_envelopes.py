"""What existing consumers read, as they are used to it."""

import json
from typing import Any

import pytest
from msgspec import structs

from penstock.event import Operation
from penstock.extjson import encode
from penstock.log.memory import MemoryLog
from penstock.serve.captures.shared import SharedCaptures
from penstock.subscribe.captures import Boundary, Captured
from penstock.subscribe.captures.envelopes import ENVELOPES, plain
from penstock.subscribe.scope import EVERYTHING, Grant, Scope
from tests.captures.support import rest, subscribed
from tests.subscribe.events import change, commit, schema

DOCUMENT = encode({"_id": 1, "total": 1 << 40, "n": 5})


async def written(name: str, *, body: bool = True) -> list[dict[str, Any]]:
    log = MemoryLog()
    await log.append(
        [
            commit(
                change(1, document=DOCUMENT),
                change(2, key=1, operation=Operation.DELETE, ordinal=1),
                schema(3),
            )
        ]
    )
    asked = {"id": "a", "since": "beginning", "content": "body" if body else "header"}
    envelope = ENVELOPES[name]
    found: list[dict[str, Any]] = []
    async with subscribed(log, asked) as session:
        for one in await rest(session):
            if isinstance(one, Captured):
                found.append(json.loads(envelope.with_ids(one.ids, envelope.shared(one))))
            elif isinstance(one, Boundary):
                found.append(json.loads(envelope.boundary(one)))
    return found


async def test_a_cloudevent_has_what_the_specification_demands() -> None:
    begin, insert, delete, create, end = await written("cloudevents")
    for event in (begin, insert, delete, create, end):
        assert event["specversion"] == "1.0"
        assert all(event[name] for name in ("id", "source", "type", "time"))
        # Attribute names are lower-case letters and digits, and their values text.
        names = set(event) - {"data"}
        assert all(name.isalnum() and name.islower() for name in names)
        assert all(isinstance(event[name], str) for name in names)
    assert insert["type"] == "penstock.data.insert"
    assert insert["source"] == "/penstock/shop/db"
    assert insert["subject"] == "orders/1"
    assert insert["data"]["fullDocument"]["total"] == 1 << 40
    assert insert["time"] == "2023-11-14T22:13:21.000Z"
    assert delete["type"] == "penstock.data.delete"
    assert (begin["type"], end["data"]["mutationCount"]) == ("penstock.infrastructure.begin", 3)


async def test_a_header_has_no_data() -> None:
    events = await written("cloudevents", body=False)
    assert not any("data" in event for event in events[1:-1])


async def test_a_debezium_event_has_rows_and_where_they_came_from() -> None:
    begin, insert, delete, create, end = await written("debezium")
    assert (insert["op"], insert["before"], insert["after"]["total"]) == ("c", None, 1 << 40)
    assert (delete["op"], delete["after"], delete["key"]) == ("d", None, {"_id": 1})
    assert insert["source"]["db"] == "db"
    assert insert["source"]["table"] == "orders"
    assert insert["transaction"] == {"id": "1", "total_order": 1}
    assert create["op"] == "m"
    assert (begin["status"], end["status"], end["event_count"]) == ("BEGIN", "END", 3)
    assert end["id"] == insert["transaction"]["id"]


async def test_the_mongodb_connectors_documents_are_text() -> None:
    _, insert, *_ = await written("debezium-mongodb")
    assert json.loads(insert["after"])["n"] == 5
    assert insert["source"]["collection"] == "orders"


@pytest.mark.parametrize(
    ("wrapped", "expected"),
    [
        ({"$numberLong": "5"}, 5),
        ({"$numberDecimal": "1.10"}, "1.10"),
        ({"$date": "2026-01-01T00:00:00.001Z"}, 1_767_225_600_001),
        ({"$binary": {"base64": "AAE=", "subType": "00"}}, "AAE="),
        ([{"a": {"$oid": "5f" * 12}}], [{"a": "5f" * 12}]),
        ({"$timestamp": {"t": 1, "i": 2}}, {"$timestamp": {"t": 1, "i": 2}}),
    ],
)
def test_plain_values_are_what_a_relational_consumer_expects(wrapped: Any, expected: Any) -> None:
    assert plain(wrapped) == expected


@pytest.mark.parametrize("name", ENVELOPES)
async def test_what_is_hidden_is_in_no_envelope_and_who_sees_as_much_shares_it(name: str) -> None:
    hidden = "s3cr3t"
    event = structs.replace(
        change(1, document=encode({"_id": 1, "ssn": hidden, "at": 7})),
        operation=Operation.UPDATE,
        key=encode({"ssn": hidden}),
        document_id=hidden,
        position=hidden,
        full_document_before_change=encode({"ssn": hidden}),
        update_description=encode({"updatedFields": {"ssn": hidden}, "removedFields": ["ssn"]}),
    )
    log = MemoryLog()
    await log.append([commit(event, schema(3))])
    asked = {"id": "a", "since": "beginning", "content": "body", "beforeImages": True}
    envelope, shared = ENVELOPES[name], SharedCaptures()
    masked = Scope((Grant(hidden=frozenset({"ssn"})),), b"secret")
    sizes: list[int] = []
    for scope, sees in ((EVERYTHING, True), (masked, False), (masked, False)):
        async with subscribed(log, asked, scope=scope) as session:
            found = [one for one in await rest(session) if isinstance(one, Captured)]
        said = b"".join(shared.without_ids(one, envelope.shared) for one in found)
        assert (hidden.encode() in said, b"ssn" in said) == (sees, sees)
        assert b"7" in said
        sizes.append(shared.kept_bytes)
    assert sizes[0] < sizes[1] == sizes[2]
