"""The scalars of our schema, beside those of GraphQL."""

import re
from collections.abc import Callable
from typing import Any, Final, NewType

import strawberry
from graphql import GraphQLError
from strawberry.types.scalar import ScalarDefinition

Long = NewType("Long", int)
Json = NewType("Json", object)
Decimal = NewType("Decimal", str)
DateTime = NewType("DateTime", str)
ObjectId = NewType("ObjectId", str)
Base64 = NewType("Base64", str)
NumberOrText = NewType("NumberOrText", object)

_WHOLE: Final = re.compile(r"-?[0-9]{1,20}")


def _long_out(value: Any) -> str:
    """As text: a number of JavaScript would be another beyond 2^53, and nobody would notice."""
    return str(value)


def _long_in(given: Any) -> int:
    if isinstance(given, str) and _WHOLE.fullmatch(given):
        return int(given)
    if isinstance(given, int) and not isinstance(given, bool):
        return given
    raise GraphQLError("Long must be a whole number, or one as text")


def _number_or_text(given: Any) -> int | str:
    if isinstance(given, int | str) and not isinstance(given, bool):
        return given
    raise GraphQLError("NumberOrText must be a whole number or text")


def _as_it_is(value: Any) -> Any:
    return value


def _only_sent(given: Any) -> Any:
    del given
    raise GraphQLError("this type is only sent")


def _scalar(
    name: str, description: str, taken: Callable[[Any], Any] = _only_sent, **more: Any
) -> ScalarDefinition:
    return strawberry.scalar(
        name=name,
        description=description,
        serialize=more.get("serialize", _as_it_is),
        parse_value=taken,
    )


SCALARS: Final[dict[object, ScalarDefinition]] = {
    Long: _scalar(
        "Long",
        "A whole number of 64 bits. Sent as text, for a number of JavaScript is not exact beyond "
        "2^53; taken as a number or as text.",
        _long_in,
        serialize=_long_out,
    ),
    Json: _scalar(
        "JSON",
        "Any value of JSON, exactly as it was captured: type-preserving Extended JSON, in which an "
        'int64 that is small is {"$numberLong":"5"}, and a double always has a point or an '
        "exponent.",
        _as_it_is,
    ),
    Decimal: _scalar("Decimal", "A decimal number, as text."),
    DateTime: _scalar("DateTime", "A moment, as ISO 8601 writes it, in UTC."),
    ObjectId: _scalar("ObjectId", "An ObjectId of MongoDB, as 24 hexadecimal digits."),
    Base64: _scalar("Base64", "Bytes, in base64."),
    NumberOrText: _scalar("NumberOrText", "A whole number, or text.", _number_or_text),
}
