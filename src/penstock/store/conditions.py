"""Conditions on an item, as DynamoDB has them.

    attr("price").gt(10) & ~attr("tags").contains("sold")

Conditions are values: frozen, built by `attr`, read from JSON (`penstock.store.filters`) or from
DynamoDB's expressions (`penstock.store.expressions`), and decided by `holds`, which is pure.

Semantics: https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/
Expressions.OperatorsAndFunctions.html. Values of different types are never equal and have no order.
Where an operand is absent every comparison is false but `ne`, which says that two operands are not
the same value; null is a value.
"""

from collections.abc import Iterator
from enum import StrEnum
from typing import Any, NoReturn, TypeAlias, cast

from msgspec import Struct
from msgspec.structs import force_setattr

from penstock.store.errors import InvalidConditionError
from penstock.store.kinds import SETS, ValueType, canonical, compare, equal, type_of
from penstock.store.paths import ABSENT, Absent, Path, PathLike, parse_path, read
from penstock.store.values import Item, Value, encode_value

IN_MAX = 100
"""How many values `in_` may list, as DynamoDB's IN."""


class Comparator(StrEnum):
    """How two values are compared; the signs are those of DynamoDB's expressions."""

    EQ = "="
    NE = "<>"
    LT = "<"
    LE = "<="
    GT = ">"
    GE = ">="


class Condition(Struct, frozen=True):
    """What may hold of an item. Combine with `&`, `|` and `~`."""

    def __and__(self, other: "Condition") -> "And":
        return And((*_parts(And, self), *_parts(And, other)))

    def __or__(self, other: "Condition") -> "Or":
        return Or((*_parts(Or, self), *_parts(Or, other)))

    def __invert__(self) -> "Not":
        return Not(self)

    def __bool__(self) -> NoReturn:
        # `a and b` would silently be b.
        raise TypeError("combine conditions with &, | and ~, not with and, or and not")


def _parts(kind: "type[And | Or]", condition: Condition) -> tuple[Condition, ...]:
    if not isinstance(condition, Condition):
        raise InvalidConditionError(f"{condition!r} is no condition")
    return condition.conditions if isinstance(condition, kind) else (condition,)


class Literal(Struct, frozen=True, eq=False):
    """A value. Equal to another of the same canonical bytes: `Literal(1)` is not `Literal(True)`.

    Raises ValueRefusedError for what a store cannot hold.
    """

    value: Value

    def __post_init__(self) -> None:
        # A copy: what the caller does to a list afterwards is not part of the condition.
        force_setattr(self, "value", canonical(self.value))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Literal) and equal(self.value, other.value)

    def __hash__(self) -> int:
        return hash(encode_value(self.value))


class _Measured(Struct, frozen=True):
    """An operand that is read from the item, with the comparisons that conditions begin with."""

    def eq(self, other: "Operand | Value") -> "Comparison":
        """The two are the same value."""
        return Comparison(Comparator.EQ, self._operand(), operand(other))

    def ne(self, other: "Operand | Value") -> "Comparison":
        """The two are not the same value; true where either is absent."""
        return Comparison(Comparator.NE, self._operand(), operand(other))

    def lt(self, other: "Operand | Value") -> "Comparison":
        """Of one type, and it comes before `other`."""
        return Comparison(Comparator.LT, self._operand(), operand(other))

    def le(self, other: "Operand | Value") -> "Comparison":
        """Of one type, and it does not follow `other`."""
        return Comparison(Comparator.LE, self._operand(), operand(other))

    def gt(self, other: "Operand | Value") -> "Comparison":
        """Of one type, and it follows `other`."""
        return Comparison(Comparator.GT, self._operand(), operand(other))

    def ge(self, other: "Operand | Value") -> "Comparison":
        """Of one type, and it does not come before `other`."""
        return Comparison(Comparator.GE, self._operand(), operand(other))

    def between(self, low: "Operand | Value", high: "Operand | Value") -> "Between":
        """Of one type with both, and neither before `low` nor behind `high`."""
        return Between(self._operand(), operand(low), operand(high))

    def in_(self, *choices: "Operand | Value") -> "In":
        """The same value as one of at most 100."""
        return In(self._operand(), tuple(operand(choice) for choice in choices))

    def _operand(self) -> "Operand":
        return cast("Operand", self)


class Attr(_Measured, frozen=True):
    """What an item has at a path. `attr` makes one."""

    path: Path

    def __post_init__(self) -> None:
        parse_path(self.path)

    def begins_with(self, prefix: "Operand | Value") -> "BeginsWith":
        """A string or bytes that begin with `prefix`."""
        return BeginsWith(self, operand(prefix))

    def contains(self, element: "Operand | Value") -> "Contains":
        """A string or bytes with this part, or a set or list with this element."""
        return Contains(self, operand(element))

    def exists(self) -> "Exists":
        """The item has something here, be it null."""
        return Exists(self.path)

    def not_exists(self) -> "NotExists":
        """The item has nothing here."""
        return NotExists(self.path)

    def type_is(self, kind: "ValueType | str") -> "TypeIs":
        """The value is of a type, by DynamoDB's name of it: S, N, B, BOOL, NULL, L, M, SS, ..."""
        if kind not in set(ValueType):
            raise InvalidConditionError(
                f"{kind!r} is no type of value; the types are {', '.join(ValueType)}"
            )
        return TypeIs(self.path, ValueType(kind))

    def size(self) -> "Size":
        """How large the value is (`Size`)."""
        return Size(self)


class Size(_Measured, frozen=True):
    """How large a value is; absent for a number, a bool or null.

    A string's UTF-16 code units (as DynamoDB counts: é𝄞 is 3), bytes, or the elements of a list,
    map or set.
    """

    of: "Attr | Literal"


Operand: TypeAlias = Attr | Literal | Size


def attr(path: PathLike) -> Attr:
    """What an item has at a path: `attr("a.b[3]")`, or `attr(("a.name.with.dots", 3))`.

    Raises InvalidConditionError if it is no path.
    """
    return Attr(parse_path(path))


def operand(value: Operand | Value) -> Operand:
    """An operand as it is, and anything else as a literal. Raises ValueRefusedError."""
    return value if isinstance(value, Attr | Literal | Size) else Literal(value)


class Comparison(Condition, frozen=True):
    """Two operands compare so."""

    comparator: Comparator
    left: Operand
    right: Operand


class Between(Condition, frozen=True):
    """An operand is neither before `low` nor behind `high`."""

    operand: Operand
    low: Operand
    high: Operand


class In(Condition, frozen=True):
    """An operand is the same value as one of these."""

    operand: Operand
    choices: tuple[Operand, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.choices) <= IN_MAX:
            raise InvalidConditionError(
                f"The IN operator is provided with too many operands; number of operands: "
                f"{len(self.choices)}"
                if self.choices
                else "IN needs something to be in"
            )


class BeginsWith(Condition, frozen=True):
    """A string or bytes begin with these."""

    operand: Operand
    prefix: Operand


class Contains(Condition, frozen=True):
    """A string or bytes have this part, or a set or list has this element."""

    operand: Operand
    element: Operand


class Exists(Condition, frozen=True):
    """The item has something at a path."""

    path: Path


class NotExists(Condition, frozen=True):
    """The item has nothing at a path."""

    path: Path


class TypeIs(Condition, frozen=True):
    """What the item has at a path is of a type."""

    path: Path
    type: ValueType


class And(Condition, frozen=True):
    """All hold."""

    conditions: tuple[Condition, ...]


class Or(Condition, frozen=True):
    """One of them holds."""

    conditions: tuple[Condition, ...]


class Not(Condition, frozen=True):
    """It does not hold."""

    condition: Condition


def holds(condition: Condition, item: Item | None) -> bool:
    """Whether a condition holds of an item; None is no item, of which every attribute is absent."""
    return _holds(condition, {} if item is None else item)


def _holds(condition: Condition, item: Item) -> bool:
    match condition:
        case Comparison(comparator, left, right):
            return _compares(comparator, _value(left, item), _value(right, item))
        case And(conditions) | Or(conditions):
            decided = isinstance(condition, Or)
            for each in conditions:  # no generator: it would nest twice as deeply
                if _holds(each, item) is decided:
                    return decided
            return not decided
        case Not(negated):
            return not _holds(negated, item)
        case Exists(path):
            return read(item, path) is not ABSENT
        case NotExists(path):
            return read(item, path) is ABSENT
        case TypeIs(path, kind):
            found = read(item, path)
            return not isinstance(found, Absent) and type_of(found) is kind
        case Between(measured, low, high):
            value = _value(measured, item)
            return _compares(Comparator.GE, value, _value(low, item)) and _compares(
                Comparator.LE, value, _value(high, item)
            )
        case In(measured, choices):
            value = _value(measured, item)
            return any(_compares(Comparator.EQ, value, _value(each, item)) for each in choices)
        case BeginsWith(measured, prefix):
            return _begins(_value(measured, item), _value(prefix, item))
        case Contains(measured, element):
            return _contains(_value(measured, item), _value(element, item))
        case _:
            raise InvalidConditionError(f"{condition!r} is no condition")


def _value(measured: Operand, item: Item) -> Value | Absent:
    if isinstance(measured, Literal):
        return measured.value
    if isinstance(measured, Attr):
        return read(item, measured.path)
    return _size(_value(measured.of, item))


def _size(value: Value | Absent) -> Value | Absent:
    if isinstance(value, str):
        return len(value) if value.isascii() else len(value.encode("utf-16-le")) // 2
    if isinstance(value, bytes | list | dict | set | frozenset):
        return len(cast("Any", value))
    return ABSENT


def _compares(comparator: Comparator, left: Value | Absent, right: Value | Absent) -> bool:
    if isinstance(left, Absent) or isinstance(right, Absent):
        return comparator is Comparator.NE
    if comparator is Comparator.EQ:
        return equal(left, right)
    if comparator is Comparator.NE:
        return not equal(left, right)
    order = compare(left, right)
    if order is None:
        return False
    match comparator:
        case Comparator.LT:
            return order < 0
        case Comparator.LE:
            return order <= 0
        case Comparator.GT:
            return order > 0
        case _:
            return order >= 0


def _begins(value: Value | Absent, prefix: Value | Absent) -> bool:
    if isinstance(value, str) and isinstance(prefix, str):
        return value.startswith(prefix)
    return isinstance(value, bytes) and isinstance(prefix, bytes) and value.startswith(prefix)


def _contains(value: Value | Absent, element: Value | Absent) -> bool:
    if isinstance(value, Absent) or isinstance(element, Absent):
        return False
    if isinstance(value, str):
        return isinstance(element, str) and element in value
    if isinstance(value, bytes):
        return isinstance(element, bytes) and element in value
    if isinstance(value, list):
        return any(equal(each, element) for each in value)
    if type_of(value) in SETS:
        return any(equal(each, element) for each in cast("set[str]", value))
    return False


def paths_of(condition: Condition) -> Iterator[Path]:
    """Every path that a condition reads, as often as it does."""
    match condition:
        case And(conditions) | Or(conditions):
            for each in conditions:
                yield from paths_of(each)
        case Not(negated):
            yield from paths_of(negated)
        case Exists(path) | NotExists(path) | TypeIs(path):
            yield path
        case Comparison(_, left, right):
            yield from _read(left, right)
        case Between(measured, low, high):
            yield from _read(measured, low, high)
        case In(measured, choices):
            yield from _read(measured, *choices)
        case BeginsWith(measured, other) | Contains(measured, other):
            yield from _read(measured, other)
        case _:
            raise InvalidConditionError(f"{condition!r} is no condition")


def _read(*operands: Operand) -> Iterator[Path]:
    for each in operands:
        inner = each.of if isinstance(each, Size) else each
        if isinstance(inner, Attr):
            yield inner.path
