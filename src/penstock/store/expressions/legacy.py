"""The parameters that came before expressions, as the same conditions, updates and projections.

AttributeUpdates, Expected, KeyConditions, QueryFilter, ScanFilter and AttributesToGet: see
https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/LegacyConditionalParameters.html.
They name whole attributes: a dot in a name is a part of it. The errors' texts are DynamoDB's.
"""

from typing import Final

from penstock.store.attributevalue import decode_value, elements_of, members_of, named, refuse_name
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
    Or,
)
from penstock.store.errors import InvalidConditionError
from penstock.store.expressions.keys import KeyClause, refuse_clauses
from penstock.store.kinds import ORDERED, SETS, ValueType, compare, type_of
from penstock.store.paths import Path
from penstock.store.projections import Projection
from penstock.store.updates import (
    Action,
    AddAction,
    DeleteAction,
    IfNotExists,
    ListAppend,
    RemoveAction,
    SetAction,
    Update,
)
from penstock.store.values import Value

_INVALID: Final = "One or more parameter values were invalid: "
_COMPARED: Final = {
    "EQ": Comparator.EQ,
    "NE": Comparator.NE,
    "LT": Comparator.LT,
    "LE": Comparator.LE,
    "GT": Comparator.GT,
    "GE": Comparator.GE,
}
COMPARISON_OPERATORS: Final = (
    *("IN", "NULL", "BETWEEN", "LT", "NOT_CONTAINS", "EQ", "GT"),
    *("NOT_NULL", "NE", "LE", "BEGINS_WITH", "GE", "CONTAINS"),
)
_BEGUN: Final = frozenset({ValueType.STRING, ValueType.BINARY})


def read_filter(json: object, conditional_operator: object = None) -> Condition | None:
    """The condition of a QueryFilter or ScanFilter; None if it has none."""
    conditions = list[Condition]()
    for name, given in named(members_of(json)).items():
        members = members_of(given)
        values = _values(members)
        operator = _operator(name, members)
        _refuse_values(operator, values)
        conditions.append(_condition(name, operator, values))
    return _combined(conditions, conditional_operator)


def read_expected(json: object, conditional_operator: object = None) -> Condition | None:
    """The condition of Expected; None if it has none."""
    conditions = list[Condition]()
    for name, given in named(members_of(json)).items():
        members = {key: value for key, value in members_of(given).items() if value is not None}
        _refuse_expected(name, members)
        if "ComparisonOperator" in members:
            values = [decode_value(members["Value"])] if "Value" in members else _values(members)
            operator = _operator(name, members)
            _refuse_values(operator, values)
            conditions.append(_condition(name, operator, values))
        elif "Value" in members:
            conditions.append(_condition(name, "EQ", [decode_value(members["Value"])]))
        else:
            conditions.append(NotExists((name,)))
    return _combined(conditions, conditional_operator)


def _refuse_expected(name: str, members: dict[str, object]) -> None:
    exists = members.get("Exists")
    problem = None
    if "AttributeValueList" in members and "Value" in members:
        problem = f"Value and AttributeValueList cannot be used together for Attribute: {name}"
    elif "ComparisonOperator" in members:
        operator = members["ComparisonOperator"]
        if exists is not None:
            problem = f"Exists and ComparisonOperator cannot be used together for Attribute: {name}"
        elif operator not in ("NULL", "NOT_NULL") and not members.keys() & {
            "AttributeValueList",
            "Value",
        }:
            problem = (
                f"Value or AttributeValueList must be used with ComparisonOperator: {operator} "
                f"for Attribute: {name}"
            )
    elif "AttributeValueList" in members:
        problem = (
            f"AttributeValueList can only be used with a ComparisonOperator for Attribute: {name}"
        )
    elif exists is not False and "Value" not in members:
        said = "null" if exists is None else "true"
        problem = f"Value must be provided when Exists is {said} for Attribute: {name}"
    elif exists is False and "Value" in members:
        problem = f"Value cannot be used when Exists is false for Attribute: {name}"
    if problem is not None:
        raise InvalidConditionError(_INVALID + problem)


def read_key_conditions(json: object) -> tuple[KeyClause, ...]:
    """The clauses of KeyConditions."""
    clauses = list[KeyClause]()
    for name, given in named(members_of(json)).items():
        members = members_of(given)
        values, operator = _values(members), _operator(name, members)
        _refuse_values(operator, values)
        clauses.append(KeyClause(name, operator.lower(), tuple(values)))
    refuse_clauses(clauses)
    return tuple(clauses)


def read_attributes_to_get(json: object) -> Projection:
    """The projection of AttributesToGet."""
    names = dict[str, None]()
    for name in elements_of(json):
        if not isinstance(name, str) or not name:
            raise InvalidConditionError(f"{_INVALID}an attribute's name must not be empty")
        refuse_name(name)
        if name in names:
            raise InvalidConditionError(f"{_INVALID}Duplicate value in attribute name: {name}")
        names[name] = None
    return tuple((name,) for name in names)


def read_attribute_updates(json: object) -> Update:
    """The update of AttributeUpdates."""
    actions = list[Action]()
    for name, given in named(members_of(json)).items():
        members = members_of(given)
        value = members.get("Value")
        decoded = None if value is None else Literal(decode_value(value))
        actions.append(_action((name,), members.get("Action") or "PUT", decoded))
    return Update(tuple(actions), legacy=True)


def _action(path: Path, action: object, value: Literal | None) -> Action:
    if value is None:
        if action != "DELETE":
            raise InvalidConditionError(
                f"{_INVALID}Only DELETE action is allowed when no attribute value is specified"
            )
        return RemoveAction(path)
    kind = type_of(value.value)
    match action:
        case "PUT":
            return SetAction(path, value)
        case "ADD" if kind is ValueType.LIST:
            return SetAction(path, ListAppend(IfNotExists(path, Literal([])), value))
        case "ADD" if kind in SETS or kind is ValueType.NUMBER:
            return AddAction(path, value)
        case "ADD":
            raise InvalidConditionError(
                f"{_INVALID}ADD action is not supported for the type {kind}"
            )
        case "DELETE" if kind in SETS:
            return DeleteAction(path, value)
        case "DELETE":
            raise InvalidConditionError(
                f"{_INVALID}DELETE action with value is not supported for the type {kind}"
            )
        case _:
            raise InvalidConditionError(
                f"1 validation error detected: Value '{action}' at 'attributeUpdates.{path[0]}."
                f"member.action' failed to satisfy constraint: Member must satisfy enum value set: "
                f"[ADD, PUT, DELETE]"
            )


def _values(members: dict[str, object]) -> list[Value]:
    given = members.get("AttributeValueList")
    return [] if given is None else [decode_value(value) for value in elements_of(given)]


def _operator(name: str, members: dict[str, object]) -> str:
    operator = members.get("ComparisonOperator")
    if operator not in COMPARISON_OPERATORS:
        said = "null" if operator is None else f"'{operator}'"
        raise InvalidConditionError(
            f"1 validation error detected: Value {said} at '{name}.member.comparisonOperator' "
            f"failed to satisfy constraint: Member must satisfy enum value set: "
            f"[{', '.join(COMPARISON_OPERATORS)}]"
        )
    return str(operator)


def _refuse_values(operator: str, values: list[Value]) -> None:
    wanted = {"NULL": 0, "NOT_NULL": 0, "BETWEEN": 2}.get(operator, 1)
    if not values if operator == "IN" else len(values) != wanted:
        raise InvalidConditionError(
            f"{_INVALID}Invalid number of argument(s) for the {operator} ComparisonOperator"
        )
    kinds = [type_of(value) for value in values]
    if len(set(kinds)) > 1:
        raise InvalidConditionError(
            f"{_INVALID}AttributeValues inside AttributeValueList must be of same type"
        )
    # EQ and NE take any type.
    allowed = _BEGUN if operator == "BEGINS_WITH" else ORDERED
    if kinds and operator not in {"EQ", "NE"} and kinds[0] not in allowed:
        raise InvalidConditionError(
            f"{_INVALID}ComparisonOperator {operator} is not valid for {kinds[0]} AttributeValue "
            f"type"
        )
    if operator == "BETWEEN" and (compare(values[0], values[1]) or 0) > 0:
        raise InvalidConditionError(
            "The BETWEEN condition was provided a range where the lower bound is greater than the "
            "upper bound"
        )


def _condition(name: str, operator: str, values: list[Value]) -> Condition:
    attribute = Attr((name,))
    literals = [Literal(value) for value in values]
    match operator:
        case "NULL":
            return NotExists(attribute.path)
        case "NOT_NULL":
            return Exists(attribute.path)
        case "IN":
            return In(attribute, tuple(literals))
        case "BETWEEN":
            return Between(attribute, *literals)
        case "BEGINS_WITH":
            return BeginsWith(attribute, *literals)
        case "CONTAINS":
            return Contains(attribute, *literals)
        case "NOT_CONTAINS":
            # Of an attribute that is not there, neither holds.
            return Exists(attribute.path) & Not(Contains(attribute, *literals))
        case _:
            return Comparison(_COMPARED[operator], attribute, *literals)


def _combined(conditions: list[Condition], conditional_operator: object) -> Condition | None:
    if conditional_operator not in (None, "AND", "OR"):
        raise InvalidConditionError(
            f"1 validation error detected: Value '{conditional_operator}' at "
            f"'conditionalOperator' failed to satisfy constraint: Member must satisfy enum value "
            f"set: [OR, AND]"
        )
    if len(conditions) < 2:
        if conditional_operator is not None:
            raise InvalidConditionError(
                "ConditionalOperator can only be used when Filter or Expected has two or more "
                "elements"
                if conditions
                else "ConditionalOperator cannot be used without Filter or Expected"
            )
        return conditions[0] if conditions else None
    return Or(tuple(conditions)) if conditional_operator == "OR" else And(tuple(conditions))
