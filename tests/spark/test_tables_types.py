"""Every value arrives exactly or not at all, and then its row is in the rejects with the reason."""

import json
import math
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.spark.table.decode import decode_documents, documents_of
from penstock.spark.table.kinds import ARROW_TYPES, Kind
from tests.spark.tables import (
    Entries,
    apply,
    change,
    fold,
    pipeline,
    put,
    rejects_of,
    rows_of,
)

I64 = '{"$numberLong":"%d"}'
DEC = '{"$numberDecimal":"%s"}'


def table_of(tmp_path: Path, *texts: str) -> list[dict[str, Any]]:
    """The rows of documents `{"_id": n, "v": text}` applied in one batch, by `_id`."""
    entries = Entries()
    for number, text in enumerate(texts):
        entries.commit(change(number, "insert", text=f'{{"_id":{number},"v":{text}}}'))
    apply(entries.table(), pipeline(tmp_path / "t"))
    rows = DeltaTable(str(tmp_path / "t")).to_pyarrow_table().to_pylist()
    return sorted(rows, key=lambda row: row["_id"])


def type_of(path: Path, column: str) -> pa.DataType:
    schema: Any = DeltaTable(str(path)).to_pyarrow_table().schema
    kind: pa.DataType = schema.field(column).type
    return kind


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("5", Kind.INT32, 5),
        ("-2147483648", Kind.INT32, -(2**31)),
        ("2147483648", Kind.INT64, 2**31),
        (I64 % 5, Kind.INT64, 5),
        (f"{2**63 - 1}", Kind.INT64, 2**63 - 1),
        (f"{-(2**63)}", Kind.INT64, -(2**63)),
        ("3.0", Kind.DOUBLE, 3.0),
        ("1e300", Kind.DOUBLE, 1e300),
        ("5e-324", Kind.DOUBLE, 5e-324),
        ('{"$numberDouble":"-Infinity"}', Kind.DOUBLE, -math.inf),
        (DEC % "1.10", Kind.DECIMAL, Decimal("1.10")),
        (DEC % "1E+3", Kind.DECIMAL, Decimal(1000)),
        (DEC % "-0.000000000000000001", Kind.DECIMAL, Decimal("-1E-18")),
        (DEC % ("9" * 20 + "." + "9" * 18), Kind.DECIMAL, Decimal("9" * 20 + "." + "9" * 18)),
        ('"x\\u00e9\\ud83d\\ude00\\n"', Kind.STRING, "xé😀\n"),
        ('""', Kind.STRING, ""),
        ("true", Kind.BOOL, True),
        ('{"$oid":"65a1b2c3d4e5f60718293a4b"}', Kind.OBJECT_ID, "65a1b2c3d4e5f60718293a4b"),
        (
            '{"$date":"2026-02-03T04:05:06.789Z"}',
            Kind.TIMESTAMP,
            datetime(2026, 2, 3, 4, 5, 6, 789000, UTC),
        ),
        (
            '{"$date":"2026-02-03T04:05:06.789123Z"}',
            Kind.TIMESTAMP,
            datetime(2026, 2, 3, 4, 5, 6, 789123, UTC),
        ),
        (
            '{"$date":{"$numberLong":"-1"}}',
            Kind.TIMESTAMP,
            datetime(1969, 12, 31, 23, 59, 59, 999000, UTC),
        ),
        (
            '{"$date":{"$numberLong":"-62135596800000"}}',
            Kind.TIMESTAMP,
            datetime(1, 1, 1, tzinfo=UTC),
        ),
        ('{"$binary":{"base64":"AAH/","subType":"00"}}', Kind.BINARY, b"\x00\x01\xff"),
        ('{"a":{"b":[1,3.0,{"$oid":"00"}]}}', Kind.JSON, '{"a":{"b":[1,3.0,{"$oid":"00"}]}}'),
        ("[1,null]", Kind.JSON, "[1,null]"),
        ("{}", Kind.JSON, "{}"),
        ('{"$timestamp":{"t":1,"i":2}}', Kind.JSON, '{"$timestamp":{"t":1,"i":2}}'),
        ('{"$minKey":1}', Kind.JSON, '{"$minKey":1}'),
    ],
)
def test_a_value_of_each_kind_arrives_exactly(
    tmp_path: Path, text: str, kind: Kind, value: Any
) -> None:
    rows = table_of(tmp_path, text)
    assert rows[0]["v"] == value
    assert type_of(tmp_path / "t", "v") == ARROW_TYPES[kind]


def test_not_a_number_is_a_double(tmp_path: Path) -> None:
    assert math.isnan(table_of(tmp_path, '{"$numberDouble":"NaN"}')[0]["v"])


@pytest.mark.parametrize(
    "text",
    [
        DEC % "NaN",
        DEC % "Infinity",
        DEC % "0.1234567890123456789",
        DEC % "100000000000000000000",
        DEC % "1E+6000",
        '{"$date":{"$numberLong":"253402300800000"}}',
        '{"$date":{"$numberLong":"-62135596800001"}}',
    ],
)
def test_a_value_beyond_its_column_is_a_reject_never_null_or_rounded(
    tmp_path: Path, text: str
) -> None:
    good = DEC % "1" if "Decimal" in text else '{"$date":{"$numberLong":"0"}}'
    rows = table_of(tmp_path, good, text)
    assert [row["_id"] for row in rows] == [0]
    reject = rejects_of(tmp_path / "t")[0]
    assert (reject["field"], reject["sequence"], reject["pipeline"]) == ("v", 2, "p")
    assert reject["full_document"] == f'{{"_id":1,"v":{text}}}'


@pytest.mark.parametrize(
    ("texts", "kind", "values"),
    [
        (["1", I64 % 2], Kind.INT32, [1, 2]),
        ([I64 % 2, "1"], Kind.INT64, [2, 1]),
        (["1", "2.5"], Kind.DOUBLE, [1.0, 2.5]),
        (["2.5", "1"], Kind.DOUBLE, [2.5, 1.0]),
        (["1", DEC % "2.5"], Kind.DECIMAL, [Decimal(1), Decimal("2.5")]),
        ([f"{2**62}", DEC % "2.5"], Kind.DECIMAL, [Decimal(2**62), Decimal("2.5")]),
        (["2.5", f"{2**53}"], Kind.DOUBLE, [2.5, 2.0**53]),
        (["1", "5000000000", DEC % "0.5"], Kind.DECIMAL, [1, 5_000_000_000, Decimal("0.5")]),
        (['{"$oid":"00"}', '"x"'], Kind.OBJECT_ID, ["00", "x"]),
        (['{"a":1}', '"x"', "5", "null"], Kind.JSON, ['{"a":1}', '"x"', "5", None]),
    ],
)
@pytest.mark.parametrize("batches", ["one batch", "a batch each"])
def test_a_column_becomes_wider_where_that_keeps_every_value(
    tmp_path: Path, texts: list[str], kind: Kind, values: list[Any], batches: str
) -> None:
    entries = Entries()
    config = pipeline(tmp_path / "t")
    for number, text in enumerate(texts):
        entries.commit(change(number, "insert", text=f'{{"_id":{number},"v":{text}}}'))
        if batches == "a batch each":
            apply(entries.table(number), config)
    apply(entries.table(), config)
    table: Any = DeltaTable(str(tmp_path / "t")).to_pyarrow_table()
    assert type_of(tmp_path / "t", "v") == ARROW_TYPES[kind]
    assert table.sort_by("_id")["v"].to_pylist() == values
    assert not DeltaTable.is_deltatable(f"{tmp_path / 't'}_rejects")


@pytest.mark.parametrize(
    "texts",
    [
        ["1", '"x"'],
        ['"x"', "1"],
        ["2.5", f"{2**53 + 1}"],
        [f"{2**62}", "2.5"],
        ["true", "1"],
        ["2.5", DEC % "2.5"],
        ['"x"', '{"a":1}'],
        ['{"$date":{"$numberLong":"0"}}', '"1970-01-01"'],
    ],
)
def test_a_value_of_another_kind_is_a_reject_and_the_old_row_stays_until_a_good_change(
    tmp_path: Path, texts: list[str]
) -> None:
    path, entries = tmp_path / "t", Entries()
    config = pipeline(path)
    for number, text in enumerate(texts):
        entries.commit(change(1, "replace", text=f'{{"_id":1,"v":{text}}}'))
        apply(entries.table(number), config)
    before = DeltaTable(str(path)).to_pyarrow_table().to_pylist()[0]
    assert (before["_sequence"], before["_rejected_sequence"]) == (1, 2)
    assert [reject["sequence"] for reject in rejects_of(path)] == [2]
    entries.commit(change(1, "replace", text=f'{{"_id":1,"v":{texts[0]}}}'))
    apply(entries.table(2), config)
    after = DeltaTable(str(path)).to_pyarrow_table().to_pylist()[0]
    assert (after["_sequence"], after["_rejected_sequence"]) == (3, None)
    assert after["v"] == before["v"]


def test_a_field_that_appears_becomes_a_column_and_one_that_goes_becomes_null(
    tmp_path: Path,
) -> None:
    config, entries = pipeline(tmp_path / "t"), Entries()
    entries.commit(put(1, a=1))
    apply(entries.table(), config)
    entries.commit(put(2, a=2, b="x"), put(1, b="y"))
    apply(entries.table(1), config)
    assert list(rows_of(tmp_path / "t").values()) in (
        [{"_id": 1, "b": "y"}, {"_id": 2, "a": 2, "b": "x"}],
        [{"_id": 2, "a": 2, "b": "x"}, {"_id": 1, "b": "y"}],
    )


def test_names_that_a_column_cannot_have_are_mapped_or_rejected_never_mixed_up(
    tmp_path: Path,
) -> None:
    entries = Entries()
    entries.commit(put(1, **{"first name": "a", "a.b": 1, "`x`": 2, "ä": 3}))
    entries.commit(put(2, first_name="b"), put(3, **{"First Name": "c"}), put(4, _sequence=9))
    entries.commit(put(5, _Operation=1))
    apply(entries.table(), pipeline(tmp_path / "t"))
    assert rows_of(tmp_path / "t") == {
        ("db", '{"_id":1}'): {"_id": 1, "first name": "a", "a.b": 1, "`x`": 2, "ä": 3}
    }
    assert "first_name" in DeltaTable(str(tmp_path / "t")).to_pyarrow_table().schema.names
    assert [reject["sequence"] for reject in rejects_of(tmp_path / "t")] == [2, 3, 4, 5]


def test_a_field_whose_name_has_a_nul_is_rejected_and_is_no_other_field(tmp_path: Path) -> None:
    """Arrow's interface between languages ends a name at it."""
    config, entries = pipeline(tmp_path / "t"), Entries()
    entries.commit(put(1, **{"a\0b": 3}))
    entries.commit(put(2, a=7))
    entries.commit(put(2, **{"a": 8, "a\0b": 9}), put(3, a=9))
    for end in (1, 2, 4):
        apply(entries.table(end - (2 if end == 4 else 1), end), config)
    assert sorted(row["a"] for row in rows_of(tmp_path / "t").values()) == [7, 9]
    rejects = [(row["sequence"], row["reason"]) for row in rejects_of(tmp_path / "t")]
    assert rejects == [(at, "a column cannot have a name with a NUL") for at in (1, 3)]


@pytest.mark.slow
def test_a_document_of_ten_megabytes_passes(tmp_path: Path) -> None:
    entries = Entries()
    entries.commit(put(1, blob="x" * 10_000_000, tags=list(range(1000))), put(2, n=1))
    apply(entries.table(), pipeline(tmp_path / "t"))
    assert rows_of(tmp_path / "t") == fold(entries.table())


def test_a_batch_without_entries_for_the_tables_writes_nothing(tmp_path: Path) -> None:
    entries = Entries()
    entries.commit(put(1, n=1))
    config = pipeline(tmp_path / "t")
    apply(entries.table(), config)
    version = DeltaTable(str(tmp_path / "t")).version()
    from penstock.spark.table.batch import BatchWriter
    from penstock.spark.table.chunk import Collected, join

    writer = BatchWriter(
        pipeline="p", config=config, log_id=1 << 63, batch_id=1, entries_at=lambda _: pa.table({})
    )
    empty = Collected(chunk=join([]), after=0, entries=0)
    result = writer.apply(empty, before=lambda _: empty)
    assert (result.rows, result.sequence) == (0, 0)
    assert DeltaTable(str(tmp_path / "t")).version() == version


WRAPPED = (
    st.integers(-(2**63), 2**63 - 1).map(
        lambda n: {"$numberLong": str(n)} if -(2**31) <= n < 2**31 else n
    )
    | st.integers(-(2**31), 2**31 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=4)
    | st.booleans()
    | st.binary(max_size=4).map(lambda b: {"$oid": b.hex()})
    | st.integers(-(2**52), 2**52).map(lambda n: {"$date": {"$numberLong": str(n)}})
    | st.lists(st.integers(0, 5) | st.none(), max_size=3)
    | st.dictionaries(st.text("ab", max_size=2), st.floats(-9, 9, width=16), max_size=2)
)


@given(st.lists(st.dictionaries(st.text("abc", max_size=2), st.none() | WRAPPED), max_size=5))
@settings(deadline=None)
def test_documents_go_to_cells_and_back_unchanged(documents: list[dict[str, Any]]) -> None:
    """Whatever kinds a field mixes; only nulls are left out."""
    back = documents_of(decode_documents(documents), range(len(documents)))
    for document, again in zip(documents, back, strict=True):
        present = {name: value for name, value in document.items() if value is not None}
        assert {name: _instant(v) for name, v in again.items()} == {
            name: _instant(v) for name, v in present.items()
        }
        assert {n: type(v) for n, v in again.items()} == {n: type(v) for n, v in present.items()}


@given(st.decimals(allow_nan=False, allow_infinity=False, places=6) | st.decimals())
@example(Decimal(123456789012345678901234567890))
@example(Decimal("6154011665187324071934.00"))
@example(Decimal(-4645562505424637249158012))
@example(Decimal("99999999999999999999.9999999999999999990"))
@example(Decimal("1E+20"))
@settings(deadline=None)
def test_a_decimal_is_itself_or_unfit_whatever_its_length(number: Decimal) -> None:
    """Alone in its batch: none beside it has all of them looked at one by one."""
    ((kind, cell),) = decode_documents([{"n": {"$numberDecimal": str(number)}}])["n"].items()
    if kind is Kind.UNFIT:
        assert json.loads(cell[0].as_py()) == {"$numberDecimal": str(number)}
    else:
        assert kind is Kind.DECIMAL
        assert cell[0].as_py() == number


def _instant(value: Any) -> Any:
    """A date in one form: text and milliseconds say the same instant."""
    wrapper = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    if "$date" not in wrapper:
        return cast("Any", value)
    if isinstance(said := wrapper["$date"], dict):
        return int(cast("dict[str, str]", said)["$numberLong"])
    moment = datetime.fromisoformat(said) - datetime(1970, 1, 1, tzinfo=UTC)
    return round(moment.total_seconds() * 1000)
