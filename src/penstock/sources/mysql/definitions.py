"""Which columns a statement makes virtual: CREATE TABLE and ALTER TABLE, as far as that goes. Pure.

Names of columns are compared without regard to case, as the server does, and are kept folded.
Sources: the MariaDB documentation, "CREATE TABLE", "ALTER TABLE", "Generated Columns".
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from penstock.mysql_sql.tokens import Token, body, significant, tokens
from penstock.sources.mysql.statements import Name, Reader, UnclearError

Virtual = frozenset[str]
"""The names of a table's virtual columns, folded."""
Known = Callable[[Name], Virtual | None]
"""A table's virtual columns; None where they are not known."""

_NO_COLUMN: Final = frozenset(
    {"PRIMARY", "UNIQUE", "KEY", "INDEX", "FULLTEXT", "SPATIAL", "CONSTRAINT", "FOREIGN", "CHECK"}
)
_NO_COLUMN_ALTERED: Final = _NO_COLUMN | {"PARTITION", "SYSTEM"}


def defined(
    statement: str, *, database: str, known: Known, lowers: bool = False, sql_mode: str = ""
) -> tuple[Name, Virtual | None] | None:
    """The table that a CREATE or ALTER TABLE is of, and its virtual columns after it.

    They are None where they cannot be told; None alone is for any other statement. `known` is of
    the tables before it; `lowers` and `sql_mode` are as of `effects`.
    """
    reader = Reader(body(significant(tokens(statement, sql_mode))), database, lowers=lowers)
    try:
        verb = reader.word()
        if verb == "CREATE":
            return _created(reader, known)
        if verb == "ALTER":
            return _altered(reader, known)
    except UnclearError:
        pass  # what it is about is told by `statements`, which finds it unclear too
    return None


def _created(reader: Reader, known: Known) -> tuple[Name, Virtual | None] | None:
    reader.take("OR", "REPLACE")
    if not reader.take("TABLE"):
        return None
    unless_there = reader.take("IF", "NOT", "EXISTS")
    table = reader.table()
    if unless_there:
        # A table that we know is there, and stays; another one may be there as well.
        return table, known(table)
    opened = reader.take("(")
    if reader.take("LIKE"):
        return table, known(reader.table())
    if not opened:
        return table, None
    found: set[str] = set()
    for item in _items(reader):
        if _is_column(item, _NO_COLUMN) and _is_virtual(item[1:]):
            found.add(_name(item))
    return table, frozenset(found)


def _altered(reader: Reader, known: Known) -> tuple[Name, Virtual | None] | None:
    reader.take_any("ONLINE", "IGNORE")
    if not reader.take("TABLE"):
        return None
    reader.take("IF", "EXISTS")
    table = reader.table()
    before = known(table)
    if before is None:
        return table, None
    if reader.take("WAIT"):
        reader.word()
    reader.take("NOWAIT")
    gone: set[str] = set()
    come: set[str] = set()
    for item in _items(reader):
        change = Reader(item, "-", lowers=False)
        verb = change.word()
        if verb == "ADD" and not _added(change, before, come):
            return table, None
        if verb == "DROP":
            _dropped(change, gone)
        elif verb in {"MODIFY", "CHANGE"}:
            _redefined(change, before, gone, come, renames=verb == "CHANGE")
        elif verb == "RENAME" and change.take("COLUMN"):
            change.take("IF", "EXISTS")
            old = change.plain_name().casefold()
            change.skip_to("TO")
            if old in before:
                gone.add(old)
                come.add(change.plain_name().casefold())
    return table, (before - gone) | frozenset(come)


def _added(change: Reader, before: Virtual, come: set[str]) -> bool:
    """Whether it is known what an ADD adds."""
    named = change.take("COLUMN")
    unless_there = change.take("IF", "NOT", "EXISTS")
    several = change.take("(")
    items = _items(change) if several else iter([change.tokens[change.at :]])
    for item in items:
        if not named and not several and not _is_column(item, _NO_COLUMN_ALTERED):
            return True
        if not _is_column(item, _NO_COLUMN) or not _is_virtual(item[1:]):
            continue
        name = _name(item)
        if not unless_there:
            come.add(name)
        elif name not in before:
            return False  # it may be there, and not be virtual
        # One that was there is not added, even where the same statement drops or renames it.
    return True


def _dropped(change: Reader, gone: set[str]) -> None:
    named = change.take("COLUMN")
    if named or change.peek() not in _NO_COLUMN_ALTERED | {"PERIOD"}:
        change.take("IF", "EXISTS")
        gone.add(change.column().casefold())


def _redefined(
    change: Reader, before: Virtual, gone: set[str], come: set[str], *, renames: bool
) -> None:
    change.take("COLUMN")
    if_exists = change.take("IF", "EXISTS")
    old = change.column()
    name = change.column() if renames else old
    if if_exists and old.casefold() not in before:
        return  # it was not there, or stays real: no server makes a real column virtual in place
    gone.add(old.casefold())
    if _is_virtual(change.tokens[change.at :]):
        come.add(name.casefold())


def _items(reader: Reader) -> Iterator[Sequence[Token]]:
    """What is between commas, up to the end or the parenthesis that closes what it is in."""
    start, depth = reader.at, 0
    while reader.at < len(reader.tokens):
        word = reader.word()
        depth += (word == "(") - (word == ")")
        if depth < 0 or (word == "," and not depth):
            yield reader.tokens[start : reader.at - 1]
            start = reader.at
            if depth < 0:
                return
    if start < reader.at:
        yield reader.tokens[start : reader.at]


def _is_column(item: Sequence[Token], others: frozenset[str]) -> bool:
    """Whether it defines a column, and not one of the `others`."""
    if not item or item[0].word in others:
        return False
    return not (item[0].word == "PERIOD" and len(item) > 1 and item[1].word == "FOR")


def _name(item: Sequence[Token]) -> str:
    """The name of the column that an item defines. Raises UnclearError."""
    return Reader(item, "-", lowers=False).column().casefold()


def _is_virtual(definition: Sequence[Token]) -> bool:
    """Whether a column's definition says that it is computed when it is asked."""
    depth, at = 0, 0
    words = [token.word for token in definition]
    while at < len(words):
        if not depth and words[at] == "AS" and words[at + 1 : at + 2] == ["("]:
            depth = 1
            at += 2
            while at < len(words) and depth:
                depth += (words[at] == "(") - (words[at] == ")")
                at += 1
            return words[at : at + 1] not in (["STORED"], ["PERSISTENT"])
        depth += (words[at] == "(") - (words[at] == ")")
        at += 1
    return False
