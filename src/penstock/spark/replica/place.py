"""Where a pipeline stands: one row, written in the transaction that writes what it is about. Pure.

Rows need no sequence of their own. Whoever writes locks the place, applies only what is behind it,
and moves it, in one transaction; so no change that is at or before the place is ever applied again,
a deleted row needs no tombstone, and a commit of which nobody knows whether it went through is
asked about by reading the place. `epoch` tells drivers apart: the newer one wins, and the older one
finds that out before it writes.
"""

from collections.abc import Callable, Collection, Mapping

from msgspec import Struct, structs

from penstock.errors import HistoryTrimmedError, PipelineChangedError, StreamChangedError
from penstock.ports import Bounds
from penstock.progress import Progress
from penstock.spark.config import ReplicatePipelineConfig


class Place(Struct, frozen=True, kw_only=True):
    """How far a pipeline has come, and what it reads."""

    pipeline: str
    source: str
    collections: tuple[str, ...]
    epoch: int
    """Each run of a driver has the next one."""
    progress: Progress
    """Everything up to here is in the destination, and nothing behind it."""


class Stream(Struct, frozen=True, order=True):
    """What is replicated into one table."""

    database: str
    collection: str


def decide_start(
    pipeline: str,
    config: ReplicatePipelineConfig,
    *,
    place: Place | None,
    tables: Mapping[str, Stream],
    gone: Collection[str],
    bounds: Bounds,
    whole: Callable[[], Bounds] | None = None,
) -> Place:
    """The place of a run that begins now.

    `place` is what is stored, `tables` are those that the pipeline has, with what is replicated
    into them, and `gone` those of them that are not there any more; `whole` is as in
    `Target.start`.

    Raises HistoryTrimmedError, StreamChangedError, PipelineChangedError.
    """
    remedy = (
        "in another database, or remove its rows in _penstock_pipelines and _penstock_tables with "
        "its tables, to begin anew"
    )
    if place is None:
        if tables:
            change = f"its place is gone, and its tables {_names(tables)} are there"
            raise PipelineChangedError(pipeline=pipeline, change=change, remedy=remedy, new="name")
        held = bounds if whole is None else whole()
        if held.trimmed and config.start != "oldest":
            raise HistoryTrimmedError(pipeline=pipeline, trimmed=held.trimmed)
        return Place(
            pipeline=pipeline,
            source=config.source,
            collections=config.collections,
            epoch=1,
            progress=Progress(held.log_id, held.trimmed, held.trimmed_check),
        )
    changes: list[str] = []
    if place.source != config.source:
        changes.append(f"its tables were made from source {place.source}, not {config.source}")
    added = set(config.collections) - set(place.collections) if place.collections else set[str]()
    if place.collections and (added or not config.collections):
        changes.append(f"{_names(added) or 'every other collection'} was added to its collections")
    if gone:
        changes.append(f"its table {_names(gone)} is gone")
    if moved := _moved(config, tables):
        name, stream, now = moved[0]
        more = f" (and {len(moved) - 1} others alike)" if len(moved) > 1 else ""
        if not changes and not tables.keys() & {one for *_, one in moved}:
            remedy = "with which it begins where the log does, or set `table` back as it was"
        changes.append(
            f"its `table` was changed: the rows of {stream.database}.{stream.collection} are in "
            f"{name}, and what comes would be in {now}{more}"
        )
    if changes:
        raise PipelineChangedError(
            pipeline=pipeline, change=" and ".join(changes), remedy=remedy, new="name"
        )
    if place.progress.log_id != bounds.log_id:
        raise StreamChangedError(
            f"what pipeline {pipeline} has written was made from log {place.progress.log_id:016x}, "
            f"and this is log {bounds.log_id:016x}. Nothing was written, and what is there is "
            f"safe. Give the pipeline a new name {remedy}"
        )
    return structs.replace(place, collections=config.collections, epoch=place.epoch + 1)


def remedy_of_taken(*, own: bool) -> str:
    """What helps a stream whose table has the rows of another one, of this pipeline if `own`."""
    said = "and a `table` that tells them apart, as '{database}_{collection}'"
    other = "" if own else ", or another `database`"
    return f"Give the pipeline a new name {said}{other}: it begins where the log does."


def _moved(
    config: ReplicatePipelineConfig, tables: Mapping[str, Stream]
) -> list[tuple[str, Stream, str]]:
    """Tables of streams that are still followed, and would be written under another name."""
    return [
        (name, stream, now)
        for name, stream in sorted(tables.items())
        if not config.collections or stream.collection in config.collections
        if (now := config.table_of(stream.database, stream.collection)) != name
    ]


def _names(names: Collection[str]) -> str:
    return ", ".join(sorted(names))
