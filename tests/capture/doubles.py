"""Sources, logs and a clock that a test holds in its hands."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

from msgspec import Raw

from penstock.event import (
    ChangeEvent,
    ClusterTime,
    Commit,
    Entry,
    Fragment,
    Operation,
    SystemEvent,
    event_id,
)
from penstock.log import MemoryLog
from penstock.ports import ChangeLog

SOURCE = "shop"


def commit(n: int, *, rows: int = 1, source: str = SOURCE) -> Commit:
    """The n-th transaction of a source; its position is `n`."""
    return Commit(source=source, position=str(n), events=changes(n, rows, source=source))


def fragment(n: int, *, rows: int = 1, start: int = 0) -> Fragment:
    """Rows of the n-th transaction, from ordinal `start` on, which only a later commit ends."""
    return Fragment(source=SOURCE, events=changes(n, rows, start=start))


def changes(n: int, rows: int, *, start: int = 0, source: str = SOURCE) -> tuple[ChangeEvent, ...]:
    return tuple(
        ChangeEvent(
            event_id=event_id(source, str(n), ordinal),
            source=source,
            database="db",
            tenant="db",
            collection="orders",
            cluster_time=ClusterTime(n, 1),
            timestamp=n * 1000,
            position=str(n),
            document_id=f"{n}/{ordinal}",
            key=Raw(f'{{"_id":"{n}/{ordinal}"}}'.encode()),
            operation=Operation.INSERT,
            full_document=Raw(f'{{"_id":"{n}/{ordinal}","secret":"swordfish"}}'.encode()),
        )
        for ordinal in range(start, start + rows)
    )


class ListSource:
    """A source whose whole story is a list: it resumes after the commit that has the position.

    `before` is awaited before each item; what it raises, the source raises.
    """

    def __init__(
        self,
        story: Sequence[Commit | Fragment],
        *,
        name: str = SOURCE,
        before: Callable[[int], object] = lambda _: None,
    ) -> None:
        self.name = name
        self.story = story
        self.acknowledged: list[str] = []
        self.sessions: list[str | None] = []
        self.closed = False
        self._before = before

    async def changes(self, *, position: str | None) -> AsyncIterator[Commit | Fragment]:
        self.sessions.append(position)
        for index in range(self._index_after(position), len(self.story)):
            pending = self._before(index)
            if asyncio.iscoroutine(pending):
                await pending
            yield self.story[index]

    def _index_after(self, position: str | None) -> int:
        if position is None:
            return 0
        for index in reversed(range(len(self.story))):
            item = self.story[index]
            if isinstance(item, Commit) and item.position == position:
                return index + 1
        raise AssertionError(f"resumed at {position}, where nothing ever was")

    async def acknowledge(self, position: str) -> None:
        self.acknowledged.append(position)

    async def close(self) -> None:
        self.closed = True


class TellingLog(MemoryLog):
    """A log that says what happens to it, in order, and does what `on_append` wants first."""

    def __init__(self, *, on_append: Callable[[int], object] = lambda _: None) -> None:
        super().__init__()
        self.told: list[str] = []
        self.batches: list[list[Commit | Fragment]] = []
        self._on_append = on_append

    async def append(self, batch: Sequence[Commit | Fragment]) -> None:
        self.told.append("append")
        number = len(self.batches)
        self.batches.append(list(batch))
        pending = self._on_append(number)
        if asyncio.iscoroutine(pending):
            await pending
        await super().append(batch)
        self.told.append("durable")

    async def abandon(self, source: str) -> None:
        self.told.append("abandon")
        await super().abandon(source)

    async def position(self, source: str) -> str | None:
        self.told.append("position")
        return await super().position(source)


async def entries(log: ChangeLog, *, after: int = 0) -> list[Entry]:
    """Everything that a log holds beyond `after`."""
    found: list[Entry] = []
    while blocks := await log.read(after=found[-1].sequence if found else after):
        for block in blocks:
            found.extend(block.entries())
    return found


async def captured(log: ChangeLog) -> list[Entry]:
    """What a log holds of the sources: everything but what capture itself said."""
    return [entry for entry in await entries(log) if not isinstance(entry.event, SystemEvent)]


async def said(log: ChangeLog) -> list[tuple[str, str]]:
    """What capture said, in order: (source, operation)."""
    return [
        (entry.event.source, entry.event.operation)
        for entry in await entries(log)
        if isinstance(entry.event, SystemEvent)
    ]


class ManualClock:
    """Time that passes only when a test lets it."""

    def __init__(self) -> None:
        self.seconds = 1_000.0
        self.slept: list[float] = []
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []

    def now_ms(self) -> int:
        return int(self.seconds * 1000)

    def steady_seconds(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        waker: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleepers.append((self.seconds + seconds, waker))
        await waker

    @property
    def waiting(self) -> bool:
        """Whether somebody sleeps."""
        return any(not waker.done() for _, waker in self._sleepers)

    def wake(self) -> None:
        """Let the next sleeper's time come."""
        self._sleepers = [pair for pair in self._sleepers if not pair[1].done()]
        assert self._sleepers, "nobody sleeps, and the condition does not hold"
        self._sleepers.sort(key=lambda pair: pair[0])
        due, waker = self._sleepers.pop(0)
        self.seconds = max(self.seconds, due)
        waker.set_result(None)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Let time pass, from one sleeper's waking to the next, until `condition` holds."""
        while not await self._settled(condition):
            self.wake()

    @staticmethod
    async def _settled(condition: Callable[[], bool]) -> bool:
        """Let everybody who can run do so."""
        for _ in range(50):
            if condition():
                return True
            await asyncio.sleep(0)
        return False
