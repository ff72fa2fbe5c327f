"""Whether a changelog is what the log says it is, entry by entry, and how to add what is missing.

As for tables (`penstock.spark.verifying`): the log is read anew, up to where the changelog says it
has come, into a changelog beside it, and commits are verified by their counts and digests on the
way. Then both are compared by ranges of sequences: entries are counted and summed in Spark's tasks,
and only ranges that differ are compared entry by entry. An entry builds on no other, so where
batches ended is of no concern, and the log is read from the oldest entry that it has.

It may run beside the pipeline: the changelog is compared as it was at one place.
"""

# The stubs of pyarrow leave element types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from msgspec import structs

from penstock.archive.opening import log_client
from penstock.client.credentials import NOBODY, Credentials
from penstock.spark import register
from penstock.spark.changelog.comparing import by_sequence, columns_of, side_of
from penstock.spark.changelog.entries import FOLDER, NO_COLLECTION
from penstock.spark.changelog.formats import Format, format_of
from penstock.spark.changelog.writing import REPORT_DDL, Writing, read_reports, write_entries
from penstock.spark.changelogs import ChangelogTarget
from penstock.spark.config import ChangelogPipelineConfig
from penstock.spark.mending import refuse_running
from penstock.spark.progress import VerifyProgress, step_teller
from penstock.spark.scratch import scratch_folder
from penstock.spark.table.arrow import arrow
from penstock.spark.table.comparing import (
    NO_ELEMENT,
    compare_rows,
    differing_rows,
    refuse_moved,
)
from penstock.spark.table.delta import Table, secrets, text
from penstock.spark.table.lake import seen_lake
from penstock.spark.table.rejects import REPLAYED
from penstock.spark.table.side import Side
from penstock.spark.table.stamp import Stamp
from penstock.spark.transform.config import ELEMENT
from penstock.spark.verifying import Verified, apply_anew, pinned, vanished

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SILENT: Final = (
    "operation_type <=> 'update' AND full_document IS NULL AND update_description IS NULL"
)
_AGAIN: Final = "_told_again"
_LEFT: Final = (
    "A changelog is only added to: entries that are different, extra or repeated were left as they "
    "are. Have all of the log written once more: by a new pipeline, with a path of its own."
)
_GONE: Final = (
    "The Delta table {path} is gone, and nothing was added. Put it back; or have its pipeline "
    "write what the log has once more, as it says when it is started: with start = 'oldest'."
)


def verify_changelog(
    name: str,
    config: ChangelogPipelineConfig,
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
    """Compare the changelog of a pipeline with its log; with `repair`, add the entries that are
    missing, in one commit. Entries that are altered, repeated or extra are told and left as they
    are: a changelog is only added to.

    The arguments are as for `verify_tables`. Entries from before the oldest that the log has are
    counted, and not judged; nor are those of collections that were taken out of the pipeline, and
    those that a replay has told again, which are `rejected`.

    Raises PipelineError where the pipeline never ran, runs while plain files are to be mended,
    moves on too fast to be looked at, or moved while it was repaired, then nothing of the changelog
    was changed; PipelineChangedError where what is there is not the changelog of this
    configuration; as `ChangelogTarget.apply` else.
    """
    from pyspark.sql import functions as sql

    register(spark)
    format_of(name, config).check()
    lake = seen_lake(config, name, spark)
    if repair:
        with log_client(endpoint, archive=archive, credentials=credentials) as client:
            refuse_running(name, config, client)
    with between or nullcontext():
        until, tables = pinned(name, config, lake)
    kept = format_of(name, config)
    side = side_of(config, next(iter(tables.values()), None) or kept.table)
    with scratch_folder() as folder, step_teller(name, on_progress) as tell:
        anew = config.model_copy(
            update={
                "path": f"{scratch.rstrip('/')}/{time.time_ns()}" if scratch else f"{folder}/c",
                "format": "delta",
                "rejects": None,
                "standing": None,
                "start": "oldest",
                "on_gap": "record",
            }
        )
        target = ChangelogTarget(name, anew)
        begin = apply_anew(name, anew, target, endpoint, until, spark, credentials, archive, tell)
        tell("comparing", done=0, total=1)
        columns = columns_of(config)
        made = Table(anew.table_path("")).side()
        if target.has_entries and made.version < 0:
            raise vanished(name, anew.path)
        wanted = made.rows(spark, columns)
        there = side.rows(spark, columns)
        if FOLDER in columns.names:
            # An earlier version called folders otherwise.
            there = there.withColumn(FOLDER, sql.translate(sql.col(FOLDER), "~", NO_COLLECTION))
        if config.explodes:
            # Spark joins no nulls.
            wanted, there = (one.fillna({ELEMENT: NO_ELEMENT}) for one in (wanted, there))
        untold = there.where(f"sequence <= {begin.sequence}").count() if begin.sequence else 0
        there = there.where(f"sequence > {begin.sequence}")
        if config.format == "parquet":
            # A pipeline that runs has shown more files meanwhile.
            there = there.where(f"sequence <= {until.sequence}")
        there, taken_out = _followed(config, there, wanted)
        there, told_again = _told_once(spark, name, there, lake.rejects().side())
        by = by_sequence(until.sequence, exploded=bool(config.explodes))
        compared = compare_rows("", wanted, there, ranges=ranges, listed_max=listed_max, by=by)
        compared = structs.replace(compared, untold=untold + taken_out, rejected=told_again)
        if repair and compared.differences:
            rows = differing_rows(wanted, there, ranges=ranges, by=by).where("what = 'missing'")
            missing = wanted.join(rows.select(*by.identity), [*by.identity], "left_semi")
            refuse_moved(name, "changes", kept.table, side)
            if kept.table.version < 0:
                compared = structs.replace(compared, left=_GONE.format(path=kept.table.path))
            else:
                added = _add(name, config, kept, missing)
                left = _LEFT if added < compared.differences else ""
                compared = structs.replace(compared, repaired=added, left=left)
        tell("comparing", done=1, total=1)
    return Verified(pipeline=name, progress=str(until), tables=(compared,))


def _followed(
    config: ChangelogPipelineConfig, there: "DataFrame", wanted: "DataFrame"
) -> tuple["DataFrame", int]:
    """The entries without those of collections that are not the pipeline's any more, and how many
    these are. A rename of such a collection may be told still: then it is among the `wanted`."""
    from pyspark.sql import functions as sql

    if not config.collections:
        return there, 0
    # What is about the whole source has no collection.
    others = there.where(~sql.col("collection").isin("", *config.collections))
    taken_out = others.select("sequence").join(wanted, "sequence", "left_anti")
    count = taken_out.count()
    return (there.join(taken_out, "sequence", "left_anti") if count else there), count


def _told_once(
    spark: "SparkSession", name: str, there: "DataFrame", rejects: Side
) -> tuple["DataFrame", int]:
    """The entries without those that a replay has told again, and how many these are: they tell
    nothing, as steps had refused them, and stay beside the ones that do."""
    if rejects.version < 0:
        return there, 0
    schema = rejects.schema()
    said = arrow.schema([schema.field(one) for one in ("pipeline", "sequence", "state")])
    rows = rejects.rows(spark, said).where(f"state = {text(REPLAYED)} AND pipeline = {text(name)}")
    replayed = rows.selectExpr("sequence", f"true AS {_AGAIN}").distinct()
    known = there.join(replayed, "sequence", "left")
    again = f"{_AGAIN} IS NOT NULL AND {_SILENT}"
    return known.where(f"NOT ({again})").select(*there.columns), known.where(again).count()


def _add(name: str, config: ChangelogPipelineConfig, kept: Format, entries: "DataFrame") -> int:
    """Add entries, in one commit that does not move the changelog on; how many."""
    from pyspark.sql import functions as sql

    writing = Writing(
        path=config.path,
        storage_options=secrets(config.storage_options),
        partition_by=config.partition_by,
        hidden=kept.hidden,
        attempt=uuid4().hex[:16],
        after=0,
        has_elements=bool(config.explodes),
    )
    if writing.has_elements:
        entries = entries.withColumn(ELEMENT, sql.nullif(ELEMENT, sql.lit(NO_ELEMENT)))
    rows = entries.select(*writing.given.names).orderBy("sequence")
    try:
        made = rows.mapInArrow(partial(write_entries, writing=writing), REPORT_DDL).toArrow()
        reports, _ = read_reports(made)
        files = [file for one in reports for file in one.files]
        at = kept.table.applied(name, log_id=None)
        stamp = Stamp(pipeline=name, log_id=None, after=at, until=at, batch=0)
        if files:
            kept.forget_gone(stamp)
    except BaseException:
        kept.discard(writing.attempt)
        raise
    if files:
        # Of one that fails nobody knows here whether it was committed: its files stay.
        kept.add(files, stamp)
    return sum(file.rows for file in files)
