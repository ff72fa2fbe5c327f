"""Bring a view up to the current rows: from the versions that it says it equals to those there are.

Nothing here knows of batches. What changed is what the tables of current rows have now and had not
at the view's versions; so it does not matter how often, or where, whoever wrote them was killed.
Where the old versions are not known any more, the view is made anew from all rows.
"""

# The stubs of pyarrow leave element types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import xxhash
from msgspec import Struct, structs

from penstock.errors import PipelineError
from penstock.spark.causes import (
    condition_of,
    is_gone,
    of_query,
    of_values,
    why_not,
)
from penstock.spark.meaning import MEANING
from penstock.spark.table.arrow import compute
from penstock.spark.table.plan import OPERATION, SEQUENCE
from penstock.spark.table.reduce import DELETE
from penstock.spark.view import sql
from penstock.spark.view.apart import NEW_MAX, ROWS_MAX, ApartRow, ApartTable
from penstock.spark.view.changes import among, touched
from penstock.spark.view.computing import Computation, TooManyError
from penstock.spark.view.meaning import check_meaning
from penstock.spark.view.query import ViewQuery
from penstock.spark.view.refusing import Refused
from penstock.spark.view.relations import Apart, Relations, Then
from penstock.spark.view.sql import FAILED, GROUP, IDENTITY, Types
from penstock.spark.view.state import NUMBER_BITS, Mark, StateTable, read_files
from penstock.spark.view.stored import Made, ViewTable
from penstock.spark.view.unfit import Search

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_SETTINGS: Final = {
    **MEANING,
    "spark.sql.groupByOrdinal": "false",
    # A file that cannot be read is no file without rows.
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.files.ignoreCorruptFiles": "false",
}
_LAYOUT: Final = 5
"""Of what is made of a query, and of the columns beside its own; part of the query's number."""
_NOBODY: Final[Apart] = frozenset()


class Kept(Struct, frozen=True, kw_only=True):
    """What bringing a view up to date came to."""

    groups: int
    """Rows of the view that were written or deleted."""
    anew: bool = False
    """It was made from all rows."""
    refused: int = 0
    """Rows that the query cannot compute, and columns of groups, that it could before."""


class Should(Struct, frozen=True, kw_only=True):
    """What a view is, and what it should be: its query over the rows that it says it equals."""

    wanted: pa.Table
    there: pa.Table
    apart: int
    """How many rows the query cannot compute; it is without them."""
    made: Made


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
        apart: ApartTable,
        refuse: Callable[[Sequence[Refused]], None],
    ) -> None:
        """`state` has the table of current rows of each of the query's collections. `refuse` notes
        what the query cannot compute, before the view is without it; it may be told twice."""
        # Settings and names of relations are this view's own.
        self._spark = _session(spark)
        self._query = query
        self._pipeline = pipeline
        self._view = view
        self._state = state
        self._apart = apart
        self._refuse = refuse
        self._relations = Relations(self._spark, query, state)
        self._meant: dict[str, StructType] | None = None
        """The columns with which Spark was asked what the query means."""

    def catch_up(self) -> Kept:
        """Make the view what the query gives of the current rows, in one commit.

        Rows that it cannot compute are left out of it, and noted. Raises PipelineError where that
        explains nothing, or where they are too many; and what Spark raises where the query is not
        to blame.
        """
        made = self._reloaded()
        marks = {name: table.mark for name, table in self._state.items()}
        with self._told():
            return self._caught_up(made, marks)

    def should(self) -> Should | None:
        """The view as it is, and as it should be; both pass through this process, as where it is
        made anew. None where it is not of this query and its types, or of versions that nobody
        knows any more, or whose files are gone. Raises as `catch_up`."""
        made = self._reloaded()
        try:
            return self._compared(made)
        except Exception as error:
            if not is_gone(error):
                raise
            return None

    def _compared(self, made: Made | None) -> Should | None:
        with self._told():
            types = self._types()
            then = None if made is None or made.query != self._number(types) else self._then(made)
            if made is None or then is None:
                return None
            there = read_files(self._spark, self._view.files, self._view.schema).toArrow()
            wanted = self._computation(types).whole(self._relations.then(then))
        return Should(wanted=wanted, there=there, apart=len(then.apart), made=made)

    def mend(self, should: Should) -> None:
        """Make the view what it should be. Raises as `ViewTable.replace`."""
        self._view.replace(should.wanted, should.made)

    def apart(self) -> Apart:
        """The rows that the view is without, as of its last commit. Raises PipelineError where
        nobody knows."""
        made = self._view.made(self._query.collections)
        rows = None if made is None else self._apart.at(made.apart)
        if rows is None:
            raise PipelineError(
                f"pipeline {self._pipeline}: nobody knows any more which rows its view is without. "
                f"Nothing was marked as replayed. Its next run makes the view anew: penstock "
                f"pipeline run {self._pipeline} --once."
            )
        return rows

    def failed(self) -> set[str]:
        """The groups of which the view is without columns, as of its last commit."""
        if FAILED not in self._view.schema.names:
            return set()
        rows = read_files(self._spark, self._view.files, self._view.schema)
        return {row[GROUP] for row in rows.where(f"{FAILED} IS NOT NULL").select(GROUP).collect()}

    def _caught_up(self, made: Made | None, marks: dict[str, Mark]) -> Kept:
        types = self._types()
        number = self._number(types)
        then = None if made is None or made.query != number else self._then(made)
        if made is not None and then is not None and made.marks == marks:
            return Kept(groups=0)
        computation = self._computation(types)
        if then is None:
            return self._anew(computation, number, marks)
        try:
            changes, apart = self._changes(computation, then)
        except Exception as error:
            if not is_gone(error):
                raise
            return self._anew(computation, number, marks)
        assert made is not None
        refused = self._refused(computation, changes, apart - then.apart)
        mark = self._kept_apart(apart, then.apart, made.apart, refused)
        self._view.merge(changes, Made(query=number, marks=marks, apart=mark))
        return Kept(groups=changes.num_rows, refused=len(refused))

    def _reloaded(self) -> Made | None:
        for table in self._state.values():
            table.reload()
        self._view.reload()
        return self._view.made(self._query.collections)

    @contextmanager
    def _told(self) -> Generator[None]:
        """Tell what Spark cannot compute, where the query or its rows are to blame."""
        try:
            yield
        except TooManyError as error:
            raise self._failed(f"it fails on {error}") from error
        except Exception as error:
            if of_values(error) is None and not of_query(error):
                raise
            raise self._failed(f"{condition_of(error)}. Its log has the text") from error

    def _computation(self, types: Types) -> Computation:
        return Computation(
            self._spark, self._query, types, view=self._view, relations=self._relations
        )

    def _then(self, made: Made) -> Then | None:
        """What the rows were that the view equals; None where nobody knows any more."""
        apart = self._apart.at(made.apart)
        if apart is None:
            return None
        found: dict[str, list[str]] = {}
        for name, table in self._state.items():
            files = table.files_at(made.marks[name])
            if files is None:
                return None
            found[name] = files
        return Then(files=found, apart=apart)

    # --- the query ------------------------------------------------------------------------------

    def _types(self) -> Types:
        now = self._relations.now(_NOBODY)
        schema = self._spark.sql(sql.rows(self._query, now)).schema
        groups, arguments = len(self._query.groups), len(self._query.arguments)
        types = Types(
            groups=tuple(schema[f"_g{at}"].dataType.simpleString() for at in range(groups)),
            arguments=tuple(schema[f"_x{at}"].dataType.simpleString() for at in range(arguments)),
        )
        try:
            sql.partials_of(self._query, types)
            self._check_meaning(now)
        except ValueError as error:
            raise PipelineError(
                f"pipeline {self._pipeline}: the query asks for {error}. The view is as it was. "
                f"Change the query."
            ) from None
        return types

    def _check_meaning(self, now: Mapping[str, str]) -> None:
        columns = {name: self._spark.table(relation).schema for name, relation in now.items()}
        if columns != self._meant:
            check_meaning(_session(self._spark), self._query, columns)
            self._meant = columns

    def _number(self, types: Types) -> int:
        """What tells the query, and the types of everything in it, from any other."""
        used = [
            f"{field.name}:{field.type}"
            for table in self._query.tables
            for field in self._state[table.collection].schema
            if field.name.lower() in {name.lower() for name in table.columns}
        ]
        parts = structs.replace(self._query, written="", read="")
        said = f"{_LAYOUT}|{parts}|{types}|{used}"
        return xxhash.xxh3_64_intdigest(said.encode()) & NUMBER_BITS

    # --- all of it ------------------------------------------------------------------------------

    def _anew(self, computation: Computation, number: int, marks: dict[str, Mark]) -> Kept:
        @cache
        def computed(apart: Apart) -> pa.Table:
            return computation.whole(self._relations.now(apart))

        apart: Apart = _NOBODY
        try:
            rows = computed(apart)
        except Exception as error:
            if of_values(error) is None:
                raise

            def tries(left: Apart, but: "DataFrame | None") -> None:
                computation.try_whole(self._relations.now(left, but=but))

            search = self._search(computation)
            apart = search.found(apart, lambda: None, tries, computes=computed, most=ROWS_MAX)
            self._refuse_many(apart)
            rows = computed(apart)
        refused = self._refused(computation, rows, apart)
        mark = self._kept_apart(apart, *self._apart.now(), refused)
        self._view.replace(rows, Made(query=number, marks=marks, apart=mark))
        return Kept(groups=rows.num_rows, anew=True, refused=len(refused))

    # --- what changed ---------------------------------------------------------------------------

    def _changes(self, computation: Computation, then: Then) -> tuple[pa.Table, Apart]:
        """As `Computation.changes`, and which rows are apart now."""

        @cache
        def computed(apart: Apart) -> pa.Table:
            return computation.changes(self._relations.sides(then, apart))

        retried = self._retried(computation, then) if then.apart else _NOBODY
        apart = then.apart - retried
        try:
            return computed(apart), apart
        except Exception as error:
            if of_values(error) is None:
                raise

        def tries(left: Apart, but: "DataFrame | None") -> None:
            computation.try_changes(self._relations.sides(then, left, but=but))

        known = self._unchanged(retried)
        apart |= known
        without = apart

        def told() -> str:
            return touched(self._query, self._relations.sides(then, without))

        search = self._search(computation)
        if not known or why_not(lambda: computed(without)) is not None:
            apart = search.found(apart, told, tries, computes=computed, most=NEW_MAX)
        apart = search.still(apart, known, tries)
        self._refuse_many(apart)
        return computed(apart), apart

    def _retried(self, computation: Computation, then: Then) -> Apart:
        """Those of the rows that were apart which changed, or may be joined to what changed."""
        sides = self._relations.sides(Then(files=then.files, apart=_NOBODY), _NOBODY)
        retried: set[ApartRow] = set()
        columns = ", ".join(IDENTITY)
        for at, name in enumerate(self._query.collections):
            rows = {row.identity: row for row in then.apart if row.collection == name}
            if not rows or not sides.came:
                continue
            apart = self._relations.identities(then.apart, name)
            if at == 0:
                statement = touched(self._query, sides)
            else:
                # It failed with a row that is there still, unless that is gone.
                earlier = [one for one in self._query.collections[:at] if one in sides.gone]
                some = [
                    f"SELECT {columns} FROM {apart} WHERE EXISTS (SELECT 1 FROM {sides.gone[one]})"  # noqa: S608
                    for one in earlier
                ]
                if name in sides.came:
                    both = (sides.came[name], sides.gone[name])
                    some += [f"SELECT {columns} FROM {one}" for one in both]  # noqa: S608
                if not some:
                    continue
                statement = " UNION ".join(some)
            found = computation.identities(among(apart, statement))
            retried.update(rows.values() if found is None else (rows[own] for own in found))
        return frozenset(retried)

    def _unchanged(self, rows: Apart) -> Apart:
        """Those that are as they were when they were put apart."""
        now = self._relations.now(_NOBODY)
        own = ", ".join(IDENTITY)
        there: set[tuple[Any, ...]] = set()
        for name in {row.collection for row in rows}:
            apart = self._relations.identities(rows, name)
            chosen = among(now[name], f"SELECT {own} FROM {apart}")  # noqa: S608
            statement = f"SELECT {own}, {SEQUENCE} FROM {chosen}"  # noqa: S608
            there |= {(name, *row) for row in self._spark.sql(statement).collect()}
        return frozenset(
            row for row in rows if (row.collection, *row.identity, row.sequence) in there
        )

    # --- what cannot be computed ----------------------------------------------------------------

    def _search(self, computation: Computation) -> Search:
        return Search(self._spark, self._query, relations=self._relations, computation=computation)

    def _refuse_many(self, apart: Apart) -> None:
        if len(apart) > ROWS_MAX:
            raise TooManyError(f"more than {ROWS_MAX:,} rows")

    def _refused(self, computation: Computation, rows: pa.Table, new: Apart) -> list[Refused]:
        """What was not refused before: rows that are apart now, and columns of groups."""
        documents = computation.documents(new)
        refused = [
            Refused(
                sequence=row.sequence,
                source=row.source,
                database=row.database,
                collection=row.collection,
                key=row.key,
                reason=f"the query of the view cannot be computed with it: {row.reason}",
                document=documents.get((row.collection, row.identity)),
            )
            for row in sorted(new)
        ]
        failed = rows.filter(compute.is_valid(rows[FAILED]))
        if OPERATION in failed.column_names:
            failed = failed.filter(compute.not_equal(failed[OPERATION], DELETE))
        before = computation.failed(failed[GROUP]) if failed.num_rows else {}
        groups: list[Any] = failed[GROUP].to_pylist()
        for group, said in zip(groups, failed[FAILED].to_pylist(), strict=True):
            if before.get(group) != said:
                refused.append(
                    Refused(
                        collection=self._query.collections[0],
                        key=group,
                        reason=f"the query of the view cannot be computed for the group: {said}",
                    )
                )
        return refused

    def _kept_apart(
        self, apart: Apart, before: Apart | None, mark: Mark, refused: Sequence[Refused]
    ) -> Mark:
        """Note what is refused, and have the rows apart where `mark` has others; their table's
        version that says so."""
        if refused:
            self._refuse(refused)
        return mark if apart == before else self._apart.write(apart)

    def _failed(self, why: str) -> PipelineError:
        return PipelineError(
            f"pipeline {self._pipeline}: Spark cannot compute the query: {why}. The view is as it "
            f"was, and the current rows beside it are safe. Change the query so that it has a "
            f"value for every row (try_cast, nullif, coalesce), or mend the rows at the source; "
            f"then start the pipeline again."
        )


def _session(spark: "SparkSession") -> "SparkSession":
    """One of its own, that means by a query what every view does."""
    session = spark.newSession()
    for name, value in _SETTINGS.items():
        session.conf.set(name, value)
    return session


def is_too_many(error: PipelineError) -> bool:
    """Whether rows or groups that cannot be computed are too many: fewer would be left out."""
    return isinstance(error.__cause__, TooManyError)
