"""Which current rows a view's query cannot be computed with, found by halves.

Only asked where a computation has failed. Three questions, in this order, each of what the one
before has left: rows of joined collections whose condition cannot be computed; rows of the main
collection that the query cannot compute by themselves, with what is joined to them; and those that
do not go with the others of their group (a sum has no room for them).
"""

# The statements are made here: names are quoted.
# ruff: noqa: S608

# The stubs of pyarrow leave element types open.
# mypy: disable-error-code="no-any-return"
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Callable, Iterable, Mapping, Sized
from typing import TYPE_CHECKING, Any, Final, Self

from penstock.spark.causes import why_not
from penstock.spark.finding import Fails, found_failing
from penstock.spark.table.plan import DATABASE, KEY, SEQUENCE, SOURCE
from penstock.spark.view import sql
from penstock.spark.view.apart import ApartRow
from penstock.spark.view.blaming import blamed
from penstock.spark.view.computing import Computation, TooManyError
from penstock.spark.view.query import ViewQuery
from penstock.spark.view.relations import Apart, Relations
from penstock.spark.view.sql import IDENTITY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_NUMBER: Final = "`its number`"
"""No column of a table has a space in its name."""
_NUMBERED: Final = f"xxhash64({', '.join(IDENTITY)}) AS {_NUMBER}"
_ELSEWHERE: Final = 8
"""Rows of the main collection to try a joined row with; some may be to blame themselves."""

Tries = Callable[[Apart, "DataFrame | None"], None]
"""Compute what is kept of groups, without the rows that are apart, and without those of the main
collection that have one of some identities. Raises what Spark does."""
Computes = Callable[[Apart], object]
"""Compute all, as it is kept then, without the rows that are apart. Raises what Spark does."""


class Search:
    """Finds them, in one session."""

    def __init__(
        self,
        spark: "SparkSession",
        query: ViewQuery,
        *,
        relations: Relations,
        computation: Computation,
    ) -> None:
        self._spark = spark
        self._query = query
        self._main = query.collections[0]
        self._relations = relations
        self._computation = computation

    def found(
        self,
        apart: Apart,
        told: Callable[[], str | None],
        tries: Tries,
        *,
        computes: Computes,
        most: int,
    ) -> Apart:
        """`apart`, and what is found beside it.

        `told` is the statement for the identities of the main collection's rows to look among, None
        for all. What `computes` can do is not tried before. Raises TooManyError where more than
        `most` are found at once.
        """
        among = self._told(told)
        if len(self._query.tables) > 1:
            bad, own = self._joined(apart, among, most)
            apart |= bad
            if own:
                # They fail only if what else the query asks of a row lets them.
                apart |= self._alone(apart, self._relations.identities(own, self._main), most)
        apart |= self._alone(apart, among, most)
        if why_not(lambda: computes(apart)) is None:
            return apart
        return apart | self._together(apart, among, tries, most)

    def still(self, apart: Apart, known: Apart, tries: Tries) -> Apart:
        """`apart`, without those of `known` that can be computed by now. Without all of them, what
        is not apart can be."""
        places = {name: at for at, name in enumerate(self._query.collections)}
        tried = sorted(known, key=lambda row: (-places[row.collection], row))

        def fails(_: int, stop: int, without: Mapping[int, str]) -> str | None:
            back = frozenset(tried[at] for at in range(stop) if at not in without)
            return why_not(lambda: tries(apart - back, None))

        found = found_failing(len(tried), fails, together=True, most=len(tried))
        return apart - known | {tried[at] for at in found}

    # --- rows of joined collections -------------------------------------------------------------

    def _joined(self, apart: Apart, among: str | None, most: int) -> tuple[Apart, Apart]:
        """Rows of others for which no condition can be computed, with whatever row; and rows of the
        main collection that cannot be joined without them."""
        bad: Apart = frozenset()
        own: Apart = frozenset()
        for at in range(1, len(self._query.tables)):
            others, rows = self._blamed(apart | bad | own, among, at, most)
            bad |= others
            own |= rows
        return bad, own

    def _blamed(self, apart: Apart, among: str | None, at: int, most: int) -> tuple[Apart, Apart]:
        """As `_joined`, of the collection joined as number `at`."""
        main, *joined = self._query.tables
        now = self._relations.now(apart)
        collection = joined[at - 1].collection
        where = sql.main_where(self._query)

        def joins(row: str, others: str) -> str | None:
            names = {**now, collection: others}
            clauses = [sql.join_clause(one, names, one.join) for one in joined[:at]]
            pairs = f"{row} AS {sql.quoted(main.alias)} {' '.join(clauses)}"
            return self._computation.why_not(f"SELECT 1 AS one FROM {pairs} {where}")

        if joins(f"({_among_rows(now[self._main], among)})", now[collection]) is None:
            # Most often: then no row of either has to be told from the others.
            return frozenset(), frozenset()
        with (
            self._numbered(now[self._main], among) as rows,
            self._numbered(now[self._main], None, first=_ELSEWHERE) as elsewhere,
            self._numbered(now[collection], None) as others,
        ):
            own, bad = blamed(_Joins(rows, elsewhere, others, joins), most=most)
            _refuse_more(bad, most, collection)
            return others.rows(collection, bad), rows.rows(self._main, own)

    # --- rows of the main collection ------------------------------------------------------------

    def _alone(self, apart: Apart, among: str | None, most: int) -> Apart:
        now = self._relations.now(apart)
        with self._numbered(now[self._main], among) as rows:

            def fails(start: int, stop: int, _: Mapping[int, str]) -> str | None:
                names = {**now, self._main: rows.part(start, stop, {})}
                return why_not(lambda: self._computation.try_rows(names))

            return self._rows(rows, fails, together=False, most=most)

    def _together(self, apart: Apart, among: str | None, tries: Tries, most: int) -> Apart:
        now = self._relations.now(apart)
        with self._numbered(now[self._main], among) as rows:

            def fails(_: int, stop: int, without: Mapping[int, str]) -> str | None:
                left = rows.but(stop, without)
                return why_not(lambda: tries(apart, left))

            return self._rows(rows, fails, together=True, most=most)

    def _rows(self, rows: "_Numbered", fails: Fails, *, together: bool, most: int) -> Apart:
        found = found_failing(len(rows), fails, together=together, most=most)
        _refuse_more(found, most, self._main)
        return rows.rows(self._main, found)

    # --- parts ----------------------------------------------------------------------------------

    def _told(self, told: Callable[[], str | None]) -> str | None:
        """A relation of the identities to look among; None for all, and where it cannot be computed
        which they are."""
        statement = told()
        if statement is None:
            return None
        found: list[DataFrame] = []

        def compute() -> None:
            found.append(self._spark.createDataFrame(self._spark.sql(statement).toArrow()))

        return self._relations.named("told", found[0]) if why_not(compute) is None else None

    def _numbered(self, relation: str, among: str | None, *, first: int = 0) -> "_Numbered":
        rows = _among_rows(relation, among, f"*, {_NUMBERED}")
        if first:
            rows += f" ORDER BY {_NUMBER} LIMIT {first}"
        return _Numbered(self._spark, self._relations, rows)


def _among_rows(relation: str, among: str | None, columns: str = "*") -> str:
    """Those rows of a relation that have one of the identities to look among; all for None."""
    rows = f"SELECT {columns} FROM {relation}"
    if among is None:
        return rows
    same = " AND ".join(f"r.{name} = m.{name}" for name in IDENTITY)
    return f"{rows} AS r LEFT SEMI JOIN {among} AS m ON {same}"


def _refuse_more(found: Sized, most: int, collection: str) -> None:
    if len(found) > most:
        raise TooManyError(f"more than {most:,} rows of {collection} at once")


class _Numbered:
    """Rows of a collection in an order, while it is entered."""

    def __init__(self, spark: "SparkSession", relations: Relations, statement: str) -> None:
        self._rows = spark.sql(statement)
        self._spark = spark
        self._relations = relations

    def __enter__(self) -> Self:
        self._rows.persist()
        self._name = self._relations.named(f"rows{id(self)}", self._rows)
        numbers = self._rows.select(_NUMBER).distinct().orderBy(_NUMBER).toArrow()
        # As Python's numbers those of a large collection would fill the driver.
        self._numbers: Any = numbers.column(0).combine_chunks()
        return self

    def __exit__(self, *_: object) -> None:
        self._spark.catalog.dropTempView(self._name)
        self._rows.unpersist()

    def __len__(self) -> int:
        return len(self._numbers)

    def number(self, at: int) -> int:
        """What the row is called, which it is among whatever others."""
        return self._numbers[at].as_py()

    def part(self, start: int, stop: int, without: Iterable[int]) -> str:
        """The rows from `start` to before `stop`, as a relation."""
        return f"(SELECT * FROM {self._name} WHERE {self._among(start, stop, without)})"

    def but(self, stop: int, without: Iterable[int]) -> "DataFrame":
        """The identities of all but the rows before `stop`, and those `without`."""
        return self._rows.where(f"NOT ({self._among(0, stop, without)})").select(*IDENTITY)

    def rows(self, collection: str, found: Mapping[int, str]) -> Apart:
        """Those found, each with its reason."""
        reasons = {self.number(at): why for at, why in found.items()}
        if not reasons:
            return frozenset()
        chosen = self._rows.where(f"{_NUMBER} IN ({', '.join(map(str, reasons))})")
        return frozenset(
            ApartRow(
                collection=collection,
                key=row[KEY],
                source=row[SOURCE],
                database=row[DATABASE],
                sequence=row[SEQUENCE],
                reason=reasons[row[_NUMBER.strip("`")]],
            )
            for row in chosen.select(KEY, SOURCE, DATABASE, SEQUENCE, _NUMBER).collect()
        )

    def _among(self, start: int, stop: int, without: Iterable[int]) -> str:
        if start == stop:
            return "false"
        first, last = self.number(start), self.number(stop - 1)
        condition = f"{_NUMBER} BETWEEN {first} AND {last}"
        left = ", ".join(str(self.number(at)) for at in without)
        return f"{condition} AND {_NUMBER} NOT IN ({left})" if left else condition


class _Joins:
    """Pairs of the main collection and another, as `Pairs`."""

    def __init__(
        self,
        rows: _Numbered,
        elsewhere: _Numbered,
        others: _Numbered,
        joins: Callable[[str, str], str | None],
    ) -> None:
        self._rows = rows
        self._elsewhere = elsewhere
        self._others = others
        self._joins = joins

    @property
    def rows(self) -> int:
        return len(self._rows)

    @property
    def others(self) -> int:
        return len(self._others)

    def why_not(self, rows: range, others: range, without: Mapping[int, str]) -> str | None:
        some = self._others.part(others.start, others.stop, without)
        return self._joins(self._rows.part(rows.start, rows.stop, {}), some)

    def elsewhere(self, without: Iterable[int]) -> list[int]:
        left = {self._rows.number(at) for at in without}
        numbers = range(len(self._elsewhere))
        return [at for at in numbers if self._elsewhere.number(at) not in left]

    def fails_there(self, elsewhere: int, other: int) -> bool:
        row = self._elsewhere.part(elsewhere, elsewhere + 1, {})
        return self._joins(row, self._others.part(other, other + 1, {})) is not None
