"""Source → log: the one loop that every change goes through.

Two tasks share a bounded hand-over: one asks the source for its next commits while the other
appends what has been handed over. So a slow fsync makes batches larger, not capture slower, and a
full hand-over makes the source wait. Nothing is acknowledged before its append returned
(invariant 1), and nothing is kept but what the log holds: after any failure a new pump goes on
from the log's position, and the source sends the rest again.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import Protocol

from msgspec import Struct

from penstock.capture.ending import ended
from penstock.capture.inject import Injector
from penstock.capture.meter import Meter
from penstock.event import ChangeEvent, Commit, Fragment, SystemEvent
from penstock.ports import ChangeLog, ChangeSource

EVENT_BYTES = 400
"""What an event weighs beside its documents: its encoded fields, and the object itself."""


class PumpLimits(Struct, frozen=True, kw_only=True):
    """How much the pump holds at once. The hand-over and the append under way hold this each.

    One item is always taken, however large: a source cuts what is too large into fragments.
    """

    batch_events_max: int = 2_000
    batch_bytes_max: int = 4 << 20


class Gate(Protocol):
    """Where a source waits for its share of the log."""

    @property
    def waiting(self) -> bool: ...

    async def admit(self, size: int) -> None:
        """Wait until an append of about `size` bytes may be made."""
        ...


class PumpProgress:
    """What a pump has done so far: it writes this, and its supervisor reads it."""

    def __init__(self) -> None:
        self.received = 0
        """Commits and fragments that the source yielded, empty commits too."""
        self.appended = 0
        """Of them, how many are durable."""
        self.moved = asyncio.Event()
        """Set once something was made durable."""
        self.opened = False
        """The opening notice is durable."""
        self.waits_for_log = False
        """The hand-over is full: the source is not being asked, so it cannot be called silent."""
        self.as_of_ms: int | None = None
        """Up to which time everything of the source is durable: what it said last, or the time of
        its last event."""

    def kept(self, items: Sequence[Commit | Fragment]) -> None:
        """Say that `items` are durable, too."""
        self.appended += len(items)
        for item in items:
            if isinstance(item, Commit):
                told = item.events[-1].timestamp if item.events else None
                self.as_of_ms = item.as_of_ms or told or self.as_of_ms
        self.moved.set()


async def pump(
    source: ChangeSource,
    log: ChangeLog,
    *,
    limits: PumpLimits | None = None,
    progress: PumpProgress | None = None,
    opening: Callable[[Commit], Commit] | None = None,
    on_notice: Callable[[SystemEvent], None] | None = None,
    injector: Injector | None = None,
    gate: Gate | None = None,
) -> None:
    """Append what `source` yields until it ends, from where the log says that it stands.

    `opening` makes of the first commit the notice that goes right behind it, in the same append:
    a source says its position first (P21), so the notice comes before its first change. `on_notice`
    gets what the source said of itself (a gap, a snapshot's end), once it is durable. `injector` is
    asked behind every append that left no transaction open; the source goes first. Whatever holds
    events, its own too, waits at `gate` before it is appended.

    Whatever the source yielded before it failed is durable before its error is raised here, so
    that a source stopped by an undecodable change has lost nothing that came before it. An error
    of the log is raised at once: its batch was not kept, and is not acknowledged.
    """
    # A transaction that an earlier session left unfinished will be sent again from its start.
    await log.abandon(source.name)
    meter = Meter(source.name)
    hand_over = _HandOver(limits or PumpLimits(), progress or PumpProgress(), meter)
    changes = source.changes(position=await log.position(source.name))
    reader = asyncio.ensure_future(hand_over.fill(changes))
    inject = _Injecting(log, source.name, injector, on_notice, gate, meter)
    try:
        meter.watch(hand_over=lambda: hand_over.waiting, append=lambda: hand_over.taken)
        while (batch := await hand_over.take(seconds_max=inject.asks_again)) != []:
            if batch is None:
                await inject.again(until=lambda: hand_over.waits)
                continue
            await _admitted(batch, gate)
            opened = None if opening is None else _open(batch, opening)
            await _append_whole(log, opened or batch)
            if opened is not None:
                opening, hand_over.progress.opened = None, True
            hand_over.progress.kept(batch)
            meter.durable(batch, since=hand_over.taken_since)
            _tell(batch, on_notice)
            position = last_position(batch)
            if position is not None:
                await source.acknowledge(position)
            inject.stands = batch[-1].position if isinstance(batch[-1], Commit) else None
            await inject.again(until=lambda: hand_over.waits)
        await reader
    finally:
        meter.rest()
        # The error that is on its way out came first; the source will repeat its own.
        await ended(reader)
        if isinstance(changes, AsyncGenerator):
            await changes.aclose()


class _Injecting:
    """Appends what an injector has to add."""

    def __init__(
        self,
        log: ChangeLog,
        source: str,
        injector: Injector | None,
        on_notice: Callable[[SystemEvent], None] | None,
        gate: Gate | None,
        meter: Meter,
    ) -> None:
        self._log = log
        self._source = source
        self._injector = injector
        self._on_notice = on_notice
        self._gate = gate
        self._meter = meter
        self.stands: str | None = None
        """The durable position of the source; None: it is within a transaction."""

    @property
    def asks_again(self) -> float | None:
        """As of an `Injector`."""
        if self._injector is None or self.stands is None:
            return None
        return self._injector.asks_again(self._source)

    async def again(self, *, until: Callable[[], bool]) -> None:
        """Append until there is nothing to add, or `until` says that the source has more."""
        if self._injector is None or self.stands is None:
            return
        while (commits := await self._injector.next(self._source, self.stands)) is not None:
            batch: list[Commit | Fragment] = [*commits]
            if batch:
                await _admitted(batch, self._gate)
                await _append_whole(self._log, batch)
                self._meter.durable(batch)
                _tell(batch, self._on_notice)
            if until():
                return


async def _admitted(batch: list[Commit | Fragment], gate: Gate | None) -> None:
    """Wait at the gate with what holds events: positions alone take no share of the log."""
    size = 0 if gate is None else sum(weight(item) for item in batch if item.events)
    if gate is not None and size:
        await gate.admit(size)


def _tell(batch: list[Commit | Fragment], on_notice: Callable[[SystemEvent], None] | None) -> None:
    if on_notice is not None:
        for notice in notices(batch):
            on_notice(notice)


def _open(
    batch: list[Commit | Fragment], opening: Callable[[Commit], Commit]
) -> list[Commit | Fragment] | None:
    """`batch` with the notice behind its first commit; None if it lies within a transaction."""
    for index, item in enumerate(batch):
        if isinstance(item, Commit):
            return [*batch[: index + 1], opening(item), *batch[index + 1 :]]
    return None


async def _append_whole(log: ChangeLog, batch: list[Commit | Fragment]) -> None:
    """Append, and when cancelled meanwhile, leave only once the log has answered.

    Otherwise the next session could read its position before this append moved it, and append
    the same changes again.
    """
    append = asyncio.ensure_future(log.append(batch))
    try:
        await asyncio.shield(append)
    finally:
        await asyncio.gather(append, return_exceptions=True)


def last_position(batch: list[Commit | Fragment]) -> str | None:
    """Where the source stands once `batch` is durable; None if it is inside a transaction still."""
    return next((item.position for item in reversed(batch) if isinstance(item, Commit)), None)


def notices(batch: list[Commit | Fragment]) -> list[SystemEvent]:
    """What a source says of itself in `batch`: always the one event of its own commit."""
    firsts = [item.events[0] for item in batch if len(item.events) == 1]
    return [event for event in firsts if type(event) is SystemEvent]


def weight(item: Commit | Fragment) -> int:
    """About how many bytes an item takes up in memory and in the log."""
    total = 0
    for event in item.events:
        total += EVENT_BYTES
        if isinstance(event, ChangeEvent):
            total += (
                len(event.full_document or b"")
                + len(event.full_document_before_change or b"")
                + len(event.update_description or b"")
            )
        else:
            total += len(event.description)
    return total


class _HandOver:
    """What the source has yielded and the log has not taken yet; bounded, in order."""

    def __init__(self, limits: PumpLimits, progress: PumpProgress, meter: Meter) -> None:
        self.progress = progress
        self.waiting = 0
        """Events that wait here; an empty commit counts as one."""
        self.taken = 0
        """How many were taken last."""
        self.taken_since: float | None = None
        """When the first change of them came, by `time.perf_counter`; None: there was none."""
        self._meter = meter
        self._since: float | None = None
        self._limits = limits
        self._items: list[Commit | Fragment] = []
        self._bytes = 0
        self._ended = False
        self._arrived = asyncio.Event()
        self._room = asyncio.Event()

    async def fill(self, changes: AsyncIterator[Commit | Fragment]) -> None:
        """Take over everything from `changes`; waits while full. Raises what the source raises."""
        limits = self._limits
        try:
            async for item in changes:
                self.progress.received += 1
                self._items.append(item)
                # An empty commit counts as well, or a burst of them would have no bound.
                self.waiting += len(item.events) or 1
                self._bytes += weight(item)
                if self._since is None and item.events:
                    self._since = time.perf_counter()
                self._arrived.set()
                if self.waiting >= limits.batch_events_max or self._bytes >= limits.batch_bytes_max:
                    self._room.clear()
                    self.progress.waits_for_log = True
                    await self._meter.wait(self._room.wait)
                    self.progress.waits_for_log = False
        finally:
            self._ended = True
            self._arrived.set()

    @property
    def waits(self) -> bool:
        """Whether there is something to take, or nothing will come any more."""
        return bool(self._items) or self._ended

    async def take(self, *, seconds_max: float | None = None) -> list[Commit | Fragment] | None:
        """Everything handed over so far, at least one item; empty once the source has ended. None
        if nothing came for so long."""
        self.taken = 0
        while not self._items and not self._ended:
            self._arrived.clear()
            try:
                async with asyncio.timeout(seconds_max):
                    await self._arrived.wait()
            except TimeoutError:
                return None
        batch, self._items = self._items, []
        self.taken, self.waiting = self.waiting, 0
        self.taken_since, self._since = self._since, None
        self._bytes = 0
        self._room.set()
        return batch
