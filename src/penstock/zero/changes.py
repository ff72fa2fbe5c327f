"""What rows and changes come to in a shard's tables, as finished messages. Pure.

Everything is told so that telling it twice, or of a row that is already as it will be, changes
nothing: a delete of no row and an insert of one that is there are both right. So wherever it is not
certain in which table a document was, deletes are told rather than not.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from msgspec import Raw, Struct, structs

from penstock.errors import ConfigError, MisfitError
from penstock.event import AnyEvent, ChangeEvent, Kind, Operation, kind_of
from penstock.wire import Stream
from penstock.zero.inferring import FIELDS_MAX, Sample, column_name, type_of
from penstock.zero.inferring import kind_of as sort_of
from penstock.zero.mapping import Mapping, Place, place_of, two_databases
from penstock.zero.messages import AddColumn, CreateIndex, CreateTable, UpdateColumn
from penstock.zero.paths import fields_of, test_of, touches, value_at
from penstock.zero.rows import Rows, change
from penstock.zero.shapes import Shaping
from penstock.zero.tables import Column, Draft, Table
from penstock.zero.types import UnfitError

Fields = dict[str, Raw]
LookUp = Callable[[Stream, bytes], bytes | None]
"""The document of a key now, as its reader may see it: as of the change that is told, or later, and
under whatever name its collection has by then. None where there is none any more."""


class Told(Struct, frozen=True, kw_only=True):
    """An entry of the log, as whoever reads it may see it."""

    stream: Stream
    kind: Kind = Kind.DATA
    operation: str
    key: bytes = b""
    document: bytes | None = None
    """The document; of a change of shape, what its source said."""
    before: bytes | None = None
    update_description: bytes | None = None
    unchanged: tuple[str, ...] = ()
    as_of_event: bool = False
    snapshot: bool = True
    """Of an insert: whether a row of its key may have been there, as where it was copied. Where
    that is not known it is so, which costs deletes of what is not there."""

    @classmethod
    def of(cls, event: AnyEvent) -> "Told":
        """An event that is shown already."""
        stream = Stream(event.source, event.database, event.tenant, event.collection)
        if not isinstance(event, ChangeEvent):
            return cls(
                stream=stream,
                kind=kind_of(event),
                operation=event.operation,
                document=bytes(event.description),
            )
        return cls(
            stream=stream,
            operation=event.operation,
            key=bytes(event.key),
            document=_bytes(event.full_document),
            before=_bytes(event.full_document_before_change),
            update_description=_bytes(event.update_description),
            unchanged=event.unchanged,
            as_of_event=event.full_document_as_of_event,
            snapshot=event.snapshot,
        )


def _bytes(raw: Raw | None) -> bytes | None:
    return None if raw is None else bytes(raw)


def creation(table: Table) -> list[bytes]:
    """The messages by which a table begins: itself, and the index that makes Zero know its rows."""
    indexes = [change(CreateIndex(spec=one)) for one in table.indexes()]
    return [change(CreateTable(spec=table.spec())), *indexes]


class _Feed(Struct):
    """What a collection feeds."""

    rows: list[Rows]
    drafts: tuple[Draft, ...]
    """Of tables that begin with their first row."""

    @property
    def feeds(self) -> bool:
        return bool(self.rows or self.drafts)


class Teller:
    """Tells one shard what rows and changes come to, in the order of the log.

    `tables` are those that the shard was announced. With a mapping, collections that have no table
    yet get theirs with their first row, and whole sources are followed as their collections are
    created, renamed and dropped. After an error it is of no more use: what it says is not sent.
    """

    def __init__(self, tables: Iterable[Table], mapping: Mapping | None = None) -> None:
        self._mapping = mapping
        self._rows: dict[tuple[str, str], Rows] = {}
        for table in tables:
            self._rows[table.schema, table.name] = Rows(table)
        self._feeds: dict[Place, _Feed] = {}
        self.left_out: dict[str, str] = {}
        """Collections of whole sources that can be no table, each with the reason."""
        self._tables: tuple[Table, ...] | None = None

    @property
    def tables(self) -> tuple[Table, ...]:
        """What is announced now; the same tuple while that does not change."""
        if self._tables is None:
            self._tables = tuple(rows.table for rows in self._rows.values())
        return self._tables

    # --- rows -----------------------------------------------------------------------------------

    def row(self, stream: Stream, key: bytes, document: bytes) -> list[bytes]:
        """A row of the current ones: an insert into each table that has it, behind what announces
        columns that it needs (Z7). Raises MisfitError, and ConfigError for what can be no table."""
        feed = self._feed(stream)
        if not feed.feeds:
            return []
        key_fields, fields = fields_of(key), fields_of(document)
        said: list[bytes] = []
        for number, rows in enumerate(feed.rows):
            if rows.test is None or rows.test(fields):
                if not fields.keys() <= rows.consumed:
                    rows = self._grown(rows, fields, said, feed, number)  # noqa: PLW2901
                said.append(self._written(rows, key_fields, fields, said, feed, number, new=True))
        if feed.drafts:
            self._begin(stream, feed, key_fields, fields, said)
        return said

    def told(self, told: Told, look_up: LookUp) -> list[bytes]:
        """What an entry changes. Raises as `row`, and ResetError where the tables cannot be
        followed any further."""
        if told.kind is Kind.SCHEMA:
            return self._shaped(told)
        if told.kind is not Kind.DATA:
            return []
        feed = self._feed(told.stream)
        if not feed.feeds:
            return []
        key = fields_of(told.key)
        if told.operation == Operation.DELETE:
            # From all of them: behind a gap, what it was does not say in which it is here.
            before = _Before(told)
            return [end for rows in feed.rows for end in _end(rows, key, before)]
        document, unsent = told.document, frozenset(told.unchanged)
        if document is None or (unsent and self._needs_all(feed, told)):
            document, unsent = look_up(told.stream, told.key), frozenset[str]()
            if document is None:
                return []  # its end follows in the log
        return self._changed(told, feed, key, fields_of(document), unsent)

    def _changed(
        self, told: Told, feed: _Feed, key: Fields, fields: Fields, unsent: frozenset[str]
    ) -> list[bytes]:
        said: list[bytes] = []
        new = told.operation == Operation.INSERT
        before = _Before(told)
        for number, rows in enumerate(feed.rows):
            if rows.test is None:
                was = not new
            elif rows.test(fields):
                was = before.may_be_in(rows, now=True)
            else:
                if before.may_be_in(rows, now=False):
                    said += _end(rows, key, before)
                continue
            if not fields.keys() <= rows.consumed:
                rows = self._grown(rows, fields, said, feed, number)  # noqa: PLW2901
            said.append(
                self._written(rows, key, fields, said, feed, number, new=not was, unsent=unsent)
            )
        if feed.drafts:
            self._begin(told.stream, feed, key, fields, said)
        return said

    @staticmethod
    def _needs_all(feed: _Feed, told: Told) -> bool:
        """Whether a part of the document is not enough: for a row that may be new to a table, and
        for what holds several fields at once."""
        return (
            told.operation == Operation.INSERT
            or bool(feed.drafts)
            or any(rows.test is not None or rows.table.rest for rows in feed.rows)
        )

    def _written(
        self,
        rows: Rows,
        key: Fields,
        fields: Fields,
        said: list[bytes],
        feed: _Feed,
        number: int,
        *,
        new: bool,
        unsent: frozenset[str] = frozenset(),
    ) -> bytes:
        """The row; behind an `update-column` where an inferred column has to be wider for it."""
        while True:
            try:
                if new:
                    return rows.insert(key, fields)
                return rows.update(key, fields, unsent=unsent)
            except MisfitError as error:
                wider = _widened(rows.table, error.column, fields)
                if wider is None:
                    raise
                old, column = wider
                said.append(
                    change(UpdateColumn(table=rows.table.id, old=old.named, new=column.named))
                )
                columns = tuple(column if one is old else one for one in rows.table.columns)
                table = structs.replace(rows.table, columns=columns)
                rows = feed.rows[number] = self._put(table)

    # --- tables that change -----------------------------------------------------------------------

    def _grown(
        self, rows: Rows, fields: Fields, said: list[bytes], feed: _Feed, number: int
    ) -> Rows:
        """The same table with columns for fields that it has none for, where it gets such (Z7)."""
        table = rows.table
        if table.new_fields != "add":
            return rows
        taken: set[str] = set()
        for name in [name for name in fields if name not in rows.consumed]:
            value = bytes(fields[name])
            if value == b"null":
                continue  # it says nothing of a type
            if len(table.columns) >= FIELDS_MAX:
                raise MisfitError(
                    table=table.name,
                    column=f"(more than {FIELDS_MAX})",
                    came="one more field",
                    want=f"at most {FIELDS_MAX} columns",
                    remedy="Set new_fields = 'rest' or 'ignore'. The client then begins anew.",
                )
            taken = taken or {one.name.casefold() for one in table.columns}
            kind = type_of(frozenset({sort_of(value)}))
            table = table.grown(column_name(name, taken), name, kind)
            said.append(change(AddColumn(table=table.id, column=table.columns[-1].named)))
        if table is rows.table:
            return rows
        feed.rows[number] = self._put(table)
        return feed.rows[number]

    def _put(self, table: Table) -> Rows:
        rows = self._rows[table.schema, table.name] = Rows(table)
        self._tables = None
        self._feeds.clear()
        return rows

    def _begin(
        self, stream: Stream, feed: _Feed, key: Fields, fields: Fields, said: list[bytes]
    ) -> None:
        """Tables whose first row this is, and the row in them."""
        assert self._mapping is not None
        for draft in feed.drafts:
            test = test_of(draft.where)
            if test is not None and not test(fields):
                continue
            sample = Sample()
            sample.add(key, fields)
            hidden = self._mapping.hidden(stream)
            try:
                table = draft.table(sample, database=stream.database, hidden=hidden)
            except ConfigError as error:
                # Left out is what none of its rows can be in: of others, some would be missing.
                if not (draft.whole and (sample.is_keyless or sample.key_is_hidden)):
                    raise
                self.left_out[draft.collection] = str(error)
                continue
            assert table is not None
            table = self._indexed(table)
            said += creation(table)
            said.append(self._put(table).insert(key, fields))
        self._feeds.clear()

    def _indexed(self, table: Table) -> Table:
        """With an index of a name of its own: one that was renamed kept the name of its index."""
        taken = {one.index for one in self.tables if one.schema == table.schema}
        number, index = 1, table.index
        while index in taken:
            number += 1
            index = f"{table.index}_{number}"
        return structs.replace(table, index=index)

    def _feed(self, stream: Stream) -> _Feed:
        """What a stream feeds. Raises ConfigError where that is not clear."""
        place = place_of(stream)
        return self._feeds.get(place) or self._met(stream, place)

    def _met(self, stream: Stream, place: Place) -> _Feed:
        drafts: Sequence[Draft] = () if self._mapping is None else self._mapping.drafts_of(place)
        waiting: list[Draft] = []
        for draft in drafts:
            known = self._rows.get((draft.schema, draft.name))
            if known is None:
                self._refuse_twin(draft)
                waiting.append(draft)
            elif known.table.database not in {"", stream.database}:
                raise two_databases(draft, known.table.database, stream.database)
        for rows in list(self._rows.values()):
            if not rows.table.database and _is_of(rows.table, stream):
                self._put(structs.replace(rows.table, database=stream.database))
        found = [rows for rows in self._rows.values() if _is_of(rows.table, stream)]
        feed = self._feeds[place] = _Feed(found, tuple(waiting))
        return feed

    def _refuse_twin(self, draft: Draft) -> None:
        for table in self.tables:
            if (table.schema.casefold(), table.name.casefold()) == (
                draft.schema.casefold(),
                draft.name.casefold(),
            ):
                raise ConfigError(
                    f"{draft.source}/{draft.collection} would be a table of the name "
                    f"{table.name}, which {table.source}/{table.collection} has. Nothing was "
                    f"sent. Name one of them under [serve.zero.tables], or leave it out."
                )

    def _shaped(self, told: Told) -> list[bytes]:
        shaping = Shaping([rows.table for rows in self._rows.values()], self._mapping)
        said = shaping.told(told.stream, told.operation, told.document or b"{}")
        if shaping.changed:
            self._rows = {(one.schema, one.name): Rows(one) for one in shaping.tables}
            self._tables = None
        self._feeds.clear()
        return said


class _Before:
    """In which tables a document was before a change, as far as the change says it."""

    def __init__(self, told: Told) -> None:
        self._told = told
        self._fields: Fields | None = None if told.before is None else fields_of(told.before)
        self._new = told.operation == Operation.INSERT and not told.snapshot

    def may_be_in(self, rows: Rows, *, now: bool) -> bool:
        """Whether it may have been in a table, in which it is `now` or not; true where nothing says
        that it was not."""
        assert rows.test is not None
        if self._new:
            return False
        if self._fields is not None:
            if rows.test(self._fields):
                return True
            # A field that is not there may be one that the reader may not see in this image.
            if all(_there(self._fields, path) for path in rows.filtered):
                return False
        update = self._told.update_description
        return now or update is None or touches(update, rows.filtered)

    def was_elsewhere(self, rows: Rows) -> bool:
        """Whether a document whose key does not fit a table was never in it."""
        if rows.test is None or (self._fields is not None and rows.test(self._fields)):
            return False
        if rows.has_fixed_key:
            return True
        # A key of SQL may have another type than when its row came.
        return self._fields is not None and all(
            _there(self._fields, path) for path in rows.filtered
        )


def _end(rows: Rows, key: Fields, before: _Before) -> list[bytes]:
    """The end of a row; nothing where its key shows that it is of another table of the collection.
    Raises MisfitError for another key that does not fit."""
    try:
        return [rows.delete(key)]
    except MisfitError:
        if not rows.has_fields_of(key) or not before.was_elsewhere(rows):
            raise
        return []


def _there(fields: Fields, path: str) -> bool:
    try:
        return value_at(fields, path) is not None
    except UnfitError:
        return False


def _is_of(table: Table, stream: Stream) -> bool:
    return (
        table.collection == stream.collection
        and table.source == stream.source
        and bool(table.source)
        and table.database in {"", stream.database}
    )


_WIDER: Final = {
    ("int", "double"): "double",
    ("int", "bigint"): "bigint",
    ("int", "decimal"): "decimal",
    ("bigint", "decimal"): "decimal",
}
"""What a column may become for one more value: those of its rows are then right as they are, once
the replica has made numbers of numbers, or text of integers."""


def _widened(table: Table, name: str, fields: Fields) -> tuple[Column, Column] | None:
    """An inferred column, and what it has to be for a value that does not fit it."""
    column = table.column(name)
    if column is None or column.declared or column.key or table.new_fields != "add":
        return None
    try:
        value = value_at(fields, column.path)
    except UnfitError:
        return None
    wider = _WIDER.get((column.type, sort_of(value))) if value is not None else None
    return None if wider is None else (column, structs.replace(column, type=wider))
