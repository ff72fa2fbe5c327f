"""Whether a pipeline's tables are what the log says they are, and how to make them so.

The log is applied anew, up to where the tables say they have come, to tables beside them; commits
are verified by their counts and digests on the way, as for any pipeline. Then both are compared by
ranges of the keys' hash: rows are counted and summed in Spark's tasks, and only ranges that differ
are compared row by row. Values are never told, only keys and the names of columns. What follows
from where batches ended, and not from the log, is no difference: of tables of current rows
(`penstock.spark.table.judging`), and of all versions (`penstock.spark.history.judging`).

With steps the log goes through them anew, as they are now: each is about one document, so what it
makes of a change follows from that change (`penstock.spark.transform.rowwise`).

It may run beside the pipeline: tables are compared at the versions that belong together.
"""

# The stubs of pyarrow leave element types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from msgspec import Struct

from penstock.archive.opening import log_client
from penstock.client.credentials import NOBODY, Credentials
from penstock.client.flight import LogClient
from penstock.errors import ConfigError, PartialViewError, PipelineError
from penstock.progress import Progress
from penstock.spark import register
from penstock.spark.config import (
    HistoryPipelineConfig,
    LakePipelineConfig,
    SteppedPipelineConfig,
    TablePipelineConfig,
)
from penstock.spark.config.reading import ReadingConfig
from penstock.spark.history.columns import VERSION_COLUMNS
from penstock.spark.history.judging import judged_versions
from penstock.spark.mending import refuse_running
from penstock.spark.options import credential_options
from penstock.spark.progress import StepTeller, VerifyProgress, step_teller
from penstock.spark.scratch import scratch_folder
from penstock.spark.table.comparing import Compared, set_apart
from penstock.spark.table.delta import Table, text
from penstock.spark.table.judging import Told, begin_as, judged_by_log
from penstock.spark.table.lake import Folders, KeptTable, Lake, seen_lake
from penstock.spark.table.plan import OWN_COLUMNS, SEQUENCE
from penstock.spark.table.rejects import GAP
from penstock.spark.table.stamp import Stamp
from penstock.spark.table.standing import (
    Standing,
    StandingTable,
    followed_tables,
    has_loaded,
    refuse_others,
)
from penstock.spark.table.unfollowed import Unfollowed
from penstock.spark.tables import TableTarget
from penstock.spark.target import Target
from penstock.spark.transform.stage import Stage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TRIES: Final = 20
_PAUSE_SECONDS: Final = 0.5


class Verified(Struct, frozen=True, kw_only=True):
    """What was found."""

    pipeline: str
    progress: str
    """Up to where the log was applied: the tables' own place."""
    tables: tuple[Compared, ...]
    against: str = "log"
    """What they were compared with: `log` or `source`."""

    @property
    def sound(self) -> bool:
        """Whether every table is what the log, or the source, says."""
        return not any(one.differences for one in self.tables)


def verify_tables(
    name: str,
    config: TablePipelineConfig | HistoryPipelineConfig,
    endpoint: str,
    *,
    spark: "SparkSession",
    scratch: str | None = None,
    ranges: int = 256,
    listed_max: int = 1000,
    repair: bool = False,
    credentials: Credentials = NOBODY,
    archive: str = "",
    between: AbstractContextManager[Any] | None = None,
    on_progress: Callable[[VerifyProgress], None] | None = None,
) -> Verified:
    """Compare the tables of a pipeline with its log; with `repair`, make them equal.

    `scratch` is a path that workers can read, for the tables beside; without it a folder on this
    machine, for a session on it. The session sees tables that are in a catalog. `archive` is where
    the service's [archive] is. `between` is held while it is looked where the tables stand: whoever
    writes them waits. `on_progress` is told how far it is, as `run_pipeline` tells it. Repairing
    needs a pipeline that does not run.

    Raises ConfigError for a pipeline with a first load, now or before, whose tables the log does
    not tell, and for one that explodes arrays; PipelineError where the pipeline never ran, moves on
    too fast to be looked at, is in the midst of a rename, or moved while it was repaired, then
    nothing of that table was changed; HistoryTrimmedError where the log's beginning is gone, with
    start = 'oldest' too; PipelineChangedError where the tables are not those of this configuration;
    as `merge_into_delta` else.
    """
    refuse_elements(name, config)
    if isinstance(config, TablePipelineConfig) and has_loaded(config):
        raise ConfigError(
            f"pipeline {name} has a first load, or had one, which is kept at {config.load_path}: "
            f"its tables have rows that the log does not tell. Nothing was compared or changed. "
            f"Compare with the source itself: penstock pipeline verify {name} --against source."
        )
    register(spark)
    lake = seen_lake(config, name, spark)
    if repair:
        with log_client(endpoint, archive=archive, credentials=credentials) as client:
            refuse_running(name, config, client)
    with between or nullcontext():
        until, tables = pinned(name, config, lake)
    refuse_half_moved(name, tables, until)
    with scratch_folder() as folder, step_teller(name, on_progress) as tell:
        # From the log's first entry, whatever the pipeline began with: a row of which the log no
        # longer tells would be taken for one that should not be there, and be deleted. And over
        # gaps: one that the tables are behind was recorded, whatever is to be done at the next.
        elsewhere: dict[str, Any] = {
            "path": f"{scratch.rstrip('/')}/{time.time_ns()}" if scratch else f"{folder}/t",
            "rejects": None,
            "standing": None,
            "start": "beginning",
            "on_gap": "record",
        }
        if isinstance(config, TablePipelineConfig):
            elsewhere["catalog"] = None
        anew = config.model_copy(update=elsewhere)
        beside = Folders(anew, name)
        for one, table in tables.items():
            begin_as(beside.table(one), table, name, own=_own(config))
        unfollowed = Unfollowed(keeps_versions=config.to == "history")
        target = TableTarget(name, anew, unfollowed=unfollowed)
        apply_anew(name, anew, target, endpoint, until, spark, credentials, archive, tell)
        made = StandingTable(anew, name).collections()
        # Of a table that is not there all rows are missing.
        tables |= {one: lake.table(one) for one in made if one not in tables}
        told = told_anew(name, anew.path, beside, tables)
        rejected = lake.rejects()
        rejects, noted = rejected.side(), gaps_in(name, rejected)
        judged = judged_versions if config.to == "history" else judged_by_log
        found: list[Compared] = []
        for one, table in tables.items():
            tell("comparing", done=len(found), total=len(tables), collection=one)
            if apart := unfollowed.into(one) - noted:
                found.append(set_apart(one, sequence=max(apart)))
                continue
            compared = judged(
                spark,
                name,
                one,
                told[one],
                table,
                rejects,
                until=until,
                ranges=ranges,
                listed_max=listed_max,
                repair=repair,
            )
            if repair and not compared.differences and isinstance(table, Table):
                vouch(name, table)
            found.append(compared)
        tell("comparing", done=len(found), total=len(tables))
    return Verified(pipeline=name, progress=str(until), tables=tuple(found))


def vouch(name: str, table: Table) -> None:
    """Say in a table that was taken back that it has all that it says: nothing was missing."""
    if table.is_taken_back():
        at = table.applied(name, log_id=None)
        stamp = Stamp(pipeline=name, log_id=None, after=at, until=at, batch=0)
        table.append(table.own.empty_table(), stamp)


def _own(config: TablePipelineConfig | HistoryPipelineConfig) -> pa.Schema:
    own: pa.Schema = VERSION_COLUMNS if config.to == "history" else OWN_COLUMNS
    return own


def told_anew(
    name: str, path: str, beside: Lake, tables: Mapping[str, KeptTable]
) -> dict[str, Told]:
    """What the log applied anew has come to, which is in folders at `path`. Raises PipelineError
    where a table is not there that `begin_as` has made: all rows would be extra ones."""
    rejects = beside.rejects().side()
    told = {one: Told(rows=beside.table(one).side(), rejects=rejects) for one in tables}
    if any(told[one].rows.version < 0 <= table.version for one, table in tables.items()):
        raise vanished(name, path)
    return told


def vanished(name: str, path: str) -> PipelineError:
    """What to say where somebody has deleted what was made to be compared."""
    return PipelineError(
        f"what the log was applied to, to be compared with what pipeline {name} has, is not at "
        f"{path} any more. Nothing was changed. See that nobody empties that folder, then compare "
        f"again."
    )


def gaps_in(name: str, rejects: KeptTable) -> set[int]:
    """The sequences of the events at which the pipeline noted a gap. What a rename brought there
    was lost to its own tables too, so they are judged."""
    noted = f"pipeline = {text(name)} AND reason LIKE {text(f'{GAP}%')}"
    return {int(row["sequence"]) for batch in rejects.scan(noted) for row in batch.to_pylist()}


def refuse_elements(name: str, config: SteppedPipelineConfig) -> None:
    """Refuse tables of elements: a key tells several of their rows. Raises ConfigError."""
    if config.explodes:
        raise ConfigError(
            f"pipeline {name} has explode, and tables of elements are not compared. Nothing was "
            f"compared or changed. Compare the documents that they are of: those of a pipeline "
            f"without that step."
        )


def standing_of(name: str, config: LakePipelineConfig, lake: Lake) -> Standing:
    """Where the tables stand. Raises PipelineError where they never were written, or a collection
    never was read, and as `refuse_others` and of opening them."""
    standing = StandingTable(config, name, lake).read()
    if standing is None:
        raise PipelineError(
            f"pipeline {name} has never run: there is nothing at {lake.standing().path}. "
            f"Nothing was compared. Run it first: penstock pipeline run {name}."
        )
    refuse_others(config, name, standing)
    _refuse_added(name, config, standing)
    for one in followed_tables(config, standing):
        lake.table(one)
    return standing


def _refuse_added(name: str, config: LakePipelineConfig, standing: Standing) -> None:
    added = set(config.collections).difference(standing.collections or config.collections)
    if added or (standing.collections and not config.collections):
        raise PipelineError(
            f"collections were added to pipeline {name} that it has never read: "
            f"{', '.join(sorted(added)) or 'all of the source'}. Nothing was compared. Run the "
            f"pipeline first."
        )


def pinned(
    name: str, config: LakePipelineConfig, lake: Lake
) -> tuple[Progress, dict[str, KeptTable]]:
    """Up to where the tables have come, and each as it was there. Raises as `standing_of`, and
    PipelineError where they move on too fast, or a batch was left half done."""
    stood: set[Progress] = set()
    for _ in range(_TRIES):
        standing = standing_of(name, config, lake)
        stood.add(standing.progress)
        tables = {one: lake.table(one) for one in followed_tables(config, standing)}
        log_id = standing.progress.log_id
        ahead = any(
            table.applied(name, log_id=log_id) > standing.progress.sequence
            for table in tables.values()
        )
        again = StandingTable(config, name, lake).read()
        if again == standing and not ahead:
            return standing.progress, tables
        time.sleep(_PAUSE_SECONDS)
    if len(stood) == 1:
        # Nobody moved on meanwhile: waiting brings nothing, but for a batch that takes so long.
        raise PipelineError(
            f"the tables of pipeline {name} have more than {lake.standing().path} says: a run was "
            f"ended in the midst of a batch, or is in the midst of a long one. Nothing was "
            f"compared. If it does not run, have that batch completed, which loses and repeats "
            f"nothing: penstock pipeline run {name} --once. Then compare again. If that run stops "
            f"at a gap (pipeline.changes_lost), this stays so until it is behind it: the error "
            f"says how, with on_gap = 'record', which may be taken out once the gap is passed."
        )
    raise PipelineError(
        f"the tables of pipeline {name} move on faster than they can be looked at. Nothing was "
        f"compared. Try again, or stop the pipeline first."
    )


def refuse_half_moved(name: str, tables: Mapping[str, KeptTable], until: Progress) -> None:
    """Refuse a table that has some rows of a rename already. Raises PipelineError."""
    for table in tables.values():
        if table.has(f"`{SEQUENCE}` > {until.sequence}"):
            raise PipelineError(
                f"the table {table.path} has rows from behind sequence {until.sequence}, up to "
                f"which pipeline {name} has come: a rename that takes several commits goes on, or "
                f"was broken off. Nothing was compared. Have it completed, which loses and repeats "
                f"nothing: penstock pipeline run {name} --once. Then compare again. Such rows that "
                f"are there even then are not Penstock's: delete them."
            )


def apply_anew(
    name: str,
    config: LakePipelineConfig,
    target: Target,
    endpoint: str,
    until: Progress,
    spark: "SparkSession",
    credentials: Credentials,
    archive: str,
    tell: StepTeller,
) -> Progress:
    """Apply the log to `target`, which has nothing yet, up to `until`, batch by batch, through the
    steps of `config`; the place where it began. Raises as the target does, as `Stage.staged`, and
    PartialViewError."""
    # What was not met was told when it came.
    stage = Stage(name, config, target.columns, tells=False)
    stage.check(spark)
    spark = session_of(stage, spark)
    shown = {"endpoint": endpoint, **credential_options(credentials)}
    if archive:
        shown["archive"] = archive
    with log_client(endpoint, archive=archive, credentials=credentials) as client:
        if credentials.are_shown and not client.seen().shows_all_of(config.source):
            raise PartialViewError(source=config.source)
        begin = after = target.start(client.bounds())
        entries = until.sequence - begin.sequence
        tell("applying", total=entries)
        for number, end in enumerate(ends_of(client, after, until, config.max_events_per_batch)):
            batch = batch_of(spark, config, shown, after, end, stage.columns)
            with stage.staged(batch, number, log_id=end.log_id) as staged:
                target.apply(staged.frame, number, until=end, refused=staged.refused)
            after = end
            tell("applying", done=end.sequence - begin.sequence, total=entries)
    return begin


def session_of(stage: Stage, spark: Any) -> "SparkSession":
    """A session that knows what `spark` does, where there are steps: they name views in it for a
    moment, and others may be at work in `spark`."""
    session: SparkSession = (
        spark
        if stage.is_empty
        else type(spark)(spark.sparkContext, spark._jsparkSession.cloneSession())
    )
    return session


def ends_of(
    client: LogClient, after: Progress, until: Progress, events_max: int
) -> Iterator[Progress]:
    """Where batches of (after, until] end."""
    while after.sequence < until.sequence:
        after = client.plan(after=after, until=until, events_max=events_max).to
        yield after


def batch_of(
    spark: "SparkSession",
    config: ReadingConfig,
    shown: Mapping[str, str],
    after: Progress,
    until: Progress,
    columns: tuple[str, ...],
) -> "DataFrame":
    """The entries of (after, until]; `shown` are the options that say where the log is."""
    from penstock.spark.rows import ENTRY_SCHEMA

    options = {
        **shown,
        "source": config.source,
        "collections": ",".join(config.names),
        "startingOffsets": str(after),
        "endingOffsets": str(until),
    }
    schema = ENTRY_SCHEMA.__class__([ENTRY_SCHEMA[column] for column in columns])
    return spark.read.format("penstock").schema(schema).options(**options).load()
