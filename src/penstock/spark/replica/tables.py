"""Tables that are replicated into: whose each is, and why one cannot be written."""

# Names of tables and columns are quoted by the dialect; values are never in the text.
# ruff: noqa: S608

# The stubs of pyarrow leave element types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Sequence
from typing import Any

from penstock.errors import DestinationError
from penstock.spark.config import ReplicatePipelineConfig
from penstock.spark.replica.altering import Added, Created, TableChange, Widened
from penstock.spark.replica.destination import COLUMNS, PLACES, REJECTS, TABLES
from penstock.spark.replica.dialect import Dialect, SqlColumn, SqlTable
from penstock.spark.replica.known import Known
from penstock.spark.replica.ledger import Ledger
from penstock.spark.replica.place import Stream, remedy_of_taken
from penstock.spark.replica.rows import Setup, SetupNeededError
from penstock.spark.table.kinds import Kind, wider


class SqlTables:
    """The tables of one pipeline's streams, as they are on the server."""

    def __init__(
        self,
        pipeline: str,
        config: ReplicatePipelineConfig,
        dialect: Dialect,
        ledger: Ledger,
    ) -> None:
        self._pipeline = pipeline
        self._config = config
        self._dialect = dialect
        self._ledger = ledger

    def name(self, stream: Stream) -> str:
        """The name of a stream's table."""
        return self._config.table_of(stream.database, stream.collection)

    def described(self, cursor: Any, stream: Stream, known: Known) -> SqlTable | None:
        """The stream's table; None if it is to be made. It is ours from then on.

        Raises DestinationError, SetupNeededError.
        """
        name = self.name(stream)
        self._refuse_name(name)
        owner = known.streams.get(name)
        found = self._dialect.describe(cursor, name)
        if owner == (self._pipeline, stream):
            if found is None:
                raise DestinationError(
                    pipeline=self._pipeline,
                    what=f"its table {name} is gone",
                    remedy="Put it back as it was, or begin anew with another name.",
                )
            # What was altered since would have rows written over others, silently.
            self._refuse(name, found.problems)
            return found
        if owner is not None:
            other, theirs = owner
            raise DestinationError(
                pipeline=self._pipeline,
                what=f"the table {name} of {stream.database}.{stream.collection} has the rows of "
                f"{theirs.database}.{theirs.collection}, of pipeline {other}",
                remedy=remedy_of_taken(own=other == self._pipeline),
            )
        if found is None:
            return None
        self._refuse(name, self._problems(cursor, name, found))
        raise SetupNeededError(Setup(changes=(), owned=((name, stream),)))

    def writable(self, cursor: Any, stream: Stream, known: Known) -> SqlTable | None:
        """As `described`, of a table that rows are written into or read from, whole.

        Columns of types that are ours are the pipeline's from then on: one that is altered to
        another type could only be left out, or be altered back with all its values. A column that
        never was of such a type is somebody else's.
        """
        found = self.described(cursor, stream, known)
        if found is None:
            return None
        name = self.name(stream)
        held = self._ledger.columns(cursor, name)
        altered = [one for one in found.columns if one.kind is None and one.name in held]
        if altered:
            raise DestinationError(
                pipeline=self._pipeline,
                what=f"columns of its table {name} were altered to types that it does not write: "
                f"{_listed(altered)}",
                remedy="Alter them back, then start the pipeline again. `penstock pipeline verify` "
                "tells what their values lost by it.",
            )
        ours = [one.name for one in found.columns if one.kind is not None]
        self._ledger.keep_columns(cursor, name, [one for one in ours if one not in held])
        return found

    def _refuse(self, name: str, problems: Sequence[str]) -> None:
        if problems:
            raise DestinationError(
                pipeline=self._pipeline,
                what=f"the table {name} is there and cannot be used: {'; '.join(problems)}",
                remedy="Alter it or move it away, then start the pipeline again.",
            )

    def _problems(self, cursor: Any, name: str, found: SqlTable) -> list[str]:
        problems = [
            f"the column {one.name} has the type {one.declared}"
            for one in found.columns
            if one.kind is None
        ]
        problems += found.problems
        if not found.unique:
            problems.append("it has no primary key")
        keys = frozenset[str]().union(*found.unique)
        problems += [
            f"the column {one.name} is NOT NULL"
            for one in found.columns
            if one.required and one.name not in keys
        ]
        cursor.execute(f"SELECT 1 FROM {self._dialect.table(name)} LIMIT 1", ())
        if cursor.fetchone() is not None:
            problems.append("it has rows, which no pipeline has written")
        return problems

    def _refuse_name(self, name: str) -> None:
        # Its length is what `table_of` makes it.
        naming = self._dialect.naming._replace(reserved=None, bytes_max=None)
        if why := naming.refusal(name, name, frozenset()):
            raise DestinationError(
                pipeline=self._pipeline,
                what=f"no table can be called {name!r}: {why}",
                remedy="Give the pipeline other `collections`.",
            )
        if name in {PLACES, TABLES, REJECTS, COLUMNS}:
            raise DestinationError(
                pipeline=self._pipeline,
                what=f"{name} is the name of a table of Penstock's own",
                remedy="Give the pipeline a `table` with something before or behind it.",
            )


def move_setup(
    pipeline: str, old: str, new: str, source: SqlTable, target: SqlTable | None
) -> list[TableChange]:
    """What the target of a move needs to hold every row. Raises DestinationError."""
    if foreign := [one for one in source.columns if one.kind is None]:
        raise DestinationError(
            pipeline=pipeline,
            what=f"the collection of table {old} was renamed to that of {new}, and {old} has "
            f"columns of types that no replica writes: {_listed(foreign)}",
            remedy="Drop them, then start it again.",
        )
    key = min((len(names), sorted(names)) for names in source.unique)[1]
    if target is None:
        columns = tuple((one.name, one.kind or Kind.UNFIT) for one in source.columns)
        return [Created(columns=columns, key=tuple(key))]
    changes: list[TableChange] = []
    wrong: list[str] = [] if target.has_key(key) else ["its key"]
    for column in source.columns:
        there, kind = target.column(column.name), column.kind
        assert kind is not None
        if there is None:
            changes.append(Added(name=column.name, kind=kind))
            continue
        # The one that is there may be the wider, whatever rows it has: they go.
        of = there.kind
        grown = None if of is None else wider(of, kind) or wider(kind, of)
        if grown is None:
            wrong.append(f"{column.name} ({there.declared}, not {column.declared})")
        elif grown is not there.kind:
            changes.append(Widened(name=column.name, kind=grown, key=column.name in key))
    if wrong:
        raise DestinationError(
            pipeline=pipeline,
            what=f"the collection of table {old} was renamed to that of {new}, whose columns "
            f"do not hold its rows: {', '.join(wrong)}",
            remedy=f"Alter {new} so that they do, then start it again.",
        )
    return changes


def _listed(columns: Sequence[SqlColumn]) -> str:
    return ", ".join(f"{one.name} ({one.declared})" for one in columns)
