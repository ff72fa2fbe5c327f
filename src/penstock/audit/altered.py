"""Which columns an ALTER TABLE of MySQL or MariaDB takes away from rows that are there. Pure."""

import re
from collections.abc import Iterator
from typing import Final

_TOKEN: Final = re.compile(
    r"""
    (?P<noise> '(?:[^'\\]|''|\\.)*' | /\*.*?\*/ | --\s[^\n]* | \#[^\n]* )
    | `(?P<quoted>(?:[^`]|``)+)`
    | "(?P<doubly>(?:[^"\\]|""|\\.)*)"
    | (?P<word>[A-Za-z0-9_$\u0080-\uffff]+)
    """,
    re.VERBOSE | re.DOTALL,
)
_BEFORE_A_NAME: Final = frozenset({"column", "if", "exists"})
_NO_COLUMNS: Final = frozenset(
    {"index", "key", "primary", "foreign", "constraint", "check", "partition"}
    | {"default", "system", "period"}
)
"""What an ALTER TABLE may drop besides."""


def taken_away(statement: str) -> frozenset[str]:
    """The names that columns lose by a statement, in small letters: of those that it drops, and of
    those that it calls otherwise. A row that was written before has values under them still."""
    words = list(_words(statement))
    if [name for name, _ in words[:1]] != ["alter"]:
        return frozenset()
    found: set[str] = set()
    for at, (verb, is_bare) in enumerate(words):
        if not is_bare or verb not in {"drop", "change", "rename"}:
            continue
        rest = words[at + 1 :]
        if verb == "rename" and rest[:1] != [("column", True)]:
            continue
        while rest and rest[0][1] and rest[0][0] in _BEFORE_A_NAME:
            rest = rest[1:]
        if not rest or (rest[0][1] and rest[0][0] in _NO_COLUMNS):
            continue
        if verb != "change" or [rest[0][0]] != [name for name, _ in rest[1:2]]:
            found.add(rest[0][0])
    return frozenset(found)


def _words(statement: str) -> Iterator[tuple[str, bool]]:
    """Words and names in their order, in small letters, each with whether it is without quotes.

    What stands in double quotes is a name or a text, by the session; where a name has to be, it is
    one.
    """
    for token in _TOKEN.finditer(statement):
        word = token["word"]
        name = word or (token["quoted"] or "").replace("``", "`")
        name = name or (token["doubly"] or "").replace('""', '"')
        if name:
            yield name.lower(), word is not None
