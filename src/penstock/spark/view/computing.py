"""What Spark computes for a view: all of it, or the groups that changed.

A column that cannot be computed for a group (a quotient of sums, one of which is zero) is null in
that row, which says so itself (FAILED); all else of the row is right, and what is kept of the group
goes on. Which groups those are is found by halves, and only where the computation fails.
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
from msgspec import structs

from penstock.spark.causes import of_values, why_not
from penstock.spark.finding import found_failing
from penstock.spark.table.arrow import arrow, compute
from penstock.spark.table.plan import DATABASE, KEY, OPERATION, SOURCE
from penstock.spark.table.reduce import DELETE, PUT
from penstock.spark.view import sql
from penstock.spark.view.changes import Sides, among, signed
from penstock.spark.view.query import ViewQuery
from penstock.spark.view.relations import Apart, Relations
from penstock.spark.view.sql import AGAIN, FAILED, GROUP, IDENTITY, ROWS, Types
from penstock.spark.view.state import read_files
from penstock.spark.view.stored import ViewTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

GROUPS_MAX: Final = 1000
"""A query that cannot be computed for more groups at once is wrong, and not the rows."""


class Computation:
    """Computes one view, with the types that its query has now."""

    def __init__(
        self,
        spark: "SparkSession",
        query: ViewQuery,
        types: Types,
        *,
        view: ViewTable,
        relations: Relations,
    ) -> None:
        self._spark = spark
        self._query = query
        self._types = types
        self._view = view
        self._relations = relations

    def whole(self, now: Mapping[str, str]) -> pa.Table:
        """The view's rows."""
        return self._finished(self._partials(now))

    def changes(self, sides: Sides) -> pa.Table:
        """The groups that changed, as `ViewTable.merge` takes them."""
        query = self._query
        delta = self._spark.sql(self._deltas(sides)).persist()
        try:
            merged = self._merged(delta)
            whole = f"{ROWS} > 0 AND NOT {AGAIN}" if query.groups else f"NOT {AGAIN}"
            rows = self._finished(merged, whole=whole)
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
            parts.append(_with_operation(self._again(sides.now, again), PUT))
        return arrow.concat_tables(parts).combine_chunks()

    def failed(self, groups: Any) -> dict[str, str | None]:
        """By group: what the view says of those groups as it is."""
        if not self._view.files or FAILED not in self._view.schema.names:
            return {}
        view = read_files(self._spark, self._view.files, self._view.schema)
        chosen = self._spark.createDataFrame(arrow.table({GROUP: groups}))
        rows = view.join(chosen, [GROUP], "left_semi").select(GROUP, FAILED).collect()
        return {row[GROUP]: row[FAILED] for row in rows}

    def identities(self, relation: str) -> set[tuple[str, str, str]] | None:
        """The identities of a relation's rows; None where values do not let them be computed."""
        found: set[tuple[str, str, str]] = set()

        def collect() -> None:
            rows = self._spark.sql(f"SELECT {', '.join(IDENTITY)} FROM {relation}").collect()
            found.update((row[KEY], row[SOURCE], row[DATABASE]) for row in rows)

        return found if why_not(collect) is None else None

    def documents(self, rows: Apart) -> dict[tuple[str, tuple[str, str, str]], str]:
        """Of current rows, what the query reads of them, as JSON; by collection and identity."""
        now = self._relations.now(frozenset())
        found: dict[tuple[str, tuple[str, str, str]], str] = {}
        for name in {row.collection for row in rows}:
            columns = ", ".join(map(sql.quoted, self._relations.columns(name)))
            chosen = self._relations.identities(rows, name)
            own = ", ".join(IDENTITY)
            statement = (
                f"SELECT {own}, to_json(struct({columns})) AS said "
                f"FROM {among(now[name], f'SELECT {own} FROM {chosen}')}"
            )
            for row in self._spark.sql(statement).collect():
                found[name, (row[KEY], row[SOURCE], row[DATABASE])] = row["said"]
        return found

    # --- only whether it can be computed --------------------------------------------------------

    def try_rows(self, names: Mapping[str, str]) -> None:
        """Compute the rows that are aggregated, each by itself. Raises what Spark does."""
        self.run(sql.typed(self._types, sql.rows(self._query, names)))

    def try_whole(self, now: Mapping[str, str]) -> None:
        """Compute what is kept of all rows. Raises what Spark does."""
        self.run(self._partials(now))

    def try_changes(self, sides: Sides) -> None:
        """Compute what is kept after changes. Raises what Spark does."""
        self.run(self._merged(self._spark.sql(self._deltas(sides))))

    def run(self, statement: str) -> None:
        """Have every value of every row computed, and keep none."""
        self._spark.sql(statement).write.format("noop").mode("overwrite").save()

    # --- parts ----------------------------------------------------------------------------------

    def _partials(self, now: Mapping[str, str]) -> str:
        typed = sql.typed(self._types, sql.rows(self._query, now))
        return sql.partials(self._query, self._types, typed)

    def _deltas(self, sides: Sides) -> str:
        return sql.deltas(self._query, self._types, signed(self._query, self._types, sides))

    def _merged(self, delta: "DataFrame") -> str:
        named = self._relations.named("delta", delta)
        view = read_files(self._spark, self._view.files, self._view.schema)
        kept = self._relations.named("view", view)
        return sql.merged(self._query, self._types, delta=named, view=kept)

    def _again(self, now: Mapping[str, str], groups: Any) -> pa.Table:
        """The rows of the groups that do not add up, from all that they have."""
        frame = self._spark.createDataFrame(arrow.table({GROUP: groups}))
        chosen = self._relations.named("again", frame)
        typed = sql.typed(self._types, sql.rows(self._query, now))
        chosen = (
            f"SELECT * FROM ({typed}) WHERE {sql.group_key(self._types)} IN "
            f"(SELECT {GROUP} FROM {chosen})"
        )
        return self._finished(sql.partials(self._query, self._types, chosen))

    def _finished(self, partials: str, *, whole: str | None = None) -> pa.Table:
        """The view's rows, from partials."""
        try:
            return self._rows(sql.finished(self._query, self._types, partials, whole=whole))
        except Exception as error:
            if of_values(error) is None:
                raise
        # If a row is to blame, this fails again.
        kept = self._spark.sql(partials).persist()
        try:
            relation = f"SELECT * FROM {self._relations.named('partials', kept)}"
            failing = self._failing(relation, whole)
            named = self._relations.named("failing", self._spark.createDataFrame(failing))
            statement = sql.finished(self._query, self._types, relation, whole=whole, failing=named)
            return self._rows(statement)
        finally:
            kept.unpersist()

    def _failing(self, relation: str, whole: str | None) -> pa.Table:
        """The groups of which columns cannot be computed, as `sql.finished` takes them."""
        groups = self._spark.sql(f"SELECT {GROUP} FROM ({relation}) ORDER BY {GROUP}").toArrow()
        named = [str(one) for one in groups[GROUP].to_pylist()]
        names: dict[str, list[str]] = {}
        why: dict[str, list[str]] = {}
        for output in self._query.outputs:
            alone = structs.replace(self._query, outputs=(output,))

            def fails(start: int, stop: int, _: Mapping[int, str], query: ViewQuery = alone) -> Any:
                first, last = _literal(named[start]), _literal(named[stop - 1])
                some = f"{relation} WHERE {GROUP} >= {first} AND {GROUP} <= {last}"
                return self.why_not(sql.finished(query, self._types, some, whole=whole))

            found = found_failing(len(named), fails, together=False, most=GROUPS_MAX)
            if len(found) > GROUPS_MAX:
                raise TooManyError(f"{output[0]} of more than {GROUPS_MAX} groups")
            for at, reason in found.items():
                names.setdefault(named[at], []).append(output[0])
                why.setdefault(named[at], []).append(f"{output[0]}: {reason}")
        said = [", ".join(one) for one in why.values()]
        columns: dict[str, Any] = {
            GROUP: arrow.array([*names], pa.string()),
            "names": arrow.array([*names.values()], pa.list_(pa.string())),
            FAILED: arrow.array(said, pa.string()),
        }
        return arrow.table(columns)

    def why_not(self, statement: str) -> str | None:
        """Why values of a statement cannot be computed; None if they can."""
        return why_not(lambda: self.run(statement))

    def _rows(self, statement: str) -> pa.Table:
        """What a statement gives. Whether a column may be null depends on how it was computed."""
        rows = self._spark.sql(statement).toArrow()
        return rows.cast(arrow.schema([field.with_nullable(True) for field in rows.schema]))


class TooManyError(Exception):
    """The query is to blame, and not the rows."""


def _literal(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _with_operation(rows: pa.Table, operation: int) -> pa.Table:
    operations = arrow.array([operation] * rows.num_rows, pa.int8())
    return rows.append_column(OPERATION, operations)
