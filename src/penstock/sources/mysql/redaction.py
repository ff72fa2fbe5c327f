"""Statements without their values, and what their comments say. Pure.

How a server takes a statement apart hangs on its session's sql_mode, which a binlog does not
always say: a backslash in quotes may escape what follows or be a character, `"` may begin a text or
a name, and what is in `/*! */` may be run or be a comment. Where a statement has such a place it is
taken apart in each of these ways: what any of them takes for a value is left out, and only what all
of them take for a comment is one. A name may be left out with the values; a value is never left in.
Source: the documentation of MySQL and MariaDB, "Literal Values", "Comments" and "SQL Modes".
"""

from collections.abc import Iterator
from itertools import product
from typing import Final

from penstock.mysql_sql.tokens import Runs, Token, tokens

_HIDDEN: Final = "?"
_KEPT: Final = "name"
_UNREADABLE: Final = "\N{REPLACEMENT CHARACTER}"
"""In place of bytes that are not of the statement's character set."""
_SPACES: Final = frozenset({"comment", "run"})


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


def _ways(statement: str) -> list[list[Token]]:
    """The statement's tokens in all ways that matter for it."""
    modes = ["", "ANSI_QUOTES", "NO_BACKSLASH_ESCAPES"] if "\\" in statement else [""]
    if "[" in statement:
        modes += [f"{one},MSSQL" for one in modes]
    runs: tuple[Runs, ...] = ("all",)
    if "/*!" in statement or "/*M!" in statement:
        runs = ("all", "none")
    return [tokens(statement, mode, runs=one) for mode, one in product(modes, runs)]


def _spans(statement: str) -> Iterator[tuple[int, int, str]]:
    """What is left out, in order: from, to, and what stands for it."""
    ways = [list(_taken_apart(way)) for way in _ways(statement)]
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


def _taken_apart(way: list[Token]) -> Iterator[tuple[int, int, str]]:
    """Where each part that is not read as it stands is: from, to, and what stands for it."""
    before = ""
    for token in way:
        kind, word = token.kind, token.word
        if kind in _SPACES:
            yield token.start, token.end, " "
        elif kind == "name" and token.text[0] == "`":
            yield token.start, token.end, _KEPT
        elif _hides_rest(token):
            yield token.start, way[-1].end, _HIDDEN
            return
        elif kind in {"name", "text", "number"} or _is_value(token, before):
            yield token.start, token.end, _HIDDEN
        if kind != "space":
            before = word


def _is_value(token: Token, before: str) -> bool:
    """Whether a word is one, or may be to some server; `before` is the word before it."""
    if token.word == "NULL":
        return before not in {"IS", "NOT"}
    return token.word in {"TRUE", "FALSE"} or token.text[:1].isdigit()


def _hides_rest(token: Token) -> bool:
    """Whether all that follows is hidden: where a quote does not end, and at a `$` that may begin
    what JavaScript is written in."""
    return token.kind == "open" or (token.text[0] == "$" and "$" in token.text[1:])


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
    found = [
        {(token.start, token.end) for token in way if token.kind == "comment"}
        for way in _ways(statement)
    ]
    spans = found[0].intersection(*found[1:])
    return [statement[start:stop] for start, stop in sorted(spans)]
