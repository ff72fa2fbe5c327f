"""Every value of the log has one in MongoDB, and no digit is lost."""

from decimal import Decimal
from typing import Any

import bson
import pytest
from bson.datetime_ms import DatetimeMS
from bson.decimal128 import Decimal128
from bson.int64 import Int64
from hypothesis import given
from hypothesis import strategies as st

from penstock.audit.fold import decoded
from penstock.audit.values import document_of


def value(written: str) -> Any:
    document = document_of('{"v":' + written + "}")
    assert document is not None
    stored = decoded(bson.encode(document))
    assert bson.encode(stored) == bson.encode(document), "it is stored as it is read"
    return document["v"]


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("5", 5),
        ("5000000000", 5_000_000_000),
        ('{"$numberLong":"5"}', Int64(5)),
        ("18446744073709551615", Decimal128("18446744073709551615")),
        ("3.0", 3.0),
        ('{"$numberDecimal":"1.10"}', Decimal128("1.10")),
        ('{"$numberDecimal":"-0.00"}', Decimal128("-0.00")),
        ('{"$date":"2026-01-01T00:00:00.123Z"}', DatetimeMS(1_767_225_600_123)),
        ('{"$date":{"$numberLong":"-99999999999999999"}}', DatetimeMS(-99_999_999_999_999_999)),
        ('{"$binary":{"base64":"AAE=","subType":"00"}}', b"\0\1"),
        ('"2026-00-00"', "2026-00-00"),
        ('["x",null,true]', ["x", None, True]),
        ('{"$ref":"a","$id":5}', {"$ref": "a", "$id": 5}),
        ('{"$symbol":"x"}', {"$symbol": "x"}),
    ],
)
def test_a_value_is_kept_as_what_it_is(written: str, expected: Any) -> None:
    """A28."""
    found = value(written)
    assert (type(found), found) == (type(expected), expected)


@given(st.decimals(allow_nan=False, allow_infinity=False, places=30))
def test_a_decimal_has_all_of_its_digits(number: Decimal) -> None:
    """A28: those that Decimal128 cannot hold are text."""
    digits = format(number, "f")
    found = value('{"$numberDecimal":"' + digits + '"}')
    kept = found if isinstance(found, str) else str(found.to_decimal())
    assert Decimal(kept) == number
    assert Decimal(kept).as_tuple().exponent == number.as_tuple().exponent


@given(st.integers(0, 2**64 - 1))
def test_an_integer_of_64_bits_without_a_sign_is_exact(number: int) -> None:
    found = value(str(number))
    assert int(found.to_decimal() if isinstance(found, Decimal128) else found) == number


def test_an_instant_between_two_milliseconds_is_not_cut() -> None:
    """BSON's instants have milliseconds; a TIMESTAMP(6) has more."""
    said = '{"a":{"$date":"2026-01-31T23:59:59.123Z"},"b":{"$date":"2026-01-31T23:59:59.123456Z"}}'
    kept = decoded(bson.encode(document_of(said) or {}))
    assert kept["a"] == DatetimeMS(1_769_903_999_123)
    assert kept["b"] == {"$date": "2026-01-31T23:59:59.123456Z"}
