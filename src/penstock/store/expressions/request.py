"""The expressions of one request, or the parameters that came before them, read together."""

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from msgspec import Struct

from penstock.store.conditions import Condition, paths_of
from penstock.store.errors import InvalidConditionError, MalformedValueError
from penstock.store.expressions import legacy
from penstock.store.expressions.binding import parse_condition, parse_projection, parse_update
from penstock.store.expressions.keys import KeyClause, parse_key_condition
from penstock.store.expressions.placeholders import Placeholders
from penstock.store.paths import Path
from penstock.store.projections import Projection
from penstock.store.updates import Update


class _Operation(NamedTuple):
    expressions: tuple[str, ...]
    legacy: tuple[str, ...]


_OPERATIONS: Final = {
    "GetItem": _Operation(("ProjectionExpression",), ("AttributesToGet",)),
    "PutItem": _Operation(("ConditionExpression",), ("Expected", "ConditionalOperator")),
    "DeleteItem": _Operation(("ConditionExpression",), ("Expected", "ConditionalOperator")),
    "ConditionCheck": _Operation(("ConditionExpression",), ()),
    "UpdateItem": _Operation(
        ("UpdateExpression", "ConditionExpression"),
        ("AttributeUpdates", "Expected", "ConditionalOperator"),
    ),
    "Query": _Operation(
        ("ProjectionExpression", "FilterExpression", "KeyConditionExpression"),
        ("AttributesToGet", "QueryFilter", "ConditionalOperator", "KeyConditions"),
    ),
    "Scan": _Operation(
        ("ProjectionExpression", "FilterExpression"),
        ("AttributesToGet", "ScanFilter", "ConditionalOperator"),
    ),
}


class RequestExpressions(Struct, frozen=True, kw_only=True):
    """What a request asks beside its keys."""

    condition: Condition | None = None
    """ConditionExpression or Expected; of a Query or Scan, the filter."""
    update: Update | None = None
    projection: Projection | None = None
    key: tuple[KeyClause, ...] | None = None
    """Of a Query; `expressions.keys.key_condition` fits it to a table."""
    legacy_filter: bool = False

    def paths(self) -> list[Path]:
        """Every path that the condition or the projection names."""
        condition = () if self.condition is None else paths_of(self.condition)
        return [*condition, *(self.projection or ())]

    def refuse_keys(self, keys: Collection[str], *, query: bool = False) -> None:
        """Refuse paths into key attributes, and in a Query's filter the key attributes themselves.

        Raises InvalidConditionError, with DynamoDB's text.
        """
        condition = [] if self.condition is None else list(paths_of(self.condition))
        read = [] if self.update is None else list(self.update.reads())
        for path in (*self.paths(), *read):
            if path[0] in keys and len(path) > 1:
                raise InvalidConditionError(
                    f"Key attributes must be scalars; list random access '[]' and map lookup '.' "
                    f"are not allowed: Key: {path[0]}"
                )
        for path in condition if query else ():
            if path[0] in keys:
                parameter = "QueryFilter" if self.legacy_filter else "Filter Expression"
                raise InvalidConditionError(
                    f"{parameter} can only contain non-primary key attributes: Primary key "
                    f"attribute: {path[0]}"
                )


def read_expressions(request: Mapping[str, object], operation: str) -> RequestExpressions:
    """What a request of an operation asks: GetItem (also for each table of BatchGetItem), PutItem,
    DeleteItem, UpdateItem, Query, Scan, or ConditionCheck. `refuse_mixture` comes first.

    Raises InvalidConditionError, MalformedValueError and ValueRefusedError, with DynamoDB's texts.
    """
    parameters = _OPERATIONS[operation]
    given = _given(request)
    names, values = (given.get(f"ExpressionAttribute{kind}") for kind in ("Names", "Values"))
    if operation == "GetItem":
        values = None
    placeholders = Placeholders.of_json(names, values)
    found = RequestExpressions(
        update=_update(given, parameters, placeholders),
        condition=_condition(given, parameters, placeholders),
        projection=_projection(given, parameters, placeholders),
        key=_key(given, parameters, placeholders),
        legacy_filter="QueryFilter" in given,
    )
    placeholders.refuse_unused()
    return found


def refuse_mixture(request: Mapping[str, object], operation: str) -> None:
    """Refuse expressions together with what came before them, and placeholders without expressions.

    DynamoDB says that before it looks at keys, items and the expressions themselves. Raises
    InvalidConditionError.
    """
    given, parameters = _given(request), _OPERATIONS[operation]
    expressions = [name for name in parameters.expressions if name in given]
    before = [name for name in parameters.legacy if name in given]
    if "KeyConditionExpression" not in given and "KeyConditions" in before:
        before.remove("KeyConditions")
    if expressions and before:
        raise InvalidConditionError(
            f"Can not use both expression and non-expression parameters in the same request: "
            f"Non-expression parameters: {{{', '.join(before)}}} "
            f"Expression parameters: {{{', '.join(expressions)}}}"
        )
    if "ExpressionAttributeNames" in given and not expressions:
        raise InvalidConditionError(
            "ExpressionAttributeNames can only be specified when using expressions"
        )
    valued = [name for name in parameters.expressions if name != "ProjectionExpression"]
    if (
        "ExpressionAttributeValues" in given
        and valued
        and not any(name in given for name in valued)
    ):
        verb = "are" if len(valued) > 1 else "is"
        raise InvalidConditionError(
            f"ExpressionAttributeValues can only be specified when using expressions: "
            f"{' and '.join(valued)} {verb} null"
        )


def _given(request: Mapping[str, object]) -> Mapping[str, object]:
    return {name: value for name, value in request.items() if value is not None}


def _text(given: Mapping[str, object], parameter: str, parameters: _Operation) -> str | None:
    text = given.get(parameter) if parameter in parameters.expressions else None
    if text is not None and not isinstance(text, str):
        raise MalformedValueError(f"{parameter} is not a string")
    return text


def _update(
    given: Mapping[str, object], parameters: _Operation, placeholders: Placeholders
) -> Update | None:
    text = _text(given, "UpdateExpression", parameters)
    if text is not None:
        return parse_update(text, placeholders)
    if "AttributeUpdates" in parameters.legacy and "AttributeUpdates" in given:
        return legacy.read_attribute_updates(given["AttributeUpdates"])
    return None


def _condition(
    given: Mapping[str, object], parameters: _Operation, placeholders: Placeholders
) -> Condition | None:
    for parameter in ("ConditionExpression", "FilterExpression"):
        text = _text(given, parameter, parameters)
        if text is not None:
            return parse_condition(text, placeholders, parameter=parameter)
    operator = given.get("ConditionalOperator")
    for parameter in ("Expected", "QueryFilter", "ScanFilter"):
        if parameter in parameters.legacy and parameter in given:
            read = legacy.read_expected if parameter == "Expected" else legacy.read_filter
            return read(given[parameter], operator)
    if operator is not None and "ConditionalOperator" in parameters.legacy:
        raise InvalidConditionError("ConditionalOperator cannot be used without Filter or Expected")
    return None


def _projection(
    given: Mapping[str, object], parameters: _Operation, placeholders: Placeholders
) -> Projection | None:
    text = _text(given, "ProjectionExpression", parameters)
    if text is not None:
        return parse_projection(text, placeholders)
    if "AttributesToGet" in parameters.legacy and "AttributesToGet" in given:
        return legacy.read_attributes_to_get(given["AttributesToGet"])
    return None


def _key(
    given: Mapping[str, object], parameters: _Operation, placeholders: Placeholders
) -> tuple[KeyClause, ...] | None:
    text = _text(given, "KeyConditionExpression", parameters)
    if text is not None:
        return parse_key_condition(text, placeholders)
    if "KeyConditions" not in parameters.legacy:
        return None
    if "KeyConditions" not in given:
        raise InvalidConditionError(
            "Either the KeyConditions or KeyConditionExpression parameter must be specified in the "
            "request."
        )
    return legacy.read_key_conditions(given["KeyConditions"])
