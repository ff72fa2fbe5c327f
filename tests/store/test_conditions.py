"""Conditions on an item."""

from base64 import b64decode
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given

from penstock.store.attributevalue import encode_attribute
from penstock.store.conditions import (
    And,
    Attr,
    BeginsWith,
    Between,
    Comparison,
    Condition,
    Contains,
    Exists,
    In,
    Literal,
    Not,
    NotExists,
    Or,
    TypeIs,
    attr,
    holds,
    paths_of,
)
from penstock.store.errors import InvalidConditionError, ValueRefusedError
from penstock.store.paths import ABSENT, read
from penstock.store.values import Item, Value, encode_value
from tests.store.anything import conditions, small_items, small_values
from tests.store.support import name_of

ITEM: Item = {
    "price": 10,
    "half": Decimal("0.5"),
    "name": "blüte",
    "raw": b"\x01\x02",
    "on": True,
    "gone": None,
    "tags": {"x", "y"},
    "sizes": {1, Decimal("2.5")},
    "list": [1, "x", {"deep": [True]}],
    "map": {"k": 1, "j": "2"},
}


@pytest.mark.parametrize(
    "condition",
    [
        attr("price").eq(Decimal("10.00")),
        attr("price").gt(attr("half")),
        attr("price").between(10, 10),
        attr("price").in_("x", 10),
        attr("price").ne("10"),
        attr("half").lt(1),
        attr("name").gt("blut"),  # ü is two bytes from C3 on, and u is 75
        attr("name").begins_with("bl"),
        attr("name").contains("üt"),
        attr("raw").begins_with(b"\x01"),
        attr("raw").contains(b"\x02"),
        attr("raw").lt(b"\x01\x03"),
        attr("on").eq(True),
        attr("gone").eq(None),
        attr("gone").exists(),
        attr("nothing").not_exists(),
        attr("nothing").ne(1),
        attr("tags").contains("x"),
        attr("tags").eq({"y", "x"}),
        attr("sizes").contains(Decimal("1.0")),
        attr("list").contains({"deep": [True]}),
        attr("list[2].deep[0]").eq(True),
        attr("list[2]").ne({"deep": [1]}),
        attr("list").eq([Decimal("1.0"), "x", {"deep": [True]}]),
        attr("map").eq({"j": "2", "k": Decimal(1)}),
        attr("map").type_is("M"),
        attr("gone").type_is("NULL"),
        attr("name").size().eq(5),
        attr("raw").size().le(2),
        attr("list").size().gt(attr("map").size()),
        attr("price").gt(9) & attr("price").lt(11),
        attr("price").gt(11) | attr("on").eq(True),
        ~attr("price").gt(11),
    ],
    ids=name_of,
)
def test_it_holds(condition: Condition) -> None:
    assert holds(condition, ITEM)
    assert not holds(~condition, ITEM)


@pytest.mark.parametrize(
    "condition",
    [
        attr("on").eq(1),  # though True == 1 in Python
        attr("price").eq(True),
        attr("price").gt("1"),
        attr("name").lt(5),
        attr("on").lt(2),
        attr("gone").le(None),
        attr("list").ge([0]),
        attr("price").between("1", "2"),
        attr("nothing").eq(attr("nothing too")),
        attr("nothing").lt(1),
        attr("nothing").in_(None),
        attr("nothing").contains("x"),
        attr("nothing").size().ge(0),
        attr("price").size().ge(0),
        attr("on").size().ge(0),
        attr("gone").not_exists(),
        attr("list").contains(Decimal("1.5")),
        attr("list[2].deep").contains(1),
        attr("list[2].deep").eq([1]),
        attr("list").contains({"deep": [1]}),
        attr("tags").contains({"x"}),
        attr("tags").begins_with("x"),
        attr("price").begins_with("1"),
        attr("name").contains(b"b"),
        attr("sizes").contains(True),
        attr("map").contains("k"),
    ],
    ids=name_of,
)
def test_it_does_not_hold(condition: Condition) -> None:
    assert not holds(condition, ITEM)


def test_of_no_item_every_attribute_is_absent() -> None:
    assert holds(attr("id").not_exists(), None)
    assert not holds(attr("id").exists(), None)
    assert not holds(attr("id").eq(None), None)


def test_the_size_of_a_string_is_its_utf_16_units_as_dynamodb_counts() -> None:
    assert holds(attr("s").size().eq(3), {"s": "é𝄞"})


def test_numbers_beyond_a_float_are_told_apart() -> None:
    """F15."""
    item: Item = {"n": 2**53 + 1}
    assert not holds(attr("n").eq(2**53), item)
    assert holds(attr("n").gt(2**53), item)
    assert holds(attr("n").lt(Decimal("9007199254740993.0000000000000000000001")), item)


def test_and_between_conditions_is_not_pythons() -> None:
    with pytest.raises(TypeError, match=r"&, \| and ~"):
        bool(attr("a").eq(1))  # as in `attr("a").eq(1) and attr("b").eq(2)`
    with pytest.raises(InvalidConditionError):
        _ = attr("a").eq(1) & True  # type: ignore[operator]


def test_joined_conditions_are_one_list() -> None:
    one, two, three = attr("a").eq(1), attr("b").eq(2), attr("c").eq(3)
    assert (one & two) & three == And((one, two, three)) == one & (two & three)
    assert (one | two) | three == Or((one, two, three))
    assert (one & two) | three == Or((And((one, two)), three))


def test_a_condition_keeps_the_value_that_it_was_given() -> None:
    wanted: list[Any] = [1]
    condition = attr("l").eq(wanted)
    wanted.append(2)
    assert holds(condition, {"l": [1]})


@given(small_values, small_values)
def test_literals_are_equal_if_their_canonical_bytes_are(one: Value, other: Value) -> None:
    same = encode_value(one) == encode_value(other)
    assert (Literal(one) == Literal(other)) is same
    if same:
        assert hash(Literal(one)) == hash(Literal(other))


def test_what_means_nothing_is_refused() -> None:
    with pytest.raises(InvalidConditionError, match="number of operands: 101"):
        attr("a").in_(*range(101))
    with pytest.raises(InvalidConditionError):
        attr("a").in_()
    with pytest.raises(InvalidConditionError, match="no type"):
        attr("a").type_is("STRING")
    with pytest.raises(InvalidConditionError):
        attr("")
    with pytest.raises(ValueRefusedError):
        attr("a").eq(0.1)  # type: ignore[arg-type]


def test_conditions_nested_as_deeply_as_expressions_may_be_are_decided() -> None:
    condition: Condition = attr("a").eq(1)
    for _ in range(75):
        condition = ~(attr("b").eq(2) | ~(condition & attr("a").eq(1)))
    assert holds(condition, {"a": 1})


# --- against a model that knows values only as DynamoDB's JSON ------------------------------------


def model(condition: Condition, item: Item) -> bool:
    match condition:
        case And(conditions):
            return all(model(each, item) for each in conditions)
        case Or(conditions):
            return any(model(each, item) for each in conditions)
        case Not(negated):
            return not model(negated, item)
        case Exists(path):
            return read(item, path) is not ABSENT
        case NotExists(path):
            return read(item, path) is ABSENT
        case TypeIs(path, kind):
            found = typed(Attr(path), item)
            return found is not None and kind.value in found
        case Comparison(comparator, left, right):
            return compared(comparator.value, typed(left, item), typed(right, item))
        case Between(operand, low, high):
            value = typed(operand, item)
            return compared(">=", value, typed(low, item)) and compared(
                "<=", value, typed(high, item)
            )
        case In(operand, choices):
            value = typed(operand, item)
            return any(compared("=", value, typed(each, item)) for each in choices)
        case BeginsWith(operand, prefix):
            one, other = typed(operand, item), typed(prefix, item)
            if one is None or other is None or one.keys() != other.keys() or not {*one} & {*"SB"}:
                return False
            start = ordered(other)
            return bool(ordered(one)[: len(start)] == start)
        case Contains(operand, element):
            one, other = typed(operand, item), typed(element, item)
            if one is None or other is None:
                return False
            (whole, content), (part, element_) = *one.items(), *other.items()
            if whole in {"S", "B"}:
                return whole == part and ordered(other) in ordered(one)
            if whole in {"SS", "NS", "BS"}:
                return whole == f"{part}S" and element_ in content
            return whole == "L" and other in content
        case _:
            raise AssertionError(condition)


def typed(operand: Any, item: Item) -> dict[str, Any] | None:
    if isinstance(operand, Literal):
        return encode_attribute(operand.value)
    if isinstance(operand, Attr):
        found: Any = read(item, operand.path)
        return None if found is ABSENT else encode_attribute(found)
    measured = typed(operand.of, item)
    if measured is None:
        return None
    ((kind, content),) = measured.items()
    match kind:
        case "S":
            return {"N": str(sum(1 + (ord(character) > 0xFFFF) for character in content))}
        case "B":
            return {"N": str(len(b64decode(content)))}
        case "SS" | "NS" | "BS" | "L" | "M":
            return {"N": str(len(content))}
        case _:
            return None


def ordered(value: dict[str, Any]) -> Any:
    ((kind, content),) = value.items()
    match kind:
        case "S":
            return content.encode()
        case "B":
            return b64decode(content)
        case "N":
            return Fraction(content)
        case _:
            return None


def compared(sign: str, one: dict[str, Any] | None, other: dict[str, Any] | None) -> bool:
    if sign == "<>":
        return one is None or other is None or one != other
    if one is None or other is None or one.keys() != other.keys():
        return False
    if sign == "=":
        return one == other
    left, right = ordered(one), ordered(other)
    if left is None:
        return False
    return bool(
        {"<": left < right, "<=": left <= right, ">": left > right, ">=": left >= right}[sign]
    )


@given(conditions, small_items)
def test_it_holds_if_it_does_of_dynamodbs_json(condition: Condition, item: Item) -> None:
    assert holds(condition, item) is model(condition, item)


@given(conditions, small_items)
def test_what_it_does_not_read_does_not_matter(condition: Condition, item: Item) -> None:
    heads = {path[0] for path in paths_of(condition)}
    read_of = {name: value for name, value in item.items() if name in heads}
    assert holds(condition, item) is holds(condition, read_of)
