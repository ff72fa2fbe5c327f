"""Typed and untyped bodies over GraphQL, and what each subscription shows."""

import asyncio
from typing import Any

import pytest
from msgspec import Raw

from penstock.event import Commit, Operation
from penstock.serve.captures.graphql.endpoint import graphql_endpoint
from penstock.serve.captures.graphql.inferring import shapes_of
from penstock.serve.captures.graphql.routes import GraphqlRoutes
from penstock.subscribe.scope import EVERYTHING, Grant, Scope
from penstock.testing.contracts.capturing import (
    changed,
    committed,
    opened_log,
    reshaped,
    singles,
    told,
)
from tests.captures.graphql import (
    answered_by,
    asked,
    graphql_server,
    items,
    opened,
    subscribe,
)
from tests.captures.sockets import filled, said, send

TYPES = {
    "orders": {"_id": "Int", "total": "Long", "at": "Int", "tags": "[String]", "a b": "JSON"},
    "my lines!": {"__v": "Int", "rest": "String"},
}


def document(position: int, document: dict[str, Any], **more: Any) -> Commit:
    return committed(changed(position, document=document, **more))


async def test_a_typed_body_has_the_configured_fields_and_the_rest() -> None:
    """What does not fit is null, said, and there as it was; the stream goes on."""
    query = """subscription { onOrdersDataChange(since: {beginning: true}) {
        __typename
        ... on OrdersDataChange { version body { fullDocument {
            _id total tags a_b rest misfits } } } } }"""
    async with filled(0, types=TYPES) as (log, service), answered_by(service) as address:
        big = (1 << 53) + 1
        await log.append(
            [
                document(1, {"_id": 1, "total": big, "tags": ["a", None], "a b": {"n": 1.0}}),
                document(2, {"_id": 1 << 40, "total": "much", "tags": "a", "x": 3.0}),
                document(3, {"_id": None}),
                committed(changed(4, key=1, operation=Operation.DELETE)),
                document(5, {"_id": 2}, collection="lines"),
            ]
        )
        async with opened(address) as connection:
            await subscribe(connection, query)
            one, two, three, deleted = await items(connection, 4)
    assert one["__typename"] == "OrdersDataChange"
    assert one["body"]["fullDocument"] == {
        "_id": 1,
        "total": str(big),
        "tags": ["a", None],
        "a_b": {"n": 1.0},
        "rest": {},
        "misfits": [],
    }
    assert two["body"]["fullDocument"] == {
        "_id": None,
        "total": None,
        "tags": None,
        "a_b": None,
        "rest": {"_id": 1 << 40, "total": "much", "tags": "a", "x": 3.0},
        "misfits": ["_id", "total", "tags"],
    }
    assert three["body"]["fullDocument"]["misfits"] == []
    assert deleted["body"]["fullDocument"] is None


@pytest.mark.slow
async def test_an_untyped_body_is_byte_for_byte_what_was_captured() -> None:
    """3.0 stays a double, and an int64 an int64."""
    query = "subscription { onDataChangeUntyped(since: {beginning: true}) { ... on UntypedChange { body entityPrimaryKey } } }"  # noqa: E501
    async with filled(0) as (log, service), answered_by(service) as address:
        raw = {"a": 3.0, "n": (1 << 63) - 1, "s": Raw(b'{"$numberLong":"5"}')}
        await log.append([document(1, {"_id": 7, **raw})])
        async with opened(address) as connection:
            await subscribe(connection, query)
            await connection.recv()
            text = str(await connection.recv())
    body = '{"fullDocument":{"_id":7,"a":3.0,"n":9223372036854775807,"s":{"$numberLong":"5"}}}'
    assert f'"body":{body}' in text
    assert '"entityPrimaryKey":{"_id":1}' in text


async def test_names_that_graphql_cannot_say_are_mapped_and_described() -> None:
    query = """subscription { onMyLinesDataChange(since: {beginning: true}) {
        ... on MyLinesDataChange { body { fullDocument { _v rest_2 rest } } } } }"""
    async with filled(0, types=TYPES) as (log, service), answered_by(service) as address:
        await log.append([document(1, {"__v": 3, "rest": "r"}, collection="my lines!")])
        async with opened(address) as connection:
            await subscribe(connection, query)
            (one,) = await items(connection, 1)
        described = await asked(address, "{ types { entityType name fields { name spelling } } }")
        kind = '{ __type(name: "MyLinesDocument") { fields { name description } } }'
        fields = (await asked(address, kind))["data"]["__type"]["fields"]
    assert one["body"]["fullDocument"] == {"_v": 3, "rest_2": "r", "rest": {}}
    assert {
        "entityType": "my lines!",
        "name": "MyLines",
        "fields": [{"name": "__v", "spelling": "_v"}, {"name": "rest", "spelling": "rest_2"}],
    } in described["data"]["types"]
    assert {"name": "_v", "description": "In documents: __v"} in fields


async def test_types_are_inferred_once_and_stay_until_a_reload() -> None:
    """Whoever is connected at a reload keeps theirs."""
    query = """subscription { onOrdersDataChange(since: {beginning: true}) {
        ... on OrdersDataChange { body { fullDocument { at misfits } } } } }"""
    async with filled(2) as (log, service), service.running():
        endpoint = await graphql_endpoint(service)
        before = await endpoint.schema(EVERYTHING)
        async with graphql_server(service) as address, opened(address) as connection:
            await log.append([document(3, {"_id": 3, "at": "noon"})])
            await subscribe(connection, query)
            found = [one["body"]["fullDocument"] for one in await items(connection, 3)]
        assert found[:2] == [{"at": 1, "misfits": []}, {"at": 2, "misfits": []}]
        assert found[2] == {"at": None, "misfits": ["at"]}
        assert before is await endpoint.schema(EVERYTHING)
        await log.append([document(4, {"_id": 1}, collection="lines")])
        endpoint.configure(service.config)
        await endpoint.reloaded()
        after = await endpoint.schema(EVERYTHING)
        assert "onLinesDataChange" not in before.as_str()
        assert "onLinesDataChange" in after.as_str()
        assert "at: JSON" in after.as_str()


async def test_a_reload_counts_while_the_first_types_are_made() -> None:
    async with filled(1) as (_, service), service.running():
        graphql = GraphqlRoutes(service)
        making = asyncio.create_task(graphql.endpoint())
        await asyncio.sleep(0)
        graphql.configure(service.config.model_copy(update={"types": {"orders": {"at": "String"}}}))
        endpoint = await making
        await endpoint.reloaded()
        assert "at: String" in (await endpoint.schema(EVERYTHING)).as_str()


async def test_a_collection_without_types_is_told_untyped() -> None:
    """As are those above the limit; the typed ones are typed beside them."""
    query = """subscription { onCatalogChange(catalog: "shop", since: {beginning: true}) {
        __typename ... on OrdersDataChange { body { fullDocument { _id } } }
        ... on UntypedChange { raw: body } } }"""
    options = {"types": {"orders": {"_id": "Int"}}, "graphql": {"types_max": 1}}
    async with filled(0, **options) as (log, service):
        await log.append([document(1, {"_id": 1}), document(2, {"_id": 2}, collection="lines")])
        async with answered_by(service) as address, opened(address) as connection:
            await subscribe(connection, query)
            found = await items(connection, 6)
    assert [one for one in found if one["__typename"] != "Transaction"] == [
        {"__typename": "OrdersDataChange", "body": {"fullDocument": {"_id": 1}}},
        {"__typename": "UntypedChange", "raw": {"fullDocument": {"_id": 2}}},
    ]


async def test_a_body_is_read_if_it_is_selected_or_asked_for() -> None:
    """Through fragments too; and images before a change alike."""
    fields = "body { fullDocument { _id } fullDocumentBeforeChange { _id } }"
    changes = [changed(1), changed(2, key=1, document={"_id": 1}, before={"_id": 1, "was": 1})]
    async with filled(0, types={"orders": {"_id": "Int"}}) as (log, service):
        await log.append([committed(*changes)])
        async with answered_by(service) as address, opened(address) as connection:
            for arguments, selected, expected in (
                ("", fields, {"fullDocument": {"_id": 1}, "fullDocumentBeforeChange": {"_id": 1}}),
                ("content: HEADER", fields, None),
                (
                    "content: BODY, beforeImages: false",
                    fields,
                    {"fullDocument": {"_id": 1}, "fullDocumentBeforeChange": None},
                ),
                (
                    "",
                    "...b",
                    {"fullDocument": {"_id": 1}, "fullDocumentBeforeChange": {"_id": 1}},
                ),
            ):
                query = (
                    f"subscription {{ onOrdersDataChange(since: {{version: 1, index: 2}}, "
                    f"completeAfter: 1, {arguments}) "
                    f"{{ ... on OrdersDataChange {{ {selected} }} }} }}"
                    + (
                        f"fragment b on OrdersDataChange {{ {fields} }}"
                        if "..." in selected
                        else ""
                    )
                )
                await subscribe(connection, query)
                found = [one for one in await upto(connection) if one]
                assert [one["body"] for one in found] == [expected], arguments


async def upto(connection: Any) -> list[dict[str, Any]]:
    """The items of the one operation there is, to its end."""
    found: list[dict[str, Any]] = []
    while (message := await said(connection))["type"] == "next":
        (item,) = message["payload"]["data"].values()
        found.append(item)
    assert message["type"] == "complete", message
    return found


async def test_each_subscription_shows_its_own_area() -> None:
    """A rename comes to who follows the name (E12); transactions on request (E11)."""
    async with filled(0) as (log, service):
        update = b'{"updatedFields":{"a":1},"removedFields":["b"],"truncatedArrays":[]}'
        await log.append(
            [
                committed(told(1, "started")),
                committed(changed(2), changed(3, collection="lines", ordinal=1)),
                committed(changed(4, key=2, operation=Operation.UPDATE, update=update)),
                committed(reshaped(5, "rename", to="old")),
            ]
        )
        async with answered_by(service) as address, opened(address) as connection:
            for field, count, expected in (
                ("onSystemChange", 1, ["SystemChange started"]),
                ("onSystemChangeUntyped", 1, ["UntypedSystemChange started"]),
                ("onSchemaChange", 1, ["SchemaChange rename"]),
                ("onSchemaChangeUntyped", 1, ["UntypedSchemaChange rename"]),
                ("onOrdersSchemaChange", 1, ["SchemaChange rename"]),
                ("onLinesDataChange", 1, ["LinesDataChange insert"]),
                (
                    "onOrdersDataChange",
                    3,
                    ["OrdersDataChange insert", "OrdersDataChange update", "SchemaChange rename"],
                ),
            ):
                query = (
                    f"subscription {{ {field}(since: {{beginning: true}}, completeAfter: {count}) "
                    f"{{ __typename ... on Change {{ operation }} }} }}"
                )
                await subscribe(connection, query)
                found = await upto(connection)
                kinds = [
                    f"{one['__typename']} {one['operation']}" for one in found if "operation" in one
                ]
                assert kinds == expected, field
            query = """subscription { onOrdersDataChange(transactions: true, completeAfter: 3,
                since: {version: 2}, sites: [{operation: "insert"}]) {
                __typename ... on Capture { index } ... on Transaction { mutationCount matched }
            } }"""
            await subscribe(connection, query)
            found = [one for one in await upto(connection) if "index" in one]
            counts = {"mutationCount": "2", "matched": "1"}
            assert found == [
                {"__typename": "Transaction", "index": "0", **counts},
                {"__typename": "OrdersDataChange", "index": "1"},
                {"__typename": "Transaction", "index": "3", **counts},
            ]
            query = """subscription { onOrdersDataChange(completeAfter: 1, since: {version: 3}) {
                ... on OrdersDataChange { body { updateDescription {
                    updatedFields removedFields truncatedArrays } } }
                ... on SchemaChange { shape: body { to { db coll } rest } } } }"""
            await subscribe(connection, query)
            (one,) = [one for one in await upto(connection) if one]
            assert one["body"]["updateDescription"] == {
                "updatedFields": {"a": 1},
                "removedFields": ["b"],
                "truncatedArrays": [],
            }


@pytest.mark.slow
async def test_whoever_may_not_see_a_collection_is_not_told_its_types() -> None:
    """Denied and absent look the same: as in a service that never had it."""
    scope = Scope((Grant(collections=frozenset({"orders"})),))
    answers: list[list[Any]] = []
    for collection in ("secrets", "orders"):
        async with filled(1) as (log, service), service.running():
            await log.append(singles(2, 2, collection=collection))
            async with graphql_server(service, scope_of=lambda _, __: scope) as address:
                query = "subscription { onSecretsDataChange { id } }"
                said_of = [await asked(address, "{ types { entityType } }")]
                said_of.append(await asked(address, '{ __type(name: "SecretsDocument") { name } }'))
                said_of.append(await asked(address, "{ __schema { types { name } } }"))
                async with opened(address) as connection:
                    await subscribe(connection, query)
                    said_of.append(await said(connection))
                answers.append(said_of)
    assert answers[0] == answers[1]
    assert answers[0][0]["data"]["types"] == [{"entityType": "orders"}]
    assert answers[0][3]["type"] == "error"


async def test_what_is_hidden_is_in_no_body_typed_or_not() -> None:
    """Nor is that there is such a field."""
    scope = Scope((Grant(hidden=frozenset({"secret"})),))
    typed = "... on OrdersDataChange { body { fullDocument { _id rest misfits } } }"
    async with filled(0) as (log, service), service.running():
        await log.append([document(1, {"_id": 1, "secret": "s3cret"})])
        async with graphql_server(service, scope_of=lambda _, __: scope) as address:
            async with opened(address) as connection:
                for field, selected in (
                    ("onDataChange", typed),
                    ("onOrdersDataChange", typed),
                    ("onDataChangeUntyped", "... on UntypedChange { body }"),
                ):
                    query = (
                        f"subscription {{ {field}(since: {{beginning: true}}) {{ {selected} }} }}"
                    )
                    await subscribe(connection, query, field)
                    (one,) = await items(connection, 1)
                    assert one["body"]["fullDocument"]["_id"] == 1
                    assert "secret" not in str(one)
                    await send(connection, "complete", id=field)
                    await send(connection, "ping")
                    while (await said(connection))["type"] != "pong":
                        pass
            page = f'{{ history(catalog: "shop") {{ captures {{ {typed} }} }} }}'
            told_of = [await asked(address, page)]
            told_of.append(await asked(address, "{ types { fields { name } } }"))
            assert "secret" not in str(told_of)
            assert "s3cret" not in str(told_of)
            query = '{ __type(name: "OrdersDocument") { fields { name } } }'
            assert "secret" not in str(await asked(address, query))


async def test_a_log_of_many_collections_has_so_many_types() -> None:
    async with opened_log() as log:
        await log.append([document(n, {"a": n}, collection=f"c{n}") for n in range(1, 6)])
        found = await shapes_of(log, {"mine": {"a": "Int"}}, entries_max=100, collections_max=3)
        assert [one.entity_type for one in found] == ["mine", "c1", "c2"]
        found = await shapes_of(log, {}, entries_max=2, collections_max=9)
        assert [one.entity_type for one in found] == ["c4", "c5"]
        assert await shapes_of(log, {}, entries_max=0, collections_max=9) == []
