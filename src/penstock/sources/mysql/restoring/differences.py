"""How the rows of a server's table differ from those that a trail says, and what mends it. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Final

import bson
from msgspec import Struct

from penstock.audit.fold import Document, Name, Table, decoded, whole_rows
from penstock.audit.undoing import Undone, Was
from penstock.sources.mysql.restoring import sql
from penstock.sources.mysql.restoring.columns import ServerTable, comparable
from penstock.sources.mysql.restoring.literals import NoLiteralError, literal
from penstock.sources.mysql.restoring.sql import Statement, UnfitError

Identity = tuple[Any, ...]
_SAMPLE: Final = 20


class Difference(Struct, kw_only=True):
    """What must be done to a table."""

    name: Name
    same: int = 0
    """Rows that are as they are to be."""
    missing: int = 0
    extra: int = 0
    changed: int = 0
    keys_out: list[Document] = []
    """The rows that go, by key; those that change, too."""
    rows_out: list[tuple[Document, int]] = []
    """Of a table without a key: rows that go, and how many equal ones."""
    rows_in: list[bytes] = []
    """The rows that come, as BSON."""
    sample: list[str] = []
    """A few rows that differ, for people."""
    strangers: int = 0
    """Rows of which the trail's last word is not what is there: they changed past the trail."""

    @property
    def is_none(self) -> bool:
        """Whether the table is as it is to be."""
        return not (self.missing or self.extra or self.changed)

    def show(self, sign: str, row: Document, columns: Iterable[str] = ()) -> None:
        """Add a row to the sample, if there is room."""
        if len(self.sample) < _SAMPLE:
            values = " AND ".join(f"{name} = {_shown(value)}" for name, value in row.items())
            changed = f": {', '.join(columns)}" if columns else ""
            self.sample.append(f"{sign} {values}{changed}")

    def statements(self, facts: ServerTable | None) -> Iterator[Statement]:
        """What mends it: first whatever goes, so that no row is in the way of another."""
        about = ".".join(self.name)
        for key in self.keys_out:
            yield sql.delete(self.name, key, about=about)
        for row, count in self.rows_out:
            yield sql.delete_equal(self.name, row, count, facts, about=about)
        yield from sql.inserts(self.name, map(decoded, self.rows_in), facts, about=about)


def identity(facts: ServerTable, row: Mapping[str, Any]) -> Identity:
    """What is equal for two rows exactly if they are equal in these columns."""
    found: list[Any] = []
    for name, value in row.items():
        column = facts.column(name)
        if column is None:
            raise UnfitError(f"there is no column {name!r} now, and was one then")
        if not column.computed:
            found.append(comparable(column, value))
    return tuple(found)


def against_state(
    name: Name, table: Table, facts: ServerTable, current: Iterable[Document]
) -> Difference:
    """The table as it was, against the rows of `name` as they are. Raises UnfitError.

    Columns that a row of the trail does not have, because it is from before they were added, may be
    anything.
    """
    if table.keyless:
        return _keyless(name, {row.data: row.times for _, row in whole_rows(table)}, facts, current)
    found = Difference(name=name)
    wanted = {identity(facts, key): (key, row.data) for key, row in whole_rows(table)}
    keys = next((tuple(key) for key, _ in wanted.values()), facts.key)
    if not keys:
        return _keyless(name, {}, facts, current)
    for row in current:
        key = {column: _of(row, column) for column in keys}
        was = wanted.pop(identity(facts, key), None)
        if was is None:
            found.extra += 1
            found.show("-", key)
            found.keys_out.append(key)
            continue
        values = decoded(was[1])
        if _equal(facts, values, row):
            found.same += 1
        else:
            found.changed += 1
            found.show("~", key, _changed(facts, values, row))
            found.keys_out.append(key)
            found.rows_in.append(bson.encode(_with_newer(name, facts, row, values)))
    found.missing = len(wanted)
    for key, _ in islice(wanted.values(), _SAMPLE):
        found.show("+", key)
    found.rows_in += [data for _, data in wanted.values()]
    return found


def _keyless(
    name: Name, wanted: Mapping[bytes, int], facts: ServerTable, current: Iterable[Document]
) -> Difference:
    found = Difference(name=name)
    of_identity = {identity(facts, decoded(data)): data for data in wanted}
    left = dict(wanted)
    extra: dict[Identity, tuple[Document, int]] = {}
    for row in current:
        this = identity(facts, row)
        data = of_identity.get(this)
        if data is not None and left[data]:
            left[data] -= 1
            found.same += 1
        else:
            extra[this] = (row, extra.get(this, (row, 0))[1] + 1)
            found.show("-", row)
            found.extra += 1
    found.rows_out = list(extra.values())
    found.rows_in = [data for data, count in left.items() for _ in range(count)]
    found.missing = len(found.rows_in)
    for data in found.rows_in[:_SAMPLE]:
        found.show("+", decoded(data))
    return found


def against_undone(
    name: Name, undone: Undone, facts: ServerTable, current: Iterable[Document]
) -> Difference:
    """Rows that changed behind a place, against those of their keys that are there now.

    Raises UnfitError.
    """
    found = Difference(name=name)
    there: dict[Identity, Document] = {}
    names = next((tuple(decoded(key)) for key in undone.rows), ())
    for row in current:
        there[identity(facts, {one: _of(row, one) for one in names})] = row
    for data, was in undone.rows.items():
        key = decoded(data)
        now = there.get(identity(facts, key))
        expected = (now is not None) == was.is_there
        if now is not None and was.is_there:
            expected = _equal(facts, was.is_now, now)
        found.strangers += not expected
        _undo(found, facts, key, was, now)
    return found


def _undo(
    found: Difference, facts: ServerTable, key: Document, was: Was, now: Document | None
) -> None:
    if not was.there:
        if now is None:
            found.same += 1
            return
        found.extra += 1
        found.show("-", key)
        found.keys_out.append(key)
        return
    if now is None:
        if not was.whole:
            return  # a stranger: what else the row was is not known
        found.missing += 1
        found.show("+", key)
        found.rows_in.append(bson.encode(was.columns))
        return
    if _equal(facts, was.columns, now):
        found.same += 1
        return
    found.changed += 1
    found.show("~", key, _changed(facts, was.columns, now))
    found.keys_out.append(key)
    found.rows_in.append(bson.encode(_with_newer(found.name, facts, now, was.columns)))


def undone_counts(name: Name, undone: Undone) -> Difference:
    """Of a table without a key: the rows that go and come."""
    found = Difference(name=name)
    for data, count in undone.counts.items():
        found.show("-" if count < 0 else "+", decoded(data))
        if count < 0:
            found.rows_out.append((decoded(data), -count))
            found.extra -= count
        else:
            found.rows_in += [data] * count
            found.missing += count
    return found


def _shown(value: Any) -> str:
    """For people, of whatever column it is."""
    try:
        return literal(value)[:80]
    except NoLiteralError:
        return "..."


def _equal(facts: ServerTable, wanted: Document, row: Document) -> bool:
    return identity(facts, wanted) == identity(
        facts, {column: _of(row, column) for column in wanted}
    )


def _changed(facts: ServerTable, wanted: Document, row: Document) -> list[str]:
    return [
        column
        for column, value in wanted.items()
        if not _equal(facts, {column: value}, {column: _of(row, column)})
    ]


def _of(row: Document, column: str) -> Any:
    """A column of a row that the server told; the case of letters does not count."""
    if column in row:
        return row[column]
    lower = column.lower()
    return next((value for name, value in row.items() if name.lower() == lower), None)


def _with_newer(name: Name, facts: ServerTable, row: Document, values: Document) -> dict[str, Any]:
    """A row of the trail; what the trail does not know of it, as of a column that is newer, stays
    as the server told it. Raises UnfitError where that may be another value."""
    known = {_name(facts, column): value for column, value in values.items()}
    for column in facts.written:
        if column.type == "json" and column.name not in known and row[column.name] is not None:
            raise UnfitError(
                f"{'.'.join(name)} has documents in the column {column.name!r} now, and had no "
                f"such column then: their text does not say of which types their values are"
            )
    return {**row, **known}


def _name(facts: ServerTable, column: str) -> str:
    found = facts.column(column)
    return column if found is None else found.name
