"""Rows that a view's query cannot compute, kept apart until they change.

A view equals its query over all other rows. Which rows are apart is a version of a small Delta
table beside the view, and each commit of the view says which version: both are told together or
not at all. An older version that nobody knows any more has the view made anew.
"""

# The stubs of pyarrow leave element types open.
# mypy: disable-error-code="no-any-return"
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Collection
from typing import Any, Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError
from msgspec import Struct, to_builtins

from penstock.spark.config import ViewPipelineConfig
from penstock.spark.storage import at_its_path
from penstock.spark.table.arrow import arrow
from penstock.spark.table.committing import OVERWRITE_RETRIES, commit
from penstock.spark.table.delta import WRITER, Table, create_table, secrets
from penstock.spark.table.upkeep import tidy_if_due
from penstock.spark.view.state import Mark, StateTable

ROWS_MAX: Final = 1000
"""A query that cannot compute more rows than this is wrong, and not the rows."""
NEW_MAX: Final = 100
"""As many may be found at once, beside those that were apart before; each takes some twenty
questions to Spark."""

_SCHEMA: Final = arrow.schema(
    [
        arrow.field("collection", pa.string(), nullable=False),
        arrow.field("key", pa.string(), nullable=False),
        arrow.field("source", pa.string(), nullable=False),
        arrow.field("database", pa.string(), nullable=False),
        arrow.field("sequence", pa.int64()),
        arrow.field("reason", pa.string(), nullable=False),
    ]
)


class ApartRow(Struct, frozen=True, kw_only=True, order=True):
    """A current row that the query cannot compute."""

    collection: str
    key: str
    source: str
    database: str
    sequence: int | None
    reason: str

    @property
    def identity(self) -> tuple[str, str, str]:
        """Key, source, database."""
        return self.key, self.source, self.database


class ApartTable:
    """The table of them. Not shared between threads."""

    def __init__(self, pipeline: str, config: ViewPipelineConfig) -> None:
        self.path = config.apart_path
        self._pipeline = pipeline
        self._config = config
        self._storage = secrets(config.storage_options)
        self._table = StateTable(self.path, storage_options=self._storage)

    @at_its_path
    def at(self, mark: Mark) -> frozenset[ApartRow] | None:
        """The rows that were apart as of a version; None if the table does not know that any
        more."""
        self._table.reload()
        if mark.version < 0:
            return frozenset()
        if self._table.files_at(mark) is None:
            return None
        then = DeltaTable(self.path, version=mark.version, storage_options=self._storage or None)
        try:
            batches = [arrow.record_batch(batch) for batch in then.scan()]
        except Exception as error:
            # Of a file that is gone, it comes through Arrow as an error of no kind.
            if not isinstance(error, DeltaError) and type(error) is not Exception:
                raise
            return None
        rows: list[dict[str, Any]] = [row for batch in batches for row in batch.to_pylist()]
        return frozenset(ApartRow(**row) for row in rows)

    def now(self) -> tuple[frozenset[ApartRow] | None, Mark]:
        """As `at` of its newest version, and which that is."""
        self._table.reload()
        return self.at(self._table.mark), self._table.mark

    @at_its_path
    def write(self, rows: Collection[ApartRow]) -> Mark:
        """Have these rows and no others; the version that has them."""
        create_table(self.path, _SCHEMA, storage=self._storage)
        delta = DeltaTable(self.path, storage_options=self._storage or None)
        table = arrow.Table.from_pylist([to_builtins(row) for row in sorted(rows)], schema=_SCHEMA)
        commit(
            delta,
            lambda delta: write_deltalake(
                delta,
                table,
                mode="overwrite",
                writer_properties=WRITER,
                commit_properties=CommitProperties(max_commit_retries=OVERWRITE_RETRIES),
            ),
        )
        version = delta.version()
        mark = StateTable(self.path, storage_options=self._storage).mark
        upkept = Table(self.path, storage_options=self._storage)
        tidy_if_due(self._pipeline, self._config, upkept, range(version, version + 1))
        return mark
