"""What the tables of a trail held at one of its places: its records, folded in order. Pure.

A fold is as certain as its records: where a table was there before its trail, changes were lost,
or a record was erased, it says so as a Doubt and leaves it to the caller whether to go on. A row of
which only some columns are known is kept as such, and is not `whole`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

import bson
from bson.codec_options import CodecOptions, DatetimeConversion
from msgspec import Struct

from penstock.audit.copies import COPY, Copies, names_of
from penstock.errors import AuditError
from penstock.mysql_sql.alterations import alteration
from penstock.updates import InexactError, Paths, apply_update

Name = tuple[str, str]
"""A database and a table."""
Document = dict[str, Any]
EXACT: Final[CodecOptions[Document]] = CodecOptions(
    tz_aware=True, datetime_conversion=DatetimeConversion.DATETIME_MS
)
"""Records as they were written: an instant is its milliseconds, whatever its year."""
CHANGES: Final = frozenset({"i", "u", "d"})
_decode: Final[Any] = cast("Any", bson).decode  # its types name what the buffers hold in part
_ROW_BYTES: Final = 200
"""What a row takes beside its bytes, about."""


class Doubt(Struct, frozen=True, kw_only=True):
    """Why rows of a table may not be what they were."""

    kind: str
    """beginning, copying, copied_keyless, gap, erased, retired, missing, partial, inexact,
    contradiction, altered; of an undoing, also ddl and copied."""
    table: Name
    """Its name is empty where it is about all tables."""
    at: int
    ts: int
    """Unix milliseconds."""
    said: str

    def __str__(self) -> str:
        db, tbl = self.table
        name = f"{db}.{tbl}" if tbl else f"all tables of {db}" if db else "all tables"
        return f"{name}: {self.said} (record {self.at})"


class Row(NamedTuple):
    """One row, or several equal ones of a table without a key."""

    data: bytes
    """BSON of its columns."""
    whole: bool
    """Whether all of its columns are known."""
    shape: int
    """How often the table had been altered when the row was last written as a whole."""
    times: int = 1
    """How many equal ones."""
    at: int = 0
    """The last record that told of it."""

    @property
    def values(self) -> Document:
        """Its columns, as the trail keeps values (`penstock.audit.values`)."""
        return decoded(self.data)


class Table(Struct, kw_only=True):
    """A table as of one place."""

    name: Name
    began: str
    """created, copied, or middle: it was there before its first record."""
    at: int
    """The record since which its rows are told."""
    ts: int
    statement: str = ""
    """The one that created it, while it is known,"""
    made_as: Name = ("", "")
    """and the name that it had then,"""
    sql_mode: str | None = None
    """and the modes of its session that count; None where that is not said."""
    shape: int = 0
    """How often it was altered since."""
    taken: dict[str, int] = {}
    """The names that columns lost, in small letters, by the `shape` since which they are lost."""
    keyless: bool = False
    of_mysql: bool = False
    """Whether MySQL wrote it, whose JSON is no text."""
    copied_at: int = 0
    """The last record of a copy."""
    copied: bool = False
    """Whether a copy of it is complete in the trail."""
    rows: dict[bytes, Row] = {}
    """By key, as BSON; of a table without a key, by the whole row."""
    doubts: list[Doubt] = []


def decoded(data: bytes) -> Document:
    """A document of `bson.encode`, as it was."""
    found: Document = _decode(data, EXACT)
    return found


class Fold:
    """Tables, as the records taken so far say."""

    def __init__(
        self, keeps: Callable[[Name], bool] = lambda _: True, *, bytes_max: int = 1 << 40
    ) -> None:
        """`keeps` says of which tables rows are wanted; `bytes_max` is what they may take."""
        self._keeps = keeps
        self._bytes_max = bytes_max
        self._bytes = 0
        self._everywhere: list[Doubt] = []
        self._copies = Copies()
        self.tables: dict[Name, Table] = {}
        self.records = 0

    def take(self, record: Mapping[str, Any]) -> None:
        """The next record, with its content in place.

        Raises AuditError for one that this version does not know, and when rows take more than
        `bytes_max`.
        """
        self.records += 1
        name, op = name_of(record), record["op"]
        if op == "gap":
            self._doubt(record, "gap", f"changes were lost: {said_of(record).get('reason')}")
            if not name[1]:
                self._copies.lost()
        elif op == COPY:
            self._copied(record)
        elif op == "ddl":
            self._statement(name, record)
        elif op in CHANGES:
            if self._keeps(name):
                self._change(name, record)
        elif not changes_nothing(record):
            raise AuditError(
                f"record {record['at']} of the trail is a {op!r}, which this version does not "
                f"know. Nothing was changed. Use the version that wrote it."
            )

    def doubts(self, table: Table) -> list[Doubt]:
        """Why the rows of a table may not be what they were, in the order of the trail."""
        stale = _stale(table)
        if not stale:
            return self._untold(table)
        said = f"columns were dropped or renamed ({stale}), and rows of before have values there"
        altered = Doubt(kind="altered", table=table.name, at=table.at, ts=table.ts, said=said)
        return sorted([*self._untold(table), altered], key=lambda doubt: doubt.at)

    def _untold(self, table: Table) -> list[Doubt]:
        """What is doubtful for changes that were not told, or not wholly."""
        found = [*table.doubts, *(one for one in self._everywhere if one.at > table.at)]
        if table.began == "middle":
            unknown = sum(not row.whole for row in table.rows.values())
            found.append(
                Doubt(
                    kind="beginning",
                    table=table.name,
                    at=table.at,
                    ts=table.ts,
                    said="its history begins here, so rows that were there before and did not "
                    f"change since are not known, and {unknown} only in part",
                )
            )
        if table.began == "copied" and not table.copied and self._copies.copies(table.name):
            said = "it is being copied: rows may be missing"
            found.append(
                Doubt(kind="copying", table=table.name, at=table.at, ts=table.ts, said=said)
            )
        return sorted(found, key=lambda doubt: doubt.at)

    # --- copies ----------------------------------------------------------------------------------

    def _copied(self, record: Mapping[str, Any]) -> None:
        """A copy begins, or is complete, and makes good whatever was doubtful before it."""
        for name, since in self._copies.take(record).items():
            table = self.tables.get(name)
            # Rows that are equal cannot be told apart by when they were told of.
            if table is not None and not table.keyless and table.at <= since:
                self._made_good(table, since, record)
        for name in names_of(said_of(record)):
            if self._copies.copies(name) and name not in self.tables and self._keeps(name):
                self._add(_table(name, "middle", record))

    def _made_good(self, table: Table, since: int, record: Mapping[str, Any]) -> None:
        before = [one for one in self._untold(table) if one.at <= since]
        for key in [key for key, row in table.rows.items() if row.at <= since]:
            self._put(table, key, None)
        table.doubts = [one for one in table.doubts if one.at > since]
        if before or table.began != "created":
            # What was lost may have been a statement, too.
            table.began, table.statement = "copied", ""
        table.at, table.ts, table.copied = since, int(record["ts"]), True

    # --- changes of rows -------------------------------------------------------------------------

    def _change(self, name: Name, record: Mapping[str, Any]) -> None:
        table = self.tables.get(name)
        flags = flags_of(record)
        if table is None:
            table = self.tables[name] = _table(name, "middle", record)
        if "erased" in record:
            self._doubt(record, "erased", "a change of a row was erased, and so is unknown")
            return
        if flags.get("copied"):
            if table.began == "middle":
                table.began = "copied"
            table.copied_at = int(record["at"])
        table.keyless = bool(flags.get("keyless"))
        # Its transactions are named by a server's UUID or a file, MariaDB's by three numbers.
        table.of_mysql = table.of_mysql or ":" in str(record["txn"]["id"] or "")
        if table.keyless:
            self._keyless(table, record, copied=bool(flags.get("copied")))
        else:
            self._keyed(table, record, copied=bool(flags.get("copied")))
        if self._bytes > self._bytes_max:
            raise AuditError(
                f"the rows come to more than {self._bytes_max:,} bytes of memory. Nothing was "
                f"changed. Restore fewer tables at a time (--table), or allow more (--memory)."
            )

    def _keyed(self, table: Table, record: Mapping[str, Any], *, copied: bool) -> None:
        key = bson.encode(record["meta"]["pk"])
        old = table.rows.get(key)
        op = record["op"]
        if not copied and (old is not None) == (op == "i") and self._is_certain(table):
            there = "is there already" if op == "i" else "is not there"
            said = f"it has a change ({op}) of a row that {there}"
            self._doubt(record, "contradiction", said)
        if op == "d":
            self._put(table, key, None)
        elif op == "i":
            data = bson.encode(after_of(record))
            whole = not flags_of(record).get("partial", False)
            if not whole:
                self._doubt(record, "partial", "the source did not send all columns of a row")
            self._put(table, key, Row(data, whole=whole, shape=table.shape, at=record["at"]))
        else:
            base = dict(record["meta"]["pk"]) if old is None else old.values
            try:
                values = changed(base, record["chg"], record.get("paths"))
                whole = old is not None and old.whole
            except InexactError as error:
                self._doubt(record, "inexact", f"an update has no exact meaning: {error}")
                values, whole = base, False
            shape = table.shape if old is None else old.shape
            row = Row(bson.encode(values), whole=whole, shape=shape, at=record["at"])
            self._put(table, key, row)

    def _keyless(self, table: Table, record: Mapping[str, Any], *, copied: bool) -> None:
        """Rows that are equal are told apart by nothing but their number.

        An update of one is the end of a row and another one's beginning, but where nothing changed.
        """
        op = record["op"]
        if op == "u":
            return
        if copied and not any(one.kind == "copied_keyless" for one in table.doubts):
            said = "it has no key, and was copied: rows that changed meanwhile may be there twice"
            self._doubt(record, "copied_keyless", said)
        values = after_of(record) if op == "i" else before_of(record)
        data = bson.encode(values)
        old = table.rows.get(data)
        count = (0 if old is None else old.times) + (1 if op == "i" else -1)
        if count < 0:
            if self._is_certain(table):
                self._doubt(record, "contradiction", "a row was deleted that is not there")
            return
        # Nothing tells which of them were there before an ALTER, so all of them may have been.
        shape = table.shape if old is None else old.shape
        row = Row(data, whole=True, shape=shape, times=count) if count else None
        self._put(table, data, row)

    def _put(self, table: Table, key: bytes, row: Row | None) -> None:
        old = table.rows.pop(key, None)
        if old is not None:
            self._bytes -= len(key) + len(old.data) + _ROW_BYTES
        if row is not None:
            table.rows[key] = row
            self._bytes += len(key) + len(row.data) + _ROW_BYTES

    def _is_certain(self, table: Table) -> bool:
        return table.began == "created" and not self._untold(table)

    # --- statements and gaps ---------------------------------------------------------------------

    def _statement(self, name: Name, record: Mapping[str, Any]) -> None:
        said = said_of(record)
        if "erased" in record or "operation" not in said:
            self._doubt(record, "erased", "a statement was erased, and so is unknown")
            return
        if only_describes(record):
            return
        operation, truncates = said["operation"], "truncated" in said
        if operation == "create":
            if not (truncates and name in self.tables):
                made = _table(name, "created", record)
                made.statement, made.made_as = str(said.get("statement", "")), name
                made.sql_mode = said.get("sqlMode")
                self._add(made)
        elif operation == "drop":
            gone = self._remove(name)
            if truncates and gone is not None:
                emptied = _table(name, "created", record)
                emptied.statement, emptied.shape = gone.statement, gone.shape
                emptied.made_as, emptied.sql_mode = gone.made_as, gone.sql_mode
                self._add(emptied)
        elif operation == "dropDatabase":
            for one in [one for one in self.tables if one[0] == name[0]]:
                self._remove(one)
        elif operation == "rename":
            self._rename(name, said)
        elif operation == "modify":
            table = self.tables.get(name)
            if table is None and _may_be_absent(said):
                return
            if table is None:
                # CREATE TABLE IF NOT EXISTS, or an ALTER of what was there before.
                table = self._add(_table(name, "middle", record))
            table.shape += 1
            table.taken |= dict.fromkeys(_taken_away(said), table.shape)

    def _rename(self, name: Name, said: Mapping[str, Any]) -> None:
        moved = self._remove(name)
        to = (said["to"]["db"], said["to"]["coll"])
        self._remove(to)
        if moved is not None and said.get("targetCaptured", True):
            moved.name = to
            self._add(moved)

    def _add(self, table: Table) -> Table:
        self._remove(table.name)
        if self._keeps(table.name):
            self.tables[table.name] = table
            self._bytes += sum(
                len(key) + len(row.data) + _ROW_BYTES for key, row in table.rows.items()
            )
        return table

    def _remove(self, name: Name) -> Table | None:
        table = self.tables.pop(name, None)
        if table is not None:
            self._bytes -= sum(
                len(key) + len(row.data) + _ROW_BYTES for key, row in table.rows.items()
            )
        return table

    def _doubt(self, record: Mapping[str, Any], kind: str, said: str) -> None:
        doubt = doubt_of(record, kind, said)
        table = self.tables.get(doubt.table)
        if table is not None:
            table.doubts.append(doubt)
        elif not doubt.table[1]:
            self._everywhere.append(doubt)
        elif self._keeps(doubt.table):
            self._add(_table(doubt.table, "middle", record)).doubts.append(doubt)


def _table(name: Name, began: str, record: Mapping[str, Any]) -> Table:
    return Table(name=name, began=began, at=int(record["at"]), ts=int(record["ts"]))


def _may_be_absent(said: Mapping[str, Any]) -> bool:
    """Whether a statement altered its table if there was one."""
    return alteration(str(said.get("statement", "")), said.get("sqlMode") or "").if_exists


def _taken_away(said: Mapping[str, Any]) -> set[str]:
    """The names that columns lose by a statement, in small letters: of those that it drops, and of
    those that it calls otherwise. A row that was written before has values under them still."""
    mode = said.get("sqlMode")
    found: set[str] = set()
    # Trails of before do not say what double quotes mean.
    for one in ("", "ANSI_QUOTES") if mode is None else (mode,):
        told = alteration(str(said.get("statement", "")), one)
        found |= {name.casefold() for name in told.dropped}
        moved = [(pair.old.casefold(), pair.new.casefold()) for pair in told.renamed]
        found |= {old for old, new in moved if old != new}
    return found


def _stale(table: Table) -> str:
    """The columns of which rows hold what was there before they were dropped or renamed: what is
    called so now is another column."""
    if not table.taken:
        return ""
    newest = max(table.taken.values())
    found = {
        column
        for row in table.rows.values()
        if row.shape < newest
        for column in row.values
        if row.shape < table.taken.get(column.casefold(), 0)
    }
    return ", ".join(sorted(found))


def name_of(record: Mapping[str, Any]) -> Name:
    """The table that a record is of; its name is empty for a whole database, or the source."""
    return str(record["meta"]["db"]), str(record["meta"]["tbl"])


def doubt_of(record: Mapping[str, Any], kind: str, said: str) -> Doubt:
    """What is doubtful from a record on."""
    return Doubt(
        kind=kind, table=name_of(record), at=int(record["at"]), ts=int(record["ts"]), said=said
    )


def said_of(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the source said of a statement or gap; nothing once that is erased."""
    said: Mapping[str, Any] = record.get("said") or {}
    return said


def only_describes(record: Mapping[str, Any]) -> bool:
    """Whether a record of a table tells what its columns are since, and nothing was done to it."""
    said = said_of(record)
    return said.get("operation") == "modify" and "columns" in said


def flags_of(record: Mapping[str, Any]) -> Mapping[str, bool]:
    """The flags of a record: copied, keyless, partial."""
    flags: Mapping[str, bool] = record.get("flags") or {}
    return flags


def changes_nothing(record: Mapping[str, Any]) -> bool:
    """Whether a record tells of the trail itself or of a copy, and of no change of a table."""
    return record["op"] in {"sys", COPY}


def after_of(record: Mapping[str, Any]) -> Document:
    """The row that an insert made."""
    return {column: change["t"] for column, change in record["chg"].items()}


def before_of(record: Mapping[str, Any]) -> Document:
    """The row that a delete ended, as far as the source sent it."""
    return {column: change["f"] for column, change in record["chg"].items() if "f" in change}


def changed(
    row: Document, chg: Mapping[str, Mapping[str, Any]], paths: Paths | None = None
) -> Document:
    """A row behind an update, whose record says in `paths` which of its names lead into columns.
    Raises InexactError where that can mean more than one row."""
    result = dict(row)
    update: Document = {"updatedFields": {}, "removedFields": [], "truncatedArrays": []}
    read: dict[str, Sequence[Any]] = {}
    for column, change in chg.items():
        if paths is None:
            steps = _unstated(column, row, cut="size" in change)
        else:
            steps = _stated(column, row, paths)
        if steps is not None:
            read[column] = steps
        if "size" in change:
            update["truncatedArrays"].append({"field": column, "newSize": change["size"]})
        elif steps is None or len(steps) > 1:
            if "t" in change:
                update["updatedFields"][column] = change["t"]
            else:
                update["removedFields"].append(column)
        elif "t" in change:
            result[column] = change["t"]
        else:
            result.pop(column, None)
    return apply_update(result, update, read) if any(update.values()) else result


def _stated(column: str, row: Document, paths: Paths) -> Sequence[Any] | None:
    """The steps of a name; None where they are what stands between its dots."""
    steps = paths.get(column)
    first = column.partition(".")[0] if steps is None else steps[0]
    # Nothing leads into a column that the row does not have: it is that of a flattened document.
    return steps if first in row and "." in column else [column]


def _unstated(column: str, row: Document, *, cut: bool) -> Sequence[Any] | None:
    """As `_stated`, of a record that does not say which names are paths: one with dots leads into
    a document, unless the row has a column of that name. Raises InexactError where it may be of
    another name with dots that the row has; also of such a column, for an array that is cut."""
    names = column.split(".")
    is_path = len(names) > 1 and isinstance(row.get(names[0]), dict | list)
    if not is_path or (column in row and not cut):
        return [column]
    at: Any = row
    for number, name in enumerate(names[:-1]):
        if isinstance(at, dict):
            rest = names[number:]
            if "" in rest or any(".".join(rest[:count]) in at for count in range(2, len(rest) + 1)):
                raise InexactError(f"the path {column} is ambiguous: a field's name may hold a dot")
            at = cast("Document", at).get(name)
        elif isinstance(at, list) and name.isdecimal():
            at = next(iter(cast("Sequence[Any]", at)[int(name) :]), None)
    return None


# --- which records tell of tables -----------------------------------------------------------------


def names_before(
    wanted: Callable[[Name], bool], renames: Iterable[Mapping[str, Any]]
) -> frozenset[Name]:
    """The other names that wanted tables may have had: those that they were renamed from.

    `renames` are the trail's, in any order. They may be more names than that, never fewer.
    """
    moves = [
        (name_of(record), (record["said"]["to"]["db"], record["said"]["to"]["coll"]))
        for record in renames
        if "to" in said_of(record)
    ]
    earlier: set[Name] = set()
    grew = True
    while grew:
        before = len(earlier)
        earlier |= {name for name, to in moves if wanted(to) or to in earlier}
        grew = len(earlier) > before
    return frozenset(earlier)


def whole_rows(table: Table) -> Iterator[tuple[Document, Row]]:
    """The rows of which all is known, each with its key; of a table without one, with {}."""
    for key, row in table.rows.items():
        if row.whole:
            yield ({} if table.keyless else decoded(key)), row
