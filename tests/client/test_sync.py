"""The sync twin, as a plain script uses it: in a thread of its own beside the server's loop."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import pytest
from structlog.testing import capture_logs

from penstock.client import MemoryProgress, Retry, follow_sync
from penstock.errors import GapError, MalformedProgressError, ServiceUnavailableError
from penstock.progress import parse_progress
from penstock.serve.consumers import Consumers
from penstock.subscribe.resume import oldest
from tests.client.support import breaking
from tests.serve.conftest import Log, Serve
from tests.subscribe.events import change, commit, one_each, system
from tests.waiting import until

QUICK = Retry(initial_seconds=0.01, max_seconds=0.02)

T = TypeVar("T")


async def in_thread(script: Callable[[], T]) -> T:
    return await asyncio.to_thread(script)


async def beginning(log: Log) -> str:
    return str(oldest(await log.bounds()))


async def test_changes_come_in_order_and_are_saved_when_the_next_is_asked_for_p30(
    log: Log, serve: Serve
) -> None:
    server = await serve(log)
    store = MemoryProgress(await beginning(log))
    await log.append(one_each(1, 5))

    seen: list[int] = []

    def script() -> None:
        with follow_sync(server.address, store=store) as changes:
            for one in changes:
                seen.append(one.sequence)
                if one.sequence == 4:
                    raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await in_thread(script)
    assert seen == [1, 2, 3, 4]
    assert parse_progress(store.marker).sequence == 3


async def test_done_saves_before_it_returns_p30(log: Log, serve: Serve) -> None:
    server = await serve(log)
    store = MemoryProgress(await beginning(log))
    await log.append(one_each(1, 3))

    def script() -> list[int]:
        saved: list[int] = []
        with follow_sync(server.address, store=store, save_interval_seconds=3600) as changes:
            for one in changes:
                one.done()
                saved.append(parse_progress(store.marker).sequence)
                if one.sequence == 3:
                    return saved
        return saved

    assert await in_thread(script) == [1, 2, 3]


async def test_a_quiet_stream_saves_when_the_interval_ends(log: Log, serve: Serve) -> None:
    server = await serve(log)
    store = MemoryProgress(await beginning(log))
    await log.append(one_each(1, 1))

    def script() -> None:
        with follow_sync(server.address, store=store, save_interval_seconds=0.05) as changes:
            next(changes)
            next(changes)

    waiting = asyncio.ensure_future(in_thread(script))
    await until(lambda: parse_progress(store.marker).sequence == 1)
    await log.append(one_each(2, 2))
    await waiting


async def test_it_comes_back_to_a_restarted_server_with_nothing_lost_or_repeated(
    log: Log, serve: Serve
) -> None:
    server = await serve(log, batch_events_max=2)
    after = await beginning(log)
    await log.append(one_each(1, 10))
    changes = follow_sync(server.address, after=after, retry=QUICK)
    seen = await in_thread(lambda: [next(changes).sequence for _ in range(3)])
    await server.stop(0)
    await serve(log, grpc=server.address)
    await log.append(one_each(11, 20))
    seen += await in_thread(lambda: [next(changes).sequence for _ in range(17)])
    await in_thread(changes.close)
    assert seen == list(range(1, 21))


async def test_terminal_errors_are_raised_and_transient_ones_after_max_retries(
    log: Log, serve: Serve
) -> None:
    server = await serve(log)
    after = await beginning(log)
    await log.append([commit(system(1, "gap"))])

    def first(after: str) -> None:
        with follow_sync(server.address, after=after, retry=Retry(max_retries=1)) as changes:
            next(changes)

    with pytest.raises(MalformedProgressError):
        await in_thread(lambda: first("not a marker"))
    with pytest.raises(GapError):
        await in_thread(lambda: first(after))
    await server.stop(0)

    def unserved() -> None:
        retry = Retry(initial_seconds=0.01, max_seconds=0.01, max_retries=2)
        with follow_sync(server.address, after=after, retry=retry) as changes:
            next(changes)

    with pytest.raises(ServiceUnavailableError):
        await in_thread(unserved)


@pytest.mark.slow
async def test_restarts_between_which_only_heartbeats_came_are_not_failures_in_a_row(
    log: Log, serve: Serve
) -> None:
    server = await serve(log, heartbeat_interval=0.02)
    store = MemoryProgress(await beginning(log))
    retry = Retry(initial_seconds=1.0, max_retries=2)
    changes = follow_sync(server.address, store=store, retry=retry, collections=["rare"])
    waiting = asyncio.ensure_future(in_thread(lambda: next(changes).sequence))

    def is_at(sequence: int) -> bool:
        return waiting.done() or parse_progress(store.marker).sequence == sequence

    for restart in range(1, 5):
        await log.append([commit(change(restart))])
        await until(partial(is_at, restart))
        await server.stop(0)
        server = await serve(log, heartbeat_interval=0.02, grpc=server.address)
    await log.append([commit(change(5, collection="rare"))])
    assert await waiting == 5
    await in_thread(changes.close)


async def test_a_service_that_breaks_whenever_it_has_begun_is_given_up() -> None:
    retry = Retry(initial_seconds=0.01, max_seconds=0.01, max_retries=3)
    async with breaking() as address:
        changes = follow_sync(address, retry=retry)
        with pytest.raises(ServiceUnavailableError):
            await in_thread(lambda: next(changes))
        changes.close()


async def test_closing_in_the_midst_of_a_backlog_ends_thread_and_call(
    log: Log, serve: Serve
) -> None:
    consumers = Consumers()
    server = await serve(log, consumers, batch_events_max=1)
    after = await beginning(log)
    await log.append([commit(change(n, document={"text": "x" * 4000})) for n in range(1, 3000)])

    def script() -> int:
        with follow_sync(server.address, after=after) as changes:
            return next(changes).sequence

    assert await in_thread(script) == 1
    await until(lambda: not consumers.status().readers)


async def test_another_thread_can_stop_a_reader_that_waits_and_what_is_processed_is_saved(
    log: Log, serve: Serve
) -> None:
    server = await serve(log)
    await log.append(one_each(1, 3))
    store = MemoryProgress(await beginning(log))
    seen: list[int] = []
    changes = follow_sync(server.address, store=store)

    def script() -> None:
        with changes:
            seen.extend(one.sequence for one in changes)

    reading = asyncio.ensure_future(in_thread(script))
    await until(lambda: len(seen) == 3)
    changes.stop()
    await reading
    assert parse_progress(store.marker).sequence == 3


@pytest.mark.parametrize("server_is_up", [True, False])
async def test_a_reader_that_is_stopped_before_or_between_its_calls_ends_too(
    log: Log, serve: Serve, server_is_up: bool
) -> None:
    server = await serve(log)
    if not server_is_up:
        await server.stop(0)
    changes = follow_sync(server.address, retry=Retry(initial_seconds=600, max_seconds=600))
    if server_is_up:
        changes.stop()
        assert await in_thread(lambda: list(changes)) == []
    else:
        with capture_logs() as told:
            waiting = asyncio.ensure_future(in_thread(lambda: list(changes)))
            await until(lambda: bool(told))
        changes.stop()
        assert await waiting == []
    await in_thread(changes.close)
