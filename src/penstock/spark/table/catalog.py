"""The tables of a pipeline in the catalog of Spark's session (decision 0035)."""

# The stubs of pyarrow and Spark leave types open.
# pyright: reportUnknownMemberType=false

from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.errors import ConfigError, PenstockError
from penstock.spark.config import table_name_of
from penstock.spark.raised import kind_of
from penstock.spark.table import progress_columns
from penstock.spark.table.catalog_table import CatalogTable
from penstock.spark.table.plan import OWN_COLUMNS
from penstock.spark.table.rejects import REJECTS_SCHEMA
from penstock.spark.table.sparks import own_session, require_delta

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Catalog:
    """Tables by name, written by Spark."""

    def __init__(self, spark: "SparkSession", schema: str, pipeline: str) -> None:
        """`schema` as `main.sales`; without a catalog it is of the session's own."""
        # What a write is told it is told by its session: this one is no other pipeline's.
        self._session = own_session(spark)
        self._pipeline = pipeline
        self._catalog, dot, self._schema = schema.rpartition(".")
        if not dot:
            with self._set_up():
                self._catalog = str(self._session.catalog.currentCatalog())

    def see(self) -> None:
        """As `Lake.see`: the schema is there, and its catalog knows Delta."""
        with self._set_up():
            self._session.sql(f"DESCRIBE NAMESPACE `{self._catalog}`.`{self._schema}`")
            require_delta(self._session, self._catalog)

    def check(self) -> None:
        """As `Lake.check`: the schema is there, and Delta makes tables in it."""
        self.see()
        with self._set_up():
            self.standing().make()

    @contextmanager
    def _set_up(self) -> Generator[None]:
        """What Spark refuses in the block is said as what to set up."""
        where = f"{self._catalog}.{self._schema}" if self._catalog else self._schema
        try:
            yield
        except PenstockError:
            raise
        except Exception as error:
            raise ConfigError(
                f"pipeline {self._pipeline}: Spark has no place for Delta tables in {where} "
                f"({said_of(error)}). Nothing was read or written. Create the schema, and set the "
                f"session up with its catalog and Delta's jars, in [spark] or "
                f"spark-defaults.conf, as docs/how-to/tables.md shows."
            ) from error

    def table(self, collection: str) -> CatalogTable:
        """As `Lake.table`."""
        return self._at(table_name_of(collection), f"collection {collection}", OWN_COLUMNS)

    def rejects(self) -> CatalogTable:
        """As `Lake.rejects`."""
        name = table_name_of(f"penstock_rejects_{self._pipeline}")
        return self._at(name, "rejects", REJECTS_SCHEMA)

    def standing(self) -> CatalogTable:
        """As `Lake.standing`."""
        name = table_name_of(f"penstock_standing_{self._pipeline}")
        return self._at(name, "standing", progress_columns.STANDING_SCHEMA)

    def verified(self) -> CatalogTable:
        """As `Lake.verified`."""
        name = table_name_of(f"penstock_verified_{self._pipeline}")
        return self._at(name, "verified", progress_columns.VERIFIED_SCHEMA)

    def all(self, collections: Iterable[str]) -> Iterator[CatalogTable]:
        """As `Lake.all`."""
        yield from map(self.table, dict.fromkeys(collections))
        yield self.rejects()
        yield self.verified()
        yield self.standing()

    def _at(self, table: str, keeps: str, own: pa.Schema) -> CatalogTable:
        name = (self._catalog, self._schema, table)
        return CatalogTable(self._session, name, pipeline=self._pipeline, keeps=keeps, own=own)


def said_of(error: BaseException) -> str:
    """What Spark calls the error; its text may quote a path with credentials."""
    told: Any = getattr(error, "getCondition", None)
    return str((callable(told) and told()) or kind_of(error))
