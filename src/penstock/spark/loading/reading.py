"""Ranges of keys read from the source itself, in Spark's tasks."""

# The stubs of pyarrow leave element types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec
import pyarrow as pa
from msgspec import Struct, structs

from penstock.event import ChangeEvent, Kind, Operation
from penstock.ports import InexactRow, KeyRange, ReadsRanges
from penstock.spark.loading.parts import Part
from penstock.spark.scratch import shared_scratch
from penstock.spark.table.arrow import arrow, compute
from penstock.spark.table.chunk import CHUNK_SCHEMA, Chunk, from_chunks, to_chunks
from penstock.spark.table.declared import kinds_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class ReadableSource(ReadsRanges, Protocol):
    """What the load needs of a source."""

    async def close(self) -> None: ...


OpenSource = Callable[[], ReadableSource]
"""Makes the source, in this process or in a worker; it connects when it is asked for something."""

_READ_DDL: Final = (
    "rows binary, cells binary, file string, size long, commits binary, first long, entries long, "
    "part long, read_at string, inexact binary, varying binary"
)
_READ_SCHEMA: Final = arrow.schema(
    [
        *CHUNK_SCHEMA,
        ("part", pa.int64()),
        ("read_at", pa.string()),
        ("inexact", pa.binary()),
        ("varying", pa.binary()),
    ]
)
"""A chunk of a part; or, without one, that the part was read, when, and which of its rows have no
exact form."""
_ROWS_BITS: Final = 40
"""A row's number in its part; above it is the part's. Only to tell rows apart on the way."""

_ENTRIES: Final = arrow.schema(
    [
        ("sequence", pa.int64()),
        ("commit", pa.int64()),
        ("commit_rows", pa.int64()),
        ("commit_digest", pa.int64()),
        ("check", pa.int64()),
        ("kind", pa.int8()),
        ("operation_type", pa.string()),
        ("source", pa.string()),
        ("database", pa.string()),
        ("collection", pa.string()),
        ("key", pa.string()),
        ("full_document", pa.string()),
        ("update_description", pa.string()),
        ("disambiguated_paths", pa.string()),
        ("unchanged", pa.list_(pa.string())),
        ("timestamp", pa.int64()),
        ("snapshot", pa.bool_()),
        ("full_document_as_of_event", pa.bool_()),
    ]
)
"""INPUT_COLUMNS of rows that no log has: they are of no commit."""


class PartRows(Struct, frozen=True, kw_only=True):
    """What was read of a part."""

    chunks: list[Chunk]
    read_at: str
    size: int
    """Bytes that the driver holds of it."""
    rows: int
    inexact: list[InexactRow]
    """Those of the rows of which nothing is told; in the chunks they have neither a document nor
    what changed."""


def read_parts(
    spark: "SparkSession",
    parts: Sequence[Part],
    open_source: OpenSource,
    *,
    position: str,
) -> list[PartRows]:
    """All rows of `parts`, each part by a task of its own, as of `position` of the log or newer.

    Raises what the source raises, as Spark hands it on.
    """
    count = len(parts)
    with shared_scratch(spark) as scratch:
        work = partial(
            _read,
            ranges=[part.range for part in parts],
            open_source=open_source,
            position=position,
            scratch=scratch,
        )
        table = spark.range(0, count, 1, count).mapInArrow(work, _READ_DDL).toArrow()
        return [_part_rows(table.filter(compute.equal(table["part"], at))) for at in range(count)]


def _part_rows(table: pa.Table) -> PartRows:
    """What the tasks say of one part: its chunks, and when all of it was read."""
    read_at: list[Any] = table["read_at"].drop_null().to_pylist()
    inexact: list[Any] = table["inexact"].drop_null().to_pylist()
    varying: list[Any] = table["varying"].drop_null().to_pylist()
    chunks = table.filter(compute.is_null(table["read_at"]))
    sizes: list[Any] = chunks["size"].to_pylist()
    rows: list[Any] = chunks["entries"].to_pylist()
    declared = kinds_of(msgspec.json.decode(varying[0], type=dict[str, str]))
    return PartRows(
        chunks=[structs.replace(one, declared=declared) for one, _ in from_chunks(chunks)],
        read_at=read_at[0],
        size=sum(sizes),
        rows=sum(rows),
        inexact=msgspec.json.decode(inexact[0], type=list[InexactRow]),
    )


def _read(
    batches: Iterable[pa.RecordBatch],
    *,
    ranges: Sequence[KeyRange],
    open_source: OpenSource,
    position: str,
    scratch: str | None,
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        numbers: list[Any] = batch.column(0).to_pylist()
        for number in numbers:
            reading = Reading(number, ranges[number], open_source, position)
            batches_read = chain(reading.batches(), reading.inexact_batches())
            for chunk in to_chunks(batches_read, cuts=(), scratch=scratch):
                nothing = [arrow.nulls(1, one.type) for one in list(_READ_SCHEMA)[-3:]]
                columns = [*chunk.columns, arrow.array([number]), *nothing]
                yield arrow.RecordBatch.from_arrays(columns, schema=_READ_SCHEMA)
            inexact = msgspec.json.encode(reading.inexact)
            varying = msgspec.json.encode(reading.varying)
            end = {
                "part": number,
                "read_at": reading.read_at,
                "inexact": inexact,
                "varying": varying,
            }
            yield arrow.RecordBatch.from_pylist([end], schema=_READ_SCHEMA)


class Reading:
    """Reads one range; `read_at` and `inexact` are known once all of it is read."""

    def __init__(self, number: int, part: KeyRange, open_source: OpenSource, position: str) -> None:
        self._number = number
        self._part = part
        self._open_source = open_source
        self._position = position
        self._first = number << _ROWS_BITS
        self.read_at = ""
        self.inexact: list[InexactRow] = []
        self.varying: dict[str, str] = {}

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows that have an exact form."""
        rest: KeyRange | None = self._part
        with asyncio.Runner() as runner:
            source = self._open_source()
            try:
                while rest is not None:
                    read = runner.run(source.read_range(rest, position=self._position))
                    rest, self.read_at = read.rest, read.read_at
                    self.inexact += read.inexact
                    self.varying |= read.varying
                    if read.events:
                        yield entries_of(read.events, first=self._first)
                        self._first += len(read.events)
            finally:
                runner.run(source.close())

    def inexact_batches(self) -> Iterator[pa.RecordBatch]:
        """The other rows, once those are read: as changes that say nothing but their key."""
        if self.inexact:
            yield untold_entries_of(self.inexact, first=self._first)


def entries_of(events: Sequence[ChangeEvent], *, first: int) -> pa.RecordBatch:
    """Events as the columns of entries, numbered from `first`."""
    rows = [
        {
            "sequence": first + at,
            "kind": int(Kind.DATA),
            "operation_type": event.operation.value,
            "source": event.source,
            "database": event.database,
            "collection": event.collection,
            "key": bytes(event.key).decode(),
            "full_document": bytes(event.full_document or b"").decode(),
            "timestamp": event.timestamp,
            "snapshot": event.snapshot,
            "full_document_as_of_event": event.full_document_as_of_event,
        }
        for at, event in enumerate(events)
    ]
    entries: pa.RecordBatch = arrow.RecordBatch.from_pylist(rows, schema=_ENTRIES)
    return entries


def untold_entries_of(inexact: Sequence[InexactRow], *, first: int) -> pa.RecordBatch:
    """Rows of which nothing is told but their key as such entries, numbered from `first`."""
    rows = [
        {
            "sequence": first + at,
            "kind": int(Kind.DATA),
            "operation_type": Operation.INSERT.value,
            "source": row.source,
            "database": row.database,
            "collection": row.collection,
            "key": row.key,
        }
        for at, row in enumerate(inexact)
    ]
    entries: pa.RecordBatch = arrow.RecordBatch.from_pylist(rows, schema=_ENTRIES)
    return entries
