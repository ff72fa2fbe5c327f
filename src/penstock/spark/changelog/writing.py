"""Workers write a batch's files; a file counts only once the driver has committed its name.

A worker holds some 32 MiB of entries at a time, however large the batch, a commit or a document
is, and writes them as row groups of the file of their folder. What a worker that dies has written
is never committed, and deleted a day later.
"""

# The stubs of pyarrow leave element types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportMissingTypeStubs=false

import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final
from uuid import uuid4

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct

from penstock.event import Kind
from penstock.spark.changelog.entries import (
    ENTRY_SCHEMA,
    Partition,
    as_rows,
    partitioned,
    without,
)
from penstock.spark.changelog.exploding import ELEMENT_FIELDS, Explode, exploded
from penstock.spark.changelog.folder import Folder
from penstock.spark.rows import range_of
from penstock.spark.storage import at_its_path, stored_at
from penstock.spark.table.arrow import arrow, compute
from penstock.spark.table.chunk import PIECE_BYTES
from penstock.spark.table.reduce import sum_commits

REPORT_DDL: Final = "report binary, commits binary"
_REPORT_SCHEMA: Final = arrow.schema([("report", pa.binary()), ("commits", pa.binary())])

_FILE_BYTES: Final = 128 << 20
_OPEN_MAX: Final = 32
"""Files that a worker writes at the same time; beyond it the one not used for longest is closed."""
_HIDDEN: Final = ".inprogress"
_NAME: Final = re.compile(r"\.?changes-[0-9]{20}-[0-9a-f]{32}\.parquet(\.inprogress)?")
_DICTIONARIES: Final[Any] = [
    "operation_type",
    "source",
    "database",
    "tenant",
    "collection",
    "transaction",
]
_BOUNDED: Final = ("sequence", "commit", "timestamp", "collection")
"""The columns whose least and greatest values are kept, so that readers skip whole files."""
_STATISTICS: Final[Any] = [
    *_BOUNDED,
    "kind",
    "operation_type",
    "source",
    "database",
    "event_id",
    "document_id",
    "key",
    "key_hash",
]


def file_schema(*, exploded: bool) -> pa.Schema:
    """The columns of a file."""
    schema: pa.Schema = arrow.schema([*ENTRY_SCHEMA, *(ELEMENT_FIELDS if exploded else ())])
    return schema


class Writing(Struct, frozen=True, kw_only=True):
    """What a worker is told."""

    path: str
    storage_options: Mapping[str, str]
    partition_by: tuple[str, ...]
    hidden: bool
    """Files get a name that no reader looks at, until the driver gives them their own."""
    attempt: str
    """16 hex digits that the names of all its files have."""
    after: int
    """Entries up to this sequence are in the changelog already."""
    before: int | None = None
    """Entries from this sequence on are not written yet."""
    untold: tuple[str, ...] = ()
    """Columns that are null, whatever an entry has there."""
    explodes: tuple[Explode, ...] = ()
    """Fields of whose elements there are rows."""
    has_elements: bool = False
    """Those rows are there already, with their columns."""

    @property
    def given(self) -> pa.Schema:
        """Of what is given."""
        return file_schema(exploded=self.has_elements)

    @property
    def schema(self) -> pa.Schema:
        """Of the files."""
        return file_schema(exploded=self.has_elements or bool(self.explodes))


class File(Struct, frozen=True, kw_only=True):
    """A file that is whole."""

    path: str
    """Below the changelog's; the name under which readers know it."""
    size: int
    rows: int
    partition: Partition
    least: dict[str, Any]
    greatest: dict[str, Any]

    @property
    def hidden(self) -> str:
        """Its name until it counts."""
        return hidden_name(self.path)


class Report(Struct, frozen=True, kw_only=True):
    """What a worker has done."""

    files: list[File] = []
    entries: int = 0
    """Entries read."""
    last: int = 0
    """The last sequence read; 0 for none."""
    timestamp: int = 0
    """When that was committed."""
    gap: int | None = None
    """The sequence of the first entry behind `Writing.after` that says that changes were lost."""
    gap_begins: int | None = None
    """That of the first entry of that one's commit."""
    lost: list[tuple[int, int]] = []
    """Ranges, each (after, until], that retention removed before they were read."""


def hidden_name(path: str) -> str:
    """The name that a file has until it counts."""
    folder, slash, name = path.rpartition("/")
    return f"{folder}{slash}.{name}{_HIDDEN}"


def is_hidden(name: str) -> bool:
    """Whether a file has such a name."""
    return name.rpartition("/")[2].startswith(".") and name.endswith(_HIDDEN)


def is_of(name: str, attempt: str) -> bool:
    """Whether a file was written by that attempt."""
    return f"-{attempt}" in name.rpartition("/")[2]


def is_ours(name: str) -> bool:
    """Whether a file has a name that only these functions give."""
    return _NAME.fullmatch(name.rpartition("/")[2]) is not None


def write_entries(
    batches: Iterable[pa.RecordBatch], *, writing: Writing
) -> Iterator[pa.RecordBatch]:
    """Write a partition of entries (all columns), and report it in one row of REPORT_DDL."""
    sums: list[pa.Table] = []
    told = Report()
    with _Files(writing) as files:
        for piece in _pieces(batches):
            sums.append(sum_commits(piece))
            told = _told(told, piece, after=writing.after)
            rows = piece.filter(compute.greater(piece["sequence"], writing.after))
            if writing.before is not None:
                rows = rows.filter(compute.less(rows["sequence"], writing.before))
            rows = without(as_rows(rows, writing.given), writing.untold)
            for made in exploded(rows, writing.explodes) if writing.explodes else (rows,):
                for partition, part in partitioned(made, writing.partition_by):
                    files.write(partition, part)
        told = msgspec.structs.replace(told, files=files.finish())
    commits = _ipc(arrow.concat_tables(sums)) if sums else None
    row = {"report": msgspec.json.encode(told), "commits": commits}
    yield pa.RecordBatch.from_pylist([row], schema=_REPORT_SCHEMA)


def read_reports(table: pa.Table) -> tuple[list[Report], list[pa.Table]]:
    """The reports of all workers, and the sums of their commits (see `verify_commits`)."""
    rows: list[Any] = table.to_pylist()
    reports = [msgspec.json.decode(row["report"], type=Report) for row in rows]
    sums = [
        arrow.ipc.open_stream(row["commits"]).read_all()
        for row in rows
        if row["commits"] is not None
    ]
    return reports, sums


def _pieces(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        held.append(batch)
        size += batch.nbytes
        if size >= PIECE_BYTES:
            yield arrow.Table.from_batches(held)
            held, size = [], 0
    if held:
        yield arrow.Table.from_batches(held)


def _told(told: Report, piece: pa.Table, *, after: int) -> Report:
    last = compute.max(piece["sequence"]).as_py()
    latest, *_ = piece.filter(compute.equal(piece["sequence"], last))["timestamp"].to_pylist()
    lost = piece.filter(compute.equal(piece["kind"], int(Kind.GAP)))
    fresh = lost.filter(compute.greater(lost["sequence"], after)).select(["sequence", "ordinal"])
    # What retention removed is of no commit.
    gaps = [(one["sequence"], one["sequence"] - (one["ordinal"] or 0)) for one in fresh.to_pylist()]
    if told.gap is not None and told.gap_begins is not None:
        gaps.append((told.gap, told.gap_begins))
    gap, gap_begins = min(gaps, default=(None, None))
    trimmed = lost.filter(compute.is_null(lost["source"]))["full_document"].to_pylist()
    newer = last > told.last
    return Report(
        entries=told.entries + piece.num_rows,
        last=last if newer else told.last,
        timestamp=(latest or 0) if newer else told.timestamp,
        gap=gap,
        gap_begins=gap_begins,
        lost=[*told.lost, *(range_of(one or "") for one in trimmed)],
    )


def _ipc(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with arrow.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


class _Files:
    """The files that a worker writes. Left by an exception, it leaves none behind."""

    def __init__(self, writing: Writing) -> None:
        self._writing = writing
        self.path = writing.path
        with stored_at(self.path):
            self._folder = Folder(writing.path, storage_options=writing.storage_options)
        self._open: OrderedDict[Partition, _OpenFile] = OrderedDict()
        self._done: list[File] = []

    def __enter__(self) -> "_Files":
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if error is None:
            return
        for opened in self._open.values():
            opened.abandon()
        self._folder.remove(self._name(file) for file in self._done)

    def _name(self, file: File) -> str:
        return file.hidden if self._writing.hidden else file.path

    @at_its_path
    def write(self, partition: Partition, rows: pa.Table) -> None:
        """Write rows of one partition as a row group of its file."""
        opened = self._open.pop(partition, None)
        if opened is None:
            if len(self._open) >= _OPEN_MAX:
                self._close(next(iter(self._open)))
            first = rows["sequence"][0].as_py()
            name = f"changes-{first:020d}-{self._writing.attempt}{uuid4().hex[:16]}.parquet"
            path = f"{partition.folder}{name}"
            opened = _OpenFile(
                self._folder,
                partition,
                path,
                schema=self._writing.schema,
                hidden=self._writing.hidden,
            )
        self._open[partition] = opened
        opened.write(rows)
        if opened.size >= _FILE_BYTES:
            self._close(partition)

    def _close(self, partition: Partition) -> None:
        self._done.append(self._open[partition].close())
        del self._open[partition]

    @at_its_path
    def finish(self) -> list[File]:
        """Close what is open. All files that were written."""
        for partition in list(self._open):
            self._close(partition)
        return self._done


class _OpenFile:
    """A file that is being written."""

    def __init__(
        self,
        folder: Folder,
        partition: Partition,
        path: str,
        *,
        schema: pa.Schema,
        hidden: bool,
    ) -> None:
        self._file = File(path=path, size=0, rows=0, partition=partition, least={}, greatest={})
        self._folder = folder
        self._name = self._file.hidden if hidden else path
        self._stream = folder.create(self._name)
        self._writer = pq.ParquetWriter(
            self._stream,
            schema,
            compression="zstd",
            compression_level=1,
            use_dictionary=_DICTIONARIES,
            write_statistics=_STATISTICS,
        )

    @property
    def size(self) -> int:
        """Bytes written until now."""
        return int(self._stream.tell())

    def write(self, rows: pa.Table) -> None:
        """Add a row group."""
        file = self._file
        least, greatest = dict(file.least), dict(file.greatest)
        for name in _BOUNDED:
            found = compute.min_max(rows[name]).as_py()
            if found["min"] is not None:
                least[name] = min(least.get(name, found["min"]), found["min"])
                greatest[name] = max(greatest.get(name, found["max"]), found["max"])
        self._writer.write_table(rows)
        self._file = msgspec.structs.replace(
            file, rows=file.rows + rows.num_rows, least=least, greatest=greatest
        )

    def close(self) -> File:
        """Have it whole and durable."""
        self._writer.close()
        size = self.size
        self._stream.close()
        self._folder.keep(self._name)
        return msgspec.structs.replace(self._file, size=size)

    def abandon(self) -> None:
        """Have no such file."""
        self._writer.close()
        self._stream.close()
        self._folder.remove([self._name])
