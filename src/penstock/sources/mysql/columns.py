"""What is captured of a row's columns: which, and which not as they are. Pure.

The same for every image of a row, in the stream and in a copy: `TableRules` makes of a row's
document what the log may have. Where several rules are of a column, the one that tells least wins:
left out, then masked, hashed, truncated. NULL stays NULL.

A row is known by its key, so no column of a key may be left out, masked or truncated: different
rows would become one. It may be hashed: equal values have equal hashes, and others do not. A row of
a table without a key is known by what is captured of it.

A column that the server computes of one that is not told as it is would tell it, so it is left out,
unless a rule of its own says what is told of it. Which ones these are is what the server says now.
"""

import base64
import hmac
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any, Final

import msgspec
from msgspec import Struct

from penstock.sources.mysql.patterns import matching

Document = dict[str, Any]
_encoder: Final = msgspec.json.Encoder()


class ColumnScope(Struct, frozen=True, omit_defaults=True):
    """The rules of columns as a position keeps them: what the configuration said, but no secret."""

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    mask: tuple[tuple[str, str], ...] = ()
    hash: tuple[str, ...] = ()
    truncate: tuple[tuple[str, int], ...] = ()
    salt: str = ""
    """Differs where the salt does; tells nothing of it."""

    @property
    def patterns(self) -> list[tuple[str, str]]:
        """All patterns that it has, each with its setting."""
        by_setting: dict[str, Iterable[str]] = {
            "columns.include": self.include,
            "columns.exclude": self.exclude,
            "columns.mask": (pattern for pattern, _ in self.mask),
            "columns.hash": self.hash,
            "columns.truncate": (pattern for pattern, _ in self.truncate),
        }
        return [(setting, one) for setting, patterns in by_setting.items() for one in patterns]


def check_of_salt(salt: str) -> str:
    """A text by which another salt is noticed: 32 bits of what only who has the salt can make."""
    return hmac.digest(salt.encode(), b"penstock: which salt", sha256).hex()[:8]


class ForbiddenRuleError(ValueError):
    """A rule is of a column that it cannot be of; the message names both."""


Change = Callable[[Any], Any]
"""What becomes of a value that is not NULL."""


class TableRules:
    """What becomes of the rows of one table."""

    def __init__(self, left_out: frozenset[str], changes: Mapping[str, Change]) -> None:
        self.left_out = left_out
        """Columns that are not captured."""
        self._changes = changes

    def changes(self, columns: Collection[str]) -> bool:
        """Whether any of these columns is told otherwise than it is."""
        return not self._changes.keys().isdisjoint(columns)

    def apply(self, row: Document) -> Document:
        """A row's document as the log may have it, in the same order. `row` may lack columns.

        Raises ValueError for a value that cannot be truncated.
        """
        told = {name: value for name, value in row.items() if name not in self.left_out}
        for name, change in self._changes.items():
            value = told.get(name)
            if value is not None:
                told[name] = change(value)
        return told

    def masked(self, before: Document, after: Document) -> tuple[str, ...]:
        """The columns that differ in two images of a row, as they were read, and that `apply` makes
        equal, in the row's order. One that an image lacks is none of them."""
        return tuple(
            name
            for name, value in after.items()
            if (change := self._changes.get(name)) is not None
            and value is not None
            and (was := before.get(name)) is not None
            and _encoder.encode(was) != _encoder.encode(value)
            and change(was) == change(value)
        )


class ColumnRules:
    """The rules of one source."""

    def __init__(self, scope: ColumnScope, *, salt: str = "") -> None:
        """`salt` is that of `scope.hash`, and is kept here alone."""
        self._scope = scope
        self._salt = salt.encode()
        self._rules: list[tuple[str, str, Change | None]] = [
            *(("exclude", pattern, None) for pattern in scope.exclude),
            *(("mask", pattern, _constant(text)) for pattern, text in scope.mask),
            *(("hash", pattern, self._hashed) for pattern in scope.hash),
            *(("truncate", pattern, _cut(size)) for pattern, size in scope.truncate),
        ]

    def of(
        self,
        table: tuple[str, str],
        columns: Sequence[str],
        key: Collection[str],
        computed: Mapping[str, str] | None = None,
    ) -> TableRules | None:
        """What becomes of the rows of a table with these columns and this key; None: nothing.

        `computed` has the expressions of columns that the server computes, virtual ones too.
        Raises ForbiddenRuleError for a rule that would make different keys one.
        """
        if not self._scope.patterns:
            return None
        names = [".".join((*table, column)) for column in columns]
        left_out: set[str] = set()
        changes: dict[str, Change] = {}
        if self._scope.include:
            kept = [False] * len(names)
            for pattern in self._scope.include:
                kept = [a or b for a, b in zip(kept, matching(pattern, names), strict=True)]
            left_out = {column for column, one in zip(columns, kept, strict=True) if not one}
            _refuse(table, left_out.intersection(key), "is not in columns.include")
        for verb, pattern, change in self._rules:
            found = [
                column
                for column, one in zip(columns, matching(pattern, names), strict=True)
                if one and column not in left_out and column not in changes
            ]
            if change is None:
                _refuse(table, set(found).intersection(key), "is left out by columns.exclude")
                left_out.update(found)
            else:
                if verb != "hash":
                    _refuse(table, set(found).intersection(key), f"is in columns.{verb}")
                changes |= dict.fromkeys(found, change)
        derived = computed_of(computed or {}, left_out | changes.keys())
        for column in columns:
            made_of = derived.get(column.casefold())
            if made_of is not None:
                how = f"is computed of {made_of!r}, which is not told"
                _refuse(table, {column}.intersection(key), how)
                left_out.add(column)
        return TableRules(frozenset(left_out), changes) if left_out or changes else None

    def hashed(self, table: tuple[str, str], columns: Sequence[str]) -> set[str]:
        """The columns of a table that are in `hash`, whatever else they are in."""
        names = [".".join((*table, column)) for column in columns]
        return {
            column
            for pattern in self._scope.hash
            for column, one in zip(columns, matching(pattern, names), strict=True)
            if one
        }

    def said(self, table: tuple[str, str], columns: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """What is done to each of a table's columns, but for those that are told as they are."""
        scope = self._scope
        names = [".".join((*table, column)) for column in columns]
        found: dict[str, tuple[str, ...]] = {}
        if scope.include:
            kept = [any(matching(one, [name])[0] for one in scope.include) for name in names]
            found = {c: ("exclude",) for c, one in zip(columns, kept, strict=True) if not one}
        for pattern, does in (
            *((one, ("exclude",)) for one in scope.exclude),
            *((one, ("mask", text)) for one, text in scope.mask),
            *((one, ("hash", scope.salt)) for one in scope.hash),
            *((one, ("truncate", str(size))) for one, size in scope.truncate),
        ):
            for column, one in zip(columns, matching(pattern, names), strict=True):
                if one:
                    found.setdefault(column, does)
        return found

    def _hashed(self, value: Any) -> str:
        data = value.encode() if isinstance(value, str) else _encoder.encode(value)
        return hmac.digest(self._salt, data, sha256).hex()


def computed_of(computed: Mapping[str, str], hidden: Collection[str]) -> dict[str, str]:
    """Of the columns that are computed, by these expressions: those of which a hidden one can be
    told, in lower case, each with one that it is computed of.

    Servers write names in backticks. Where an expression has none, any word may be one.
    """
    left = {column.casefold(): _names_in(text) for column, text in computed.items()}
    of = {name.casefold(): name for name in hidden}
    left = {column: names for column, names in left.items() if column not in of}
    found: dict[str, str] = {}
    while also := {
        column: of[name]
        for column, names in left.items()
        if column not in found
        for name in sorted(names & of.keys())
    }:
        found |= also
        of |= {column: column for column in also}
    return found


def _names_in(expression: str) -> set[str]:
    """The names of columns that an expression may have, in lower case."""
    quoted = re.findall(r"`((?:[^`]|``)+)`", expression)
    return {name.replace("``", "`").casefold() for name in quoted} or {
        word.casefold() for word in re.findall(r"[\w$]+", expression)
    }


def _constant(text: str) -> Change:
    return lambda _: text


def _cut(size: int) -> Change:
    def cut(value: Any) -> Any:
        if isinstance(value, str):
            return value[:size]
        match value:
            case {"$binary": {"base64": str(text), "subType": kind}}:
                data = base64.b64decode(text)[:size]
                return {"$binary": {"base64": base64.b64encode(data).decode(), "subType": kind}}
            case _:
                raise ValueError("a column in columns.truncate that is neither text nor bytes")

    return cut


def _refuse(table: tuple[str, str], columns: Collection[str], how: str) -> None:
    for column in columns:
        raise ForbiddenRuleError(
            f"the column {column!r} of {'.'.join(table)} is of its key, and {how}: different rows "
            f"would become one. Leave it as it is, or hash it (columns.hash)"
        )
