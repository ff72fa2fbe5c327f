"""The view itself: a Delta table that says, in each commit, what it was made of.

Beside the rows a commit has the number of the query and, of each table of current rows, the version
that the rows equal, and of the table of rows that are kept apart. They are app transactions of the
Delta protocol, so they change together with the rows or not at all.
"""

# The stubs of pyarrow leave element types open.
# mypy: disable-error-code="no-any-return"
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from typing import Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, WriterProperties, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from msgspec import Struct

from penstock.errors import PipelineChangedError
from penstock.spark.config import LakePipelineConfig
from penstock.spark.storage import at_its_path, means_no_table
from penstock.spark.table.arrow import arrow
from penstock.spark.table.committing import OVERWRITE_RETRIES, commit
from penstock.spark.table.delta import Table, secrets
from penstock.spark.table.lasting import keep_commits
from penstock.spark.table.plan import OPERATION
from penstock.spark.table.reduce import DELETE
from penstock.spark.table.statistics import STATISTICS, state_statistics, statistics_of
from penstock.spark.table.upkeep import tidy_if_due
from penstock.spark.view.sql import GROUP
from penstock.spark.view.state import NO_TABLE, Mark

_WRITER: Final = WriterProperties(compression="ZSTD", compression_level=1)
_APART: Final = "apart"
"""No id of a collection: these have a slash."""


class Made(Struct, frozen=True, kw_only=True):
    """What a view was made of."""

    query: int
    """The number of the query and of all types in it."""
    marks: dict[str, Mark]
    """By collection."""
    apart: Mark = NO_TABLE
    """The table of the rows that are kept apart from it."""


class ViewTable:
    """The view's table, as it is now. Not shared between threads."""

    def __init__(
        self,
        path: str,
        pipeline: str,
        *,
        config: LakePipelineConfig,
    ) -> None:
        self.path = path
        self._pipeline = pipeline
        self._config = config
        self._storage = secrets(config.storage_options) or None
        self._delta: DeltaTable | None = None
        self.reload()

    @at_its_path
    def reload(self) -> None:
        """See what was committed since."""
        try:
            self._delta = DeltaTable(self.path, storage_options=self._storage)
        except TableNotFoundError as error:
            if not means_no_table(error):
                raise
            self._delta = None

    def made(self, collections: tuple[str, ...]) -> Made | None:
        """What it was made of; None if there is none, or it was made of other collections.

        Raises PipelineChangedError for a table that is no view of this pipeline.
        """
        if self._delta is None:
            return None
        if self._delta.transaction_version(dict(self._ids(()))["query"]) is None:
            raise PipelineChangedError(
                pipeline=self._pipeline,
                change=f"the table at {self.path} is no view of it",
                remedy="or move that table away",
            )
        known = {name: self._delta.transaction_version(id_) for name, id_ in self._ids(collections)}
        if any(value is None for value in known.values()):
            return None
        said = {name: value or 0 for name, value in known.items()}
        return Made(
            query=said["query"],
            marks={
                name: Mark(table=said[f"{name}/table"], version=said[f"{name}/version"])
                for name in collections
            },
            apart=Mark(table=said[f"{_APART}-table"], version=said[f"{_APART}-version"]),
        )

    def _ids(self, collections: tuple[str, ...]) -> list[tuple[str, str]]:
        names = ["query", f"{_APART}-table", f"{_APART}-version"]
        names += [f"{name}/{part}" for name in collections for part in ("table", "version")]
        return [(name, f"penstock/{self._pipeline}/view/{name}") for name in names]

    @property
    def files(self) -> list[str]:
        return [] if self._delta is None else self._delta.file_uris()

    @property
    def schema(self) -> pa.Schema:
        assert self._delta is not None
        return arrow.schema(self._delta.schema().to_arrow())

    @at_its_path
    def replace(self, rows: pa.Table, made: Made) -> None:
        """Have these rows and these columns, and no others.

        Raises CommitFailedError where another driver has committed since `reload`.
        """
        if self._delta is None:
            self._make(rows, made)
        else:
            state_statistics(self._delta, rows.schema)
            commit(
                self._delta,
                lambda delta: write_deltalake(
                    delta,
                    rows,
                    mode="overwrite",
                    schema_mode="overwrite",
                    writer_properties=_WRITER,
                    commit_properties=self._properties(made, overwrites=True),
                ),
            )
        self._tidied()

    def _make(self, rows: pa.Table, made: Made) -> None:
        properties = self._properties(made)
        properties.max_commit_retries = 0  # the second try would find the table, and add to it
        try:
            write_deltalake(
                self.path,
                rows,
                mode="error",
                storage_options=self._storage,
                configuration={STATISTICS: statistics_of(rows.schema)},
                writer_properties=_WRITER,
                commit_properties=properties,
            )
        except DeltaError as error:
            if not DeltaTable.is_deltatable(self.path, storage_options=self._storage):
                raise
            raise CommitFailedError(
                f"another process has made the view {self.path} meanwhile"
            ) from error
        keep_commits(self.path, after=-1, until=0)

    @at_its_path
    def merge(self, changes: pa.Table, made: Made) -> None:
        """Have these groups instead of those of the same GROUP; OPERATION says which go."""
        assert self._delta is not None
        state_statistics(self._delta, self.schema)
        if not changes.num_rows:
            # Nothing changed in the view, but what it equals did.
            commit(
                self._delta,
                lambda delta: write_deltalake(
                    delta,
                    changes.drop_columns(OPERATION),
                    mode="append",
                    commit_properties=self._properties(made),
                ),
            )
            self._tidied()
            return
        columns = [name for name in changes.column_names if name != OPERATION]
        values = {f"`{_quoted(name)}`": f"s.`{_quoted(name)}`" for name in columns}
        commit(
            self._delta,
            lambda delta: (
                delta.merge(
                    changes,
                    f"t.`{GROUP}` = s.`{GROUP}`",
                    source_alias="s",
                    target_alias="t",
                    writer_properties=_WRITER,
                    commit_properties=self._properties(made),
                )
                .when_matched_delete(f"s.{OPERATION} = {DELETE}")
                .when_matched_update(values)
                .when_not_matched_insert(values, predicate=f"s.{OPERATION} <> {DELETE}")
                .execute()
            ),
        )
        self._tidied()

    def _properties(self, made: Made, *, overwrites: bool = False) -> CommitProperties:
        said: dict[str, int] = {
            "query": made.query,
            f"{_APART}-table": made.apart.table,
            f"{_APART}-version": made.apart.version,
        }
        for name, mark in made.marks.items():
            said |= {f"{name}/table": mark.table, f"{name}/version": mark.version}
        ids = dict(self._ids(tuple(made.marks)))
        return CommitProperties(
            custom_metadata={"penstock.pipeline": self._pipeline},
            app_transactions=[Transaction(ids[name], value) for name, value in said.items()],
            max_commit_retries=OVERWRITE_RETRIES if overwrites else None,
        )

    def _tidied(self) -> None:
        """See the commit, and do the upkeep that it made due."""
        self.reload()
        assert self._delta is not None
        version = self._delta.version()
        table = Table(self.path, storage_options=self._storage)
        tidy_if_due(self._pipeline, self._config, table, range(version, version + 1))
        self.reload()


def _quoted(name: str) -> str:
    return name.replace("`", "``")
