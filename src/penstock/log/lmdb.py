"""The durable log in LMDB: `LmdbLog` writes it, `LmdbLogReader` reads it from any process."""

import asyncio
import os
import secrets
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final, Self

import structlog

from penstock import kv
from penstock.clocks import Clock, SystemClock
from penstock.disks import refuse_network_filesystem
from penstock.errors import LogError, LogLockedError, OutdatedFormatError
from penstock.event import Commit, Fragment
from penstock.folders import make_folder, sync_folder
from penstock.kv import Env, Transaction
from penstock.locks import hold
from penstock.log.above import beginning
from penstock.log.assemble import Item
from penstock.log.config import LogConfig
from penstock.log.draft import Applied, Draft, load
from penstock.log.formats import require_readable, upgrade
from penstock.log.intake import Intake
from penstock.log.layout import (
    ANCESTORS_KEY,
    BASE_KEY,
    DATABASES,
    ENTRIES,
    FORMAT,
    FORMAT_KEY,
    LOG_ID_KEY,
    META,
    POSITIONS,
    RESTORED_KEY,
    STATE_KEY,
    ancestors_of,
    entry_key,
    pack_ancestors,
    pack_source,
    pack_u64,
    state_of,
    unpack_u64,
)
from penstock.log.reading import LmdbReads
from penstock.log.writer import Writer, durable
from penstock.ports import Above, Ancestor, Bounds, Hold, SourceState
from penstock.wake import Bell, Handler, WakeClient, WakeServer
from penstock.wire import Block

LOCK_NAME: Final = "writer.lock"
_READ_THREADS: Final = 4
_OPEN_POLL_SECONDS: Final = 0.05

_log = structlog.get_logger()


class _AsyncReads(LmdbReads):
    """The async face of the log: what may touch the disk runs in a few threads."""

    def __init__(self, env: Env, *, cache_bytes: int) -> None:
        super().__init__(env, cache_bytes=cache_bytes)
        self._bell = Bell()
        self._pool = ThreadPoolExecutor(_READ_THREADS, thread_name_prefix="penstock-read")

    async def bounds(self) -> Bounds:
        """As `LogReader.bounds`. One small value that is always in memory: no thread needed."""
        return self.bounds_now()

    async def read(
        self, *, after: int, until: int | None = None, bytes_max: int = 1 << 20
    ) -> list[Block]:
        """As `LogReader.read`. A cold read waits for the disk, so it has a thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self._pool, lambda: self.read_now(after=after, until=until, bytes_max=bytes_max)
        )

    async def check_at(self, sequence: int) -> int | None:
        """As `LogReader.check_at`."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, self.check_at_now, sequence)

    async def sources(self) -> list[SourceState]:
        """As `LogReader.sources`."""
        return self.sources_now()

    async def wait(self, *, after: int, timeout_seconds: float | None = None) -> bool:
        """As `LogReader.wait`."""
        return await self._bell.wait(lambda: self._head() > after, timeout_seconds)

    def wait_now(self, *, after: int, timeout_seconds: float | None = None) -> bool:
        """As `wait`, for a thread."""
        return self._bell.wait_now(lambda: self._head() > after, timeout_seconds)

    def _head(self) -> int:
        return self.bounds_now().head


class LmdbLog(_AsyncReads):
    """The log, open for writing. At most one in the world has a given path open.

    Opens, or creates, at once; blocks for a moment. `append` belongs to one event loop. `above`
    says where a log that does not exist yet begins; one that does is opened as it is. `restored`
    says that it is an older copy of itself, so that it draws a new id, as a backup does. With
    `trims` False retention waits for `begin_trimming`: who holds something says so before that.
    Raises LogLockedError when another process writes it, LogFormatError for one of a newer
    Penstock, ConfigError on a network file system, LogFullError when it cannot be created.
    """

    def __init__(
        self,
        config: LogConfig,
        *,
        clock: Clock | None = None,
        above: Above | None = None,
        restored: bool = False,
        trims: bool = True,
    ) -> None:
        self.config = config
        self._clock = clock or SystemClock()
        self.path = config.path.resolve()
        with ExitStack() as undo:
            _make_folder(self.path)
            refuse_network_filesystem(self.path)
            self._lock = lock_log(self.path)
            undo.callback(os.close, self._lock)
            env = kv.open_env(self.path, map_bytes=config.map_bytes, create=True)
            undo.callback(env.close)
            draft = _prepare(env, above, restored=restored, now=self._clock.wall_ms())
            super().__init__(env, cache_bytes=config.cache_bytes)
            self._wake = WakeServer(self.path)
            undo.pop_all()
        self._writer = Writer(
            env, config, self._clock, draft=draft, on_commit=self._committed, trims=trims
        )
        self._intake = Intake(self._submit, stages=self._writer.stages, drop=self._drop_staging)
        self._closed = False

    async def append(self, batch: Sequence[Commit | Fragment]) -> None:
        """As `ChangeLog.append`."""
        if batch:
            await self._intake.append(batch)

    async def position(self, source: str) -> str | None:
        """As `ChangeLog.position`."""
        state = self._writer.sources.get(source)
        return state.position if state else None

    async def abandon(self, source: str) -> None:
        """As `ChangeLog.abandon`. No disk can refuse it: pages are removed in steps, later.

        Raises LogFullError while the log cannot be opened again after the disk failed.
        """
        async with self._intake.turn(source):
            await durable(self._writer.forget(source))

    async def set_position(self, source: str, position: str | None) -> None:
        """As `ChangeLog.set_position`."""

        def change(applied: Applied) -> None:
            applied.set_position(source, position)

        await durable(self._writer.submit(change))

    async def trim(self, until: int) -> None:
        """Remove the entries up to `until`: at once for readers, in steps from the disk.

        A marker at `until` itself still resumes. Raises AheadError beyond the head.
        """
        await durable(
            self._writer.submit(lambda applied: self._writer.trim(applied, until), space=False)
        )

    def retain(self, config: LogConfig) -> None:
        """Keep entries by the retention settings of `config` from now on; the rest of it counts
        only when a log is opened."""
        self._writer.retain(config)

    def held_by(self, look: Callable[[int], Hold | None]) -> None:
        """Leave alone what `look`, told how far the log is trimmed, says is needed, too, whatever
        retention says; None: nothing is.

        Asked on the writer's thread, before anything is trimmed: it must be quick, and not raise.
        """
        self._writer.held_by(look)

    def begin_trimming(self) -> None:
        """All that is held is known: retention may choose from now on."""
        self._writer.begin_trimming()

    def on_request(self, handler: Handler) -> None:
        """Answer the requests of `wake.ask` with `handler`, in the running loop."""
        self._wake.on_request(handler)

    @property
    def age_retention_paused(self) -> bool:
        """Whether the clock is not believed, so that nothing is removed for its age (degraded).

        It was set, or the log was not written for over an hour before it was opened. It goes on
        once the clock is right again, or has gone on for an hour as it is.
        """
        return self._writer.age_paused

    def earliest_ms(self) -> int:
        """The time by which what is held ends (`Trust.earliest_ms`), for whom `held_by` asks."""
        return self._writer.earliest_ms()

    async def sources(self) -> list[SourceState]:
        """As `LogReader.sources`. Raises LogError if the writer's thread died."""
        self._writer.require_alive()
        return await super().sources()

    async def close(self) -> None:
        """Finish what was submitted, and let go of the path."""
        if not self._closed:
            self._closed = True
            await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self._writer.close()
        self._wake.close()
        self._pool.shutdown()
        self._env.close()
        os.close(self._lock)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _head(self) -> int:
        return self._writer.state.head

    def _committed(self) -> None:
        self._wake.ring()
        self._bell.ring()

    async def _submit(self, items: list[Item]) -> Awaitable[None]:
        await self._writer.room.wait(lambda: not self._writer.full(), None)
        size = sum(item.part.events.bytes for item in items)
        return durable(self._writer.submit(lambda applied: applied.append(items), bytes_=size))

    async def _drop_staging(self, name: str) -> None:
        # Of the intake's own, which no other batch can continue. A log that was closed meanwhile
        # drops it when it is opened again.
        with suppress(LogError):
            await durable(self._writer.forget(name))


class LmdbLogReader(_AsyncReads):
    """Reads a log, in the process that writes it or in any other; outlives its writer.

    Opens at once and raises LogError when there is no log yet; `open` waits for one.
    """

    def __init__(self, path: Path, *, cache_bytes: int = 32 << 20) -> None:
        env = open_for_reading(path.resolve())
        super().__init__(env, cache_bytes=cache_bytes)
        self.path = env.path
        self._seen = 0
        self._deaf = False
        self._closed = False
        self._wake = WakeClient(self.path, self._heard)

    @classmethod
    async def open(
        cls, path: Path, *, timeout_seconds: float = 30, cache_bytes: int = 32 << 20
    ) -> Self:
        """Wait until there is a log at `path`. Raises LogError when there is none in time."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_seconds
        while True:
            try:
                return cls(path, cache_bytes=cache_bytes)
            except OutdatedFormatError:
                if loop.time() >= deadline:
                    raise  # capture upgrades it when it starts, and did not
            except LogError as error:
                if type(error) is not LogError:
                    raise
                if loop.time() >= deadline:
                    raise LogError(
                        f"there is still no log at {path} after {timeout_seconds:g} s. Nothing "
                        f"was read. Start `penstock run`, or correct [log] path."
                    ) from error
            await asyncio.sleep(_OPEN_POLL_SECONDS)

    async def close(self) -> None:
        """Let go of the log."""
        if not self._closed:
            self._closed = True
            await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self._wake.close()
        self._pool.shutdown()
        self._env.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _heard(self) -> None:
        try:
            self._look()
        except Exception as error:
            # This thread must outlive it, or nobody is woken again. The readers are woken now, and
            # raise what their own reads raise.
            if not self._deaf:
                self._deaf = True
                _log.warning("the log cannot be read", error=type(error).__name__)
            self._bell.ring()
        else:
            self._deaf = False

    def _look(self) -> None:
        # A restored or compacted log has other files under the same path.
        if self._env.stale():
            with suppress(LogError):  # not complete yet: the next round looks again
                self._swap_env(open_for_reading(self.path))
        head = self._head()
        if head != self._seen:
            self._seen = head
            self._bell.ring()


# --- opening ----------------------------------------------------------------------------------


def _make_folder(path: Path) -> None:
    if not path.is_dir():
        make_folder(path, mode=0o700)


def lock_log(path: Path) -> int:
    """The exclusive lock on the log: a descriptor that holds it until it is closed."""
    return hold(
        path / LOCK_NAME,
        refused=lambda owner: LogLockedError(
            f"process {owner} writes the log at {path}, and a log has one writer. Nothing was "
            f"changed. Stop that process, or give this one a [log] path of its own."
        ),
    )


def _prepare(env: Env, above: Above | None, *, restored: bool, now: int) -> Draft:
    """Create or check the log in `env`, and what the writer starts from."""
    env.databases(DATABASES, create=True)
    with env.write() as txn:
        meta = env[META]
        found = txn.get(FORMAT_KEY, db=meta)
        if found is None:
            _create(txn, env, above, now=now)
        else:
            upgrade(txn, env, found)
        marked = txn.pop(RESTORED_KEY, db=meta) is not None
        if marked or (restored and found is not None):
            # From here on this copy and the log that it was copied from go different ways.
            log_id = unpack_u64(txn.get(LOG_ID_KEY, b"", db=meta))
            ancestors = ancestors_of(txn.get(ANCESTORS_KEY, db=meta))
            head = state_of(txn.get(STATE_KEY, b"", db=meta)).head
            ancestors = (Ancestor(log_id=log_id, head=head), *ancestors)
            txn.put(ANCESTORS_KEY, pack_ancestors(ancestors), db=meta)
            txn.put(LOG_ID_KEY, pack_u64(_new_id()), db=meta)
        draft = load(txn, env)
    sync_folder(env.path)
    return draft


def _create(txn: Transaction, env: Env, above: Above | None, *, now: int) -> None:
    """Write what a new log begins with; all of it in the one transaction that makes it a log."""
    meta = env[META]
    txn.put(FORMAT_KEY, pack_u64(FORMAT), db=meta)
    txn.put(LOG_ID_KEY, pack_u64(_new_id()), db=meta)
    state, blocks = beginning(above, ingested_at=now)
    txn.put(STATE_KEY, state.pack(), db=meta)
    for block in blocks:
        txn.put(entry_key(block.last, block.rows), block.data, db=env[ENTRIES])
    if above is not None:
        txn.put(ANCESTORS_KEY, pack_ancestors(above.ancestors), db=meta)
        txn.put(BASE_KEY, pack_u64(above.head), db=meta)
        for source in above.sources:
            txn.put(source.source.encode(), pack_source(source), db=env[POSITIONS])


def _new_id() -> int:
    return secrets.randbits(64)


def open_for_reading(path: Path) -> Env:
    env = kv.open_env(path, create=False)
    try:
        if not env.databases(DATABASES, create=False):
            raise LogError(f"the log at {path} is not complete yet")
        with env.read() as txn:
            found = txn.get(FORMAT_KEY, db=env[META])
        if found is None:
            raise LogError(f"the log at {path} is not complete yet")
        require_readable(found, path)
    except BaseException:
        env.close()
        raise
    return env
