"""What the trail keeps of a value is that value."""

import bson
from bson.datetime_ms import DatetimeMS

from penstock.audit.fold import decoded
from penstock.audit.records import record_of
from penstock.audit.values import document_of
from tests.audit.support import row


def test_an_instant_between_two_milliseconds_is_not_cut() -> None:
    """BSON's instants have milliseconds; a TIMESTAMP(6) has more."""
    said = '{"a":{"$date":"2026-01-31T23:59:59.123Z"},"b":{"$date":"2026-01-31T23:59:59.123456Z"}}'
    kept = decoded(bson.encode(document_of(said) or {}))
    assert kept["a"] == DatetimeMS(1_769_903_999_123)
    assert kept["b"] == {"$date": "2026-01-31T23:59:59.123456Z"}


def test_an_insert_that_lacks_columns_says_so() -> None:
    record = record_of(row(1, after={"id": 1}, unchanged=["n"]), tz="UTC")
    assert record is not None
    assert record["flags"] == {"partial": True}
    whole = record_of(row(1, after={"id": 1}), tz="UTC")
    assert whole is not None
    assert "flags" not in whole
