"""Conditions as JSON, for the store's own server.

    {"And": [{"Gt": [{"Attr": "price"}, {"Literal": 10}]}, {"AttributeExists": {"Attr": "tags"}}]}

An operand is {"Attr": path}, {"Literal": plain JSON}, {"Value": DynamoDB's JSON}, for values that
plain JSON does not have, or {"Size": operand}. A path is its written form, or a list of its
elements if a name in it has a dot or a bracket.
"""

from typing import Any, Final, cast

from penstock.store.attributevalue import decode_value, encode_attribute
from penstock.store.conditions import (
    And,
    Attr,
    BeginsWith,
    Between,
    Comparator,
    Comparison,
    Condition,
    Contains,
    Exists,
    In,
    Literal,
    Not,
    NotExists,
    Operand,
    Or,
    Size,
    TypeIs,
)
from penstock.store.documents import from_plain, to_plain
from penstock.store.errors import InvalidConditionError, ValueRefusedError
from penstock.store.kinds import ValueType
from penstock.store.paths import Path, format_path, parse_path

DEPTH_MAX: Final = 16
"""How deeply conditions may be nested."""

_COMPARED: Final = {
    "Eq": Comparator.EQ,
    "Ne": Comparator.NE,
    "Lt": Comparator.LT,
    "Le": Comparator.LE,
    "Gt": Comparator.GT,
    "Ge": Comparator.GE,
}
_WORDS: Final = {comparator: word for word, comparator in _COMPARED.items()}
_CONDITIONS: Final = (
    *_COMPARED,
    *("Between", "In", "BeginsWith", "Contains", "AttributeExists", "AttributeNotExists"),
    *("AttributeType", "And", "Or", "Not"),
)


def condition_from_json(json: object) -> Condition:
    """The condition of decoded JSON.

    Raises InvalidConditionError for what is none, or is nested more than 16 deep, and
    ValueRefusedError for a literal that a store cannot hold.
    """
    return _condition(json, 1)


def condition_to_json(condition: Condition) -> dict[str, Any]:
    """A condition as JSON that `condition_from_json` reads as the same condition.

    Raises InvalidConditionError for one that is nested more than 16 deep.
    """
    return _json(condition, 1)


def _condition(json: object, depth: int) -> Condition:
    _refuse_depth(depth)
    word, given = _single(json, "a condition", _CONDITIONS)
    match word:
        case "And" | "Or":
            conditions = tuple(_condition(each, depth + 1) for each in _listed(word, given))
            if not conditions:
                raise InvalidConditionError(f"{word} needs conditions")
            return And(conditions) if word == "And" else Or(conditions)
        case "Not":
            # Both {"Not": condition} and {"Not": [condition]} are written.
            return Not(_condition(_only(word, given), depth + 1))
        case "AttributeExists" | "AttributeNotExists":
            path = _attribute(_only(word, given))
            return Exists(path) if word == "AttributeExists" else NotExists(path)
        case "AttributeType":
            attribute, kind = _listed(word, given, 2)
            named = _operand(kind)
            type_name = named.value if isinstance(named, Literal) else None
            if not isinstance(type_name, str) or type_name not in frozenset(ValueType):
                raise InvalidConditionError(
                    f"AttributeType needs one of the types {', '.join(ValueType)}, as a literal"
                )
            return TypeIs(_attribute(attribute), ValueType(type_name))
        case "In":
            operand, *choices = map(_operand, _listed(word, given))
            return In(operand, tuple(choices))
        case "Between":
            operand, low, high = map(_operand, _listed(word, given, 3))
            return Between(operand, low, high)
        case _:
            left, right = map(_operand, _listed(word, given, 2))
            if word == "BeginsWith":
                return BeginsWith(left, right)
            if word == "Contains":
                return Contains(left, right)
            return Comparison(_COMPARED[word], left, right)


def _single(json: object, what: str, words: tuple[str, ...]) -> tuple[str, object]:
    shown = _shown(json)
    if isinstance(json, dict) and len(cast("dict[object, object]", json)) == 1:
        word, given = next(iter(cast("dict[object, object]", json).items()))
        if word in words:
            return str(word), given
    raise InvalidConditionError(f"{shown} is not {what}: an object with one of {', '.join(words)}")


def _shown(json: object) -> str:
    text = repr(json)
    return text if len(text) <= 80 else f"{text[:80]}..."


def _only(word: str, given: object) -> object:
    return _listed(word, cast("object", given), 1)[0] if isinstance(given, list) else given


def _listed(word: str, given: object, count: int | None = None) -> list[object]:
    elements = cast("list[object]", given) if isinstance(given, list) else []
    if not isinstance(given, list) or (count is not None and len(elements) != count):
        raise InvalidConditionError(
            f"{word} needs a list" + ("" if count is None else f" of {count}")
        )
    if word == "In" and len(elements) < 2:
        raise InvalidConditionError("In needs a list of an operand and what it may be")
    return elements


def _operand(json: object) -> Operand:
    word, given = _single(json, "an operand", ("Attr", "Literal", "Value", "Size"))
    match word:
        case "Attr":
            return Attr(_path(given))
        case "Literal":
            return Literal(from_plain(given))
        case "Value":
            return Literal(decode_value(given))
        case _:
            measured = _operand(given)
            if isinstance(measured, Size):
                raise InvalidConditionError("a size has no size")
            return Size(measured)


def _attribute(json: object) -> Path:
    word, given = _single(json, "an attribute", ("Attr",))
    assert word == "Attr"
    return _path(given)


def _path(given: object) -> Path:
    if isinstance(given, str):
        return parse_path(given)
    if isinstance(given, list):
        return parse_path(tuple(cast("list[str | int]", given)))
    raise InvalidConditionError(f"{_shown(given)} is no path: a string or a list of its elements")


def _json(condition: Condition, depth: int) -> dict[str, Any]:
    _refuse_depth(depth)
    match condition:
        case And(conditions):
            return {"And": [_json(each, depth + 1) for each in conditions]}
        case Or(conditions):
            return {"Or": [_json(each, depth + 1) for each in conditions]}
        case Not(negated):
            return {"Not": _json(negated, depth + 1)}
        case Exists(path):
            return {"AttributeExists": _attribute_json(path)}
        case NotExists(path):
            return {"AttributeNotExists": _attribute_json(path)}
        case TypeIs(path, kind):
            return {"AttributeType": [_attribute_json(path), {"Literal": kind.value}]}
        case Comparison(comparator, left, right):
            return {_WORDS[comparator]: _operands_json(left, right)}
        case Between(operand, low, high):
            return {"Between": _operands_json(operand, low, high)}
        case In(operand, choices):
            return {"In": _operands_json(operand, *choices)}
        case BeginsWith(operand, prefix):
            return {"BeginsWith": _operands_json(operand, prefix)}
        case Contains(operand, element):
            return {"Contains": _operands_json(operand, element)}
        case _:
            raise InvalidConditionError(f"{condition!r} is no condition")


def _operands_json(*operands: Operand) -> list[dict[str, Any]]:
    return [_operand_json(operand) for operand in operands]


def _operand_json(operand: Operand) -> dict[str, Any]:
    match operand:
        case Attr(path):
            return _attribute_json(path)
        case Size(measured):
            return {"Size": _operand_json(measured)}
        case Literal(value):
            try:
                return {"Literal": to_plain(value)}
            except ValueRefusedError:
                return {"Value": encode_attribute(value)}


def _attribute_json(path: Path) -> dict[str, Any]:
    written = format_path(path)
    try:
        plain = parse_path(written) == path
    except InvalidConditionError:
        plain = False
    return {"Attr": written if plain else list(path)}


def _refuse_depth(depth: int) -> None:
    if depth > DEPTH_MAX:
        raise InvalidConditionError(f"the condition is nested more than {DEPTH_MAX} deep")
