"""Values of columns: what comes of each type, and that what our endpoint says comes back."""

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.extjson import encode
from penstock.sources.zero.values import decoder
from penstock.zero.messages import ColumnSpec
from penstock.zero.types import column_spec, converter


def read(kind: str, value: str, *, as_text: bool = False, **classes: str) -> str:
    """A value of a type, read."""
    spec = ColumnSpec(
        pos=1,
        data_type=kind,
        pg_type_class=classes.get("pg"),
        elem_pg_type_class=classes.get("element", "b" if kind.endswith("[]") else None),
    )
    return decoder(spec, json_as_text=as_text)(value.encode()).decode()


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("text", '"a\\u00e9"', '"aé"'),
        ("varchar(10)", '"x"', '"x"'),
        ("uuid", '"x"', '"x"'),
        ("int4", "5", "5"),
        ("int8", "5", '{"$numberLong":"5"}'),
        ("bigint", "9007199254740993", "9007199254740993"),
        ("numeric(10, 2)", "1.10", '{"$numberDecimal":"1.10"}'),
        ("float8", "3", "3.0"),
        ("double precision", "1e22", "1e+22"),
        ("bool", "true", "true"),
        ("timestamptz", "0", '{"$date":"1970-01-01T00:00:00.000Z"}'),
        ("timestamptz", "1700000000123.456", '{"$date":"2023-11-14T22:13:20.123456Z"}'),
        ("timestamptz", "-1", '{"$date":{"$numberLong":"-1"}}'),
        ("TIMESTAMP", "1700000000123.456", '"2023-11-14 22:13:20.123456"'),
        ("timestamp(0) without time zone", "0", '"1970-01-01 00:00:00"'),
        ("date", "-86400000", '"1969-12-31"'),
        ("time", "86399999.999", '"23:59:59.999999"'),
        ("time", "-3723000", '"-01:02:03"'),
        ("json", '{"a":[1,2.0,null,"x"]}', '{"a":[1,2.0,null,"x"]}'),
        ("jsonb", "5000000000", "5000000000"),
        ("jsonb", "[1.10,0.1]", "[1.1,0.1]"),
        ("jsonb", "0.12345678901234567890", '{"$numberDecimal":"0.12345678901234567890"}'),
        ("jsonb", '{"a":1e-400}', '{"a":{"$numberDecimal":"1E-400"}}'),
        ("timestamptz", "9007199254740991", '{"$date":{"$numberLong":"9007199254740991"}}'),
        ("text[]", '["a",null,["b"]]', '["a",null,["b"]]'),
        ("int8[]", "[1]", '[{"$numberLong":"1"}]'),
        ("json[]", "[[1],{}]", "[[1],{}]"),
        ("bytea", '"\\\\x00"', '"\\\\x00"'),
    ],
)
def test_a_value_has_the_type_that_was_announced(kind: str, value: str, expected: str) -> None:
    """Z8: integers are exact, of any size."""
    assert read(kind, value) == expected


def test_an_enumeration_is_text_whatever_its_name() -> None:
    assert read("int4", '"red"', pg="e") == '"red"'
    assert read("int4[]", '["red"]', element="e") == '["red"]'


def test_json_may_come_as_its_text() -> None:
    assert read("json", '"{\\"raw\\":  1}"', as_text=True) == '{"raw":1}'
    assert read("json", '" \\"x\\""', as_text=True) == '"x"'


@pytest.mark.parametrize(
    ("kind", "value", "why"),
    [
        ("text", "5", "a number where text"),
        ("text", '"\\ud800"', "lone surrogate"),
        ("int4", "5.0", "where an integer"),
        ("int8", str(1 << 64), "beyond 64 bits"),
        ("float8", "1e999", "double's range"),
        ("bool", "1", "where a boolean"),
        ("date", "1", "midnight"),
        ("timestamptz", "1e30", "beyond 64 bits"),
        ("timestamp", "1e18", "four digits"),
        ("json", '{"a":1e999}', "double's range"),
        ("json", '{"$oid":"x"}', "reserves"),
        ("json", str(1 << 70), "64 bits"),
        ("int8[]", "{}", "where an array"),
    ],
)
def test_what_has_no_exact_form_is_refused(kind: str, value: str, why: str) -> None:
    """Invariant 10."""
    with pytest.raises(ValueError, match=why):
        read(kind, value)


plain: Any = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 53) + 1, (1 << 53) - 1)
    | st.floats(-1e15, 1e15)
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.text(max_size=5).filter(lambda name: "$" not in name), inner, max_size=4
        )
    ),
    max_leaves=12,
)
instants = st.datetimes(datetime(1971, 1, 1), datetime(2248, 1, 1)).map(  # noqa: DTZ001
    lambda one: one.replace(tzinfo=UTC)
)


@given(
    st.one_of(
        st.tuples(st.just("text"), st.text(max_size=20)),
        st.tuples(st.just("int"), st.integers(1 << 31, (1 << 53) - 1)),
        st.tuples(st.just("double"), st.floats(-1e15, 1e15)),
        st.tuples(st.just("bool"), st.booleans()),
        st.tuples(st.just("timestamp"), instants),
        st.tuples(st.just("json"), plain),
        st.tuples(st.just("text[]"), st.lists(st.none() | st.text(max_size=5), max_size=4)),
    )
)
def test_what_our_endpoint_says_of_a_value_is_the_value(case: tuple[str, Any]) -> None:
    kind, value = case
    written = bytes(encode({"v": value}))[len(b'{"v":') : -1]
    if written == b"null":
        return
    spec = column_spec(kind, pos=1, not_null=False)
    on_wire = converter(kind)(written)
    read = decoder(spec, json_as_text=False)(on_wire)
    if kind == "double":  # which may be written with an exponent, or without
        assert repr(float(json.loads(read))) == repr(value)
    else:
        assert read == written


@given(st.decimals(allow_nan=False, allow_infinity=False))
def test_every_digit_of_a_decimal_is_kept(value: Decimal) -> None:
    text = json.dumps(str(value).replace("E", "e"))
    (digits,) = json.loads(read("numeric", text)).values()
    assert Decimal(digits) == value
