"""Changes of rows as statements. Pure.

A statement means what it says in one session that has begun with HEAD, and in no other.
"""

# Names are quoted and values are literals: that is what this module is for.
# ruff: noqa: S608

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from msgspec import Struct

from penstock.audit.fold import Document, Name
from penstock.sources.mysql.restoring.columns import ServerTable, condition, quoted, written
from penstock.sources.mysql.restoring.documents import document_null
from penstock.sources.mysql.restoring.literals import NoLiteralError, literal

SQL_MODE: Final = (
    "STRICT_ALL_TABLES,STRICT_TRANS_TABLES,ALLOW_INVALID_DATES,NO_AUTO_VALUE_ON_ZERO,"
    "NO_ENGINE_SUBSTITUTION"
)
"""Nothing is cut or rounded to fit; zero and partial dates are values, and so is a key of 0."""
LOOSE_MODE: Final = "ALLOW_INVALID_DATES,NO_AUTO_VALUE_ON_ZERO,NO_ENGINE_SUBSTITUTION"
"""For the one value that the other refuses: the empty text of an ENUM that has none."""
HEAD: Final = (
    "SET NAMES utf8mb4",
    "SET SESSION time_zone = '+00:00'",
    f"SET SESSION sql_mode = '{SQL_MODE}'",
    # Rows of several tables are there one after the other, and none may take others with it.
    "SET SESSION foreign_key_checks = 0",
    # Off, a server may let two rows with one key pass: then it is better to be told.
    "SET SESSION unique_checks = 1",
)
_TOGETHER_BYTES: Final = 1 << 20


class Statement(Struct, frozen=True, kw_only=True):
    """One statement, and what it must do."""

    text: str
    about: str
    """For people: which table, and which record of the trail."""
    rows: int | None = None
    """How many rows it must find; None where that is not certain."""
    unlisted: tuple[str, ...] = ()
    """ENUM columns to which it writes the empty text that is no value of theirs: in LOOSE_MODE."""
    sql_mode: str = ""
    """Modes that it needs besides, as those in which it was written."""
    alters: bool = False
    """Whether it changes tables, and so is a transaction of its own."""

    @property
    def mode(self) -> str:
        """The sql_mode in which to run it: SQL_MODE, or another that is set for it alone."""
        if self.unlisted:
            return LOOSE_MODE
        return f"{SQL_MODE},{self.sql_mode}" if self.sql_mode else SQL_MODE


BEGIN: Final = Statement(text="START TRANSACTION", about="")
COMMIT: Final = Statement(text="COMMIT", about="")


def script(statement: Statement) -> str:
    """The lines of a file of SQL that run a statement."""
    lines = f"{statement.text};\n"
    if statement.mode == SQL_MODE:
        return lines
    return f"{setting(statement.mode)};\n{lines}{setting(SQL_MODE)};\n"


def setting(mode: str) -> str:
    """The statement that sets the session's sql_mode."""
    return f"SET SESSION sql_mode = '{mode}'"


class UnfitError(ValueError):
    """A row has a column or value that the table cannot hold; the message holds no value."""


def inserts(
    name: Name, rows: Iterable[Document], facts: ServerTable | None, *, about: str
) -> Iterator[Statement]:
    """Statements that insert rows, many at a time. Raises UnfitError."""
    begun: list[str] = []
    head, unlisted, size = "", set[str](), 0
    last: tuple[str, ...] | None = None

    def end() -> Iterator[Statement]:
        if begun:
            text, wrong = f"{head}{', '.join(begun)}", tuple(sorted(unlisted))
            yield Statement(text=text, about=about, rows=len(begun), unlisted=wrong)
            begun.clear()
            unlisted.clear()

    for row in rows:
        values = _written(name, row, facts)
        columns = tuple(values)
        if columns != last or size > _TOGETHER_BYTES:
            yield from end()
            listed = ", ".join(map(quoted, columns))
            head, last, size = f"INSERT INTO {quoted(*name)} ({listed}) VALUES ", columns, 0
        begun.append(f"({', '.join(values.values())})")
        unlisted.update(_unlisted(row, facts))
        size += len(begun[-1])
    yield from end()


def put(name: Name, row: Document, facts: ServerTable | None, *, about: str) -> Statement:
    """A row is there, whatever was there by its key. Raises UnfitError."""
    (insert,) = inserts(name, [row], facts, about=about)
    sets = ", ".join(f"{quoted(one)} = VALUES({quoted(one)})" for one in _written(name, row, facts))
    return Statement(
        text=f"{insert.text} ON DUPLICATE KEY UPDATE {sets}", about=about, unlisted=insert.unlisted
    )


def update(
    name: Name,
    key: Document,
    columns: Document,
    gone: Sequence[str],
    facts: ServerTable | None,
    *,
    about: str,
) -> Statement | None:
    """Columns of the row of a key have other values; None where there is nothing to write.

    A column that the server sets by itself, and that did not change, is told to stay. Raises
    UnfitError.
    """
    values = _written(name, columns, facts)
    if gone:
        raise UnfitError(f"{'.'.join(name)}: an update removes columns")
    if not values:
        return None
    if facts is not None:
        names = {one.lower() for one in values}
        for column in facts.written:
            if column.updates_itself and column.name.lower() not in names:
                values[column.name] = quoted(column.name)
    sets = ", ".join(f"{quoted(column)} = {value}" for column, value in values.items())
    return Statement(
        text=f"UPDATE {quoted(*name)} SET {sets} WHERE {where(name, key)}",
        about=about,
        rows=1,
        unlisted=tuple(_unlisted(columns, facts)),
    )


def delete(name: Name, key: Document, *, about: str) -> Statement:
    """The row of a key is gone. Raises UnfitError."""
    text = f"DELETE FROM {quoted(*name)} WHERE {where(name, key)}"
    return Statement(text=text, about=about, rows=1)


def delete_equal(
    name: Name, row: Document, count: int, facts: ServerTable | None, *, about: str
) -> Statement:
    """So many rows that are equal to this one are gone. Raises UnfitError."""
    known = {
        column: value for column, value in row.items() if facts is None or _takes(facts, column)
    }
    tests = " AND ".join(
        _fit(name, column, partial(condition, column, _kind(facts, column), value))
        for column, value in known.items()
    )
    return Statement(
        text=f"DELETE FROM {quoted(*name)} WHERE {tests} LIMIT {count}", about=about, rows=count
    )


def where(name: Name, key: Document) -> str:
    """The condition that finds a row by its key. Raises UnfitError."""
    return " AND ".join(
        f"{quoted(column)} = {_fit(name, column, partial(literal, value))}"
        for column, value in key.items()
    )


def _written(name: Name, row: Document, facts: ServerTable | None) -> dict[str, str]:
    """By column that takes values: the literal."""
    found: dict[str, str] = {}
    for column, value in row.items():
        if facts is not None:
            if facts.column(column) is None:
                raise UnfitError(f"{'.'.join(name)} has no column {column!r} now, and had one then")
            if not _takes(facts, column):
                continue
        found[column] = (
            document_null()
            if value is None and _requires_document(facts, column)
            else _fit(name, column, partial(written, _kind(facts, column), value))
        )
    return found


def _requires_document(facts: ServerTable | None, column: str) -> bool:
    """Whether a null there is a document that is null: the column takes no NULL."""
    found = None if facts is None else facts.column(column)
    return found is not None and found.type == "json" and found.required


def _kind(facts: ServerTable | None, column: str) -> str:
    """The type of a column; empty where nothing is known."""
    found = None if facts is None else facts.column(column)
    return "" if found is None else found.type


def _fit(name: Name, column: str, act: Callable[[], str]) -> str:
    try:
        return act()
    except NoLiteralError as error:
        raise UnfitError(
            f"the column {column!r} of {'.'.join(name)} holds {error}, which SQL has no form for"
        ) from error


def _takes(facts: ServerTable, column: str) -> bool:
    found = facts.column(column)
    return found is not None and not found.computed


def _unlisted(row: Mapping[str, Any], facts: ServerTable | None) -> list[str]:
    """The ENUM columns of a row whose value is none of theirs."""
    if facts is None:
        return []
    return [
        one.name
        for one in facts.columns
        if one.type == "enum" and row.get(one.name) == "" and "" not in one.values
    ]
