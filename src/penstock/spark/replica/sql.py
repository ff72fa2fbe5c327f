"""Replicate into an SQL database: rows with the source's key, and the place, in one transaction.

A statement that changes tables would end a transaction on MySQL, and block readers on PostgreSQL.
So steps are tried in a transaction; where one finds that a table or a column is missing, the
transaction is rolled back, the table is changed, and the steps are tried again. A table that has
a column more is the same to whoever reads it.
"""

# Names of tables and columns are quoted by the dialect; values are never in the text.
# ruff: noqa: S608

# The stubs of pyarrow leave element types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from penstock.errors import DestinationError, PenstockError, PipelineError
from penstock.progress import parse_progress
from penstock.spark.config import ReplicatePipelineConfig
from penstock.spark.replica.destination import (
    PLACES,
    REJECTS,
    TABLES,
    Decide,
    is_applied,
)
from penstock.spark.replica.dialect import Dialect, SqlTable
from penstock.spark.replica.place import Place, Stream
from penstock.spark.replica.rejecting import Written
from penstock.spark.replica.rows import Prepared, Setup, SetupNeededError, decode_keyed, prepared
from penstock.spark.replica.steps import (
    DatabaseEmptied,
    Done,
    Emptied,
    EntriesAt,
    Known,
    Moved,
    Noted,
    Refused,
    Rows,
    Step,
)
from penstock.spark.table.kinds import Kind, wider
from penstock.spark.table.rejects import ENTRY_COLUMNS

_REJECT_COLUMNS: Final = ("pipeline", *ENTRY_COLUMNS, "field", "reason", "healed")
_SETUPS_MAX: Final = 1000
"""Each finds one table or a few columns more."""


class SqlDestination:
    """One pipeline's tables in one database."""

    decode = staticmethod(decode_keyed)

    def __init__(self, pipeline: str, config: ReplicatePipelineConfig, dialect: Dialect) -> None:
        self._pipeline = pipeline
        self._config = config
        self._dialect = dialect
        self._connection: Any = None
        self._streams: dict[str, tuple[str, Stream]] = {}
        """By table: its pipeline, and what is replicated into it."""
        self._stale: dict[str, dict[str, int]] = {}
        """By table and key: the sequence of the change that the row lacks."""

    @property
    def errors(self) -> type[Exception]:
        return self._dialect.errors

    def judge(self, error: Exception) -> PenstockError | None:
        """As `Destination.judge`."""
        if self._dialect.passes(error):
            return None
        return DestinationError(
            pipeline=self._pipeline,
            what=f"the destination refuses ({self._dialect.code_of(error)})",
            remedy="Correct what it names, the pipeline's uri, or what its user may do: it "
            "creates and alters tables, and reads and writes them.",
        )

    def reset(self) -> None:
        """As `Destination.reset`."""
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                connection.close()
            except self.errors:
                return  # it is gone, which is what was wanted

    def claim(self, decide: Decide) -> Place:
        """As `Destination.claim`."""
        self.reset()
        try:
            return self._claim(decide)
        except BaseException:
            self.reset()  # which lets go of the place
            raise

    def _claim(self, decide: Decide) -> Place:
        cursor = self._cursor()
        stored = self._stored(cursor, lock=True)
        self._learn(cursor)  # behind the lock: what an older driver was committing is known too
        mine = [name for name, (owner, _) in self._streams.items() if owner == self._pipeline]
        gone = [name for name in mine if self._dialect.describe(cursor, name) is None]
        place = decide(stored, mine, gone)
        self._store(cursor, place, new=stored is None)
        self._connection.commit()
        return place

    def apply(
        self, steps: Sequence[Step], *, before: Place, until: Place, entries_at: EntriesAt
    ) -> Done:
        """As `Destination.apply`."""
        try:
            for _ in range(_SETUPS_MAX):
                try:
                    return self._apply(steps, before, until, entries_at)
                except SetupNeededError as needed:
                    self._set_up(needed.setup)
        except BaseException:
            # Nobody knows what became of it; what is known of tables is read again.
            self.reset()
            raise
        raise PipelineError(
            f"pipeline {self._pipeline}: its tables are changed as fast as it changes them. "
            f"Nothing of the batch was written. See who else alters them."
        )

    def pending(self) -> list[dict[str, Any]]:
        """As `Destination.pending`."""
        cursor = self._cursor()
        names = (*ENTRY_COLUMNS, "reason", "field", "table_name")
        cursor.execute(
            f"SELECT {', '.join(map(self._dialect.quoted, names))} "
            f"FROM {self._dialect.table(REJECTS)} WHERE pipeline = %s AND healed IS NULL "
            f"AND {self._dialect.quoted('key')} IS NOT NULL ORDER BY sequence",
            (self._pipeline,),
        )
        told: list[str] = [*names[:-1], "table"]
        rows = [dict(zip(told, row, strict=True)) for row in cursor.fetchall()]
        self._connection.commit()
        return rows

    # --- the transaction ------------------------------------------------------------------------

    def _apply(
        self, steps: Sequence[Step], before: Place, until: Place, entries_at: EntriesAt
    ) -> Done:
        cursor = self._cursor()
        if is_applied(self._stored(cursor, lock=True), before=before, until=until):
            self._connection.rollback()
            self._learn(cursor)  # it went through after this connection was opened
            self._connection.commit()
            return Done()
        written = Written(self._stale, self._streams)
        for step in steps:
            match step:
                case Rows():
                    self._write(cursor, step, written)
                case Emptied():
                    self._empty(cursor, step.stream, step.sequence, written)
                case DatabaseEmptied():
                    for owner, stream in list(written.streams.values()):
                        if owner == self._pipeline and stream.database == step.database:
                            self._empty(cursor, stream, step.sequence, written)
                case Moved():
                    self._move(cursor, step, written)
                case Noted():
                    written.rejects.append(("", step.reject))
                case Refused():
                    written.refused = step.rows
                case Known():
                    written.known = step.sequences
        rejected = self._reject(cursor, written, entries_at, until.progress.sequence)
        self._store(cursor, until, new=False)
        self._connection.commit()
        self._stale, self._streams = written.stale, written.streams
        return Done(rows=written.rows, rejected=rejected)

    def _write(self, cursor: Any, step: Rows, written: Written) -> None:
        name = self._name(step.stream)
        described = self._described(cursor, name, step.stream, written)
        rows = prepared(
            step.chunk,
            name=name,
            table=described,
            dialect=self._dialect,
            pipeline=self._pipeline,
            stale=written.stale.get(name, {}),
            select=lambda columns, key: self._dialect.select(cursor, name, columns, key),
        )
        if rows.setup:
            owner = () if described is not None else ((name, step.stream),)
            raise SetupNeededError(Setup(statements=rows.setup, owned=owner))
        if described is not None:
            self._put(cursor, name, rows)
        written.rows += len(rows.deleted) + len(rows.put)
        written.rejects += [(name, reject) for reject in rows.rejects]
        stale = written.stale.setdefault(name, {})
        healed = [key for key in (*rows.put, *rows.deleted) if key in stale]
        self._heal(cursor, name, healed, until=step.chunk.last_sequence)
        for key in healed:
            del stale[key]
        stale.update(rows.stale)

    def _put(self, cursor: Any, name: str, rows: Prepared) -> None:
        # In this order: a key that the source writes in two ways is one here.
        if rows.deleted:
            self._dialect.delete(cursor, name, rows.deletes)
        if rows.put:
            self._dialect.upsert(cursor, name, rows.puts, rows.key)

    def _empty(self, cursor: Any, stream: Stream, sequence: int, written: Written) -> None:
        name = self._name(stream)
        if written.streams.get(name) != (self._pipeline, stream):
            return
        self._described(cursor, name, stream, written)
        cursor.execute(f"DELETE FROM {self._dialect.table(name)}", ())
        written.rows += max(cursor.rowcount, 0)
        self._heal(cursor, name, None, until=sequence)
        written.stale.pop(name, None)

    def _move(self, cursor: Any, step: Moved, written: Written) -> None:
        old, new = self._name(step.stream), self._name(step.to)
        if written.streams.get(old) != (self._pipeline, step.stream):
            self._empty(cursor, step.to, step.sequence, written)
            return
        if old == new:
            # Another database's collection of that name: the rows are where they belong.
            cursor.execute(
                f"UPDATE {self._dialect.table(TABLES)} SET {self._dialect.quoted('database')} = %s "
                f"WHERE name = %s",
                (step.to.database, old),
            )
            written.streams[old] = (self._pipeline, step.to)
            return
        source = self._described(cursor, old, step.stream, written)
        target = self._described(cursor, new, step.to, written)
        assert source is not None
        if setup := self._move_setup(old, new, source, target):
            owned = () if target is not None else ((new, step.to),)
            raise SetupNeededError(Setup(statements=setup, owned=owned))
        self._empty(cursor, step.to, step.sequence, written)
        names = ", ".join(self._dialect.quoted(one.name) for one in source.columns)
        cursor.execute(
            f"INSERT INTO {self._dialect.table(new)} ({names}) "
            f"SELECT {names} FROM {self._dialect.table(old)}",
            (),
        )
        written.rows += max(cursor.rowcount, 0)
        cursor.execute(
            f"UPDATE {self._dialect.table(REJECTS)} SET table_name = %s "
            f"WHERE pipeline = %s AND table_name = %s AND healed IS NULL",
            (new, self._pipeline, old),
        )
        written.move(old, new)
        cursor.execute(f"DELETE FROM {self._dialect.table(old)}", ())

    def _move_setup(
        self, old: str, new: str, source: SqlTable, target: SqlTable | None
    ) -> Sequence[str]:
        """What the target of a move needs to hold every row."""
        key = min((len(names), sorted(names)) for names in source.unique)[1]
        if target is None:
            kinds = [(one.name, one.kind or Kind.UNFIT) for one in source.columns]
            return (self._dialect.create(new, kinds, key),)
        statements: list[str] = []
        wrong: list[str] = [] if target.has_key(key) else ["its key"]
        for column in source.columns:
            there, kind = target.column(column.name), column.kind
            assert kind is not None
            if there is None:
                statements += self._dialect.add(new, column.name, kind)
                continue
            grown = None if there.kind is None else wider(there.kind, kind)
            if grown is None:
                wrong.append(f"{column.name} ({there.declared}, not {column.declared})")
            elif grown is not there.kind:
                is_key = column.name in key
                statements.append(self._dialect.widen(new, column.name, grown, key=is_key))
        if wrong:
            raise DestinationError(
                pipeline=self._pipeline,
                what=f"the collection of table {old} was renamed to that of {new}, whose columns "
                f"do not hold its rows: {', '.join(wrong)}",
                remedy=f"Alter {new} so that they do, then start it again.",
            )
        return statements

    # --- tables ---------------------------------------------------------------------------------

    def _name(self, stream: Stream) -> str:
        return self._config.table_of(stream.database, stream.collection)

    def _described(
        self, cursor: Any, name: str, stream: Stream, written: Written
    ) -> SqlTable | None:
        """The stream's table; None if it is to be made. It is ours from then on.

        Raises DestinationError, SetupNeededError.
        """
        self._refuse_name(name)
        owner = written.streams.get(name)
        found = self._dialect.describe(cursor, name)
        if owner == (self._pipeline, stream):
            if found is None:
                raise DestinationError(
                    pipeline=self._pipeline,
                    what=f"its table {name} is gone",
                    remedy="Put it back as it was, or begin anew with another name.",
                )
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
        if problems := self._problems(cursor, name, found):
            raise DestinationError(
                pipeline=self._pipeline,
                what=f"the table {name} is there and cannot be used: {'; '.join(problems)}",
                remedy="Alter it or move it away, then start the pipeline again.",
            )
        raise SetupNeededError(Setup(statements=(), owned=((name, stream),)))

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
        naming = self._dialect.naming
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

    def _set_up(self, setup: Setup) -> None:
        self._connection.rollback()
        cursor = self._connection.cursor()
        for statement in setup.statements:
            cursor.execute(statement, ())
        for name, stream in setup.owned:
            cursor.execute(
                f"INSERT INTO {self._dialect.table(TABLES)} "
                f"(name, pipeline, {self._dialect.quoted('database')}, collection) "
                f"VALUES (%s, %s, %s, %s)",
                (name, self._pipeline, stream.database, stream.collection),
            )
        self._connection.commit()
        for name, stream in setup.owned:
            self._streams[name] = (self._pipeline, stream)

    # --- our own tables -------------------------------------------------------------------------

    def _cursor(self) -> Any:
        if self._connection is None:
            connection = self._dialect.connect()
            try:
                self._open(connection)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection.cursor()

    def _open(self, connection: Any) -> None:
        cursor = connection.cursor()
        for statement in self._dialect.own_tables():
            cursor.execute(statement, ())
        connection.commit()
        self._learn(cursor)
        connection.commit()

    def _learn(self, cursor: Any) -> None:
        """Read what tables are for, and which rows lack a change."""
        database = self._dialect.quoted("database")
        cursor.execute(
            f"SELECT name, pipeline, {database}, collection FROM {self._dialect.table(TABLES)}", ()
        )
        self._streams = {
            name: (pipeline, Stream(there, collection))
            for name, pipeline, there, collection in cursor.fetchall()
        }
        key = self._dialect.quoted("key")
        cursor.execute(
            f"SELECT table_name, {key}, sequence FROM {self._dialect.table(REJECTS)} "
            f"WHERE pipeline = %s AND healed IS NULL AND {key} IS NOT NULL ORDER BY sequence",
            (self._pipeline,),
        )
        self._stale = {}
        for name, own, sequence in cursor.fetchall():
            self._stale.setdefault(name, {})[own] = sequence

    def _stored(self, cursor: Any, *, lock: bool) -> Place | None:
        cursor.execute(
            f"SELECT source, collections, epoch, progress FROM {self._dialect.table(PLACES)} "
            f"WHERE pipeline = %s" + (" FOR UPDATE" if lock else ""),
            (self._pipeline,),
        )
        found = cursor.fetchone()
        if found is None:
            return None
        source, collections, epoch, progress = found
        return Place(
            pipeline=self._pipeline,
            source=source,
            collections=msgspec.json.decode(collections, type=tuple[str, ...]),
            epoch=epoch,
            progress=parse_progress(progress),
        )

    def _store(self, cursor: Any, place: Place, *, new: bool) -> None:
        values = (
            place.source,
            msgspec.json.encode(place.collections).decode(),
            place.epoch,
            str(place.progress),
            place.progress.sequence,
            place.pipeline,
        )
        table = self._dialect.table(PLACES)
        if new:
            cursor.execute(
                f"INSERT INTO {table} (source, collections, epoch, progress, sequence, pipeline) "
                f"VALUES (%s, %s, %s, %s, %s, %s)",
                values,
            )
            return
        cursor.execute(
            f"UPDATE {table} SET source = %s, collections = %s, epoch = %s, progress = %s, "
            f"sequence = %s, written = now() WHERE pipeline = %s",
            values,
        )

    def _reject(self, cursor: Any, written: Written, entries_at: EntriesAt, until: int) -> int:
        rows = written.rejected(
            self._pipeline,
            name_of=self._name,
            entries_at=entries_at,
            until=until,
        )
        names = ", ".join(map(self._dialect.quoted, (*_REJECT_COLUMNS, "table_name")))
        places = ", ".join(["%s"] * (len(_REJECT_COLUMNS) + 1))
        for row in rows:
            values = [row[name] for name in _REJECT_COLUMNS]
            cursor.execute(
                f"INSERT INTO {self._dialect.table(REJECTS)} ({names}) VALUES ({places})",
                (*map(_plain, values), row["table"]),
            )
        return len(rows)

    def _heal(self, cursor: Any, name: str, keys: Sequence[str] | None, *, until: int) -> None:
        """The rows with these keys, or all, are what they are at the source again."""
        statement = (
            f"UPDATE {self._dialect.table(REJECTS)} SET healed = %s "
            f"WHERE pipeline = %s AND table_name = %s AND healed IS NULL"
        )
        if keys is None:
            cursor.execute(statement, (until, self._pipeline, name))
        for key in keys or ():
            own = f" AND {self._dialect.quoted('key')} = %s"
            cursor.execute(statement + own, (until, self._pipeline, name, key))


def _plain(value: Any) -> Any:
    # PostgreSQL keeps no NUL in text; JSON's own texts have it as an escape.
    return value.replace("\0", "\\u0000") if isinstance(value, str) else value
