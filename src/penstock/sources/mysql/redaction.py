"""Statements without their values, and what their comments say. Pure.

How a server takes a statement apart hangs on its session's sql_mode, which a binlog does not
always say: a backslash in quotes may escape what follows or be a character, `"` may begin a text or
a name, and what is in `/*! */` may be run or be a comment. Where a statement has such a place it is
taken apart in each of these ways: what any of them takes for a value is left out, and only what all
of them take for a comment is one. A name may be left out with the values; a value is never left in.
Source: the documentation of MySQL and MariaDB, "Literal Values", "Comments" and "SQL Modes".
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import product
from typing import Final

from msgspec import Struct

_HIDDEN: Final = "?"
_KEPT: Final = "name"
_UNREADABLE: Final = "\N{REPLACEMENT CHARACTER}"
"""In place of bytes that are not of the statement's character set."""


class _Way(Struct, frozen=True):
    """A way to take statements apart."""

    escapes: bool = True
    """Whether a backslash in '...' takes the next character with it."""
    escapes_double: bool = True
    """Whether it does in "..."; not where that is a name (ANSI_QUOTES)."""
    runs: bool = True
    """Whether what is in an executable comment is a part of the statement."""


@lru_cache(maxsize=8)
def _pattern(way: _Way) -> re.Pattern[str]:
    """What is a value (`hide`), a comment, or is to be read over (`keep`), by its group."""
    single = r"'[^'\\]*(?:(?:''|\\.)[^'\\]*)*'" if way.escapes else r"'[^']*(?:''[^']*)*'"
    double = r'"[^"\\]*(?:(?:""|\\.)[^"\\]*)*"' if way.escapes_double else r'"[^"]*(?:""[^"]*)*"'
    if way.runs:
        executable = r"|(?P<marker>/\*M?!\d*|\*/)"
    else:
        # One in another is where servers differ: nothing behind its begin is trusted.
        executable = r"|(?P<nested>/\*M?!(?:(?!\*/).)*?/\*.*)|(?P<skipped>/\*M?!.*?\*/)"
    return re.compile(
        rf"""
          (?P<keep>`[^`]*(?:``[^`]*)*`|\b(?:IS|NOT)\s+NULL\b)
        | (?P<hide>{single}|{double})
        {executable}
        | (?P<comment>/\*(?!M?!).*?\*/|--(?=[\s\x00-\x1f]|$)[^\n]*|\#[^\n]*)
        | (?P<number>(?<![\w$@])\d[\w$]*(?:\.[\w$]*)?(?:(?<=[eE])[-+]\d+)?)
        | (?P<word>\b(?:TRUE|FALSE|NULL)\b)
        # What begins and does not end is hidden whole; and what JavaScript is written in.
        | (?P<rest>['"`].*|/\*.*|\\.|(?<![\w$])\$\$.*)
        """,
        re.VERBOSE | re.DOTALL | re.IGNORECASE,
    )


_HIDES: Final = frozenset({"hide", "number", "word", "rest", "nested"})
_SPACES: Final = frozenset({"comment", "marker", "skipped"})


def redacted(statement: str) -> str:
    """`statement` with `?` for each of its values, and without its comments.

    Values are texts, numbers, TRUE, FALSE and NULL, but for IS NULL and NOT NULL. What cannot be
    taken apart surely, as a text that does not end, is left out to the end.
    """
    unreadable = statement.find(_UNREADABLE)
    if unreadable >= 0:
        # In an unknown character set, a backslash or a quote may be the half of a character.
        return redacted(statement[:unreadable]) + _HIDDEN
    return "".join(_shown(statement, _spans(statement)))


def _ways(statement: str) -> list[_Way]:
    """All ways that matter for this statement."""
    both, one = (True, False), (True,)
    escapes = both if "\\" in statement else one
    runs = both if "/*!" in statement or "/*M!" in statement else one
    return [_Way(*way) for way in product(escapes, escapes, runs)]


def _spans(statement: str) -> Iterator[tuple[int, int, str]]:
    """What is left out, in order: from, to, and what stands for it."""
    ways = [list(_taken_apart(statement, way)) for way in _ways(statement)]
    stop = 0
    together: set[tuple[int, int, str]] = set()
    for span in sorted(span for way in ways for span in way):
        if span[0] >= stop:
            yield from _left_out(together)
            together.clear()
        together.add(span)
        stop = max(stop, span[1])
    yield from _left_out(together)


def _left_out(together: set[tuple[int, int, str]]) -> Iterator[tuple[int, int, str]]:
    """What overlaps, as one: a comment to one way may be a value to another, or half a name.

    A name that all ways agree about stays.
    """
    signs = {sign for _, _, sign in together}
    if together and (len(together) > 1 or signs != {_KEPT}):
        start, stop = min(span[0] for span in together), max(span[1] for span in together)
        yield start, stop, " " if signs == {" "} else _HIDDEN


def _taken_apart(statement: str, way: _Way) -> Iterator[tuple[int, int, str]]:
    """Where each part that is not read as it stands is: from, to, and what stands for it."""
    for match in _pattern(way).finditer(statement):
        kind = match.lastgroup
        sign = _HIDDEN if kind in _HIDES else " " if kind in _SPACES else _KEPT
        yield match.start(), match.end(), sign


def _shown(statement: str, spans: Iterator[tuple[int, int, str]]) -> Iterator[str]:
    at = 0
    for start, stop, sign in spans:
        yield statement[at:start]
        yield sign
        at = stop
    yield statement[at:]


def comments(statement: str) -> list[str]:
    """The comments of a statement, in order, with the signs that they are written in.

    What is in a text is none, whatever it looks like: who writes a value names nobody.
    """
    found: list[set[tuple[int, int]]] = [
        {
            match.span()
            for match in _pattern(way).finditer(statement)
            if match.lastgroup == "comment"
        }
        for way in _ways(statement)
    ]
    spans = found[0].intersection(*found[1:])
    return [statement[start:stop] for start, stop in sorted(spans)]
