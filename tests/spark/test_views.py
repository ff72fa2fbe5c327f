"""A view equals its query of the current rows after every batch, on Spark itself."""

import json
import math
import random
import re
import shutil
import tomllib
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from deltalake import DeltaTable
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from penstock.errors import PipelineError
from penstock.event import AnyEvent
from penstock.spark.raised import own_error
from penstock.spark.table.kinds import Kind
from penstock.spark.transform.replay import Replay
from penstock.spark.view.computing import Computation
from penstock.spark.view.query import parse_columns
from penstock.spark.view.quotients import mean
from penstock.spark.view.upkeep import Kept
from penstock.spark.views import tables_of
from tests.seeds import seed_of
from tests.spark.stepped import MemoryLog
from tests.spark.tables import (
    Entries,
    change,
    fold,
    put,
    rejects_of,
    rows_of,
    schema_event,
)
from tests.spark.viewed import Lake, in_order

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_REVENUE = (
    "SELECT c.region, count(*) AS orders, count(o.n) AS known, sum(o.n) AS n, min(o.n) AS least, "
    "max(o.total) AS most, sum(o.total) AS revenue, avg(o.n) AS mean, sum(o.weight) AS weight "
    "FROM orders o LEFT JOIN customers c ON o.customer = c._id "
    "WHERE o.status <> 'void' GROUP BY c.region"
)

_TOTAL = '"total": {"$numberDecimal": "0.1"}, "status": "new"'


def customer(key: int, **fields: Any) -> AnyEvent:
    return change(key, "replace", {"_id": key, **fields}, collection="customers")


def order(key: int, dice: random.Random) -> AnyEvent:
    if dice.random() < 0.2:
        return change(key, "delete")
    if dice.random() < 0.2:
        return change(key, "update", update={"updatedFields": {"n": dice.randrange(50)}})
    document = {
        "_id": key,
        "customer": dice.randrange(6),
        "status": dice.choice(["new", "paid", "void"]),
        "n": dice.choice([None, dice.randrange(50)]),
        # Sums of eighths are exact, in whatever order.
        "weight": dice.choice([None, dice.randrange(-80, 80) / 8]),
    }
    total = f'{{"$numberDecimal": "{dice.randrange(10_000) / 100}"}}'
    text = f'{{"total": {total}, {json.dumps(document)[1:]}'
    return change(key, "replace", text=text)


def test_a_view_equals_its_query_after_every_batch(spark: "SparkSession", tmp_path: Path) -> None:
    seed = seed_of("views")
    dice, lake = random.Random(seed), Lake(spark, tmp_path, _REVENUE)
    lake.batch(
        *(customer(key, region=dice.choice(["n", "s", None])) for key in range(4)),
        *(order(key, dice) for key in range(20)),
        # Of each column a value of its kind.
        change(99, "insert", text=f'{{"_id": 99, "n": 1, "customer": 1, "weight": 0.5, {_TOTAL}}}'),
    )
    assert lake.rows() == lake.expected()
    for number in range(6):
        events = [order(dice.randrange(25), dice) for _ in range(dice.randrange(1, 8))]
        if number % 2:
            events += [customer(dice.randrange(6), region=dice.choice(["n", "s", "w"]))]
        if number == 3:
            events += [change(dice.randrange(4), "delete", collection="customers")]
        kept = lake.batch(*events)
        assert not kept.anew
        assert lake.rows() == lake.expected()


def test_quotients_of_sums_are_those_of_spark(spark: "SparkSession", tmp_path: Path) -> None:
    """A sum of integers is kept as a decimal, which would be divided to six digits; and an average
    of decimals has more of them than a quotient."""
    query = (
        "SELECT k, sum(n) / sum(m) AS rate, sum(n) / count(*) AS mean, "
        "sum(total) / sum(n) AS each, avg(total) AS mid, avg(n + 0.5) AS half, "
        "round(avg(-total), 20) * 3 AS thrice, avg(CASE WHEN n > 1 THEN total END) AS some, "
        "CAST(avg(total) AS string) AS text, sum(n) * 0.0000025 AS cost, "
        "sum(CAST(total AS DECIMAL(10, 2))) / count(*) AS share, "
        "sum(CAST(total AS DECIMAL(20, 5))) * 0.0123456 / sum(m) AS part, "
        "sum(m) / CASE sum(total) WHEN 1.5 THEN 7 ELSE 3 END AS third, "
        "sum(n) + 0.12345678 AS more FROM orders GROUP BY k"
    )
    lake = Lake(spark, tmp_path, query)
    sizes = [(1, 3), (1, 10_000_000), (7, 1 << 40)]

    def row(key: int, group: int, total: str) -> AnyEvent:
        n, m = sizes[group]
        decimal = f'"total": {{"$numberDecimal": "{total}"}}'
        return change(
            key, "replace", text=f'{{"_id": {key}, "k": {group}, "n": {n}, "m": {m}, {decimal}}}'
        )

    def rows_and_those_of_spark() -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
        state = DeltaTable(tables_of(lake.config).table_path("orders")).to_pyarrow_table()
        spark.createDataFrame(state).createOrReplaceTempView("orders")
        of_spark: Any = spark.sql(query).collect()  # pyright: ignore[reportUnknownMemberType]
        return lake.rows(), in_order([tuple(row) for row in of_spark])

    lake.batch(*(row(key, key, "0.1") for key in range(3)))
    found, of_spark = rows_and_those_of_spark()
    # As text: a decimal equals one of another type.
    assert str(found) == str(of_spark)
    assert [row[1] for row in found] == [1 / 3, 1e-07, 7 / (1 << 40)]
    lake.batch(*(row(key, key % 3, f"{(key - 5) * 10}.01") for key in range(2, 14)))
    found, of_spark = rows_and_those_of_spark()
    assert str(found) == str(of_spark)


def test_a_sum_without_room_in_an_expression_is_null_and_told(
    spark: "SparkSession", tmp_path: Path
) -> None:
    lake = Lake(spark, tmp_path, "SELECT sum(n) AS n, sum(n) + 1 AS more FROM orders")
    most = (1 << 63) - 1
    lake.batch(*(put(key, n=most) for key in range(10)))
    assert lake.rows() == [(10 * most, 10 * most + 1)]
    lake.batch(put(10, n=most))
    assert lake.rows() == [(11 * most, None)]
    assert ["more: NUMERIC_VALUE_OUT_OF_RANGE" in one.reason for one in lake.refused] == [True]


def test_an_average_of_decimals_is_that_of_spark(spark: "SparkSession") -> None:
    """Of all types, in type and in every digit; of nothing it is null."""
    types = [(38, 18), (12, 1), (20, 2), (38, 0), (38, 1), (38, 2), (1, 0), (5, 5), (10, 9)]
    types += [(38, 24), (38, 30), (38, 34), (38, 37), (38, 38), (30, 28)]
    dice = random.Random(seed_of("averages"))
    rows: list[tuple[Any, ...]] = []

    def value(precision: int, scale: int, group: int) -> str | None:
        # Digits for which the average has room, and their sum, too.
        digits = min(precision, max(34, scale)) - 2 * (precision == 38)
        if group == 3 or dice.random() < 0.1:
            return None
        units = [0, 1, -1, 10**digits - 1, -dice.randrange(10**digits)]
        units += [dice.randrange(10 ** dice.randrange(1, digits + 1))]
        return f"{dice.choice(units)}E-{scale}"

    for group in range(60):
        size = dice.choice([1, 2, 3, 6, 7, 11, 250])
        rows += [(group, *(value(*one, group) for one in types)) for _ in range(size)]
    columns = ", ".join(f"x{at} STRING" for at in range(len(types)))
    session = spark.newSession()
    session.conf.set("spark.sql.ansi.enabled", "true")
    session.createDataFrame(rows, f"k INT, {columns}").createOrReplaceTempView("texts")
    cast = [f"CAST(x{at} AS DECIMAL({p}, {s})) AS x{at}" for at, (p, s) in enumerate(types)]
    numbers = f"(SELECT k, {', '.join(cast)} FROM texts)"
    averages = [f"avg(x{at}) AS a{at}" for at in range(len(types))]
    means = [
        f"CASE WHEN count(x{at}) > 0 THEN "
        f"{mean(f'sum(CAST(x{at} AS DECIMAL(38, {s})))', f'count(x{at})', precision=p, scale=s)} "
        f"END AS a{at}"
        for at, (p, s) in enumerate(types)
    ]
    statement = "SELECT k, {} FROM {} GROUP BY k ORDER BY k"
    of_session: Any = session
    sql = of_session.sql
    expected = sql(statement.format(", ".join(averages), numbers))
    found = sql(statement.format(", ".join(means), numbers))
    assert found.dtypes == expected.dtypes
    for one, other in zip(found.collect(), expected.collect(), strict=True):
        assert str(one) == str(other)
    ours = mean("_sum", "1", precision=38, scale=18)
    large = "(SELECT CAST('1E16' AS DECIMAL(38, 18)) AS _sum)"
    for average in ("avg(_sum)", ours):
        with pytest.raises(PySparkException, match=r"NUMERIC_\w*OUT_OF\w*_RANGE"):
            sql(f"SELECT {average} AS a FROM {large}").collect()


def test_events_about_whole_collections_and_wider_columns_reach_the_view(
    spark: "SparkSession", tmp_path: Path
) -> None:
    lake = Lake(
        spark, tmp_path, "SELECT count(*) AS orders, sum(n) AS n, max(n) AS most FROM orders"
    )
    assert lake.upkeep.catch_up().anew
    assert lake.rows() == [(0, None, None)]
    lake.batch(put(1, n=1), put(2, n=2), put(3, n="not a number"))
    assert [row["sequence"] for row in rejects_of(lake.config.path)] == [3]
    assert lake.rows() == [(2, 3, 2)]
    assert not lake.batch(put(4, n=3, other="a new column")).anew
    assert lake.rows() == [(3, 6, 3)]
    # int32 to int64: the type of the view's column grows with it.
    assert lake.batch(put(5, n=1 << 40)).anew
    assert lake.rows() == lake.expected() == [(4, 6 + (1 << 40), 1 << 40)]
    lake.batch(schema_event("drop"), put(6, n=7))
    assert lake.rows() == [(1, 7, 7)]
    assert lake.upkeep.catch_up() == Kept(groups=0)


def test_whatever_the_view_missed_it_catches_up_on(spark: "SparkSession", tmp_path: Path) -> None:
    """A crash between the current rows and the view, as often as it may be, loses nothing."""
    lake = Lake(spark, tmp_path, "SELECT k, count(*) AS n, sum(v) AS v FROM orders GROUP BY k")
    lake.batch(*(put(key, k=key % 3, v=key) for key in range(9)))
    for key in (1, 2, 3):
        lake.commit(change(key, "delete"), put(key + 10, k=7, v=1), put(0, k=key, v=key))
        lake.apply()
    assert lake.rows() != lake.expected()
    assert not lake.upkeep.catch_up().anew
    assert lake.rows() == lake.expected()
    # The old versions are gone: all of it is made anew, and is the same.
    lake.commit(put(5, k=0, v=100))
    lake.apply()
    DeltaTable(tables_of(lake.config).table_path("orders")).vacuum(
        retention_hours=0, enforce_retention_duration=False, dry_run=False
    )
    assert lake.upkeep.catch_up().anew
    assert lake.rows() == lake.expected()


def test_a_row_that_changes_under_its_sequence_reaches_the_view(
    spark: "SparkSession", tmp_path: Path
) -> None:
    """As one that is mended by hand; 0.0 is not -0.0. That it is marked stale changes nothing."""
    query = (
        "SELECT n, CAST(w AS string) AS w, count(*) AS orders FROM orders "
        "GROUP BY n, CAST(w AS string)"
    )
    lake = Lake(spark, tmp_path, query)
    lake.batch(*(put(key, n=1, w=0.0) for key in range(3)))
    assert lake.rows() == [(1, "0.0", 3)]
    assert lake.batch(put(1, n="x", w=0.5)) == Kept(groups=0)
    for value in ({"n": "7"}, {"w": "CAST('-0.0' AS DOUBLE)"}):
        rows = DeltaTable(tables_of(lake.config).table_path("orders"))
        rows.update(value, predicate="_id = 2")
        assert not lake.upkeep.catch_up().anew
    assert lake.rows() == [(1, "0.0", 2), (7, "-0.0", 1)]


def test_a_view_equals_its_query_after_renames_rejects_and_replays(
    spark: "SparkSession", tmp_path: Path
) -> None:
    """A replay writes rows that a rename moved under the sequence of the rename."""
    query = (
        "SELECT a.n AS n, count(*) AS pairs, sum(a.m) AS m, max(o.n) AS most "
        "FROM archive a LEFT JOIN orders o ON a._id = o._id GROUP BY a.n"
    )
    dice, lake, mended = random.Random(seed_of("views")), Lake(spark, tmp_path, query), Entries()
    states = set[str]()

    def commit(*events: AnyEvent, instead: Sequence[AnyEvent] = ()) -> None:
        lake.commit(*events)
        mended.commit(*(instead or events))

    def written(key: int, n: Any, m: int, name: str) -> AnyEvent:
        return change(key, "replace", {"_id": key, "n": n, "m": m}, collection=name)

    def caught_up() -> None:
        assert not lake.upkeep.catch_up().anew
        assert lake.rows() == lake.expected()

    def replay() -> None:
        found = Replay("p", tables_of(lake.config), MemoryLog(mended, 0), None).run()
        states.update(one.state for one in found)
        caught_up()

    commit(*(written(0, 0, 0, name) for name in ("orders", "archive")))
    lake.apply()
    lake.upkeep.catch_up()
    for number in range(3):
        # Rows that are there, and some that are not; then changes that fit none of them.
        for key in dice.sample(range(1, 6), 3):
            commit(written(key, dice.randrange(3), number, "orders"))
        lake.apply()
        keys = dice.sample(range(1, 6), 3)
        for key, name in zip(keys, ["orders", "orders", "archive"], strict=True):
            good = written(key, dice.randrange(3), number, name)
            commit(written(key, "x", number, name), instead=[good])
        lake.apply()
        commit(schema_event("rename", to={"db": "db", "coll": "archive"}))
        lake.apply()
        caught_up()
        if number:
            replay()
    assert "replayed" in states <= {"replayed", "superseded"}
    for name in lake.query.collections:
        path = tables_of(lake.config).table_path(name)
        assert rows_of(path) == fold(mended.table(), name)


def test_groups_are_told_apart_as_sql_does(spark: "SparkSession", tmp_path: Path) -> None:
    lake = Lake(
        spark,
        tmp_path,
        "SELECT d, at, b, count(*) AS n, min(d) AS least, sum(d) AS total FROM orders "
        "GROUP BY d, at, b",
        schema={"orders": "d DOUBLE, at TIMESTAMP, b BINARY"},
    )
    lake.state["orders"].create({"d": Kind.DOUBLE, "at": Kind.TIMESTAMP, "b": Kind.BINARY})
    micros = [f'{{"$date": "2026-01-01T00:00:00.00000{digit}Z"}}' for digit in (1, 2)]
    binary = [
        f'{{"$binary": {{"base64": "{data}", "subType": "00"}}}}' for data in ("/w==", "/g==")
    ]
    nan = '{"$numberDouble": "NaN"}'
    documents = [
        f'"d": 0.0, "at": {micros[0]}',
        f'"d": -0.0, "at": {micros[0]}',
        f'"d": 0.0, "at": {micros[1]}',
        f'"d": {nan}, "b": {binary[0]}',
        f'"d": {nan}, "b": {binary[1]}',
        f'"d": {nan}, "b": {binary[1]}',
        '"b": null',
    ]
    for key, document in enumerate(documents):
        lake.commit(change(key, "insert", text=f'{{"_id": {key}, {document}}}'))
    lake.apply()
    lake.upkeep.catch_up()
    assert [row[3] for row in lake.rows()] == [2, 1, 1, 2, 1]
    lake.batch(change(1, "delete"), change(4, "delete"), change(6, "delete"))
    found = lake.rows()
    assert [row[3] for row in found] == [1, 1, 1, 1]
    assert sum(math.isnan(row[5]) for row in found) == 2


class Preset:
    """A session whose new ones have settings, as those of a driver's spark-defaults do."""

    def __init__(self, spark: "SparkSession", **settings: str) -> None:
        self._spark = spark
        self._settings = settings

    def newSession(self) -> "SparkSession":  # noqa: N802 - Spark's name
        session = self._spark.newSession()
        for name, value in self._settings.items():
            session.conf.set(f"spark.sql.{name.replace('__', '.')}", value)
        return session


def test_a_query_means_the_same_whatever_the_driver_is_set_to(
    spark: "SparkSession", tmp_path: Path
) -> None:
    preset = Preset(
        spark,
        parser__escapedStringLiterals="true",
        ansi__doubleQuotedIdentifiers="true",
        files__ignoreMissingFiles="true",
    )
    query = (
        "SELECT k, count(*) AS n FROM orders "
        "WHERE text = '${spark.sql.ansi.enabled}' OR text = 'a\\\\b' GROUP BY k"
    )
    lake = Lake(cast("SparkSession", preset), tmp_path, query)
    lake.batch(put(1, k=1, text="${spark.sql.ansi.enabled}"), put(2, k=2, text="a\\b"))
    assert lake.rows() == [(1, 1), (2, 1)]
    # A file that is gone is no file without rows.
    shutil.rmtree(lake.config.path)
    for file in Path(lake.config.state_path).rglob("*.parquet"):
        file.unlink()
    with pytest.raises((PySparkException, Py4JJavaError)):
        lake.upkeep.catch_up()


def test_what_the_query_is_not_to_blame_for_is_not_said_of_it(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(spark, tmp_path, "SELECT k, count(*) AS n, sum(v) AS v FROM orders GROUP BY k")
    lake.batch(put(1, k=1, v=1))

    def whole(*_: object) -> Any:
        return cast("Any", spark).sql("SELECT raise_error('of something else')").collect()

    with monkeypatch.context() as patched:
        patched.setattr(Computation, "whole", whole)
        with pytest.raises(PySparkException, match="something else") as raised:
            lake.upkeep.should()
    assert "Change the query" not in str(own_error(raised.value, pipeline="p"))
    # Files that are gone are those of versions that nobody knows: it may be asked again.
    assert lake.upkeep.should() is not None
    for file in Path(lake.config.state_path).rglob("*.parquet"):
        file.unlink()
    assert lake.upkeep.should() is None


def test_a_query_that_is_none_to_spark_stops_by_name(spark: "SparkSession", tmp_path: Path) -> None:
    lake = Lake(spark, tmp_path, "SELECT max(n + b) AS n FROM orders")
    with pytest.raises(PipelineError, match=r"cannot compute the query: DATATYPE_MISMATCH.*Change"):
        lake.batch(change(1, "insert", {"_id": 1, "n": 1, "b": True}))


def test_a_view_of_texts_with_quotes_formats_and_paths_is_its_query(
    spark: "SparkSession", tmp_path: Path
) -> None:
    query = (
        "SELECT count(if(name = 'O''Brien', 1, NULL)) AS o, count(try_cast(text AS DATE)) AS dates,"
        " max(get_json_object(doc, '$.a:b')) AS path FROM orders "
        "WHERE name IN ('O''Brien', \"it\"\"s\")"
    )
    lake = Lake(spark, tmp_path, query)
    lake.batch(
        put(1, name="O'Brien", doc='{"a:b": "yes", "a": {"b": "no"}}', text="2026-01-01"),
        put(2, name='it"s', text="2026-01"),
        put(3, name="OBrien"),
    )
    assert lake.rows() == [(1, 2, "yes")]


def test_how_a_query_is_written_is_no_part_of_what_it_means(
    spark: "SparkSession", tmp_path: Path
) -> None:
    lake = Lake(spark, tmp_path, "SELECT count(*) AS n FROM orders WHERE k = 'a'")
    lake.batch(put(1, k="a"))
    other = Lake(spark, tmp_path, "SELECT  count(*) AS n\nFROM orders WHERE k='a'")
    assert other.upkeep.catch_up() == Kept(groups=0)


def test_what_no_view_can_have_stops_by_name(spark: "SparkSession", tmp_path: Path) -> None:
    flags = Lake(spark, tmp_path / "flags", "SELECT sum(done) AS total FROM orders")
    with pytest.raises(PipelineError, match=r"sum\(`?orders`?.done\): there is none of type bool"):
        flags.batch(put(1, done=True))


def test_the_page_on_views_says_what_is_kept(spark: "SparkSession", tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "view.md").read_text()
    (written,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    configured = tomllib.loads(written)["pipelines"]["revenue"]
    lake = Lake(spark, tmp_path, configured["query"], schema=configured["schema"])
    for name, ddl in lake.config.columns.items():
        lake.state[name].create(parse_columns(name, ddl))
    lake.upkeep.catch_up()
    totals = ["10.00", "20.50", "5.00", "99.00"]
    for key, total in enumerate(totals):
        status = "void" if total == "99.00" else "paid"
        lake.commit(
            change(
                key,
                "insert",
                text=f'{{"_id": {{"$numberLong": "{key}"}}, "status": "{status}", '
                f'"customer_id": {{"$numberLong": "{key // 2}"}}, '
                f'"total": {{"$numberDecimal": "{total}"}}}}',
            )
        )
    # The second of them moves later.
    lake.batch(customer(0, region="south"), customer(1, region="south"))
    assert not lake.batch(customer(0, region="north")).anew
    shown = re.findall(r"^\| (\w+) \| (\d+) \| ([\d.]+) \| ([\d.]+) \|$", page, re.MULTILINE)
    assert lake.rows() == [
        (region, int(orders), Decimal(revenue), Decimal(largest))
        for region, orders, revenue, largest in shown
    ]
