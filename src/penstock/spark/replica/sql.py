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

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from msgspec import structs

from penstock.errors import DestinationError, PenstockError, PipelineError
from penstock.spark.config import ReplicatePipelineConfig
from penstock.spark.replica.altering import statements_of
from penstock.spark.replica.destination import PLACES, TABLES, Decide, Standing, is_applied
from penstock.spark.replica.dialect import Dialect, SqlColumn, SqlTable, Values
from penstock.spark.replica.known import Known
from penstock.spark.replica.ledger import Ledger
from penstock.spark.replica.place import Place, Stream
from penstock.spark.replica.rejecting import Written
from penstock.spark.replica.rows import Prepared, Setup, SetupNeededError, decode_keyed, prepared
from penstock.spark.replica.steps import (
    DatabaseEmptied,
    Done,
    Emptied,
    EntriesAt,
    Moved,
    Noted,
    Refused,
    Rows,
    Step,
)
from penstock.spark.replica.tables import SqlTables, move_setup
from penstock.spark.table.arrow import Column
from penstock.spark.table.kinds import Kind
from penstock.spark.table.rejects import Reject

_WIDE: Final = (
    "the row is too wide: what its columns have fits no page of the server, or of an index"
)
_SETUPS_MAX: Final = 1000
"""For one table in one batch: each makes it, or finds a few columns more."""


class SqlDestination:
    """One pipeline's tables in one database."""

    decode = staticmethod(decode_keyed)

    def __init__(self, pipeline: str, config: ReplicatePipelineConfig, dialect: Dialect) -> None:
        self._pipeline = pipeline
        self._dialect = dialect
        self._ledger = Ledger(pipeline, dialect)
        self._tables = SqlTables(pipeline, config, dialect, self._ledger)
        self._connection: Any = None
        self._known = Known()

    @property
    def errors(self) -> type[Exception]:
        return self._dialect.errors

    def judge(self, error: Exception) -> PenstockError | None:
        """As `Destination.judge`."""
        if refused := self._dialect.too_large(error):
            return refused
        if self._dialect.passes(error):
            return None
        what, remedy = self.cause(error)
        return DestinationError(
            pipeline=self._pipeline, what=f"the destination refuses: {what}", remedy=remedy
        )

    def cause(self, error: Exception) -> tuple[str, str]:
        """As `Destination.cause`."""
        return self._dialect.cause(error)

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
        stored = self._ledger.locked_place(cursor)
        # Behind the lock: what an older driver was committing is known too.
        self._known = self._ledger.known(cursor)
        mine, gone = self._mine(cursor, self._known)
        place = decide(stored, mine, gone)
        self._ledger.store(cursor, place, new=stored is None)
        self._connection.commit()
        return place

    def standing(self) -> Standing:
        """As `Destination.standing`."""
        connection = self._dialect.connect()
        try:
            cursor = connection.cursor()
            cursor.execute("SET TRANSACTION READ ONLY", ())
            mine, gone = dict[str, Stream](), list[str]()
            # Before the place: a new pipeline has one before it has tables.
            if self._ledger.has(cursor, TABLES):
                streams, _ = self._ledger.tables(cursor)
                mine, gone = self._mine(cursor, Known(streams=streams))
            place = self._ledger.place(cursor) if self._ledger.has(cursor, PLACES) else None
        finally:
            connection.close()
        return Standing(place=place, tables=mine, gone=gone)

    def _mine(self, cursor: Any, known: Known) -> tuple[dict[str, Stream], list[str]]:
        """The pipeline's tables, and those of them that are not there any more."""
        mine = known.owned(self._pipeline)
        return mine, [name for name in mine if self._dialect.describe(cursor, name) is None]

    def apply(
        self, steps: Sequence[Step], *, before: Place, until: Place, entries_at: EntriesAt
    ) -> Done:
        """As `Destination.apply`."""
        try:
            setups = Counter[str]()
            while not setups or max(setups.values()) <= _SETUPS_MAX:
                try:
                    return self._apply(steps, before, until, entries_at)
                except SetupNeededError as needed:
                    setup = needed.setup
                    setups.update({name for name, _ in (*setup.changes, *setup.owned)})
                    self._set_up(setup, before, until)
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
        found = self._ledger.pending(self._cursor())
        self._connection.commit()
        return found

    # --- the transaction ------------------------------------------------------------------------

    def _apply(
        self, steps: Sequence[Step], before: Place, until: Place, entries_at: EntriesAt
    ) -> Done:
        cursor = self._cursor()
        if is_applied(self._ledger.locked_place(cursor), before=before, until=until):
            self._connection.rollback()
            self._dialect.committed()
            # It went through after this connection was opened.
            self._known = self._ledger.known(cursor)
            self._connection.commit()
            return Done()
        # Behind the lock: a replay makes tables too, and says what their keys hold.
        streams, forms = self._ledger.tables(cursor)
        known = structs.replace(self._known.copy(), streams=streams, forms=forms)
        written = Written(known)
        for step in steps:
            match step:
                case Rows():
                    self._write(cursor, step, written)
                case Emptied():
                    self._empty(cursor, step.stream, step.sequence, written)
                case DatabaseEmptied():
                    for stream in written.known.owned(self._pipeline).values():
                        if stream.database == step.database:
                            self._empty(cursor, stream, step.sequence, written)
                case Moved():
                    self._move(cursor, step, written)
                case Noted():
                    written.rejects.append(("", step.reject))
                case Refused():
                    written.refused = step.rows
        rejects = written.rejected(
            self._pipeline,
            name_of=self._tables.name,
            entries_at=entries_at,
            until=until.progress.sequence,
        )
        self._ledger.reject(cursor, rejects)
        self._ledger.store(cursor, until, new=False)
        self._connection.commit()
        self._dialect.committed()
        self._known = written.known
        return Done(rows=written.rows, rejected=len(rejects))

    def _write(self, cursor: Any, step: Rows, written: Written) -> None:
        name = self._tables.name(step.stream)
        described = self._tables.writable(cursor, step.stream, written.known)
        rows = prepared(
            step.chunk,
            name=name,
            table=described,
            dialect=self._dialect,
            pipeline=self._pipeline,
            stale=written.known.stale.get(name, {}),
            forms=written.known.forms.get(name, {}),
            select=lambda columns, key: self._selected(cursor, name, columns, key),
        )
        if rows.setup:
            owner = () if described is not None else ((name, step.stream),)
            changes = [(name, change) for change in rows.setup]
            raise SetupNeededError(
                Setup(changes=changes, owned=owner, decided_by={name: described})
            )
        wide = self._put(cursor, name, rows) if described is not None else {}
        self._ledger.keep_forms(cursor, name, rows.forms, written)
        written.rows += len(rows.deleted) + len(rows.put) - len(wide)
        written.rejects += [(name, reject) for reject in rows.rejects]
        written.rejects += [(name, Reject(sequence=one, reason=_WIDE)) for one in wide.values()]
        stale = written.known.stale.setdefault(name, {})
        current = (key for key in (*rows.put, *rows.deleted, *rows.absent) if key not in wide)
        healed = [key for key in current if key in stale]
        self._ledger.heal(cursor, name, healed, until=step.chunk.last_sequence)
        for key in healed:
            del stale[key]
        stale.update({**rows.stale, **wide})

    def _selected(
        self, cursor: Any, name: str, columns: Sequence[SqlColumn], key: Sequence[Values]
    ) -> list[Column]:
        rows = self._dialect.select(cursor, name, columns, key)
        return [
            self._dialect.read(one.kind or Kind.UNFIT, [row[at] for row in rows])
            for at, one in enumerate(columns)
        ]

    def _put(self, cursor: Any, name: str, rows: Prepared) -> dict[str, int]:
        """Write rows; by key the last changes of those that are too wide for the server."""
        # In this order: a key that the source writes in two ways is one here.
        if rows.deleted:
            self._dialect.delete(cursor, name, rows.deletes)
        if rows.put:
            wide = self._upsert(cursor, name, rows, range(len(rows.put)))
            return {rows.put[at]: rows.sequences[at] for at in wide}
        return {}

    def _upsert(self, cursor: Any, name: str, rows: Prepared, wanted: range) -> list[int]:
        """Write these of the rows of `puts`; those that are too wide, found by halves."""
        puts = [
            one._replace(column=one.column.slice(wanted.start, len(wanted))) for one in rows.puts
        ]
        cursor.execute("SAVEPOINT penstock_rows", ())
        try:
            self._dialect.upsert(cursor, name, puts, rows.key)
        except self.errors as error:
            if not self._dialect.is_too_wide(error):
                raise
            cursor.execute("ROLLBACK TO SAVEPOINT penstock_rows", ())
        else:
            cursor.execute("RELEASE SAVEPOINT penstock_rows", ())
            return []
        if len(wanted) == 1:
            return [wanted.start]
        middle = wanted.start + len(wanted) // 2
        first = self._upsert(cursor, name, rows, range(wanted.start, middle))
        return first + self._upsert(cursor, name, rows, range(middle, wanted.stop))

    def _empty(self, cursor: Any, stream: Stream, sequence: int, written: Written) -> None:
        name = self._tables.name(stream)
        if written.known.streams.get(name) != (self._pipeline, stream):
            return
        self._tables.described(cursor, stream, written.known)
        self._whole(cursor, f"DELETE FROM {self._dialect.table(name)}")
        written.rows += max(cursor.rowcount, 0)
        self._ledger.heal(cursor, name, None, until=sequence)
        written.known.stale.pop(name, None)
        self._ledger.keep_forms(cursor, name, {}, written)

    def _move(self, cursor: Any, step: Moved, written: Written) -> None:
        old, new = self._tables.name(step.stream), self._tables.name(step.to)
        if written.known.streams.get(old) != (self._pipeline, step.stream):
            self._empty(cursor, step.to, step.sequence, written)
            return
        if old == new:
            # Another database's collection of that name: the rows are where they belong.
            self._ledger.rename(cursor, old, step.to)
            written.known.streams[old] = (self._pipeline, step.to)
            return
        source = self._tables.writable(cursor, step.stream, written.known)
        target = self._tables.writable(cursor, step.to, written.known)
        assert source is not None
        if setup := move_setup(self._pipeline, old, new, source, target):
            owned = () if target is not None else ((new, step.to),)
            changes = [(new, change) for change in setup]
            raise SetupNeededError(Setup(changes=changes, owned=owned, decided_by={new: target}))
        self._empty(cursor, step.to, step.sequence, written)
        names = ", ".join(self._dialect.quoted(one.name) for one in source.columns)
        self._whole(
            cursor,
            f"INSERT INTO {self._dialect.table(new)} ({names}) "
            f"SELECT {names} FROM {self._dialect.table(old)}",
        )
        written.rows += max(cursor.rowcount, 0)
        self._ledger.hand_over(cursor, old, new)
        written.move(old, new)
        self._ledger.keep_forms(cursor, new, written.known.forms.get(old, {}), written)
        self._whole(cursor, f"DELETE FROM {self._dialect.table(old)}")
        self._ledger.keep_forms(cursor, old, {}, written)

    def _whole(self, cursor: Any, statement: str) -> None:
        """Execute what a whole table is read or written for."""
        with self._dialect.unhurried(self._connection):
            cursor.execute(statement, ())

    def _set_up(self, setup: Setup, before: Place, until: Place) -> None:
        """Do it; nothing where a replay was quicker: what is there by now is to be looked at."""
        self._connection.rollback()
        cursor = self._connection.cursor()
        applied = is_applied(self._ledger.locked_place(cursor), before=before, until=until)
        streams, _ = self._ledger.tables(cursor)
        owned = any(name in streams for name, _ in setup.owned)
        # Whoever had the place meanwhile may have changed the same tables.
        if applied or owned or self._are_others(cursor, setup):
            self._connection.rollback()
            return
        try:
            for name, change in setup.changes:
                for statement in statements_of(change, name, self._dialect):
                    self._whole(cursor, statement)
        except self.errors as error:
            self._connection.rollback()
            # MySQL commits before each, and lets go of the place.
            if self._dialect.is_there(error) and self._are_others(cursor, setup):
                return
            raise
        for name, stream in setup.owned:
            self._ledger.own(cursor, name, stream)
        self._connection.commit()

    def _are_others(self, cursor: Any, setup: Setup) -> bool:
        """Whether one of the tables has other columns than it had when the setup was decided."""
        now = {name: self._dialect.describe(cursor, name) for name in setup.decided_by}
        return any(_columns(now[name]) != _columns(was) for name, was in setup.decided_by.items())

    # --- the connection ---------------------------------------------------------------------------

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
        self._ledger.make(cursor)
        connection.commit()
        self._known = self._ledger.known(cursor)
        connection.commit()


def _columns(table: SqlTable | None) -> Sequence[SqlColumn] | None:
    return None if table is None else table.columns
