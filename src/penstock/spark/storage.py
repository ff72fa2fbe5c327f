"""What storage refused: at which path and of what kind, and none of its text, which may quote a
document."""

import errno
import re
from collections.abc import Callable, Generator
from contextlib import contextmanager
from enum import Enum
from functools import wraps
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar

from deltalake.exceptions import DeltaError
from msgspec import Struct

from penstock.errors import PenstockError
from penstock.spark.causes import RAISED_IN_SQL, is_called, of_rows, quotes_values

_P = ParamSpec("_P")
_R = TypeVar("_R")
_NOTE: Final = "penstock storage at: "
"""Behind it an error says the path. A note is in the text, too, that Spark makes of an error."""
_NOTED: Final = re.compile(rf"^{re.escape(_NOTE)}(.+)", re.MULTILINE)
_CODES: Final = re.compile(r"(?:\[Errno |\(os error |Os \{ code: )(\d+)")
_NO_ROOM: Final = "No space left on device"
_RAISED_FULL: Final = re.compile(rf"^OSError: \[Errno {errno.ENOSPC}\] ", re.MULTILINE)
_FILES: Final = re.compile(
    r"\b(part-\d{5}-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}-c\d{3}(?:\.\w+)?\.parquet"
    r"|changes-\d{20}-[0-9a-f]{32}\.parquet)\b"
)
"""Names that are made of numbers."""


class Kind(Enum):
    """What was the matter, and what to do about it."""

    DENIED = ("access is denied", "Give the pipeline the right to read and write there.")
    FULL = ("there is no space left", "Make room there.")
    MISSING = (
        "a file or folder is missing",
        "Put it back; or move what is left away, and begin again (docs/how-to/pipelines.md).",
    )
    FOLDER = (
        "a file is in the way of a folder, or a folder in that of a file",
        "Move it away, or give the pipeline another path.",
    )
    DAMAGED = (
        "a file is damaged",
        "Put a sound copy back; or move it away, and begin again (docs/how-to/pipelines.md).",
    )
    AWAY = ("the storage does not answer", "See that it can be reached from here.")
    OTHER = ("the storage refused it", "See that it can be read and written from here.")

    @property
    def says(self) -> str:
        return self.value[0]

    @property
    def remedy(self) -> str:
        return self.value[1]


_BY_CODE: Final = {
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), Kind.DENIED),
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), Kind.FULL),
    errno.ENOENT: Kind.MISSING,
    **dict.fromkeys((errno.ENOTDIR, errno.EISDIR, errno.EEXIST), Kind.FOLDER),
    errno.EIO: Kind.DAMAGED,
    **dict.fromkeys(
        (errno.ECONNREFUSED, errno.ECONNRESET, errno.ETIMEDOUT, errno.EHOSTUNREACH), Kind.AWAY
    ),
}
_BY_TEXT: Final = (
    (Kind.DENIED, ("AccessDenied", "PermissionDenied", "403 Forbidden", "401 Unauthorized")),
    (Kind.FOLDER, ("Invalid table location",)),
    (Kind.MISSING, ("not found", "does not exist", "No table metadata or protocol")),
    (
        Kind.DAMAGED,
        ("Json error", "magic bytes", "corrupt", "range was invalid", "Thrift", "EOF"),
    ),
    (Kind.AWAY, ("error sending request",)),
)


class Trouble(Struct, frozen=True, kw_only=True):
    """What storage refused."""

    kind: Kind
    path: str
    """Where; empty where that is not known."""
    file: str = ""
    """Which file there, if that is known."""

    def __str__(self) -> str:
        where = ", file ".join(one for one in (self.path, self.file) if one)
        return f"{self.kind.says}{f': {where}' if where else ''}"


@contextmanager
def stored_at(path: str) -> Generator[None]:
    """Have an error of the block say the path, for `trouble_of`."""
    try:
        yield
    except PenstockError:
        raise
    except Exception as error:
        if not any(_NOTE in note for note in _notes(error)):
            error.add_note(f"{_NOTE}{path}")
        raise


class _Stored(Protocol):
    path: str


_S = TypeVar("_S", bound=_Stored)


def at_its_path(
    method: Callable[Concatenate[_S, _P], _R],
) -> Callable[Concatenate[_S, _P], _R]:
    """As `stored_at` with the `path` of the method's object. For no generator."""

    @wraps(method)
    def wrapped(self: _S, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        with stored_at(self.path):
            return method(self, *args, **kwargs)

    return wrapped


def trouble_of(error: BaseException) -> Trouble | None:
    """What storage refused, if that is what `error` is, or comes from; None for any other."""
    if of_rows(error) or is_called(error, RAISED_IN_SQL):
        return None
    text = "\n".join((str(error), *_notes(error)))
    noted = _NOTED.findall(text)
    if not noted and not isinstance(error, OSError | DeltaError):
        # What Spark has no room for is told as text, without a path that is ours.
        says = _RAISED_FULL.search(text) if quotes_values(error) else _NO_ROOM in text
        return Trouble(kind=Kind.FULL, path="") if says else None
    named: Any = error.filename if isinstance(error, OSError) else None
    path = noted[-1].strip() if noted else named if isinstance(named, str) else ""
    files = _FILES.findall(text)
    return Trouble(kind=_kind_of(error, text), path=path, file=files[-1] if files else "")


def means_no_table(error: Exception) -> bool:
    """Whether delta-rs found no table; it says the same of one that cannot be looked at."""
    return all(int(code) == errno.ENOENT for code in _CODES.findall(str(error)))


def _kind_of(error: BaseException, text: str) -> Kind:
    codes = [error.errno] if isinstance(error, OSError) and error.errno else []
    for code in (*codes, *map(int, reversed(_CODES.findall(text)))):
        if code in _BY_CODE:
            return _BY_CODE[code]
    for kind, says in _BY_TEXT:
        if any(said in text for said in says):
            return kind
    return Kind.OTHER


def _notes(error: BaseException) -> list[str]:
    return list(getattr(error, "__notes__", ()))
