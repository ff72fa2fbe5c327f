"""Documents as VARIANT or struct: exactly the value that was captured, or a refusal, never null."""

# Documents are what JSON says they are, and Spark's stubs are open too.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import json
import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    CharType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VariantVal,
)

from penstock.errors import ConfigError
from penstock.extjson import encode
from penstock.serve.flight import FlightServer
from penstock.spark.documents import MisfitError, converter_of
from penstock.spark.variant import encode_variant
from tests.flight.blocks import BlockLog, gap, insert

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# --- variant --------------------------------------------------------------------------------------

_INSTANTS = st.integers(-62_135_000_000_000, 253_402_000_000_000).map(
    lambda milliseconds: datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds)
)
_DECIMALS = st.decimals(
    min_value=Decimal(-(10**20)), max_value=Decimal(10**20), places=4, allow_nan=False
).filter(lambda value: not (value == 0 and value.is_signed()))
_SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.floats(),
    st.text(max_size=80),
    _INSTANTS,
    _DECIMALS,
    st.binary(max_size=80),
)
_NAMES = st.text(st.characters(exclude_characters="$", codec="utf-8"), max_size=12)
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(_NAMES, inner, max_size=5),
    max_leaves=30,
)


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, float) and isinstance(right, float):
        return (math.isnan(left) and math.isnan(right)) or (
            left == right and math.copysign(1, left) == math.copysign(1, right)
        )
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_same(left[k], right[k]) for k in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(_same, left, right))
    return type(left) is type(right) and bool(left == right)


def _variant(document: Any) -> VariantVal:
    return VariantVal(*encode_variant(msgspec.json.decode(encode(document))))


@pytest.mark.slow
@given(st.dictionaries(_NAMES, _VALUES, max_size=8))
def test_a_variant_is_the_value_that_was_captured(document: dict[str, Any]) -> None:
    assert _same(_variant(document).toPython(), document)


@pytest.mark.parametrize("number", [1 << 63, 10**19, (1 << 64) - 1])
def test_a_whole_number_that_no_long_holds_is_a_decimal(number: int) -> None:
    """As a BIGINT UNSIGNED of MySQL may be."""
    found = _variant({"n": number, "all": [number]}).toPython()
    assert found == {"n": number, "all": [number]}
    assert isinstance(found["n"], Decimal)


@pytest.mark.slow
@pytest.mark.parametrize("count", [0, 1, 255, 256, 300, 70_000])
def test_a_variant_may_have_many_fields_and_items(count: int) -> None:
    document = {"fields": {f"f{i}": i for i in range(count)}, "items": list(range(count))}
    assert _variant(document).toPython() == document


@pytest.mark.parametrize(
    "wrapper",
    [
        {"$oid": "64b7f0c2a1b2c3d4e5f60718"},
        {"$binary": {"base64": "AAAA", "subType": "04"}},
        {"$numberDecimal": "NaN"},
        {"$numberDecimal": "-0"},
        {"$numberDecimal": "1E+3"},
        {"$numberDecimal": "0." + "0" * 38 + "1"},
        {"$numberDecimal": "1" * 39},
        {"$date": {"$numberLong": str(1 << 62)}},
        {"$regularExpression": {"pattern": "a", "options": ""}},
        {"$minKey": 1},
    ],
    ids=str,
)
def test_what_a_variant_has_no_type_for_stays_as_it_is_written(wrapper: dict[str, Any]) -> None:
    found = VariantVal(*encode_variant({"a": wrapper})).toPython()
    if "$date" in wrapper:
        wrapper = {"$date": int(wrapper["$date"]["$numberLong"])}
    assert found == {"a": wrapper}


# --- struct ---------------------------------------------------------------------------------------

OID = {"$oid": "64b7f0c2a1b2c3d4e5f60718"}
NOON = {"$date": "2026-01-01T12:00:00.000Z"}
MIDNIGHT = {"$date": "2026-01-01T00:00:00.000Z"}
DAY = 20_454
BYTES = {"$binary": {"base64": "AQI=", "subType": "00"}}


def number(text: str) -> dict[str, str]:
    return {"$numberDecimal": text}


FITS: list[tuple[DataType, Any, Any]] = [
    (StringType(), "text", "text"),
    (StringType(), "", ""),
    (StringType(), OID, OID["$oid"]),
    (ByteType(), -128, -128),
    (ShortType(), 32_767, 32_767),
    (IntegerType(), {"$numberLong": "5"}, 5),
    (LongType(), (1 << 63) - 1, (1 << 63) - 1),
    (LongType(), 3.0, 3),
    (DoubleType(), 1.5, 1.5),
    (DoubleType(), 1 << 53, float(1 << 53)),
    (DoubleType(), {"$numberDouble": "-Infinity"}, -math.inf),
    (FloatType(), 0.5, 0.5),
    (FloatType(), {"$numberDouble": "Infinity"}, math.inf),
    (DecimalType(5, 2), number("1.10"), Decimal("1.10")),
    (DecimalType(5, 2), number("-999.990"), Decimal("-999.99")),
    (DecimalType(5, 2), number("1E+2"), Decimal("100.00")),
    (DecimalType(5, 2), 7, Decimal("7.00")),
    (DecimalType(38, 0), number("1E+37"), Decimal(10**37)),
    (BooleanType(), False, False),
    (TimestampType(), NOON, DAY * 86_400_000_000 + 43_200_000_000),
    (TimestampType(), {"$date": {"$numberLong": "-1"}}, -1000),
    (DateType(), MIDNIGHT, DAY),
    (BinaryType(), BYTES, b"\x01\x02"),
    (ArrayType(LongType()), [1, None], [1, None]),
    (MapType(StringType(), LongType()), {"a": 1}, [("a", 1)]),
    (StructType([StructField("a", LongType())]), {"a": 1, "other": "x"}, {"a": 1}),
    (StructType([StructField("a", LongType())]), {}, {"a": None}),
]
MISFITS: list[tuple[DataType, Any, str]] = [
    (StringType(), 5, "an integer is no text"),
    (StringType(), {"a": 1}, "a document is no text"),
    (ByteType(), 128, "does not fit 8 bits"),
    (IntegerType(), 1 << 31, "does not fit 32 bits"),
    (LongType(), 1 << 63, "does not fit 64 bits"),
    (LongType(), 3.5, "not whole"),
    (LongType(), -0.0, "not whole"),
    (LongType(), {"$numberDouble": "NaN"}, "not whole"),
    (LongType(), "5", "text is no number"),
    (LongType(), True, "a boolean is no number"),
    (LongType(), number("5"), "a decimal is no integer"),
    (DoubleType(), (1 << 53) + 1, "no double is exactly"),
    (DoubleType(), number("0.5"), "a decimal is no double"),
    (FloatType(), 0.1, "no 32-bit float"),
    (FloatType(), 1e300, "no 32-bit float"),
    (DecimalType(5, 2), number("1.101"), "more than 2 decimal places"),
    (DecimalType(5, 2), number("1000"), "more than 5 digits"),
    (DecimalType(5, 2), number("1E+6000"), "more than 5 digits"),
    (DecimalType(5, 2), number("NaN"), "not finite"),
    (DecimalType(5, 2), 0.5, "a double is no decimal"),
    (BooleanType(), 1, "an integer is no boolean"),
    (TimestampType(), "2026-01-01T00:00:00Z", "text is no instant"),
    (TimestampType(), {"$date": {"$numberLong": str(1 << 62)}}, "does not fit 64 bits"),
    (DateType(), NOON, "not midnight"),
    (BinaryType(), "AQI=", "text is no binary"),
    (ArrayType(LongType()), {"a": 1}, "a document is no array"),
    (MapType(StringType(), LongType()), [1], "an array is no document"),
    (StructType([StructField("a", LongType())]), [1], "an array is no document"),
    (StructType([StructField("a", LongType(), nullable=False)]), {}, "NOT NULL"),
]


@pytest.mark.parametrize(("kind", "value", "expected"), FITS, ids=str)
def test_a_value_that_fits_is_exactly_that_value(kind: DataType, value: Any, expected: Any) -> None:
    found = converter_of(kind)(value)
    assert found == expected
    assert type(found) is type(expected)
    assert converter_of(kind)(None) is None


@pytest.mark.parametrize(("kind", "value", "reason"), MISFITS, ids=str)
def test_a_value_that_does_not_fit_is_refused(kind: DataType, value: Any, reason: str) -> None:
    with pytest.raises(MisfitError, match=reason):
        converter_of(kind)(value)


@given(_VALUES, st.sampled_from([kind for kind, _, _ in FITS]))
def test_no_value_becomes_null_for_want_of_a_place(value: Any, kind: DataType) -> None:
    (given_value,) = msgspec.json.decode(encode({"a": value})).values()
    try:
        found = converter_of(kind)(given_value)
    except MisfitError:
        return
    assert (found is None) == (given_value is None)


def test_a_refusal_says_where() -> None:
    kind = StructType([StructField("a", ArrayType(StructType([StructField("b", LongType())])))])
    with pytest.raises(MisfitError) as raised:
        converter_of(kind)({"a": [{"b": 1}, {"b": "x"}]})
    assert raised.value.path == ["a", "1", "b"]


def test_a_field_that_differs_only_in_case_is_refused_and_not_null() -> None:
    """Spark takes both for one name: a filter would delete every row for a misspelt field."""
    inner = StructType([StructField("N", LongType())])
    kind = StructType([StructField("Status", StringType()), StructField("a", inner)])
    convert = converter_of(kind)
    for document, path in (
        ({"status": "due"}, ["Status"]),
        ({"Status": "", "a": {"n": 1}}, ["a", "N"]),
    ):
        with pytest.raises(MisfitError, match="is missing, and there is") as raised:
            convert(document)
        assert raised.value.path == path
    held = {"Status": "paid", "status": "due", "a": {}}
    assert convert(held) == {"Status": "paid", "a": {"N": None}}


WRAPPERS: list[dict[str, Any]] = [
    OID,
    NOON,
    BYTES,
    number("5"),
    {"$numberInt": "5"},
    {"$numberLong": "5"},
    {"$numberDouble": "NaN"},
    {"$uuid": "6c9d8f2e-0000-4000-8000-000000000000"},
    {"$timestamp": {"t": 1, "i": 2}},
    {"$regularExpression": {"pattern": "a", "options": ""}},
    {"$code": "f()", "$scope": {}},
    {"$dbPointer": {"$ref": "db.a", "$id": OID}},
    {"$symbol": "a"},
    {"$minKey": 1},
    {"$maxKey": 1},
    {"$undefined": True},
]


@pytest.mark.parametrize("wrapper", WRAPPERS, ids=str)
def test_a_value_that_json_writes_as_an_object_is_no_document(wrapper: dict[str, Any]) -> None:
    """As a struct it would be null in every field, and a filter would delete its row."""
    fields = StructType([StructField("kind", StringType())])
    value: Any
    for kind, value, path in (
        (fields, wrapper, ["card"]),
        (MapType(StringType(), StringType()), wrapper, ["card"]),
        (ArrayType(fields), [{"kind": "a"}, wrapper], ["card", "1"]),
    ):
        with pytest.raises(MisfitError, match=r"^a \$[a-zA-Z]+ is no document$") as raised:
            converter_of(StructType([StructField("card", kind)]))({"card": value})
        assert raised.value.path == path


def test_a_struct_that_names_the_field_of_a_wrapper_reads_it() -> None:
    pattern = {"pattern": "^a", "options": "i"}
    inner = StructType([StructField(name, StringType()) for name in pattern])
    kind = StructType([StructField("$regularExpression", inner)])
    assert converter_of(kind)({"$regularExpression": pattern}) == {"$regularExpression": pattern}
    with pytest.raises(MisfitError, match=r"a \$oid is no document"):
        converter_of(kind)(OID)


@pytest.mark.parametrize("kind", [CharType(3), MapType(LongType(), LongType())], ids=str)
def test_a_type_that_would_cut_is_refused(kind: DataType) -> None:
    with pytest.raises(ConfigError, match="documentSchema"):
        converter_of(kind)


# --- through Spark --------------------------------------------------------------------------------


@pytest.fixture
def log() -> BlockLog:
    return BlockLog()


@pytest.fixture
def endpoint(log: BlockLog) -> Iterator[str]:
    server = FlightServer(log)
    server.start()
    yield server.address
    server.stop()


def load(spark: "SparkSession", endpoint: str, **options: Any) -> "DataFrame":
    return spark.read.format("penstock").option("endpoint", endpoint).options(**options).load()


def test_spark_reads_the_types_of_a_variant(
    spark: "SparkSession", log: BlockLog, endpoint: str
) -> None:
    many = {name: i for i, name in enumerate(["é", "\U0001f600", "\uffee", *map(str, range(40))])}
    document = {
        "_id": 5,
        "long": 1 << 40,
        "unsigned": (1 << 64) - 1,
        "half": 1 << 63,
        "double": 3.0,
        "decimal": Decimal("1.10"),
        "at": datetime(2026, 1, 1, tzinfo=UTC),
        "bytes": b"\x00\xff",
        "list": [1, "a", None],
        "many": many,
    }
    log.append([[insert(1, document=document)], [gap()]])
    rows = load(spark, endpoint, documents="variant")
    rows.createOrReplaceTempView("variants")
    names = ("_id", "long", "unsigned", "half", "double", "decimal", "at", "bytes", "list")
    types = ", ".join(
        f"schema_of_variant(variant_get(full_document, '$.{name}')) AS {name}" for name in names
    )
    typed = spark.sql(f"SELECT {types} FROM variants WHERE kind = 0").first()
    assert typed is not None
    assert typed.asDict() == {
        "_id": "BIGINT",
        "long": "BIGINT",
        "unsigned": "DECIMAL(20,0)",
        "half": "DECIMAL(19,0)",
        "double": "DOUBLE",
        "decimal": "DECIMAL(2,1)",
        "at": "TIMESTAMP",
        "bytes": "BINARY",
        "list": "ARRAY<VARIANT>",
    }
    casts = ", ".join(
        f"variant_get(full_document, '$.{name}', 'DECIMAL(20,0)')" for name in ("unsigned", "half")
    )
    numbers = spark.sql(f"SELECT {casts} FROM variants WHERE kind = 0").first()
    assert numbers is not None
    assert list(numbers) == [Decimal((1 << 64) - 1), Decimal(1 << 63)]
    whole = spark.sql("SELECT to_json(full_document) FROM variants WHERE kind = 0").first()
    assert whole is not None
    assert '"unsigned":18446744073709551615' in whole[0]
    paths = ", ".join(f"variant_get(full_document, '$.many[\"{name}\"]', 'int')" for name in many)
    found = spark.sql(f"SELECT {paths} FROM variants WHERE kind = 0").first()
    assert found is not None
    assert list(found) == list(many.values())
    control = rows.where("kind = 2").first()
    assert control is not None
    assert control.full_document.toPython() == {"reason": "test"}
    assert control.full_document_before_change is None


SCHEMA = "_id BIGINT, total DECIMAL(10,2), lines ARRAY<STRUCT<sku: STRING, n: INT>>"


def test_spark_reads_documents_as_a_struct_and_what_does_not_fit_as_rejected(
    spark: "SparkSession", log: BlockLog, endpoint: str
) -> None:
    good = {"_id": 1, "total": Decimal("1.5"), "lines": [{"sku": "a", "n": 2}], "extra": True}
    bad = {"_id": 2, "lines": [{"sku": "a", "n": 1}, {"sku": "b", "n": "many"}]}
    log.append([[insert(1, document=good), insert(2, document=bad)], [gap()]])
    first, second, third = (
        load(spark, endpoint, documents="struct", documentSchema=SCHEMA)
        .orderBy("sequence")
        .collect()
    )
    assert first.full_document.asDict(recursive=True) == {
        "_id": 1,
        "total": Decimal("1.50"),
        "lines": [{"sku": "a", "n": 2}],
    }
    assert first.rejected is None
    assert second.full_document is None
    refused = json.loads(second.rejected)["full_document"]
    assert (refused["path"], refused["reason"]) == ("lines.1.n", "text is no number")
    assert refused["document"] == bad
    assert third.full_document is None
    assert json.loads(third.description) == {"reason": "test"}


def test_who_does_not_read_rejected_gets_an_error(
    spark: "SparkSession", log: BlockLog, endpoint: str
) -> None:
    log.append([[insert(1), insert(2, document={"_id": "secret"})]])
    reader = spark.read.format("penstock").option("endpoint", endpoint)
    rows = reader.schema("full_document STRUCT<_id: BIGINT>").option("documents", "struct").load()
    with pytest.raises(
        Exception, match=r"document at sequence 2 does not fit .* full_document\._id: text is no"
    ) as raised:
        rows.collect()
    assert "secret" not in str(raised.value)
