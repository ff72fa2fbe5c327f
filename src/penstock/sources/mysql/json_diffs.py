"""What a PARTIAL_UPDATE_ROWS event says of a JSON column: how the value before becomes the one
after. Pure.

Written with `binlog_row_value_options = PARTIAL_JSON`, where that is shorter. As all rows have the
values before (binlog_row_image is FULL), the whole value follows from them.
Source: the MySQL source documentation, Json_diff and "Partial_update_rows_event".
"""

import re
from enum import IntEnum
from typing import Any, Final, NamedTuple

from msgspec import DecodeError, json

from penstock import extjson
from penstock.sources.mysql.binary_json import json_value
from penstock.sources.mysql.binlog import MalformedEventError, lenenc

JSON_DIFFS: Final = 0x1F5
"""The type of a column that has changes in place of its value; above all of the server's own."""

_LEG: Final = re.compile(
    r"""\[(?P<index>\d+)\] | \.(?P<quoted>"(?:[^"\\]|\\.)*") | \.(?P<name>[^.\["\s]+)""",
    re.VERBOSE | re.DOTALL,
)


class _Operation(IntEnum):
    REPLACE = 0
    INSERT = 1
    REMOVE = 2


class JsonDiffs(NamedTuple):
    """What is in place of a JSON column's value."""

    data: bytes

    def applied(self, value: Any) -> Any:
        """What becomes of `value`, which stays as it is. Raises MalformedEventError."""
        at = 0
        while at < len(self.data):
            kind = self.data[at]
            if kind not in set(_Operation):
                raise MalformedEventError(f"a JSON change of the unknown kind {kind}")
            path, at = self._part(at + 1)
            new: Any = None
            if kind != _Operation.REMOVE:
                part, at = self._part(at)
                new = json_value(part)
            legs = _legs(path.decode())
            try:
                value = _changed(value, legs, 0, _Operation(kind), new)
            except (IndexError, KeyError, TypeError) as error:
                raise MalformedEventError(
                    "a JSON change of what is not in the value before"
                ) from error
        return value

    def _part(self, at: int) -> tuple[bytes, int]:
        size, at = lenenc(self.data, at)
        part = self.data[at : at + size]
        if len(part) != size:
            raise MalformedEventError("a JSON change that is too short")
        return part, at + size


def _legs(path: str) -> list[str | int]:
    """`$.a[1]."b c"` as what to go through."""
    found: list[str | int] = []
    at = 1
    while at < len(path):
        leg = _LEG.match(path, at)
        if leg is None or path[0] != "$":
            raise MalformedEventError("a JSON change of a place that cannot be read")
        if leg["index"] is not None:
            found.append(int(leg["index"]))
        elif leg["quoted"] is not None:
            try:
                found.append(json.decode(leg["quoted"].encode(), type=str))
            except DecodeError as error:
                raise MalformedEventError("a JSON change of a name that cannot be read") from error
        else:
            found.append(leg["name"])
        at = leg.end()
    return found


def _changed(value: Any, legs: list[str | int], depth: int, kind: _Operation, new: Any) -> Any:
    """A value that is changed below itself, in a copy of what the change goes through."""
    if depth == len(legs):
        if kind is not _Operation.REPLACE:
            raise KeyError("$")
        return new
    leg, last = legs[depth], depth == len(legs) - 1
    if isinstance(leg, int):
        if not isinstance(value, list):
            raise TypeError(leg)
        items: list[Any] = [*value]
        if last and kind is _Operation.INSERT:
            items.insert(leg, new)
        elif last and kind is _Operation.REMOVE:
            del items[leg]
        else:
            items[leg] = _changed(items[leg], legs, depth + 1, kind, new)
        return items
    if not isinstance(value, dict):
        raise TypeError(leg)
    members: dict[str, Any] = {**value}
    if last and kind is _Operation.INSERT:
        members[leg] = new
        # Where the server keeps it among the others.
        return _unlike(dict(sorted(members.items(), key=lambda one: _order(one[0]))))
    if last and kind is _Operation.REMOVE:
        del members[leg]
    else:
        members[leg] = _changed(members[leg], legs, depth + 1, kind, new)
    return _unlike(members)


def _unlike(members: dict[str, Any]) -> dict[str, Any]:
    """An object, if it is not to be taken for a wrapper; as of one that is logged whole."""
    extjson.refuse_mimic(members)
    return members


def _order(name: str) -> tuple[int, bytes]:
    data = name.encode()
    return len(data), data
