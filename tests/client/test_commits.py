"""Whole commits: never torn, never incomplete, never saved in part (invariant 3)."""

from collections.abc import AsyncGenerator, Callable

import pytest

from penstock.client import Following, MemoryProgress, Retry, commits, follow, follow_log
from penstock.client.change import Received
from penstock.errors import LogCorruptError, RequestError
from penstock.ports import LogReader
from penstock.progress import parse_progress
from penstock.subscribe.resume import oldest
from tests.serve.conftest import Log, Serve
from tests.subscribe.events import change, commit, one_each, schema


async def beginning(log: LogReader) -> str:
    return str(oldest(await log.bounds()))


async def fill(log: Log) -> None:
    """Three commits of 1, 700 and 2 entries; the second lies in many blocks and messages."""
    large = [change(2, key=key, ordinal=key, document={"text": "x" * 500}) for key in range(700)]
    await log.append([*one_each(1, 1), commit(*large)])
    await log.append([commit(schema(3), change(4, ordinal=1))])


@pytest.mark.slow
async def test_commits_come_whole_and_in_order_through_small_messages(
    log: Log, serve: Serve
) -> None:
    await fill(log)
    server = await serve(log, batch_events_max=7, outbox_bytes_max=64 << 10)
    async with follow(server.address, after=await beginning(log), control_events=True) as changes:
        found = commits(changes)
        sizes = [(one.commit, len(one.changes)) for one in [await anext(found) for _ in range(3)]]
    assert sizes == [(1, 1), (2, 700), (3, 2)]


async def test_progress_moves_by_whole_commits_and_never_past_one_unprocessed_p30(
    log: Log,
) -> None:
    await fill(log)
    store = MemoryProgress(await beginning(log))
    saved: list[int] = []
    async with follow_log(
        log, store=store, control_events=True, save_interval_seconds=0
    ) as changes:
        async for whole in commits(changes):
            saved.append(parse_progress(store.marker).sequence)
            if whole.commit == 3:
                await whole.done()
                assert store.marker == whole.progress
                break
    assert saved == [0, 1, 701]
    assert parse_progress(store.marker).sequence == 703


async def test_a_commit_in_hand_is_not_saved_when_its_processing_fails_p30(log: Log) -> None:
    await fill(log)
    store = MemoryProgress(await beginning(log))

    async def consume() -> None:
        async with follow_log(log, store=store, control_events=True) as changes:
            async for whole in commits(changes):
                if whole.commit == 2:
                    raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await consume()
    assert parse_progress(store.marker).sequence == 1


async def test_a_filtered_stream_cannot_prove_a_commit_and_is_refused(log: Log) -> None:
    for collections, control_events in (["orders"], True), ([], False):
        async with follow_log(
            log, collections=collections, control_events=control_events
        ) as changes:
            with pytest.raises(RequestError, match="complete only with every entry"):
                await anext(commits(changes))


async def test_a_commit_larger_than_the_reader_may_hold_is_refused_before_it_is_held(
    log: Log,
) -> None:
    await fill(log)
    store = MemoryProgress(await beginning(log))
    async with follow_log(log, store=store, control_events=True) as changes:
        found = commits(changes, rows_max=699)
        assert (await anext(found)).commit == 1
        # Again and again: to go on behind it would lose it.
        for _ in range(2):
            with pytest.raises(RequestError, match="700 entries"):
                await anext(found)
    assert parse_progress(store.marker).sequence == 1


async def test_a_start_inside_a_commit_is_refused(log: Log) -> None:
    await fill(log)
    async with follow_log(log, after=await beginning(log)) as changes:
        second = [await anext(changes) for _ in range(2)][-1]
    async with follow_log(log, after=second.progress, control_events=True) as changes:
        with pytest.raises(RequestError, match="inside commit 2, at row 1"):
            await anext(commits(changes))


def tampered(log: Log, tamper: Callable[[list[bytes]], list[bytes]]) -> Following:
    """A reader of everything in `log`, with something between them."""

    async def connect(after: str) -> AsyncGenerator[Received]:
        blocks = await log.read(after=0, bytes_max=1 << 30)
        messages = [
            one for block in blocks for one in block.messages(range(block.start, block.stop))
        ]
        yield Received(tamper(messages), "")

    return Following(
        connect,
        after="",
        store=MemoryProgress(),
        save_interval_seconds=1,
        retry=Retry(),
        whole=True,
    )


async def test_an_entry_altered_on_the_way_fails_the_digest_of_its_commit(log: Log) -> None:
    await fill(log)

    def alter(messages: list[bytes]) -> list[bytes]:
        messages[300] = messages[300].replace(b"xxxx", b"xxyx", 1)
        return messages

    found = commits(tampered(log, alter))
    assert (await anext(found)).commit == 1
    for _ in range(2):
        with pytest.raises(LogCorruptError, match="other contents"):
            await anext(found)


@pytest.mark.parametrize("lost", [1, 300, 700])
async def test_an_entry_lost_on_the_way_is_noticed_wherever_it_was(log: Log, lost: int) -> None:
    await fill(log)
    found = commits(tampered(log, lambda messages: messages[:lost] + messages[lost + 1 :]))
    assert (await anext(found)).commit == 1
    with pytest.raises((LogCorruptError, RequestError)):
        await anext(found)
