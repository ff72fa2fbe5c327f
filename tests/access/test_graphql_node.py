"""The npm package graphql-ws, with a token in its connectionParams."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.access.capturing import IMAGE, OLD, SECRET, shop
from tests.access.support import Service, issue
from tests.children import lines_of
from tests.serve.nodejs import NODE, installed

pytestmark = pytest.mark.server


async def told(served: Service, **parameters: str) -> list[dict[str, Any]]:
    """What a client with these connectionParams is told."""
    with installed(Path(__file__).parent.parent / "captures" / "node_graphql") as home:
        url = f"ws://{served.http}/graphql"
        lines = await lines_of(NODE, "opening.mjs", url, json.dumps(parameters), cwd=home)
    return [json.loads(line) for line in lines]


async def test_it_sees_what_the_token_in_its_connection_params_allows(tmp_path: Path) -> None:
    tokens, record = tmp_path / "access.json", tmp_path / "record.jsonl"
    orders = issue(tokens, "orders", collections=("orders",), hidden=("ssn", "card"))
    lines = issue(tokens, "lines", collections=("lines",))
    async with shop(tmp_path, record=record) as served:
        for parameters, collection in (
            ({"token": orders}, "orders"),
            ({"authorization": f"Bearer {lines}"}, "lines"),
        ):
            *found, ended = await told(served, **parameters)
            assert ended == {"completed": True}
            assert {one["collection"] for one in found} == {collection}
            assert not any(one in json.dumps(found) for one in (SECRET, OLD, IMAGE, "ssn"))
        for parameters in ({}, {"token": "wrong"}):
            assert await told(served, **parameters) == [{"closed": 4403, "reason": "Forbidden"}]
    written = [json.loads(line) for line in record.read_text().splitlines()]
    assert [(one["who"], one["allowed"]) for one in written] == [
        ("token:orders", True),
        ("token:lines", True),
        ("", False),
        ("", False),
    ]
