"""What a run of a pipeline would do: where it would begin, and what it would read. Writes nothing.

The destination is asked where it stands, as a run does: only it says where a run goes on. What the
service was told of the pipeline is not looked at, for a run does not look at it either.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from penstock.client.flight import LogClient, Plan, ReadRequest
from penstock.errors import ConfigError, PenstockError, TrimmedError
from penstock.event import Kind
from penstock.ports import Bounds
from penstock.progress import Progress, parse_progress
from penstock.spark.config import (
    AuditPipelineConfig,
    HistoryPipelineConfig,
    LakePipelineConfig,
    PipelineConfig,
    TablePipelineConfig,
)
from penstock.spark.destinations import destination_named, function
from penstock.spark.overtaken import overtaken
from penstock.spark.raised import own_error
from penstock.spark.table.arrow import compute
from penstock.spark.table.lake import Lake, seen_lake
from penstock.spark.target import Beginning
from penstock.spark.unknown import without_entries

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_COLUMNS: Final = (
    "collection",
    "kind",
    "key",
    "full_document",
    "full_document_before_change",
    "update_description",
)


class CollectionPlan(Struct, frozen=True, kw_only=True, rename="camel"):
    """What would be read of a collection."""

    collection: str
    entries: int
    table: str | None = None
    """Where it would go; None where the destination is not tables."""


class RunPlan(Struct, frozen=True, kw_only=True, rename="camel"):
    """What a run would do."""

    pipeline: str
    to: str
    source: str
    after: str
    """The marker behind which it would begin."""
    sequence: int
    why: str
    until: int
    """The log's head as it was asked."""
    entries: int
    """Those of this pipeline between the two."""
    bytes: int
    """Of their keys, documents and updates."""
    lost: int
    """Entries of the log between the two that retention has removed: one gap stands for them."""
    control_events: int
    """How many of them are no data: gaps, and changes of shape."""
    batches: int
    """At least so many, for max_events_per_batch."""
    collections: list[CollectionPlan]
    unknown: list[str]
    """Collections that it names, of which the log has no entry at all: misspelt, perhaps."""


def begins(
    name: str,
    config: PipelineConfig,
    bounds: Bounds,
    lake: Lake | None = None,
    whole: Callable[[], Bounds] | None = None,
) -> tuple[Progress, str]:
    """Where a run would begin, and why; `lake` is where its tables are, if it has some, and `whole`
    as in `Target.start`.

    Raises what a run would stop with before it reads, and PipelineError, DestinationError or
    TrailUnavailableError for a destination that cannot be read now.
    """
    try:
        found = _beginning(name, config, bounds, lake, whole)
    except PenstockError:
        raise
    except Exception as error:
        if not isinstance(config, LakePipelineConfig):
            raise
        raise own_error(error, pipeline=name) from error
    if found.stood is None:
        return found.after, "it is new: its destination has nothing of it"
    if found.after == found.stood:
        why = f"that is how far {destination_named(config.to).stands}"
        if found.restepped:
            changed = ", ".join(name or "all" for name in found.restepped)
            why += (
                f"; the steps of {changed} were changed, and rows that are there stay as they are"
            )
        return found.after, why
    if isinstance(config, AuditPipelineConfig):
        return found.after, (
            "its trail was made from another log, and start = 'oldest' says to read this one from "
            "its oldest entry; what the trail has is left out"
        )
    return found.after, (
        "collections were added, or tables are gone, and start = 'oldest' says to read "
        "the log again; what tables have they ignore"
    )


def _beginning(
    name: str,
    config: PipelineConfig,
    bounds: Bounds,
    lake: Lake | None,
    whole: Callable[[], Bounds] | None,
) -> Beginning:
    """As the target of a run says. A client of its database is only needed where it is one."""
    begin = destination_named(config.to).beginning
    if not begin:
        raise ConfigError(
            f"pipeline {name} goes to {config.to!r}, which does not say where a run would begin. "
            f"Nothing was read. A run says it as it begins."
        )
    found: Beginning = (
        function(begin)(name, config, bounds, whole)
        if lake is None
        else function(begin)(name, config, bounds, whole, lake=lake)
    )
    return found


def plan_of(
    name: str,
    config: PipelineConfig,
    client: LogClient,
    *,
    spark: "SparkSession | None" = None,
) -> RunPlan:
    """What a run would do now. Reads what it would read, once; with `spark`, where tables are.

    Raises as `begins`: what a run would stop with is HistoryTrimmedError, PipelineChangedError,
    StreamChangedError, TrailTakenError, DestinationError or ConfigError; and TrimmedError.
    """
    lake = None
    if isinstance(config, TablePipelineConfig | HistoryPipelineConfig):
        lake = seen_lake(config, name, spark)
    after, why = begins(name, config, client.live_bounds(), lake, client.bounds)
    planned, lost = _planned(name, config, client, after)
    begun = after if lost else planned.after
    entries = control = 1 if lost else 0
    bytes_ = 0
    counts: dict[str, int] = {}
    request = ReadRequest(
        log_id=planned.to.log_id,
        after=planned.after.sequence,
        until=planned.to.sequence,
        source=config.source,
        collections=config.names,
        columns=_COLUMNS,
    )
    for batch in client.read(request):
        entries += batch.num_rows
        bytes_ += batch.nbytes
        data = batch.filter(compute.equal(batch["kind"], int(Kind.DATA)))
        control += batch.num_rows - data.num_rows
        for one in compute.value_counts(data["collection"]).to_pylist():
            counts[one["values"]] = counts.get(one["values"], 0) + one["counts"]
    unread = [one for one in config.collections if one not in counts]
    unknown = without_entries(client, config, unread, until=begun)
    return RunPlan(
        pipeline=name,
        to=config.to,
        source=config.source,
        after=str(begun),
        sequence=begun.sequence,
        why=why,
        until=planned.to.sequence,
        entries=entries,
        bytes=bytes_,
        lost=lost,
        control_events=control,
        batches=-(-entries // config.max_events_per_batch),
        collections=[
            CollectionPlan(
                collection=one,
                entries=counts[one],
                table=None if lake is None else lake.table(one).path,
            )
            for one in sorted(counts)
        ],
        unknown=unknown,
    )


def _planned(
    name: str, config: PipelineConfig, client: LogClient, after: Progress
) -> tuple[Plan, int]:
    """What is there to read, and how many entries are gone that a gap would stand for."""
    try:
        return client.plan(after=after), 0
    except TrimmedError as error:
        if not config.outlives_retention:
            raise overtaken(name, config, error) from error
        planned = client.plan(after=parse_progress(error.oldest))
        return planned, planned.after.sequence - after.sequence
