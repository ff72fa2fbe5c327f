"""Have a pipeline's next run read rows from the source again: `penstock pipeline backfill`.

Only what is known of the first load changes: that these collections are loaded. The next run loads
them as a new pipeline does, beside the stream, so newer changes win (docs/decisions/0034). Rows are
merged by key. One that the table has and the source has not stays: nobody reads that it is gone.
"""

from collections.abc import Callable, Collection
from functools import partial

from deltalake.exceptions import CommitFailedError
from msgspec import structs

from penstock.errors import BackfillRefusedError, StreamChangedError
from penstock.ports import Bounds
from penstock.spark.config import TablePipelineConfig
from penstock.spark.loading.parts import UNSPLIT, Plan
from penstock.spark.loading.stored import StoredPlan
from penstock.spark.table.standing import (
    Standing,
    StandingTable,
    followed_tables,
    refuse_others,
)

ALL = ""
"""All collections of a source, in a plan."""


def backfill(
    pipeline: str, config: TablePipelineConfig, names: Collection[str], bounds: Bounds
) -> list[str]:
    """Have the next run read the rows of these collections again, without names of all.

    Those that it will read; ALL for all of the source. Raises as `decide_backfill`, and
    BackfillRefusedError or CommitFailedError where a driver writes at this moment. A driver that
    read the plan before cannot undo it: Delta refuses what it next writes of its load.
    """
    stored, kept = StoredPlan(pipeline, config), StandingTable(config, pipeline)
    standing = kept.read()
    plan, after = decide_backfill(
        pipeline,
        config,
        names,
        plan=stored.read(),
        standing=standing,
        bounds=bounds,
        applied=partial(kept.applied, log_id=bounds.log_id),
    )
    assert standing is not None
    place = standing.progress
    try:
        stored.write(plan, log_id=place.log_id, sequence=place.sequence)
    except CommitFailedError as error:
        raise BackfillRefusedError(
            pipeline=pipeline,
            why="its driver wrote at the same time",
            remedy=f"Stop it first: penstock pipeline stop {pipeline}.",
        ) from error
    # Behind that: a table may be older than its row says only if it is read again.
    kept.put(standing, after)
    return list(dict.fromkeys(part.collection for part in plan.of(UNSPLIT)))


def decide_backfill(
    pipeline: str,
    config: TablePipelineConfig,
    names: Collection[str],
    *,
    plan: Plan,
    standing: Standing | None,
    bounds: Bounds,
    applied: Callable[[str], int],
) -> tuple[Plan, Standing]:
    """What is to be loaded, and what the pipeline's row says then. Pure.

    The place in the log stays: rows that are read now are newer. So the table of a collection that
    is read again may be gone or older than it was, and a collection may be new to the pipeline.
    `applied` gives the sequence that a collection's table has; 0 if there is none.

    Raises BackfillRefusedError, StreamChangedError, PipelineChangedError.
    """
    if config.first_load != "source":
        raise BackfillRefusedError(
            pipeline=pipeline,
            why="its configuration does not say first_load = 'source'",
            remedy="Set it, and the next run reads all rows of its collections that were not "
            "loaded yet; or have the service copy rows through the log: penstock snapshot "
            f"{config.source}.",
        )
    if standing is None:
        raise BackfillRefusedError(
            pipeline=pipeline,
            why="its tables say of no place where it stands: it is new",
            remedy="Its first run reads all rows.",
        )
    refuse_others(config, pipeline, standing)
    if standing.progress.log_id != bounds.log_id:
        raise StreamChangedError(
            f"the tables of pipeline {pipeline} were made from log "
            f"{standing.progress.log_id:016x}, and this is log {bounds.log_id:016x}"
        )
    every = config.collections or (ALL,)
    known = config.collections or sorted(
        {*standing.tables, *(part.collection for part in plan.parts)} - {ALL}
    )
    if unknown := sorted(set(names).difference(known)):
        raise BackfillRefusedError(
            pipeline=pipeline,
            why=f"it has no collection {', '.join(unknown)}",
            remedy=f"It has {', '.join(known) or 'none yet'}. To read all, name none.",
        )
    if config.collections:
        plan = plan.within(config.collections)
    planned = plan.with_collections(every).again(names) if names else Plan().with_collections(every)
    tables = followed_tables(config, standing)
    again = names or tables
    tables |= {name: min(tables[name], applied(name)) for name in again if name in tables}
    return planned, structs.replace(
        standing, tables=tables, collections=_collections(config, standing, names)
    )


def _collections(
    config: TablePipelineConfig, standing: Standing, names: Collection[str]
) -> tuple[str, ...]:
    """What the pipeline has from now on. One that was added and is not read stays to be told of."""
    if not names or not standing.collections:
        return config.collections
    if not config.collections:
        return standing.collections
    return tuple(
        name for name in config.collections if name in standing.collections or name in names
    )
