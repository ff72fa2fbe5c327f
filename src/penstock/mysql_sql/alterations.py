"""What an ALTER TABLE of MySQL or MariaDB says of the columns that were there. Pure.

Both servers take all that one statement says of columns to be of the table as it was before it.
Source: the documentation of MySQL and MariaDB, "ALTER TABLE".
"""

from collections.abc import Iterator, Sequence

from msgspec import Struct

from penstock.mysql_sql.tokens import Token, body, significant, tokens


class Renaming(Struct, frozen=True):
    """A column that is told its name anew; it may be the same, or in other capitals."""

    old: str
    new: str
    if_exists: bool = False
    """Whether there may be no such column, and then nothing is done."""


class Alteration(Struct, frozen=True):
    """What becomes of columns; nothing where a statement is about something else."""

    renamed: tuple[Renaming, ...] = ()
    dropped: tuple[str, ...] = ()
    if_exists: bool = False
    """Whether there may be no such table, and then nothing is done."""


def alteration(statement: str, sql_mode: str = "") -> Alteration:
    """What a statement does to columns that were there; `sql_mode` has the modes that it was
    written in, with commas between them."""
    found = body(significant(tokens(statement, sql_mode)))
    reader = _Reader(found)
    if not reader.take("ALTER"):
        return Alteration()
    while reader.take("ONLINE") or reader.take("IGNORE"):
        pass
    if not reader.take("TABLE"):
        return Alteration()
    if_exists = reader.take("IF", "EXISTS")
    reader.name()
    if reader.take("WAIT"):
        reader.skip()
    reader.take("NOWAIT")
    renamed: list[Renaming] = []
    dropped: list[str] = []
    for part in _parts(found[reader.at :]):
        said = _said(_Reader(part))
        if isinstance(said, Renaming):
            renamed.append(said)
        elif said is not None:
            dropped.append(said)
    return Alteration(tuple(renamed), tuple(dropped), if_exists)


def _said(part: "_Reader") -> Renaming | str | None:
    """The column that a part of a statement renames, or drops."""
    if part.take("RENAME", "COLUMN"):
        if_exists = part.take("IF", "EXISTS")
        old, to, new = part.name(), part.take("TO"), part.name()
        return Renaming(old, new, if_exists) if old and to and new else None
    if part.take("CHANGE"):
        part.take("COLUMN")
        if_exists = part.take("IF", "EXISTS")
        old, new = part.name(), part.name()
        return Renaming(old, new, if_exists) if old and new else None
    if part.take("MODIFY"):
        # A column then has its name in the capitals of this statement.
        part.take("COLUMN")
        if_exists = part.take("IF", "EXISTS")
        name = part.name()
        return Renaming(name, name, if_exists) if name else None
    if part.take("DROP"):
        is_column = part.take("COLUMN")
        part.take("IF", "EXISTS")
        name = part.name()
        ends = not part.more or part.take("RESTRICT") or part.take("CASCADE")
        # What is said of partitions has no comma before it.
        ends = ends or part.take("PARTITION", "BY") or part.take("REMOVE", "PARTITIONING")
        # What else is dropped has a word of its kind before its name.
        return name if name and (is_column or ends) else None
    return None


class _Reader:
    """Goes through a statement."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self._tokens = tokens
        self.at = 0

    @property
    def more(self) -> bool:
        """Whether it does not end here."""
        return self.at < len(self._tokens)

    def skip(self) -> None:
        """Take whatever comes."""
        self.at += 1

    def take(self, *words: str) -> bool:
        """Take these words if they come next."""
        if tuple(one.word for one in self._tokens[self.at : self.at + len(words)]) != words:
            return False
        self.at += len(words)
        return True

    def name(self) -> str:
        """A name, taken with those that stand before it and a dot; empty if none comes."""
        found = ""
        self.take(".")  # MariaDB takes `.a` for a name in the session's database
        while self.more and self._tokens[self.at].is_name:
            found = self._tokens[self.at].name
            self.at += 1
            if not self.take("."):
                return found
        return ""


def _parts(tokens: Sequence[Token]) -> Iterator[Sequence[Token]]:
    """What is between commas that are in no parentheses."""
    start, depth = 0, 0
    for at, token in enumerate(tokens):
        depth += (token.word == "(") - (token.word == ")")
        if token.word == "," and not depth:
            yield tokens[start:at]
            start = at + 1
    yield tokens[start:]
