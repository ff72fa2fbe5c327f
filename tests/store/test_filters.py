"""Conditions as JSON."""

from typing import Any

import msgspec
import pytest
from hypothesis import given

from penstock.store.conditions import Condition, attr, holds
from penstock.store.documents import from_json
from penstock.store.errors import InvalidConditionError, ValueRefusedError
from penstock.store.filters import DEPTH_MAX, condition_from_json, condition_to_json
from tests.store.anything import conditions

encoder = msgspec.json.Encoder(decimal_format="number")


@given(conditions)
def test_a_condition_is_read_as_it_was_written_over_json(condition: Condition) -> None:
    document: Any = from_json(encoder.encode(condition_to_json(condition)))
    assert condition_from_json(document) == condition


@pytest.mark.parametrize(
    ("document", "condition"),
    [
        ({"Eq": [{"Attr": "a"}, {"Literal": 1}]}, attr("a").eq(1)),
        ({"Ne": [{"Attr": "a.b[0]"}, {"Literal": None}]}, attr("a.b[0]").ne(None)),
        ({"Lt": [{"Attr": ["the.name"]}, {"Attr": "b"}]}, attr(("the.name",)).lt(attr("b"))),
        ({"Between": [{"Attr": "a"}, {"Literal": 1}, {"Literal": 2}]}, attr("a").between(1, 2)),
        ({"BeginsWith": [{"Attr": "a"}, {"Literal": "x"}]}, attr("a").begins_with("x")),
        ({"Contains": [{"Attr": "a"}, {"Value": {"B": "AQ=="}}]}, attr("a").contains(b"\x01")),
        ({"AttributeExists": {"Attr": "a"}}, attr("a").exists()),
        ({"AttributeExists": [{"Attr": "a"}]}, attr("a").exists()),
        ({"AttributeNotExists": [{"Attr": "a"}]}, attr("a").not_exists()),
        ({"AttributeType": [{"Attr": "a"}, {"Literal": "SS"}]}, attr("a").type_is("SS")),
        ({"Ge": [{"Size": {"Attr": "a"}}, {"Literal": 2}]}, attr("a").size().ge(2)),
        ({"In": [{"Attr": "a"}, {"Literal": 1}, {"Literal": 2}]}, attr("a").in_(1, 2)),
        ({"Not": [{"AttributeExists": {"Attr": "a"}}]}, ~attr("a").exists()),
        (
            {"Or": [{"AttributeExists": {"Attr": "a"}}, {"AttributeExists": {"Attr": "b"}}]},
            attr("a").exists() | attr("b").exists(),
        ),
    ],
)
def test_the_documented_forms_are_read(document: object, condition: Condition) -> None:
    assert condition_from_json(document) == condition


@pytest.mark.parametrize(
    "document",
    [
        *[None, {}, [], "Eq", {"Eq": 1}, {"Eq": []}, {"Eq": [{"Attr": "a"}]}, {"Like": []}],
        {"Eq": [{"Attr": "a"}, {"Literal": 1}], "Ne": []},
        {"Eq": [{"Attr": "a"}, 1]},
        {"Eq": [{"Attr": 1}, {"Literal": 1}]},
        {"Eq": [{"Attr": "a..b"}, {"Literal": 1}]},
        {"Eq": [{"Attr": [["a"]]}, {"Literal": 1}]},
        {"Eq": [{"Size": {"Size": {"Attr": "a"}}}, {"Literal": 1}]},
        {"And": []},
        {"And": [1]},
        {"In": [{"Attr": "a"}]},
        {"AttributeExists": {"Literal": "a"}},
        {"AttributeType": [{"Attr": "a"}, {"Literal": "X"}]},
        {"AttributeType": [{"Attr": "a"}, {"Attr": "b"}]},
    ],
)
def test_what_is_no_condition_is_refused_and_says_what_is(document: object) -> None:
    with pytest.raises(InvalidConditionError):
        condition_from_json(document)


def test_a_float_in_a_literal_is_refused() -> None:
    with pytest.raises(ValueRefusedError, match="from_json"):
        condition_from_json({"Eq": [{"Attr": "a"}, {"Literal": 0.1}]})


def nested(depth: int) -> dict[str, Any]:
    document: dict[str, Any] = {"AttributeExists": {"Attr": "a"}}
    for _ in range(depth - 1):
        document = {"Not": document}
    return document


def test_conditions_are_nested_sixteen_deep_and_no_deeper() -> None:
    deepest = condition_from_json(nested(DEPTH_MAX))
    assert holds(deepest, {}) is (DEPTH_MAX % 2 == 0)
    assert condition_to_json(deepest) == nested(DEPTH_MAX)
    with pytest.raises(InvalidConditionError, match="16 deep"):
        condition_from_json(nested(DEPTH_MAX + 1))
    with pytest.raises(InvalidConditionError, match="16 deep"):
        condition_to_json(~deepest)
