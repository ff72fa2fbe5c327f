"""Following a real service over loopback, and a log in this process: the same promises."""

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from penstock.client import (
    FileProgress,
    Following,
    MemoryProgress,
    Retry,
    Shards,
    follow,
    follow_log,
)
from penstock.client.following import AsyncChange
from penstock.errors import (
    AheadError,
    GapError,
    MalformedProgressError,
    ProgressError,
    RequestError,
    ServiceUnavailableError,
    StreamChangedError,
    TrimmedError,
)
from penstock.event import ChangeEvent, Kind, Operation
from penstock.progress import Progress, parse_progress
from penstock.serve.consumers import Consumers
from penstock.subscribe.resume import oldest
from tests.client.support import breaking
from tests.serve.conftest import Log, Serve
from tests.subscribe.events import change, commit, one_each, schema, system
from tests.waiting import until

QUICK = Retry(initial_seconds=0.01, max_seconds=0.02)

Open = Callable[..., Following]


async def beginning(log: Log) -> str:
    return str(oldest(await log.bounds()))


async def take(changes: Following, count: int) -> list[AsyncChange]:
    return [await anext(changes) for _ in range(count)]


def sequences(changes: list[AsyncChange]) -> list[int]:
    return [change.sequence for change in changes]


@pytest.fixture(params=["served", "embedded"])
async def opened(request: pytest.FixtureRequest, log: Log, serve: Serve) -> Open:
    """Opens a reader of `log`: over gRPC, or in this process (P17)."""
    if request.param == "embedded":

        def embedded(**options: Any) -> Following:
            return follow_log(log, heartbeat_seconds=0.05, **options)

        return embedded
    server = await serve(log, heartbeat_interval=0.05)

    def served(**options: Any) -> Following:
        return follow(server.address, retry=QUICK, **options)

    return served


# --- what a consumer gets, embedded as well as remote (P17) -------------------------------------


async def test_changes_come_decoded_in_log_order(log: Log, opened: Open) -> None:
    await log.append(
        [
            commit(change(1, key=7, txn_number=3, document={"_id": 7, "name": "ä", "n": 1.5})),
            commit(change(2, key=7, operation=Operation.DELETE)),
        ]
    )
    async with opened(after=await beginning(log)) as changes:
        first, second = await take(changes, 2)
    assert first.document == {"_id": 7, "name": "ä", "n": 1.5}
    assert (first.operation, first.collection, first.document_id) == ("insert", "orders", "7")
    assert (first.sequence, first.commit, first.ordinal, first.kind) == (1, 1, 0, Kind.DATA)
    assert isinstance(first.event, ChangeEvent)
    assert first.entry.progress == first.progress
    assert (second.operation, second.document, second.update) == ("delete", None, None)
    assert repr(first) == "<Change 1 insert 'orders'>"


async def test_a_change_outside_a_transaction_has_no_txn_number_never_0_p28(
    log: Log, opened: Open
) -> None:
    await log.append([commit(change(1)), commit(change(2, txn_number=0))])
    async with opened(after=await beginning(log)) as changes:
        first, second = await take(changes, 2)
    assert (first.txn_number, second.txn_number) == (None, 0)


async def test_an_empty_marker_starts_at_the_head_p13(log: Log, opened: Open) -> None:
    await log.append(one_each(1, 5))
    store = MemoryProgress()
    async with opened(store=store) as changes:
        waiting = asyncio.ensure_future(anext(changes))
        await until(lambda: store.marker != "")
        await log.append(one_each(6, 7))
        assert (await waiting).sequence == 6
        assert (await anext(changes)).sequence == 7


async def test_the_start_is_saved_before_the_first_change_so_a_restart_misses_nothing_p15(
    log: Log, opened: Open
) -> None:
    await log.append(one_each(1, 5))
    store = MemoryProgress()
    async with opened(store=store) as changes:
        waiting = asyncio.ensure_future(anext(changes))
        await until(lambda: store.marker != "")
        waiting.cancel()
        await asyncio.wait({waiting})
    await log.append(one_each(6, 7))
    async with opened(store=store) as changes:
        assert sequences(await take(changes, 2)) == [6, 7]


async def test_a_filter_that_matches_nothing_still_moves_the_saved_marker_invariant_5(
    log: Log, opened: Open
) -> None:
    await log.append(one_each(1, 50))
    store = MemoryProgress()
    async with opened(
        after=await beginning(log), collections=["nothing"], store=store, save_interval_seconds=0
    ) as changes:
        waiting = asyncio.ensure_future(anext(changes))
        await until(lambda: store.marker != "" and parse_progress(store.marker).sequence == 50)
        waiting.cancel()
        await asyncio.wait({waiting})


async def test_control_events_come_to_who_asks(log: Log, opened: Open) -> None:
    await log.append([commit(system(1)), commit(schema(2)), commit(change(3))])
    async with opened(after=await beginning(log), control_events=True) as changes:
        assert [one.kind for one in await take(changes, 3)] == [
            Kind.SYSTEM,
            Kind.SCHEMA,
            Kind.DATA,
        ]
    async with opened(after=await beginning(log)) as changes:
        assert (await anext(changes)).sequence == 3


# --- progress never passes an unprocessed change (P30) ------------------------------------------


async def test_the_change_in_hand_is_not_saved_when_its_processing_fails_p30(
    log: Log, opened: Open
) -> None:
    await log.append(one_each(1, 5))
    store = MemoryProgress(await beginning(log))
    seen: list[int] = []

    async def consume() -> None:
        async with opened(store=store) as changes:
            async for one in changes:
                seen.append(one.sequence)
                if one.sequence == 3:
                    raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await consume()
    assert parse_progress(store.marker).sequence == 2
    async with opened(store=store) as changes:
        assert sequences(await take(changes, 3)) == [3, 4, 5]
    assert seen == [1, 2, 3]


async def test_done_saves_the_change_and_those_before_it_before_it_returns_p30(
    log: Log, opened: Open
) -> None:
    await log.append(one_each(1, 5))
    store = MemoryProgress(await beginning(log))
    async with opened(store=store, save_interval_seconds=3600) as changes:
        for expected in range(1, 6):
            one = await anext(changes)
            await one.done()
            assert parse_progress(store.marker).sequence == expected


async def test_with_an_interval_of_0_each_change_is_saved_as_the_next_is_asked_for(
    log: Log, opened: Open
) -> None:
    await log.append(one_each(1, 5))
    store = MemoryProgress(await beginning(log))
    async with opened(store=store, save_interval_seconds=0) as changes:
        for expected in range(5):
            await anext(changes)
            assert parse_progress(store.marker).sequence == expected


async def test_a_processed_change_is_saved_when_the_interval_ends_though_nothing_follows(
    log: Log, opened: Open
) -> None:
    await log.append(one_each(1, 1))
    store = MemoryProgress(await beginning(log))
    async with opened(store=store, save_interval_seconds=0.05) as changes:
        await anext(changes)
        waiting = asyncio.ensure_future(anext(changes))
        await until(lambda: parse_progress(store.marker).sequence == 1)
        waiting.cancel()
        await asyncio.wait({waiting})


# --- what ends a stream -------------------------------------------------------------------------


async def test_a_gap_is_raised_after_everything_before_it_and_its_marker_goes_on(
    log: Log, opened: Open
) -> None:
    await log.append([*one_each(1, 2), commit(system(3, "gap")), *one_each(4, 5)])
    store = MemoryProgress(await beginning(log))
    async with opened(store=store) as changes:
        assert sequences(await take(changes, 2)) == [1, 2]
        with pytest.raises(GapError, match="the oplog was cut") as caught:
            await anext(changes)
    # Saved up to the gap and not past it: only the consumer may say that it has dealt with it.
    assert parse_progress(store.marker).sequence == 2
    async with opened(after=caught.value.after) as changes:
        assert sequences(await take(changes, 2)) == [4, 5]


async def test_a_marker_that_cannot_resume_is_raised_as_its_own_error_and_not_retried_p28(
    log: Log, opened: Open
) -> None:
    await log.append(one_each(1, 20))
    await log.trim(10)
    bounds = await log.bounds()
    cases: dict[str, type[ProgressError]] = {
        "not a marker": MalformedProgressError,
        str(Progress(bounds.log_id ^ 1, 15, 0)): StreamChangedError,
        str(Progress(bounds.log_id, 21, 0)): AheadError,
        str(Progress(bounds.log_id, 5, 0)): TrimmedError,
    }
    for marker, expected in cases.items():
        async with opened(after=marker) as changes:
            with pytest.raises(expected) as caught:
                await anext(changes)
        assert str(caught.value).endswith(".") or isinstance(caught.value, TrimmedError)
        if isinstance(caught.value, TrimmedError):
            async with opened(after=caught.value.oldest) as changes:
                assert (await anext(changes)).sequence == 11


async def test_the_start_is_known_even_from_a_server_that_sends_no_heartbeats_p15(
    log: Log, serve: Serve
) -> None:
    await log.append(one_each(1, 5))
    server = await serve(log, heartbeat_interval=0)
    store = MemoryProgress()
    async with follow(server.address, store=store) as changes:
        waiting = asyncio.ensure_future(anext(changes))
        await until(lambda: store.marker != "")
        waiting.cancel()
        await asyncio.wait({waiting})
    assert parse_progress(store.marker).sequence == 5


# --- over the wire ------------------------------------------------------------------------------


async def test_a_follower_comes_back_to_a_restarted_server_with_nothing_lost_or_repeated(
    log: Log, serve: Serve
) -> None:
    server = await serve(log, batch_events_max=3)
    seen: list[int] = []
    async with follow(server.address, after=await beginning(log), retry=QUICK) as changes:
        for first in range(1, 60, 10):
            await log.append(one_each(first, first + 9))
            seen.extend(sequences(await take(changes, 7)))
            await server.stop(0)
            server = await serve(log, batch_events_max=3, grpc=server.address)
        seen.extend(sequences(await take(changes, 60 - len(seen))))
    assert seen == list(range(1, 61))


async def test_a_server_that_stays_away_is_raised_after_max_retries_with_progress_saved(
    log: Log, serve: Serve
) -> None:
    server = await serve(log)
    await log.append(one_each(1, 3))
    store = MemoryProgress(await beginning(log))
    retry = Retry(initial_seconds=0.01, max_seconds=0.01, max_retries=3)
    async with follow(server.address, store=store, retry=retry) as changes:
        await take(changes, 3)
        await server.stop(0)
        with pytest.raises(ServiceUnavailableError):
            await anext(changes)
        assert parse_progress(store.marker).sequence == 3


@pytest.mark.slow
async def test_restarts_between_which_only_heartbeats_came_are_not_failures_in_a_row(
    log: Log, serve: Serve
) -> None:
    """Of a filter that matches nothing there is no other sign that the service is well."""
    server = await serve(log, heartbeat_interval=0.02)
    store = MemoryProgress(await beginning(log))
    retry = Retry(initial_seconds=1.0, max_retries=2)
    async with follow(server.address, store=store, retry=retry, collections=["rare"]) as changes:
        waiting = asyncio.ensure_future(anext(changes))

        def is_at(sequence: int) -> bool:
            return waiting.done() or parse_progress(store.marker).sequence == sequence

        for restart in range(1, 5):
            await log.append([commit(change(restart))])
            await until(partial(is_at, restart))
            await server.stop(0)
            server = await serve(log, heartbeat_interval=0.02, grpc=server.address)
        await log.append([commit(change(5, collection="rare"))])
        assert (await waiting).sequence == 5


async def test_a_service_that_breaks_whenever_it_has_begun_is_given_up() -> None:
    async with breaking() as address:
        retry = Retry(initial_seconds=0.01, max_seconds=0.01, max_retries=3)
        async with follow(address, retry=retry) as changes:
            with pytest.raises(ServiceUnavailableError):
                await anext(changes)


async def test_a_full_server_is_waited_for(log: Log, serve: Serve) -> None:
    consumers = Consumers()
    server = await serve(log, consumers, max_connections=1)
    after = await beginning(log)
    await log.append(one_each(1, 2))
    async with follow(server.address, after=after, retry=QUICK) as first:
        await anext(first)
        async with follow(server.address, after=after, retry=QUICK) as second:
            waiting = asyncio.ensure_future(anext(second))
            await first.aclose()
            assert (await waiting).sequence == 1


async def test_a_server_that_is_no_penstock_is_raised_not_retried() -> None:
    other = grpc.aio.server()
    port = other.add_insecure_port("127.0.0.1:0")
    await other.start()
    async with follow(f"127.0.0.1:{port}", retry=QUICK) as changes:
        with pytest.raises(RequestError, match="not found"):
            await anext(changes)
    await other.stop(None)


async def test_letting_go_of_a_follower_ends_its_call_at_the_server(log: Log, serve: Serve) -> None:
    consumers = Consumers()
    server = await serve(log, consumers)
    after = await beginning(log)
    await log.append(one_each(1, 2))

    async def look_at_one() -> None:
        async for one in follow(server.address, after=after):
            assert one.sequence == 1
            break

    await look_at_one()
    await until(lambda: not consumers.status().readers)


async def test_documents_of_16_mb_pass(log: Log, serve: Serve) -> None:
    await log.append([commit(change(1, document={"text": "x" * (16 << 20)}))])
    server = await serve(log)
    async with follow(server.address, after=await beginning(log)) as changes:
        one = await anext(changes)
    assert one.document is not None
    assert len(one.document["text"]) == 16 << 20


async def test_progress_in_a_file_leads_a_new_process_on(
    log: Log, serve: Serve, tmp_path: Path
) -> None:
    server = await serve(log)
    after = await beginning(log)
    await log.append(one_each(1, 9))
    path = tmp_path / "progress"
    seen: list[int] = []
    for _ in range(3):
        async with follow(server.address, after=after, store=FileProgress(path)) as changes:
            batch = await take(changes, 3)
            seen.extend(sequences(batch))
            await batch[-1].done()
    assert seen == list(range(1, 10))


async def test_reading_is_as_lazy_as_it_says(log: Log, serve: Serve) -> None:
    """A consumer that stops asking holds two messages, and the rest waits in the server's log."""
    consumers = Consumers()
    server = await serve(log, consumers, batch_events_max=10, outbox_bytes_max=64 << 10)
    after = await beginning(log)
    document = {"text": "x" * 4000}
    for first in range(1, 8000, 500):
        await log.append([commit(change(n, document=document)) for n in range(first, first + 500)])
    async with follow(server.address, after=after) as changes:
        assert (await anext(changes)).sequence == 1
        assert consumers.status().readers[0].sequence < 6000


async def test_readers_of_different_shards_have_every_change_between_them(
    opened: Open, log: Log
) -> None:
    """P24; what Penstock itself says is for every shard."""
    await log.append([*one_each(1, 30), commit(system(31))])
    got: list[int] = []
    for one in range(2):
        shards = Shards(by=("documentId",), count=2, ids=frozenset({one}))
        changes = opened(after=await beginning(log), shards=shards, control_events=True)
        async with changes:
            while (change := await anext(changes)).kind is not Kind.SYSTEM:
                got.append(change.sequence)
    assert sorted(got) == list(range(1, 31))
