"""A client in Node that has nothing of ours but the proto: grpc-js, with stubs made at run time."""

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.serve.captures.config import CapturesConfig
from penstock.serve.captures.service import CaptureService
from penstock.testing.contracts.capturing import opened_log, singles
from tests.captures.grpc_client import served
from tests.children import lines_of
from tests.serve.nodejs import NODE, installed

pytestmark = pytest.mark.server

PROTO = Path(__file__).parents[2] / "proto/penstock/v1/captures.proto"


@pytest.fixture(scope="session")
def project() -> Path:
    """The Node project, installed."""
    with installed(Path(__file__).parent / "node") as home:
        return home


async def test_node_subscribes_extends_gives_credit_and_cancels(project: Path) -> None:
    async with (
        opened_log() as log,
        CaptureService(log, CapturesConfig).running() as service,
        served(service) as server,
    ):
        await log.append(singles(1, 3))
        lines = await lines_of(NODE, "subscriber.mjs", PROTO, server.address, cwd=project)
    said: list[dict[str, Any]] = [json.loads(line) for line in lines]
    assert said[0] == {"confirmed": "a", "version": 3}
    of_a = [one for one in said if one.get("capture") == ["a"]]
    assert [(one["version"], one["area"], one["document"]) for one in of_a] == [
        (at, "AREA_DATA", {"_id": at, "at": at}) for at in (1, 2, 3)
    ]
    assert {"confirmed": "b", "version": 3} in said
    assert {"refused": "a", "code": "request"} in said
    edges = [one for one in said if "boundary" in one]
    assert [(one["boundary"], one["version"]) for one in edges] == [(True, 3), (False, 3)]
    assert {"finished": "a", "error": None} in said
    assert said[-2:] == [{"ended": 0, "code": None}, {"ended": 3, "code": "MALFORMED"}]
