"""Where in a document a column's value is, and which documents a table has. Pure."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from penstock.zero.types import UnfitError, came, integer_of

Fields = Mapping[str, Raw]
"""A document's fields, none of them opened."""

fields_of: Final[Callable[[bytes], dict[str, Raw]]] = msgspec.json.Decoder(dict[str, Raw]).decode
"""The fields of a document's bytes."""
_any: Final = msgspec.json.decode


def value_at(fields: Fields, path: str) -> bytes | None:
    """The value that a dotted path leads to; None where there is none, or null.

    A field whose own name is the path comes first, as in a source that is told flattened. Raises
    UnfitError where the path leads into something that is no document.
    """
    raw = fields.get(path)
    if raw is not None:
        value = bytes(raw)
        return None if value == b"null" else value
    step, dot, rest = path.partition(".")
    inner = fields.get(step) if dot else None
    if inner is None:
        return None
    value = bytes(inner)
    if value == b"null":
        return None
    if value[:1] != b"{" or value.startswith(b'{"$'):
        raise UnfitError(f"{came(value)} in the place of a document")
    return value_at(fields_of(value), rest)


class Condition(Struct, frozen=True):
    """That a field is one of some values; or, without any, that it is there and not null or not."""

    path: str
    among: tuple[Raw, ...] = ()
    """As Extended JSON."""
    exists: bool = True


Test = Callable[[Fields], bool]


def test_of(conditions: tuple[Condition, ...]) -> Test | None:
    """Whether a document meets all conditions; None where there is none."""
    tests = [_test(one) for one in conditions]
    if len(tests) < 2:
        return tests[0] if tests else None
    return lambda fields: all(test(fields) for test in tests)


def _test(condition: Condition) -> Test:
    path = condition.path
    if not condition.among:
        return lambda fields: (_there(fields, path) is not None) == condition.exists
    written = frozenset(bytes(one) for one in condition.among)
    known = frozenset(_known(one) for one in written)

    def test(fields: Fields) -> bool:
        value = _there(fields, path)
        # Most are text, which is written in one way only.
        return value is not None and (value in written or _known(value) in known)

    return test


def _there(fields: Fields, path: str) -> bytes | None:
    try:
        return value_at(fields, path)
    except UnfitError:
        return None


def _known(value: bytes) -> Any:
    """What equal values have in common: numbers are equal however wide they are."""
    if value[0] in b'"tf':
        return value
    number = integer_of(value)
    if number is not None:
        return number
    if value[0] in b"-0123456789":
        return float(value)
    return msgspec.json.encode(_any(value))


class _Cut(Struct):
    field: str


class _Description(Struct, rename="camel"):
    updated_fields: dict[str, Raw] | None = None
    removed_fields: list[str] | None = None
    truncated_arrays: list[_Cut] | None = None


_update: Final = msgspec.json.Decoder(_Description).decode


def touches(update: bytes, paths: tuple[str, ...]) -> bool:
    """Whether an update may have changed what one of the paths leads to."""
    said = _update(update)
    touched = [
        *(said.updated_fields or ()),
        *(said.removed_fields or ()),
        *(one.field for one in said.truncated_arrays or ()),
    ]
    return any(
        one == path or one.startswith(f"{path}.") or path.startswith(f"{one}.")
        for one in touched
        for path in paths
    )
