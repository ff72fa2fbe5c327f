"""What a batch does, step by step, in the order of the log. Pure.

All steps of a batch are applied in one transaction, so its source transactions are whole.
"""

# The stubs of pyarrow leave element types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa
from msgspec import Struct, structs

from penstock.errors import ChangesLostError, PenstockError, PipelineError
from penstock.event import Kind
from penstock.spark.config import ReplicatePipelineConfig
from penstock.spark.replica.place import Stream
from penstock.spark.table.arrow import arrow, compute
from penstock.spark.table.chunk import Chunk, Collected, Control
from penstock.spark.table.declared import Declarations, declared_by
from penstock.spark.table.events import rows_follow
from penstock.spark.table.reduce import CONTROL
from penstock.spark.table.rejects import GAP, Reject
from penstock.spark.table.writing import changes_no_row
from penstock.spark.table.writing import steps_of as config_steps


class Rows(Struct, frozen=True, kw_only=True):
    """Changes of rows of one stream."""

    stream: Stream
    chunk: Chunk


class Emptied(Struct, frozen=True, kw_only=True):
    """A stream loses its rows."""

    stream: Stream
    sequence: int
    lost: bool = False
    """A rename brought others, which nobody knows."""


class DatabaseEmptied(Struct, frozen=True, kw_only=True):
    """All streams of a database lose their rows."""

    database: str
    sequence: int


class Moved(Struct, frozen=True, kw_only=True):
    """A stream's rows become those of another one, which loses its own."""

    stream: Stream
    to: Stream
    sequence: int


class Noted(Struct, frozen=True, kw_only=True):
    """Something about no row, for the rejects."""

    reject: Reject


class Refused(Struct, frozen=True, kw_only=True):
    """What was refused before the destination, for the rejects (REJECTS_SCHEMA)."""

    rows: pa.Table


Step = Rows | Emptied | DatabaseEmptied | Moved | Noted | Refused


class Stop(Struct, frozen=True, kw_only=True):
    """The pipeline ends before the commit of this entry."""

    sequence: int
    error: PenstockError


class Steps(Struct, frozen=True, kw_only=True):
    """What a batch does."""

    steps: Sequence[Step]
    stop: Stop | None
    entries: int


class Done(Struct, frozen=True, kw_only=True):
    """What a batch's steps came to."""

    rows: int = 0
    rejected: int = 0


EntriesAt = Callable[[Sequence[int]], pa.Table]
"""Gives entries of the batch by their sequences, for the rejects."""


def refused_of(refused: pa.Table | None, *, after: int, until: int) -> list[Step]:
    """The step that notes what was refused of the entries in (after, until], if there is any."""
    if refused is None:
        return []
    sequences = refused["sequence"]
    here = compute.and_(compute.greater(sequences, after), compute.less_equal(sequences, until))
    rows = refused.filter(here)
    return [Refused(rows=rows)] if rows.num_rows else []


def steps_of(
    batch: Collected,
    *,
    pipeline: str,
    config: ReplicatePipelineConfig,
    after: int,
    declarations: Declarations | None = None,
) -> Steps:
    """The steps of what is behind `after`; `declarations` are those of before the batch."""
    declared = (declarations or Declarations()).before(batch.controls)
    steps: list[Step] = []
    for control in batch.controls:
        if changes_no_row(control) or control.sequence <= after:
            continue
        steps += _rows(batch, config, after, control.sequence, declared)
        after = control.sequence
        try:
            steps += _about_all(control, pipeline, config)
        except PipelineError as error:
            stop = Stop(sequence=control.sequence, error=error)
            return Steps(steps=steps, stop=stop, entries=batch.entries)
    steps += _rows(batch, config, after, batch.chunk.last_sequence + 1, declared)
    return Steps(steps=steps, stop=None, entries=batch.entries)


def _rows(
    batch: Collected,
    config: ReplicatePipelineConfig,
    after: int,
    before: int,
    controls: Sequence[Control],
) -> Iterator[Rows]:
    chunk = batch.chunk
    sequences = chunk.sequences
    here = np.flatnonzero((sequences > after) & (sequences < before) & (chunk.roles != CONTROL))
    if not len(here):
        return
    part = chunk.take(here)
    databases = part.rows["database"].combine_chunks()
    collections = part.rows["collection"].combine_chunks()
    pairs = arrow.table([databases, collections], names=["database", "collection"])
    for pair in pairs.group_by(["database", "collection"]).aggregate([]).to_pylist():
        own = compute.and_(
            compute.equal(databases, pair["database"]),
            compute.equal(collections, pair["collection"]),
        )
        places = np.flatnonzero(own.to_numpy(zero_copy_only=False))
        stream = Stream(pair["database"], pair["collection"])
        declared = declared_by(
            (one for one in controls if one.database == stream.database),
            stream.collection,
            config_steps(config, stream.collection),
        )
        own_rows = structs.replace(part.take(places), declared=declared)
        yield Rows(stream=stream, chunk=own_rows)


def _about_all(control: Control, pipeline: str, config: ReplicatePipelineConfig) -> Iterator[Step]:
    """What an event about a whole collection does."""
    sequence, stream = control.sequence, Stream(control.database, control.collection)
    if control.kind is Kind.GAP:
        yield _lost(control, str(control.description or "gap"), pipeline, config)
    elif control.operation == "drop":
        if _follows(config, control.collection):
            yield Emptied(stream=stream, sequence=sequence)
    elif control.operation == "dropDatabase":
        yield DatabaseEmptied(database=control.database, sequence=sequence)
    elif control.operation == "rename":
        said = control.description.get("to") or {}
        to = Stream(str(said.get("db", "")), str(said.get("coll", "")))
        captured = control.description.get("targetCaptured") is not False
        if not captured or not _follows(config, to.collection):
            if _follows(config, control.collection):
                yield Emptied(stream=stream, sequence=sequence)
        elif rows_follow(control):
            yield Emptied(stream=to, sequence=sequence)
            if _follows(config, control.collection):
                yield Emptied(stream=stream, sequence=sequence)
        elif _follows(config, control.collection) and (
            config_steps(config, control.collection) != config_steps(config, to.collection)
        ):
            # Its rows are not what the steps of the new name make: what is hidden there is in them.
            what = (
                f"{control.database}.{control.collection}, which has other steps here, was renamed "
                f"to {to.database}.{to.collection}"
            )
            yield _lost(control, what, pipeline, config)
            yield Emptied(stream=to, sequence=sequence, lost=True)
            yield Emptied(stream=stream, sequence=sequence)
        elif _follows(config, control.collection):
            yield Moved(stream=stream, to=to, sequence=sequence)
        else:
            what = (
                f"{control.database}.{control.collection}, which this pipeline does not follow, "
                f"was renamed to {to.database}.{to.collection}"
            )
            yield _lost(control, what, pipeline, config)
            yield Emptied(stream=to, sequence=sequence, lost=True)
    else:
        raise PipelineError(
            f"pipeline {pipeline}: at sequence {sequence} the source says {control.operation!r} of "
            f"{control.database}.{control.collection}, and what that does to its rows is not known "
            f"here. All transactions before its own are applied, and nothing was skipped. Use a "
            f"Penstock that knows it, or begin a new pipeline with a copy of the collection."
        )


def _lost(
    control: Control, description: str, pipeline: str, config: ReplicatePipelineConfig
) -> Noted:
    if config.on_gap == "halt":
        raise ChangesLostError(
            pipeline=pipeline, sequence=control.sequence, description=description
        )
    return Noted(reject=Reject(sequence=control.sequence, reason=f"{GAP}{description}"))


def _follows(config: ReplicatePipelineConfig, collection: str) -> bool:
    return bool(collection) and (not config.collections or collection in config.collections)
