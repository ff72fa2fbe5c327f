"""The patterns of a trigger: those that no record of a stream can match are refused.

Such a pattern passes every record unhandled, and a misspelled name or value is all that it takes.
So each name, and each condition of each value, is held against what a record can have
(https://docs.aws.amazon.com/amazondynamodb/latest/APIReference/API_streams_Record.html). Only an
attribute's own name is free.
"""

from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from enum import Enum, auto
from typing import Any, Final, TypeAlias, cast

import msgspec

from penstock.trigger.filters import ABSENT, Test, matcher, several


class Leaf(Enum):
    """The values of a leaf, where they cannot be listed."""

    TEXT = auto()
    DIGITS = auto()
    """A number as DynamoDB has it: text."""
    NUMBER = auto()


Shape: TypeAlias = "Leaf | tuple[Any, ...] | Mapping[str, Shape]"
"""What a record can have at a place: any value of a kind, one of some, or members."""

_NO_CASE: Final = ("", {"equals-ignore-case": ""})
_ANY_TEXT: Final[Mapping[str, tuple[Any, ...]]] = {
    "prefix": _NO_CASE,
    "suffix": _NO_CASE,
    "wildcard": ("*",),
}
"""Operands that every text has."""
_ANY_NAME: Final = "*"
_VALUE: Final[dict[str, Shape]] = {
    "S": Leaf.TEXT,
    "N": Leaf.DIGITS,
    "B": Leaf.TEXT,
    "BOOL": (True, False),
    "NULL": (True,),
    "SS": Leaf.TEXT,
    "NS": Leaf.DIGITS,
    "BS": Leaf.TEXT,
}
_ITEM: Final[dict[str, Shape]] = {_ANY_NAME: _VALUE}
_VALUE.update(M=_ITEM, L=_VALUE)
_IMAGES: Final = {
    "KEYS_ONLY": (),
    "NEW_IMAGE": ("NewImage",),
    "OLD_IMAGE": ("OldImage",),
    "NEW_AND_OLD_IMAGES": ("NewImage", "OldImage"),
}
"""What the records of a view have."""
_RECORD: Final[dict[str, Shape]] = {
    "eventID": Leaf.TEXT,
    "eventName": ("INSERT", "MODIFY", "REMOVE"),
    "eventVersion": Leaf.TEXT,
    "eventSource": ("aws:dynamodb",),
    "eventSourceARN": Leaf.TEXT,
    "awsRegion": Leaf.TEXT,
    "userIdentity": {"principalId": Leaf.TEXT, "type": Leaf.TEXT},
    "dynamodb": {
        "ApproximateCreationDateTime": Leaf.NUMBER,
        "Keys": _ITEM,
        "NewImage": _ITEM,
        "OldImage": _ITEM,
        "SequenceNumber": Leaf.TEXT,
        "SizeBytes": Leaf.NUMBER,
        "StreamViewType": tuple(_IMAGES),
    },
}
_LACKING: Final = {"NewImage": "REMOVE", "OldImage": "INSERT"}
"""The event that does not have an image."""


def parse_pattern(text: str, *, view: str = "NEW_AND_OLD_IMAGES") -> Test:
    """What tells the records of a stream of that view that match a pattern.

    Raises ValueError, which says what is wrong, for what is no pattern, and for one of which a part
    can match no record.
    """
    try:
        pattern = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise ValueError(f"a filter is not JSON: {error}") from None
    if not isinstance(pattern, dict) or not pattern:
        raise ValueError("a filter must be a JSON object that says something")
    said = cast("dict[str, Any]", pattern)
    test = matcher(said)
    _refuse_impossible(said, _RECORD, "")
    _events(said, frozenset(("INSERT", "MODIFY", "REMOVE")), view)
    return test


def _refuse_impossible(pattern: dict[str, Any], shape: Mapping[str, Shape], path: str) -> None:
    """Raise ValueError for a name or a condition that no record has."""
    for name, wanted in pattern.items():
        if name == "$or":
            for one in wanted:
                _refuse_impossible(one, shape, f"{path}$or.")
            continue
        inner = shape.get(name, shape.get(_ANY_NAME))
        here = f"{path}{name}"
        if inner is None:
            known = ", ".join(shape)
            raise ValueError(f"{here} is in no record, so nothing matches; there are {known}")
        if isinstance(inner, Mapping):
            if isinstance(wanted, dict):
                _refuse_impossible(cast("dict[str, Any]", wanted), inner, f"{here}.")
            elif _is_needed(name, wanted) and not matcher({name: wanted})({name: {}}):
                raise ValueError(f"{here} has members, and no value to compare")
        elif isinstance(wanted, dict):
            raise ValueError(f"{here} is a value, and has no members")  # noqa: TRY004
        else:
            for condition in wanted:
                if not _can_match(condition, inner):
                    told = msgspec.json.encode(condition).decode()
                    raise ValueError(f"{here}: no record matches {told}{_hint(inner)}")
    if shape is _VALUE:
        types = [one for one in pattern if one != "$or" and _is_needed(one, pattern[one])]
        if len(types) > 1:
            raise ValueError(f"{path[:-1]}: no value is of several types, {', '.join(types)}")


def _can_match(condition: Any, shape: Leaf | tuple[Any, ...]) -> bool:
    if isinstance(shape, tuple):
        test = matcher({"value": [condition]})
        # An item need not have the attribute, a record has each of its members.
        values = [{"value": value} for value in shape]
        return any(map(test, values)) or (shape in _OPTIONAL and test({}))
    if not isinstance(condition, dict):
        return _is_of(condition, shape)
    ((name, operand),) = cast("dict[str, Any]", condition).items()
    match name:
        case "exists":
            return True
        case "numeric":
            return shape is not Leaf.TEXT
        case "anything-but":
            return not any(map(_is_any_text, several(operand)))
        case _:
            return shape is not Leaf.NUMBER


def _is_any_text(excluded: Any) -> bool:
    """Whether every text has it."""
    if not isinstance(excluded, dict):
        return False
    ((name, operand),) = cast("dict[str, Any]", excluded).items()
    return any(one in _ANY_TEXT.get(name, ()) for one in several(operand))


_OPTIONAL: Final = (_VALUE["BOOL"], _VALUE["NULL"])


def _is_of(value: Any, shape: Leaf) -> bool:
    if shape is Leaf.NUMBER:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if not isinstance(value, str) or shape is Leaf.TEXT:
        return isinstance(value, str)
    try:
        return Decimal(value).is_finite()
    except InvalidOperation:
        return False


def _hint(shape: Leaf | tuple[Any, ...]) -> str:
    match shape:
        case Leaf.DIGITS:
            return '; a number is text here: compare it with "5", or by numeric'
        case Leaf.NUMBER:
            return "; it is a number"
        case Leaf.TEXT:
            return "; it is text"
        case _:
            return "; there are " + ", ".join(msgspec.json.encode(one).decode() for one in shape)


def _is_needed(name: str, wanted: Any) -> bool:
    """Whether only what has this member matches."""
    return not matcher({name: wanted})(ABSENT)


def _events(pattern: dict[str, Any], events: frozenset[str], view: str) -> None:
    """Raise ValueError if the record of no event matches, for each alternative too."""
    for name, wanted in pattern.items():
        if name == "eventName":
            test = matcher({name: wanted})
            events = frozenset(one for one in events if test({name: one}))
        elif name in _LACKING and _is_needed(name, wanted):
            if name not in _IMAGES.get(view, _LACKING):
                raise ValueError(f"the stream's view, {view}, has no {name}")
            events -= {_LACKING[name]}
    if not events:
        raise ValueError("no event has all that is wanted: INSERT no OldImage, REMOVE no NewImage")
    for one in (pattern.get("dynamodb"), *pattern.get("$or", ())):
        if isinstance(one, dict):
            _events(cast("dict[str, Any]", one), events, view)
