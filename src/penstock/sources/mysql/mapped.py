"""The tables of a stream, by the numbers by which rows refer to them, and how to read them. Pure.

A table is compiled for each TABLE_MAP that differs, by its bytes, and only if somebody captures it.
"""

from collections.abc import Callable, Iterable
from typing import Final

from msgspec import structs

from penstock.sources.mysql.binlog import Event, MalformedEventError
from penstock.sources.mysql.rows import CompiledTable, refers_to
from penstock.sources.mysql.scope import Scope
from penstock.sources.mysql.tables import Table, is_sequence, parse_table, table_id

Compile = Callable[[Table], CompiledTable]
_TABLES_MAX: Final = 4096
"""Tables, as of one place, that are kept compiled."""
_NO_TABLE: Final = frozenset({0x00FFFFFF, 0xFFFFFFFF})
"""What rows refer to that only say that a statement ends; the first may be a table's, too."""
_NOBODY: Final = max(_NO_TABLE).to_bytes(6, "little")


def of_no_table(event: Event) -> Event:
    """What is left of a ROWS event that nobody captures: that its statement ends."""
    return structs.replace(event, body=_NOBODY + event.body[6:8])


class MappedTables:
    """Follows the TABLE_MAP events of one stream."""

    def __init__(self, compile_table: Compile, scope: Scope, *, of_mysql: bool) -> None:
        self._compile = compile_table
        self._scope = scope
        self._of_mysql = of_mysql
        self._numbered: dict[int, bytes] = {}
        self._known: dict[bytes, Table | CompiledTable] = {}
        """By TABLE_MAP: what is made of it; a Table if nobody captures it."""
        self._variants: dict[Table, CompiledTable] = {}

    @property
    def bodies(self) -> Iterable[bytes]:
        """The TABLE_MAPs that rows may refer to, without their numbers."""
        return self._numbered.values()

    def map(self, body: bytes) -> None:
        """A TABLE_MAP event."""
        self._numbered[table_id(body)] = body[6:]

    def forget_numbers(self) -> None:
        """What follows describes its tables anew."""
        self._numbered.clear()

    def forget_shapes(self) -> None:
        """A statement changed tables: what one is may hang on more than its TABLE_MAP says."""
        self._known.clear()
        self._variants.clear()

    def is_of_none(self, body: bytes) -> bool:
        """Whether a ROWS event only says that a statement ends."""
        which = refers_to(body)
        return which in _NO_TABLE and which not in self._numbered

    def of(self, body: bytes) -> CompiledTable | None:
        """The table of a ROWS event; None if nobody captures it, or the event only says that a
        statement ends. Raises MalformedEventError."""
        which = refers_to(body)
        mapped = self._numbered.get(which)
        if mapped is None:
            if which in _NO_TABLE:
                return None
            raise MalformedEventError("rows of a table that was not described")
        known = self._known.get(mapped)
        if known is None:
            if len(self._known) >= _TABLES_MAX:
                self._known.clear()
            table = parse_table(bytes(6) + mapped, of_mysql=self._of_mysql)
            captured = (table.database, table.name) in self._scope and not is_sequence(table)
            known = self._known[mapped] = self._compile(table) if captured else table
        return known if isinstance(known, CompiledTable) else None

    def variant(self, table: Table) -> CompiledTable:
        """How to read rows of a captured table that have changes in place of some values."""
        known = self._variants.get(table)
        if known is None:
            if len(self._variants) >= _TABLES_MAX:
                self._variants.clear()
            known = self._variants[table] = self._compile(table)
        return known
