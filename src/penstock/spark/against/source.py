"""Whether a pipeline's tables are what the source is, whatever the log says.

Every row is read at the source, and compared with the table's as of one place of the log. Rows that
the log names behind that place, until it has told all that was committed when the last row was
read, are not judged: nothing can be said of them. Of all others, the source and the table must say
the same (docs/decisions/0036). Nobody waits for it: source, capture and pipeline go on.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final

import structlog
from msgspec import Struct

from penstock.archive.opening import log_client
from penstock.client.credentials import NOBODY, Credentials
from penstock.client.flight import LogClient
from penstock.errors import (
    ConfigError,
    PartialViewError,
    PenstockError,
    PipelineError,
    SourceUnavailableError,
    StreamChangedError,
)
from penstock.ports import KeyRange, Moves, ReadsRanges
from penstock.progress import Progress
from penstock.spark import register
from penstock.spark.against.changed import changed_between
from penstock.spark.against.judging import judged
from penstock.spark.against.reading import listings_of, read_collections
from penstock.spark.config import TablePipelineConfig
from penstock.spark.loading.load import UNTOLD
from penstock.spark.loading.reading import OpenSource, ReadableSource
from penstock.spark.loading.stored import StoredPlan
from penstock.spark.options import credential_options
from penstock.spark.progress import VerifyProgress, step_teller
from penstock.spark.raised import known_error
from penstock.spark.scratch import scratch_folder
from penstock.spark.session import on_this_machine
from penstock.spark.table.comparing import Compared
from penstock.spark.table.lake import Folders, KeptTable, Lake
from penstock.spark.table.standing import followed_tables, loads
from penstock.spark.verifying import Verified, standing_of

if TYPE_CHECKING:
    from collections.abc import Generator

    from pyspark.sql import SparkSession

log = structlog.get_logger()

_LOOK_SECONDS: Final = 0.2
_STILL_SECONDS: Final = 60.0
"""So long capture may stand still while it is waited for. An idle source moves on oftener."""


class Pinned(Struct, frozen=True, kw_only=True):
    """The tables as they are at one moment."""

    until: Progress
    """All of them have everything up to here, at the least."""
    tables: dict[str, KeptTable]
    lake: Lake

    def table(self, collection: str) -> KeptTable:
        """The table of a collection; one without rows where there was none."""
        return self.tables.get(collection) or self.lake.table(collection)


def verify_with_source(
    name: str,
    config: TablePipelineConfig,
    endpoint: str,
    *,
    spark: "SparkSession",
    open_source: OpenSource | None,
    scratch: str | None = None,
    ranges: int = 256,
    listed_max: int = 1000,
    repair: bool = False,
    credentials: Credentials = NOBODY,
    archive: str = "",
    between: AbstractContextManager[Any] | None = None,
    on_progress: Callable[[VerifyProgress], None] | None = None,
) -> Verified:
    """Compare the tables of a pipeline with its source; with `repair`, make them equal.

    As `verify_tables`. `open_source` makes the source, here and in workers. A repair writes what
    fits the columns that there are, and never deletes rows of a collection that the source does not
    have at all.

    Raises ConfigError for tables in a catalog, steps and expectations, and for a source that cannot
    be read by ranges of keys; PipelineError where the pipeline never ran, where its first load is
    not complete, and where the log does not say which rows changed meanwhile;
    SourceUnavailableError where capture does not come on; StreamChangedError and TrimmedError where
    the log does not go on from the tables; and what the source raises.
    """
    open_source, source = _readable(name, config, open_source)
    register(spark)
    shown = {
        "endpoint": endpoint,
        "source": config.source,
        "collections": ",".join(config.names),
        **credential_options(credentials),
        **({"archive": archive} if archive else {}),
    }
    with (
        _named(name),
        step_teller(name, on_progress) as tell,
        _scratch(spark, name, scratch) as folder,
        log_client(endpoint, archive=archive, credentials=credentials) as client,
    ):
        if credentials.are_shown and not client.seen().shows_all_of(config.source):
            raise PartialViewError(source=config.source)
        with between or nullcontext():
            pinned = pin(name, config)
        until = pinned.until
        if client.live_bounds().log_id != until.log_id:
            raise StreamChangedError(
                f"the tables of pipeline {name} were made from another log than this one. Nothing "
                f"was compared."
            )
        client.plan(after=until, until=until)  # or the log no longer has what follows
        # Asked for now, it is at or behind all that the tables have.
        position = _position(client, source, name, config)
        listings = asyncio.run(listings_of(open_source(), config, position, tell))
        parts = [part for listing in listings for part in listing.ranges]
        rows = read_collections(
            spark,
            parts,
            {one: pinned.table(one).side().schema() for one in _collections(parts, pinned)},
            open_source,
            position=position,
            path=folder,
            tell=tell,
        )
        reads = {one.read_at for one in listings}.union(*(one.read_at for one in rows.values()))
        tell("waiting")
        head = wait_until_told(client, source, name, config, reads)
        if head.log_id != until.log_id:
            raise StreamChangedError(
                f"the log was replaced while the tables of pipeline {name} were compared. Nothing "
                f"was changed."
            )
        tell("changes")
        changed = changed_between(spark, name, shown, until, head, path=f"{folder}/changed")
        tables: list[Compared] = []
        for collection, read in rows.items():
            tell("comparing", done=len(tables), total=len(rows), collection=collection)
            compared = judged(
                spark,
                name,
                config,
                collection,
                read,
                pinned.table(collection),
                changed,
                until=until,
                ranges=ranges,
                listed_max=listed_max,
                repair_in=_databases(parts, collection) if repair else None,
            )
            tables.append(compared)
        tell("comparing", done=len(tables), total=len(rows))
    return Verified(pipeline=name, progress=str(until), tables=tuple(tables), against="source")


def _readable(
    name: str, config: TablePipelineConfig, open_source: OpenSource | None
) -> tuple[OpenSource, ReadableSource]:
    """How the source is made, and one of them, which the pipeline's tables can be compared with."""
    if config.steps or config.expect:
        raise ConfigError(
            f"pipeline {name} has steps or expectations (apply_as_deletes is a step), and the "
            f"source is not read through them. Nothing was compared or changed. Compare with the "
            f"log: penstock pipeline verify {name}."
        )
    if config.catalog is not None:
        raise ConfigError(
            f"the tables of pipeline {name} are in the catalog, in {config.catalog}, and only "
            f"tables in folders are compared with the source. Nothing was compared. Compare with "
            f"the log: penstock pipeline verify {name}."
        )
    source = None if open_source is None else open_source()
    if open_source is None or not isinstance(source, ReadsRanges):
        raise ConfigError(
            f"pipeline {name}: to compare with the source needs one that can be read by ranges of "
            f"keys, as MongoDB, MySQL and MariaDB can; {config.source} is none, or its settings "
            f"are not known here. Nothing was compared. Compare with the log: penstock pipeline "
            f"verify {name}."
        )
    source.require_readable()
    return open_source, source


def pin(name: str, config: TablePipelineConfig) -> Pinned:
    """Where the tables stand, and after that their versions: each has all up to there, or more.

    Raises PipelineError where rows are still to be loaded, or a collection to be begun.
    """
    lake = Folders(config, name)
    kept = StoredPlan(name, config)
    while True:
        plan = kept.read()
        standing = standing_of(name, config, lake)
        if (plan.parts or loads(config)) and not plan.complete:
            raise PipelineError(
                f"the first load of pipeline {name} is not complete: rows are missing in its "
                f"tables that are still to come. Nothing was compared. Let the pipeline run until "
                f"it says that its first load is complete, and compare then."
            )
        tables: dict[str, KeptTable] = {
            one: lake.table(one) for one in followed_tables(config, standing)
        }
        if kept.read() == plan:
            return Pinned(until=standing.progress, tables=tables, lake=lake)


def _position(
    client: LogClient, source: ReadsRanges, name: str, config: TablePipelineConfig
) -> str:
    position = client.position(config.source)
    if position is None:
        raise SourceUnavailableError(
            f"{config.source}: the service's log knows of no place of it, so the tables of "
            f"pipeline {name} cannot be compared with it. Nothing was compared. See what `penstock "
            f"status` says of the source, and have the service capture it."
        )
    if isinstance(source, Moves) and source.is_copying(position):
        raise PipelineError(
            f"the service is copying rows of {config.source} through its log: pipeline {name} does "
            f"not have all of them yet. Nothing was compared. Compare when the copy is complete."
        )
    return position


def _collections(ranges: Iterable[KeyRange], pinned: Pinned) -> list[str]:
    return sorted({one.collection for one in ranges} | set(pinned.tables))


def _databases(ranges: Iterable[KeyRange], collection: str) -> set[str]:
    """Where the source has the collection."""
    return {one.database for one in ranges if one.collection == collection}


def wait_until_told(
    client: LogClient,
    source: ReadsRanges,
    name: str,
    config: TablePipelineConfig,
    reads: Iterable[str],
    *,
    still_seconds: float = _STILL_SECONDS,
) -> Progress:
    """The log's head, once it has told all that was committed at each of `reads`.

    Raises SourceUnavailableError where capture has not moved on for `still_seconds`.
    """
    untold = set(reads)
    stood: str | None = None
    since = said = time.monotonic()
    while True:
        position = client.position(config.source)
        if position is not None:
            untold = {one for one in untold if not source.has_told(position, one)}
        if not untold:
            bounds = client.live_bounds()
            return Progress(bounds.log_id, bounds.head, bounds.head_check)
        now = time.monotonic()
        if position != stood:
            stood, since = position, now
        if now - since >= still_seconds:
            stands = "is not captured" if position is None else "is captured no further"
            raise SourceUnavailableError(
                f"{config.source}: for {still_seconds:g} s the service's log has not moved on with "
                f"it: it {stands}. What was read of it for pipeline {name} can only be judged once "
                f"the log has come so far. Nothing was compared. See what `penstock status` says "
                f"of the source, have the service capture it, and compare again."
            )
        if now - said >= _STILL_SECONDS:
            said = now
            log.warning(UNTOLD, pipeline=name, source=config.source)
        time.sleep(_LOOK_SECONDS)


@contextmanager
def _scratch(spark: "SparkSession", name: str, scratch: str | None) -> "Generator[str]":
    """A new folder that workers can write and read, as Spark names it."""
    if scratch:
        yield f"{scratch.rstrip('/')}/{time.time_ns()}"
        return
    if not on_this_machine(str(spark.sparkContext.master)):
        raise ConfigError(
            f"pipeline {name}: what is read of the source is written down before it is compared, "
            f"and Spark's workers are on other machines. Nothing was compared. Name a path that "
            f"all of them can read and write: --scratch."
        )
    with scratch_folder() as folder:
        yield f"file://{folder}"


@contextmanager
def _named(name: str) -> "Generator[None]":
    """What comes through Spark as text is raised as the error that it is."""
    try:
        yield
    except PenstockError:
        raise
    except Exception as error:
        known = known_error(error, pipeline=name)
        if known is None:
            raise
        raise known from error
