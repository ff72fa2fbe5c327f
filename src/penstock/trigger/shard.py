"""One shard: read ahead by a little, in lanes by item, each lane a batch at a time."""

import asyncio
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, Final

import msgspec
import structlog
import xxhash

from penstock.errors import TriggerError, TriggerTrimmedError
from penstock.trigger.batches import EVENT_BYTES_MAX, Tracker, fitting, take_batch
from penstock.trigger.checkpoints import Checkpoints
from penstock.trigger.config import TriggerConfig
from penstock.trigger.filters import Test
from penstock.trigger.lineage import Place, Shard
from penstock.trigger.records import Record, read_record
from penstock.trigger.streams import (
    ExpiredError,
    NotThereError,
    Page,
    StoppedError,
    Streams,
    TrimmedError,
    stopped_within,
)
from penstock.trigger.windows import Windows

log = structlog.get_logger(__name__)

TRACKED_MAX: Final = 100_000
"""Numbers of records that may wait for one that is unfinished."""

Finished = Callable[[list[str]], Awaitable[None]]
"""Says that the records of these numbers are done."""
Handle = Callable[[tuple[Record, ...], Finished, Windows | None], Awaitable[None]]
"""Handles a batch until all of it is done, or the trigger is to stop; one without records is the
end of the open window."""


class ShardReader:
    """Reads one shard, from its checkpoint to its end."""

    def __init__(
        self,
        shard: Shard,
        *,
        config: TriggerConfig,
        streams: Streams,
        checkpoints: Checkpoints,
        handle: Handle,
        filters: list[Test],
        stop: asyncio.Event,
        counts: Counter[str],
        iterator: str | None = None,
    ) -> None:
        """`stop` is set by this too, when it fails: all shards then finish what is under way.

        `iterator` is where to begin, if it was made already.
        """
        assert checkpoints.stream is not None
        self._shard, self._stream = shard, checkpoints.stream
        self._config, self._streams, self._checkpoints = config, streams, checkpoints
        self._handle, self._filters = handle, filters
        self._stop, self._counts = stop, counts
        self._iterator = iterator
        self._failure: Exception | None = None
        self._lanes = [deque[Record]() for _ in range(config.parallelization_factor)]
        self._tracker = Tracker()
        self._windows = self._windows_of(checkpoints.places[shard.id])
        self._heard_at = time.monotonic()
        """When it told records last."""
        self._is_quiet = False
        """Whether it has told none for so long that the open window is over."""
        self._told_seconds = 0.0
        """Of the newest record that it told, wanted or not; Unix seconds."""
        self._sizes = dict[str, int]()
        """Of the records in hand, by their numbers."""
        self._bytes = 0
        self._is_ended = False
        self._children = tuple[str, ...]()
        """Those that followed it when its end was read."""
        self._changed = asyncio.Condition()

    def _windows_of(self, place: Place) -> Windows | None:
        """Raises TriggerError for a window that would be given up with what was added up."""
        seconds = int(self._config.tumbling_window)
        if seconds:
            return Windows(
                seconds=seconds, shard=self._shard.id, stream=self._stream, window=place.window
            )
        if place.window is not None:
            raise TriggerError(
                f"a window of {place.window.seconds} s is open in the shard {self._shard.id}, and "
                f"windows are not asked for any more. Nothing was read, and its state is kept. "
                f"Start with --tumbling-window {place.window.seconds}s until the function was told "
                f"of its end, or with another --name."
            )
        return None

    async def run(self) -> None:
        """Read and handle, until the shard has ended and all of it is done, or `stop` is set.

        In the first case its checkpoint says so. Raises TriggerTrimmedError.
        """
        stopping = asyncio.create_task(self._wake_at_stop())
        parts = [self._read(), *(self._work(lane) for lane in self._lanes)]
        try:
            await asyncio.gather(*(self._guarded(part) for part in parts))
        finally:
            stopping.cancel()
        if self._failure is not None:
            raise self._failure
        place = self._checkpoints.places[self._shard.id]
        if self._is_ended and not len(self._tracker) and place.window is None:
            done = msgspec.structs.replace(place, done=True, children=self._children)
            await self._checkpoints.put(self._shard.id, done)

    async def _guarded(self, part: Coroutine[Any, Any, None]) -> None:
        """A part that fails stops the others once their calls are over."""
        try:
            await part
        except Exception as error:
            self._failure = self._failure or error
            self._stop.set()

    async def _wake_at_stop(self) -> None:
        await self._stop.wait()
        async with self._changed:
            self._changed.notify_all()

    # --- reading ----------------------------------------------------------------------------------

    async def _read(self) -> None:
        place = self._checkpoints.places[self._shard.id]
        iterator = self._iterator
        while await self._has_room():
            try:
                if iterator is None:
                    place, iterator = await self._open(place)
                page = await self._streams.records(iterator)
            except ExpiredError:
                iterator = None
                continue
            except (TrimmedError, NotThereError):
                left = await self._after_loss()
                if left is None:
                    await self._end()
                    return
                place, iterator = left, None
                continue
            except StoppedError:
                return
            if page.records:
                place = await self._take(page, place)
            iterator = page.then
            if iterator is None:
                with suppress(StoppedError):
                    self._children = await self._followers()
                    await self._end()
                return
            if not page.records:
                await self._be_quiet()
                await stopped_within(self._stop, self._config.poll_interval)

    async def _open(self, place: Place) -> tuple[Place, str]:
        """An iterator at a place, and the place under which it can be had again."""
        shard = self._shard
        match place.kind:
            case "TRIM_HORIZON" if shard.first:
                # A number holds the place for good; what retention takes from now on is then told.
                begin = Place("AT_SEQUENCE_NUMBER", shard.first)
                try:
                    iterator, _ = await self._streams.iterator(self._stream, shard.id, begin)
                except TrimmedError:
                    iterator, _ = await self._streams.iterator(self._stream, shard.id, place)
                    return place, iterator
                await self._keep(begin)
                return begin, iterator
            case _:
                iterator, _ = await self._streams.iterator(self._stream, shard.id, place)
                return place, iterator

    async def _followers(self) -> tuple[str, ...]:
        described = await self._streams.describe(self._stream)
        return tuple(one.id for one in described.shards if one.parent == self._shard.id)

    async def _be_quiet(self) -> None:
        """The shard was asked, and told no records."""
        if self._windows is None:
            return
        quiet_seconds = time.monotonic() - self._heard_at
        async with self._changed:
            self._is_quiet = self._windows.is_over(
                quiet_seconds=quiet_seconds, now_seconds=time.time()
            )
            self._changed.notify_all()

    async def _end(self) -> None:
        """Nothing more comes of the shard."""
        async with self._changed:
            self._is_ended = True
            self._changed.notify_all()

    async def _after_loss(self) -> Place | None:
        """Where to go on when retention was faster, if that is said; else TriggerTrimmedError.

        None if the shard is gone: its children go on with what is left.
        """
        if self._config.on_trimmed == "halt":
            raise TriggerTrimmedError(shard=self._shard.id)
        described = await self._streams.describe(self._stream)
        self._counts["trimmed"] += 1
        log.error(
            "records were removed before they were handled; going on with the oldest that is left",
            shard=self._shard.id,
        )
        if self._shard.id not in {one.id for one in described.shards}:
            return None
        self._shard = self._shard._replace(first="")
        return Place("TRIM_HORIZON")

    async def _take(self, page: Page, place: Place) -> Place:
        """Take a page into the lanes; returns the place behind it."""
        records = [read_record(told, stream=self._stream) for told in page.records]
        is_numbered = place.kind in {"AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER"}
        if not is_numbered and not len(self._tracker):
            # Once a record was seen its number is the place: a restart may not begin behind it.
            first = Place("AT_SEQUENCE_NUMBER", records[0].number)
            await self._keep(first)
        passed = list[str]()
        async with self._changed:
            self._heard_at, self._is_quiet = time.monotonic(), False
            self._told_seconds = max(self._told_seconds, records[-1].arrived_seconds)
            for record in records:
                self._tracker.add(record.number)
                if not self._is_wanted(record):
                    passed.append(record.number)
                    continue
                self._sizes[record.number] = len(record.data)
                self._bytes += len(record.data)
                place_of = xxhash.xxh3_64_intdigest(record.key) % len(self._lanes)
                self._lanes[place_of].append(record)
            self._changed.notify_all()
        self._counts["filtered"] += len(passed)
        await self._finished(passed)
        return Place("AFTER_SEQUENCE_NUMBER", records[-1].number)

    def _is_wanted(self, record: Record) -> bool:
        if not self._filters:
            return True
        told: Any = msgspec.json.decode(record.data)
        return any(matches(told) for matches in self._filters)

    async def _has_room(self) -> bool:
        """Wait until more may be read; False if the trigger is to stop."""
        lanes = len(self._lanes)

        def is_ready() -> bool:
            has_room = (
                len(self._sizes) < self._config.batch_size * lanes
                and self._bytes < EVENT_BYTES_MAX * lanes
                and len(self._tracker) < TRACKED_MAX
            )
            return has_room or self._stop.is_set()

        async with self._changed:
            await self._changed.wait_for(is_ready)
        return not self._stop.is_set()

    # --- handling ---------------------------------------------------------------------------------

    async def _work(self, lane: deque[Record]) -> None:
        while (batch := await self._gather(lane)) is not None:
            await self._handle(batch, self._handled, self._windows)

    async def _gather(self, lane: deque[Record]) -> tuple[Record, ...] | None:
        """The lane's next batch, full or as the time leaves it; empty where the window of time that
        is open has come to its end, and None when there is none more."""
        count_max = self._config.batch_size

        def fit() -> int:
            if self._windows is None:
                return fitting(lane, count_max=count_max)
            count = fitting(lane, count_max=count_max, beside_bytes=self._windows.state_bytes)
            return min(count, self._windows.leading(lane))

        def is_full() -> bool:
            return fit() == count_max or fit() < len(lane) or self._is_over()

        async with self._changed:
            await self._changed.wait_for(
                lambda: bool(lane) or self._is_over() or self._ends_window(lane)
            )
            if self._ends_window(lane) and not self._stop.is_set():
                return ()
            if self._config.batching_window and not is_full():
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._config.batching_window):
                        await self._changed.wait_for(is_full)
            if self._stop.is_set() or not lane:
                return None
            return take_batch(lane, count_max=fit())

    def _ends_window(self, lane: deque[Record]) -> bool:
        windows = self._windows
        if windows is None or windows.open is None:
            return False
        if lane:
            return not windows.has(lane[0])
        # Records that nobody wants end it too.
        return self._is_ended or self._is_quiet or self._told_seconds >= windows.open.end

    def _is_over(self) -> bool:
        return self._is_ended or self._stop.is_set()

    async def _handled(self, numbers: list[str]) -> None:
        """These records are done, and what the function answered counts."""
        await self._finished(numbers, handled=True)

    async def _finished(self, numbers: list[str], *, handled: bool = False) -> None:
        """These records are done: keep the checkpoint behind the lowest that is not."""
        async with self._changed:
            if handled and self._windows is not None:
                self._windows.commit()
            for number in numbers:
                self._bytes -= self._sizes.pop(number, 0)
            reached = self._tracker.finish(numbers)
            if reached is not None:
                # Inside the turn, so that no checkpoint overtakes a later one.
                await self._keep(Place("AFTER_SEQUENCE_NUMBER", reached))
            elif handled and self._windows is not None:
                await self._keep(self._checkpoints.places[self._shard.id])
            self._changed.notify_all()

    async def _keep(self, place: Place) -> None:
        """Keep a place, with the window that is under way there."""
        if self._windows is not None:
            place = msgspec.structs.replace(place, window=self._windows.open)
        await self._checkpoints.put(self._shard.id, place)
