"""What becomes of a server's history, drawn at random: one model for every source (record 0039).

Each source's tests have the servers for it, a `Deployment`.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from random import Random
from typing import NamedTuple

import msgspec

from penstock.errors import PenstockError
from penstock.event import AnyEvent, ChangeEvent, Fragment, Operation, SystemEvent
from penstock.ports import ChangeSource
from tests.telling import Told, follow
from tests.waiting import until

WRITES_MAX = 40
PAUSE_SECONDS = 0.05
"""Before capture tries again, so that a server that is down is not asked all the time."""


class Write(NamedTuple):
    """One committed write of a row with the columns `id` and `v`."""

    id: int
    v: int | None
    """None where it deletes the row. No two writes of a test write the same."""
    is_new: bool = False

    def __str__(self) -> str:
        return f"{self.id}={self.v}"


class Past(NamedTuple):
    """What a server had at some time."""

    writes: tuple[Write, ...]
    purged: int
    """How many of the writes, from the first, its log may not have any more."""


class Deployment(ABC):
    """A database at one address. What is there at it may be another, or at another time.

    Its methods block. Each returns when what it did can be told from what was before, also by
    seconds.
    """

    acts: tuple[str, ...]
    """What may happen to it: names of `Histories`."""
    forgets = True
    """Whether a server that takes over may lack what the one before it gave to capture, and must
    prove with its log that it does not."""

    @abstractmethod
    def source(self) -> ChangeSource:
        """A source of it, which goes on behind a gap."""

    @abstractmethod
    def is_past(self, position: str) -> bool:
        """Whether everything that is committed now is before `position`."""

    @abstractmethod
    def is_quiet(self, position: str) -> bool:
        """Whether `position` is one that a source has which waits for changes."""

    @abstractmethod
    def write(self, writes: Sequence[Write]) -> None:
        """Commit each, in this order."""

    @abstractmethod
    def write_elsewhere(self) -> None:
        """Commit something that is not captured."""

    @abstractmethod
    def rows(self) -> dict[int, int]:
        """What is there: `v` by `id`."""

    def rotate(self) -> None:
        """Begin another file of its log."""
        raise NotImplementedError

    @abstractmethod
    def purge(self) -> None:
        """Throw away its log of what is committed, as far as it can."""

    def reset(self) -> None:
        """Begin its log anew, with the numbers that it began with before; rows stay."""
        raise NotImplementedError

    @abstractmethod
    def copy(self) -> None:
        """Copy its disk, in place of the copy before."""

    @abstractmethod
    def restore(self) -> None:
        """Put the copy of its disk in place."""

    @abstractmethod
    def replace(self) -> None:
        """Put a server in its place that has had nothing to do with it, and no rows."""

    @abstractmethod
    def replicate(self) -> None:
        """Let another server replicate it, from now on."""

    @abstractmethod
    def hold_back(self) -> None:
        """Let the other one have everything, and no more than that."""

    @abstractmethod
    def promote(self) -> None:
        """Put the other one in its place: once it has everything, unless it was held back."""


def rows_of(writes: Sequence[Write]) -> dict[int, int]:
    """The rows that writes add up to. Each must fit what is there."""
    rows: dict[int, int] = {}
    for write in writes:
        assert (write.id in rows) != write.is_new, f"{write} does not fit"
        if write.v is None:
            del rows[write.id]
        else:
            rows[write.id] = write.v
    return rows


def told_by(events: Sequence[AnyEvent]) -> list[Write]:
    """The writes that changes tell."""
    return [_told(event) for event in events if isinstance(event, ChangeEvent)]


def _told(event: ChangeEvent) -> Write:
    if event.operation is Operation.DELETE:
        return Write(int(event.document_id), None)
    assert event.full_document is not None
    row = msgspec.json.decode(event.full_document)
    return Write(int(event.document_id), row["v"], event.operation is Operation.INSERT)


def _gaps(events: Sequence[AnyEvent]) -> list[int]:
    return [place for place, event in enumerate(events) if event.operation == "gap"]


def _reason(gap: AnyEvent) -> str:
    assert isinstance(gap, SystemEvent)
    return str(msgspec.json.decode(gap.description)["reason"])


class Histories:
    """Draws what becomes of a deployment, and holds what capture tells of it against that.

    A write comes once, in its order; or a gap is told, or that it is another server. Neither is
    told where nothing can have been lost. Behind a gap nothing is missing.
    """

    def __init__(self, server: Deployment, random: Random) -> None:
        self._server = server
        self._random = random
        self._last = 0
        self._now = Past((), 0)
        self._copied: Past | None = None
        self._known: tuple[Write, ...] = ()
        """What the server had when its history and what was told were seen to agree."""
        self._story = Told()
        self._stopped: PenstockError | None = None
        self._harmed = False
        """Whether something may have been lost since then."""
        self._deck: list[str] = []

    async def run(self, rounds: int) -> None:
        """Try so many, from an empty table on."""
        await self._begin()
        for _ in range(rounds):
            await self._round()

    async def _begin(self) -> None:
        """Capture begins, with no position."""
        self._story, self._stopped = Told(), None
        await self._read(lambda story: story.position is not None)
        self._known = self._now.writes

    async def _round(self) -> None:
        heard, self._harmed = len(self._story.items), False
        is_on = self._random.random() < 0.5
        acts = [self._draw() for _ in range(self._random.randint(1, 3))]
        print("capture is", "on:" if is_on else "off:", *acts)
        if is_on:
            async with self._reading() as reading:
                await until(lambda: len(self._story.items) > heard, task=reading)
                for act in acts:
                    await asyncio.to_thread(self._do, act)
                await self._mark(heard, reading)
        else:
            for act in acts:
                await asyncio.to_thread(self._do, act)
        # And once more from its position, for that must be one of what was told.
        await self._mark(heard)
        self._agree([event for item in self._story.items[heard:] for event in item.events])
        if self._stopped is not None:
            # It was given a name of its own.
            await self._begin()
        elif self._random.random() < 0.5:
            await asyncio.to_thread(self._server.write_elsewhere)
            await self._read(lambda story: self._server.is_quiet(story.position or ""))

    def _draw(self) -> str:
        """Each comes as often as another; a short run has some, a long one all of them."""
        if not self._deck:
            self._deck = [*self._server.acts, *["write"] * (len(self._server.acts) // 2)]
            self._random.shuffle(self._deck)
        return self._deck.pop()

    # --- capture --------------------------------------------------------------------------------

    async def _read(self, enough: Callable[[Told], bool]) -> None:
        """Read until it is enough, as a service does: what passes is tried again."""
        source, story = self._server.source(), self._story
        try:
            while self._stopped is None:
                try:
                    await follow(source, story, enough)
                    break
                except PenstockError as error:
                    if not error.transient:
                        self._stopped = error
                while story.items and isinstance(story.items[-1], Fragment):
                    story.items.pop()
                await asyncio.sleep(PAUSE_SECONDS)
        finally:
            await source.close()

    @asynccontextmanager
    async def _reading(self) -> AsyncGenerator[asyncio.Task[None]]:
        """Capture, in a block; behind it, it has crashed."""
        reading = asyncio.create_task(self._read(lambda _: False))
        try:
            yield reading
        finally:
            reading.cancel()
            with suppress(asyncio.CancelledError):
                await reading

    async def _mark(self, heard: int, reading: "asyncio.Task[None] | None" = None) -> None:
        """Write until one is told: capture has reached the end. A gap may swallow one, and it is
        looked at later where one is missing without any."""
        while self._stopped is None:
            mark = await asyncio.to_thread(self._insert)
            gaps = self._gaps(heard)

            def is_told(mark: Write = mark) -> bool:
                items = self._story.items[heard:]
                return any(mark in told_by(item.events) for item in items)

            def is_enough(gaps: int = gaps, is_told: Callable[[], bool] = is_told) -> bool:
                return is_told() or self._gaps(heard) > gaps

            if reading is None:
                await self._read(lambda s: is_enough() or self._server.is_past(s.position or ""))
                if not is_enough():
                    return
            else:
                await until(lambda: is_enough() or self._stopped is not None, task=reading)
            if is_told():
                return

    def _gaps(self, heard: int) -> int:
        return sum(len(_gaps(item.events)) for item in self._story.items[heard:])

    def _agree(self, events: Sequence[AnyEvent]) -> None:
        """See that capture told the server's history, once, or that it lacks some."""
        told, gaps, history = told_by(events), _gaps(events), self._now.writes
        reasons = [_reason(events[gap]) for gap in gaps]
        print("  told", *told, *reasons, self._stopped or "")
        assert self._server.rows() == rows_of(history), "the model of the server is wrong"
        everything = [write for write in told_by(self._story.events) if write.v is not None]
        assert len(everything) == len(set(everything)), "told twice"
        if gaps or self._stopped is not None:
            assert self._harmed, "nothing was lost"
        if gaps and self._stopped is None:
            since = told_by(events[gaps[-1] :])
            assert (*history,)[len(history) - len(since) :] == (*since,), "lost behind a gap"
        elif self._stopped is None:
            assert (*self._known, *told) == history, "lost, or mixed, in silence"
        self._known = history

    # --- what happens to the server -------------------------------------------------------------

    def _do(self, act: str) -> None:
        match act:
            case "write":
                self._write(self._random.randint(1, 5))
            case "rotate":
                self._server.rotate()
            case "purge":
                self._server.purge()
                self._harmed = True
                self._now = self._now._replace(purged=len(self._now.writes))
            case "reset":
                self._server.reset()
                self._became(self._now._replace(purged=len(self._now.writes)))
            case "copy":
                self._copy()
            case "restore":
                if self._copied is None:
                    self._copied = self._copy()
                self._server.restore()
                self._became(self._copied)
            case "replace":
                self._server.replace()
                self._became(Past((), 0))
            case "promote":
                self._server.replicate()
                self._write(self._random.randint(0, 3))
                self._server.promote()
                # Where no log has the last that was told, nothing proves that it is ours.
                self._harmed |= self._server.forgets and len(self._known) <= self._now.purged
            case "promote behind":
                self._promote_behind()
            case _:
                raise AssertionError(act)

    def _copy(self) -> Past:
        self._server.copy()
        self._copied = self._now
        return self._now

    def _promote_behind(self) -> None:
        self._server.replicate()
        self._write(self._random.randint(0, 2))
        self._server.hold_back()
        before = self._now
        self._write(self._random.randint(1, 3))
        self._server.promote()
        self._harmed |= self._server.forgets
        self._now = before

    def _became(self, past: Past) -> None:
        """Another history is there, of which the numbers may come to pass ours."""
        self._harmed, self._now = True, past
        self._write(self._random.choice([0, 1, 5, min(len(self._known) + 5, WRITES_MAX)]))

    def _write(self, count: int) -> None:
        writes = list[Write]()
        for _ in range(count):
            rows = list(rows_of((*self._now.writes, *writes)))
            chance = self._random.random()
            if not rows or chance < 0.6:
                writes.append(self._new())
            elif chance < 0.85:
                writes.append(self._new()._replace(id=self._random.choice(rows), is_new=False))
            else:
                writes.append(Write(self._random.choice(rows), None))
        self._commit(*writes)

    def _insert(self) -> Write:
        write = self._new()
        self._commit(write)
        return write

    def _new(self) -> Write:
        self._last += 1
        return Write(self._last, self._last, is_new=True)

    def _commit(self, *writes: Write) -> None:
        self._server.write(writes)
        self._now = self._now._replace(writes=(*self._now.writes, *writes))
