"""`to = "audit"`: every change of a source into an audit trail in MongoDB, from Spark.

Workers make records of entries, with their leaves (`penstock.audit.entries`); this process gives
them their places and writes them, in order (`penstock.audit.writing`). A batch is never held whole:
it comes in pieces, through files where the workers are on this machine, else a partition at a time.
"""

# The stubs of pyarrow leave element types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import pyarrow as pa
import structlog

from penstock.archive.opening import log_client
from penstock.audit.entries import entry_of, said_range
from penstock.audit.outages import Patience, StoppedError
from penstock.audit.packing import Entry, Packer, Step, Tally
from penstock.audit.records import COLUMNS
from penstock.audit.trail import Trail
from penstock.audit.writing import Writer
from penstock.client.credentials import NOBODY, Credentials
from penstock.errors import ChangesLostError, HistoryTrimmedError, StreamChangedError
from penstock.event import Kind
from penstock.ports import Bounds
from penstock.progress import Progress, parse_progress
from penstock.spark.config import AuditPipelineConfig
from penstock.spark.pipeline_run import PipelineRun
from penstock.spark.scratch import shared_scratch
from penstock.spark.table.arrow import arrow
from penstock.spark.tallies import tallies_of
from penstock.spark.target import Applied, Beginning, TargetStoppedError
from penstock.spark.within import Places, ending_at
from penstock.subscribe.current import Declared

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

logger = structlog.get_logger(__name__)

_PIECE_DDL: Final = "first long, data binary, file string"
_PIECE_SCHEMA: Final = arrow.schema(
    [("first", pa.int64()), ("data", pa.binary()), ("file", pa.string())]
)
_PIECE_BYTES: Final = 16 << 20
_PATIENCE_SECONDS: Final = 5.0
"""So long a service that is away is waited for within a batch; then the batch begins anew."""
_ENTRY_SCHEMA: Final = arrow.schema(
    [
        ("sequence", pa.int64()),
        ("check", pa.uint64()),
        ("commit", pa.int64()),
        ("commit_rows", pa.int64()),
        ("commit_digest", pa.uint64()),
        ("id", pa.string()),
        ("record", pa.large_binary()),
        ("salt", pa.binary()),
        ("leaf", pa.binary()),
        ("spilled", pa.large_binary()),
        ("timestamp", pa.int64()),
        ("kind", pa.int8()),
    ]
)
assert tuple(_ENTRY_SCHEMA.names) == Entry._fields


class AuditTarget:
    """The trail of a pipeline."""

    columns = COLUMNS

    def __init__(
        self,
        pipeline: str,
        config: AuditPipelineConfig,
        endpoint: str,
        *,
        stopping: threading.Event,
        credentials: Credentials = NOBODY,
        archive: str = "",
    ) -> None:
        """`endpoint` is the service's Flight address, where it is asked what each commit has;
        `archive` that of its archive, for those that the log no longer holds."""
        self._pipeline = pipeline
        self._config = config
        self._log = log_client(
            endpoint,
            archive=archive,
            patience_seconds=_PATIENCE_SECONDS,
            credentials=credentials,
        )
        self._after: Progress | None = None
        """Where the next batch begins."""
        self._trail = Trail(config.source, config)
        self._patience = Patience(self._trail, stopping=stopping)
        self._writer: Writer | None = None

    def start(self, bounds: Bounds, whole: Callable[[], Bounds] | None = None) -> Progress:
        """As `Target.start`. Raises TrailTakenError, HistoryTrimmedError, StreamChangedError."""
        self._writer = Writer(
            self._trail,
            self._pipeline,
            patience=self._patience,
            collections=self._config.collections,
        )
        try:
            head = self._writer.open()
        except StoppedError:
            raise TargetStoppedError from None
        after = decide_start(
            self._pipeline,
            head.progress,
            bounds,
            knowingly=self._config.start == "oldest",
            whole=whole,
        )
        if head.progress and str(after) != head.progress:
            logger.warning(
                "the log is read again from its oldest entry; what the trail has is left out",
                pipeline=self._pipeline,
                sequence=after.sequence,
            )
        self._after = after
        return after

    def declare(self, declared: Sequence[Declared]) -> None:
        """Nothing here has types of its own."""

    def apply(
        self,
        batch: "DataFrame",
        batch_id: int,  # noqa: ARG002
        *,
        until: Progress,
        refused: pa.Table | None = None,  # noqa: ARG002 - it takes no steps
    ) -> Applied:
        """As `Target.apply`. Raises AuditError, IncompleteCommitError, ServiceUnavailableError."""
        writer, after = self._writer, self._after
        assert writer is not None
        assert after is not None
        before, read = writer.written, _Read()
        places = Places(self._log, after=after, until=until)
        tallies = tallies_of(
            self._log,
            after=after,
            until=until,
            source=self._config.source,
            names=self._config.names,
        )
        steps = ending_at(self._steps(batch, tallies, read), until.sequence)
        try:
            writer.write(steps, marker=lambda sequence: str(places.at(sequence)))
            writer.save(str(until))
        except StoppedError:
            raise TargetStoppedError from None
        self._after = until
        return Applied(
            entries=read.entries,
            rows=writer.written - before,
            sequence=read.last.sequence if read.last else 0,
            timestamp=read.last.timestamp if read.last else 0,
            lost=tuple(read.lost),
        )

    def _steps(self, batch: "DataFrame", tallies: Iterator[Tally], read: "_Read") -> Iterator[Step]:
        entries = self._entries(batch)
        # Asked for behind the entries: what retention removes meanwhile was read.
        first = next(entries, None)
        packer = Packer(
            events_max=self._config.batch_events,
            bytes_max=self._config.batch_bytes,
            tallies=tallies,
        )
        for entry in chain([] if first is None else [first], entries):
            read.entries += 1
            if entry.kind == Kind.GAP and self._config.on_gap == "halt":
                yield from packer.before(entry)
                raise ChangesLostError(
                    pipeline=self._pipeline,
                    sequence=entry.sequence,
                    description="a gap of the source",
                )
            if entry.is_trimmed:
                read.lost.append(said_range(entry))
            read.last = entry
            yield from packer.add(entry)
        yield from packer.end()

    def _entries(self, batch: "DataFrame") -> Iterator[Entry]:
        config = self._config
        with shared_scratch(batch.sparkSession) as scratch:
            assert self._writer is not None
            work = partial(
                _made_ready,
                tz=config.tz,
                bytes_max=config.batch_bytes,
                id_key=self._writer.head.id_key,
                scratch=scratch,
            )
            pieces = batch.select(*COLUMNS).mapInArrow(work, _PIECE_DDL)
            # Files cost the driver nothing; what comes inline is taken a partition at a time.
            found: Iterable[Any] = pieces.toLocalIterator() if scratch is None else pieces.collect()
            if scratch is not None:
                found = sorted(found, key=lambda piece: piece["first"])
            for piece in found:
                yield from _entries_of(piece)

    def save(self, batch_id: int) -> None:  # noqa: ARG002
        """As `Target.save`."""
        if self._writer is not None:
            try:
                self._writer.flush()
            except StoppedError:
                raise TargetStoppedError from None

    def close(self) -> None:
        """Close the connections."""
        self._trail.close()
        self._log.close()


class _Read:
    """How much of a batch was read."""

    entries = 0
    last: Entry | None = None

    def __init__(self) -> None:
        self.lost: list[tuple[int, int]] = []


def open_target(run: PipelineRun) -> AuditTarget:
    """The target of a pipeline to `audit`."""
    return AuditTarget(
        *(run.name, run.config, run.endpoint),
        stopping=run.stopping,
        credentials=run.credentials,
        archive=run.archive,
    )


def beginning_of_trail(
    pipeline: str,
    config: AuditPipelineConfig,
    bounds: Bounds,
    whole: Callable[[], Bounds] | None = None,
) -> Beginning:
    """Where `AuditTarget.start` would begin; raises as it does, and writes nothing. MongoDB is
    asked once: TrailUnavailableError where it does not answer."""
    trail = Trail(config.source, config)
    try:
        patience = Patience(trail, stopping=threading.Event())
        writer = Writer(trail, pipeline, patience=patience, collections=config.collections)
        head = writer.look()
    finally:
        trail.close()
    marker = "" if head is None else head.progress
    knowingly = config.start == "oldest"
    after = decide_start(pipeline, marker, bounds, knowingly=knowingly, whole=whole)
    return Beginning(after=after, stood=parse_progress(marker) if marker else None)


def decide_start(
    pipeline: str,
    marker: str,
    bounds: Bounds,
    *,
    knowingly: bool,
    whole: Callable[[], Bounds] | None = None,
) -> Progress:
    """Where a trail goes on that has everything up to `marker` (empty: nothing). Pure; `whole` as
    in `Target.start`.

    `knowingly` allows to begin at the oldest entry that is left, for a new trail, or in another log
    than before: what is in the trail is left out by its id, and what the log lacks is missing.

    Raises HistoryTrimmedError, StreamChangedError.
    """
    whole = whole or (lambda: bounds)
    if not marker:
        held = whole()
        if held.trimmed and not knowingly:
            raise HistoryTrimmedError(pipeline=pipeline, trimmed=held.trimmed)
        return Progress(held.log_id, held.trimmed, held.trimmed_check)
    after = parse_progress(marker)
    if after.log_id == bounds.log_id:
        return after
    if not knowingly:
        raise StreamChangedError(
            f"the trail of pipeline {pipeline} was made from log {after.log_id:016x}, and this is "
            f"log {bounds.log_id:016x}. Nothing was written, and the trail is safe. Set start = "
            f"'oldest' to read this log from its oldest entry: what the trail has already is left "
            f"out by its id"
        )
    held = whole()
    return Progress(held.log_id, held.trimmed, held.trimmed_check)


# --- workers ------------------------------------------------------------------------------------


def _made_ready(
    batches: Iterable[pa.RecordBatch],
    *,
    tz: str,
    bytes_max: int,
    id_key: bytes,
    scratch: str | None,
) -> Iterator[pa.RecordBatch]:
    """Pieces (_PIECE_SCHEMA, one a batch) of a partition's entries, in their order."""
    ready: list[Entry] = []
    size = 0
    for batch in batches:
        for row in batch.to_pylist():
            entry = entry_of(row, tz=tz, bytes_max=bytes_max, id_key=id_key)
            ready.append(entry)
            size += 200 + len(entry.record or b"") + len(entry.spilled or b"")
            if size >= _PIECE_BYTES:
                yield _piece(ready, scratch)
                ready, size = [], 0
    if ready:
        yield _piece(ready, scratch)


def _piece(entries: list[Entry], scratch: str | None) -> pa.RecordBatch:
    columns = zip(*entries, strict=True)
    table = arrow.table(
        [
            arrow.array(list(column), field.type)
            for column, field in zip(columns, _ENTRY_SCHEMA, strict=True)
        ],
        schema=_ENTRY_SCHEMA,
    )
    data = file = None
    if scratch is None:
        sink = pa.BufferOutputStream()
        _write(table, sink)
        data = sink.getvalue().to_pybytes()
    else:
        path = Path(scratch) / f"{uuid4().hex}.arrow"
        with pa.OSFile(str(path), "wb") as opened:
            _write(table, opened)
        file = str(path)
    row = {"first": entries[0].sequence, "data": data, "file": file}
    return pa.RecordBatch.from_pylist([row], schema=_PIECE_SCHEMA)


def _write(table: pa.Table, sink: Any) -> None:
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)


def _entries_of(piece: Any) -> Iterator[Entry]:
    file = piece["file"]
    with pa.OSFile(file, "rb") if file else pa.BufferReader(piece["data"]) as source:
        for batch in pa.ipc.open_stream(source):
            for values in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                yield Entry(*values)
    if file:
        Path(file).unlink()
