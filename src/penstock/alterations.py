"""What an ALTER TABLE of MySQL or MariaDB says of the columns that were there. Pure.

Both servers take all that one statement says of columns to be of the table as it was before it.
Source: the documentation of MySQL and MariaDB, "ALTER TABLE", "SQL Modes" and "Comments".
"""

import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Final

from msgspec import Struct


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


def alteration(statement: str, sql_mode: str = "") -> Alteration:
    """What a statement does to columns that were there; `sql_mode` has the modes that it was
    written in, with commas between them."""
    modes = frozenset(sql_mode.split(","))
    tokens = _tokens(
        statement,
        names="ANSI_QUOTES" in modes,
        escapes="NO_BACKSLASH_ESCAPES" not in modes,
    )
    reader = _Reader(tokens)
    if reader.take("SET", "STATEMENT"):
        while reader.more and not reader.take("FOR"):
            reader.skip()
    if not reader.take("ALTER"):
        return Alteration()
    while reader.take("ONLINE") or reader.take("IGNORE"):
        pass
    if not reader.take("TABLE"):
        return Alteration()
    reader.take("IF", "EXISTS")
    reader.name()
    if reader.take("WAIT"):
        reader.skip()
    reader.take("NOWAIT")
    renamed: list[Renaming] = []
    dropped: list[str] = []
    for part in _parts(tokens[reader.at :]):
        said = _said(_Reader(part))
        if isinstance(said, Renaming):
            renamed.append(said)
        elif said is not None:
            dropped.append(said)
    return Alteration(tuple(renamed), tuple(dropped))


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
        return name if is_column or ends else None
    return None


class _Token(Struct, frozen=True):
    text: str
    is_name: bool = False
    """Whether it may be one."""
    word: str = ""
    """In upper case; empty for what is in quotes."""


class _Reader:
    """Goes through a statement."""

    def __init__(self, tokens: Sequence[_Token]) -> None:
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
        while self.more and self._tokens[self.at].is_name:
            found = self._tokens[self.at].text
            self.at += 1
            if not self.take("."):
                return found
        return ""


def _parts(tokens: Sequence[_Token]) -> Iterator[Sequence[_Token]]:
    """What is between commas that are in no parentheses."""
    start, depth = 0, 0
    for at, token in enumerate(tokens):
        depth += (token.word == "(") - (token.word == ")")
        if token.word == "," and not depth:
            yield tokens[start:at]
            start = at + 1
    yield tokens[start:]


def _tokens(statement: str, *, names: bool, escapes: bool) -> list[_Token]:
    found: list[_Token] = []
    for match in _pattern(names=names, escapes=escapes).finditer(statement):
        kind, text = match.lastgroup, match[0]
        if kind == "quoted":
            found.append(_Token(text[1:-1].replace(text[0] * 2, text[0]), is_name=True))
        elif kind == "word":
            found.append(_Token(text, is_name=True, word=text.upper()))
        elif kind != "space":
            found.append(_Token(text, word=text))
    return found


_RUN: Final = r"/\*!(?:[0-4]\d{4}|50[0-6]\d\d)?(?!\d)"
"""The begin of a comment that every server runs, whichever of the two it is."""


@cache
def _pattern(*, names: bool, escapes: bool) -> re.Pattern[str]:
    """What a statement is made of; `names`: what is in double quotes is one."""
    single = r"'(?:[^'\\]|''|\\.)*'" if escapes else r"'(?:[^']|'')*'"
    double = r'"(?:[^"\\]|""|\\.)*"' if escapes and not names else r'"(?:[^"]|"")*"'
    return re.compile(
        rf"""
          (?P<space>\s+|--(?=\s|$)[^\n]*|\#[^\n]*|{_RUN}|\*/|/\*.*?\*/)
        | (?P<quoted>`(?:[^`]|``)+`{"|" + double if names else ""})
        | (?P<text>{single}|{double})
        | (?P<word>[\w$]+)
        | (?P<sign>.)
        """,
        re.VERBOSE | re.DOTALL,
    )
