"""The log in memory: same order, same answers, gone with the process. For tests and demos."""

import asyncio
import secrets
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import NamedTuple, Self

from penstock.clocks import Clock, SystemClock, Trust
from penstock.errors import AheadError, LogError
from penstock.event import Commit, Fragment
from penstock.log.above import beginning
from penstock.log.assemble import Head, Item, Staging, finish, moved, pack_commits, stage
from penstock.log.config import LogConfig
from penstock.log.intake import Intake
from penstock.log.layout import State
from penstock.log.retention import Holdings, Old, due, ends
from penstock.log.view import Reads, View
from penstock.ports import Above, Ancestor, Bounds, Hold, SourceState
from penstock.wake import Bell
from penstock.wire import Block, EncodedCommits, Extent


class _Staged(NamedTuple):
    staging: Staging
    blocks: tuple[tuple[int, bytes], ...]
    """First row and bytes of each block."""


class _Truth(NamedTuple):
    """What the log says; replaced whole, so that a reader in any thread sees all of it or none."""

    state: State
    blocks: list[Block]
    """Only ever appended to, beyond `state.head` first; trimming makes another list."""
    lasts: list[int]
    bytes: int
    sources: dict[str, SourceState]
    stagings: dict[str, _Staged]


class _Origin(NamedTuple):
    """What never changes in a log."""

    log_id: int
    ancestors: tuple[Ancestor, ...]
    base: int


class _View(View):
    def __init__(self, origin: _Origin, truth: _Truth) -> None:
        self.log_id = origin.log_id
        self.state = truth.state
        self._origin = origin
        self._truth = truth

    def bounds(self) -> Bounds:
        origin = self._origin
        return self.state.bounds(origin.log_id, origin.ancestors, base=origin.base)

    def sources(self) -> list[SourceState]:
        return sorted(self._truth.sources.values(), key=lambda state: state.source)

    def blocks(self, after: int) -> Iterator[Block]:
        at = bisect_left(self._truth.lasts, after + 1)
        for block in islice(self._truth.blocks, at, None):
            if block.first_sequence > self.state.head:
                return
            yield block


class MemoryLog(Reads):
    """A `ChangeLog` without a disk: whatever it holds is lost with the process.

    Retention is that of `config`, whose path and disk limits mean nothing here.
    """

    def __init__(
        self,
        config: LogConfig | None = None,
        *,
        clock: Clock | None = None,
        above: Above | None = None,
    ) -> None:
        self.config = config or LogConfig()
        self._clock = clock or SystemClock()
        self._trust = Trust(self._clock)
        self._looks: list[Callable[[int], Hold | None]] = []
        ancestors, base = (above.ancestors, above.head) if above else ((), 0)
        self._origin = _Origin(secrets.randbits(64), ancestors, base)
        self._truth = _begun(above, self._origin.log_id, self._clock.wall_ms())
        self._bell = Bell()
        self._closed = False
        self._intake = Intake(self._submit, stages=self._stages, drop=self._drop)

    # --- reading --------------------------------------------------------------------------------

    @contextmanager
    def snapshot(self) -> Generator[View]:
        yield _View(self._origin, self._truth)

    async def bounds(self) -> Bounds:
        """As `LogReader.bounds`."""
        return self.bounds_now()

    async def read(
        self, *, after: int, until: int | None = None, bytes_max: int = 1 << 20
    ) -> list[Block]:
        """As `LogReader.read`."""
        return self.read_now(after=after, until=until, bytes_max=bytes_max)

    async def check_at(self, sequence: int) -> int | None:
        """As `LogReader.check_at`."""
        return self.check_at_now(sequence)

    async def sources(self) -> list[SourceState]:
        """As `LogReader.sources`."""
        return self.sources_now()

    async def wait(self, *, after: int, timeout_seconds: float | None = None) -> bool:
        """As `LogReader.wait`."""
        return await self._bell.wait(lambda: self._truth.state.head > after, timeout_seconds)

    def wait_now(self, *, after: int, timeout_seconds: float | None = None) -> bool:
        """As `wait`, for a thread."""
        return self._bell.wait_now(lambda: self._truth.state.head > after, timeout_seconds)

    # --- writing --------------------------------------------------------------------------------

    async def append(self, batch: Sequence[Commit | Fragment]) -> None:
        """As `ChangeLog.append`, but for surviving a power cut."""
        if batch:
            await self._intake.append(batch)

    async def position(self, source: str) -> str | None:
        """As `ChangeLog.position`."""
        state = self._truth.sources.get(source)
        return state.position if state else None

    async def abandon(self, source: str) -> None:
        """As `ChangeLog.abandon`."""
        async with self._intake.turn(source):
            await self._drop(source)

    async def _drop(self, name: str) -> None:
        rest = {key: staged for key, staged in self._truth.stagings.items() if key != name}
        self._truth = self._truth._replace(stagings=rest)

    async def set_position(self, source: str, position: str | None) -> None:
        """As `ChangeLog.set_position`."""
        sources = dict(self._truth.sources)
        if position is None:
            sources.pop(source, None)
        else:
            sources[source] = moved(
                sources.get(source),
                source,
                position=position,
                now=self._clock.wall_ms(),
            )
        self._truth = self._truth._replace(sources=sources)

    def held_by(self, look: Callable[[int], Hold | None]) -> None:
        """As `LmdbLog.held_by`."""
        self._looks.append(look)

    def earliest_ms(self) -> int:
        """As `LmdbLog.earliest_ms`."""
        return self._trust.earliest_ms()

    async def trim(self, until: int) -> None:
        """As `LmdbLog.trim`."""
        state = self._truth.state
        if until > state.head:
            raise AheadError(sequence=until, head=state.head)
        if until > state.trimmed:
            self._trim(until, self.check_at_now(until) or 0)

    async def close(self) -> None:
        """Refuse further appends. What is held can still be read."""
        self._closed = True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _stages(self, key: str) -> bool:
        return key in self._truth.stagings

    async def _submit(self, items: list[Item]) -> Awaitable[None]:
        if self._closed:
            raise LogError("this log is closed; nothing was written")
        truth, log_id = self._truth, self._origin.log_id
        newest_ms = truth.blocks[-1].ingested_at if truth.blocks else 0
        came_ms = max(newest_ms, self._trust.came_ms())
        self._truth = _appended(truth, items, log_id, came_ms, self._clock.wall_ms())
        self._retain()
        self._bell.ring()
        return _done()

    def _retain(self) -> None:
        truth = self._truth
        held = Holdings(truth.state.head, truth.bytes)
        now = self._clock.wall_ms() if self._trust.trusted() else None
        holds = [hold for look in self._looks if (hold := look(truth.state.trimmed)) is not None]
        old = due(_candidates(truth), config=self.config, held=held, now=now, holds=holds)
        if old is not None:
            self._trim(old.sequence, old.check)

    def _trim(self, until: int, check: int) -> None:
        truth = self._truth
        gone = bisect_left(truth.lasts, until + 1)
        self._truth = truth._replace(
            state=truth.state._replace(trimmed=until, trimmed_check=check),
            blocks=truth.blocks[gone:],
            lasts=truth.lasts[gone:],
            bytes=truth.bytes - sum(block.nbytes for block in truth.blocks[:gone]),
        )


def _begun(above: Above | None, log_id: int, now: int) -> _Truth:
    """The truth of a new log."""
    state, packed = beginning(above, ingested_at=now)
    blocks = [
        Block(one.data, log_id=log_id, first_sequence=one.last - one.rows + 1) for one in packed
    ]
    lasts = [block.last_sequence for block in blocks]
    sources = {one.source: one for one in above.sources} if above else {}
    return _Truth(state, blocks, lasts, sum(block.nbytes for block in blocks), sources, {})


async def _done() -> None:
    """What is in memory is as durable as it will be; who appends in a loop lets others run."""
    await asyncio.sleep(0)


def _candidates(truth: _Truth) -> Iterator[Old]:
    gone = 0
    for block in truth.blocks:
        yield from ends(block, trimmed=truth.state.trimmed, gone=gone, bytes_=block.nbytes)
        gone += block.nbytes


def _appended(truth: _Truth, items: list[Item], log_id: int, came_ms: int, now: int) -> _Truth:
    """The truth after `items`. Whatever raises, raises before anything is seen of them."""
    state = truth.state
    head = Head(state.head, state.head_commit, state.head_check)
    sources, stagings = dict(truth.sources), dict(truth.stagings)
    blocks: list[Block] = []
    inline: list[EncodedCommits] = []

    def flush() -> None:
        nonlocal head
        packed, head = pack_commits(inline, after=head, ingested_at=came_ms)
        inline.clear()
        for block in packed:
            first = block.last - block.rows + 1
            blocks.append(Block(block.data, log_id=log_id, first_sequence=first))

    for name, part in items:
        staged = stagings.get(name)
        commits, rows, last_timestamp = len(part.rows), len(part.events), part.last_timestamp
        if part.position is None or staged is not None:
            staged = _staged(staged or _Staged(Staging(extent=0), ()), part)
            if part.position is None:
                stagings[name] = staged
                continue
            del stagings[name]
            commits, rows, last_timestamp = 0, 0, staged.staging.last_timestamp
            if len(staged.staging.held):
                flush()
                published, head = _published(staged, head, log_id, came_ms)
                blocks += published
                commits, rows = 1, published[-1].last_sequence - published[0].first_sequence + 1
        else:
            inline.append(part)
        sources[part.source] = moved(
            sources.get(part.source),
            part.source,
            position=part.position,
            commits=commits,
            events=rows,
            last_timestamp=last_timestamp,
            now=now,
        )
    flush()
    truth.blocks.extend(blocks)
    truth.lasts.extend(block.last_sequence for block in blocks)
    return truth._replace(
        state=state._replace(head=head.sequence, head_commit=head.commit, head_check=head.check),
        bytes=truth.bytes + sum(block.nbytes for block in blocks),
        sources=sources,
        stagings=stagings,
    )


def _staged(staged: _Staged, part: EncodedCommits) -> _Staged:
    packed, staging = stage(staged.staging, part)
    added = tuple((block.last - block.rows + 1, block.data) for block in packed)
    return _Staged(staging, staged.blocks + added)


def _published(staged: _Staged, head: Head, log_id: int, now: int) -> tuple[list[Block], Head]:
    done = finish(staged.staging)
    last = (done.block.last - done.block.rows + 1, done.block.data)
    extent = Extent(head.commit + 1, done.summary, now, head.check)
    blocks = [
        Block(data, log_id=log_id, first_sequence=head.sequence + row, extent=extent)
        for row, data in (*staged.blocks, last)
    ]
    return blocks, done.head(head)
