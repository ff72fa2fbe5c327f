"""What `append` does before the writer: encode, cut what is large, keep each source's order.

Encoding happens in the caller's loop, in slices, so that others run in between; the writer's
thread is then free to write one batch while the next one is encoded.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from itertools import count
from typing import Final

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
        self._order: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._numbers = count()

    async def append(self, batch: Sequence[Commit | Fragment]) -> None:
        """Encode and submit `batch`; returns when it is durable."""
        async with AsyncExitStack() as order:
            # In sorted order, so that two batches of the same sources cannot wait for each other.
            sources = sorted({item.source for item in batch})
            for source in sources:
                await order.enter_async_context(self._order[source])
            staged: list[str] = []
            try:
                items = await self._items(batch, staged)
                done = await self._submit(items)
                if (
                    staged
                    or any(isinstance(item, Fragment) for item in batch)
                    or any(self._stages(source) for source in sources)
                ):
                    # The source's next batch must find this staging settled, one way or the other.
                    await done
                    staged.clear()
                    return
            finally:
                for name in staged:
                    await self._drop(name)
        await done

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
