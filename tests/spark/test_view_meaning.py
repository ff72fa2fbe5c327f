"""What a view asks Spark is what its query says, text for text."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from msgspec import structs
from pyspark.sql import functions
from pyspark.sql.types import StructType

from penstock.errors import PipelineError
from penstock.spark.view.meaning import check_meaning
from penstock.spark.view.moments import is_moment
from penstock.spark.view.query import ViewQuery, parse_query
from tests.spark.tables import put
from tests.spark.viewed import Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_COLUMNS = (
    "s STRING, t STRING, n INT, m BIGINT, d DOUBLE, p DECIMAL(38,18), at TIMESTAMP, y BOOLEAN, "
    "b BINARY, v VOID"
)

EXPRESSIONS = [
    *("s = 'O''Brien'", 's = "it""s"', "s = 'a''''b'", "s = ''''", "s = 'a\"\"b'", "s = 'a' 'b'"),
    *("s = 'a\\\\nb\\n\\%\\_\\'\\u0041\\101\\q'", "s LIKE 'a\\%b\\_%'", "s RLIKE '\\\\d+\\\\.'"),
    *("s IN ('a', 'b''c')", "s BETWEEN 'a' AND 'b'", "s IS NULL", "y IS NOT TRUE", "NOT y", "!y"),
    *("n <=> NULL", "n IS NOT NULL", "s NOT LIKE 'a'", "n NOT IN (1, 2)", "n <> 1", "n != 1"),
    *("to_date(s)", "to_date(s, 'yyyy-MM-dd')", "to_date(s, 'dd.MM.yyyy')", "to_date(s, t)"),
    *("get_json_object(s, '$.a:b')", "get_json_object(s, 'a.b')", "get_json_object(s, '$[*].a')"),
    *("get_json_object(s, '$.a.b')", "get_json_object(s, \"$['a b'][0]\")"),
    *("date_trunc('month', at)", "date_trunc(s, at)", "date_trunc('MON', at)"),
    *(f"{name}(at)" for name in ("year", "month", "day", "dayofmonth", "hour", "to_date")),
    *("year(to_date(s, 'dd.MM.yyyy'))", "day(s)", "extract(DAY FROM at)", "extract(week FROM at)"),
    *("upper(s)", "lower(s)", "trim(s)", "trim(BOTH 'x' FROM s)", "trim(LEADING 'x''' FROM s)"),
    *("trim(TRAILING FROM s)", "ltrim(s)", "rtrim('x', s)", "length(s)", "char_length(s)"),
    *("substring(s, 1, 2)", "substring(s FROM 2 FOR 3)", "substr(s, -1)", "abs(n)", "sign(d)"),
    *("round(d)", "round(p, 2)", "floor(d)", "floor(p, 1)", "ceil(p, 2)", "ceil(d)", "-n % 3"),
    *("greatest(n, m, 1)", "least(n, 2)", "mod(n, 3)", "n div 2", "n / m", "n + m * 2 - 1", "-d"),
    *("if(y, 1, 2)", "coalesce(s, 'a')", "nvl(s, t)", "ifnull(s, t)", "nullif(n, 0)"),
    *("concat(s, 'a''b', t)", "s || 'x' || t", "concat(s, NULL)", "CASE n WHEN 1 THEN 2 END"),
    *("CASE WHEN n > 1 OR y AND n < 3 THEN s ELSE t END", "(n + 1) * 2", "n + 1 = 2 OR y"),
    *(f"CAST({name} AS STRING)" for name in ("n", "m", "d", "p", "at", "y", "b")),
    *(f"CAST(s AS {one})" for one in ("INT", "DOUBLE", "DECIMAL(10, 2)", "DATE", "TIMESTAMP")),
    *("try_cast(s AS INT)", "s::int", "CAST(s AS varchar(3))", "CAST(at AS TIMESTAMP_NTZ)"),
    *("DATE'2020-01-01'", "TIMESTAMP '2020-01-01 00:00:00'", "1L", "1.50BD", "1D", "1.5f", "1e3"),
    *("1e-3 * p", ".5", "0.0000025 * p", "'x'", "v", "b = CAST('a' AS BINARY)"),
    *("count(s)", "sum(n) / count(*)", "avg(p) * 2", "max(s) || 'a''b'", "min(at)"),
]


def schema() -> StructType:
    return cast("StructType", StructType.fromDDL(_COLUMNS))


@pytest.mark.parametrize("name", ["orders", "shop.orders", "odd name"])
def test_every_expression_of_a_view_means_what_was_written(
    spark: "SparkSession", name: str
) -> None:
    """Each by itself: Spark makes the same plan of what was written and of what is asked."""
    wrong: list[str] = []
    for one in EXPRESSIONS if name == "orders" else EXPRESSIONS[:2]:
        is_aggregate = any(f"{each}(" in one for each in ("count", "sum", "avg", "max", "min"))
        selected = one if is_aggregate else f"max({one})"
        query = parse_query(f"SELECT {selected} AS x FROM `{name}`")
        session = spark.newSession()
        session.conf.set("spark.sql.legacy.consecutiveStringLiterals.enabled", "false")
        try:
            check_meaning(session, query, {name: schema()})
        except ValueError as error:
            wrong.append(f"{one}: {error}")
    assert wrong == []


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("s = 'O''Brien'", "s = 'OBrien'"),
        ("to_date(s, 'yyyy-MM-dd')", "to_date(s)"),
        ("s = get_json_object(t, '$.a:b')", "s = get_json_object(t, '$.a.b')"),
        ("1 / 0", "CAST('x' AS INT)"),
        ("1 / 0", "n / 0"),
    ],
)
def test_a_query_that_would_mean_something_else_is_refused(
    spark: "SparkSession", written: str, read: str
) -> None:
    query = parse_query(f"SELECT max({written}) AS x FROM orders")
    query = structs.replace(query, read=f"SELECT max({read}) AS x FROM orders")
    with pytest.raises(ValueError, match="reads in another way"):
        check_meaning(spark.newSession(), query, {"orders": schema()})


@pytest.mark.parametrize(
    "expression",
    [
        *("at > 'now'", "at <= ' YESTERDAY '", "at IN ('2020-01-01', 'tomorrow')"),
        *("at BETWEEN '2020-01-01' AND 'today Europe/Berlin'", "CAST(('now') AS DATE)"),
        *("coalesce(at, 'today+01:00')", "CAST(concat('to', 'day') AS TIMESTAMP)"),
        *("if(y, at, 'now')", "CASE WHEN y THEN at ELSE 'Today' END", "date_trunc('day', ('now'))"),
        *("CAST(('now') AS TIMESTAMP_NTZ)", "to_date(coalesce('now', 'x'))"),
    ],
)
def test_the_time_at_which_a_query_is_read_is_refused(
    spark: "SparkSession", expression: str
) -> None:
    query = parse_query(f"SELECT max({expression}) AS x FROM orders")
    with pytest.raises(ValueError, match=r"the time at which it is read: '.*' as a date or time"):
        check_meaning(spark.newSession(), query, {"orders": schema()})


@pytest.mark.parametrize(
    "expression",
    [
        *("at > 'epoch'", "CAST('epoch' AS DATE)", "s = 'now'", "s IN ('today', 'tomorrow')"),
        *("CASE s WHEN 'now' THEN 1 END", "CAST(s AS DATE)", "at > '2020-01-01'", "s || 'now'"),
        *("CAST(1 / 0 AS TIMESTAMP)", "CAST(upper(CAST(1 / 0 AS STRING)) AS DATE)"),
    ],
)
def test_what_is_no_time_of_reading_is_kept(spark: "SparkSession", expression: str) -> None:
    query = parse_query(f"SELECT max({expression}) AS x FROM orders")
    check_meaning(spark.newSession(), query, {"orders": schema()})


def test_texts_are_moments_where_spark_says_so(spark: "SparkSession") -> None:
    """Each is a moment here, or no date or one and the same by Spark."""
    words = ["now", "today", "yesterday", "tomorrow", "epoch"]
    shapes = ["{}", " {}\t", "{}\x01", "{} UTC", "{}+01:00", "{}-1", "{}UTC", "{}\u00a0", "x{}"]
    session: Any = spark.newSession()
    for text in (shape.format(word) for word in [*words, "NOW", "toDay"] for shape in shapes):
        rows = session.range(1).select(functions.lit(text).try_cast("timestamp").alias("at"))
        is_value = rows.collect()[0]["at"] is not None
        assert not is_value or is_moment(text) != ("epoch" in text), text


def test_a_view_whose_query_would_mean_something_else_stops_by_name(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_wrongly(text: str) -> ViewQuery:
        return structs.replace(parse_query(text), read=text.replace("'a'", "'b'"))

    monkeypatch.setattr("tests.spark.viewed.parse_query", read_wrongly)
    lake = Lake(spark, tmp_path, "SELECT count(*) AS n FROM orders WHERE k = 'a'")
    with pytest.raises(PipelineError, match=r"reads in another way.*k = 'b'.*Change the query"):
        lake.batch(put(1, k="a"))
