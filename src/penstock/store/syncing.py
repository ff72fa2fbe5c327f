"""Writes that do not wait for the disk, in a file that a power cut cannot damage.

With `sync="none"` LMDB has the kernel write, and waits for nothing (MDB_NOSYNC). The death of the
process loses nothing then. A power cut, or the kernel's own death, may keep any page and lose any
other: file systems do not keep the order of writes in place, and a meta page that was kept may lead
to pages that were lost (lmdb.h: "a system crash can corrupt the database"). MDB_NOMETASYNC has no
such danger, but waits for the disk at every commit, which is what is to be saved. So the store
makes *sync points*:

- The newest snapshot is pinned by a reader, so that none of its pages is written again.
- The file is flushed: all of that snapshot is on the disk, whatever follows.
- The file's two meta pages, as they were then, go into a file of their own, `unsynced`, with the
  name of this run of the kernel. Only then the point before it is let go.

Whoever opens the store for writing and finds the point of another run of the kernel puts the meta
pages back: the store is what it was at that point, whole. What was written later is gone, as from a
store that was restored from a backup, and it is told as there: versions of items are new, consumers
are marked, and positions of what was lost are refused, by their check and the life that wrote them.

A store that was closed, or that is written with `sync="full"`, has no such file.
"""

import os
import struct
import threading
from collections.abc import Generator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final, Literal, NamedTuple

import lmdb
import msgspec
import structlog
import xxhash
from msgspec import Struct

from penstock import kv
from penstock.errors import ConfigError, LogError
from penstock.folders import sync_folder
from penstock.kv import Env, Transaction
from penstock.store.errors import (
    StoreError,
    StorePointError,
    StoreSyncError,
    StoreUnsettledError,
)

SyncMode = Literal["full", "none"]
"""Whether a write is on the disk when it returns, or safe from the death of the process only."""

NAME: Final = "unsynced"
TRANSACTIONS_MAX: Final = 1000
"""After so many the next point is made at once: until then no page is used again."""
BYTES_MAX: Final = 64 << 20
"""And after so many bytes of items and records: transactions may be large."""
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_META_PAGES: Final = 2
_TRANSACTION: Final = struct.Struct("=Q")
_FAILED: Final = ""
"""No run of the kernel: the disk failed, and what can be read is no proof of what is on it."""
_log = structlog.get_logger()


class Point(Struct, frozen=True, array_like=True):
    """What a store can be put back to."""

    boot: str
    """In which run of the kernel there is no need to: what was written since can be read."""
    lost: bool
    """Whether it was put back to here, and the store does not tell of it yet."""
    metas: bytes
    """The first pages of LMDB's file."""


def read_point(path: Path) -> Point | None:
    """The point of the store at `path`; None where there is none. Raises StoreError."""
    try:
        data = (path / NAME).read_bytes()
    except FileNotFoundError:
        return None
    check, body = data[:8], data[8:]
    if xxhash.xxh3_64_digest(body) != check:
        raise StoreError(
            f"{path / NAME} is damaged, so nobody can tell whether the store is whole. Nothing was "
            f"changed. Restore a backup."
        )
    return _decoder.decode(body)


def write_point(path: Path, point: Point) -> None:
    """Keep a point, durably; until then the one before stands."""
    body = _encoder.encode(point)
    unfinished = path / f".{NAME}"
    with unfinished.open("wb") as file:
        file.write(xxhash.xxh3_64_digest(body) + body)
        file.flush()
        os.fsync(file.fileno())
    unfinished.rename(path / NAME)
    sync_folder(path)


def boot_id() -> str:
    """This run of the kernel (random(4)). Raises ConfigError where nothing tells it."""
    try:
        return _BOOT.read_text(encoding="ascii").strip()
    except OSError as error:
        raise ConfigError(
            f"sync = none needs {_BOOT}, which Linux has. Nothing was changed. Use sync = full."
        ) from error


def require_settled(path: Path) -> None:
    """Raise StoreUnsettledError where only a writer can find out what the store holds."""
    point = read_point(path)
    if point is not None and point.boot != boot_id():
        raise StoreUnsettledError(
            f"the machine went down while the store at {path} was written with sync = none, and "
            f"nobody opened it for writing since. Nothing was read. Start its writer: it goes on "
            f"from the last sync, and tells consumers."
        )


def put_back(path: Path) -> bool:
    """Put the store at `path` back to its point if the machine went down since.

    Returns whether writes may be lost and the store does not tell of it yet. Only for the holder of
    the writer's lock, while nobody has the files open; harmless when it is done again.
    """
    point = read_point(path)
    if point is None or point.boot == boot_id():
        return point is not None and point.lost
    with kv.offline(path, kv.STORE):
        with (path / "data.mdb").open("r+b") as file:
            if _newest(file.read(len(point.metas))) < _newest(point.metas):
                raise StoreError(
                    f"data.mdb in {path} is older than {NAME} beside it says: it was put there "
                    f"from elsewhere. Nothing was changed. Restore whole folders; if this file is "
                    f"the one that is wanted, remove {NAME}."
                )
            file.seek(0)
            file.write(point.metas)
            file.flush()
            os.fsync(file.fileno())
        write_point(path, Point(boot_id(), lost=True, metas=point.metas))
    return True


def _newest(metas: bytes) -> int:
    """The newest transaction that LMDB's meta pages know (MDB_page, MDB_meta in mdb.c)."""
    half = len(metas) // _META_PAGES
    found: list[int] = [_TRANSACTION.unpack_from(metas, page * half + 144)[0] for page in (0, 1)]
    return max(found)


class _Taken(NamedTuple):
    """A point that is on its way."""

    pin: Transaction
    point: Point
    written: int
    """How much had been written."""


class Syncing:
    """The points of a store that is open for writing.

    Made before the first write of a process; `settle` says that losses are told in the store.
    """

    def __init__(self, env: Env, mode: SyncMode, *, lost: bool) -> None:
        self._env = env
        self._waits = mode == "full"
        self._lost = lost
        self._boot = boot_id() if lost or not self._waits else ""
        self._turn = threading.Lock()
        """Of whoever makes a point, until it is kept."""
        self._point = read_point(env.path)
        """The one that is kept: at first that of who wrote the store before."""
        self._pin: Transaction | None = None
        self._openings = 0
        """Of LMDB, when the pin was made: it does not outlive one."""
        self._failure: StoreSyncError | None = None
        self._late = False
        """Whether the last point could not be kept, though the disk did not fail."""
        self._written = 0
        self._begun = 0
        """Of what was written, when the newest point was begun."""
        self._bytes = 0
        """Written since the newest point was begun."""
        self._kept = 0
        """Of what was written, when the newest point was begun that is kept."""
        env.set_sync(self._waits)
        if lost or not self._waits:
            self.renew()
        elif self._point is not None:
            self._flush()
            self._forget()

    @property
    def waits(self) -> bool:
        """Whether each write waits for the disk."""
        return self._waits

    @property
    def due(self) -> bool:
        """Whether so much was written that a point should be made now."""
        return not self._waits and (
            self._written - self._begun >= TRANSACTIONS_MAX or self._bytes >= BYTES_MAX
        )

    def settle(self) -> None:
        """What was lost is told in the store."""
        self._written += 1  # how else it began
        if not self._lost:
            return
        self._lost = False
        if self._waits:
            self._forget()
        else:
            self.renew()

    def before_write(self) -> None:
        """Call inside each write transaction, before it writes.

        Raises StoreSyncError, and what `sync` could not keep a point for until it can: what no
        point follows would make the file larger and larger.
        """
        self._require()
        if not self._waits:
            if self._late or self._openings != self._env.openings:
                self.renew()
            self._written += 1

    def wrote(self, bytes_: int) -> None:
        """Call at the end of a write transaction with what it wrote."""
        self._bytes += bytes_

    def sync(self, alone: AbstractContextManager[None]) -> None:
        """Have all that was written before on the disk. Inside `alone` nobody writes.

        Raises StoreSyncError when the disk failed, and then all later writes do; StorePointError
        when the point could not be kept for another reason, and then the one before stands.
        """
        with self._turn:
            pass  # what another thread flushes is waited for here, where no writer waits for us
        with ExitStack() as stack:
            with alone:
                if self._waits:
                    return
                # In this order everywhere: a writer that renews has its turn already.
                stack.enter_context(self._turn)
                self._require()
                if self._kept == self._written:
                    return
                taken = self._take()
            self._keep(taken)

    def renew(self) -> None:
        """As `sync`, for who knows that nobody else writes."""
        with self._turn:
            self._keep(self._take())

    def _take(self) -> _Taken:
        """The newest snapshot, pinned, and what leads to it."""
        self._require()
        with self._trying():
            self._openings, self._begun = self._env.openings, self._written
            self._bytes = 0
            with self._env.read() as txn:
                page_bytes = txn.stat()["psize"]
            pin = self._env.pin()
            try:
                with (self._env.path / "data.mdb").open("rb") as file:
                    metas = file.read(_META_PAGES * page_bytes)
                return _Taken(pin, Point(self._boot, lost=self._lost, metas=metas), self._written)
            except BaseException:
                self._let_go(pin)
                raise

    def _keep(self, taken: _Taken) -> None:
        try:
            self._flush()
            # Should it fail behind its rename, either point may be on the disk. The pin of the
            # older one keeps the pages of both.
            with self._trying():
                write_point(self._env.path, taken.point)
        except BaseException:
            self._let_go(taken.pin)
            raise
        earlier, self._pin, self._point = self._pin, taken.pin, taken.point
        self._kept, self._late = taken.written, False
        self._let_go(earlier)

    @contextmanager
    def _trying(self) -> Generator[None]:
        """What fails inside says nothing of what is on the disk, and may work the next time."""
        try:
            yield
        except BaseException as error:
            self._late = True
            if not isinstance(error, LogError | OSError):
                raise
            raise StorePointError(
                f"the store at {self._env.path} could not be synced ({error}), so until it is, "
                f"nothing more is written. What was written before is kept, unless the machine "
                f"goes down: the sync before stands. Make room for a small file and a few open "
                f"ones; writing goes on by itself."
            ) from error

    def _flush(self) -> None:
        try:
            self._env.flush()
        except LogError as error:
            raise self._failed() from error

    def _failed(self) -> StoreSyncError:
        """Write no more: a flush that failed once may say that all is well the next time."""
        self._failure = StoreSyncError(
            f"the disk failed while the store at {self._env.path} was synced: what was written "
            f"since the sync before may be lost. Nothing more is written. Repair the disk and open "
            f"the store again: it goes on from that sync, and tells consumers."
        )
        _log.error("a store could not be synced", code=self._failure.code)
        if self._point is not None:
            with suppress(OSError):  # the disk has failed already, and this is being said
                write_point(self._env.path, msgspec.structs.replace(self._point, boot=_FAILED))
        return self._failure

    def _require(self) -> None:
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Have everything on the disk, and leave nothing to be put back. Raises StoreSyncError."""
        with self._turn:
            try:
                self._require()
                if not self._waits and not self._lost:
                    self._keep(self._take())
                    self._forget()
            finally:
                self._let_go(self._pin)

    def _forget(self) -> None:
        """Everything is on the disk, and each write waits for it from now on, or none comes."""
        (self._env.path / NAME).unlink()
        sync_folder(self._env.path)
        self._let_go(self._pin)
        self._pin = None

    @staticmethod
    def _let_go(pin: Transaction | None) -> None:
        if pin is not None:
            with suppress(lmdb.Error):  # LMDB was started anew, which has ended it
                pin.abort()


def require_mode(mode: str) -> None:
    """Raise ConfigError for what is no mode."""
    if mode not in {"full", "none"}:
        raise ConfigError(f"sync is full or none, and not {mode!r}. Nothing was opened.")


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Point)
