"""The folder or bucket of an archive: pyarrow's file systems, and where these do not reach those of
fsspec; with names that survive a power cut.

A manifest appears whole, under a name that is new. On a disk that is one step, which fails where
another service was quicker. An object store (S3, GCS, Azure) shows what is written once it is
whole, so it is written under its name at once: to move it would copy it, which Azure without
hierarchical names cannot. But it lets a second service write over it: that is noticed right behind
it, or before the next range at the latest. Elsewhere (HDFS) a file is seen while it grows: a
manifest is written under a name of its own, and then moved.
"""

# The published types of pyarrow are partly unknown.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import errno
import hashlib
import io
import os
import re
import secrets
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyarrow import fs

from penstock.archive.manifest import Manifest, pack, unpack
from penstock.errors import (
    ArchiveDamagedError,
    ArchiveForeignError,
    ArchiveUnavailableError,
    ConfigError,
    PenstockError,
)
from penstock.folders import make_folder, sync_folder

_PREFIX: Final = "manifest-"
_SUFFIX: Final = ".json"
_UNFINISHED: Final = ".unfinished"
_FOLDER: Final = "data"
_LOOKS_MAX: Final = 5
_OBJECT_STORES: Final = frozenset({"s3", "gcs", "abfs"})
"""The file systems, as pyarrow names their types, where what is written appears when it is closed;
but Azure has an empty object under the name until then."""
_PYARROWS: Final = frozenset({"s3", "gs", "gcs", "abfs", "abfss", "hdfs", "viewfs", "file"})
"""The schemes that pyarrow reads; whatever it says of their URLs is so."""
_WITH_CONTAINERS: Final = frozenset({"abfs", "abfss"})
_OPTIONS: Final = re.compile(r"(\w://[^\s?]*)\?\S+")
"""Behind a URL's "?"."""
_NO_LINKS: Final = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})
"""What file systems without hard links say of one."""
_OURS: Final = re.compile(r"\d{20}-\d{20}\.parquet")
"""A data file of an archive; whatever else is in the folder is somebody else's."""

_OURS_UNFINISHED: Final = re.compile(r"\d{20}-\d{20}\.parquet\.[0-9a-f]{16}\.unfinished")


class Sink(io.RawIOBase):
    """Bytes on their way to a file, counted and hashed."""

    def __init__(self, stream: Any) -> None:
        super().__init__()
        self._stream = stream
        self._hash = hashlib.sha256()
        self.size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data)
        self._hash.update(view)
        self._stream.write(view)
        self.size += view.nbytes
        return view.nbytes

    def tell(self) -> int:
        return self.size

    @property
    def digest(self) -> str:
        """SHA-256 of what was written, in hex."""
        return self._hash.hexdigest()


class Place:
    """Where one archive is. Raises ArchiveUnavailableError where the file system refuses."""

    def __init__(self, path: str) -> None:
        """`path` is a folder or a URL. Raises ConfigError for a URL that nothing here reads."""
        self._known: bytes | None = None
        """The manifest that this process has read or made last."""
        url = path if "://" in path else str(Path(path).resolve())
        self._url, self.where = url, shown(url)
        try:
            self._fs, self._root = _file_system(url)
        except (ImportError, OSError, pa.ArrowException, ValueError) as error:
            # Without its cause, which quotes the URL.
            raise ConfigError(
                f"an archive cannot be at {self.where}: {_without(url, str(error))}. Nothing was "
                f"started. Write a folder, or a URL as s3://bucket/folder."
            ) from None

    @property
    def is_local(self) -> bool:
        """Whether it is on a disk of this machine."""
        return isinstance(self._fs, fs.LocalFileSystem)

    @property
    def _is_object_store(self) -> bool:
        return self._fs.type_name in _OBJECT_STORES

    @property
    def _fsspec(self) -> Any:
        """What asks fsspec; None where pyarrow reads by itself."""
        handler = getattr(self._fs, "handler", None)
        return handler if isinstance(handler, fs.FSSpecHandler) else None

    def full(self, name: str) -> str:
        """The name of one of its files, for people."""
        return f"{self.where.rstrip('/')}/{name}"

    def make(self) -> None:
        """Have the folders."""
        with self.explained():
            if self.is_local:
                make_folder(Path(self._root) / _FOLDER)
            else:
                self._fs.create_dir(f"{self._root}/{_FOLDER}", recursive=True)

    # --- files ----------------------------------------------------------------------------------

    def open(self, name: str, *, size: int) -> Any:
        """A file to read at any place. Raises ArchiveDamagedError when it is missing, or not of
        `size` bytes."""
        with self.explained():
            info = self._fs.get_file_info(self._path(name))
            if info.type == fs.FileType.NotFound:
                raise ArchiveDamagedError(self.full(name), "it is missing")
            if info.size != size:
                raise ArchiveDamagedError(
                    self.full(name), f"it has {info.size} bytes, where {size} were written"
                )
            return self._fs.open_input_file(self._path(name))

    @contextmanager
    def writing(self, name: str) -> Generator[Sink]:
        """A file that is on the disk at the end of the block; no manifest names it yet. As
        `require_last` where another service has written one of that name."""
        # Never into a file that another service may have named by then.
        unfinished = _unfinished(name) if self.is_local else name
        with self.explained(), self._whole_or_gone(unfinished):
            with self._fs.open_output_stream(self._path(unfinished)) as stream:
                yield Sink(stream)
            self._sync(unfinished)
            if self.is_local:
                self._show(unfinished, name)
                self._sync_folder(_FOLDER)

    def left_behind(self, manifest: Manifest) -> list[str]:
        """The names of the data files that `manifest` does not name, and of what was never
        finished."""
        named = {one.name for one in manifest.ranges}
        left = [name for name in self._data() if name not in named]
        left += [
            f"{_FOLDER}/{name}" for name in self._names(_FOLDER) if _OURS_UNFINISHED.fullmatch(name)
        ]
        left += [
            name
            for name in self._names("")
            if name.startswith(_PREFIX) and name.endswith(_UNFINISHED)
        ]
        return left

    def remove(self, names: Sequence[str]) -> None:
        """Remove files."""
        for name in names:
            self._delete(name)

    # --- the manifest ---------------------------------------------------------------------------

    def newest(self) -> tuple[int, Manifest] | None:
        """The manifest, with its number; None where there is none, nor data."""
        for _ in range(_LOOKS_MAX):
            numbers = self._numbers()
            if not numbers:
                # The first manifest is there before any data is.
                if self._data():
                    raise ArchiveDamagedError(self.where, "its manifest is missing")
                return None
            name = _manifest_name(numbers[-1])
            try:
                with self.explained(), self._fs.open_input_stream(self._path(name)) as stream:
                    data = stream.read()
            except ArchiveUnavailableError as error:
                if isinstance(error.__cause__, FileNotFoundError):
                    continue  # a writer has made a newer one, and removed this
                raise
            self._known = data
            return numbers[-1], unpack(data, self.full(name))
        raise ArchiveDamagedError(self.where, "its manifest is not there when it is read")

    def require_last(self, number: int) -> None:
        """Raise ArchiveForeignError if another service has published since manifest `number`, or
        another one under that number."""
        if max(self._numbers(), default=0) != number or not self._is_known(number):
            raise self._foreign()

    def publish(self, manifest: Manifest, number: int) -> None:
        """Make `manifest` the archive's: the one step that shows what was written. `number` is one
        more than that of the last. As `require_last`; then nothing is shown."""
        self.require_last(number - 1)
        name, data = _manifest_name(number), pack(manifest)
        unfinished = name if self._is_object_store else _unfinished(name)
        with self.explained(), self._whole_or_gone(unfinished):
            with self._fs.open_output_stream(self._path(unfinished)) as stream:
                stream.write(data)
            self._sync(unfinished)
            if unfinished != name:
                self._show(unfinished, name)
            self._sync_folder("")
        self._known = data
        try:
            self.require_last(number)
        except ArchiveForeignError:
            # Others may have gone past that number, and removed what had it: ours is not the last.
            if number in self._numbers() and self._is_known(number):
                self._delete(name)
            raise
        for old in self._numbers():
            if old < number:
                self._delete(_manifest_name(old))

    def _show(self, unfinished: str, name: str) -> None:
        """Give a file its name, which no other may have. As `require_last`."""
        if not self.is_local:
            self._fs.move(self._path(unfinished), self._path(name))
            return
        try:
            # A rename would replace what another service has shown since we looked.
            os.link(self._path(unfinished), self._path(name))
        except FileExistsError:
            self._delete(unfinished)
            raise self._foreign() from None
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            self._fs.move(self._path(unfinished), self._path(name))
        else:
            self._delete(unfinished)

    def _is_known(self, number: int) -> bool:
        """Whether that manifest is the one which was read or made last."""
        if number == 0 or self._known is None:
            return True
        with self.explained(), self._fs.open_input_stream(self._path(_manifest_name(number))) as s:
            return bool(s.read() == self._known)

    def _foreign(self) -> ArchiveForeignError:
        return ArchiveForeignError(self.where, "another service has written to it since")

    def _data(self) -> list[str]:
        return [f"{_FOLDER}/{name}" for name in self._names(_FOLDER) if _OURS.fullmatch(name)]

    def _numbers(self) -> list[int]:
        # An empty object is one that Azure shows for a writer that is not done, or has died.
        names = [
            name.removeprefix(_PREFIX).removesuffix(_SUFFIX)
            for name in self._names("", size_min=1 if self._is_object_store else 0)
            if name.startswith(_PREFIX) and name.endswith(_SUFFIX)
        ]
        return sorted(int(name) for name in names if name.isdecimal())

    # --- the file system ------------------------------------------------------------------------

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    def _names(self, folder: str, *, size_min: int = 0) -> list[str]:
        with self.explained():
            if (handler := self._fsspec) is not None:
                handler.fs.invalidate_cache()  # it would list what it has listed before
            chosen = fs.FileSelector(self._path(folder), allow_not_found=True)
            found = self._fs.get_file_info(chosen)
        return [
            info.base_name
            for info in found
            if info.type == fs.FileType.File and info.size >= size_min
        ]

    def _delete(self, name: str) -> None:
        with self.explained():
            self._fs.delete_file(self._path(name))

    def _sync(self, name: str) -> None:
        """Have a file, and its name, survive a power cut; a store elsewhere sees to it itself."""
        if not self.is_local:
            return
        path = Path(self._path(name))
        with path.open("rb") as written:
            os.fsync(written.fileno())
        sync_folder(path.parent)

    def _sync_folder(self, name: str) -> None:
        if self.is_local:
            sync_folder(Path(self._path(name)))

    @contextmanager
    def _whole_or_gone(self, unfinished: str) -> Generator[None]:
        """Have nothing of a file left behind that fails; a full disk would keep each attempt."""
        try:
            yield
        except BaseException:
            if self.is_local:
                with suppress(OSError):
                    Path(self._path(unfinished)).unlink(missing_ok=True)
            raise

    @contextmanager
    def explained(self) -> Generator[None]:
        """Have what fails of the file system as ArchiveUnavailableError, which shows no secret."""
        try:
            yield
        except (OSError, pa.ArrowException) as error:
            raise _unavailable(self._url, error) from error
        except PenstockError:
            raise
        except Exception as error:
            # Behind fsspec are libraries with errors of their own.
            if self._fsspec is None:
                raise
            raise _unavailable(self._url, error) from None


def _file_system(url: str) -> tuple[Any, str]:
    """What reads it, and the path in there. Raises ValueError where nothing does, ImportError for
    what is not installed, ArchiveUnavailableError."""
    try:
        return fs.FileSystem.from_uri(url)
    except (OSError, pa.ArrowException, ValueError) as error:
        if url.partition("://")[0] in _PYARROWS:
            raise
        try:
            import fsspec
        except ImportError:
            raise ValueError(f"{error}. pip install 'penstock[fsspec]' reads more") from None
        handler: Any = fs.FSSpecHandler  # abstract, say its types
        try:
            found, root = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError):
            raise
        except TypeError as misses:
            raise ValueError(str(misses)) from None
        except Exception as error:  # some connect at once, with errors of their own
            raise _unavailable(url, error) from None
        return fs.PyFileSystem(handler(found)), root


def shown(url: str) -> str:
    """A folder, or a URL without the secret and the options that it may have."""
    if "://" not in url:
        return url
    scheme, _, rest = url.partition("://")
    account, at, place = _parted(rest)
    # A container of Azure stands there, too; any other name may be a token.
    hidden = account if scheme in _WITH_CONTAINERS and ":" not in account else "****"
    return f"{scheme}://{hidden if at else ''}{at}{place}".partition("?")[0]


def _parted(rest: str) -> tuple[str, str, str]:
    """What stands before the place, the @ behind it, and the place; a secret may hold a "?"."""
    plain = rest.partition("?")[0]
    return (plain if "@" in plain or "@" not in rest.partition("/")[0] else rest).rpartition("@")


def _without(url: str, said: str) -> str:
    """What was said of the URL, without what is not shown of it; and of others, their options."""
    said = said.replace(url, shown(url))
    account = _parted(url.partition("://")[2])[0]
    hidden = said.replace(account, "****") if account and account not in shown(url) else said
    return _OPTIONS.sub(r"\1?****", hidden)


def _unavailable(url: str, error: Exception) -> ArchiveUnavailableError:
    return ArchiveUnavailableError(shown(url), error, _without(url, str(error)))


def _unfinished(name: str) -> str:
    """A name of this process alone, until the file has its own."""
    return f"{name}.{secrets.token_hex(8)}{_UNFINISHED}"


def _manifest_name(number: int) -> str:
    return f"{_PREFIX}{number:012d}{_SUFFIX}"
