"""The description of what is below /rest says what is there."""

import json
import re
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import OpenAPIV31SpecValidator
from starlette.routing import Route, WebSocketRoute

from penstock.event import Operation
from penstock.serve.captures import query
from penstock.serve.captures.openapi import document
from penstock.serve.captures.service import CaptureService
from penstock.serve.captures.web import routes
from penstock.subscribe.scope import EVERYTHING
from penstock.testing.contracts.capturing import changed, committed, reshaped, told
from tests.captures.sockets import captured_by, configured, filled, get, opened, said, send


@pytest.mark.slow
def test_it_is_a_description() -> None:
    OpenAPIV31SpecValidator(document()).validate()


def test_it_describes_every_path_and_parameter() -> None:
    service = CaptureService(None, configured)  # type: ignore[arg-type]
    paths: set[str] = set()
    for route in routes(service, scope_of=lambda _, __: EVERYTHING):
        assert isinstance(route, Route | WebSocketRoute)
        paths.add(re.sub(r":path", "", route.path))
    described = document()["paths"]
    assert paths == set(described)
    names = {
        path: {one["name"] for one in described[path]["get"]["parameters"] if one["in"] == "query"}
        for path in ("/rest/{catalog}/events", "/rest/{catalog}/changes")
    }
    assert names["/rest/{catalog}/events"] == query.NAMES | {"envelope"}
    paged = names["/rest/{catalog}/changes"]
    assert paged == query.NAMES - {"completeAfter"} | {"after", "before", "limit", "envelope"}


def valid(name: str, given: Any) -> None:
    """Fail unless `given` is of the schema of that name."""
    schema = {"$ref": f"#/components/schemas/{name}", "components": document()["components"]}
    validator: Any = Draft202012Validator(schema)
    validator.validate(given)


async def test_what_is_sent_is_as_it_describes() -> None:
    async with filled(2) as (log, service), captured_by(service) as address:
        await log.append([committed(reshaped(3, "rename", to="old"), told(3, "started"))])
        gone = changed(4, key=1, operation=Operation.DELETE, before={"_id": 1})
        await log.append([committed(gone)])
        async with get(address, "/rest/openapi.json") as answer:
            assert await answer.body() == document()
        for path, name, status in (
            ("/rest/shop/changes?content=body&beforeImages=true", "Page", 200),
            ("/rest/shop/changes?area=data&limit=1&before=now", "Page", 200),
            ("/rest/shop/changes?content=body&envelope=debezium", "Page", 200),
            ("/rest/shop/changes?content=body&envelope=debezium-mongodb", "Page", 200),
            ("/rest/shop/changes?envelope=cloudevents", "Page", 200),
            ("/rest/shop/changes?envelope=avro", "Refusal", 400),
            ("/rest/shop/changes?nonsense=1", "Refusal", 400),
            ("/rest/shop.db/entities/orders/2?asOf=2", "Document", 200),
            ("/rest/shop.db/entities/orders/1", "Document", 404),
        ):
            async with get(address, path) as answer:
                assert answer.status == status
                chunked = "content-length" not in answer.headers
                valid(name, await (answer.json() if chunked else answer.body()))
        async with get(address, "/rest/shop/events?since=beginning&id=a") as answer:
            kinds: set[str] = set()
            while not kinds >= {"confirmed", "capture", "transaction", "maintenance"}:
                event = await answer.event()
                kinds.add(event["event"])
                valid(event["event"].capitalize(), json.loads(event["data"]))
        for envelope, name in (("debezium", "DebeziumEvent"), ("cloudevents", "CloudEvent")):
            path = f"/rest/shop/events?since=beginning&content=body&envelope={envelope}"
            async with get(address, path) as answer:
                kinds = set()
                while not kinds >= {"capture", "transaction"}:
                    event = await answer.event()
                    kinds.add(event["event"])
                    if event["event"] in {"capture", "transaction"}:
                        valid(name, json.loads(event["data"]))
        async with opened(address) as connection:
            asked = {"id": "a", "since": "beginning", "completeAfter": 2}
            await send(connection, "subscribe", id="s", payload={"requests": [asked, {"area": 1}]})
            while (message := await said(connection))["payload"]["data"].get("finished") is None:
                valid("ServerMessage", message)
            valid("ServerMessage", message)
            await send(connection, "subscribe", id="t", payload={**asked, "since": "nonsense"})
            while (message := await said(connection))["type"] != "error":
                pass
            valid("ServerMessage", message)
