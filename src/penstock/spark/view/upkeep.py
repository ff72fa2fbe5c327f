"""Bring a view up to the current rows: from the versions that it says it equals to those there are.

Nothing here knows of batches. What changed is what the tables of current rows have now and had not
at the view's versions; so it does not matter how often, or where, whoever wrote them was killed.
Where the old versions are not known any more, the view is made anew from all rows.
"""

# The statements are made here: expressions were parsed, and names are quoted.
# ruff: noqa: S608

# The stubs of pyarrow leave element types open.
# mypy: disable-error-code="no-any-return"
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import xxhash
from msgspec import Struct

from penstock.errors import PipelineError
from penstock.spark.table.arrow import arrow, compute
from penstock.spark.table.plan import OPERATION, OWN_COLUMNS
from penstock.spark.table.reduce import DELETE, PUT
from penstock.spark.view import sql
from penstock.spark.view.changes import Sides, difference, signed
from penstock.spark.view.query import Joined, ViewQuery
from penstock.spark.view.sql import AGAIN, GROUP, ROWS, Types
from penstock.spark.view.state import NUMBER_BITS, Mark, StateTable, read_files
from penstock.spark.view.stored import Made, ViewTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SETTINGS: Final = {
    # What is not exact is an error, not a null; and a query means the same everywhere.
    "spark.sql.ansi.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.caseSensitive": "false",
    "spark.sql.groupByOrdinal": "false",
}
_LAYOUT: Final = 2
"""Of what is made of a query, and of the columns beside its own; part of the query's number."""


class Kept(Struct, frozen=True, kw_only=True):
    """What bringing a view up to date came to."""

    groups: int
    """Rows of the view that were written or deleted."""
    anew: bool = False
    """It was made from all rows."""


class Upkeep:
    """Keeps one view; made anew for each run."""

    def __init__(
        self,
        spark: "SparkSession",
        query: ViewQuery,
        *,
        pipeline: str,
        view: ViewTable,
        state: Mapping[str, StateTable],
    ) -> None:
        """`state` has the table of current rows of each of the query's collections."""
        # Settings and names of relations are this view's own.
        self._spark = spark.newSession()
        for name, value in _SETTINGS.items():
            self._spark.conf.set(name, value)
        self._query = query
        self._pipeline = pipeline
        self._view = view
        self._state = state

    def catch_up(self) -> Kept:
        """Make the view what the query gives of the current rows, in one commit.

        Raises PipelineError where Spark cannot do what the query says of these rows.
        """
        from pyspark.errors import PySparkException

        for table in self._state.values():
            table.reload()
        self._view.reload()
        marks = {name: table.mark for name, table in self._state.items()}
        made = self._view.made(self._query.collections)
        try:
            return self._caught_up(made, marks)
        except PySparkException as error:
            raise self._failed(error) from error

    def _caught_up(self, made: Made | None, marks: dict[str, Mark]) -> Kept:
        now = {
            name: self._relation(name, "now", table.files) for name, table in self._state.items()
        }
        types = self._types(now)
        number = self._number(types)
        current = Made(query=number, marks=marks)
        if made == current:
            return Kept(groups=0)
        then = None if made is None or made.query != number else self._files_at(made.marks)
        if then is None:
            return self._anew(types, now, current)
        try:
            changes = self._changes(types, now, then)
        except Exception as error:
            if not _is_gone(error):
                raise
            return self._anew(types, now, current)
        self._view.merge(changes, current)
        return Kept(groups=changes.num_rows)

    def _files_at(self, marks: Mapping[str, Mark]) -> dict[str, list[str]] | None:
        found: dict[str, list[str]] = {}
        for name, table in self._state.items():
            files = table.files_at(marks[name])
            if files is None:
                return None
            found[name] = files
        return found

    # --- what a view is made of -----------------------------------------------------------------

    def _relation(self, collection: str, which: str, files: list[str]) -> str:
        """Name some rows of a collection, with the columns that the query needs of it."""
        place = self._query.collections.index(collection)
        table, known = self._query.tables[place], self._state[collection].schema
        by_name = {field.name.lower(): field for field in known}
        needed = [by_name[name.lower()] for name in table.columns if name.lower() in by_name]
        rows = read_files(self._spark, files, arrow.schema([*OWN_COLUMNS, *needed]))
        return self._named(f"{which}{place}", _with_missing(rows, table, set(by_name)))

    def _named(self, name: str, rows: "DataFrame") -> str:
        rows.createOrReplaceTempView(name)
        return name

    def _types(self, now: Mapping[str, str]) -> Types:
        schema = self._spark.sql(sql.rows(self._query, now)).schema
        groups, arguments = len(self._query.groups), len(self._query.arguments)
        types = Types(
            groups=tuple(schema[f"_g{at}"].dataType.simpleString() for at in range(groups)),
            arguments=tuple(schema[f"_x{at}"].dataType.simpleString() for at in range(arguments)),
        )
        try:
            sql.partials_of(self._query, types)
        except ValueError as error:
            raise PipelineError(
                f"pipeline {self._pipeline}: the query asks for {error}. The view is as it was. "
                f"Change the query."
            ) from None
        return types

    def _number(self, types: Types) -> int:
        """What tells the query, and the types of everything in it, from any other."""
        used = [
            f"{field.name}:{field.type}"
            for table in self._query.tables
            for field in self._state[table.collection].schema
            if field.name.lower() in {name.lower() for name in table.columns}
        ]
        said = f"{_LAYOUT}|{self._query}|{types}|{used}"
        return xxhash.xxh3_64_intdigest(said.encode()) & NUMBER_BITS

    # --- all of it ------------------------------------------------------------------------------

    def _anew(self, types: Types, now: Mapping[str, str], made: Made) -> Kept:
        partials = self._partials(types, now)
        rows = self._rows(sql.finished(self._query, types, partials))
        self._view.replace(rows, made)
        return Kept(groups=rows.num_rows, anew=True)

    def _partials(self, types: Types, now: Mapping[str, str]) -> str:
        typed = sql.typed(types, sql.rows(self._query, now))
        return sql.partials(self._query, types, typed)

    # --- what changed ---------------------------------------------------------------------------

    def _changes(
        self, types: Types, now: Mapping[str, str], then: Mapping[str, list[str]]
    ) -> pa.Table:
        """The groups that changed, as `ViewTable.merge` takes them."""
        query = self._query
        delta = self._spark.sql(
            sql.deltas(query, types, signed(query, types, self._sides(now, then)))
        ).persist()
        try:
            named = self._named("delta", delta)
            view = self._named("view", read_files(self._spark, self._view.files, self._view.schema))
            merged = sql.merged(query, types, delta=named, view=view)
            whole = f"{ROWS} > 0 AND NOT {AGAIN}" if query.groups else f"NOT {AGAIN}"
            rows = self._rows(sql.finished(query, types, merged, whole=whole))
        finally:
            delta.unpersist()
        is_again = rows[AGAIN]
        is_left = compute.greater(rows[ROWS], 0) if query.groups else compute.is_valid(rows[ROWS])
        again = rows.filter(compute.and_(is_again, is_left))[GROUP]
        rows = rows.drop_columns([AGAIN])
        parts = [
            _with_operation(rows.filter(compute.and_(is_left, compute.invert(is_again))), PUT),
            _with_operation(rows.filter(compute.invert(is_left)), DELETE),
        ]
        if len(again):
            parts.append(_with_operation(self._again(types, now, again), PUT))
        return arrow.concat_tables(parts).combine_chunks()

    def _again(self, types: Types, now: Mapping[str, str], groups: Any) -> pa.Table:
        """The rows of the groups that do not add up, from all that they have."""
        chosen = self._named("again", self._spark.createDataFrame(arrow.table({GROUP: groups})))
        typed = sql.typed(types, sql.rows(self._query, now))
        chosen = (
            f"SELECT * FROM ({typed}) WHERE {sql.group_key(types)} IN "
            f"(SELECT {GROUP} FROM {chosen})"
        )
        partials = sql.partials(self._query, types, chosen)
        return self._rows(sql.finished(self._query, types, partials))

    def _sides(self, now: Mapping[str, str], then: Mapping[str, list[str]]) -> Sides:
        came: dict[str, str] = {}
        gone: dict[str, str] = {}
        for name, table in self._state.items():
            added, removed = set(table.files) - set(then[name]), set(then[name]) - set(table.files)
            if added or removed:
                new = self._relation(name, "new", sorted(added))
                old = self._relation(name, "old", sorted(removed))
                columns = dict(self._spark.table(new).dtypes)
                came[name], gone[name] = difference(new, old, columns)
        before = {name: self._relation(name, "then", files) for name, files in then.items()}
        return Sides(now=now, then=before, came=came, gone=gone)

    def _rows(self, statement: str) -> pa.Table:
        """What a statement gives. Whether a column may be null depends on how it was computed."""
        rows = self._spark.sql(statement).toArrow()
        return rows.cast(arrow.schema([field.with_nullable(True) for field in rows.schema]))

    def _failed(self, error: Exception) -> PipelineError:
        condition = getattr(error, "getCondition", lambda: None)() or type(error).__name__
        return PipelineError(
            f"pipeline {self._pipeline}: Spark cannot compute the query: {condition}. Its log has "
            f"the text. The view is as it was, and the current rows beside it are safe. Change the "
            f"query so that it has a value for every row (try_cast, nullif, coalesce), or mend the "
            f"row at the source; then start the pipeline again."
        )


def _with_missing(rows: "DataFrame", table: Joined, known: set[str]) -> "DataFrame":
    """Columns that no document has had yet are null, and of no type."""
    missing = [name for name in table.columns if name.lower() not in known]
    if not missing:
        return rows
    return rows.selectExpr("*", *(f"NULL AS {sql.quoted(name)}" for name in missing))


def _with_operation(rows: pa.Table, operation: int) -> pa.Table:
    operations = arrow.array([operation] * rows.num_rows, pa.int8())
    return rows.append_column(OPERATION, operations)


def _is_gone(error: Exception) -> bool:
    """Whether a file of an old version is not there any more."""
    condition = getattr(error, "getCondition", lambda: None)()
    return str(condition).startswith(("PATH_NOT_FOUND", "FAILED_READ_FILE"))
