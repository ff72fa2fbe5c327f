"""Coalescing over gRPC: who asks and is far behind gets windows, and no one loses anything."""

import asyncio
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import grpc.aio
import msgspec
import pytest
from pydantic import ValidationError

from penstock._generated.penstock.v1 import penstock_pb2 as pb
from penstock.client import MemoryProgress, commits, follow, follow_log, follow_sync
from penstock.errors import RequestError
from penstock.event import Commit, Entry
from penstock.log.config import LogConfig
from penstock.log.lmdb import LmdbLog
from penstock.ports import LogReader
from penstock.progress import parse_progress
from penstock.serve.config import ServeConfig
from penstock.subscribe import Coalescing
from penstock.subscribe.resume import oldest
from penstock.wire import entry_of
from tests.serve.calls import events_until, subscribe, subscribe_batch
from tests.serve.conftest import Log, Serve
from tests.subscribe.deltas import delta
from tests.subscribe.events import commit, system
from tests.subscribe.windows import State, event, folded

Connect = Callable[[str], grpc.aio.Channel]


def workload(count: int, *, documents: int = 20, first: int = 1, seed: int = 0) -> list[Commit]:
    """Commits of up to three changes of few documents: made, updated, deleted and made again."""
    rng = random.Random(seed * 1_000_003 + first)
    alive: set[int] = set()
    made: list[Commit] = []
    position = first
    while position < first + count:
        rows: list[Any] = []
        for ordinal in range(min(rng.randint(1, 3), first + count - position)):
            key = rng.randrange(documents)
            document = {"_id": key, "n": position}
            if key not in alive:
                alive.add(key)
                rows.append(event(position, "insert", key=key, document=document, ordinal=ordinal))
            elif rng.random() < 0.2:
                alive.discard(key)
                rows.append(event(position, "delete", key=key, ordinal=ordinal))
            else:
                update = delta({"n": position})
                rows.append(
                    event(
                        position,
                        "update",
                        key=key,
                        document=document,
                        update=update,
                        ordinal=ordinal,
                    )
                )
            position += 1
        made.append(commit(*rows))
    return made


async def truth(log: LogReader, after: int = 0) -> State:
    """What every change of the log comes to."""
    entries: list[Entry] = []
    while blocks := await log.read(after=after):
        entries += [entry for block in blocks for entry in block.entries()]
        after = blocks[-1].last_sequence
    return folded({}, entries)


async def beginning(log: LogReader) -> str:
    return str(oldest(await log.bounds()))


def decoded(events: Sequence[pb.Event]) -> list[Entry]:
    return [entry_of(one) for one in events]


# --- who gets it --------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("ask", [subscribe, subscribe_batch])
async def test_a_reader_far_behind_that_asks_gets_fewer_events_and_the_same_state_p12(
    log: Log, serve: Serve, connect: Connect, ask: Callable[..., Any]
) -> None:
    await log.append(workload(2000))
    server = await serve(
        log, catch_up_threshold=100, coalesce_window_events=500, batch_events_max=7
    )
    channel, after = connect(server.address), await beginning(log)
    raw = decoded(await events_until(ask(channel, after=after), 2000))
    merged = decoded(await events_until(ask(channel, after=after, coalesce_on_catch_up=True), 2000))
    assert len(raw) == 2000
    assert len(merged) < 300
    assert folded({}, merged) == folded({}, raw) == await truth(log)
    assert sum(max(1, entry.coalesced) for entry in merged) == 2000


async def test_a_reader_that_does_not_ask_gets_every_change_p12(
    log: Log, serve: Serve, connect: Connect
) -> None:
    await log.append(workload(50))
    server = await serve(log, catch_up_threshold=1)
    call = subscribe(connect(server.address), after=await beginning(log))
    assert [one.coalesced for one in await events_until(call, 50)] == [0] * 50


@pytest.mark.parametrize(("threshold", "events"), [(50, 50), (49, 1)])
async def test_exactly_the_threshold_is_as_captured_and_one_more_is_not_p12(
    log: Log, serve: Serve, connect: Connect, threshold: int, events: int
) -> None:
    await log.append(workload(50, documents=1))
    server = await serve(log, catch_up_threshold=threshold)
    call = subscribe(connect(server.address), after=await beginning(log), coalesce_on_catch_up=True)
    found = await events_until(call, 50)
    assert len(found) == events


async def test_an_empty_marker_has_no_history_however_far_behind_the_reader_falls_p13(
    log: Log, serve: Serve, connect: Connect
) -> None:
    await log.append(workload(300))
    server = await serve(log, catch_up_threshold=10)
    call = subscribe(connect(server.address), coalesce_on_catch_up=True)
    await call.initial_metadata()
    await log.append(workload(300, first=301))
    found = decoded(await events_until(call, 600))
    assert min(one.sequence for one in found) > 300
    # Neither history nor a hole: what it stands for is what came since.
    assert sum(max(1, entry.coalesced) for entry in found) == 300
    assert parse_progress(found[0].progress).sequence >= 300


# --- what it says -------------------------------------------------------------------------------


async def test_markers_of_batches_inside_a_window_are_that_of_its_start_p8(
    log: Log, serve: Serve, connect: Connect
) -> None:
    await log.append(workload(200, documents=50))
    server = await serve(log, catch_up_threshold=10, batch_events_max=7)
    after = await beginning(log)
    call = subscribe_batch(connect(server.address), after=after, coalesce_on_catch_up=True)
    progress: list[str] = []
    while not progress or parse_progress(progress[-1]).sequence < 200:
        batch = await call.read()
        assert {one.progress for one in batch.events[:-1]} <= {after}
        assert batch.events[-1].progress == batch.progress
        progress.append(batch.progress)
    assert len(progress) > 5
    assert set(progress[:-1]) == {after}


async def test_the_seeds_dialect_has_plain_numbers_in_merged_events_too(
    log: Log, serve: Serve, connect: Connect, puller_stubs: tuple[Any, Any]
) -> None:
    messages, stubs = puller_stubs
    number = {"$numberLong": "5"}
    await log.append(
        [
            commit(event(1, "update", document={"n": number}, update=delta({"n": number}))),
            commit(event(2, "update", document={"n": number, "m": 1}, update=delta({"m": 1}))),
            commit(event(3, "insert", key=2, document={"n": number})),
        ]
    )
    server = await serve(log, catch_up_threshold=1)
    call = stubs.PullerServiceStub(connect(server.address)).Subscribe(
        messages.SubscribeRequest(after=await beginning(log), coalesce_on_catch_up=True)
    )
    found = [await call.read() for _ in range(2)]
    assert [one.full_document for one in found] == [b'{"n":5,"m":1}', b'{"n":5}']
    assert msgspec.json.decode(found[0].update_description) == delta({"n": 5, "m": 1})
    assert [parse_progress(one.progress).sequence for one in found] == [0, 3]


async def test_skip_is_a_setting_of_the_service_p9(
    log: Log, serve: Serve, connect: Connect
) -> None:
    await log.append(
        [
            commit(event(1, "insert", document={"n": 1})),
            commit(event(2, "delete")),
            commit(event(3, "insert", key=2, document={"n": 1})),
        ]
    )
    for mode, expected in (("delete", [2, 3]), ("skip", [3])):
        server = await serve(log, catch_up_threshold=1, coalesce_insert_delete=mode)
        call = subscribe(
            connect(server.address), after=await beginning(log), coalesce_on_catch_up=True
        )
        assert [one.sequence for one in await events_until(call, 3)] == expected


def test_the_settings_have_the_defaults_that_the_embedded_reader_has() -> None:
    config, default = ServeConfig(), Coalescing()
    assert default == Coalescing(
        threshold=config.catch_up_threshold,
        window_events=config.coalesce_window_events,
        window_bytes=config.coalesce_window_bytes,
        insert_delete=config.coalesce_insert_delete,
    )


@pytest.mark.parametrize(
    "written",
    [
        {"catch_up_threshold": 0},
        {"coalesce_insert_delete": "drop"},
        {"coalesce_window_events": 0},
        {"coalesce_window_bytes": "10 GB"},
    ],
)
def test_a_setting_out_of_its_range_is_refused(written: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ServeConfig.model_validate(written)


# --- our own clients ----------------------------------------------------------------------------


async def test_our_clients_ask_by_default_and_say_of_a_change_what_it_stands_for(
    log: Log, serve: Serve
) -> None:
    await log.append(workload(100, documents=1))
    server = await serve(log, catch_up_threshold=1)
    after = await beginning(log)

    def first_of(coalesce: bool) -> int:
        with follow_sync(server.address, after=after, coalesce_on_catch_up=coalesce) as changes:
            return next(changes).coalesced

    async with follow(server.address, after=after) as changes:
        change = await anext(changes)
    assert (change.coalesced, change.sequence, change.entry.coalesced) == (100, 100, 100)
    assert await asyncio.to_thread(first_of, True) == 100
    async with follow(server.address, after=after, coalesce_on_catch_up=False) as changes:
        assert (await anext(changes)).coalesced == 0
    assert await asyncio.to_thread(first_of, False) == 0


async def test_a_reader_in_the_process_gets_the_same_windows_p17(log: Log) -> None:
    await log.append(workload(100, documents=1))
    after = await beginning(log)
    async with follow_log(log, after=after, coalescing=Coalescing(threshold=1)) as changes:
        assert (await anext(changes)).coalesced == 100
    async with follow_log(log, after=after, coalescing=None) as changes:
        assert (await anext(changes)).coalesced == 0


async def test_whole_commits_are_asked_for_uncoalesced_and_never_told_complete_of_a_window(
    log: Log, serve: Serve
) -> None:
    await log.append(workload(100, documents=1))
    server = await serve(log, catch_up_threshold=1)
    after = await beginning(log)
    async with follow(server.address, after=after, control_events=True) as changes:
        whole = commits(changes)
        rows = [len((await anext(whole)).changes) for _ in range(30)]
    assert sum(rows) > 30
    async with follow(server.address, after=after, control_events=True) as changes:
        assert (await anext(changes)).coalesced == 100
        await log.append(workload(9, first=101))
        late = commits(changes)
        with pytest.raises(RequestError, match="is coalesced"):
            await anext(late)


# --- crashes ------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_consumer_that_crashes_again_and_again_far_behind_ends_with_the_true_state_p8(
    log: Log, serve: Serve
) -> None:
    """Its process dies without a word: what it keeps is its state, and the marker saved last."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    await log.append(workload(3000, documents=60, seed=seed))
    server = await serve(
        log, catch_up_threshold=500, coalesce_window_events=400, batch_events_max=20
    )
    state: State = {}
    saved = await beginning(log)
    head, lives, merged = 3000, 0, 0
    while parse_progress(saved).sequence < head:
        lives += 1
        if lives == 4:
            await log.append([commit(system(9999)), *workload(500, first=10_000, seed=seed)])
            head = 3501
        store = MemoryProgress(saved)
        changes = follow(server.address, store=store, save_interval_seconds=0)
        for _ in range(rng.randint(1, 150)):
            change = await anext(changes)
            state = folded(state, [change.entry])
            merged += change.coalesced > 1
            if parse_progress(change.progress).sequence == head:
                await change.done()
                break
        saved = store.marker  # without what closing saves
        await changes.aclose()
    assert lives > 4
    assert merged > 100
    assert state == await truth(log)


@pytest.mark.slow
async def test_every_acknowledged_change_is_seen_once_while_others_are_appended_p31(
    tmp_path: Path, serve: Serve, connect: Connect
) -> None:
    """Readers that scan while the log is written: merged or not, each change counts once."""
    async with LmdbLog(LogConfig(path=tmp_path / "log")) as log:
        server = await serve(log, catch_up_threshold=40, coalesce_window_events=50)
        after = await beginning(log)
        total = 4000

        async def write() -> None:
            for first in range(1, total, 40):
                await log.append(workload(40, first=first))

        async def read(coalesce: bool) -> int:
            call = subscribe_batch(
                connect(server.address), after=after, coalesce_on_catch_up=coalesce
            )
            found = await events_until(call, total)
            sequences = [one.sequence for one in found]
            assert sequences == sorted(set(sequences))
            return sum(max(1, one.coalesced) for one in found)

        counts = await asyncio.gather(write(), *(read(n % 2 == 0) for n in range(6)))
        assert counts[1:] == [total] * 6
