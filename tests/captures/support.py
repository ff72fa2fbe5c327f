# pyright: reportPrivateUsage=false
"""A session over a log in memory, and what it says in plain words."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncGenerator, Sequence
from functools import partial
from typing import Any

from penstock.event import Commit
from penstock.log.memory import MemoryLog
from penstock.ports import Bounds, LogReader, SourceState
from penstock.subscribe.captures import (
    Boundary,
    Captured,
    Confirmed,
    Finished,
    Hub,
    Limits,
    Maintained,
    Output,
    Session,
    parse_request,
)
from penstock.subscribe.captures.session import UNLIMITED
from penstock.subscribe.scope import EVERYTHING, Scope
from penstock.wire import Block, decode_message
from tests import waiting
from tests.flight.blocks import BlockLog

_ids = itertools.count(1)


@contextlib.asynccontextmanager
async def hubbed(log: LogReader) -> AsyncGenerator[Hub]:
    """A hub that runs while the block does."""
    hub = Hub(log)
    running = asyncio.create_task(hub.run())
    try:
        await hub.ready()
        yield hub
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


@contextlib.asynccontextmanager
async def subscribed(
    log: LogReader,
    *requests: dict[str, Any],
    hub: Hub | None = None,
    scope: Scope = EVERYTHING,
    credit: int = UNLIMITED,
    maintenance_seconds: float = 3600,
) -> AsyncGenerator[Session]:
    """A session with these requests."""
    async with contextlib.AsyncExitStack() as stack:
        hub = await stack.enter_async_context(hubbed(log)) if hub is None else hub
        limits = Limits(maintenance_seconds=maintenance_seconds)
        session = Session(log, hub, scope=scope, limits=limits, credit=credit)
        stack.callback(session.close)
        for given in requests:
            await add(session, given)
        yield session


async def add(session: Session, given: dict[str, Any]) -> str:
    """Add a request, and return its id."""
    request = parse_request(given, new_id=lambda: f"r{next(_ids)}")
    await session.add(request)
    return request.id


async def until(session: Session, enough: int, *, count_max: int = 256) -> list[Output]:
    """What a session says, up to so many captures and edges of transactions."""
    found: list[Output] = []
    while sum(isinstance(one, Captured | Boundary) for one in found) < enough:
        found += await session.next(count_max=count_max)
    return found


async def rest(session: Session) -> list[Output]:
    """What a session says until it waits for what is written later."""
    found: list[Output] = []
    while True:
        saying = asyncio.ensure_future(session.next())
        try:
            await waiting.until(partial(_has_said_or_waits, session, saying))
            if not saying.done():
                return found
            found += await saying
        finally:
            saying.cancel()


async def _has_said_or_waits(session: Session, saying: "asyncio.Future[list[Output]]") -> bool:
    """It waits when it sleeps, as it has taken what there is, and nothing is left to wake it: the
    hub that feeds it, or each of its requests, stands at the end of the log."""
    head = (await session._log.bounds()).head
    places = [place.sequence for place in session.positions().values()]
    stands = session._hub.place.sequence >= head or min(places, default=-1) >= head
    # What was offered to it just now wakes it in the next turn.
    await waiting.turns(10)
    sleeps = bool(session._woken._waiters) and not session._woken.is_set()
    return saying.done() or (stands and sleeps)


def captures(outputs: Sequence[Output]) -> list[tuple[tuple[str, ...], int, str]]:
    """The ids, sequence and operation of what was captured; of an edge, its version for both."""
    found: list[tuple[tuple[str, ...], int, str]] = []
    for one in outputs:
        if isinstance(one, Captured):
            event: Any = decode_message(one.block.message(one.i)).event
            found.append(
                (tuple(sorted(one.ids)), one.block.first_sequence + one.i, str(event.operation))
            )
        elif isinstance(one, Boundary):
            found.append((one.ids, one.version, "begin" if one.begins else "commit"))
    return found


def sequences(outputs: Sequence[Output]) -> list[int]:
    """Of what was captured."""
    return [one.block.first_sequence + one.i for one in outputs if isinstance(one, Captured)]


def confirmed(outputs: Sequence[Output]) -> list[Confirmed]:
    return [one for one in outputs if isinstance(one, Confirmed)]


def finished(outputs: Sequence[Output]) -> list[Finished]:
    return [one for one in outputs if isinstance(one, Finished)]


def maintained(outputs: Sequence[Output]) -> list[Maintained]:
    return [one for one in outputs if isinstance(one, Maintained)]


async def filled(*commits: Commit) -> MemoryLog:
    """A log with these commits, each appended by itself."""
    log = MemoryLog()
    for one in commits:
        await log.append([one])
    return log


class Reader:
    """A log of blocks, read as the port says; what is trimmed is trimmed at once."""

    def __init__(self, log: BlockLog) -> None:
        self._log = log

    async def bounds(self) -> Bounds:
        return self._log.bounds_now()

    async def read(
        self, *, after: int, until: int | None = None, bytes_max: int = 1 << 20
    ) -> list[Block]:
        return self._log.read_now(after=after, until=until, bytes_max=bytes_max)

    async def check_at(self, sequence: int) -> int | None:
        return self._log.check_at_now(sequence)

    async def wait(self, *, after: int, timeout_seconds: float | None = None) -> bool:
        del timeout_seconds
        while self._log.bounds_now().head <= after:  # noqa: ASYNC110 - it rings no bell
            await asyncio.sleep(0.01)
        return True

    async def sources(self) -> list[SourceState]:
        return []
