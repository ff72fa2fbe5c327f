"""Columns and their types, as the rows of a collection show them. Pure.

| values of a field                      | type                                 |
|----------------------------------------|--------------------------------------|
| of one sort                            | that sort's                          |
| integers, some beyond 2^53-1           | `bigint`                             |
| integers and doubles                   | `double`                             |
| integers and decimals                  | `decimal`                            |
| documents, arrays, NaN, other mixtures | `json`; of a key `exact`             |
| null and absent                        | nothing else: there is no column yet |
"""

import re
from typing import Final

from msgspec import Raw, Struct, field

from penstock.wire.shown import HIDDEN_KEY, ROW_KEY
from penstock.zero.config import RESERVED_PREFIX, is_name
from penstock.zero.types import UnfitError, converter, integer_of

FIELDS_MAX: Final = 1000
"""Of one collection. SQLite has tables of at most 2000 columns."""
_TEXT, _BRACE, _BRACKET = 34, 123, 91


class Seen(Struct):
    """What a field was in the rows so far."""

    kinds: dict[str, int] = field(default_factory=dict[str, int])
    """How many values of each type there were, and of `null`."""

    def add(self, value: bytes) -> None:
        """Count a value."""
        kind = kind_of(value)
        self.kinds[kind] = self.kinds.get(kind, 0) + 1

    @property
    def types(self) -> frozenset[str]:
        """The types of its values, without null."""
        return frozenset(self.kinds) - {"null"}


def kind_of(value: bytes) -> str:
    """The narrowest type that takes a value exactly; `null` for that."""
    first = value[0]
    if first == _TEXT:
        return "text"
    if first == _BRACKET:
        return "json"
    if first in b"tf":
        return "bool"
    if first == 110:
        return "null"
    if first == _BRACE:
        if value[33:] == b'Z"}' and value.startswith(b'{"$date":"'):
            return "timestamp"
        for start, name in _SURE:
            if value.startswith(start):
                return name
        found: tuple[str, ...] = ("timestamp", "binary")
        if value.endswith(b'"subType":"04"}}'):
            found = ("uuid", "binary")
    else:
        found = ("int", "bigint") if integer_of(value) is not None else ("double",)
    return next((name for name in found if fits(value, name)), "json")


_SURE: Final = (
    (b'{"$oid":', "objectid"),
    (b'{"$numberLong":', "int"),
    (b'{"$numberDecimal":', "decimal"),
)


def fits(value: bytes, name: str) -> bool:
    """Whether a type takes a value."""
    try:
        converter(name)(value)
    except UnfitError:
        return False
    return True


def type_of(kinds: frozenset[str], *, key: bool = False) -> str:
    """The narrowest type that takes values of all these."""
    if len(kinds) == 1:
        (only,) = kinds
        return "exact" if key and only in {"json", "bool"} else only
    if kinds == {"int", "bigint"}:
        return "bigint"
    if kinds == {"int", "double"}:
        return "double"
    if kinds <= {"int", "bigint", "decimal"}:
        return "decimal"
    return "exact" if key else "json"


class Sample:
    """What the rows of one table were so far; memory goes by fields, of which it keeps so many."""

    def __init__(self) -> None:
        self.rows = 0
        self.key: dict[str, Seen] = {}
        self.fields: dict[str, Seen] = {}
        self.key_differs = False
        """Whether two rows had keys of different fields."""
        self.overflows = False
        """Whether there are more fields than FIELDS_MAX, and the rest were not counted."""

    def add(self, key: dict[str, Raw], fields: dict[str, Raw]) -> None:
        """Count a row."""
        if not self.rows:
            self.key = {name: Seen() for name in key}
        elif key.keys() != self.key.keys():
            self.key_differs = True
        self.rows += 1
        for name, seen in self.key.items():
            if name in key:
                seen.add(bytes(key[name]))
        for name, raw in fields.items():
            known = self.fields.get(name)
            if known is None:
                if len(self.fields) >= FIELDS_MAX:
                    self.overflows = True
                    continue
                known = self.fields[name] = Seen()
            known.add(bytes(raw))

    @property
    def is_keyless(self) -> bool:
        """Whether its rows are of a table without a key."""
        return list(self.key) == [ROW_KEY]

    @property
    def key_is_hidden(self) -> bool:
        """Whether its reader may not see the key of its rows."""
        return HIDDEN_KEY in self.key


def column_name(field_name: str, taken: set[str]) -> str:
    """The name of the column of a field, and into `taken`, which has names in lower case.

    What Zero takes in no name is `_`; a number tells it from a column that is there.
    """
    name = re.sub(r"[^A-Za-z0-9_-]", "_", field_name)
    if not is_name(name):
        name = f"f_{name}".replace(f"f_{RESERVED_PREFIX}", "f_0_")
    number, free = 1, name
    while free.casefold() in taken:
        number += 1
        free = f"{name}_{number}"
    taken.add(free.casefold())
    return free


def mixture(seen: Seen) -> str:
    """What is to be said of a field's values beside their type; empty for nothing."""
    kinds = seen.types
    if len(kinds) < 2 or kinds == {"json"}:
        return ""
    counted = sorted(seen.kinds.items(), key=lambda one: -one[1])
    return ", ".join(f"{kind} {many}" for kind, many in counted)
