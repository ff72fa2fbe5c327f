"""`to = "table"`: keep Delta tables equal to collections (SCD type 1).

`merge_into_delta` applies one batch of entries. A table holds one row for each key, as of the last
change in the log, and no row for a deleted one. Applying a batch twice equals once (invariant 7),
whoever applies it: the tables themselves say how far they have come.

Order inside a batch: first the rejects, then the tables, each in one Delta commit with the app
transaction that guards it. A crash in between leaves a reject whose table write follows when the
batch is applied again; a row is never missing from a table without being in the rejects.

An event about a whole collection cuts the batch: what is before it is applied first, in a commit of
its own.

| event | the table |
|---|---|
| drop, dropDatabase | loses its rows; columns stay, for whoever reads them |
| rename to a collection of this pipeline | hands its rows over; what was there is replaced |
| rename to any other | loses its rows: the collection is gone |
| rename from a collection that this pipeline does not follow | cannot be known: a gap |
| gap | `on_gap`: stop, or note it in the rejects |
| create, modify, indexes, invalidate, system events | is as it was |
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import Struct

from penstock.errors import ChangesLostError
from penstock.event import Kind
from penstock.spark.apply import TableWrite, prepare, relative_keys
from penstock.spark.chunk import CHUNK_SCHEMA, INPUT_COLUMNS, Chunk, from_chunk, join, to_chunks
from penstock.spark.config import PipelineConfig
from penstock.spark.delta import Stamp, Table, secrets
from penstock.spark.reduce import CONTROL, verify_commits
from penstock.spark.rejects import REJECTS_SCHEMA, Reject, rejects_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_CHUNK_DDL = "rows binary, cells binary, commits binary, entries long, bytes long"
CUTTING = frozenset({"drop", "dropDatabase", "rename"})


class BatchResult(Struct, frozen=True, kw_only=True):
    """What a batch came to."""

    batch_id: int
    entries: int
    """Entries read."""
    rows: int
    """Rows inserted, updated or deleted in tables; 0 when the batch was applied before."""
    rejected: int
    sequence: int
    """The last one applied; 0 for an empty batch."""


def merge_into_delta(
    batch: "DataFrame",
    batch_id: int,
    *,
    pipeline: str,
    config: PipelineConfig,
    log_id: int | None = None,
) -> BatchResult:
    """Apply a batch of entries to the pipeline's tables; for use in foreachBatch.

    `batch` has the columns INPUT_COLUMNS, as `format("penstock")` gives them, in any order and
    partitioning, and holds whole commits. `pipeline` is the identity under which the tables keep
    their place: the same name goes on, another one starts over. `log_id` is the log's, so that the
    tables refuse another one. Entries applied before are ignored.

    Raises IncompleteCommitError, ChangesLostError, StreamChangedError; nothing of what follows the
    place named is written.
    """
    collected = _collect(batch, whole=not config.collections)
    cuts = [event.sequence for event in collected.controls if event.operation in CUTTING]
    if cuts:
        collected = _collect(batch, whole=not config.collections, cuts=cuts)
    run = _Run(pipeline=pipeline, config=config, log_id=log_id, batch_id=batch_id, frame=batch)
    run.apply(collected)
    sequences = collected.chunk.sequences
    return BatchResult(
        batch_id=batch_id,
        entries=collected.entries,
        rows=run.rows,
        rejected=run.rejected,
        sequence=int(sequences[-1]) if len(sequences) else 0,
    )


class Control(Struct, frozen=True, kw_only=True):
    """A schema, gap or system event, as far as tables care."""

    sequence: int
    kind: Kind
    operation: str
    source: str | None
    database: str | None
    collection: str | None
    description: dict[str, Any]


class _Collected(Struct, frozen=True, kw_only=True):
    chunk: Chunk
    controls: list[Control]
    entries: int


def _collect(frame: "DataFrame", *, whole: bool, cuts: Sequence[int] = ()) -> _Collected:
    """The batch, reduced and decoded by the workers, joined and verified here."""
    work = partial(to_chunks, cuts=tuple(cuts))
    table = frame.select(*INPUT_COLUMNS).mapInArrow(work, _CHUNK_DDL).toArrow()
    parts = [from_chunk(row) for row in _rows(table)]
    if not parts:
        return _Collected(chunk=join([]), controls=[], entries=0)
    verify_commits(pa.concat_tables([commits for _, commits in parts]), whole=whole)
    chunk = join([one for one, _ in parts], cuts=cuts)
    controls = chunk.rows.filter(pa.array(chunk.roles == CONTROL))
    return _Collected(
        chunk=chunk,
        controls=[_control(row) for row in controls.to_pylist()],
        entries=sum(table["entries"].to_pylist()),
    )


def _rows(table: pa.Table) -> Iterator[dict[str, Any]]:
    names = CHUNK_SCHEMA.names[:3]
    for batch in table.to_batches():
        for at in range(batch.num_rows):
            yield {name: batch[name][at].as_buffer() for name in names}


def _control(row: Mapping[str, Any]) -> Control:
    text = row["full_document"]
    return Control(
        sequence=row["sequence"],
        kind=Kind(row["kind"]),
        operation=row["operation_type"],
        source=row["source"],
        database=row["database"],
        collection=row["collection"],
        description=msgspec.json.decode(text) if text else {},
    )


class _Run:
    """One batch being applied."""

    def __init__(
        self,
        *,
        pipeline: str,
        config: PipelineConfig,
        log_id: int | None,
        batch_id: int,
        frame: "DataFrame",
    ) -> None:
        self._pipeline = pipeline
        self._config = config
        self._log_id = log_id
        self._batch_id = batch_id
        self._frame = frame
        self._storage = secrets(config.storage_options)
        self._tables: dict[str, Table] = {}
        self.rows = 0
        self.rejected = 0

    def apply(self, collected: _Collected) -> None:
        chunk = collected.chunk
        after = int(chunk.sequences[0]) - 1 if chunk.rows.num_rows else 0
        for control in collected.controls:
            if control.kind is Kind.GAP:
                self._changes(_between(chunk, after, control.sequence - 1))
                self._gap(control, str(control.description or control.operation))
            elif control.operation in CUTTING:
                self._changes(_between(chunk, after, control.sequence - 1))
                self._cut(control)
            else:
                continue
            after = control.sequence
        last = int(chunk.sequences[-1]) if chunk.rows.num_rows else 0
        self._changes(_between(chunk, after, last))

    # --- rows -----------------------------------------------------------------------------------

    def _changes(self, chunk: Chunk) -> None:
        """Apply a stretch without cuts: rejects first, then each table."""
        if chunk.rows.num_rows == 0:
            return
        stamp = self._stamp(int(chunk.sequences[0]) - 1, int(chunk.sequences[-1]))
        writes: list[tuple[Table, TableWrite]] = []
        names = chunk.rows["collection"].to_pylist()
        for collection in sorted({name for name in names if name}):
            table = self._table(self._config.table_path(collection))
            applied = table.applied(self._pipeline, log_id=self._log_id)
            here = np.array([name == collection for name in names])
            part = chunk.take(
                np.flatnonzero(here & (chunk.roles != CONTROL) & (chunk.sequences > applied))
            )
            if part.rows.num_rows:
                base = table.rows(relative_keys(part))
                writes.append((table, prepare(part, schema=table.schema, base=base)))
        self._reject([reject for _, write in writes for reject in write.rejects], stamp)
        for table, write in writes:
            if write.widened:
                table.rewrite(write.changes, stamp)
            else:
                table.merge(write.changes, stamp)
            self.rows += write.changes.num_rows - len(write.rejects)

    def _reject(self, rejects: list[Reject], stamp: Stamp) -> None:
        if not rejects:
            return
        table = self._table(self._config.rejects_path)
        applied = table.applied(self._pipeline, log_id=self._log_id)
        fresh = [reject for reject in rejects if reject.sequence > applied]
        if not fresh:
            return
        wanted = [reject.sequence for reject in fresh]
        # Read again rather than carried along: rejects are rare, and must be as captured.
        from pyspark.sql import functions as sql

        columns = [name for name in REJECTS_SCHEMA.names if name in INPUT_COLUMNS]
        entries = self._frame.select(*columns).where(sql.col("sequence").isin(wanted)).toArrow()
        table.append(rejects_table(self._pipeline, fresh, entries), stamp)
        self.rejected += len(fresh)

    # --- events about whole collections ---------------------------------------------------------

    def _cut(self, control: Control) -> None:
        stamp = self._stamp(control.sequence - 1, control.sequence)
        source, database = control.source or "", control.database or ""
        if control.operation == "drop":
            self._empty(control.collection or "", source, database, stamp)
        elif control.operation == "dropDatabase":
            for collection in self._config.collections:
                self._empty(collection, source, database, stamp)
        else:
            self._rename(control, source, database, stamp)

    def _rename(self, control: Control, source: str, database: str, stamp: Stamp) -> None:
        target = control.description.get("to") or {}
        here, there = control.collection or "", str(target.get("coll", ""))
        if not self._follows(there):
            self._empty(here, source, database, stamp)
            return
        del stamp

    def _empty(self, collection: str, source: str, database: str, stamp: Stamp) -> None:
        if not self._follows(collection):
            return
        table = self._table(self._config.table_path(collection))
        if table.applied(self._pipeline, log_id=self._log_id) < stamp.until:
            table.empty(_of(source, database), stamp)

    def _gap(self, control: Control, description: str) -> None:
        stamp = self._stamp(control.sequence - 1, control.sequence)
        if self._config.on_gap == "halt":
            raise ChangesLostError(
                pipeline=self._pipeline, sequence=control.sequence, description=description
            )
        self._reject([Reject(sequence=control.sequence, reason=f"gap: {description}")], stamp)

    # --- helpers --------------------------------------------------------------------------------

    def _follows(self, collection: str) -> bool:
        return not self._config.collections or collection in self._config.collections

    def _table(self, path: str) -> Table:
        if path not in self._tables:
            self._tables[path] = Table(path, storage_options=self._storage)
        return self._tables[path]

    def _stamp(self, after: int, until: int) -> Stamp:
        return Stamp(
            pipeline=self._pipeline,
            log_id=self._log_id,
            after=after,
            until=until,
            batch=self._batch_id,
        )


def _between(chunk: Chunk, after: int, until: int) -> Chunk:
    return chunk.take(np.flatnonzero((chunk.sequences > after) & (chunk.sequences <= until)))


def _of(source: str, database: str) -> str:
    return " AND ".join(
        f"`{name}` = '{value.replace(chr(39), chr(39) * 2)}'"
        for name, value in (("_source", source), ("_database", database))
    )
