"""A consumer in another language, with stubs that its own generator made of the design's proto."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.log.memory import MemoryLog
from penstock.subscribe.resume import oldest
from tests.children import lines_of
from tests.serve.conftest import PROTO, Serve
from tests.serve.nodejs import ENVIRONMENT, NODE, installed
from tests.subscribe.events import one_each

pytestmark = pytest.mark.server

HERE = Path(__file__).parent / "node"


@pytest.fixture(scope="session")
def consumer() -> Path:
    """The Node project, installed once for each state of its lock, with its stubs generated."""
    with installed(HERE) as home:
        (home / "gen").mkdir(exist_ok=True)
        generator = home / "node_modules/.bin/protoc-gen-es"
        protoc = [sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTO}", "puller.proto"]
        made = [f"--plugin=protoc-gen-es={generator}", f"--es_out={home / 'gen'}"]
        subprocess.run([*protoc, *made, "--es_opt=target=js"], env=ENVIRONMENT, check=True)
    return home


async def follow(home: Path, address: str, after: str, count: int) -> list[dict[str, Any]]:
    """What the Node consumer saw of `count` events; the last is how it ended."""
    lines = await lines_of(NODE, "consumer.mjs", address, after, count, cwd=home)
    return [json.loads(line) for line in lines]


async def test_stubs_generated_for_node_follow_and_resume(serve: Serve, consumer: Path) -> None:
    log = MemoryLog()
    await log.append(one_each(1, 12))
    server = await serve(log)
    *events, ended = await follow(consumer, server.address, str(oldest(await log.bounds())), 7)
    assert ended == {"ended": "ok"}
    assert [event["documentId"] for event in events] == [str(number) for number in range(1, 8)]
    assert {event["collection"] for event in events} == {"orders"}
    assert all(event["operationType"] == "insert" for event in events)
    assert all(event["fullDocument"]["_id"] == int(event["documentId"]) for event in events)
    *rest, _ = await follow(consumer, server.address, events[-1]["progress"], 5)
    assert [event["documentId"] for event in rest] == [str(number) for number in range(8, 13)]


async def test_node_is_told_why_a_marker_does_not_resume(serve: Serve, consumer: Path) -> None:
    log = MemoryLog()
    await log.append(one_each(1, 3))
    server = await serve(log)
    (ended,) = await follow(consumer, server.address, "not a marker", 1)
    assert ended["ended"] == 3  # INVALID_ARGUMENT
    assert ended["code"] == "MALFORMED"
