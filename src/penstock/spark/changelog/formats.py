"""What says which files are the changelog: a Delta log, or a manifest of plain Parquet files.

Both are a Delta table with one commit per batch, which carries how far the changelog has come of
which log (`penstock.spark.table.delta`). Workers write files first; they count once that commit is
there, and a batch that is torn before it has written nothing that anybody reads.

`delta`: the commit makes the files part of the table.

`parquet`: the commit lists the files in the manifest. Until then they have names that no reader
looks at (`.changes-….parquet.inprogress`); then each gets its own. From the commit to the last of
these renames, milliseconds on a disk, or until the next start if the driver dies there, who reads
the folder sees some files of the batch and not others. It never sees one twice, nor a torn one.
What a replay commits waits so for the next replay.
"""

# The stubs of pyarrow leave element types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import date
from typing import Any, Final, Protocol
from uuid import uuid4

import msgspec
import numpy as np
import pyarrow as pa
import structlog
from deltalake.transaction import AddAction

from penstock.errors import PipelineChangedError, PipelineError
from penstock.spark.changelog.entries import PROOFS, TELLING, partition_fields, telling
from penstock.spark.changelog.exploding import Explode
from penstock.spark.changelog.folder import LEFTOVER_SECONDS, Folder
from penstock.spark.changelog.writing import (
    File,
    Writing,
    file_schema,
    hidden_name,
    is_hidden,
    is_of,
    is_ours,
)
from penstock.spark.config import ChangelogPipelineConfig
from penstock.spark.table.arrow import arrow, compute
from penstock.spark.table.delta import Table, secrets, text
from penstock.spark.table.stamp import Stamp

log = structlog.get_logger()

REPLAYS: Final = 0
"""In place of the sequence up to which a batch has everything: a replay has it of no place."""

_FILE_FIELDS: Final = (
    arrow.field("path", pa.string(), nullable=False),
    arrow.field("size", pa.int64(), nullable=False),
    arrow.field("rows", pa.int64(), nullable=False),
    arrow.field("first_sequence", pa.int64(), nullable=False),
    arrow.field("last_sequence", pa.int64(), nullable=False),
    arrow.field("until", pa.int64(), nullable=False),
)
"""A row of the manifest: a file, and the sequence up to which its batch has everything, or REPLAYS
for one of entries that were there and are told again."""
_NAMED_MAX: Final = 500
_MANIFEST: Final = frozenset(field.name for field in _FILE_FIELDS)


class Format(Protocol):
    """How files become a changelog."""

    table: Table
    """Whose commits say what is in it; as of now."""

    @property
    def hidden(self) -> bool:
        """As of Writing."""
        ...

    def check(self) -> None:
        """Raises PipelineChangedError if what is at the path has other columns or folders, or is
        of the other format: readers of the folder would see changes twice."""
        ...

    def finish(self, until: int) -> None:
        """Bring to its end what a driver left that had committed up to `until` as its last; with
        REPLAYS, what replays have left."""
        ...

    def add(self, files: Sequence[File], stamp: Stamp) -> None:
        """Have the files, all of a batch, be part of the changelog, in one commit."""
        ...

    def says(self, sequences: Sequence[int]) -> set[int]:
        """Of which of these it has an entry that tells something, and not only one that steps have
        refused."""
        ...

    def forget_gone(self, stamp: Stamp) -> None:
        """Have files count no more that are gone from the folder, if readers can do without."""
        ...

    def discard(self, attempt: str) -> None:
        """Delete what workers have written in an attempt that nothing is kept of, if that can be
        done now."""
        ...

    def leftovers(self) -> int:
        """Delete what batches have left that were torn a day ago, or longer: how many files.

        A file that a version of the last `history` uses is none of them, however it came to go.
        """
        ...


def format_of(pipeline: str, config: ChangelogPipelineConfig) -> Format:
    """The format that the configuration says, as it is at its path now.

    Raises PipelineChangedError for the changelog of another pipeline.
    """
    kind = DeltaFormat if config.format == "delta" else ParquetFormat
    return kind(pipeline, config)


def writing_of(
    config: ChangelogPipelineConfig, kept: Format, *, after: int, before: int | None = None
) -> Writing:
    """What a worker is told that writes what is in (after, before), in a new attempt."""
    return Writing(
        path=config.path,
        storage_options=secrets(config.storage_options),
        partition_by=config.partition_by,
        hidden=kept.hidden,
        attempt=uuid4().hex[:16],
        after=after,
        before=before,
        explodes=tuple(
            Explode(step.explode, frozenset(step.collections)) for step in config.explodes
        ),
        untold=PROOFS if any(one.hides for one in config.steps) else (),
    )


class _Files:
    """What both formats know of their files."""

    def __init__(self, pipeline: str, config: ChangelogPipelineConfig, columns: pa.Schema) -> None:
        self._pipeline = pipeline
        self._config = config
        self._columns = columns
        self._storage = secrets(config.storage_options)
        path = config.table_path("")
        self.table = Table(path, pipeline=pipeline, storage_options=self._storage)
        self._opened: Folder | None = None

    @property
    def _folder(self) -> Folder:
        # A folder on this machine is made when it is opened.
        if self._opened is None:
            self._opened = Folder(self._config.path, storage_options=self._storage)
        return self._opened

    def _check(self, partitions: Sequence[str]) -> None:
        found = self.table.layout
        if found is None:
            return
        columns, laid_out = found
        wanted = [(field.name, field.type) for field in self._columns]
        there = [(field.name, field.type) for field in columns]
        if there == wanted and laid_out == list(partitions):
            return
        raise PipelineChangedError(
            pipeline=self._pipeline,
            change=f"the Delta table {self.table.path} is not a changelog of this Penstock whose "
            f"partition_by is {', '.join(self._config.partition_by) or 'empty'}, "
            f"{'with' if self._config.explodes else 'without'} explode",
            remedy="or change partition_by, format or explode back",
        )

    def _other_format(self, there: str) -> PipelineChangedError:
        """What to raise where `there` is what another format has."""
        change = f"{there}, and now it says format = '{self._config.format}'"
        remedy = "or change format back"
        if self.table.version >= 0:
            change += f", which {self.table.path} is: readers of the folder see changes twice"
            remedy = "where all of the log is written once"
        return PipelineChangedError(pipeline=self._pipeline, change=change, remedy=remedy)

    def _seen(self, names: Iterable[tuple[str, int]]) -> None:
        """Raises PipelineError if a file is not there, as the driver sees it, with its size."""
        for name, size in names:
            if self._folder.size(name) != size:
                raise PipelineError(
                    f"pipeline {self._pipeline}: a worker has written {name}, and it is not there "
                    f"with its {size} bytes for the driver. Nothing of the batch was added. "
                    f"Workers and driver must share the path: give the pipeline an object store "
                    f"or a mounted folder."
                )

    def discard(self, attempt: str) -> None:
        """As `Format.discard`."""
        try:
            names = [
                name
                for name, _ in self._folder.files()
                if self._in_place(name) and is_of(name, attempt)
            ]
            self._folder.remove(names)
        except Exception as error:
            # It is in nobody's way, and goes with the leftovers; what failed before is what counts.
            log.warning(
                "files of a torn batch are deleted later",
                pipeline=self._pipeline,
                error=type(error).__name__,
            )

    def _in_place(self, name: str) -> bool:
        """Whether a name has the folders of this changelog and of no other."""
        steps = name.split("/")[:-1]
        names = [field.name for field in partition_fields(self._config.partition_by)]
        return [step.partition("=")[0] for step in steps] == names and is_ours(name)


class DeltaFormat(_Files):
    """`format = "delta"`."""

    hidden = False

    def __init__(self, pipeline: str, config: ChangelogPipelineConfig) -> None:
        partitions = partition_fields(config.partition_by)
        columns = file_schema(exploded=bool(config.explodes))
        super().__init__(pipeline, config, arrow.schema([*columns, *partitions]))

    def check(self) -> None:
        """As `Format.check`."""
        manifest = Table(self._config.manifest_path, storage_options=self._storage).layout
        if manifest is not None and set(manifest[0].names).issuperset(_MANIFEST):
            raise self._other_format(f"{self._config.manifest_path} is a changelog's manifest")
        self._check([field.name for field in partition_fields(self._config.partition_by)])

    def finish(self, until: int) -> None:
        """Nothing is left: the commit was all."""

    def says(self, sequences: Sequence[int]) -> set[int]:
        """As `Format.says`."""
        found: set[int] = set()
        for start in range(0, len(sequences), _NAMED_MAX):
            named = ", ".join(map(str, sequences[start : start + _NAMED_MAX]))
            for batch in self.table.scan(f"sequence IN ({named})"):
                found.update(telling(batch))
        return found

    def add(self, files: Sequence[File], stamp: Stamp) -> None:
        """As `Format.add`."""
        self._seen((file.path, file.size) for file in files)
        self.table.add_files([_action(file) for file in files], self._columns, stamp)

    def forget_gone(self, stamp: Stamp) -> None:
        """None is gone: without it no reader could read the table."""

    def leftovers(self) -> int:
        """As `Format.leftovers`."""
        # Replaced files are unknown to the newest version, and still there for readers of others.
        older = max(LEFTOVER_SECONDS, self._config.history)
        unknown = self.table.unknown_files(older_seconds=older)
        names = [name for name in unknown if self._in_place(name)]
        self._folder.remove(names)
        return len(names)


class ParquetFormat(_Files):
    """`format = "parquet"`."""

    hidden = True

    def __init__(self, pipeline: str, config: ChangelogPipelineConfig) -> None:
        partitions = partition_fields(config.partition_by)
        super().__init__(pipeline, config, arrow.schema([*_FILE_FIELDS, *partitions]))

    def check(self) -> None:
        """As `Format.check`."""
        path = self._config.path.rstrip("/")
        if Table(path, storage_options=self._storage).version >= 0:
            raise self._other_format(f"{path} is a Delta table")
        self._check([])

    def finish(self, until: int) -> None:
        """Give the files of the last commit their names, where it was not done."""
        for path, size in self._committed(until):
            self._show(path, size)

    def _committed(self, until: int) -> Iterator[tuple[str, int]]:
        """Path and size of each file of the commit that had everything up to `until`."""
        wanted = {"path", "size", "until"}
        for batch in self.table.scan(f"`until` = {until}"):
            rows = batch.select([name for name in batch.schema.names if name in wanted])
            for row in rows.to_pylist():
                if row["until"] == until:
                    yield row["path"], row["size"]

    def add(self, files: Sequence[File], stamp: Stamp) -> None:
        """As `Format.add`."""
        self._seen((file.hidden, file.size) for file in files)
        until = stamp.until if stamp.moves else REPLAYS
        rows = [_row(file, until) for file in files]
        self.table.append(arrow.Table.from_pylist(rows, schema=self._columns), stamp)
        for file in files:
            self._show(file.path, file.size)

    def says(self, sequences: Sequence[int]) -> set[int]:
        """As `Format.says`."""
        wanted = np.array(sorted(sequences), np.int64)
        chosen = compute.field("sequence").isin(arrow.array(wanted))
        found: set[int] = set()
        for batch in self.table.scan():
            first, last = (batch[name].to_numpy() for name in ("first_sequence", "last_sequence"))
            may = np.searchsorted(wanted, first) < np.searchsorted(wanted, last, side="right")
            paths: list[Any] = batch["path"].filter(arrow.array(may)).to_pylist()
            for path in paths:
                found.update(telling(self._folder.rows(path, TELLING, chosen)))
        return found

    def forget_gone(self, stamp: Stamp) -> None:
        """As `Format.forget_gone`: the manifest lists them, and a start would look for them."""
        there = {name for name, _ in self._folder.files()}
        listed: set[str] = set()
        for batch in self.table.scan():
            paths: list[Any] = batch["path"].to_pylist()
            listed.update(paths)
        if gone := sorted(listed - there):
            self.table.empty(f"`path` IN ({', '.join(text(path) for path in gone)})", stamp)

    def _show(self, path: str, size: int) -> None:
        hidden = hidden_name(path)
        if self._folder.size(path) == size:
            self._folder.remove([hidden])
            return
        if self._folder.size(hidden) != size:
            raise PipelineError(
                f"pipeline {self._pipeline}: the file {path} is in the changelog's manifest, and "
                f"is not in its folder. Nothing was written. Bring it back from a backup, or "
                f"begin a new changelog at another path."
            )
        self._folder.move(hidden, path)

    def leftovers(self) -> int:
        """As `Format.leftovers`."""
        before = time.time() - LEFTOVER_SECONDS
        names = {
            name
            for name, written_at in self._folder.files()
            if written_at < before and is_hidden(name) and self._in_place(name)
        }
        if names:
            # They count, though a driver that died amid its last renames left them hidden.
            last = self.table.applied(self._pipeline, log_id=None)
            committed = [*self._committed(last), *self._committed(REPLAYS)]
            names -= {hidden_name(path) for path, _ in committed}
        self._folder.remove(names)
        return len(names)


def _action(file: File) -> AddAction:
    statistics = {
        "numRecords": file.rows,
        "minValues": file.least,
        "maxValues": file.greatest,
    }
    return AddAction(
        path=file.path,
        size=file.size,
        partition_values=dict(file.partition.values),
        modification_time=int(time.time() * 1000),
        data_change=True,
        stats=msgspec.json.encode(statistics).decode(),
    )


def _row(file: File, until: int) -> dict[str, Any]:
    partition: dict[str, Any] = dict(file.partition.values)
    if partition.get("date") is not None:
        partition["date"] = date.fromisoformat(partition["date"])
    return {
        "path": file.path,
        "size": file.size,
        "rows": file.rows,
        "first_sequence": file.least["sequence"],
        "last_sequence": file.greatest["sequence"],
        "until": until,
        **partition,
    }
