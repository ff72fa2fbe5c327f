"""Who reads the log, and how far each one is: kept in memory, published for `penstock status`.

The current rows, which this process keeps as well, say here how they are.

Ordinary consumers keep their own progress; what is written here only tells people. It lies in an
LMDB environment of its own, whose only writer is the serve process, so that capture never waits.
"""

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterable
from pathlib import Path
from typing import Final, Literal

import msgspec
import structlog
from msgspec import Struct

from penstock.client.pipelines import PipelineStatus
from penstock.errors import LogFullError, RequestError
from penstock.kv import Env, exists, open_env
from penstock.serve.access.actions import kept_of
from penstock.serve.access.principals import ANYONE
from penstock.serve.zero.status import ShardStatus
from penstock.subscribe.current import CurrentStatus

log = structlog.get_logger(__name__)

STATUS_INTERVAL_SECONDS: Final = 1.0
KEPT: Final = kept_of("flight report")
TOLD: Final = ""
"""Instead of who reported: the service itself, of a pipeline in its book."""
_DATABASE: Final = b"consumers"
_FILE: Final = "data.mdb"
_STATUS_KEY: Final = b"status"
_MAP_BYTES: Final = 1 << 30


def consumers_path(log: Path) -> Path:
    """Where the serve process writes who reads the log at `log`."""
    return log / "consumers"


class Reader(Struct, kw_only=True, rename="camel"):
    """One connected reader. Its server moves it; all times are Unix milliseconds."""

    consumer_id: str
    """What the reader calls itself; neither unique nor required."""
    protocol: str
    sequence: int
    """Everything up to here was sent to it, or was not what it asked for."""
    events: int = 0
    connected_at: int

    def moved(self, *, sequence: int, events: int) -> None:
        """`events` more were sent, and the reader stands at `sequence`."""
        self.sequence = sequence
        self.events += events


class ReportedProgress(Struct, frozen=True, kw_only=True, rename="camel"):
    """How far something that keeps its own progress says it is; kept over restarts."""

    name: str
    kind: Literal["pipeline"]
    who: str = ""
    """Who said so. Two callers with one name for theirs are two, so none moves another's."""
    sequence: int
    updated_at: int
    moved_at: int = 0
    """When it first said that it is at `sequence`."""
    events_per_second: float | None = None
    """From the place before to this one; None before there were two."""

    def then(self, *, sequence: int, now_ms: int) -> "ReportedProgress":
        """What it says now. The same place said again is no move, so its rate stays."""
        if sequence == self.sequence:
            return msgspec.structs.replace(self, updated_at=now_ms)
        seconds = max(1, now_ms - self.moved_at) / 1000
        moved = sequence - self.sequence
        return msgspec.structs.replace(
            self,
            sequence=sequence,
            updated_at=now_ms,
            moved_at=now_ms,
            # Backwards: it began anew, and there is no rate from one run to another.
            events_per_second=moved / seconds if moved > 0 and self.moved_at else None,
        )


class ConsumersStatus(Struct, frozen=True, kw_only=True, rename="camel"):
    """What was known when it was written."""

    written_at: int
    readers: tuple[Reader, ...] = ()
    """In the order in which they connected."""
    reported: tuple[ReportedProgress, ...] = ()
    """By name."""
    current: CurrentStatus | None = None
    """How the current rows are kept up; None where nobody keeps them."""
    shards: tuple[ShardStatus, ...] = ()
    """Of Zero, those that are remembered; by name."""
    pipelines: tuple[PipelineStatus, ...] = ()
    """Those whose drivers say how they are; by name."""


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class Consumers:
    """The readers of this process. Readers belong to one event loop; `report` takes any thread."""

    def __init__(
        self,
        reported: tuple[ReportedProgress, ...] = (),
        *,
        current: Callable[[], CurrentStatus] | None = None,
        shards: Callable[[], tuple[ShardStatus, ...]] = tuple,
        pipelines: Callable[[], Iterable[PipelineStatus]] = tuple,
        now_ms: Callable[[], int] = _now_ms,
    ) -> None:
        """`reported` is from before a restart; `current` says how the current rows are kept up,
        `shards` how those of Zero are, and `pipelines` how those are."""
        self._current = current
        self._shards = shards
        self._pipelines = pipelines
        self._now_ms = now_ms
        self._readers: dict[int, Reader] = {}
        self._reported = {(one.who, one.kind, one.name): one for one in reported}
        self._lock = threading.Lock()
        self._connections = 0

    @contextlib.contextmanager
    def connected(self, consumer_id: str, protocol: str, *, sequence: int) -> Generator[Reader]:
        """A reader that is listed until the block ends. Two of one name are two readers (P16)."""
        self._connections += 1
        number = self._connections
        reader = Reader(
            consumer_id=consumer_id, protocol=protocol, sequence=sequence, connected_at=_now_ms()
        )
        self._readers[number] = reader
        try:
            yield reader
        finally:
            del self._readers[number]

    def report(self, name: str, kind: Literal["pipeline"], sequence: int, who: str = TOLD) -> None:
        """`name` has everything up to `sequence` in its target, says `who`.

        Raises RequestError for a name that is too long, or one more than are remembered.
        """
        now_ms = self._now_ms()
        with self._lock:
            before = self._reported.get((who, kind, name))
            if before is None:
                self._require_room(name, who, now_ms)
            if who != TOLD and (TOLD, kind, name) in self._reported and not self._has(name):
                # Kept by an earlier Penstock, which did not know who said so: this one did.
                del self._reported[TOLD, kind, name]
            self._reported[who, kind, name] = (
                ReportedProgress(
                    name=name,
                    kind=kind,
                    who=who,
                    sequence=sequence,
                    updated_at=now_ms,
                    moved_at=now_ms,
                )
                if before is None
                else before.then(sequence=sequence, now_ms=now_ms)
            )

    def _has(self, name: str) -> bool:
        """Whether the book of pipelines has this one."""
        return any(one.pipeline == name for one in self._pipelines())

    def _require_room(self, name: str, who: str, now_ms: int) -> None:
        if not name or len(name) > KEPT.name_length_max:
            raise RequestError(
                f"a pipeline's name has 1 to {KEPT.name_length_max} characters. Nothing was "
                f"changed."
            )
        if who == TOLD:
            return  # the book of pipelines has limits of its own
        self._forget_silent(now_ms)
        others = [one for one in self._reported.values() if one.who != TOLD]
        of_one = sum(one.who == who for one in others)
        # Where nobody is asked who they are, all are one caller.
        if len(others) >= KEPT.names_max or (of_one >= KEPT.of_one_max and who != ANYONE.who):
            raise RequestError(
                f"the places of {KEPT.names_max} queries are remembered, of one token "
                f"{KEPT.of_one_max}, and {name} would be one more. Nothing was changed. One that "
                f"says nothing for {KEPT.days:g} days is forgotten."
            )

    def _forget_silent(self, now_ms: int) -> None:
        assert KEPT.days is not None
        since = now_ms - int(KEPT.days * 86_400_000)
        for key, one in tuple(self._reported.items()):
            if one.updated_at < since:
                del self._reported[key]

    def status(self) -> ConsumersStatus:
        """What is known now; a copy."""
        with self._lock:
            self._forget_silent(self._now_ms())
            reported = sorted(
                self._reported.values(), key=lambda one: (one.kind, one.name, one.who)
            )
        readers = tuple(msgspec.structs.replace(one) for one in self._readers.values())
        return ConsumersStatus(
            written_at=_now_ms(),
            readers=readers,
            reported=tuple(reported),
            current=None if self._current is None else self._current(),
            shards=self._shards(),
            pipelines=tuple(self._pipelines()),
        )


@contextlib.asynccontextmanager
async def published(
    path: Path,
    *,
    interval_seconds: float = STATUS_INTERVAL_SECONDS,
    current: Callable[[], CurrentStatus] | None = None,
    shards: Callable[[], tuple[ShardStatus, ...]] = tuple,
    pipelines: Callable[[], Iterable[PipelineStatus]] = tuple,
) -> AsyncGenerator[Consumers]:
    """Consumers whose status is written to `path` at most once an interval, while the block runs.

    Begins with what was reported before a restart. A full disk does not end the block, nor does it
    make its end fail (a status is not worth a reader's stream): it is logged once, and written
    again when there is space. Any other LogError ends the block, and is raised.
    """
    env = await asyncio.to_thread(_open, path)
    try:
        before = await asyncio.to_thread(_read, env)
        reported = before.reported if before is not None else ()
        consumers = Consumers(reported, current=current, shards=shards, pipelines=pipelines)
        writes = _Writes(env, consumers)
        try:
            async with _beside(writes.repeat(interval_seconds)):
                yield consumers
        finally:
            await writes.once()
    finally:
        env.close()


@contextlib.asynccontextmanager
async def _beside(work: Coroutine[None, None, None]) -> AsyncGenerator[None]:
    """Do `work` while the block runs, and no longer. Its error ends the block, and is raised."""
    block = asyncio.current_task()
    assert block is not None
    working = asyncio.create_task(work)
    ended_block = False

    def end_block(done: asyncio.Task[None]) -> None:
        nonlocal ended_block
        if not done.cancelled() and done.exception() is not None:
            ended_block = True
            block.cancel()

    working.add_done_callback(end_block)
    try:
        yield
    except asyncio.CancelledError:
        if not ended_block or block.uncancel():
            raise
    finally:
        working.remove_done_callback(end_block)
        working.cancel()
        await asyncio.wait({working})
    if not working.cancelled():
        working.result()


def read_status(path: Path) -> ConsumersStatus | None:
    """What the serve process wrote last; None if it never did. From any process."""
    if not exists(path):
        return None
    with open_env(path, map_bytes=_MAP_BYTES, create=False) as env:
        if not env.databases([_DATABASE], create=False):
            return None
        return _read(env)


def there_ms(path: Path) -> int:
    """When the serve process was there last, in Unix milliseconds, whether or not its disk took
    what it knew; 0 if it never was. From any process."""
    try:
        return (path / _FILE).stat().st_mtime_ns // 1_000_000
    except OSError:
        return 0


def _open(path: Path) -> Env:
    env = open_env(path, map_bytes=_MAP_BYTES, create=True)
    env.databases([_DATABASE], create=True)
    return env


def _read(env: Env) -> ConsumersStatus | None:
    with env.read() as txn:
        written = txn.get(_STATUS_KEY, db=env[_DATABASE])
    return msgspec.json.decode(written, type=ConsumersStatus) if written else None


def _write(env: Env, status: ConsumersStatus) -> None:
    with env.write() as txn:
        txn.put(_STATUS_KEY, msgspec.json.encode(status), db=env[_DATABASE])


class _Writes:
    """Writes what is known of `consumers`; of a full disk it only says so, once in a row."""

    def __init__(self, env: Env, consumers: Consumers) -> None:
        self._env = env
        self._consumers = consumers
        self._full = False

    async def once(self) -> None:
        """Write it, if there is space."""
        try:
            await asyncio.to_thread(_write, self._env, self._consumers.status())
            self._full = False
        except LogFullError as error:
            if not self._full:
                log.warning("status of consumers not written", code=error.code)
            self._full = True
            with contextlib.suppress(OSError):
                os.utime(self._env.path / _FILE)  # the least that a full disk takes

    async def repeat(self, interval_seconds: float) -> None:
        """Write it at most once an interval."""
        while True:
            await self.once()
            await asyncio.sleep(interval_seconds)
