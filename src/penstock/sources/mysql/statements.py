"""What a statement in the binlog does to tables and their rows. Pure.

Rows come as rows, so a statement matters only where it makes, empties, drops or renames a table,
or changes rows that the server then does not log. What it is about is read from its words; a
statement about something else has no effect here, and never stops capture (S13). One that is about
tables and is not understood is Unclear, so that nobody takes what follows for complete.
"""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from penstock.mysql_sql.tokens import Runs, Token, body, significant, tokens

Name = tuple[str, str]
"""A database and a table."""


class Created(Struct, frozen=True):
    """A table is there, without rows."""

    table: Name


class Dropped(Struct, frozen=True):
    """A table and its rows are gone, or were not there."""

    table: Name


class Emptied(Struct, frozen=True):
    """A table's rows are gone."""

    table: Name


class Altered(Struct, frozen=True):
    """A table may have changed its shape; its rows are what they were, as far as they fit it."""

    table: Name


class Renamed(Struct, frozen=True):
    """A table and its rows have another name, in place of any table that had it."""

    table: Name
    to: Name
    if_exists: bool = False
    """Whether there may be no such table, and then nothing is done."""


class RowsChanged(Struct, frozen=True):
    """Rows of a table changed in a way that no event tells: partitions that are dropped, ..."""

    table: Name
    how: str


class Cascading(Struct, frozen=True):
    """From here on a foreign key changes rows of a table when others change."""

    table: Name


class Ensured(Struct, frozen=True):
    """A table is there; where it was there before, the statement did nothing."""

    table: Name
    cascading: bool = False
    """Whether it is `Cascading` where it was made."""


class DatabaseDropped(Struct, frozen=True):
    """A database and all of its tables are gone."""

    database: str


class Unclear(Struct, frozen=True):
    """It is about tables, and no more can be told."""


class RowsAsStatement(Struct, frozen=True):
    """It changes rows, and they do not come as rows: binlog_format was not ROW."""

    verb: str


Effect = (
    Created
    | Dropped
    | Emptied
    | Altered
    | Renamed
    | RowsChanged
    | Cascading
    | DatabaseDropped
    | Unclear
)
Said = Effect | Ensured | RowsAsStatement
"""What a statement says. What it did of that is told by `happened` and `unlogged_rows`."""


_ROW_VERBS: Final = frozenset(
    {"INSERT", "UPDATE", "DELETE", "REPLACE", "LOAD", "WITH", "SELECT", "CALL", "DO", "VALUES"}
)
_TABLE_VERBS: Final = frozenset({"CREATE", "DROP", "ALTER", "RENAME", "TRUNCATE"})
_PARTITIONS_LOST: Final = frozenset({"DROP", "TRUNCATE", "EXCHANGE", "DISCARD", "IMPORT"})


class UnclearError(ValueError):
    """The statement does not go on as it must."""


def effects(
    statement: str, *, database: str, lowers: bool = False, sql_mode: str = ""
) -> list[Said]:
    """What `statement` does; `database` is the session's, for names without one.

    With `lowers`, the server keeps names in lower case, however they are written
    (lower_case_table_names). `sql_mode` has the modes that it was written in, with commas between.
    """
    all_of_it = significant(tokens(statement, sql_mode))
    said = body(all_of_it)
    if all_of_it and not said:
        return [Unclear()]
    reader = Reader(said, database, lowers=lowers)
    try:
        verb = reader.word()
        if verb in _ROW_VERBS or verb == "(":
            return [RowsAsStatement(verb)]
        found = [*_of_tables(verb, reader)] if verb in _TABLE_VERBS else []
        # No server runs a statement with a quote that does not end: its tokens are others.
        return [Unclear()] if found and said[-1].kind == "open" else found
    except UnclearError:
        return [Unclear()]


_BEFORE_TABLES: Final = frozenset(
    {"UPDATE", "INSERT", "INTO", "LOW_PRIORITY", "HIGH_PRIORITY", "DELAYED", "IGNORE"}
    | {",", "JOIN", "STRAIGHT_JOIN"}
)
"""What stands before the name of a table that an UPDATE or INSERT may write to. A name elsewhere
may be a column's, and a trigger may write to a table of that name."""


def writes_in_place(statement: str, table: Name) -> bool:
    """Whether it is an UPDATE or INSERT in which `table` is named as one of its tables may be.

    Then its rows of that table are what it set; a REPLACE resets what it does not name. False where
    that is not certain: nobody says in which sql_mode it was written, nor whether a server runs its
    executable comments, so it has to be so in all of them.
    """
    modes = ["", "ANSI_QUOTES"]
    if "\\" in statement:
        modes.append("NO_BACKSLASH_ESCAPES")
    if "[" in statement:
        modes += [f"{one},MSSQL" for one in modes]
    runs: tuple[Runs, ...] = ("all", "mysql") if "/*M!" in statement else ("all",)
    return all(
        _writes_in_place(body(significant(tokens(statement, one, runs=running))), table)
        for one in modes
        for running in runs
    )


def _writes_in_place(said: Sequence[Token], table: Name) -> bool:
    words = [one.word for one in said]
    if not words or words[0] not in {"UPDATE", "INSERT"}:
        return False
    is_update = words[0] == "UPDATE"
    stop = words.index("SET") if is_update and "SET" in words else len(words)
    database, name = table
    for at in range(1, stop):
        has_dot = words[at - 1] == "."
        has_database = has_dot and words[at - 2] not in _BEFORE_TABLES  # MariaDB takes `.a`, too
        if words[at] == "." or words[at - 1 - has_dot - has_database] not in _BEFORE_TABLES:
            continue
        of_database = not has_database or said[at - 2].name == database
        if of_database and said[at].is_name and said[at].name == name:
            return True
        if not is_update and words[at] not in _BEFORE_TABLES and words[at + 1 : at + 2] != ["."]:
            return False  # it writes to this one alone
    return False


class Reader:
    """Goes through a statement's words."""

    def __init__(self, tokens: Sequence[Token], database: str, *, lowers: bool) -> None:
        self.tokens = tokens
        self.at = 0
        self._database = database
        self._lowers = lowers

    def word(self) -> str:
        """The next word, taken; empty at the end, and for a name in quotes or behind a dot."""
        if self.at == len(self.tokens):
            return ""
        self.at += 1
        return self.peek(-1)

    def peek(self, ahead: int = 0) -> str:
        """A word that comes, not taken; empty as of `word`."""
        at = self.at + ahead
        if at >= len(self.tokens):
            return ""
        token = self.tokens[at]
        # There a server takes any word for a name: `a.from`.
        named = token.kind == "word" and at > 0 and self.tokens[at - 1].text == "."
        return "" if named else token.word

    def take(self, *words: str) -> bool:
        """Take these words if they come next."""
        if any(self.peek(i) != word for i, word in enumerate(words)):
            return False
        self.at += len(words)
        return True

    def take_any(self, *words: str) -> None:
        """Take all of these words that come next."""
        while self.peek() in words:
            self.at += 1

    def skip_to(self, word: str) -> None:
        """Take everything up to `word`, and it; raises UnclearError if it does not come."""
        while self.at < len(self.tokens):
            if self.word() == word:
                return
        raise UnclearError(word)

    def plain_name(self) -> str:
        """A name of one part, taken; raises UnclearError if none comes."""
        if self.at == len(self.tokens):
            raise UnclearError("a name")
        token = self.tokens[self.at]
        self.at += 1
        if not token.is_name:
            raise UnclearError(token.text)
        return token.name.lower() if self._lowers else token.name

    def column(self) -> str:
        """A column's name, taken with those of its table and database that MariaDB lets stand
        before it (`d.t.a`, `t.a`, `.a`); raises UnclearError if none comes."""
        self.take(".")
        name = self.plain_name()
        while self.take("."):
            name = self.plain_name()
        return name

    def table(self) -> Name:
        """A name, with its database or in the session's."""
        self.take(".")  # MariaDB takes `.a` for a name in the session's database
        first = self.plain_name()
        if self.take("."):
            return first, self.plain_name()
        if not self._database:
            raise UnclearError(first)
        return self._database, first


def _of_tables(verb: str, reader: Reader) -> Sequence[Said]:
    if verb == "CREATE":
        return _create(reader)
    if verb == "DROP":
        return _drop(reader)
    if verb == "ALTER":
        return _alter(reader)
    if verb == "RENAME":
        return _rename(reader)
    reader.take("TABLE")
    return [Emptied(reader.table())]


def _create(reader: Reader) -> Sequence[Said]:
    replaces = reader.take("OR", "REPLACE")
    if replaces and (reader.take("DATABASE") or reader.take("SCHEMA")):
        return [DatabaseDropped(reader.plain_name())]
    if replaces and reader.take("SEQUENCE"):
        return [Dropped(reader.table())]  # a table of that name, too
    reader.take_any("UNIQUE", "FULLTEXT", "SPATIAL", "VECTOR")
    if reader.take("INDEX"):
        reader.skip_to("ON")
        return [Altered(reader.table())]
    if not reader.take("TABLE"):
        return []  # a temporary table is the session's alone; the rest holds no rows of ours
    unless_there = reader.take("IF", "NOT", "EXISTS")
    table = reader.table()
    cascading = _cascading(reader, table)
    # Where its rows come as rows, the server logs what the table is, without the query.
    rows = [RowsAsStatement("CREATE TABLE ... SELECT")] * queries(reader.tokens[reader.at :])
    if replaces:
        return [Dropped(table), Created(table), *cascading, *rows]
    if unless_there:
        return [Ensured(table, cascading=bool(cascading)), *rows]
    return [Created(table), *cascading, *rows]


def queries(said: Sequence[Token]) -> bool:
    """Whether a table is made of a query, by what follows CREATE TABLE, or its name."""
    reader = Reader(said, "-", lowers=False)
    depth = 0
    for ahead in range(len(said)):
        word = reader.peek(ahead)
        depth += (word == "(") - (word == ")")
        if word == "SELECT" or (not depth and word in {"AS", "TABLE", "VALUES"}):
            return True
    return False


def _cascading(reader: Reader, table: Name) -> list[Effect]:
    """What a foreign key does that the statement's words, of which none is taken, make."""
    return [Cascading(table)] if cascades(reader.tokens[reader.at :]) else []


def cascades(said: Sequence[Token]) -> bool:
    """Whether a foreign key of a table's definition changes rows of it when others change."""
    words = [token.word for token in said]
    for at, word in enumerate(words):
        if word == "ON" and words[at + 1 : at + 2] in (["DELETE"], ["UPDATE"]):
            does = words[at + 2 : at + 4]
            if does[:1] == ["CASCADE"] or does in (["SET", "NULL"], ["SET", "DEFAULT"]):
                return True
    return False


def _drop(reader: Reader) -> list[Effect]:
    if reader.take("INDEX"):
        reader.skip_to("ON")
        return [Altered(reader.table())]
    if reader.take("DATABASE") or reader.take("SCHEMA"):
        reader.take("IF", "EXISTS")
        return [DatabaseDropped(reader.plain_name())]
    if not (reader.take("TABLE") or reader.take("TABLES")):
        return []
    reader.take("IF", "EXISTS")
    found: list[Effect] = [Dropped(reader.table())]
    while reader.take(","):
        found.append(Dropped(reader.table()))
    return found


def _rename(reader: Reader) -> list[Effect]:
    if not (reader.take("TABLE") or reader.take("TABLES")):
        return []
    if_exists = reader.take("IF", "EXISTS")
    found: list[Effect] = []
    while True:
        table = reader.table()
        reader.skip_to("TO")  # over WAIT n or NOWAIT
        found += _moved(table, reader.table(), if_exists=if_exists)
        if not reader.take(","):
            return found


def _moved(table: Name, to: Name, *, if_exists: bool = False) -> list[Effect]:
    # To its own name, which ALTER TABLE allows, it goes nowhere.
    return [] if table == to else [Renamed(table, to, if_exists)]


def _alter(reader: Reader) -> list[Effect]:
    ignores = False
    while reader.peek() in {"ONLINE", "IGNORE"}:
        ignores |= reader.word() == "IGNORE"
    if not reader.take("TABLE"):
        return []
    reader.take("IF", "EXISTS")
    table = reader.table()
    found: list[Effect] = [Altered(table), *_cascading(reader, table)]
    if ignores:
        # Rows that are in the way of a new unique key are removed.
        found.append(RowsChanged(table, "ALTER IGNORE TABLE"))
    renamed: list[Effect] = []
    depth = 0
    while reader.at < len(reader.tokens):
        word = reader.word()
        depth += (word == "(") - (word == ")")
        if depth:
            continue
        if word in _PARTITIONS_LOST and reader.peek() in {"PARTITION", "TABLESPACE", "TABLE"}:
            found.append(RowsChanged(table, f"{word} {reader.peek()}"))
        elif word == "CONVERT" and reader.peek() in {"PARTITION", "TABLE"}:
            found += _converted(reader, table)
        elif word == "DROP" and reader.take("SYSTEM", "VERSIONING"):
            # So are the rows of its history, which came as rows.
            found.append(RowsChanged(table, "DROP SYSTEM VERSIONING"))
        elif word == "WITH" and reader.take("TABLE"):
            found.append(RowsChanged(reader.table(), "EXCHANGE PARTITION"))
        elif word == "RENAME" and reader.peek() not in {"COLUMN", "INDEX", "KEY", "CONSTRAINT"}:
            if reader.peek() in {"TO", "AS", "="}:
                reader.word()
            renamed += _moved(table, reader.table())
    return [*found, *renamed]


def _converted(reader: Reader, table: Name) -> list[Effect]:
    """A partition becomes a table with its rows, or a table becomes a partition."""
    if reader.take("TABLE"):
        return [RowsChanged(table, "CONVERT TABLE"), Dropped(reader.table())]
    reader.take("PARTITION")
    reader.skip_to("TABLE")
    made = reader.table()
    how = "CONVERT PARTITION"
    return [RowsChanged(table, how), Created(made), RowsChanged(made, how)]
