"""A Snapshot that is cancelled anywhere leaves no reading behind: each costs space till it ends."""

# The keeper's readings are looked at.
# pyright: reportPrivateUsage=false

import asyncio
import contextlib
import random
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from penstock.client.flight import LogClient, RowsRequest
from penstock.log.memory import MemoryLog
from penstock.serve import http
from penstock.serve.config import ServeConfig
from penstock.serve.snapshot import row_batches
from penstock.state.keeper import StateKeeper
from penstock.subscribe import Criteria
from tests.serve.test_http_snapshot import told
from tests.serve.test_snapshot import STATE, random_commit, serving
from tests.state.histories import SOURCES, Model, copied_whole
from tests.waiting import patience, until


class Turns(ThreadPoolExecutor):
    """An executor without threads: what is submitted begins and ends when a test says so."""

    def __init__(self) -> None:
        super().__init__(max_workers=1)
        self.waiting: list[tuple[Future[Any], Callable[[], Any]]] = []
        self.running: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.waiting.append((future, lambda: fn(*args, **kwargs)))
        return future

    def begin(self) -> None:
        """As a thread that is free now does: what was cancelled before is not done at all."""
        if self.waiting:
            future, work = self.waiting.pop(0)
            if future.set_running_or_notify_cancel():
                self.running.append((future, work))

    def end(self) -> None:
        if self.running:
            future, work = self.running.pop(0)
            try:
                found = work()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(found)


async def keeper_with_rows(folder: Path) -> tuple[MemoryLog, StateKeeper]:
    model, rng, log = Model(), random.Random(5), MemoryLog()
    for source in SOURCES:
        await log.append(copied_whole(source))
    await log.append([random_commit(model, rng) for _ in range(30)])
    keeper = StateKeeper(log, folder, STATE)
    while keeper.step():
        pass
    return log, keeper


@pytest.mark.parametrize("seed", range(5))
async def test_whatever_step_it_is_cancelled_at_and_however_often_the_reading_is_closed(
    tmp_path: Path, seed: int
) -> None:
    """In a queue, in a thread, between two batches, and while it is being closed."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    log, keeper = await keeper_with_rows(tmp_path)
    turns = Turns()
    asyncio.get_running_loop().set_default_executor(turns)
    opened = 0
    for _ in range(80):

        async def read() -> None:
            batches = row_batches(keeper, Criteria(), bytes_max=800)
            async with contextlib.aclosing(batches):
                async for _ in batches:
                    await asyncio.sleep(0)

        reading = asyncio.create_task(read())
        steps: list[Callable[[], object]] = [turns.begin, turns.end, lambda: None]
        before, cancel_at = keeper._last_reading, rng.randrange(14)
        for step in range(rng.randrange(14, 40)):
            await asyncio.sleep(0)
            if step == cancel_at or (step > cancel_at and rng.random() < 0.3):
                reading.cancel()
            rng.choice(steps)()
        quiet = 0
        while quiet < 10:  # a result takes some turns of the loop to be known
            quiet = 0 if not reading.done() or turns.waiting or turns.running else quiet + 1
            turns.begin()
            turns.end()
            await asyncio.sleep(0)
        assert reading.cancelled() or reading.exception() is None
        opened += keeper._last_reading > before
        assert keeper._readings == []
    assert opened > 20, "most were cancelled before anything was there to be left"
    keeper.close()
    await log.close()


@pytest.mark.slow
async def test_a_flight_reader_that_goes_away_leaves_no_reading(tmp_path: Path) -> None:
    model, rng = Model(), random.Random(6)
    async with serving(tmp_path) as served:
        for source in SOURCES:
            await served.log.append(copied_whole(source))
        await served.log.append([random_commit(model, rng) for _ in range(300)])
        await served.caught_up()

        def go_away(batches: int) -> None:
            with LogClient(served.flight) as client:
                rows = client.rows(RowsRequest(source="shop", batch_bytes=500))
                for _ in range(batches):
                    next(rows)
                rows.close()

        for batches in (0, 1, 3):
            await asyncio.to_thread(go_away, batches)
        async with patience():
            await until(lambda: not served.keeper._readings)


async def test_whoever_asks_over_http_and_is_gone_before_the_first_line_leaves_no_reading(
    tmp_path: Path,
) -> None:
    log, keeper = await keeper_with_rows(tmp_path)
    config = ServeConfig.model_validate({"http": "127.0.0.1:0", "batch_bytes_max": 500})
    answer = http.application(config, told(keeper))
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "method": "GET",
        "path": http.SNAPSHOT_PATH,
        "query_string": b"",
        "headers": [(b"host", b"localhost")],
    }
    left: list[int] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def gone(_: Any) -> None:
        left.append(len(keeper._readings))
        raise OSError

    with contextlib.suppress(Exception):
        await answer(scope, receive, gone)
    assert left[0] == 1
    assert keeper._readings == []
    keeper.close()
    await log.close()
