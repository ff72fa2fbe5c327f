"""A source that is closed while it connects leaves no socket to the collector."""

# When a heartbeat begins and ends is said as the driver says it.
# pyright: reportArgumentType=false

import asyncio
import warnings
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.sources.mongodb import closing
from penstock.sources.mongodb.closing import Heartbeats, close
from tests.mongodb.support import source
from tests.waiting import turns
from tests_support.servers import MongoReplicaSet


def beat(port: int, *, awaited: bool = False) -> Any:
    return SimpleNamespace(connection_id=("127.0.0.1", port), awaited=awaited)


class Client:
    closed = False

    async def close(self) -> None:
        self.closed = True


async def test_a_client_is_closed_once_no_heartbeat_opens_a_connection() -> None:
    heartbeats, client = Heartbeats(), Client()
    for port in (1, 2):
        heartbeats.started(beat(port))
    heartbeats.started(beat(3, awaited=True))
    closes = asyncio.create_task(close(client, heartbeats))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    heartbeats.succeeded(beat(1))
    await turns(3)
    assert not client.closed
    heartbeats.failed(beat(2))
    await closes
    assert client.closed


async def test_a_server_that_does_not_answer_keeps_nobody_from_closing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(closing, "_OPENING_SECONDS_MAX", 0.01)
    heartbeats, client = Heartbeats(), Client()
    heartbeats.started(beat(1))
    await close(client, heartbeats)  # type: ignore[arg-type]
    assert client.closed


async def test_a_client_is_closed_though_its_closing_is_cancelled() -> None:
    heartbeats, client = Heartbeats(), Client()
    heartbeats.started(beat(1))
    closes = asyncio.create_task(close(client, heartbeats))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    closes.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closes
    assert client.closed


async def test_a_source_says_its_heartbeats(mongo: MongoReplicaSet, mongo_database: str) -> None:
    """Else it would be closed at once, in the middle of whatever its client opens."""
    said: list[str] = []

    class Telling(Heartbeats):
        def started(self, event: Any) -> None:
            super().started(event)
            said.append("started")

        async def between(self) -> None:
            await super().between()
            said.append("closes")

    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("error")
        patch.setattr("penstock.sources.mongodb.source.Heartbeats", Telling)
        async with source(mongo.uri, database=mongo_database) as opened:
            items = opened.changes(position=None)
            await anext(items)
            await items.aclose()  # type: ignore[attr-defined]
    assert said[0] == "started"
    assert said[-1] == "closes"
