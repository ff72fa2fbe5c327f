"""What a run of a pipeline would do: where it would begin, and what it would read. Writes nothing.

For tables, of rows or of versions, the destination is asked, as a run does. Other destinations
cannot be asked without being opened to write, so where they stand is what their driver last told
the service.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from penstock.client.flight import LogClient, ReadRequest
from penstock.client.pipelines import PipelineStatus
from penstock.errors import HistoryTrimmedError, RequestError
from penstock.event import Kind
from penstock.ports import Bounds
from penstock.progress import Progress, parse_progress
from penstock.spark.config import HistoryPipelineConfig, PipelineConfig, TablePipelineConfig
from penstock.spark.table.arrow import compute
from penstock.spark.table.lake import Lake, seen_lake
from penstock.spark.table.standing import StandingTable

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
    control_events: int
    """How many of them are no data: gaps, and changes of shape."""
    batches: int
    """At least so many, for max_events_per_batch."""
    collections: list[CollectionPlan]


def begins(
    name: str,
    config: PipelineConfig,
    bounds: Bounds,
    known: PipelineStatus | None,
    lake: Lake | None = None,
    whole: Callable[[], Bounds] | None = None,
) -> tuple[Progress, str]:
    """Where a run would begin, and why; `lake` is where its tables are, if it has some, and `whole`
    as in `Target.start`. Raises what a run would stop with before it reads."""
    if isinstance(config, TablePipelineConfig | HistoryPipelineConfig):
        standing = StandingTable(config, name, lake)
        start = standing.start(bounds, whole)
        stood = standing.stood
        if stood is None:
            return start.after, "it is new: its destination has nothing of it"
        if start.after != stood:
            return start.after, (
                "collections were added, or tables are gone, and start = 'oldest' says to read "
                "the log again; what tables have they ignore"
            )
        return start.after, "that is how far its tables have come, as the row beside them says"
    if known is not None:
        return parse_progress(known.progress), (
            "that is how far its destination has come, as its driver last told the service"
        )
    held = bounds if whole is None else whole()
    if held.trimmed and config.start == "beginning":
        raise HistoryTrimmedError(pipeline=name, trimmed=held.trimmed)
    return Progress(
        held.log_id, held.trimmed, held.trimmed_check
    ), "the service knows nothing of it, so it is taken to be new"


def plan_of(
    name: str,
    config: PipelineConfig,
    client: LogClient,
    known: PipelineStatus | None,
    *,
    spark: "SparkSession | None" = None,
) -> RunPlan:
    """What a run would do now. Reads what it would read, once; with `spark`, where tables are.

    Raises what a run would stop with: HistoryTrimmedError, PipelineChangedError,
    StreamChangedError, TrimmedError, ConfigError.
    """
    lake = None
    if isinstance(config, TablePipelineConfig | HistoryPipelineConfig):
        lake = seen_lake(config, name, spark)
    after, why = begins(name, config, client.live_bounds(), known, lake, client.bounds)
    planned = client.plan(after=after)
    entries = bytes_ = control = 0
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
    return RunPlan(
        pipeline=name,
        to=config.to,
        source=config.source,
        after=str(planned.after),
        sequence=planned.after.sequence,
        why=why,
        until=planned.to.sequence,
        entries=entries,
        bytes=bytes_,
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
    )


def reset_place(client: LogClient, asked: str) -> Progress:
    """The place that `beginning`, `oldest` or a marker names, as this log has it.

    Raises MalformedProgressError, TrimmedError, StreamChangedError or AheadError for a marker that
    cannot be resumed from, and RequestError for one inside a commit.
    """
    bounds = client.bounds()
    if asked == "beginning":
        return Progress(bounds.log_id, 0, 0)
    if asked == "oldest":
        return Progress(bounds.log_id, bounds.trimmed, bounds.trimmed_check)
    place = client.plan(after=parse_progress(asked), until=parse_progress(asked)).after
    if place.sequence > bounds.trimmed:
        before = client.marker(log_id=place.log_id, sequence=place.sequence - 1)
        if client.plan(after=before, events_max=1).to.sequence != place.sequence:
            raise RequestError(
                f"the marker {asked} is inside a transaction, and those are applied whole. "
                f"Nothing was changed. Take one at a transaction's end, as `penstock pipeline "
                f"list --json` shows."
            )
    return place
