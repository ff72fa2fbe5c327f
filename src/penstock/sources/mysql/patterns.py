"""Patterns of names: with wildcards, or as regular expressions. Pure.

A pattern is of a whole name, `database.table` or `database.table.column`. In one as it stands, `*`
is any text and `?` any character. One between slashes, `/shop\\.(orders|items)/`, is a regular
expression, and must match the whole name too. Upper and lower case differ, unless it says `(?i)`.

Both are matched by RE2, in time that is proportional to the name whatever the pattern is, so that
none can hold capture up; it refuses what it cannot do so: references back, and looking around.
Source: https://github.com/google/re2/wiki/Syntax
"""

import re
from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

_PARTS: Final = {2: "database.table", 3: "database.table.column"}


def checked(pattern: str, *, parts: int) -> str:
    """`pattern`, if it is one of names of so many parts. Raises ValueError, which says why not."""
    if _is_expression(pattern):
        try:
            # By itself: else `a)|(b` would close what is put around it.
            pc.match_substring_regex(pa.array([""]), pattern=pattern[1:-1])
            matching(pattern, [""])
        except pa.ArrowInvalid as error:
            raise ValueError(f"{pattern!r} is not a regular expression: {_why(error)}") from None
        return pattern
    split = pattern.split(".", parts - 1)
    if len(split) < parts or not all(split):
        raise ValueError(
            f"{pattern!r} is not `{_PARTS[parts]}`, with * and ? as wildcards; a regular "
            f"expression stands between slashes, as in `/shop\\..*/`"
        )
    return pattern


def matching(pattern: str, names: Sequence[str]) -> list[bool]:
    """Whether `pattern` is of each of the names."""
    # What is no text, as a name in a session's own character set, is matched by nothing.
    texts = [name.encode(errors="replace").decode() for name in names]
    found = pc.match_substring_regex(pa.array(texts, pa.string()), pattern=_compiled(pattern))
    return [bool(one) for one in found.to_pylist()]


def matches(patterns: Sequence[str], name: str) -> bool:
    """Whether any of the patterns is of the name."""
    return any(matching(pattern, [name])[0] for pattern in patterns)


def of_databases(pattern: str) -> str | None:
    """What a pattern of tables says of their databases, a pattern itself; None of an expression."""
    return None if _is_expression(pattern) else pattern.partition(".")[0]


def _is_expression(pattern: str) -> bool:
    return len(pattern) > 2 and pattern[0] == pattern[-1] == "/"


def _compiled(pattern: str) -> str:
    if _is_expression(pattern):
        return rf"\A(?:{pattern[1:-1]})\z"
    wild = {"*": ".*", "?": "."}
    return rf"(?s)\A{''.join(wild.get(one) or re.escape(one) for one in pattern)}\z"


def _why(error: Exception) -> str:
    """RE2's own words, without the expression that it made of the pattern."""
    return str(error).partition("Invalid regular expression: ")[2].partition(r"\A")[0].strip(" :")
