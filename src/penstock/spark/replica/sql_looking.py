"""An SQL database as a comparison sees it: one transaction that reads, as of its beginning."""

# The stubs of pyarrow leave element types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any, Final

from penstock.errors import PipelineError
from penstock.spark.config import ReplicatePipelineConfig
from penstock.spark.replica.anew_sql import SqlAnew, rows_of
from penstock.spark.replica.beside import Found, Rows
from penstock.spark.replica.cells import key_bytes, read_cells
from penstock.spark.replica.destination import Destination
from penstock.spark.replica.dialect import Dialect, SqlTable
from penstock.spark.replica.known import Known
from penstock.spark.replica.ledger import Ledger
from penstock.spark.replica.looking import Look, MomentLostError
from penstock.spark.replica.place import Place

_TRIES: Final = 10
_ROWS: Final = 1000
_BYTES: Final = 8 << 20


class SqlSide:
    """As `Side`."""

    def __init__(
        self,
        pipeline: str,
        config: ReplicatePipelineConfig,
        dialect: Dialect,
        destination: Destination,
        rows: Rows,
    ) -> None:
        self.anew = SqlAnew(pipeline, config, rows, dialect)
        self._pipeline = pipeline
        self._dialect = dialect
        self._destination = destination

    @contextmanager
    def look(self, *, pinned: bool) -> Generator[Look]:  # noqa: ARG002
        """As `Side.look`: the server always keeps it."""
        ledger = Ledger(self._pipeline, self._dialect)
        for _ in range(_TRIES):
            # Known before that moment, as they are held to be what they are then.
            names = sorted(self._destination.standing().tables)
            with closing(self._dialect.connect()) as connection:
                self._dialect.begin_moment(connection, names)
                cursor = connection.cursor()
                known = ledger.known(cursor)
                if known.owned(self._pipeline).keys() - set(names):
                    continue
                place, gaps = ledger.place(cursor), ledger.gaps(cursor)
                described = {one: self._dialect.describe(cursor, one) for one in names}
                tables = {one: table for one, table in described.items() if table is not None}
                self.anew.begin_as(tables)
                self.anew.forms = known.forms
                yield _SqlLook(self._dialect, connection, self.anew, place, known, gaps, tables)
                return
        raise MomentLostError


class _SqlLook:
    def __init__(
        self,
        dialect: Dialect,
        connection: Any,
        anew: SqlAnew,
        place: Place | None,
        known: Known,
        gaps: frozenset[int],
        tables: Mapping[str, SqlTable],
    ) -> None:
        self._dialect = dialect
        self._connection = connection
        self._anew = anew
        self._tables = tables
        self.place = place
        self.known = known
        self.gaps = gaps

    def rows(self, name: str) -> Generator[list[Found]]:
        """As `Look.rows`."""
        table = self._tables.get(name)
        if table is None:
            return
        self._refuse_unreadable(name, table)
        columns = [one for one in table.columns if one.kind is not None]
        key = self._anew.key(name)
        with closing(self._dialect.stream(self._connection, name, columns)) as stream:
            for rows in _slices(stream):
                cells = {
                    one.name: read_cells(
                        self._dialect.read, one.kind, [row[at] for row in rows], key=one.name in key
                    )
                    for at, one in enumerate(columns)
                    if one.kind is not None
                }
                owns = zip(*(cells[field] for field in key), strict=True)
                yield [
                    Found(key_bytes(own), held)
                    for own, held in zip(owns, rows_of(cells), strict=True)
                ]

    def lasted(self) -> bool:
        """As `Look.lasted`."""
        return True

    def _refuse_unreadable(self, name: str, table: SqlTable) -> None:
        wanted = {one.name for one in self._anew.tables[name].columns}
        for column in table.columns:
            if column.kind is None and column.name in wanted:
                raise PipelineError(
                    f"the column {column.name} of table {name} has the type {column.declared}, "
                    f"which no replica's has: somebody altered it. Nothing was changed. Alter it "
                    f"back, then compare again."
                )


def _slices(rows: Iterable[tuple[Any, ...]]) -> Iterator[list[tuple[Any, ...]]]:
    held: list[tuple[Any, ...]] = []
    size = 0
    for row in rows:
        held.append(row)
        size += sum(len(value) for value in row if isinstance(value, str | bytes))
        if len(held) >= _ROWS or size >= _BYTES:
            yield held
            held, size = [], 0
    if held:
        yield held
