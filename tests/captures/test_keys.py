"""A key is found however its number is written and its fields are ordered, and no other is."""

import itertools
import json
from typing import Any

import pytest

from penstock.subscribe.captures.keys import (
    SPELLINGS_MAX,
    forms_of,
    forms_of_stored,
    spellings_of,
)

SAME: list[tuple[Any, ...]] = [
    (1, 1.0, {"$numberLong": "1"}, {"$numberDecimal": "1"}, {"$numberDecimal": "1.00"}),
    (1.5, {"$numberDecimal": "1.5"}, {"$numberDecimal": "1.50"}),
    (0, -0.0, {"$numberDecimal": "0.000"}),
    (2**60, {"$numberDecimal": str(2**60)}),
    ({"$numberDecimal": "12345678901234567890123456789012345678.10"},),
    ({"$numberDecimal": "12345678901234567890123456789012345678.11"},),
    ("1",),
    ("1.50",),
    (True,),
    (None,),
    ([1, 2], [1.0, 2]),
    ([2, 1],),
    ({"$oid": "0" * 24},),
    ({"a": 1, "b": 2}, {"a": 1.0, "b": {"$numberLong": "2"}}),
    ({"b": 2, "a": 1},),
    ({"$numberDecimal": "1E+100000"},),
]
"""Of one field: numbers that are one key, and in a document its order counts."""


def matches(asked: object, stored: dict[str, Any]) -> bool:
    return not {*forms_of(asked)}.isdisjoint(forms_of_stored(json.dumps(stored).encode()))


def test_a_value_is_found_in_each_type_that_it_may_be_stored_in_and_no_other_is() -> None:
    for (i, some), (j, others) in itertools.product(enumerate(SAME), repeat=2):
        for one, other in itertools.product(some, others):
            assert matches(one, {"_id": other}) is (i == j), (one, other)
            assert matches({"_id": one}, {"_id": other}) is (i == j), (one, other)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_fields_of_a_key_have_no_order(order: tuple[int, ...]) -> None:
    fields = [("order", "a"), ("line", 1.0), ("part", 2)]
    stored = {"order": "a", "line": {"$numberDecimal": "1.00"}, "part": 2}
    asked = dict(fields[i] for i in order)
    assert matches(asked, stored)
    assert not matches(asked, {**stored, "part": 3})
    assert not matches({**asked, "more": 1}, stored)


def test_a_row_is_looked_up_in_each_way_that_it_may_be_written() -> None:
    asked = {"b": 2.5, "a": 1.0}
    for stored in (b'{"a":1,"b":{"$numberDecimal":"2.50"}}', b'{"b":2.5,"a":1}'):
        assert stored in spellings_of(asked).texts
    assert b'{"$numberDecimal":"7.00"}' in spellings_of(7).texts
    assert b'{"$numberDecimal":"7E+2"}' in spellings_of(700).texts
    assert b'{"$numberDecimal":"7.0E+2"}' in spellings_of(700).texts
    assert b"1.1" in spellings_of({"$numberDecimal": "1.10"}).texts
    assert b'{"c":3,"b":2,"a":1}' in spellings_of({"a": 1, "b": 2, "c": 3.0}).texts
    assert len(spellings_of(dict.fromkeys("abcdefgh", 1)).texts) == SPELLINGS_MAX


def test_a_row_is_not_looked_up_as_another_number() -> None:
    assert b"1152921504606846976.0" not in spellings_of(2**60 + 1).texts
    long = spellings_of({"$numberDecimal": "12345678901234567890123456789012345678.10"}).texts
    assert b'{"$numberDecimal":"12345678901234567890123456789012345678.1"}' in long
    assert b'{"$numberDecimal":"12345678901234567890123456789012345678"}' not in long


@pytest.mark.parametrize(
    ("key", "complete"),
    [
        (7, True),
        ("a", True),
        ({"$oid": "0" * 24}, True),
        ({"a": 1, "b": 2.5}, True),
        (dict.fromkeys("abc", "x"), True),
        (dict.fromkeys("abcdefg", "x"), True),
        (dict.fromkeys("abcdefgh", "x"), False),
        ({"a": "x", "b": "y", "c": 1}, False),
        ({"a": {"b": 1}}, False),
        ([1], False),
        ([["a"], None], True),
        ({"$numberDecimal": "1E+70"}, False),
        ({"$numberDecimal": "1E-40"}, False),
        ({"a": "x", "b": 10**400}, False),
    ],
    ids=str,
)
def test_it_is_known_whether_a_key_may_be_written_otherwise_too(key: Any, complete: bool) -> None:
    assert spellings_of(key).complete is complete


@pytest.mark.parametrize("text", ["1E+9999999", "-1E-9999999", "1E+999999999999999999"])
def test_a_number_that_no_source_can_store_is_compared_as_it_is_written(text: str) -> None:
    key = {"$numberDecimal": text}
    assert matches(key, {"_id": key})
    assert not matches(key, {"_id": 1})
    assert spellings_of(key).texts == [json.dumps(key, separators=(",", ":")).encode()]
    assert matches({"$numberDecimal": "0E+9999999"}, {"_id": 0})
