"""What is exported as CSV is read again as it was, and does nothing in a spreadsheet (A24)."""

import csv
from datetime import UTC, datetime
from io import StringIO
from typing import Any

import pytest
from bson.binary import Binary
from bson.datetime_ms import DatetimeMS
from bson.decimal128 import Decimal128
from bson.int64 import Int64
from hypothesis import given
from hypothesis import strategies as st

from penstock.audit.csv import Cell, Kind, header_of, read_cell, rows_of, text_cell, value_cell
from penstock.errors import AuditError

TEXTS = st.text() | st.text(alphabet="=+-@'\"\\,;\r\n\t NEXxT019.eE＝")
FORMULAS = tuple("=+-@\t\r\n＝＋－＠")


def record(number: int = 1, **said: Any) -> dict[str, Any]:
    made: dict[str, Any] = {
        "_id": f"{number:032x}",
        "at": number,
        "ts": datetime(2026, 1, 31, 18, 30, 0, 250_000, tzinfo=UTC),
        "op": "u",
        "meta": {"db": "db", "tbl": "orders", "pk": {"id": number}, "pk_text": str(number)},
        "src": {"binlog": {"file": "mysql-bin.000001", "pos": Int64(4)}},
        "chg": {},
    }
    return made | said


def exported(records: list[dict[str, Any]], *, tz: str = "Asia/Kolkata") -> list[dict[str, str]]:
    """Written, and read by Python's own reader."""
    columns = {name for one in records for name in (*one.get("chg", ()), *one.get("masked", ()))}
    said = any("said" in one for one in records)
    stream = StringIO(newline="")
    lines = csv.writer(stream)
    lines.writerow(header_of(columns, tz=tz, said=said))
    lines.writerows(rows_of(records, columns=sorted(columns), tz=tz, said=said))
    stream.seek(0)
    return list(csv.DictReader(stream, strict=True))


@given(st.lists(st.tuples(TEXTS, TEXTS, TEXTS), min_size=1, max_size=5))
def test_text_is_read_again_as_it_was(texts: list[tuple[str, str, str]]) -> None:
    """Through RFC 4180 as Python's csv module reads it: quotes, commas, ends of lines, anything."""
    records = [
        record(n, meta={"db": "d", "tbl": "t", "pk_text": key}, chg={"v": {"f": old, "t": new}})
        for n, (key, old, new) in enumerate(texts)
    ]
    lines = exported(records)
    assert len(lines) == len(texts)
    for line, (key, old, new) in zip(lines, texts, strict=True):
        assert read_cell(line["Primary_Key"]) == Cell(Kind.TEXT, key)
        assert read_cell(line["v_FROM"]) == Cell(Kind.TEXT, old)
        assert read_cell(line["v_TO"]) == Cell(Kind.TEXT, new)


@given(TEXTS)
def test_no_cell_is_a_formula(text: str) -> None:
    cell = text_cell(text)
    if cell.startswith(FORMULAS):
        float(cell)  # a number is what it is


@given(st.binary())
def test_bytes_are_hex_and_no_text(data: bytes) -> None:
    assert read_cell(value_cell(data)) == Cell(Kind.BYTES, data.hex())


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        (None, "\\N"),
        ("", "\\E"),
        ("\\N", "\\\\N"),
        ("NULL", "NULL"),
        ("=1+1", "'=1+1"),
        ("'=1+1", "''=1+1"),
        ("-1", "-1"),
        ("-1+1", "'-1+1"),
        ("+49 30", "'+49 30"),
        (-5, "-5"),
        (-2.5e300, "-2.5e+300"),
        (Int64(1 << 62), "4611686018427387904"),
        (Decimal128("-1.10"), "-1.10"),
        (True, "true"),
        (0, "0"),
        (float("-inf"), "'-inf"),
        (b"\x00\xff", "\\x00ff"),
        (Binary(b"\x01", 4), '{"$binary":{"base64":"AQ==","subType":"04"}}'),
        ({"a": [1, "ä"]}, '{"a":[1,"ä"]}'),
        (datetime(2026, 1, 31, tzinfo=UTC), "2026-01-31T00:00:00.000Z"),
        (DatetimeMS(1 << 60), "1152921504606846976"),
    ],
)
def test_each_kind_of_value_has_its_form(value: Any, cell: str) -> None:
    assert value_cell(value) == cell


def test_null_empty_text_and_no_column_are_three() -> None:
    """A14."""
    lines = exported(
        [
            record(1, op="i", chg={"a": {"t": None}, "b": {"t": ""}}),
            record(2, op="d", chg={"b": {"f": "x"}}),
            record(3, chg={"a": {"size": 3}}),
            record(4, chg={"a": {"f": "x", "t": "y"}}, masked=["b"]),
        ]
    )
    kinds = [{name: read_cell(line[name]).kind for name in list(line)[9:]} for line in lines]
    absent, null, text, cut = Kind.ABSENT, Kind.NULL, Kind.TEXT, Kind.CUT
    masked = Kind.MASKED
    assert kinds == [
        {"a_FROM": absent, "a_TO": null, "b_FROM": absent, "b_TO": text},
        {"a_FROM": absent, "a_TO": absent, "b_FROM": text, "b_TO": absent},
        {"a_FROM": absent, "a_TO": cut, "b_FROM": absent, "b_TO": absent},
        {"a_FROM": text, "a_TO": text, "b_FROM": masked, "b_TO": masked},
    ]


def test_the_columns_are_those_of_the_design_and_then_the_rows_own_sorted() -> None:
    (line,) = exported([record(1, chg={"z": {"t": 1}, "=a": {"t": 2}})])
    assert line == {
        "Event_ID": f"{1:032x}",
        "Timestamp_UTC": "2026-01-31T18:30:00.250Z",
        "Timestamp_IST": "2026-02-01 00:00:00",
        "Operation": "u",
        "Database": "db",
        "Table": "orders",
        "Primary_Key": "1",
        "Binlog_File": "mysql-bin.000001",
        "Binlog_Position": "4",
        "'=a_FROM": "",
        "'=a_TO": "2",
        "z_FROM": "",
        "z_TO": "1",
    }
    (line,) = exported([record(1)], tz="Europe/Berlin")
    assert line["Timestamp_Local"] == "2026-01-31T19:30:00.250+01:00"
    assert "Timestamp_IST" not in line


def test_what_is_no_row_has_a_column_of_its_own() -> None:
    ddl = record(1, op="ddl", meta={"db": "db", "tbl": ""}, src={}, said={"statement": "=DROP"})
    erased = record(2, erased={"by": 3}, meta={"db": "db", "tbl": "orders"})
    lines = exported([ddl, erased])
    assert [line["Said"] for line in lines] == ['{"statement":"=DROP"}', ""]
    assert read_cell(lines[0]["Primary_Key"]).kind is Kind.ABSENT
    assert lines[0]["Binlog_File"] == lines[0]["Table"] == ""
    assert read_cell(lines[1]["Primary_Key"]).kind is Kind.ERASED


def test_a_column_that_the_first_line_lacks_is_never_left_out() -> None:
    with pytest.raises(AuditError, match="Export again"):
        list(rows_of([record(1, chg={"new": {"t": 1}})], columns=[], tz="UTC", said=False))
