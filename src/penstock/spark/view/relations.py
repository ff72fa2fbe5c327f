"""The current rows of a view's collections, as relations that Spark's SQL knows by name."""

# The stubs of pyarrow leave element types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from msgspec import Struct

from penstock.spark.table.arrow import arrow
from penstock.spark.table.plan import OWN_COLUMNS
from penstock.spark.view.apart import ApartRow
from penstock.spark.view.changes import Sides, difference
from penstock.spark.view.query import Joined, ViewQuery
from penstock.spark.view.sql import IDENTITY, quoted
from penstock.spark.view.state import StateTable, read_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Apart = frozenset[ApartRow]


class Then(Struct, frozen=True, kw_only=True):
    """What the rows were that the view equals."""

    files: Mapping[str, list[str]]
    """By collection."""
    apart: Apart


class Relations:
    """Names them, in one session. A name stands for what it was last given to."""

    def __init__(
        self, spark: "SparkSession", query: ViewQuery, state: Mapping[str, StateTable]
    ) -> None:
        self._spark = spark
        self._query = query
        self._state = state

    def named(self, name: str, rows: "DataFrame") -> str:
        """Give rows a name."""
        rows.createOrReplaceTempView(name)
        return name

    def now(self, apart: Apart, *, but: "DataFrame | None" = None) -> dict[str, str]:
        """All current rows but those apart, by collection, and in the main one but those with the
        identities `but`."""
        files = {name: table.files for name, table in self._state.items()}
        return self._whole("now", files, apart, but=but)

    def then(self, then: Then) -> dict[str, str]:
        """All rows that the view equals."""
        return self._whole("then", then.files, then.apart)

    def sides(self, then: Then, apart: Apart, *, but: "DataFrame | None" = None) -> Sides:
        """What was, what is as `now` has it, and what differs."""
        now, before = self.now(apart, but=but), self.then(then)
        came: dict[str, str] = {}
        gone: dict[str, str] = {}
        for name, table in self._state.items():
            added, removed = set(table.files), set(then.files[name])
            added, removed = added - removed, removed - added
            # They are in files that did not change.
            moved = _identities(apart ^ then.apart, name)
            if not (added or removed or moved):
                continue
            left = but if name == self._query.collections[0] else None
            new = self._part(name, "new", added, apart, moved, now, but=left)
            old = self._part(name, "old", removed, then.apart, moved, before)
            columns = dict(self._spark.table(new).dtypes)
            came[name], gone[name] = difference(new, old, columns)
        return Sides(now=now, then=before, came=came, gone=gone)

    def columns(self, collection: str) -> list[str]:
        """The columns of a collection that the query reads and that there are."""
        table = self._table(collection)
        known = {field.name.lower(): field.name for field in self._state[collection].schema}
        return [known[name.lower()] for name in table.columns if name.lower() in known]

    def identities(self, rows: Collection[ApartRow], collection: str) -> str:
        """A relation of the identities of those of a collection."""
        return self.named("identities", self._frame(_identities(rows, collection)))

    # --- parts ----------------------------------------------------------------------------------

    def _table(self, collection: str) -> Joined:
        return self._query.tables[self._query.collections.index(collection)]

    def _whole(
        self,
        which: str,
        files: Mapping[str, list[str]],
        apart: Apart,
        *,
        but: "DataFrame | None" = None,
    ) -> dict[str, str]:
        found: dict[str, str] = {}
        for place, name in enumerate(self._query.collections):
            left = but if place == 0 else None
            rows = self._without(self._read(name, files[name]), _identities(apart, name), left)
            found[name] = self.named(f"{which}{place}", rows)
        return found

    def _part(
        self,
        collection: str,
        which: str,
        files: Iterable[str],
        apart: Apart,
        moved: set[tuple[str, str, str]],
        whole: Mapping[str, str],
        *,
        but: "DataFrame | None" = None,
    ) -> str:
        """The rows of some files that are not apart, and those `moved` of the `whole`."""
        place = self._query.collections.index(collection)
        left = _identities(apart, collection) | moved
        rows = self._without(self._read(collection, sorted(files)), left, but)
        if moved:
            there = self._spark.table(whole[collection])
            there = there.join(self._frame(moved), [*IDENTITY], "left_semi")
            rows = rows.union(there.select(*(quoted(name) for name in rows.columns)))
        return self.named(f"{which}{place}", rows)

    def _read(self, collection: str, files: list[str]) -> "DataFrame":
        """Rows with the columns that the query needs of them; what no document has had yet is null,
        and of no type."""
        table, known = self._table(collection), self._state[collection].schema
        there = self.columns(collection)
        fields = [known.field(name) for name in there]
        rows = read_files(self._spark, files, arrow.schema([*OWN_COLUMNS, *fields]))
        missing = {name.lower() for name in there}
        absent = [name for name in table.columns if name.lower() not in missing]
        if not absent:
            return rows
        return rows.selectExpr("*", *(f"NULL AS {quoted(name)}" for name in absent))

    def _without(
        self,
        rows: "DataFrame",
        left: set[tuple[str, str, str]],
        but: "DataFrame | None" = None,
    ) -> "DataFrame":
        frames = [self._frame(left)] if left else []
        frames += [] if but is None else [but]
        columns = [quoted(name) for name in rows.columns]
        for frame in frames:
            # Such a join gives the columns that it is by first.
            rows = rows.join(frame, [*IDENTITY], "left_anti").select(*columns)
        return rows

    def _frame(self, identities: set[tuple[str, str, str]]) -> "DataFrame":
        columns = ", ".join(f"{name} STRING" for name in IDENTITY)
        return self._spark.createDataFrame(sorted(identities), columns)


def _identities(rows: Collection[ApartRow], collection: str) -> set[tuple[str, str, str]]:
    return {row.identity for row in rows if row.collection == collection}
