"""What `append` does before the writer: encode, cut what is large, keep each source's order.

Encoding happens in the caller's loop, in slices, so that others run in between; the writer's
thread is then free to write one batch while the next one is encoded.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from itertools import count
from typing import Final

from penstock.errors import LogError, LogFullError
from penstock.event import Commit, Fragment
from penstock.log.assemble import Item
from penstock.wire import Encoded, EncodedCommits, encode, joined

EXTENT_BYTES_MIN: Final = 16 << 20
"""A commit that is larger is staged, however it is given."""
SLICE_EVENTS: Final = 1024
"""So many are encoded before others may run: some milliseconds."""

Submit = Callable[[list[Item]], Awaitable[Awaitable[None]]]
"""Queue items. Awaiting it waits for room; awaiting what it returns waits for durability."""


class Intake:
    """Turns batches into items. One for each log; used in one event loop."""

    def __init__(
        self,
        submit: Submit,
        *,
        stages: Callable[[str], bool],
        drop: Callable[[str], Awaitable[None]],
    ) -> None:
        """`stages` tells whether a source has fragments staged; `drop` forgets a staging."""
        self._submit = submit
        self._stages = stages
        self._drop = drop
        self._orders: defaultdict[str, _Order] = defaultdict(_Order)
        self._numbers = count()

    def turn(self, source: str) -> asyncio.Lock:
        """Held while no batch of `source` is on its way."""
        return self._orders[source].lock

    async def append(self, batch: Sequence[Commit | Fragment]) -> None:
        """Encode and submit `batch`; returns when it is durable.

        Batches of one source become durable one after the other: those that wait behind one that
        fails are not written either, for they would leave a hole where it was.
        """
        # In sorted order, so that two batches of the same sources cannot wait for each other.
        orders = [self._orders[source] for source in sorted({item.source for item in batch})]
        failures = [order.failures for order in orders]
        with ExitStack() as turn:
            for order in orders:
                await order.lock.acquire()
                turn.callback(order.lock.release)
            done: asyncio.Future[None] | None = None
            staged: list[str] = []
            try:
                for order, failed_before in zip(orders, failures, strict=True):
                    order.require(failed_before)
                items = await self._items(batch, staged)
                done = asyncio.ensure_future(await self._submit(items))
                await asyncio.shield(done)
                staged.clear()
            except BaseException as error:
                if done is None or done.done():
                    await _fail(orders, error)
                else:
                    # The caller left, the batch did not: the next one still waits for it.
                    done.add_done_callback(_settling(orders, turn.pop_all()))
                raise
            finally:
                for name in staged:
                    await self._drop(name)

    async def _items(self, batch: Sequence[Commit | Fragment], staged: list[str]) -> list[Item]:
        """The items of `batch`; names of the stagings that it opened go to `staged`."""
        items: list[Item] = []
        rest = 0
        for run in _runs(batch, {one.source for one in batch if self._stages(one.source)}):
            if rest >= SLICE_EVENTS:
                rest = 0
                await asyncio.sleep(0)
            rest += run.events
            if run.whole and run.events <= SLICE_EVENTS:
                commits = run.encoded()
                if commits.events.bytes <= EXTENT_BYTES_MIN:
                    items.append(Item(run.source, commits))
                    continue
            items += [await self._item(given, staged, whole=run.whole) for given in run.items]
        return items

    async def _item(self, given: Commit | Fragment, staged: list[str], *, whole: bool) -> Item:
        """One commit or fragment, slice by slice. A `whole` one is staged once it proves large."""
        staging, size = given.source, 0
        encoded: list[Encoded] = []
        for start in range(0, len(given.events), SLICE_EVENTS):
            if start:
                await asyncio.sleep(0)
            encoded.append(encode(given.events[start : start + SLICE_EVENTS]))
            size += encoded[-1].bytes
            if whole and size > EXTENT_BYTES_MIN:
                if staging == given.source:
                    staging = f"\0{next(self._numbers)}"
                    staged.append(staging)
                await (await self._submit([Item(staging, _part(given, encoded, position=None))]))
                encoded, size = [], 0
        position = given.position if isinstance(given, Commit) else None
        return Item(staging, _part(given, encoded, position=position))


class _Run:
    """Neighbours in a batch that are encoded together: commits of one source, or a lone item."""

    def __init__(self, given: Commit | Fragment, *, whole: bool) -> None:
        self.source = given.source
        self.items = [given]
        self.whole = whole
        """Commits that nothing was staged of."""
        self.events = len(given.events)

    def add(self, given: Commit | Fragment, *, whole: bool) -> bool:
        """Take `given` in, if it belongs here."""
        events = self.events + len(given.events)
        if not (whole and self.whole and given.source == self.source and events <= SLICE_EVENTS):
            return False
        self.items.append(given)
        self.events = events
        return True

    def encoded(self) -> EncodedCommits:
        """Of whole commits."""
        last = self.items[-1]
        assert isinstance(last, Commit)  # `whole` says so
        events = [event for given in self.items for event in given.events]
        return EncodedCommits(
            source=self.source,
            position=last.position,
            events=encode(events),
            rows=[len(given.events) for given in self.items if given.events],
            last_timestamp=events[-1].timestamp if events else 0,
        )


def _runs(batch: Sequence[Commit | Fragment], follows: set[str]) -> list[_Run]:
    """`batch` in its order. `follows` are the sources of which something is staged.

    Events that follow fragments belong to the fragments' staging, which only the batch as a whole
    may touch: if the batch fails, what was staged before must be as it was.
    """
    runs: list[_Run] = []
    for given in batch:
        commit = isinstance(given, Commit)
        whole = commit and given.source not in follows
        if commit:
            follows.discard(given.source)
        else:
            follows.add(given.source)
        if not (runs and runs[-1].add(given, whole=whole)):
            runs.append(_Run(given, whole=whole))
    return runs


def _part(
    given: Commit | Fragment, encoded: Sequence[Encoded], *, position: str | None
) -> EncodedCommits:
    """Events of one commit or fragment."""
    events = joined(encoded)
    return EncodedCommits(
        source=given.source,
        position=position,
        events=events,
        rows=[len(events)] if len(events) else [],
        last_timestamp=given.events[-1].timestamp if given.events else 0,
    )


class _Order:
    """The batches of one source, one after the other."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.failures = 0
        self._failed: BaseException | None = None

    def fail(self, error: BaseException) -> None:
        self.failures += 1
        self._failed = error

    def require(self, failures: int) -> None:
        """Raise if a batch has failed since there were so many `failures`."""
        if self.failures == failures:
            return
        kind = LogFullError if isinstance(self._failed, LogFullError) else LogError
        raise kind(
            "a batch that the same source gave before this one was not kept, so nothing of this "
            "one was written either. Go on from the source's position."
        ) from self._failed


async def _fail(orders: Sequence[_Order], error: BaseException) -> None:
    try:
        if isinstance(error, Exception):
            # Batches that were given before anyone could know come to wait behind this one.
            await asyncio.sleep(0)
    finally:
        for order in orders:
            order.fail(error)


def _settling(
    orders: Sequence[_Order], turn: ExitStack
) -> Callable[["asyncio.Future[None]"], None]:
    """What ends a turn whose caller has left, once its batch is durable or has failed."""

    def settle(done: "asyncio.Future[None]") -> None:
        error = asyncio.CancelledError() if done.cancelled() else done.exception()
        if error is not None:
            for order in orders:
                order.fail(error)
        turn.close()

    return settle
