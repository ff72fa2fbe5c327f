"""What is asked of a server beside its stream. Blocks; one thread at a time, but for `abort`."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar

import pymysql
import structlog

from penstock.mysql_causes import code_of
from penstock.sources.mysql.config import MysqlSourceConfig
from penstock.sources.mysql.connection import (
    GONE,
    LOCKED,
    ColumnNow,
    Connected,
    abort,
    characters,
    charsets,
    columns_now,
    connect,
    discard,
    without_waiting,
)
from penstock.sources.mysql.described import Described, described
from penstock.sources.mysql.rows import CompiledTable, compile_table
from penstock.sources.mysql.shapes import Shapes, chosen
from penstock.sources.mysql.tables import Table
from penstock.sources.mysql.triggers import changes_more

logger = structlog.get_logger(__name__)
T = TypeVar("T")
_CHARACTERS_AT_ONCE: Final = 500
_HASH_OF_KEY: Final = re.compile(r"DB_ROW_HASH_\d+")


class Asking:
    """A connection that is opened when it is needed, and what is asked by it.

    Raises what the client library raises.
    """

    def __init__(self, source: str, config: MysqlSourceConfig) -> None:
        self._source = source
        self._config = config
        self._rules = config.columns.rules
        self._connection: Connected | None = None
        self._charsets: dict[int, str] = {}
        self._characters: dict[str, dict[bytes, str]] = {}
        self._met: dict[tuple[str, str], dict[str, ColumnNow]] | None = None
        """What was asked of tables before the server began to wait for us; None: it does not."""

    def unless_locked(self, question: Callable[[Connected], T], otherwise: T) -> T:
        """Ask, as `again`; `otherwise` where it would have to wait for a table that is locked."""
        try:
            return self.again(lambda by: without_waiting(by, question))
        except pymysql.MySQLError as error:
            if code_of(error) != LOCKED:
                raise
            return otherwise

    def meet(self) -> None:
        """Ask about all captured tables, before the server's commits wait for what is made of its
        stream: a statement that waits so has its table locked, so nobody is told about it then.
        One may wait already; what it has locked is not known then, nor is any other."""
        nothing: dict[tuple[str, str], Described] = {}
        there = self.unless_locked(lambda by: described(by, self._config.scope), nothing)
        self._met = {table: one.columns for table, one in there.items()}

    def connection(self) -> Connected:
        """The connection."""
        if self._connection is None:
            config = self._config
            seconds = max(config.connect_timeout, 1)
            self._connection = connect(self._source, config, read_seconds=seconds)
        return self._connection

    def again(self, question: Callable[[Connected], T]) -> T:
        """Ask; by another connection if this one was idle for too long."""
        try:
            return question(self.connection())
        except pymysql.MySQLError as error:
            if code_of(error) not in GONE:
                raise
            self.close()
            return question(self.connection())

    def charset_of(self, collation: int) -> str:
        """The character set of a collation; empty if the server knows none."""
        self._learn({collation})
        return self._charsets.get(collation, "")

    def characters(self, charset: str, ones: Collection[bytes]) -> Mapping[bytes, str]:
        """As of `StatementTexts`."""
        known = self._characters.setdefault(charset, {})
        left = sorted(set(ones) - known.keys())
        for first in range(0, len(left), _CHARACTERS_AT_ONCE):
            batch = left[first : first + _CHARACTERS_AT_ONCE]
            known |= self.again(partial(characters, charset=charset, ones=batch))
        return known

    def _learn(self, collations: set[int]) -> None:
        unknown_ones = collations - self._charsets.keys()
        self._charsets |= self.again(lambda by: charsets(by, unknown_ones))

    def compiled(self, table: Table, shapes: Shapes) -> CompiledTable:
        """How to read a table's rows at a place where `shapes` are known, which learn of it.

        Raises UnreadableTableError.
        """
        self._learn({column.collation for column in table.columns})
        name, columns = (table.database, table.name), [column.name for column in table.columns]
        # Also where we know: a table that we may not see is none that we may capture.
        hidden = any(map(_HASH_OF_KEY.fullmatch, columns))
        now = self._columns_now(name, known=shapes.virtual(name) is not None and not hidden)
        # Of unique keys that it hashes, MariaDB keeps columns that it shows nobody.
        kept = {one for one in columns if one not in now and _HASH_OF_KEY.fullmatch(one)}
        shown = [one for one in columns if one not in kept]
        virtual_now = {one: facts.virtual for one, facts in now.items()}
        virtual, certain = chosen(shown, shapes.virtual(name), virtual_now)
        if certain:
            shapes.learned(name, frozenset(one.casefold() for one in virtual))
        else:
            logger.warning(
                "a table is not as it was at this place of the binlog, so which of its columns are "
                "virtual is taken from what is left of them",
                source=self._source,
                table=".".join(name),
            )
        computed: Mapping[str, str] = {
            one: facts.expression for one, facts in now.items() if facts.expression
        }
        if self._config.scope.columns.patterns:
            computed = shapes.computes(name, computed, certain=[*now] == shown)
        return compile_table(
            *(table, self._charsets),
            without=virtual | kept,
            rules=self._rules,
            computed=computed,
        )

    def changes_more(
        self, written: Sequence[tuple[str, str]], read: Sequence[tuple[str, str]]
    ) -> str | None:
        """As the function of `triggers`."""

        def question(by: Connected) -> str | None:
            return changes_more(by, self._config.scope, written, read)

        if self._met is None:
            return self.again(question)
        locked: str | None = "one of its tables is locked by who waits for this source"
        return self.unless_locked(question, locked)

    def _columns_now(self, name: tuple[str, str], *, known: bool) -> dict[str, ColumnNow]:
        """The columns of a table; of one that is locked by a statement that
        may wait for us, as they were when the stream began."""
        if self._met is None:
            return self.again(lambda by: columns_now(by, *name))
        nothing: dict[str, ColumnNow] | None = None
        now = self.unless_locked(lambda by: columns_now(by, *name), nothing)
        if now is None:
            assumed: dict[str, ColumnNow] | None = {} if known else None
            now = self._met.get(name, assumed)
        return self.again(lambda by: columns_now(by, *name)) if now is None else now

    def abort(self) -> None:
        """Have whoever waits for an answer get an error; from any thread."""
        connection = self._connection
        if connection is not None:
            abort(connection)

    def close(self) -> None:
        """Let go of the connection; harmless when there is none."""
        connection, self._connection = self._connection, None
        if connection is not None:
            discard(connection)
