"""A view and its log, for tests: batches reach its current rows here, and the view by Spark."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import sqlglot
from deltalake import DeltaTable

from penstock.event import AnyEvent
from penstock.spark.config import ViewPipelineConfig
from penstock.spark.view.apart import ApartTable
from penstock.spark.view.query import parse_query
from penstock.spark.view.refusing import Refused
from penstock.spark.view.state import StateTable
from penstock.spark.view.stored import ViewTable
from penstock.spark.view.upkeep import Kept, Upkeep
from penstock.spark.views import tables_of
from tests.spark.tables import Entries, apply

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Lake:
    """A view and its log. Batches are applied to its current rows here, the view by Spark."""

    def __init__(self, spark: "SparkSession", path: Path, query: str, **more: Any) -> None:
        self.config = ViewPipelineConfig.model_validate(
            {"to": "view", "source": "shop", "path": str(path / "v"), "query": query, **more}
        )
        self.query = parse_query(query)
        self.entries = Entries()
        self.applied = 0
        self.state = {
            name: StateTable(tables_of(self.config).table_path(name), storage_options={})
            for name in self.query.collections
        }
        self.view = ViewTable(self.config.path, "p", config=self.config)
        self.refused: list[Refused] = []
        self.upkeep = Upkeep(
            spark,
            self.query,
            pipeline="p",
            view=self.view,
            state=self.state,
            apart=ApartTable("p", self.config),
            refuse=self.refused.extend,
        )

    def commit(self, *events: AnyEvent) -> None:
        self.entries.commit(*events)

    def apply(self) -> None:
        """Bring the current rows up to the log, and not the view."""
        apply(self.entries.table(self.applied), tables_of(self.config))
        self.applied = self.entries.head

    def batch(self, *events: AnyEvent) -> Kept:
        self.commit(*events)
        self.apply()
        return self.upkeep.catch_up()

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.query.outputs]

    def rows(self) -> list[tuple[Any, ...]]:
        return in_order([tuple(row[name] for name in self.names) for row in self.found()])

    def found(self) -> list[dict[str, Any]]:
        """The view's rows, with all columns."""
        rows: list[dict[str, Any]] = DeltaTable(self.config.path).to_pyarrow_table().to_pylist()
        return rows

    def expected(self, query: str | None = None) -> list[tuple[Any, ...]]:
        """What DuckDB makes of the current rows, by the view's query or another."""
        with duckdb.connect() as connection:
            for name in self.query.collections:
                rows = DeltaTable(tables_of(self.config).table_path(name)).to_pyarrow_table()
                connection.register(name, rows)
            translated = sqlglot.transpile(
                query or self.config.query, read="spark", write="duckdb"
            )[0]
            return in_order(connection.execute(translated).fetchall())


def in_order(rows: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted(rows, key=lambda row: tuple(f"{value}" for value in row))
