"""MySQL's JSON as a SELECT gives it, made into what `binary_json` makes of a binlog. Pure.

A SELECT gives text, which does not say all: a DECIMAL of SQL reads like a double or an integer,
bytes like a text that begins with `base64:`. So the server is asked beside it of what kind those
values are, by JSON_TYPE, along two paths: `$**.*` finds all members of objects, `$**[*]` all cells
of arrays, each the inner ones of a value behind all of its own. Most documents have none.
Source: the MySQL manual, "JSON Path Syntax", "JSON Table Functions", "JSON_TYPE"; the order of what
a path finds is not in it: a test compares thousands of documents with the binlog's.
"""

import base64
import json
from collections import deque
from collections.abc import Mapping
from typing import Any, Final, cast

from penstock import extjson
from penstock.sources.mysql.binlog import MalformedEventError

_BYTES: Final = frozenset({"BLOB", "BIT", "OPAQUE"})
_DECIMAL: Final = "DECIMAL"
_TOLD: Final = ", ".join(f"'{kind}'" for kind in sorted({*_BYTES, _DECIMAL}))
_PREFIX: Final = "base64:type"
Kinds = Mapping[str, str]
"""What JSON_TYPE says of a value, by its number along a path; only of those that text hides."""


class _Number(str):
    """A number, as it is written."""

    __slots__ = ()


def kinds_of(name: str) -> str:
    """What to ask for the JSON column of this name, quoted: the second argument of `json_of_text`.

    NULL where the value is NULL.
    """
    return (
        f"IF({name} IS NULL, NULL, "
        f"JSON_ARRAY(JSON_TYPE({name}), {_along(name, '$**.*')}, {_along(name, '$**[*]')}))"
    )


def _along(name: str, path: str) -> str:
    return (
        f"(SELECT JSON_OBJECTAGG(o, JSON_TYPE(v)) FROM JSON_TABLE({name}, '{path}' "  # noqa: S608 - quoted
        f"COLUMNS (o FOR ORDINALITY, v JSON PATH '$')) AS x WHERE JSON_TYPE(v) IN ({_TOLD}))"
    )


def json_of_text(text: str, kinds: str) -> Any:
    """The document of a text. Raises ValueError for an object that would be read as a wrapper."""
    root, members, cells = json.loads(kinds)
    value = json.loads(text, parse_int=_Number, parse_float=_Number)
    return _Typed(members or {}, cells or {}).typed(value, root)


class _Typed:
    """Walks one document as the server's paths do."""

    def __init__(self, members: Kinds, cells: Kinds) -> None:
        self._members, self._cells = members, cells

    def typed(self, value: Any, root: str) -> Any:
        """The whole document, whose root is of this kind."""
        if not isinstance(value, dict | list):
            return _leaf(value, root)
        member = cell = 0
        # Depth first: the containers within one come behind all that it has itself.
        left: deque[Any] = deque([value])
        while left:
            container = left.popleft()
            inner: list[Any] = []
            if isinstance(container, dict):
                items = cast("dict[str, Any]", container)
                extjson.refuse_mimic(items)
                for name, one in items.items():
                    member += 1
                    items[name] = self._one(one, self._members.get(str(member), ""), inner)
            else:
                cells = cast("list[Any]", container)
                for at, one in enumerate(cells):
                    cell += 1
                    cells[at] = self._one(one, self._cells.get(str(cell), ""), inner)
            left.extendleft(reversed(inner))
        return cast("Any", value)

    def _one(self, value: Any, kind: str, inner: list[Any]) -> Any:
        if isinstance(value, dict | list):
            inner.append(value)
            return cast("Any", value)
        return _leaf(value, kind)


def _leaf(value: Any, kind: str) -> Any:
    if kind in _BYTES:
        if not isinstance(value, str) or not value.startswith(_PREFIX):
            raise MalformedEventError(f"JSON with a {kind} that is none")
        return extjson.binary(base64.b64decode(value.rpartition(":")[2]))
    if isinstance(value, _Number):
        if kind == _DECIMAL:
            return {"$numberDecimal": str(value)}
        return int(value) if value.lstrip("-").isdecimal() else extjson.exact(float(value))
    if kind == _DECIMAL:
        raise MalformedEventError("JSON with a DECIMAL that is none")
    return value
