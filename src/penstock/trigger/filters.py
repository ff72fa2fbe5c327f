"""Filter patterns: which records a function is called for.

EventBridge's patterns but for `cidr`; Lambda's event filtering has a part of them. Exact values,
`prefix`, `suffix`, `wildcard`, `equals-ignore-case`, `numeric`, `exists`, `anything-but`, `$or`. A
pattern that says anything else is refused when it is read: one that matches nothing by mistake
passes everything. Those of texts take a list of operands everywhere, and `anything-but` takes all
of them, which EventBridge does in part.

Sources: docs.aws.amazon.com/eventbridge/latest/userguide/eb-create-pattern-operators.html, and the
README of github.com/aws/event-ruler.

One thing more than Lambda: `numeric` looks into DynamoDB numbers too, which are text under "N" and
"NS".
"""

import re
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any, Final, NamedTuple, cast

Test = Callable[[Any], bool]
"""Whether a value matches; a value that is not there is `ABSENT`."""

ABSENT: Final = object()
_NO_CASE: Final = "equals-ignore-case"
_OF_TEXT: Final = frozenset({"prefix", "suffix", "wildcard", _NO_CASE})
_WILD: Final = re.compile(r"\\[\\*]|.", re.DOTALL)
_NUMBERS: Final = ("N", "NS")


def matcher(pattern: dict[str, Any]) -> Test:
    """What tells the values that match a pattern. Raises ValueError, which says what is wrong."""
    return _object(pattern, "")


def _object(pattern: dict[str, Any], path: str) -> Test:
    """Every member matches."""
    tests = list[Test]()
    for name, wanted in pattern.items():
        if name == "$or":
            if not isinstance(wanted, list) or not wanted:
                raise ValueError(f"{path}$or must be a list of patterns")
            tests.append(_any_of([_nested(one, f"{path}$or.") for one in _list(wanted)]))
        elif isinstance(wanted, dict) and wanted:
            tests.append(_member(name, _object(cast("dict[str, Any]", wanted), f"{path}{name}.")))
        elif isinstance(wanted, list) and wanted:
            conditions = [
                _condition(one, f"{path}{name}", is_number=name in _NUMBERS)
                for one in _list(wanted)
            ]
            tests.append(_member(name, _leaf(conditions)))
        else:
            raise ValueError(f"{path}{name} must be a list of values, or an object that holds some")

    def matches(value: Any) -> bool:
        # Of a list of objects any one may match, with all its members, as in EventBridge.
        values = (_list(value) or [value]) if isinstance(value, list) else [value]
        return any(all(test(one) for test in tests) for one in values)

    return matches


def _nested(pattern: Any, path: str) -> Test:
    if not isinstance(pattern, dict) or not pattern:
        raise ValueError(f"{path[:-1]} must hold objects")
    return _object(cast("dict[str, Any]", pattern), path)


def _member(name: str, test: Test) -> Test:
    """The member of that name matches; one of anything but an object is not there."""

    def matches(value: Any) -> bool:
        if not isinstance(value, dict):
            return test(ABSENT)
        return test(cast("dict[str, Any]", value).get(name, ABSENT))

    return matches


def _leaf(conditions: list[Test]) -> Test:
    """Any of the conditions matches the value, or any element of it if it is a list.

    An empty list is not there: it has no leaf.
    """

    def matches(value: Any) -> bool:
        values = (_list(value) or [ABSENT]) if isinstance(value, list) else [value]
        return any(condition(one) for condition in conditions for one in values)

    return matches


def _any_of(tests: list[Test]) -> Test:
    return lambda value: any(test(value) for test in tests)


def _condition(wanted: Any, path: str, *, is_number: bool) -> Test:
    if not isinstance(wanted, dict):
        return _equals(wanted, path)
    said = cast("dict[str, Any]", wanted)
    if len(said) != 1:
        raise ValueError(f"{path}: a condition must say one thing")
    ((name, operand),) = said.items()
    match name, operand:
        case "exists", bool():
            return lambda value: _is_leaf(value) is operand
        case _, _ if name in _OF_TEXT and operand != []:
            return _any_of([_text(name, one, path) for one in several(operand)])
        case "numeric", list():
            return _numeric(_list(operand), path, is_number=is_number)
        case "anything-but", _ if operand != []:
            excluded = _any_of([_excluded(one, path) for one in several(operand)])
            return lambda value: _is_leaf(value) and not excluded(value)
        case _:
            raise ValueError(f"{path}: {name!r} with this operand is not a condition known here")


def _excluded(wanted: Any, path: str) -> Test:
    if isinstance(wanted, dict) and not _OF_TEXT.issuperset(_keys(wanted)):
        raise ValueError(f"{path}: anything-but takes values, {', '.join(sorted(_OF_TEXT))}")
    return _condition(wanted, path, is_number=False)


def _text(name: str, operand: Any, path: str) -> Test:
    """A condition of texts; `prefix` and `suffix` may ignore case."""
    fold: Callable[[str], str] = str
    if isinstance(operand, dict) and name in {"prefix", "suffix"}:
        if _keys(operand) != [_NO_CASE]:
            raise ValueError(f"{path}: {name} takes a text, or {_NO_CASE}")
        fold, operand = str.casefold, cast("dict[str, Any]", operand)[_NO_CASE]
    if not isinstance(operand, str):
        raise ValueError(f"{path}: {name} takes a text")  # noqa: TRY004 - of the pattern
    if name == _NO_CASE:
        fold = str.casefold
    holds = _comparing(name, fold(operand), path)
    return lambda value: isinstance(value, str) and holds(fold(value))


def _comparing(name: str, wanted: str, path: str) -> Callable[[str], bool]:
    match name:
        case "prefix":
            return lambda text: text.startswith(wanted)
        case "suffix":
            return lambda text: text.endswith(wanted)
        case "wildcard":
            return _wildcard(wanted, path)
        case _:
            return lambda text: text == wanted


def _wildcard(wanted: str, path: str) -> Callable[[str], bool]:
    """`*` stands for any characters, or none; a backslash before it, or before another, for it."""
    parts = [""]
    for one in _WILD.findall(wanted):
        if one == "*":
            parts.append("")
        elif one == "\\":
            raise ValueError(f"{path}: in wildcard, a backslash stands before * or another one")
        else:
            parts[-1] += one[-1]
    if "" in parts[1:-1]:
        raise ValueError(f"{path}: wildcard has two * in a row")
    if len(parts) == 1:
        return lambda text: text == parts[0]
    first, *middle, last = parts

    def matches(text: str) -> bool:
        at, end = len(first), len(text) - len(last)
        if at > end or not text.startswith(first) or not text.endswith(last):
            return False
        for part in middle:
            at = text.find(part, at, end)
            if at < 0:
                return False
            at += len(part)
        return True

    return matches


def _equals(wanted: Any, path: str) -> Test:
    if isinstance(wanted, list):
        raise ValueError(f"{path}: a list in a list is no value")  # noqa: TRY004 - of the pattern
    if wanted is None or isinstance(wanted, bool):
        return lambda value: value is wanted
    if isinstance(wanted, str):
        return lambda value: isinstance(value, str) and value == wanted
    return lambda value: (
        isinstance(value, int | float) and not isinstance(value, bool) and value == wanted
    )


def _numeric(operands: list[Any], path: str, *, is_number: bool) -> Test:
    if not operands or len(operands) % 2:
        raise ValueError(f"{path}: numeric takes pairs of an operator and a number")
    comparisons, bounds = list[Callable[[Decimal], bool]](), dict[str, Bound]()
    for operator, bound in zip(operands[::2], operands[1::2], strict=True):
        if isinstance(bound, bool) or not isinstance(bound, int | float):
            raise ValueError(f"{path}: numeric compares with numbers")  # noqa: TRY004
        number = Decimal(str(bound))
        comparisons.append(_comparison(operator, number, path))
        if operator[0] in bounds:
            raise ValueError(f"{path}: numeric has two bounds of one side")
        bounds[operator[0]] = Bound(number, operator.endswith("="))
    if "=" in bounds and len(bounds) > 1:
        raise ValueError(f"{path}: numeric takes = alone")
    if {">", "<"} <= bounds.keys() and not _holds_some(bounds[">"], bounds["<"]):
        raise ValueError(f"{path}: no number is in this range of numeric")

    def matches(value: Any) -> bool:
        number = _decimal(value, is_number=is_number)
        return number is not None and all(compare(number) for compare in comparisons)

    return matches


class Bound(NamedTuple):
    """An end of a range of numbers."""

    number: Decimal
    inclusive: bool


def _holds_some(lower: Bound, upper: Bound) -> bool:
    if lower.number == upper.number:
        return lower.inclusive and upper.inclusive
    return lower.number < upper.number


def _comparison(operator: Any, bound: Decimal, path: str) -> Callable[[Decimal], bool]:
    match operator:
        case "=":
            return lambda number: number == bound
        case "<":
            return lambda number: number < bound
        case "<=":
            return lambda number: number <= bound
        case ">":
            return lambda number: number > bound
        case ">=":
            return lambda number: number >= bound
        case _:
            raise ValueError(f"{path}: numeric knows =, <, <=, > and >=")


def _decimal(value: Any, *, is_number: bool) -> Decimal | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if isinstance(value, str) and not is_number:
        return None
    try:
        return Decimal(str(value))
    except InvalidOperation:
        return None


def _is_leaf(value: Any) -> bool:
    """`exists` is of leaves only, as in EventBridge."""
    return value is not ABSENT and not isinstance(value, dict)


def several(operand: Any) -> list[Any]:
    """An operand, or each of a list of them."""
    return _list(operand) if isinstance(operand, list) else [operand]


def _list(value: Any) -> list[Any]:
    return cast("list[Any]", value)


def _keys(value: Any) -> list[str]:
    return list(cast("dict[str, Any]", value))
