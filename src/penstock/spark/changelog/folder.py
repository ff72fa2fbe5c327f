"""A folder of files, on this machine or in an object store, as workers and the driver use it."""

# The stubs of pyarrow leave file systems open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from deltalake.fs import DeltaStorageHandler

from penstock.spark.table.lasting import local_folder, sync

LEFTOVER_SECONDS: Final = 86_400.0
"""So old is what no batch can be writing any more."""


class Folder:
    """Files by their names below a path. Made anew in each process: it holds connections."""

    def __init__(self, path: str, *, storage_options: Mapping[str, str]) -> None:
        """A folder on this machine is made if it is not there."""
        self._local = local_folder(path)
        if self._local is None:
            handler: Any = DeltaStorageHandler(path, dict(storage_options))
            self._files: Any = pafs.PyFileSystem(handler)
        else:
            self._local.mkdir(parents=True, exist_ok=True)
            self._files = pafs.SubTreeFileSystem(str(self._local), pafs.LocalFileSystem())

    def create(self, name: str) -> Any:
        """A stream into a new file, which is there for others once it is closed, or sooner."""
        if self._local is not None:
            (self._local / name).parent.mkdir(parents=True, exist_ok=True)
        return self._files.open_output_stream(name)

    def open(self, name: str) -> Any:
        """A file to read. Raises OSError if it is not there."""
        return self._files.open_input_file(name)

    def keep(self, name: str) -> None:
        """Have a closed file survive a power cut; an object store has done so."""
        if self._local is not None:
            sync(self._local / name)
            self._sync_folders(name)

    def _sync_folders(self, name: str) -> None:
        assert self._local is not None
        folder = (self._local / name).parent
        while folder != self._local:
            sync(folder)
            folder = folder.parent
        sync(folder)

    def size(self, name: str) -> int | None:
        """Its bytes; None if it is not there."""
        found = self._files.get_file_info(name)
        return found.size if found.type is pafs.FileType.File else None

    def rows(self, name: str, columns: Sequence[str], chosen: Any) -> pa.Table:
        """Columns of a Parquet file, of the rows for which an expression holds."""
        with self._files.open_input_file(name) as file:
            return pq.read_table(file, columns=list(columns), filters=chosen)

    def move(self, name: str, to: str) -> None:
        """Call a file `to`: at once on a disk, by copying in an object store."""
        self._files.move(name, to)
        if self._local is not None:
            self._sync_folders(to)

    def remove(self, names: Iterable[str]) -> None:
        """Delete files; one that is not there is deleted."""
        for name in names:
            with suppress(FileNotFoundError):
                self._files.delete_file(name)

    def files(self) -> Iterator[tuple[str, float]]:
        """All files, and when each was last written, in Unix seconds."""
        chosen = pafs.FileSelector("", recursive=True, allow_not_found=True)
        for found in self._files.get_file_info(chosen):
            if found.type is pafs.FileType.File:
                yield found.path.lstrip("/"), found.mtime.timestamp()
