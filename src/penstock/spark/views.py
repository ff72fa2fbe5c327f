"""`to = "view"`: keep a SQL aggregate over collections, from Spark.

Two steps for each batch, each exactly once by itself. The current rows of the query's collections
are tables as `to = "table"` keeps them, with all that it promises. The view is then brought from
the versions of those tables that it says it equals to those there are (`penstock.spark.view`).
A crash in between is no case of its own: the next start takes the second step first.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

import structlog
from msgspec import structs

from penstock.errors import PipelineChangedError, PipelineError
from penstock.ports import Bounds
from penstock.progress import Progress
from penstock.spark.config import TablePipelineConfig, ViewPipelineConfig
from penstock.spark.pipeline_run import PipelineRun
from penstock.spark.table.chunk import INPUT_COLUMNS
from penstock.spark.table.comparing import Compared
from penstock.spark.table.delta import secrets
from penstock.spark.table.lake import Folders
from penstock.spark.table.plan import DATABASE, KEY, SEQUENCE, SOURCE
from penstock.spark.table.rejects import VIEW_STEP
from penstock.spark.tables import TableTarget, beginning_of_tables
from penstock.spark.target import Applied, Beginning
from penstock.spark.transform.fate import Replayed
from penstock.spark.transform.settled import pending_in
from penstock.spark.view.apart import ApartTable
from penstock.spark.view.comparing import compare_groups
from penstock.spark.view.query import parse_columns, parse_query, type_said
from penstock.spark.view.refusing import Refused, note_refused, settle_refused
from penstock.spark.view.state import StateTable
from penstock.spark.view.stored import ViewTable
from penstock.spark.view.upkeep import Kept, Should, Upkeep, is_too_many
from penstock.subscribe.current import Declared

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

log = structlog.get_logger()

_TRIES: Final = 10
_PAUSE_SECONDS: Final = 0.5


class ViewTarget:
    """The view of a pipeline, and the tables of current rows beside it."""

    columns = INPUT_COLUMNS

    def __init__(self, pipeline: str, config: ViewPipelineConfig, spark: "SparkSession") -> None:
        self._pipeline = pipeline
        self._config = config
        self._query = parse_query(config.query)
        tables = tables_of(config)
        self._rows = TableTarget(pipeline, tables)
        self._state = _state_of(config, self._query.collections)
        view = ViewTable(
            config.path,
            pipeline,
            config=config,
        )
        self._lake = Folders(tables, pipeline)
        self._upkeep = Upkeep(
            spark,
            self._query,
            pipeline=pipeline,
            view=view,
            state=self._state,
            apart=ApartTable(pipeline, config),
            refuse=self._refuse,
        )
        self._head = 0
        """Up to where the log may have what mends rows of which there are too many; 0 if none."""

    def start(self, bounds: Bounds, whole: Callable[[], Bounds] | None = None) -> Progress:
        """As `Target.start`; raises as `decide_start` and `Upkeep.catch_up`, and
        PipelineChangedError where the schema is not that of the current rows.

        A view that fails on too many rows is no error yet where the log goes on: what mends them
        comes after them.
        """
        _refuse_other_types(self._pipeline, self._config, self._state)
        after = self._rows.start(bounds, whole)
        for name, ddl in self._config.columns.items():
            self._state[name].create(parse_columns(name, ddl))
        self._head = bounds.head
        self._caught_up(at=after.sequence)
        return after

    def declare(self, declared: Sequence[Declared]) -> None:
        """As `Target.declare`, for its current rows."""
        self._rows.declare(declared)

    def apply(
        self,
        batch: "DataFrame",
        batch_id: int,
        *,
        until: Progress,
        refused: "pa.Table | None" = None,  # noqa: ARG002 - written beside the target
    ) -> Applied:
        """As `Target.apply`; raises as `merge_into_delta` and `Upkeep.catch_up`, the latter of too
        many rows only where what was in the log at the start does not mend them."""
        applied = self._rows.apply(batch, batch_id, until=until)
        kept = self._caught_up(at=until.sequence)
        return structs.replace(applied, rejected=applied.rejected + kept.refused)

    def _caught_up(self, *, at: int) -> Kept:
        try:
            kept = self._upkeep.catch_up()
        except PipelineError as error:
            if not is_too_many(error) or at >= self._head:
                raise
            log.warning(
                "view waits for changes that mend its rows",
                pipeline=self._pipeline,
                sequence=at,
                head=self._head,
                error=str(error),
            )
            return Kept(groups=0)
        self._head = 0
        return kept

    def _refuse(self, refused: Sequence[Refused]) -> None:
        tables = [self._lake.table(name) for name in self._query.collections]
        at = max(table.applied(self._pipeline, log_id=None) for table in tables)
        note_refused(self._lake.rejects(), self._pipeline, refused, at=at)

    def settle(self) -> list[Replayed]:
        """Bring the view up to its current rows, and settle what it has refused and has by now, as
        `settle_refused`. Raises as `Upkeep.catch_up`."""
        self._upkeep.catch_up()
        rejects = self._lake.rejects()
        pending = [one for one in pending_in(self._pipeline, rejects) if one["step"] == VIEW_STEP]
        standing: dict[tuple[Any, ...], int] = {}
        for name in {one["collection"] for one in pending}:
            keys = [one["key"] for one in pending if one["collection"] == name]
            rows = self._lake.table(name).rows(keys).select([KEY, SOURCE, DATABASE, SEQUENCE])
            standing |= {
                (name, *own): at for *own, at in zip(*rows.to_pydict().values(), strict=True)
            }
        return settle_refused(
            rejects,
            self._pipeline,
            pending,
            apart=self._upkeep.apart(),
            failed=self._upkeep.failed(),
            standing=standing,
        )

    def judged(self, *, listed_max: int, repair: bool) -> Compared:
        """The view compared with its query over the current rows that it says it equals; with
        `repair`, brought up to those there are, and made right.

        Rows that are apart from it count as rejected. Raises PipelineError where what it was made
        of cannot be told, and as `Upkeep.catch_up` and `ViewTable.replace`.
        """
        if repair:
            self._upkeep.catch_up()
        should = self._should()
        found = compare_groups(should.wanted, should.there, listed_max=listed_max)
        if repair and found.differences:
            self._upkeep.mend(should)
            found = structs.replace(found, repaired=found.differences)
        return structs.replace(found, rejected=should.apart)

    def _should(self) -> Should:
        for _ in range(_TRIES):
            if (should := self._upkeep.should()) is not None:
                return should
            # Types widen with the rows, and the view follows.
            time.sleep(_PAUSE_SECONDS)
        raise PipelineError(
            f"the view of pipeline {self._pipeline} at {self._config.path} is gone, or of another "
            f"query, or of versions of its current rows that are not known any more. It was not "
            f"compared or changed. Its next run makes it anew: penstock pipeline run "
            f"{self._pipeline} --once."
        )

    def save(self, batch_id: int) -> None:
        """As `Target.save`."""
        self._rows.save(batch_id)

    def close(self) -> None:
        """As `Target.close`."""
        self._rows.close()


def open_target(run: PipelineRun) -> ViewTarget:
    """The target of a pipeline to `view`."""
    return ViewTarget(run.name, run.config, run.spark)


def beginning_of_view(
    pipeline: str,
    config: ViewPipelineConfig,
    bounds: Bounds,
    whole: Callable[[], Bounds] | None = None,
) -> Beginning:
    """Where `ViewTarget.start` would begin; raises as it does, but for what Spark would say of the
    query. Writes nothing, and needs no Spark."""
    found = beginning_of_tables(pipeline, tables_of(config), bounds, whole)
    collections = parse_query(config.query).collections
    ViewTable(config.path, pipeline, config=config).made(collections)
    _refuse_other_types(pipeline, config, _state_of(config, collections))
    return found


def _state_of(config: ViewPipelineConfig, collections: Sequence[str]) -> dict[str, StateTable]:
    tables, storage = tables_of(config), secrets(config.storage_options)
    return {
        name: StateTable(tables.table_path(name), storage_options=storage) for name in collections
    }


def _refuse_other_types(
    pipeline: str, config: ViewPipelineConfig, state: Mapping[str, StateTable]
) -> None:
    """Refuse a schema that says other types than the current rows have. Raises
    PipelineChangedError."""
    for name, ddl in config.columns.items():
        columns = parse_columns(name, ddl)
        for column, kind in state[name].others(columns).items():
            raise PipelineChangedError(
                pipeline=pipeline,
                change=f"its schema says that {column} of {name} is {type_said(columns[column])}, "
                f"and in the rows that it keeps it is {type_said(kind)}",
                remedy="where all rows are read anew, or say the type that is there",
            )


class _RowsConfig(TablePipelineConfig):
    """The tables of a view, which are no pipeline's to go on with as tables."""

    makes: ClassVar[str] = "view"


def tables_of(config: ViewPipelineConfig) -> TablePipelineConfig:
    """The tables of current rows, as a pipeline of their own would keep them."""
    shared = {
        name: getattr(config, name)
        for name in TablePipelineConfig.model_fields
        if name in type(config).model_fields and name not in {"to", "path", "rejects", "standing"}
    }
    return _RowsConfig(
        **shared,
        path=config.state_path,
        rejects=config.rejects_path,
        standing=config.standing_path,
    )
