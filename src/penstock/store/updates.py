"""Updates of an item: set, remove, add and delete on paths, as DynamoDB's UpdateItem has them.

    Update().set("a.b", 1).set("n", attr("n") + 1).remove("c").add("hits", 1).delete("tags", {"x"})

An update is a value; `apply` is pure. Every operand is read from the item as it was, so the order
of the actions does not matter; no path may lead to or into another.

Semantics: https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/
Expressions.UpdateExpressions.html. Numbers are exact: a sum of more than 38 digits is an error and
is never rounded (F15).
"""

from collections.abc import Collection, Iterator
from decimal import Context, Decimal, Inexact
from typing import Final, NamedTuple, TypeAlias, cast

from msgspec import Struct

from penstock.store.attributevalue import refuse_number
from penstock.store.conditions import Attr, Literal
from penstock.store.errors import (
    InvalidConditionError,
    KeyAttributeUpdateError,
    UpdateTypeMismatchError,
)
from penstock.store.kinds import SETS, ValueType, type_of
from penstock.store.paths import (
    ABSENT,
    Absent,
    Path,
    PathLike,
    format_path,
    parse_path,
    read,
    refuse_overlaps,
    rewrite,
)
from penstock.store.values import Item, Number, Value, number

WRONG_TYPE: Final = "An operand in the update expression has an incorrect data type"
WRONG_TYPE_LEGACY: Final = "Type mismatch for attribute to update"
WRONG_PATH: Final = "The document path provided in the update expression is invalid for update"
MISSING: Final = "The provided expression refers to an attribute that does not exist in the item"

# The digits of two numbers lie between 1E-167 and 1E+126: none is lost, and if one were, it traps.
_EXACT: Final = Context(prec=300, traps=[Inexact])


class Updated(NamedTuple):
    """What an update found and left."""

    old: Item | None
    new: Item


class IfNotExists(Struct, frozen=True):
    """What the item has at a path, or another value if it has nothing there."""

    path: Path
    value: "SetValue"


class ListAppend(Struct, frozen=True):
    """A list behind another."""

    first: "SetValue"
    second: "SetValue"


class Plus(Struct, frozen=True):
    """A number plus another."""

    left: "SetValue"
    right: "SetValue"


class Minus(Struct, frozen=True):
    """A number minus another."""

    left: "SetValue"
    right: "SetValue"


SetValue: TypeAlias = Literal | Attr | IfNotExists | ListAppend | Plus | Minus
"""What `set` can set: a value, or what is worked out from the item as it was."""


def if_not_exists(path: PathLike, value: SetValue | Value) -> IfNotExists:
    """What the item has at a path, or `value` if it has nothing there."""
    return IfNotExists(parse_path(path), set_value(value))


def list_append(first: SetValue | Value, second: SetValue | Value) -> ListAppend:
    """`second` behind `first`; both are lists: `list_append(attr("log"), ["entry"])`."""
    return ListAppend(set_value(first), set_value(second))


def plus(left: SetValue | Value, right: SetValue | Value) -> Plus:
    """The sum of two numbers: `plus(attr("n"), 1)`."""
    return Plus(set_value(left), set_value(right))


def minus(left: SetValue | Value, right: SetValue | Value) -> Minus:
    """A number less another: `minus(attr("n"), 1)`."""
    return Minus(set_value(left), set_value(right))


def set_value(value: SetValue | Value) -> SetValue:
    """What `set` can set as it is, and anything else as a literal. Raises ValueRefusedError."""
    if isinstance(value, Literal | Attr | IfNotExists | ListAppend | Plus | Minus):
        return value
    return Literal(value)


class SetAction(Struct, frozen=True):
    """Put a value at a path; an index beyond a list's end appends."""

    path: Path
    value: SetValue


class RemoveAction(Struct, frozen=True):
    """Leave nothing at a path; nothing happens if nothing is there."""

    path: Path


class AddAction(Struct, frozen=True):
    """Add to a number, or elements to a set; what is absent begins as 0 or empty."""

    path: Path
    value: Literal


class DeleteAction(Struct, frozen=True):
    """Take elements out of a set; with the last one the attribute goes."""

    path: Path
    value: Literal


Action: TypeAlias = SetAction | RemoveAction | AddAction | DeleteAction


class Update(Struct, frozen=True):
    """What to change, as a value: each method returns a longer update.

    Raises InvalidConditionError for a path that leads to or into another of the update's, or for an
    `add` or `delete` of what cannot be added or deleted.
    """

    actions: tuple[Action, ...] = ()
    legacy: bool = False
    """Given as DynamoDB's AttributeUpdates, whose error texts differ."""

    def __post_init__(self) -> None:
        refuse_overlaps([action.path for action in self.actions])
        for action in self.actions:
            if isinstance(action, AddAction | DeleteAction):
                refuse_operand("ADD" if isinstance(action, AddAction) else "DELETE", action.value)

    def set(self, path: PathLike, value: SetValue | Value) -> "Update":
        """Put a value, or what is worked out from the item as it was, at a path."""
        return self._and(SetAction(parse_path(path), set_value(value)))

    def remove(self, *paths: PathLike) -> "Update":
        """Leave nothing at these paths; what follows in a list moves up."""
        return self._and(*(RemoveAction(parse_path(path)) for path in paths))

    def add(self, path: PathLike, value: Value) -> "Update":
        """Add to a number, or elements to a set."""
        return self._and(AddAction(parse_path(path), Literal(value)))

    def delete(self, path: PathLike, elements: Value) -> "Update":
        """Take elements out of a set."""
        return self._and(DeleteAction(parse_path(path), Literal(elements)))

    def _and(self, *actions: Action) -> "Update":
        return Update((*self.actions, *actions), self.legacy)

    @property
    def paths(self) -> tuple[Path, ...]:
        """What the update changes; UPDATED_OLD and UPDATED_NEW return these."""
        return tuple(action.path for action in self.actions)

    @property
    def creates(self) -> bool:
        """Whether it makes an item where there is none: all do but those that only take away."""
        return not self.actions or any(
            isinstance(action, SetAction | AddAction) for action in self.actions
        )

    def reads(self) -> Iterator[Path]:
        """Every path of which the update needs the value as it was, for what it sets."""
        for action in self.actions:
            if isinstance(action, SetAction):
                yield from _read(action.value)


_TYPE_NAMES: Final = {
    ValueType.STRING: "STRING",
    ValueType.NUMBER: "NUMBER",
    ValueType.BINARY: "BINARY",
    ValueType.BOOLEAN: "BOOLEAN",
    ValueType.NULL: "NULL",
    ValueType.LIST: "LIST",
    ValueType.MAP: "MAP",
}


def refuse_operand(action: str, operand: Literal) -> None:
    """Refuse what cannot be added (ADD) or taken away (DELETE). Raises InvalidConditionError."""
    kind = type_of(operand.value)
    if kind in SETS or (kind is ValueType.NUMBER and action == "ADD"):
        return
    raise InvalidConditionError(
        f"Incorrect operand type for operator or function; operator: {action}, operand type: "
        f"{_TYPE_NAMES[kind]}, typeSet: ALLOWED_FOR_{action}_OPERAND"
    )


def _read(value: SetValue) -> Iterator[Path]:
    match value:
        case Attr(path):
            yield path
        case IfNotExists(path, otherwise):
            yield path
            yield from _read(otherwise)
        case ListAppend(left, right) | Plus(left, right) | Minus(left, right):
            yield from _read(left)
            yield from _read(right)
        case _:
            return


def apply(update: Update, item: Item, *, keys: Collection[str] = ()) -> Item:
    """The item after an update; `item` is what it has before, of a new item its key attributes.

    The item is not changed, and the result shares with it what stays: change neither in place.

    Raises KeyAttributeUpdateError for a path at or in one of `keys`, UpdateTypeMismatchError for an
    action that does not fit what it finds (with DynamoDB's text as `dynamodb`), and
    NumberRefusedError for a number that is not exact in 38 digits.
    """
    refuse_key_updates(update, keys)
    changes = list[tuple[Path, Value | Absent]]()
    missing: list[UpdateTypeMismatchError] = []
    for action in update.actions:
        _refuse_wrong_parent(action.path, item)
    for action in update.actions:
        try:
            changes.append((action.path, _after(action, item)))
        except UpdateTypeMismatchError as error:
            if update.legacy:
                error.dynamodb = WRONG_TYPE_LEGACY
            raise
        except _MissingError as error:
            # DynamoDB tells of a wrong type or path first.
            missing.append(error.told(action.path))
    for action in update.actions:
        if len(action.path) > 1 and read(item, action.path[:-1]) is ABSENT:
            raise _wrong_path(action.path)
    if missing:
        raise missing[0]
    return rewrite(item, changes)


def refuse_key_updates(update: Update, keys: Collection[str]) -> None:
    """Raise KeyAttributeUpdateError for a path at or in one of `keys`."""
    for action in update.actions:
        if action.path[0] in keys:
            raise KeyAttributeUpdateError(str(action.path[0]))


class _MissingError(Exception):
    def __init__(self, path: Path) -> None:
        self.path = path
        super().__init__(format_path(path))

    def told(self, target: Path) -> UpdateTypeMismatchError:
        return UpdateTypeMismatchError(
            f"{format_path(target)!r} is set from {format_path(self.path)!r}, which the item does "
            f"not have. Give a value to begin with: if_not_exists.",
            path=format_path(self.path),
            dynamodb=MISSING,
        )


def _refuse_wrong_parent(path: Path, item: Item) -> None:
    if len(path) == 1:
        return
    parent = read(item, path[:-1])
    fits = dict if isinstance(path[-1], str) else list
    if not isinstance(parent, Absent | fits):
        raise _wrong_path(path)


def _wrong_path(path: Path) -> UpdateTypeMismatchError:
    kind = "map" if isinstance(path[-1], str) else "list"
    return UpdateTypeMismatchError(
        f"the item has no {kind} at {format_path(path[:-1])!r} that could hold "
        f"{format_path(path)!r}. Set one first.",
        path=format_path(path),
        dynamodb=WRONG_PATH,
    )


def _after(action: Action, item: Item) -> Value | Absent:
    """What is at the action's path after it."""
    match action:
        case SetAction(path, value):
            return _set_to(value, item, path)
        case RemoveAction():
            return ABSENT
        case AddAction(path, Literal(added)):
            before = read(item, path)
            if isinstance(before, Absent):
                return added
            if type_of(before) is not type_of(added):
                raise _mismatch("add", added, before, path)
            if isinstance(before, int | Decimal):
                return _sum(Decimal(before), Decimal(cast("Number", added)))
            return cast("set[str]", before) | cast("set[str]", added)
        case DeleteAction(path, Literal(deleted)):
            before = read(item, path)
            if isinstance(before, Absent):
                return ABSENT
            if type_of(before) is not type_of(deleted):
                raise _mismatch("delete", deleted, before, path)
            return cast("set[str]", before) - cast("set[str]", deleted) or ABSENT


def _set_to(value: SetValue, item: Item, target: Path) -> Value:
    match value:
        case Literal(literal):
            return literal
        case Attr(path):
            found = read(item, path)
            if isinstance(found, Absent):
                raise _MissingError(path)
            return found
        case IfNotExists(path, otherwise):
            found = read(item, path)
            return _set_to(otherwise, item, target) if isinstance(found, Absent) else found
        case ListAppend(first, second):
            lists = [_of_type(ValueType.LIST, each, item, target) for each in (first, second)]
            return [*cast("list[Value]", lists[0]), *cast("list[Value]", lists[1])]
        case Plus(left, right) | Minus(left, right):
            one, other = (
                cast("Number", _of_type(ValueType.NUMBER, each, item, target))
                for each in (left, right)
            )
            return _sum(Decimal(one), Decimal(other), negative=isinstance(value, Minus))


def _of_type(kind: ValueType, value: SetValue, item: Item, target: Path) -> Value:
    found = _set_to(value, item, target)
    if type_of(found) is not kind:
        raise UpdateTypeMismatchError(
            f"{format_path(target)!r} is to be set from a value of type {type_of(found)}, where "
            f"one of type {kind} is needed.",
            path=format_path(target),
            dynamodb=WRONG_TYPE,
        )
    return found


def _mismatch(verb: str, operand: Value, found: Value, path: Path) -> UpdateTypeMismatchError:
    return UpdateTypeMismatchError(
        f"cannot {verb} a value of type {type_of(operand)}: {format_path(path)!r} is of type "
        f"{type_of(found)}.",
        path=format_path(path),
        dynamodb=WRONG_TYPE,
    )


def _sum(one: Decimal, other: Decimal, *, negative: bool = False) -> Number:
    exact = _EXACT.subtract(one, other) if negative else _EXACT.add(one, other)
    if not exact:
        return 0
    digits = "".join(map(str, exact.as_tuple().digits)).rstrip("0")
    refuse_number(digits=len(digits), leading=exact.adjusted())
    return number(exact)
