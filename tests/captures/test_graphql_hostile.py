"""What one client of GraphQL may cost the others, and what it must not be told."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from graphql import get_introspection_query

from penstock.event import Commit
from penstock.serve.captures.graphql import schema as schemas
from penstock.serve.captures.graphql.endpoint import graphql_endpoint
from penstock.serve.captures.graphql.executing import execute
from penstock.serve.captures.graphql.following import Client, Teller
from penstock.serve.captures.graphql.items import DataChange
from penstock.serve.captures.graphql.messages import Operation
from penstock.serve.captures.service import CaptureService
from penstock.subscribe.scope import EVERYTHING, Grant, Scope
from penstock.testing.contracts.capturing import changed, committed
from tests.captures.graphql import answered_by, asked, graphql_server, items, opened, subscribe
from tests.captures.sockets import filled, said


def document(position: int, document: dict[str, Any], **more: Any) -> Commit:
    return committed(changed(position, document=document, **more))


class Turns:
    """How often the others had their turn."""

    def __init__(self) -> None:
        self.count = 0

    @asynccontextmanager
    async def counted(self) -> AsyncGenerator["Turns"]:
        async def turning() -> None:
            while True:
                await asyncio.sleep(0)
                self.count += 1

        task = asyncio.create_task(turning())
        try:
            yield self
        finally:
            task.cancel()


async def answer(service: CaptureService, query: str) -> tuple[dict[str, Any], int]:
    """The answer of a query, and how often others had their turn meanwhile."""
    schema = await (await graphql_endpoint(service)).schema(EVERYTHING)
    client = Client(service=service, scope=EVERYTHING)
    config = service.config.graphql
    async with Turns().counted() as turns:
        results = execute(schema, Operation(query), client, config, may_subscribe=False)
        found = await anext(results)
        await results.aclose()
    return found, turns.count


MANY: tuple[list[Any], ...] = (
    [{}] * 5_000,
    [{"catalog": ["a"] * 5_000}],
    [{"entityPrimaryKey": [[1] * 500] * 100}],
    [{"entityPrimaryKey": [{"a": {str(n): n for n in range(50_000)}}]}],
)


@pytest.mark.slow
@pytest.mark.parametrize("sites", MANY)
async def test_variables_that_would_take_long_are_refused_before_they_are_looked_at(
    sites: list[Any],
) -> None:
    query = "subscription($sites: [Site!]) { onDataChange(sites: $sites) { progress } }"
    async with (
        filled(1) as (_, service),
        answered_by(service) as address,
        opened(address) as connection,
    ):
        await subscribe(connection, query, variables={"sites": sites})
        message = await said(connection)
        assert message["type"] == "error"
        assert "variables" in message["payload"][0]["message"]
        assert message["payload"][0]["extensions"]["code"] == "request"
        fits = [{"entityPrimaryKey": [{"_id": {"$oid": f"{n:024x}"}} for n in range(1_000)]}]
        await subscribe(connection, query, "fits", variables={"sites": fits})
        assert (await said(connection))["type"] == "next"


@pytest.mark.slow
async def test_a_number_that_none_is_is_refused_and_others_are_fed() -> None:
    """GraphQL reads 1e400 as infinite, and it is not what any key is."""
    hostile = "subscription { onDataChange(sites: [{entityPrimaryKey: [1e400]}]) { progress } }"
    query = "subscription { onDataChange { __typename progress ... on Capture { version } } }"
    async with (
        filled(1) as (log, service),
        answered_by(service) as address,
        opened(address) as connection,
        opened(address) as other,
    ):
        await subscribe(other, query)
        assert (await said(other))["type"] == "next"  # its confirmation
        await subscribe(connection, hostile)
        message = await said(connection)
        assert message["type"] == "error"
        assert "entityPrimaryKey" in message["payload"][0]["message"]
        await log.append([committed(changed(2))])
        assert [one["version"] for one in await items(other, 1)] == ["2"]


@pytest.mark.slow
async def test_a_description_of_the_whole_schema_holds_nobody_up() -> None:
    types = {f"c{n}": {f"field{m}": "Int" for m in range(200)} for n in range(10)}
    async with filled(1, types=types) as (_, service), service.running():
        for query in (get_introspection_query(), "{ types { fields { name spelling type } } }"):
            found, turns = await answer(service, query)
            assert "errors" not in found
            assert turns > 10, query


async def test_a_description_is_asked_for_by_itself() -> None:
    """Also where fragments and aliases hide it."""
    async with filled(1) as (_, service), answered_by(service) as address:
        for query in (
            "{ __schema { queryType { name } } status { version } }",
            "{ s: status { version } ...a } fragment a on Query { t: types { name } }",
            '{ gaps { source } ... { ... on Query { __type(name: "Item") { name } } } }',
        ):
            found = await asked(address, query)
            assert "by itself" in found["errors"][0]["message"], query
        for query in (
            "{ __typename __schema { queryType { name } } types { name } }",
            "{ __typename status { version } }",
        ):
            assert "errors" not in await asked(address, query), query


async def test_what_is_wrong_with_a_description_is_told() -> None:
    async with filled(1) as (_, service), answered_by(service) as address:
        found = await asked(address, "{ __schema { nothing } }")
        assert "nothing" in found["errors"][0]["message"]
        found = await asked(address, "query($a: Int!) { __type(name: $b) { name } }")
        assert found["errors"]


async def test_a_page_of_many_changes_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few are made, and a few are answered, before the others have their turn."""
    query = """{ history(catalog: "shop", since: {beginning: true}, first: 640) {
        captures { version ... on DataChange { documentId } } } }"""
    made = answered = most = 0
    making: Any = Teller.captured
    having: Any = DataChange.__getattribute__

    def captured(*given: Any, **more: Any) -> Any:
        nonlocal made
        made += 1
        return making(*given, **more)

    def attribute(change: Any, name: str) -> Any:
        nonlocal answered
        answered += name == "document_id"
        return having(change, name)

    async def watching() -> None:
        nonlocal most
        before = 0
        while True:
            most, before = max(most, made + answered - before), made + answered
            await asyncio.sleep(0)

    monkeypatch.setattr(Teller, "captured", captured)
    monkeypatch.setattr(DataChange, "__getattribute__", attribute)
    async with filled(640) as (_, service), service.running():
        watch = asyncio.create_task(watching())
        found, _ = await answer(service, query)
        watch.cancel()
    page = [one for one in found["data"]["history"]["captures"] if "documentId" in one]
    assert [one["version"] for one in page] == [str(n) for n in range(1, len(page) + 1)]
    assert made == answered == len(page) >= 100
    assert most <= 8


@pytest.mark.parametrize("name", ["any", "*", "x" * 600])
async def test_a_collection_whose_name_is_a_wildcard_or_long_is_followed_alone(name: str) -> None:
    async with filled(0, types={name: {"_id": "Int"}}) as (log, service):
        await log.append([document(1, {"_id": 1}), document(2, {"_id": 2}, collection=name)])
        async with answered_by(service) as address, opened(address) as connection:
            described = await asked(address, "{ types { name entityType } }")
            (spelt,) = [
                one["name"] for one in described["data"]["types"] if one["entityType"] == name
            ]
            query = f"""subscription {{ on{spelt}DataChange(since: {{beginning: true}},
                transactions: true) {{ __typename ... on Capture {{ version entityType }} }} }}"""
            await subscribe(connection, query)
            found = await items(connection, 5)
    assert [one["version"] for one in found] == ["1", "1", "2", "2", "2"]
    assert [one["entityType"] for one in found if one["entityType"]] == [name]


async def test_fields_of_a_collection_that_is_named_without_types_are_inferred_ones() -> None:
    """Who may read some of its documents is not told what others have."""
    scope = Scope((Grant(sources=frozenset({"one"})),))
    async with filled(0, types={"orders": {}}) as (log, service):
        await log.append(
            [
                document(1, {"_id": 1}, source="one"),
                document(2, {"_id": 2, "diagnosis": "x"}, source="two"),
            ]
        )
        async with (
            service.running(),
            graphql_server(service, scope_of=lambda _, __: scope) as address,
        ):
            found = await asked(address, "{ types { entityType fields { name } } }")
            text = json.dumps(await asked(address, get_introspection_query()))
    assert found == {"data": {"types": []}}
    assert "diagnosis" not in text


async def test_types_stay_and_it_is_said_if_a_reload_fails(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """However it fails; and the next reload counts."""
    from structlog.testing import capture_logs

    async with filled(1) as (log, service), service.running():
        endpoint = await graphql_endpoint(service)
        before = await endpoint.schema(EVERYTHING)

        def failing(*_: Any) -> Any:
            raise RuntimeError("no memory")

        await log.append([document(2, {"_id": 1}, collection="lines")])
        with monkeypatch.context() as patched, capture_logs() as logs:
            patched.setattr(schemas, "schema_of", failing)
            endpoint.configure(service.config)
            await endpoint.reloaded()
        assert [one["event"] for one in logs] == ["graphql types are as before"]
        assert await endpoint.schema(EVERYTHING) is before
        endpoint.configure(service.config)
        waiting = asyncio.create_task(endpoint.reloaded())
        await asyncio.sleep(0)
        endpoint.configure(service.config)
        await waiting
        assert "onLinesDataChange" in (await endpoint.schema(EVERYTHING)).as_str()


async def test_a_schema_that_could_not_be_made_is_made_for_who_comes_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scope = Scope((Grant(hidden=frozenset({"at"})),))

    def failing(*_: Any) -> Any:
        raise RuntimeError("no memory")

    async with filled(1) as (_, service), service.running():
        endpoint = await graphql_endpoint(service)
        with monkeypatch.context() as patched:
            patched.setattr(schemas, "schema_of", failing)
            with pytest.raises(RuntimeError):
                await endpoint.schema(scope)
        assert "onOrdersDataChange" in (await endpoint.schema(scope)).as_str()
