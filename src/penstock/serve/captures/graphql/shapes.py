"""What the fields of a collection's documents are announced as, and what of a document fits. Pure.

A shape is fixed while the service runs. A value that does not fit what was announced is never
changed and never ends the stream: its field is null, the field's own name is in `misfits`, and
the value as it is in `rest`, where also every field is that was not announced.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, cast

import msgspec
from msgspec import Struct

from penstock.serve.captures.graphql.names import distinct, said
from penstock.subscribe.scope import Scope, Verb
from penstock.wire import Stream
from penstock.wire.shown import is_hidden

INT_MAX: Final = (1 << 31) - 1
_LONG_MIN: Final = -(1 << 63)
_LONG_MAX: Final = (1 << 64) - 1
_EXACT_MAX: Final = 1 << 53
"""Whole numbers up to here are exact in a double."""
FIELDS_MAX: Final = 200
"""Fields of a shape; others are in `rest`."""
_INTEGER: Final = re.compile("-?[0-9]{1,20}")
STREAMS_MAX: Final = 1_000
"""Places that are kept of one collection."""
OWN: Final = ("rest", "misfits")
"""Fields of every document that are ours."""

TYPES: Final = ("Int", "Long", "Float", "Decimal", "String", "Boolean")
MORE_TYPES: Final = ("DateTime", "ObjectId", "Base64", "JSON")
SCALARS: Final = (*TYPES, *MORE_TYPES)


class Misfit(Exception):  # noqa: N818 - it is no error
    """A value is not of the announced type."""


class Field(Struct, frozen=True, kw_only=True):
    """A field of a document, and what it is announced as."""

    name: str
    """As documents have it."""
    spelling: str
    """As GraphQL has it."""
    type: str
    """One of SCALARS, or such a one in brackets: a list."""


class Shape(Struct, frozen=True, kw_only=True):
    """The announced fields of one collection's documents."""

    entity_type: str
    fields: tuple[Field, ...] = ()
    configured: bool = False
    streams: frozenset[Stream] = frozenset()
    """Where documents of it were seen: all places, or, of STREAMS_MAX, some."""

    def seen_by(self, scope: Scope) -> "Shape | None":
        """What of it somebody may know; None: not even that there is such a collection.

        Names of fields tell of documents: so what was inferred is for who may read all of them,
        and what was configured for who may read some. Of a configured one of which nothing was
        seen, only who may see everything knows.
        """
        if scope.is_everything:
            return self
        allowed = [stream for stream in self.streams if scope.allows(Verb.READ, stream)]
        whole = len(allowed) == len(self.streams) < STREAMS_MAX
        if not allowed or not (whole or self.configured):
            return None
        hidden = frozenset[str]().union(*(scope.hidden(stream) for stream in allowed))
        fields = tuple(one for one in self.fields if not is_hidden(one.name, hidden))
        return Shape(entity_type=self.entity_type, fields=fields, configured=self.configured)


class Fitted(Struct, frozen=True, kw_only=True):
    """A document, by its shape."""

    values: dict[str, Any]
    """By spelling; absent if the document has no such field, or its value does not fit."""
    rest: dict[str, msgspec.Raw]
    misfits: list[str]


def shape_of(
    entity_type: str,
    types: Mapping[str, str],
    *,
    configured: bool,
    streams: Iterable[Stream] = (),
) -> Shape:
    """The shape with these types by name; at most FIELDS_MAX, the first by name."""
    names = sorted(types)[:FIELDS_MAX]
    spelt = distinct(((name, said(name)) for name in names), taken=OWN)
    fields = tuple(Field(name=name, spelling=spelt[name], type=types[name]) for name in names)
    return Shape(
        entity_type=entity_type,
        fields=fields,
        configured=configured,
        streams=frozenset(streams),
    )


class Fitter:
    """Fits documents of one shape."""

    def __init__(self, shape: Shape) -> None:
        self._fields = {one.name: (one.spelling, _taker(one.type)) for one in shape.fields}

    def fit(self, document: bytes | msgspec.Raw) -> Fitted:
        """The document's values as they were announced, and the others as they are."""
        given = msgspec.json.decode(document, type=dict[str, msgspec.Raw])
        values: dict[str, Any] = {}
        rest: dict[str, msgspec.Raw] = {}
        misfits: list[str] = []
        for name, raw in given.items():
            known = self._fields.get(name)
            if known is None:
                rest[name] = raw
                continue
            spelling, take = known
            try:
                values[spelling] = take(raw)
            except Misfit:
                rest[name] = raw
                misfits.append(name)
        return Fitted(values=values, rest=rest, misfits=misfits)


# --- what fits ------------------------------------------------------------------------------------


def _taker(announced: str) -> Callable[[msgspec.Raw], Any]:
    if announced == "JSON":
        return lambda raw: raw
    take = _TAKERS[announced.strip("[]")]
    if not announced.startswith("["):
        return lambda raw: _or_null(msgspec.json.decode(raw), take)
    return lambda raw: _listed(msgspec.json.decode(raw), take)


def _or_null(value: Any, take: Callable[[Any], Any]) -> Any:
    return None if value is None else take(value)


def _listed(value: Any, take: Callable[[Any], Any]) -> Any:
    if value is None:
        return None
    if not isinstance(value, list):
        raise Misfit
    return [_or_null(one, take) for one in cast("list[Any]", value)]  # type: ignore[redundant-cast]


def _wrapped(value: Any, wrapper: str) -> Any:
    """What Extended JSON has inside this wrapper; None if it is no such one."""
    if isinstance(value, dict) and len(cast("dict[str, Any]", value)) == 1:
        return cast("dict[str, Any]", value).get(wrapper)
    return None


def _whole(value: Any) -> int:
    text = _wrapped(value, "$numberLong")
    number: Any = int(text) if isinstance(text, str) and _INTEGER.fullmatch(text) else value
    if isinstance(number, bool) or not isinstance(number, int):
        raise Misfit
    return number


def _int(value: Any) -> int:
    number = _whole(value)
    if not -INT_MAX - 1 <= number <= INT_MAX:
        raise Misfit
    return number


def _long(value: Any) -> str:
    number = _whole(value)
    if not _LONG_MIN <= number <= _LONG_MAX:
        raise Misfit
    return str(number)


def _float(value: Any) -> float | int:
    if isinstance(value, float) and math.isfinite(value):
        return value
    number = _whole(value)
    if abs(number) > _EXACT_MAX:
        raise Misfit
    return number


def _decimal(value: Any) -> str:
    text = _wrapped(value, "$numberDecimal")
    return text if isinstance(text, str) else str(_whole(value))


def _of_kind(kind: type) -> Callable[[Any], Any]:
    def take(value: Any) -> Any:
        if type(value) is not kind:
            raise Misfit
        return value

    return take


def _text_in(wrapper: str) -> Callable[[Any], Any]:
    def take(value: Any) -> Any:
        text = _wrapped(value, wrapper)
        if not isinstance(text, str):
            raise Misfit
        return text

    return take


def _base64(value: Any) -> str:
    match _wrapped(value, "$binary"):
        case {"base64": str(text), "subType": "00"}:
            return text
        case _:
            raise Misfit


def _any(value: Any) -> Any:
    return value


_TAKERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "Int": _int,
    "Long": _long,
    "Float": _float,
    "Decimal": _decimal,
    "String": _of_kind(str),
    "Boolean": _of_kind(bool),
    "DateTime": _text_in("$date"),
    "ObjectId": _text_in("$oid"),
    "Base64": _base64,
    "JSON": _any,
}


# --- what is inferred -----------------------------------------------------------------------------


class Sample:
    """The fields of a collection's documents, as far as they were looked at."""

    def __init__(self) -> None:
        self._seen: dict[str, set[str]] = {}
        self._count: Counter[str] = Counter()
        self.streams: set[Stream] = set()

    def add(self, document: bytes | msgspec.Raw) -> None:
        """Look at a document."""
        for name, value in msgspec.json.decode(document, type=dict[str, Any]).items():
            if name not in self._seen and len(self._seen) >= 4 * FIELDS_MAX:
                continue
            self._count[name] += 1
            self._seen.setdefault(name, set()).add(kind_of(value))

    def types(self) -> dict[str, str]:
        """The narrowest type of each field that all its values fit; of more than FIELDS_MAX
        fields, those that most documents have."""
        often = sorted(self._seen, key=lambda name: (-self._count[name], name))[:FIELDS_MAX]
        return {name: _narrowest(self._seen[name]) for name in often}


def kind_of(value: Any) -> str:
    """What `value` alone would be announced as; empty for null, which fits everything."""
    if value is None:
        return ""
    if isinstance(value, list):
        inside = {kind_of(one) for one in cast("list[Any]", value)} - {""}  # type: ignore[redundant-cast]
        found = _narrowest(inside) if inside else ""
        return "JSON" if found == "JSON" or found.startswith("[") else f"[{found}]"
    for kind in ("Boolean", "String", "Int", "Long", "Float", *_WRAPPED):
        try:
            _TAKERS[kind](value)
        except Misfit:
            continue
        # An int64 that is small now says by its type that it need not be.
        return "Long" if kind == "Int" and isinstance(value, dict) else kind
    return "JSON"


_WRAPPED: Final = ("Decimal", "DateTime", "ObjectId", "Base64")


def _narrowest(kinds: set[str]) -> str:
    """The one type for values of these kinds."""
    found = kinds - {""}
    if found and all(one.startswith("[") for one in found):
        inside = _narrowest({one.strip("[]") for one in found})
        return "JSON" if inside == "JSON" else f"[{inside}]"
    if len(found) == 1:
        return found.pop()
    if found == {"Int", "Long"}:
        return "Long"
    if found == {"Int", "Float"}:
        return "Float"
    if found and found <= {"Int", "Long", "Decimal"}:
        return "Decimal"
    return "JSON"
