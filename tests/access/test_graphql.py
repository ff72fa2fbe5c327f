"""What GraphQL tells of collections and sources to who may see a part of them."""

import json
from pathlib import Path
from typing import Any

import pytest
from graphql import get_introspection_query
from msgspec import structs

from tests.access.capturing import IMAGE, OLD, SECRET, TEXT, headers, shop
from tests.access.support import ALL, Clock, Service, issue, revoke, service
from tests.captures.graphql import post, socket
from tests.captures.sockets import closed, said, send
from tests.subscribe.events import change, commit
from tests.waiting import until

pytestmark = pytest.mark.slow

TYPED = """subscription { onOrdersDataChange(since: {beginning: true}, beforeImages: true) {
    __typename progress
    ... on OrdersDataChange { entityPrimaryKey a: body { ...b } b: body { ...b } documentId } } }
fragment b on OrdersDataBody {
    fullDocument { ...d } fullDocumentBeforeChange { ...d }
    updateDescription { updatedFields removedFields truncatedArrays }
    disambiguatedPaths unchanged }
fragment d on OrdersDocument { x: rest rest misfits FIELDS }"""


async def asked(
    served: Service, token: str, query: str, **variables: Any
) -> tuple[int, dict[str, Any]]:
    body = json.dumps({"query": query, "variables": variables}).encode()
    return await post(served.http, body, headers=headers(token))


async def typed(served: Service, token: str, fields: str, query: str = TYPED) -> list[Any]:
    """What the operation is told until maintenance, or what ends it."""
    found: list[Any] = []
    async with socket(served.http) as connection:
        await send(connection, "connection_init", payload={"token": token})
        await said(connection)
        payload = {"query": query.replace("FIELDS", fields)}
        await send(connection, "subscribe", id="s", payload=payload)
        while (message := await said(connection))["type"] == "next":
            item = message["payload"]["data"]["onOrdersDataChange"]
            if item["__typename"] == "Maintenance":
                return found
            found.append(item)
        return [message]


async def retyped(served: Service) -> None:
    """The types are those of what the log has now."""
    served.graphql.configure(served.captures.config)
    await (await served.graphql.endpoint()).reloaded()


@pytest.mark.parametrize("configured", [False, True])
async def test_types_leave_out_what_is_hidden_whoever_came_before(
    tmp_path: Path, configured: bool
) -> None:
    """By alias, fragment and introspection too: no scope has the schema of another."""
    tokens = tmp_path / "access.json"
    everything = issue(tokens, "everything", verbs=ALL)
    reader = issue(tokens, "reader")
    masked = issue(tokens, "masked", verbs=ALL, hidden=("ssn", "card.no"))
    lines = issue(tokens, "lines", collections=("lines",))
    fields = {"_id": "Int", "at": "Int", "ssn": "String", "card": "JSON"}
    captures = {"types": {"orders": fields}} if configured else None
    async with shop(tmp_path, captures=captures) as served:
        await retyped(served)
        for _ in range(2):
            for token, shown, hidden in (
                (everything, {SECRET, OLD, IMAGE}, set[str]()),
                (reader, {SECRET}, {OLD, IMAGE}),
            ):
                text = json.dumps(await typed(served, token, "_id at ssn card"))
                assert all(one in text for one in shown)
                assert not any(one in text for one in hidden)
            ((refused),) = await typed(served, masked, "_id at ssn card")
            assert "'ssn'" in refused["payload"][0]["message"]
            told = await typed(served, masked, "_id at" + (" card" if configured else ""))
            text = json.dumps(told)
            assert IMAGE in text
            assert not any(one in text for one in (SECRET, OLD, "ssn", '"no"'))
            _, schema = await asked(served, masked, get_introspection_query())
            assert "OrdersDocument" in json.dumps(schema)
            assert "ssn" not in json.dumps(schema)
            _, types = await asked(served, masked, "{ types { fields { name spelling } } }")
            assert "ssn" not in json.dumps(types)
            _, schema = await asked(served, lines, get_introspection_query())
            assert "Orders" not in json.dumps(schema)
            ((refused),) = await typed(served, lines, "_id")
            assert "onOrdersDataChange" in refused["payload"][0]["message"]


async def test_a_reload_shows_nobody_more_and_who_is_connected_keeps_its_types(
    tmp_path: Path,
) -> None:
    tokens = tmp_path / "access.json"
    everything = issue(tokens, "everything", verbs=ALL)
    masked = issue(tokens, "masked", hidden=("ssn", "card", "pin"))
    fields = "{ types { entityType fields { name } } }"
    async with shop(tmp_path) as served, socket(served.http) as connection:
        await retyped(served)
        await send(connection, "connection_init", payload={"token": masked})
        await said(connection)

        async def ask(name: str) -> Any:
            await send(connection, "subscribe", id=name, payload={"query": fields})
            answer = await said(connection)
            assert (await said(connection))["type"] == "complete"
            return answer["payload"]

        before = await ask("a")
        document = {"_id": 9, "ssn": SECRET, "pin": 1, "new": 1}
        await served.log.append([commit(change(9, document=document))])
        await retyped(served)
        assert "pin" in json.dumps(await asked(served, everything, fields))
        _, after = await asked(served, masked, fields)
        assert "new" in json.dumps(after)
        assert not any(f'"{one}"' in json.dumps(after) for one in ("ssn", "card", "pin"))
        assert await ask("b") == before


async def test_a_position_is_told_to_who_sees_all_of_its_source(tmp_path: Path) -> None:
    """A source may have written a key there."""
    tokens = tmp_path / "access.json"
    asking = "{ status { version sources { name position events } } }"
    table: dict[str, tuple[dict[str, Any], dict[str, str | None]]] = {
        "everything": ({"verbs": ALL}, {"shop": SECRET, "crm": "1"}),
        "shop": ({"verbs": ALL, "sources": ("shop",)}, {"shop": SECRET}),
        "masked": ({"verbs": ALL, "hidden": ("ssn",)}, {"shop": None, "crm": None}),
        "part": ({"verbs": ALL, "collections": ("shop/lines",)}, {"shop": None}),
        "reader": ({}, {}),
    }
    issued = {name: issue(tokens, name, **grant) for name, (grant, _) in table.items()}
    async with shop(tmp_path) as served:
        last = structs.replace(commit(change(9)), position=SECRET)
        await served.log.append([last])
        for name, (_, seen) in table.items():
            _, answer = await asked(served, issued[name], asking)
            found = {one["name"]: one["position"] for one in answer["data"]["status"]["sources"]}
            assert found.keys() == seen.keys(), name
            assert found.get("shop") == seen.get("shop"), name


async def test_queries_are_only_for_who_follows_something_and_gaps_for_the_verb_schema(
    tmp_path: Path,
) -> None:
    tokens = tmp_path / "access.json"
    table: tuple[tuple[str, int], ...] = (
        (issue(tokens, "operator", verbs=("admin",)), 403),
        (issue(tokens, "reader"), 200),
        (issue(tokens, "over", expires_at=1.0), 401),
    )
    async with shop(tmp_path) as served:
        for token, status in table:
            found, answer = await asked(served, token, "{ gaps { source } status { version } }")
            assert found == status
            if status == 200:
                assert answer["data"] == {"gaps": [], "status": {"version": "5"}}
        assert (await post(served.http, b'{"query": "{ __typename }"}'))[0] == 401


async def test_the_text_of_a_definition_is_for_the_verb_schema_and_who_has_nothing_hidden(
    tmp_path: Path,
) -> None:
    tokens = tmp_path / "access.json"
    query = """{ history(catalog: "shop", since: {beginning: true}) { captures {
        ... on SchemaChange { body { rest } } } } }"""
    table: tuple[tuple[str, bool], ...] = (
        (issue(tokens, "admin", verbs=ALL), True),
        (issue(tokens, "shapes", verbs=("read", "schema")), True),
        (issue(tokens, "masked", verbs=ALL, hidden=("ssn",)), False),
        (issue(tokens, "reader"), False),
    )
    async with shop(tmp_path) as served:
        for token, seen in table:
            _, answer = await asked(served, token, query)
            assert answer["data"]["history"]
            assert (TEXT in json.dumps(answer)) is seen


@pytest.mark.parametrize("selected", ["progress", "... on UntypedChange { body }"])
async def test_a_token_that_is_revoked_ends_its_operations(tmp_path: Path, selected: str) -> None:
    """Also of who takes nothing."""
    token = issue(tmp_path / "access.json", "one")
    field = "onDataChangeUntyped(since: {beginning: true})"
    payload = {"query": f"subscription {{ {field} {{ {selected} }} }}"}
    async with service(tmp_path) as served:
        for position in range(1, 9):
            large = change(position, document={"_id": 1, "x": "x" * (4 << 20)})
            await served.log.append([commit(large)])
        async with socket(served.http, max_queue=1) as connection:
            await send(connection, "connection_init", payload={"token": token})
            await send(connection, "subscribe", id="s", payload=payload)
            await until(lambda: served.captures.subscriptions != 0)
            revoke(tmp_path / "access.json", "one")
            await until(lambda: not (served.access.visitors or served.captures.subscriptions))


async def test_a_token_that_is_over_ends_its_operations(tmp_path: Path) -> None:
    wall = Clock()
    token = issue(tmp_path / "access.json", "one", expires_at=wall.now + 3.0)
    async with shop(tmp_path, wall=wall) as served, socket(served.http) as connection:
        await send(connection, "connection_init", payload={"token": token})
        payload = {"query": "subscription { onDataChange { progress } }"}
        await send(connection, "subscribe", id="s", payload=payload)
        assert (await said(connection))["type"] == "connection_ack"
        await until(lambda: served.captures.subscriptions)
        wall.now += 3.0
        assert await closed(connection) == (4401, "access.unauthenticated")
