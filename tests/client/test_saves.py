"""A save that fails, or whose caller gives up, costs no change and moves no marker back (P30)."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client import Following, Retry, commits, follow_log, follow_sync
from penstock.client.change import Received
from penstock.log.memory import MemoryLog
from penstock.subscribe.resume import oldest
from tests.client.test_cursor import message
from tests.serve.conftest import Log, Serve
from tests.subscribe.events import change, commit, one_each
from tests.waiting import until

QUICK = Retry(initial_seconds=0.01, max_seconds=0.02)


class Store:
    """A store whose next saves may fail, or wait for `go_on`; it notes what it must not see."""

    def __init__(self, marker: str = "0") -> None:
        self.markers = [marker]
        self.failures = 0
        self.holding = False
        self.under_way = 0
        self.overlapped = False
        self._go_on = threading.Event()

    def load(self) -> str:
        return self.markers[-1]

    def save(self, marker: str) -> None:
        self.overlapped |= self.under_way > 0
        self.under_way += 1
        try:
            if self.holding:
                self._go_on.wait()
            if self.failures:
                self.failures -= 1
                raise OSError("no space left on device")
            self.markers.append(marker)
        finally:
            self.under_way -= 1

    def hold(self) -> None:
        """Saves from here on wait."""
        self._go_on.clear()
        self.holding = True

    def go_on(self) -> None:
        self.holding = False
        self._go_on.set()


def numbered(store: Store, last: int) -> Following:
    """Changes 1 to `last`, whose markers are their numbers; each processed one is saved."""

    async def connect(after: str) -> AsyncGenerator[Received]:
        yield Received([message(number) for number in range(int(after) + 1, last + 1)], str(last))
        await asyncio.Event().wait()

    return Following(
        connect,
        after="",
        store=store,
        save_interval_seconds=0,
        retry=QUICK,
        whole=True,
    )


async def give_up_while_saving(store: Store, asked: Awaitable[object]) -> None:
    """Cancel `asked` in the midst of its save, which goes on and waits."""
    store.hold()
    asking = asyncio.ensure_future(asked)
    await until(lambda: store.under_way == 1)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking


async def test_a_change_is_not_skipped_when_the_save_before_it_fails_p30() -> None:
    store = Store()
    async with numbered(store, 3) as changes:
        assert (await anext(changes)).sequence == 1
        store.failures = 2
        for _ in range(2):
            with pytest.raises(OSError, match="no space"):
                await anext(changes)
        assert (await anext(changes)).sequence == 2
        assert (await anext(changes)).sequence == 3
    assert store.markers == ["0", "1", "2"]


async def test_a_change_is_not_skipped_when_its_reader_gives_up_during_the_save_p30() -> None:
    store = Store()
    async with numbered(store, 3) as changes:
        assert (await anext(changes)).sequence == 1
        await give_up_while_saving(store, anext(changes))
        asking = asyncio.ensure_future(anext(changes))
        store.go_on()
        assert (await asking).sequence == 2
        assert (await anext(changes)).sequence == 3
    assert store.markers == ["0", "1", "2"]
    assert not store.overlapped


async def test_saves_do_not_overlap_when_one_is_given_up_p30() -> None:
    store = Store()
    async with numbered(store, 3) as changes:
        one, two = await anext(changes), await anext(changes)
        assert store.markers == ["0", "1"]
        del one
        await give_up_while_saving(store, two.done())
        done = asyncio.ensure_future(two.done())
        again = asyncio.ensure_future(anext(changes))
        await asyncio.sleep(0)
        store.go_on()
        await done
        assert store.markers[-1] == "2"
        assert (await again).sequence == 3
    assert not store.overlapped
    assert store.markers == ["0", "1", "2"]


async def test_a_change_processed_during_a_save_is_saved_after_it_p30() -> None:
    store = Store()
    changes = numbered(store, 3)
    changes.confirm_explicitly()
    one, two = await anext(changes), await anext(changes)
    store.hold()
    first = asyncio.ensure_future(one.done())
    await until(lambda: store.under_way == 1)
    second = asyncio.ensure_future(two.done())
    await asyncio.sleep(0)
    store.go_on()
    await asyncio.gather(first, second)
    assert store.markers == ["0", "1", "2"]
    await changes.aclose()


async def test_a_save_that_fails_after_its_reader_gave_up_is_made_again_p30() -> None:
    store = Store()
    async with numbered(store, 2) as changes:
        await anext(changes)
        await give_up_while_saving(store, anext(changes))
        store.failures = 1
        store.go_on()
        await until(lambda: store.under_way == 0)
        with suppress(OSError):  # told to whoever comes while it is under way
            assert (await anext(changes)).sequence == 2
    assert store.markers == ["0", "1"]


async def test_a_load_whose_reader_gave_up_is_the_one_that_the_next_waits_for() -> None:
    store = Store("2")
    loads: list[threading.Event] = []

    def load() -> str:
        loads.append(threading.Event())
        loads[-1].wait()
        return "2"

    store.load = load  # type: ignore[method-assign]
    async with numbered(store, 3) as changes:
        asking = asyncio.ensure_future(anext(changes))
        await until(lambda: len(loads) == 1)
        asking.cancel()
        await asyncio.wait({asking})
        again = asyncio.ensure_future(anext(changes))
        await asyncio.sleep(0)
        loads[0].set()
        assert (await again).sequence == 3
    assert len(loads) == 1


# --- whole commits ------------------------------------------------------------------------------


async def beginning(log: Log) -> str:
    return str(oldest(await log.bounds()))


async def test_a_commit_is_not_skipped_when_its_reader_gives_up_or_a_save_fails_p30(
    log: Log,
) -> None:
    """It must not look like a quiet end, either."""
    pair = commit(change(2), change(3, ordinal=1))
    await log.append([*one_each(1, 1), pair, *one_each(4, 4)])
    store = Store(await beginning(log))
    async with follow_log(
        log, store=store, control_events=True, save_interval_seconds=0
    ) as changes:
        found = commits(changes)
        assert (await anext(found)).commit == 1
        await give_up_while_saving(store, anext(found))
        store.go_on()
        second = await anext(found)
        assert (second.commit, len(second.changes)) == (2, 2)
        store.failures = 1
        with pytest.raises(OSError, match="no space"):
            await anext(found)
        assert (await anext(found)).commit == 3
    assert store.markers[-1] == second.progress
    assert not store.overlapped


async def test_the_part_of_a_commit_that_came_is_kept_when_its_reader_gives_up_p30() -> None:
    waiting, arrive = asyncio.Event(), asyncio.Event()
    blocks = commit(change(1), change(2, ordinal=1), change(3, ordinal=2))
    async with MemoryLog() as log:
        await log.append([blocks])
        (block,) = await log.read(after=0, bytes_max=1 << 20)
        messages = list(block.messages(range(block.start, block.stop)))

        async def connect(_after: str) -> AsyncGenerator[Received]:
            yield Received(messages[:2], "")
            waiting.set()
            await arrive.wait()
            yield Received(messages[2:], "")
            await asyncio.Event().wait()

        store = Store(str(oldest(await log.bounds())))
        changes = Following(
            connect, after="", store=store, save_interval_seconds=0, retry=QUICK, whole=True
        )
        found = commits(changes)
        asking = asyncio.ensure_future(anext(found))
        await waiting.wait()
        asking.cancel()
        await asyncio.wait({asking})
        arrive.set()
        assert len((await anext(found)).changes) == 3
        await changes.aclose()


# --- the sync twin ------------------------------------------------------------------------------


async def test_the_sync_reader_skips_no_change_when_a_save_fails_p30(
    log: Log, serve: Serve
) -> None:
    server = await serve(log)
    store = Store(await beginning(log))
    await log.append(one_each(1, 3))

    def script() -> list[int]:
        with follow_sync(server.address, store=store, save_interval_seconds=0) as changes:
            seen = [next(changes).sequence]
            store.failures = 1
            with pytest.raises(OSError, match="no space"):
                next(changes)
            return [*seen, next(changes).sequence, next(changes).sequence]

    assert await asyncio.to_thread(script) == [1, 2, 3]


# --- all of it, in any order --------------------------------------------------------------------

Asks = st.lists(
    st.sampled_from(["next", "next fails", "give up", "give up, fails", "done", "done, give up"]),
    max_size=25,
)


@given(Asks)
def test_every_change_comes_once_and_the_marker_only_moves_on_whatever_saves_do_p30(
    asks: list[str],
) -> None:
    asyncio.run(consume(asks))


def begun_or_over(store: Store, asking: "asyncio.Future[Any]") -> bool:
    return store.under_way == 1 or asking.done()


async def consume(asks: list[str]) -> None:
    store = Store()
    changes = numbered(store, len(asks) + 1)
    change = await anext(changes)
    seen = [change.sequence]
    for ask in asks:
        processed = seen[-1]  # whoever asks for the next has processed this one
        store.failures = int("fail" in ask)
        if "give up" in ask:
            store.hold()
        asking = asyncio.ensure_future(change.done() if "done" in ask else anext(changes))
        if "give up" in ask:
            await until(partial(begun_or_over, store, asking))
            asking.cancel()
            store.go_on()
        await asyncio.wait({asking})
        if not asking.cancelled() and asking.exception() is None:
            given = asking.result()
            if given is not None:
                change = given
                seen.append(change.sequence)
        assert int(store.markers[-1]) <= processed
    store.failures = 0
    with suppress(OSError):  # of a save that was given up, if it was still under way
        await changes.aclose()
    await changes.aclose()
    assert seen == list(range(1, len(seen) + 1))
    saved = [int(one) for one in store.markers]
    assert saved == sorted(set(saved))
    assert not store.overlapped
