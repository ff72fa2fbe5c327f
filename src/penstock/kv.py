"""LMDB environments: one handle per path and process, and the rules for living with LMDB.

LMDB refuses a second handle on the same files in one process, so handles are shared and counted:
a writer and any number of readers in one process hold the same `Env`. Whatever LMDB raises becomes
one of our errors here, and nowhere else.

Sources of the facts: the comments of `lmdb.h` (0.9) and py-lmdb's documentation.
"""

import errno
import fcntl
import os
import threading
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, Self

import lmdb

from penstock.disks import refuse_network_filesystem, space
from penstock.errors import (
    LogCorruptError,
    LogError,
    LogFormatError,
    LogFullError,
    LogLockedError,
)
from penstock.folders import make_folder
from penstock.lmdb_pages import cut

if TYPE_CHECKING:
    Transaction = lmdb.Transaction[bytes]
else:
    Transaction = lmdb.Transaction  # generic only in its type stubs

MAP_BYTES: Final = 1 << 40
"""Address space, not disk: the file is sparse and grows as it is written."""
READERS_MAX: Final = 1024
_LOCK_BYTES: Final = (READERS_MAX + 2) * 64
"""A reader's slot is a cache line; two lines come first (MDB_txninfo in LMDB's mdb.c)."""
_DATABASES_MAX: Final = 16
_META_PAGES: Final = 2
_SNAPSHOT_AGE_MAX: Final = 16
"""Transactions. A snapshot that is older is not one of the short ones, and pins pages."""
_SET_SYNC_SECONDS_MAX: Final = 30.0
_REUSE_BYTES_MIN: Final = 1 << 20
_LAST_PART: Final = 8
"""Of a floor: so much is left to what makes room."""
_GROWTH_BYTES_MAX: Final = 1 << 20
_NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EFBIG})


class _Floor(NamedTuple):
    """A file as it was when its disk came to its floor, or last had room inside."""

    pages: int
    reusable_bytes: int


class Kind(NamedTuple):
    """What an environment is to its user, and what he can do about it, as sentences of errors."""

    name: str
    make_room: str
    free_disk: str
    mend: str
    users: str


LOG: Final = Kind(
    name="log",
    make_room="Raise map_bytes and restart, or lower the retention limits.",
    free_disk="Make space; writing goes on by itself.",
    mend="Run `penstock log check`, then restore a backup.",
    users="Stop `penstock run` and whoever else reads it, and try again.",
)
STORE: Final = Kind(
    name="store",
    make_room="Delete items, or keep less of its streams; writing goes on by itself.",
    free_disk="Prune streams, drop tables or delete items, which is still done, or make space on "
    "the disk; writing goes on by itself.",
    mend="Restore a backup.",
    users="Stop whoever reads it, and try again.",
)


def explain(error: lmdb.Error, path: Path, kind: Kind = LOG) -> LogError:
    """The error of ours that says what LMDB's means for the data at `path`."""
    if isinstance(error, lmdb.MapFullError):
        return LogFullError(
            f"{path} has reached its map size, so the write was refused and nothing of it was "
            f"kept; everything acknowledged before is safe. {kind.make_room}"
        )
    if error.code in _NO_SPACE:
        return LogFullError(
            f"the disk refused a write to {path} ({os.strerror(error.code)}); nothing of it was "
            f"kept and everything acknowledged before is safe. Make space or repair the disk; "
            f"writing goes on by itself."
        )
    if isinstance(error, lmdb.VersionMismatchError):
        return LogFormatError(
            f"{path} was written by another LMDB file format. Nothing was changed; use the "
            f"Penstock that wrote it."
        )
    if isinstance(error, lmdb.CorruptedError | lmdb.PageNotFoundError | lmdb.InvalidError):
        return LogCorruptError(f"{path} is damaged ({error}). Nothing was changed. {kind.mend}")
    return LogError(f"LMDB failed at {path}: {error}")


@contextmanager
def _explained(path: Path, kind: Kind) -> Generator[None]:
    try:
        yield
    except lmdb.Error as error:
        raise explain(error, path, kind) from error


class Env:
    """A shared LMDB environment. `read` and `write` are its only doors; both are thread-safe."""

    def __init__(self, path: Path, *, map_bytes: int, kind: Kind) -> None:
        self.path = path
        self._kind = kind
        self._map_bytes = map_bytes
        self._sync = True
        self._names: dict[bytes, Any] = {}
        self._turn = threading.Condition()
        self._users = 0
        self._exclusive = False
        self._broken = False
        self._floor: _Floor | None = None
        self.holders = 0
        self.process = os.getpid()
        """Whose it is. A fork of it must not use it (lmdb.h)."""
        self.openings = 1
        """How often LMDB was started: after a new start the last write may be there or not, so
        whatever its writer knows must be read again. Never changes inside a transaction."""
        self._lmdb = self._open()
        self.inode = _inode(path)

    def _open(self) -> lmdb.Environment:
        missing = cut(self.path / "data.mdb")
        if missing is not None:
            raise LogCorruptError(
                f"{self.path} is damaged: its file has {missing.bytes} of "
                f"{missing.needed_bytes} bytes, and pages that are in use are not there. Nothing "
                f"was changed. {self._kind.mend}"
            )
        with _explained(self.path, self._kind):
            return lmdb.Environment(
                str(self.path),
                map_size=self._map_bytes,
                max_dbs=_DATABASES_MAX,
                max_readers=READERS_MAX,
                mode=0o600,
                create=False,
                sync=self._sync,
            )

    def databases(self, names: Sequence[bytes], *, create: bool) -> bool:
        """Open named databases; False if one is missing and `create` is not asked for."""
        if all(name in self._names for name in names):
            return True  # another holder has, and need not be waited for: its users may never rest
        with self._alone():
            return self._open_databases(names, create=create)

    def _open_databases(self, names: Sequence[bytes], *, create: bool) -> bool:
        with _explained(self.path, self._kind):
            try:
                for name in names:
                    self._names[name] = self._lmdb.open_db(name, create=create)
            except lmdb.NotFoundError:
                return False
        return True

    def __getitem__(self, name: bytes) -> Any:
        return self._names[name]

    @contextmanager
    def _inside(self) -> Generator[None]:
        with self._turn:
            while self._exclusive:
                self._turn.wait()
            self._users += 1
        try:
            yield
        finally:
            with self._turn:
                self._users -= 1
                if not self._users:
                    self._turn.notify_all()

    @contextmanager
    def _alone(self, *, seconds_max: float | None = None) -> Generator[None]:
        """No transaction of this process is open inside, as closing and resizing require."""
        with self._turn:
            if not self._turn.wait_for(lambda: not (self._exclusive or self._users), seconds_max):
                raise LogLockedError(
                    f"transactions of this process at {self.path} did not end within "
                    f"{seconds_max:g} s. Nothing was changed. Let them end, and try again."
                )
            self._exclusive = True
        try:
            yield
        finally:
            with self._turn:
                self._exclusive = False
                self._turn.notify_all()

    @contextmanager
    def read(self) -> Generator[Transaction]:
        """A snapshot. Keep it short: while it lives, no page that it sees is used again."""
        try:
            self._mend()
            with ExitStack() as inside:
                try:
                    txn = inside.enter_context(self._snapshot())
                except lmdb.PanicError:
                    # A write failed so badly that LMDB wants a new start; the file is sound.
                    self._broken = True
                    self._mend()
                    txn = inside.enter_context(self._snapshot())
                yield txn
        except lmdb.MapResizedError:
            # Another process made the map larger; the caller's next read has it.
            with self._alone():
                self._lmdb.set_mapsize(0)
            raise LogError(f"the map of {self.path} was resized; read again") from None
        except lmdb.Error as error:
            raise explain(error, self.path, self._kind) from error

    @contextmanager
    def _snapshot(self) -> Generator[Transaction]:
        with self._inside():
            txn = self._begin_read()
            try:
                yield txn
            finally:
                txn.abort()

    def _begin_read(self) -> Transaction:
        try:
            return self._lmdb.begin()
        except lmdb.ReadersFullError:
            # A reader killed with -9 keeps its slot until somebody looks.
            self._lmdb.reader_check()
            return self._lmdb.begin()

    @contextmanager
    def write(self) -> Generator[Transaction]:
        """A write transaction, durable when the block ends (see `set_sync`), undone if it raises.

        After an error of the disk at its very end nobody can tell whether it was kept: LMDB is
        then started anew before the next transaction, and `openings` says so.
        """
        try:
            self._mend()
            with self._inside(), self._lmdb.begin(write=True) as txn:
                yield txn
        except lmdb.PanicError as error:
            # LMDB could not restore its meta page and wants a new start; the file is sound.
            self._broken = True
            self._mend()
            raise LogFullError(
                f"the disk failed while {self.path} was written; nothing of the write was kept "
                f"and everything acknowledged before is safe. Repair the disk; writing goes on "
                f"by itself."
            ) from error
        except lmdb.Error as error:
            raise explain(error, self.path, self._kind) from error

    def _mend(self) -> None:
        """Start LMDB anew if it asked for it; tried again by every transaction until it works."""
        if not self._broken:
            return
        with self._alone():
            if self._broken:  # no other thread did it
                self._start_anew()

    def _start_anew(self) -> None:
        self.openings += 1
        self._lmdb.close()
        try:
            self._lmdb = self._open()
            complete = self._open_databases(list(self._names), create=False)
        except (LogCorruptError, LogFormatError):
            raise
        except LogError as error:
            raise LogFullError(
                f"{self.path} cannot be opened again after the disk failed ({error}). "
                f"Everything acknowledged before is safe. Repair the disk; writing goes on by "
                f"itself."
            ) from error
        if not complete:
            raise LogCorruptError(
                f"{self.path} is not the {self._kind.name} that was open before the disk failed. "
                f"Nothing was written. {self._kind.mend}"
            )
        self._broken = False

    @property
    def synchronous(self) -> bool:
        """Whether a write is on the disk when its transaction ends."""
        flags = self._lmdb.flags()
        return flags["sync"] and flags["metasync"] and not flags["map_async"]

    def set_sync(self, sync: bool) -> None:
        """Whether writes wait for the disk; starts LMDB anew if it was otherwise.

        Raises LogLockedError when transactions of this process hold that up for too long.

        Without (MDB_NOSYNC) they survive the process, for they are the kernel's, but a power cut
        may keep any page and lose any: what is left then is the caller's care (`flush`, `pin`).
        """
        if sync == self._sync:
            return  # nobody else changes it: who does holds the lock of the store's writer
        with self._alone(seconds_max=_SET_SYNC_SECONDS_MAX):
            self._sync = sync
            self._start_anew()

    def flush(self) -> None:
        """All that was written is on the disk when this returns."""
        with _explained(self.path, self._kind), self._inside():
            self._lmdb.sync(True)

    def pin(self) -> Transaction:
        """The newest snapshot; its pages are not used again until it is aborted, or LMDB closed.

        Closing does not wait for it, so nothing may be read from it.
        """
        with _explained(self.path, self._kind), self._inside():
            return self._begin_read()

    def reader_check(self) -> int:
        """Free the slots of dead readers, which pin pages; returns how many there were."""
        with _explained(self.path, self._kind), self._inside():
            return self._lmdb.reader_check()

    def reusable_bytes(self) -> int:
        """What is free inside the file, which never shrinks; 0 while an old snapshot may pin it.

        LMDB does not say how much is free: it is what no database uses. Its own list of free pages
        is taken off: 8 bytes for each, and twice that for its pages being replaced.
        """
        with self.read() as txn:
            info = self._lmdb.info()
            stats = [txn.stat(), *(txn.stat(database) for database in self._names.values())]
            page_bytes = stats[0]["psize"]
            used = sum(
                stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"] for stat in stats
            )
        oldest = _oldest_snapshot(self._lmdb.readers())
        if oldest is not None and oldest < info["last_txnid"] - _SNAPSHOT_AGE_MAX:
            return 0
        free = max(0, info["last_pgno"] + 1 - _META_PAGES - used) * page_bytes
        return free - free * 16 // page_bytes

    def _fits_inside(self, bytes_needed: int) -> bool:
        """Whether free pages of the file will do. A large value needs them in a row: once the file
        has grown all the same, they are too scattered, until a good deal more was trimmed."""
        pages, reusable = self._lmdb.info()["last_pgno"], self.reusable_bytes()
        if self._floor is None:
            self._floor = _Floor(pages, reusable)
        grown = (pages - self._floor.pages) * self._lmdb.stat()["psize"]
        if grown <= _GROWTH_BYTES_MAX:
            self._floor = _Floor(self._floor.pages, reusable)
        elif reusable >= self._floor.reusable_bytes + 4 * _GROWTH_BYTES_MAX:
            self._floor = _Floor(pages, reusable)
        else:
            return False
        return reusable >= bytes_needed

    def require_last_space(self, bytes_min: int) -> None:
        """As `require_space`, for a write that makes room: it may use the last of the floor."""
        if space(self.path).free < bytes_min // _LAST_PART:
            if self.reusable_bytes() >= _REUSE_BYTES_MIN:
                return
            self._refuse_full(bytes_min // _LAST_PART)

    def require_space(self, bytes_min: int, *, bytes_needed: int) -> None:
        """Raise LogFullError at a floor of free space: LMDB itself would only say EIO.

        A write that fits into the file's own free pages may go on there. It needs more than its
        bytes, as pages on its way are written anew.
        """
        free = space(self.path).free
        if free >= bytes_min:
            self._floor = None
        elif not self._fits_inside(2 * bytes_needed + _REUSE_BYTES_MIN):
            self._refuse_full(bytes_min)

    def _refuse_full(self, bytes_min: int) -> NoReturn:
        raise LogFullError(
            f"{self.path} has {space(self.path).free >> 20} MiB of disk left, under the floor of "
            f"{bytes_min >> 20} MiB, so the write was refused and nothing of it was kept. "
            f"Everything acknowledged before is safe. {self._kind.free_disk}"
        )

    def copy(self, target: Path, *, compact: bool) -> None:
        """Copy a consistent snapshot into the empty directory `target`, while others write."""
        with _explained(target, self._kind), self._inside():
            self._lmdb.copy(str(target), compact=compact)

    def stale(self) -> bool:
        """Whether other files stand at the path now: a restored or compacted log."""
        return _inode(self.path) != self.inode

    def close(self) -> None:
        """Let go of the handle; the last holder closes the environment."""
        with _registry_lock:
            self.holders -= 1
            if self.holders:
                return
            if _registry.get(self.path) is self:
                del _registry[self.path]
            with self._alone():
                self._lmdb.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_registry: dict[Path, Env] = {}
_registry_lock = threading.Lock()


@contextmanager
def offline(path: Path, kind: Kind = LOG) -> Generator[None]:
    """Nobody in any process has the environment at `path` open, or can open it, inside.

    Every process that has it open holds a shared lock on the first byte of its lock file
    (mdb_env_excl_lock in LMDB's mdb.c). Raises LogLockedError when one does.
    """
    path = path.resolve()
    busy = (
        f"the {kind.name} at {path} is open in another process. Nothing was changed. {kind.users}"
    )
    with _registry_lock:
        if path in _registry:
            raise LogLockedError(busy)
        # Opened only while this process has no environment there: closing any descriptor of a
        # file gives up all POSIX locks that the process has on it.
        with (path / "lock.mdb").open("ab") as lock:
            try:
                fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
            except OSError:
                raise LogLockedError(busy) from None
            yield


def exists(path: Path) -> bool:
    """Whether an environment was ever created at `path`; raises LogError where nobody may look."""
    try:
        return (path / "data.mdb").stat().st_size > 0
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise LogError(
            f"{path} cannot be looked into ({error.strerror}). Nothing was changed. Run as the "
            f"user who owns it, or give yours the right to read it."
        ) from error


def open_env(path: Path, *, map_bytes: int = MAP_BYTES, create: bool, kind: Kind = LOG) -> Env:
    """The process's handle on the environment at `path`; `close` it when done.

    Raises ConfigError on a network file system, LogError when there is nothing and `create` is
    not asked for, and what `explain` makes of LMDB's errors.
    """
    path = path.resolve()
    with _registry_lock:
        env = _registry.get(path)
        if env is None or env.stale():
            if create:
                make_folder(path, mode=0o700)
            elif not exists(path):
                raise LogError(f"there is no {kind.name} at {path}")
            refuse_network_filesystem(path)
            if env is None:
                _reserve_reader_slots(path)
            env = Env(path, map_bytes=map_bytes, kind=kind)
            _registry[path] = env
        env.holders += 1
    try:
        env.reader_check()
    except BaseException:
        env.close()
        raise
    return env


def _reserve_reader_slots(path: Path) -> None:
    """Give the lock file its blocks now. LMDB maps it with holes, and touching a hole on a full
    disk kills the process with SIGBUS.

    Called only while this process has no environment at `path`: closing a descriptor of the lock
    file gives up the locks that LMDB holds on it.
    """
    try:
        if exists(path):
            os.close(os.open(path / "data.mdb", os.O_RDWR | os.O_CLOEXEC))
        descriptor = os.open(path / "lock.mdb", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise LogError(
            f"{path} cannot be opened ({error.strerror}). Nothing was changed and everything "
            f"acknowledged before is safe. Run as the user who owns its files, and see that its "
            f"disk can be written to."
        ) from error
    try:
        os.posix_fallocate(descriptor, 0, _LOCK_BYTES)
    except OSError as error:
        raise LogFullError(
            f"there is no room to open {path} ({error.strerror}). Nothing was changed and "
            f"everything acknowledged before is safe. Make space, and try again."
        ) from error
    finally:
        os.close(descriptor)


def _oldest_snapshot(readers: str) -> int | None:
    """The oldest transaction that a reader sees, from LMDB's table: pid, thread, txnid or "-"."""
    lines = [line.split() for line in readers.splitlines()[1:]]
    return min((int(line[2]) for line in lines if len(line) == 3 and line[2] != "-"), default=None)


def _inode(path: Path) -> tuple[int, int] | None:
    try:
        found = (path / "data.mdb").stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
