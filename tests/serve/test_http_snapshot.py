"""GET /snapshot: the rows of every other protocol, for who has nothing but HTTP."""

import asyncio
import random
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.client import snapshot
from penstock.errors import (
    LogCorruptError,
    PenstockError,
    ServiceUnavailableError,
    StateFailedError,
)
from penstock.serve.config import ServeConfig
from penstock.serve.health import Facts, Health, health
from penstock.serve.http import Told, serve_http
from penstock.subscribe import Criteria
from penstock.subscribe.current import CurrentState, Declared, Reading
from penstock.telemetry import SERVE_REGISTRY
from tests.serve.test_snapshot import random_commit, serving
from tests.state.histories import SOURCES, Model, copied_whole

CONFIG = ServeConfig.model_validate({"http": "127.0.0.1:0"})


def told(current: CurrentState | None) -> Told:
    async def healthy() -> Health:
        facts = Facts(capture={}, sources=(), consumers=0, buffer_size=0)
        return health(facts, version="", started_at=0, now_ms=0, lag_seconds_max=0)

    async def ready() -> bool:
        return True

    async def metrics() -> bytes:
        return b""

    return Told(
        health=healthy,
        ready=ready,
        metrics=metrics,
        current=current,
        batch_bytes_max=lambda: 2000,
    )


def get(address: str, query: str) -> tuple[int, list[dict[str, Any]]]:
    """Status, and the lines of the answer."""
    try:
        with urllib.request.urlopen(f"http://{address}/snapshot{query}") as answer:
            return int(answer.status), [msgspec.json.decode(line) for line in answer]
    except urllib.error.HTTPError as error:
        with error:
            return error.code, [msgspec.json.decode(error.read())]


@pytest.mark.slow
async def test_rows_over_http_are_those_of_grpc_and_end_with_the_marker(tmp_path: Path) -> None:
    model, rng = Model(), random.Random(1)
    async with serving(tmp_path) as served, await serve_http(CONFIG, told(served.keeper)) as web:
        for source in SOURCES:
            await served.log.append(copied_whole(source))
        await served.log.append([random_commit(model, rng) for _ in range(80)])
        await served.caught_up()
        for names in ([], ["shop/a", "b"]):
            async with snapshot(served.grpc, collections=names) as rows:
                expected = sorted([row.sequence async for row in rows])
            query = "?" + "&".join(f"collection={name}" for name in names)
            status, lines = await asyncio.to_thread(get, web.address, query)
            *found, end = lines
            assert status == 200
            assert sorted(one["sequence"] for one in found) == expected
            assert len(found) > 10
            assert end == {"progress": rows.progress}
            assert all("progress" not in one for one in found)


@pytest.mark.slow
async def test_rows_that_may_be_missing_are_refused_before_the_first(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, await serve_http(CONFIG, told(served.keeper)) as web:
        await served.log.append(copied_whole("shop"))
        await served.caught_up()
        status, (said,) = await asyncio.to_thread(get, web.address, "?collection=crm/a")
        assert (status, said["error"]["code"]) == (409, "state.incomplete")
        assert "penstock snapshot crm" in said["error"]["message"]


async def test_a_service_that_keeps_no_rows_says_so() -> None:
    async with await serve_http(CONFIG, told(None)) as web:
        status, (said,) = await asyncio.to_thread(get, web.address, "")
    assert status == 409
    assert "enabled = true under [state]" in said["error"]["message"]


class FailingState:
    """Cannot keep rows, for the reason that it is given."""

    def __init__(self, error: PenstockError) -> None:
        self.error = error

    def open(self, criteria: Criteria) -> Reading:
        raise self.error

    def declared(self, source: str, *, at: int) -> list[Declared] | None:
        raise self.error


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (StateFailedError(error="KeyError"), 409),
        (ServiceUnavailableError("the current rows are within a large transaction."), 503),
        (LogCorruptError("the state does not say what it must."), 503),
    ],
)
async def test_rows_that_cannot_be_given_are_refused_with_the_reason_and_counted(
    error: PenstockError, status: int
) -> None:
    name, labels = "penstock_publish_errors_total", {"protocol": "http", "code": error.code}
    before = SERVE_REGISTRY.get_sample_value(name, labels) or 0.0
    async with await serve_http(CONFIG, told(FailingState(error))) as web:
        found, (said,) = await asyncio.to_thread(get, web.address, "")
    assert (found, said["error"]) == (status, {"code": error.code, "message": str(error)})
    assert SERVE_REGISTRY.get_sample_value(name, labels) == before + 1
