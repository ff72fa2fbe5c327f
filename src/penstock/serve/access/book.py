"""The file in which those who may connect are kept: written by `penstock access`, read by serve.

It is replaced as a whole, so that whoever reads it finds the old one or the new one, and it is
readable by its owner only. `Book` reads it again when it has changed, looking at most once in
`LOOK_SECONDS`; a file that cannot be read then lets nobody in until it can.
"""

import fcntl
import os
import secrets
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec
import structlog
from msgspec import Struct, structs

from penstock.errors import ConfigError
from penstock.folders import stamp, sync_folder
from penstock.serve.access.tokens import Record

log = structlog.get_logger(__name__)

LOOK_SECONDS: Final = 0.5
_VERSION: Final = 1


class Kept(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """What the file holds."""

    version: int = _VERSION
    secret: str
    """In hex: by which keys are replaced that have a hidden field. A new one makes other keys."""
    records: tuple[Record, ...] = ()


def load(path: Path) -> Kept:
    """What the file holds; a new, empty one where there is none. Raises ConfigError where it is
    something else, or others may read it."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode & 0o077
            data = file.read()
    except FileNotFoundError:
        return Kept(secret=secrets.token_hex(32))
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise ConfigError(
            f"{path} cannot be read: {why}. Nobody was let in. Correct [access] tokens, or who may "
            f"read the file."
        ) from error
    if mode:
        raise ConfigError(
            f"{path} may be read or written by others than its owner. Nobody was let in. Run "
            f"`chmod 600` on it, and make new tokens if that is not how it should have been."
        )
    try:
        kept = msgspec.json.decode(data, type=Kept)
    except (msgspec.MsgspecError, UnicodeError):
        # What is wrong with it may quote it.
        raise ConfigError(
            f"{path} is not a file of `penstock access`, or it is damaged. Nobody was let in. "
            f"Restore it from a backup, or move it away and make new tokens."
        ) from None
    if kept.version != _VERSION:
        raise ConfigError(
            f"{path} is of version {kept.version}, and this Penstock reads {_VERSION}. Nobody was "
            f"let in. Use the Penstock that wrote it."
        )
    return kept


@contextmanager
def changing(path: Path) -> Generator[Callable[[Callable[[Kept], Kept]], Kept]]:
    """Change the file inside the block, one process at a time: give what makes the new of the old.

    It is on the disk when the call returns. Raises ConfigError as `load` does.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = os.open(
        path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
    )
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)

        def change(make: Callable[[Kept], Kept]) -> Kept:
            kept = make(load(path))
            _replace(path, msgspec.json.format(msgspec.json.encode(kept), indent=2) + b"\n")
            return kept

        yield change
    finally:
        os.close(lock)


def _replace(path: Path, data: bytes) -> None:
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    new.rename(path)
    sync_folder(path.parent)


class Book:
    """What the file says now. Safe for any number of threads."""

    def __init__(self, path: Path | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises ConfigError as `load` does. Without a path there is nobody in it."""
        self._path = path
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: tuple[int, int, int] | None = None
        self._looked_at = clock()
        self._take(Kept(secret=secrets.token_hex(32)))
        if path is not None:
            self._seen = stamp(path)
            self._take(load(path))

    @property
    def secret(self) -> bytes:
        return self._secret

    def by_id(self, number: str) -> Record | None:
        self._look()
        return self._by_id.get(number)

    def by_subject(self, subject: str) -> Record | None:
        """The newest of a certificate's name."""
        self._look()
        return self._by_subject.get(subject)

    def by_name(self, name: str) -> Record | None:
        """The newest of a name."""
        self._look()
        return self._by_name.get(name)

    def _look(self) -> None:
        path, now = self._path, self._clock()
        if path is None or now - self._looked_at < LOOK_SECONDS:
            return
        with self._lock:
            self._looked_at = now
            # Before it is read: what is written meanwhile is seen the next time.
            seen = stamp(path)
            if seen == self._seen:
                return
            try:
                self._take(load(path))
            except ConfigError as error:
                log.error("the file of tokens cannot be read; nobody is let in", reason=str(error))  # noqa: TRY400
                self._take(Kept(secret=self._secret.hex()))
                return
            self._seen = seen

    def _take(self, kept: Kept) -> None:
        self._secret = bytes.fromhex(kept.secret)
        self._by_id = {one.id: one for one in kept.records}
        open_ = [one for one in kept.records if one.revoked_at is None]
        self._by_subject = {one.subject: one for one in open_ if one.kind == "certificate"}
        self._by_name = {one.name: one for one in open_}


def added(kept: Kept, record: Record) -> Kept:
    """With one more. Raises ConfigError if somebody open to use has the name."""
    taken = [one for one in kept.records if one.revoked_at is None]
    if any(one.name == record.name for one in taken):
        raise ConfigError(
            f"there is somebody called {record.name!r} already. Nothing was changed. Revoke that "
            f"one first, or take another name."
        )
    if record.subject and any(one.subject == record.subject for one in taken):
        raise ConfigError(
            f"there is somebody with the certificate {record.subject!r} already. Nothing was "
            f"changed. Revoke that one first."
        )
    return structs.replace(kept, records=(*kept.records, record))


def revoked(kept: Kept, name: str, *, now: float) -> Kept:
    """With those of a name, or of an id, revoked. Raises ConfigError if there are none."""
    found = [
        one.id for one in kept.records if name in {one.name, one.id} and one.revoked_at is None
    ]
    if not found:
        raise ConfigError(
            f"there is nobody called {name!r} who could be revoked. Nothing was changed. "
            f"`penstock access list` has the names."
        )
    return structs.replace(
        kept,
        records=tuple(
            structs.replace(one, revoked_at=now) if one.id in found else one for one in kept.records
        ),
    )
