"""What a Query asks of the keys: a partition, and at most one condition on the sort key."""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, cast

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
from penstock.store.errors import InvalidConditionError
from penstock.store.expressions.binding import parse_condition
from penstock.store.expressions.placeholders import Placeholders
from penstock.store.keys import KeyAttribute
from penstock.store.kinds import type_of
from penstock.store.values import Scalar, Value

_OPERATIONS: Final = {
    Comparator.EQ: "eq",
    Comparator.LT: "lt",
    Comparator.LE: "le",
    Comparator.GT: "gt",
    Comparator.GE: "ge",
}
_TURNED: Final = {"eq": "eq", "lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}
_REFUSED: Final[dict[type[Condition], str]] = {
    Or: "OR",
    Not: "NOT",
    In: "IN",
    Exists: "attribute_exists",
    NotExists: "attribute_not_exists",
    TypeIs: "attribute_type",
    Contains: "contains",
}
_IN_CONDITION: Final = "Invalid condition in KeyConditionExpression: "


class KeyClause(NamedTuple):
    """One condition on one attribute."""

    name: str
    op: str
    """eq, lt, le, gt, ge, between or begins_with; of the legacy KeyConditions, others too."""
    values: tuple[Value, ...]


class KeyCondition(NamedTuple):
    """Which items of which partition."""

    partition: Scalar
    sort: KeyClause | None


def parse_key_condition(text: str, placeholders: Placeholders) -> tuple[KeyClause, ...]:
    """The clauses of a KeyConditionExpression, whatever the table's keys are.

    Raises InvalidConditionError, with DynamoDB's text, as all of these do.
    """
    parsed = parse_condition(text, placeholders, parameter="KeyConditionExpression")
    conditions = list(_joined(parsed))
    for condition in conditions:
        _refuse_operator(condition)
    clauses = [_clause(condition) for condition in conditions]
    refuse_clauses(clauses)
    return tuple(clauses)


def refuse_clauses(clauses: Sequence[KeyClause]) -> None:
    """Refuse more than one clause of an attribute, and more than two."""
    if len({clause.name for clause in clauses}) < len(clauses):
        raise InvalidConditionError(
            "KeyConditionExpressions must only contain one condition per key"
        )
    if not 1 <= len(clauses) <= 2:
        raise InvalidConditionError("Conditions can be of length 1 or 2 only")


def key_condition(
    clauses: Sequence[KeyClause], partition: KeyAttribute, sort: KeyAttribute | None
) -> KeyCondition:
    """What the clauses ask of a table's, or an index's, keys."""
    if sort is None and len(clauses) > 1:
        raise InvalidConditionError("Query key condition not supported")
    found = {clause.name: clause for clause in clauses}
    for attribute in (partition, sort):
        if attribute is None:
            continue
        clause = found.get(attribute.name)
        if clause is not None:
            _refuse_clause(clause, attribute, partition=attribute is partition)
        elif attribute is partition or len(clauses) > 1:
            raise InvalidConditionError(
                f"Query condition missed key schema element: {attribute.name}"
            )
    wanted = cast("Scalar", found[partition.name].values[0])
    return KeyCondition(wanted, None if sort is None else found.get(sort.name))


def _refuse_clause(clause: KeyClause, attribute: KeyAttribute, *, partition: bool) -> None:
    if clause.op not in {*_TURNED, "between", "begins_with"}:
        raise InvalidConditionError(
            "Attempted conditional constraint is not an indexable operation"
        )
    for value in clause.values:
        if type_of(value).value != attribute.type.value:
            raise InvalidConditionError(
                "One or more parameter values were invalid: "
                "Condition parameter type does not match schema type"
            )
        if isinstance(value, str | bytes) and not value:
            kind = "string" if isinstance(value, str) else "binary"
            raise InvalidConditionError(
                f"One or more parameter values are not valid. The AttributeValue for a key "
                f"attribute cannot contain an empty {kind} value. Key: {clause.name}"
            )
    if partition and clause.op != "eq":
        raise InvalidConditionError("Query key condition not supported")


def _joined(condition: Condition) -> Iterator[Condition]:
    if isinstance(condition, And):
        for each in condition.conditions:
            yield from _joined(each)
    else:
        yield condition


def _refuse_operator(condition: Condition) -> None:
    refused = _REFUSED.get(type(condition))
    if isinstance(condition, Comparison) and condition.comparator is Comparator.NE:
        refused = "<>"
    if refused is not None:
        raise InvalidConditionError(f"Invalid operator used in KeyConditionExpression: {refused}")


def _clause(condition: Condition) -> KeyClause:
    match condition:
        case Comparison(comparator, left, right):
            op = _OPERATIONS[comparator]
            if _is_attribute(left, right):
                return KeyClause(_name(left), op, (_value(right),))
            return KeyClause(_name(right), _TURNED[op], (_value(left),))
        case Between(operand, low, high):
            _refuse_other_first("BETWEEN", operand, low, high)
            return KeyClause(_name(operand), "between", (_value(low), _value(high)))
        case BeginsWith(operand, prefix):
            _refuse_other_first("begins_with", operand, prefix)
            return KeyClause(_name(operand), "begins_with", (_value(prefix),))
        case _:
            raise InvalidConditionError(f"{_IN_CONDITION}{condition!r}")


def _is_attribute(left: Operand, right: Operand) -> bool:
    _refuse_nested(left, right)
    if isinstance(left, Attr) and isinstance(right, Attr):
        raise InvalidConditionError(
            f"{_IN_CONDITION}Multiple attribute names used in one condition"
        )
    if not isinstance(left, Attr) and not isinstance(right, Attr):
        raise InvalidConditionError(f"{_IN_CONDITION}No key attribute specified")
    return isinstance(left, Attr)


def _refuse_nested(*operands: Operand) -> None:
    if any(isinstance(operand, Size) for operand in operands):
        raise InvalidConditionError("KeyConditionExpressions cannot contain nested operations")


def _refuse_other_first(operator: str, first: Operand, *others: Operand) -> None:
    _refuse_nested(first, *others)
    if not isinstance(first, Attr):
        raise InvalidConditionError(
            f"{_IN_CONDITION}{operator} operator must have the key attribute as its first operand"
        )
    if any(isinstance(other, Attr) for other in others):
        raise InvalidConditionError(
            f"{_IN_CONDITION}Multiple attribute names used in one condition"
        )


def _name(operand: Operand) -> str:
    name, *below = cast("Attr", operand).path
    if below:
        raise InvalidConditionError(
            "KeyConditionExpressions cannot have conditions on nested attributes"
        )
    return cast("str", name)


def _value(operand: Operand) -> Value:
    return cast("Literal", operand).value
