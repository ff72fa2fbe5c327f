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
from penstock.event import AnyEvent, Commit, Fragment
from penstock.log.assemble import Item
from penstock.wire import EncodedCommit, EncodedEvent, encode_event

EXTENT_BYTES_MIN: Final = 16 << 20
"""A commit that is larger is staged, however it is given."""
_SLICE_EVENTS: Final = 256
_U64: Final = (1 << 64) - 1

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
        # Events that follow fragments belong to the fragments' staging, which only the batch as a
        # whole may touch: if the batch fails, what was staged before must be as it was.
        follows = {item.source for item in batch if self._stages(item.source)}
        items: list[Item] = []
        encoded = 0
        for given in batch:
            staging = given.source
            whole = isinstance(given, Commit) and given.source not in follows
            part = _Part(given)
            for start in range(0, len(given.events), _SLICE_EVENTS):
                if encoded >= _SLICE_EVENTS:
                    encoded = 0
                    await asyncio.sleep(0)
                encoded += part.add(given.events[start : start + _SLICE_EVENTS])
                if whole and part.bytes > EXTENT_BYTES_MIN:
                    if staging == given.source:
                        staging = f"\0{next(self._numbers)}"
                        staged.append(staging)
                    await (await self._submit([Item(staging, part.take(position=None))]))
            if isinstance(given, Commit):
                items.append(Item(staging, part.take(position=given.position)))
                follows.discard(given.source)
            else:
                items.append(Item(staging, part.take(position=None)))
                follows.add(given.source)
        return items


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


class _Part:
    """Events of one commit or fragment, encoded and not yet taken."""

    def __init__(self, given: Commit | Fragment) -> None:
        self._source = given.source
        self._last_timestamp = given.events[-1].timestamp if given.events else 0
        self._events: list[EncodedEvent] = []
        self.bytes = 0

    def add(self, events: Sequence[AnyEvent]) -> int:
        """Encode `events`; returns how many."""
        encoded = [encode_event(event) for event in events]
        self._events += encoded
        self.bytes += sum([len(event.message) + len(event.index) for event in encoded])
        return len(encoded)

    def take(self, *, position: str | None) -> EncodedCommit:
        taken = EncodedCommit(
            source=self._source,
            position=position,
            events=self._events,
            digest=sum([event.check for event in self._events]) & _U64,
            bytes=self.bytes,
            last_timestamp=self._last_timestamp,
        )
        self._events, self.bytes = [], 0
        return taken
