"""The records of all shards, in an LMDB environment of their own beside the log.

Its only writer is the serve process. What retention must leave alone for shards is written with
them, for the process that trims the log (holding.py).
"""

import asyncio
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Self

import msgspec
import structlog
import xxhash

from penstock.errors import LogFullError, LogLockedError
from penstock.folders import make_folder
from penstock.kv import Env, exists, open_env
from penstock.locks import hold
from penstock.ports import Hold
from penstock.serve.zero.record import ShardRecord, packed, unpacked

log = structlog.get_logger(__name__)

SHARDS: Final = b"shards"
META: Final = b"meta"
HOLDS_KEY: Final = b"holds"
_MAP_BYTES: Final = 1 << 30
_LATER_SECONDS: Final = 0.25
"""An acknowledgement that a crash takes back only holds a little more of the log."""


def shards_path(path: Path) -> Path:
    """Where the records of shards of the log at `path` lie."""
    return path / "zero"


def find_shards(path: Path) -> Env | None:
    """The environment at `path`, to read; None as long as nobody has made it."""
    if not exists(path):
        return None
    env = open_env(path, map_bytes=_MAP_BYTES, create=False)
    if not env.databases([SHARDS, META], create=False):
        env.close()
        return None
    return env


def key_of(who: str, name: str) -> bytes:
    """The key of a shard: of any names, and short."""
    return xxhash.xxh3_128_digest(msgspec.json.encode([who, name]))


class ShardBook:
    """All records, in memory as they are to be written, and written by one task.

    Belongs to one event loop.
    """

    def __init__(
        self,
        env: Env,
        lock: int,
        records: dict[bytes, ShardRecord],
        *,
        hold_seconds: float,
        hold_bytes: int,
    ) -> None:
        self._env = env
        self._lock = lock
        self._records = records
        self._hold_seconds = hold_seconds
        self._hold_bytes = hold_bytes
        self._changed: set[bytes] = set()
        self._waiting: list[asyncio.Future[None]] = []
        self._wake = asyncio.Event()
        self._later: asyncio.TimerHandle | None = None
        self._writer = asyncio.create_task(self._run())

    @classmethod
    async def open(cls, path: Path, *, hold_seconds: float, hold_bytes: int) -> Self:
        """The book of the log at `path`. Raises LogLockedError while another process has it."""
        env, lock, records = await asyncio.to_thread(_open, shards_path(path))
        return cls(env, lock, records, hold_seconds=hold_seconds, hold_bytes=hold_bytes)

    async def close(self) -> None:
        """Write what is to be written, and let go."""
        if self._later is not None:
            self._later.cancel()
        self._writer.cancel()
        await asyncio.wait({self._writer})
        try:
            await self._write()
        except LogFullError as error:
            # They only hold more of the log than they must.
            log.warning("acknowledgements of shards not written", code=error.code)
        finally:
            self._env.close()
            os.close(self._lock)

    @property
    def records(self) -> Mapping[bytes, ShardRecord]:
        """All of them, as they are now."""
        return self._records

    def get(self, key: bytes) -> ShardRecord | None:
        """The record of a shard."""
        return self._records.get(key)

    async def save(self, key: bytes, record: ShardRecord) -> None:
        """Returns once it is durable. Raises LogFullError where there is no space; it is written
        with the next one then."""
        self._take(key, record)
        durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(durable)
        self._wake.set()
        await durable

    def later(self, key: bytes, record: ShardRecord) -> None:
        """Have it written soon."""
        self._take(key, record)
        if self._later is None:
            self._later = asyncio.get_running_loop().call_later(_LATER_SECONDS, self._wake.set)

    async def forget(self, chosen: Callable[[ShardRecord], bool]) -> None:
        """Remove the records that are `chosen`."""
        gone = [key for key, record in self._records.items() if chosen(record)]
        for key in gone:
            del self._records[key]
            self._changed.add(key)
        if gone:
            durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(durable)
            self._wake.set()
            await durable

    def _take(self, key: bytes, record: ShardRecord) -> None:
        self._records[key] = record
        self._changed.add(key)

    async def _run(self) -> None:
        full = False
        while True:
            await self._wake.wait()
            self._wake.clear()
            self._later = None
            waiting, self._waiting = self._waiting, []
            try:
                await self._write()
            except Exception as error:  # whoever waits gets it; a defect too
                for one in waiting:
                    if not one.cancelled():
                        one.set_exception(error)
                # Acknowledgements stay to be written: the next record is, with them, or its writer
                # gets the error. Were this task to end, that one would wait for ever.
                if not full:
                    log.warning("records of shards not written", code=getattr(error, "code", ""))
                full = True
            else:
                full = False
                for one in waiting:
                    if not one.cancelled():
                        one.set_result(None)

    async def _write(self) -> None:
        changed, self._changed = self._changed, set()
        if not changed:
            return
        written = {key: self._records.get(key) for key in changed}
        holds = [self._hold(record) for record in self._records.values()]
        try:
            await asyncio.to_thread(_put, self._env, written, holds)
        except BaseException:
            self._changed |= changed
            raise

    def _hold(self, record: ShardRecord) -> Hold:
        return Hold(
            sequence=record.floor.sequence,
            until_ms=record.seen_at + int(self._hold_seconds * 1000),
            bytes_max=self._hold_bytes,
        )


def _put(env: Env, written: Mapping[bytes, ShardRecord | None], holds: list[Hold]) -> None:
    with env.write() as txn:
        for key, record in written.items():
            if record is None:
                txn.delete(key, db=env[SHARDS])
            else:
                txn.put(key, packed(record), db=env[SHARDS])
        txn.put(HOLDS_KEY, msgspec.json.encode(holds), db=env[META])


def _open(path: Path) -> tuple[Env, int, dict[bytes, ShardRecord]]:
    make_folder(path, mode=0o700)
    lock = hold(
        path / "writer.lock",
        refused=lambda owner: LogLockedError(
            f"process {owner} serves this log to zero-cache and keeps what it knows of shards at "
            f"{path}, which has one writer. Nothing was changed. Stop that process, or remove "
            f"[serve.zero] here."
        ),
    )
    try:
        env = open_env(path, map_bytes=_MAP_BYTES, create=True)
    except BaseException:
        os.close(lock)
        raise
    try:
        env.databases([SHARDS, META], create=True)
        with env.read() as txn, txn.cursor(env[SHARDS]) as cursor:
            records = {bytes(key): unpacked(value) for key, value in cursor}
    except BaseException:
        env.close()
        os.close(lock)
        raise
    return env, lock, records
