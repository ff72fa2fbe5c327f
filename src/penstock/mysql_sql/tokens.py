"""Statements of MySQL and MariaDB, split into tokens as their servers split them. Pure.

Everybody who reads a statement reads these tokens, so no two readers disagree about it.

An executable comment (`/*!50000 ... */`, and `/*M!100300 ... */` of MariaDB) is part of a logged
statement: a server that does not run one logs it as a plain comment (`/* 50000 ... */`). But MySQL,
which never runs `/*M!`, logs that as it was written: `plain_comments` makes a plain one of it.

Source: the documentation of MySQL and MariaDB, "Schema Object Names" and "Identifier Names",
"Comments", "Literal Values", "SQL Modes"; and what both servers did with such statements.
"""

import re
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import pairwise
from typing import Final, Literal, cast

from msgspec import Struct

Kind = Literal["space", "comment", "run", "name", "text", "number", "word", "sign", "open"]
Runs = Literal["all", "mysql", "none"]
"""Which executable comments are part of the statement: both servers' (`/*!` and `/*M!`), those that
MySQL knows (`/*!`), or none."""


class Token(Struct, frozen=True):
    """A piece of a statement. The texts of all tokens, joined, are the statement."""

    kind: Kind
    """`run` is the begin or end of an executable comment, whose tokens follow as others do. `name`
    is in quotes. `open` is a quote or comment that does not end, with all that follows."""
    start: int
    text: str
    """As it is written."""

    @property
    def end(self) -> int:
        """Where it ends, in the statement."""
        return self.start + len(self.text)

    @property
    def word(self) -> str:
        """A word of the language, in upper case, or a sign; empty for anything else."""
        if self.kind not in {"word", "sign"}:
            return ""
        # Other letters than ASCII's have capitals among these: `aſ` is no AS.
        return self.text.upper() if self.text.isascii() else self.text

    @property
    def is_name(self) -> bool:
        """Whether it may be a name: of a table, a column, ..."""
        return self.kind in {"word", "name"}

    @property
    def name(self) -> str:
        """The name, without quotes, as the server keeps it."""
        name = self.text
        if self.kind == "name":
            close = "]" if name[0] == "[" else name[0]
            name = name[1:-1].replace(close * 2, close)
        # MySQL's names have none of those characters, and keep a question mark for each.
        return name if name.isascii() else _ASTRAL.sub("?", name)


_ASTRAL: Final = re.compile("[\U00010000-\U0010ffff]")
_NAMED: Final = r"0-9A-Za-z_$\u0080-\U0010ffff"
"""The characters of names without quotes. A letter or not: U+00A0 and U+3000 are some."""
_NUMBER: Final = rf"""
    (?<!\.)(?:
        (?:0x[0-9A-Fa-f]++|0b[01]++)(?![{_NAMED}])
      | [0-9]++(?:\.[0-9]*+)?[eE][-+]?[0-9]++
      | [0-9]++\.[0-9]*+
      | [0-9]++(?![{_NAMED}])
    )
  | (?<![{_NAMED}`"\]])\.[0-9]++(?:[eE][-+]?[0-9]++)?
  | \\N
"""
"""Also `\\N`, which is NULL. Digits after a dot are a name (`db.1e5`), and so are digits with
letters after them (`1st`)."""


@cache
def _pattern(*, ansi_quotes: bool, escapes: bool, brackets: bool, runs: Runs) -> re.Pattern[str]:
    single = _quoted("'", escapes=escapes)
    double = _quoted('"', escapes=escapes and not ansi_quotes)
    names, texts = [_quoted("`", escapes=False)], [single]
    (names if ansi_quotes else texts).append(double)
    if brackets:
        names.append(r"\[[^]]*+(?:\]\][^]]*+)*+\]")
    executable = {"all": "/\\*M?!", "mysql": "/\\*!", "none": ""}[runs]
    plain = rf"(?!{executable})" if executable else ""
    run = rf"{executable}(?:[0-9]{{5}}[0-9]?)?|\*/" if executable else r"(?!)"
    # One in another that is not run: servers differ in where it ends.
    nested = r"(?!)" if executable else r"/\*M?!(?:(?!\*/).)*?/\*.*"
    return re.compile(
        rf"""
          (?P<space>[ \t\n\v\f\r]++)
        | (?P<nested>{nested})
        | (?P<comment>--(?=[\x00-\x20\x7f]|\Z)[^\n]*+|\#[^\n]*+|{plain}/\*.*?\*/)
        | (?P<run>{run})
        | (?P<name>{"|".join(names)})
        | (?P<text>{"|".join(texts)})
        | (?P<number>{_NUMBER})
        | (?P<word>[{_NAMED}]++)
        | (?P<open>(?:['"`]|/\*).*)
        | (?P<sign>.)
        """,
        re.VERBOSE | re.DOTALL,
    )


def _quoted(quote: str, *, escapes: bool) -> str:
    if escapes:
        return rf"{quote}[^{quote}\\]*+(?:(?:{quote}{quote}|\\.)[^{quote}\\]*+)*+{quote}"
    return rf"{quote}[^{quote}]*+(?:{quote}{quote}[^{quote}]*+)*+{quote}"


def tokens(statement: str, sql_mode: str = "", *, runs: Runs = "all") -> list[Token]:
    """All tokens of a statement that was written in these modes, which have commas between them."""
    modes = frozenset(sql_mode.split(","))
    pattern = _pattern(
        ansi_quotes="ANSI_QUOTES" in modes,
        escapes="NO_BACKSLASH_ESCAPES" not in modes,
        brackets="MSSQL" in modes,
        runs=runs,
    )
    found: list[Token] = []
    at, running = 0, False
    while match := pattern.match(statement, at):
        kind, text = match.lastgroup, match[0]
        if kind == "nested":
            kind = "open"
        elif kind == "run":
            if text == "*/" and not running:
                kind, text = "sign", "*"  # `2*/**/3`
            running = text != "*/" and kind == "run"
        found.append(Token(cast("Kind", kind), at, text))
        at += len(text)
    return found


def significant(found: Iterable[Token]) -> list[Token]:
    """The tokens without white space and comments."""
    return [one for one in found if one.kind not in {"space", "comment", "run"}]


def body(said: Sequence[Token]) -> Sequence[Token]:
    """The statement that `SET STATEMENT ... FOR` of MariaDB runs, and all of any other statement;
    empty where nothing is run. `said` are `significant`."""
    if [one.word for one in said[:2]] != ["SET", "STATEMENT"]:
        return said
    for at, (before, one) in enumerate(pairwise(said), 2):
        if one.word == "FOR" and before.text != ".":
            return said[at:]
    return ()


def plain_comments(statement: str, sql_mode: str = "") -> str:
    """A statement of MySQL, in which the comments that MariaDB alone would run are plain ones."""
    if "/*M!" not in statement:
        return statement
    return "".join(
        f"/*M {one.text[4:]}" if one.kind == "comment" and one.text.startswith("/*M!") else one.text
        for one in tokens(statement, sql_mode, runs="mysql")
    )


def spaced(statement: str, sql_mode: str = "") -> str:
    """A statement that was written in a character set of single bytes, in which U+00A0 is white
    space between words and a character in quotes, as U+0020 is everywhere."""
    if "\u00a0" not in statement:
        return statement
    return "".join(
        one.text.replace("\u00a0", " ") if one.kind == "word" else one.text
        for one in tokens(statement, sql_mode)
    )
