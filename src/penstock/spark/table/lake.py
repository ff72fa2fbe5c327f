"""The tables of a pipeline, wherever they are: in folders, or in a catalog.

Two ways write the same tables (decision 0035): delta-rs, by path (`penstock.spark.table.delta`),
and Spark, by the name that a catalog knows (`penstock.spark.table.catalog`). Whoever applies a
batch sees neither.
"""

# The stubs of pyarrow leave element types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from penstock.errors import ConfigError, PipelineChangedError
from penstock.spark.config import (
    HistoryPipelineConfig,
    LakePipelineConfig,
    TablePipelineConfig,
    is_shortened,
)
from penstock.spark.history.columns import AS_OF_EVENT, VERSION_COLUMNS
from penstock.spark.history.delta import VersionTable
from penstock.spark.table.delta import Table, secrets
from penstock.spark.table.elements import element_columns, exploded_in
from penstock.spark.table.plan import OWN_COLUMNS
from penstock.spark.table.progress_columns import STANDING_SCHEMA
from penstock.spark.table.side import Side
from penstock.spark.table.stamp import Stamp

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class KeptTable(Protocol):
    """One table of a pipeline, as it is now. Not shared between threads.

    What a commit holds and how far the table has come are in it together: both, or neither. Under a
    stamp that does not move, rows are merged as of where the table was seen to be: if another has
    committed meanwhile, that is an error. Predicates and values are SQL of the standard, in which a
    backslash is one.
    """

    path: str
    """What people call it."""

    def reload(self) -> None:
        """See what others have committed."""

    def applied(self, pipeline: str, *, log_id: int | None) -> int:
        """The sequence up to which the pipeline's changes are in the table; 0 in a new one.

        Raises StreamChangedError if they came from another log than `log_id`.
        """
        ...

    @property
    def version(self) -> int:
        """Grows with each commit; -1 before the first."""
        ...

    @property
    def commits(self) -> range:
        """The versions that came since it was opened here."""
        ...

    def is_taken_back(self) -> bool:
        """Whether it lacks what a pipeline has written since somebody restored an earlier version,
        as far as its last commits say. It says then that it has changes which it has not."""
        ...

    @property
    def schema(self) -> pa.Schema:
        """The documents' columns, without the table's own; empty before the first commit."""
        ...

    @property
    def constraints(self) -> Mapping[str, str]:
        """The conditions that each of its rows must meet, by name, as far as they are known."""
        ...

    def rows(self, keys: Sequence[str]) -> pa.Table:
        """The rows with one of these `_key`s, of whatever database."""
        ...

    def scan(self, predicate: str | None = None) -> Iterator[pa.RecordBatch]:
        """The table's rows, all columns, in no order."""
        ...

    def has(self, predicate: str) -> bool:
        """Whether there is a row for which `predicate` holds."""
        ...

    def side(self) -> Side:
        """It as of this version, for Spark's tasks to read."""
        ...

    def merge(self, changes: pa.Table, stamp: Stamp) -> None:
        """Apply `changes`: the table's own columns, the documents', and OPERATION.

        The documents' columns are all that the table has and maybe new ones, which it gets. A key
        occurs once; in a table of elements, as `prepare_elements` says.
        """

    def insert(self, changes: pa.Table, stamp: Stamp) -> None:
        """As `merge`, where the table has no row of these keys."""

    def rewrite(self, changes: pa.Table, stamp: Stamp) -> None:
        """As `merge`, but columns may have become wider."""

    def replace(self, rows: pa.Table, stamp: Stamp) -> None:
        """Have these rows and no others, in one commit; columns that are new, too."""

    def append(self, rows: pa.Table, stamp: Stamp) -> None:
        """Add rows, in one commit."""

    def empty(self, predicate: str, stamp: Stamp | None) -> None:
        """Delete the rows for which `predicate` holds. Without a stamp it moves nothing on."""

    def relabel(self, predicate: str, values: Mapping[str, str], stamp: Stamp) -> None:
        """Set columns to SQL expressions where `predicate` holds."""

    def compact(self) -> tuple[int, int]:
        """Join small files: how many there were, and how many they became."""
        ...

    def vacuum(self, *, history_seconds: float) -> int:
        """Delete files that no version of the last `history_seconds` uses; an hour at least."""
        ...


class Lake(Protocol):
    """Where the tables of one pipeline are."""

    def see(self) -> None:
        """Raise ConfigError where tables cannot be seen. Writes nothing."""

    def check(self) -> None:
        """Raise ConfigError where no table can be, before a change is read."""

    def table(self, collection: str) -> KeptTable:
        """The table of a collection, as it is now."""
        ...

    def rejects(self) -> KeptTable:
        """The table of the changes that were rejected."""
        ...

    def standing(self) -> KeptTable:
        """The table of one row that says how far the pipeline has come."""
        ...

    def verified(self) -> KeptTable:
        """The table of one row that says when `verify_every` was last done."""
        ...

    def all(self, collections: Iterable[str]) -> Iterator[KeptTable]:
        """The tables of these collections, each once, and then what is kept beside them."""
        ...


class ElementTable(Table):
    """A table of the elements of a field, as it is now. Not shared between threads."""

    def __init__(
        self,
        path: str,
        field: str,
        *,
        pipeline: str = "",
        storage_options: Mapping[str, str] | None = None,
        name: str = "",
    ) -> None:
        """As `Table`."""
        self.own = element_columns(field)
        super().__init__(path, pipeline=pipeline, storage_options=storage_options, name=name)


class Folders:
    """Tables by path, written by delta-rs."""

    def __init__(self, config: LakePipelineConfig, pipeline: str) -> None:
        self._config = config
        self._pipeline = pipeline
        self._storage = secrets(config.storage_options)

    def see(self) -> None:
        """A folder that is not there has no tables."""

    def check(self) -> None:
        """A folder is made with its table."""

    def table(self, collection: str) -> Table:
        """As `Lake.table`. Raises PipelineChangedError for one with rows of anything else, or of
        another pipeline."""
        path, config, own = self._config.table_path(collection), self._config, self._pipeline
        name = collection if is_shortened(collection) else ""
        if isinstance(config, HistoryPipelineConfig):
            return self._versions(path, name)
        field = config.exploded_field(collection) if isinstance(config, TablePipelineConfig) else ""
        table = (
            ElementTable(path, field, pipeline=own, storage_options=self._storage, name=name)
            if field
            else Table(path, pipeline=own, storage_options=self._storage, name=name)
        )
        layout = table.layout
        if layout is not None and isinstance(config, TablePipelineConfig):
            self._refuse_others(path, layout[0].names)
        if layout is not None and (there := exploded_in(layout[0])) != field:
            raise PipelineChangedError(
                pipeline=self._pipeline,
                change=f"the table {path} has {_rows_of(there)}, and its steps make "
                f"{_rows_of(field)}",
                remedy="or change explode back",
            )
        return table

    def _versions(self, path: str, name: str) -> VersionTable:
        table = VersionTable(
            path, pipeline=self._pipeline, storage_options=self._storage, name=name
        )
        if table.layout is not None and AS_OF_EVENT not in table.layout[0].names:
            raise PipelineChangedError(
                pipeline=self._pipeline,
                change=f"the table {table.path} has no {AS_OF_EVENT}, so it was made by an earlier "
                f"version of Penstock, or is not a history",
                remedy="where a history of all that the log and its archive hold is made",
            )
        return table

    def _refuse_others(self, path: str, columns: Sequence[str]) -> None:
        """Raise PipelineChangedError for columns that no table of current rows has."""
        if set(columns).issuperset(VERSION_COLUMNS.names):
            there = "is a history"
        elif not set(columns).issuperset(OWN_COLUMNS.names):
            there = f"has no {' or no '.join(sorted(set(OWN_COLUMNS.names) - set(columns)))}"
        else:
            return
        raise PipelineChangedError(
            pipeline=self._pipeline,
            change=f"the table {path} {there}, so it is none of current rows",
            remedy="or move that table away",
        )

    def rejects(self) -> Table:
        """As `Lake.rejects`."""
        return self._at(self._config.rejects_path)

    def standing(self) -> Table:
        """As `Lake.standing`. Raises PipelineChangedError for a table of anything else."""
        table = self._at(self._config.standing_path)
        layout = table.layout
        needed = [field.name for field in STANDING_SCHEMA if not field.nullable]
        if layout is not None and not set(layout[0].names).issuperset(needed):
            raise PipelineChangedError(
                pipeline=self._pipeline,
                change=f"the table {table.path} is there and is not its standing: it says of no "
                f"pipeline how far it has come",
                remedy="or set standing to a folder that has no table, or move that table away",
            )
        return table

    def verified(self) -> Table:
        """As `Lake.verified`."""
        return self._at(self._config.verified_path)

    def all(self, collections: Iterable[str]) -> Iterator[Table]:
        """As `Lake.all`."""
        paths = [self._config.table_path(one) for one in collections]
        paths.append(self._config.rejects_path)
        if isinstance(self._config, TablePipelineConfig):
            paths.append(self._config.load_path)
        paths += [self._config.verified_path, self._config.standing_path]
        for path in dict.fromkeys(paths):
            yield self._at(path)

    def _at(self, path: str) -> Table:
        return Table(path, storage_options=self._storage)


def _rows_of(field: str) -> str:
    return f"rows of the elements of {field}" if field else "rows of documents"


def lake_of(config: LakePipelineConfig, pipeline: str, spark: "SparkSession | None" = None) -> Lake:
    """Where the pipeline's tables are. Raises ConfigError for a catalog without a session."""
    if not isinstance(config, TablePipelineConfig) or config.catalog is None:
        return Folders(config, pipeline)
    if spark is None:
        raise ConfigError(
            f"the tables of pipeline {pipeline} are in the catalog, in {config.catalog}, and only "
            f"Spark sees them. Nothing was changed. Give its session."
        )
    from penstock.spark.table.catalog import Catalog

    return Catalog(spark, config.catalog, pipeline)


def seen_lake(
    config: LakePipelineConfig, pipeline: str, spark: "SparkSession | None" = None
) -> Lake:
    """As `lake_of`, for whoever runs no pipeline. Raises as `Lake.see`, too."""
    lake = lake_of(config, pipeline, spark)
    lake.see()
    return lake
