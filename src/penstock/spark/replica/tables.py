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
from penstock.spark.replica.destination import PLACES, REJECTS, TABLES
from penstock.spark.replica.dialect import Dialect, SqlTable
from penstock.spark.replica.known import Known
from penstock.spark.replica.place import Stream
from penstock.spark.replica.rows import Setup, SetupNeededError
from penstock.spark.table.kinds import Kind, wider


class SqlTables:
    """The tables of one pipeline's streams, as they are on the server."""

    def __init__(self, pipeline: str, config: ReplicatePipelineConfig, dialect: Dialect) -> None:
        self._pipeline = pipeline
        self._config = config
        self._dialect = dialect

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
                remedy="Give the pipeline another `database`, or a `table` that tells them apart, "
                "as '{database}_{collection}'.",
            )
        if found is None:
            return None
        self._refuse(name, self._problems(cursor, name, found))
        raise SetupNeededError(Setup(changes=(), owned=((name, stream),)))

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
        naming = self._dialect.naming._replace(reserved=None)
        if why := naming.refusal(name, name, frozenset()):
            raise DestinationError(
                pipeline=self._pipeline,
                what=f"no table can be called {name!r}: {why}",
                remedy="Give the pipeline other `collections`.",
            )
        if name in {PLACES, TABLES, REJECTS}:
            raise DestinationError(
                pipeline=self._pipeline,
                what=f"{name} is the name of a table of Penstock's own",
                remedy="Give the pipeline a `table` with something before or behind it.",
            )


def move_setup(
    pipeline: str, old: str, new: str, source: SqlTable, target: SqlTable | None
) -> list[TableChange]:
    """What the target of a move needs to hold every row. Raises DestinationError."""
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
        grown = None if there.kind is None else wider(there.kind, kind)
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
