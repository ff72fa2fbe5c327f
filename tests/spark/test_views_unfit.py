"""Rows, and groups, that a view's query cannot compute: left out, told, and never in the way."""

# The stubs of pyspark leave argument types open.
# pyright: reportUnknownMemberType=false

import random
import shutil
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from deltalake import DeltaTable
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from penstock.errors import PipelineError
from penstock.event import AnyEvent
from penstock.ports import Bounds
from penstock.progress import Progress
from penstock.serve.flight import FlightServer
from penstock.spark.causes import condition_of, of_values
from penstock.spark.config import ViewPipelineConfig
from penstock.spark.finding import found_failing
from penstock.spark.replaying import pending_rejects, replay_rejects
from penstock.spark.run import run_pipeline
from penstock.spark.tables import TableTarget
from penstock.spark.target import Applied
from penstock.spark.view import upkeep
from penstock.spark.view.apart import ApartTable
from penstock.spark.view.computing import TooManyError
from penstock.spark.view.query import parse_query
from penstock.spark.view.relations import Relations
from penstock.spark.view.sql import FAILED
from penstock.spark.view.unfit import Search, _Numbered  # pyright: ignore[reportPrivateUsage]
from penstock.spark.view.upkeep import Kept, Upkeep
from penstock.spark.views import ViewTarget
from tests.flight.blocks import BlockLog
from tests.seeds import seed_of
from tests.spark.tables import change, put
from tests.spark.viewed import Lake

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

_VALUE = (
    "SELECT c.region, count(*) AS orders, sum(o.n) AS n, max(o.n) AS most, "
    "sum(o.n / c.rate) AS value "
    "FROM orders o LEFT JOIN customers c ON o.customer = c._id {} GROUP BY c.region"
)
_ROOM = 10
_COMPUTED = "WHERE c.rate IS NULL OR c.rate <> 0 OR o.n IS NULL"


def customer(key: int, **fields: Any) -> AnyEvent:
    return change(key, "replace", {"_id": key, **fields}, collection="customers")


@pytest.mark.parametrize("together", [False, True])
def test_what_fails_is_found_by_halves(together: bool) -> None:
    """By itself: whatever is in the set. Together: what does not fit into ten any more."""
    dice = random.Random(seed_of("finding"))
    for _ in range(200):
        sizes = [dice.randrange(4) for _ in range(dice.randrange(30))]
        odds = dice.choice([0.02, 0.5])
        bad = {at for at in range(len(sizes)) if dice.random() < odds}
        things = Things(sizes, None if together else bad)
        found = found_failing(len(sizes), things.fails, together=together, most=len(sizes))
        assert things.asked <= (len(found) + 1) * 7
        if together:
            assert sum(size for at, size in enumerate(sizes) if at not in found) <= _ROOM
            assert all(sizes[at] for at in found)
        else:
            assert found.keys() == bad
            most = found_failing(len(sizes), things.fails, together=False, most=2)
            assert most.keys() == {*sorted(bad)[:3]}


class Things:
    """Some of which are bad; or that have no room together."""

    def __init__(self, sizes: list[int], bad: set[int] | None) -> None:
        self._sizes = sizes
        self._bad = bad
        self.asked = 0

    def fails(self, start: int, stop: int, without: "Mapping[int, str]") -> str | None:
        self.asked += 1
        assert start < stop
        some = {at for at in range(start, stop) if at not in without}
        full = sum(self._sizes[at] for at in some) > _ROOM
        return "it is" if (full if self._bad is None else self._bad & some) else None


def test_values_are_blamed_where_several_stages_fail_at_once(spark: Any) -> None:
    """Spark wraps what they failed of, and may raise it as another kind of error."""
    with pytest.raises(PySparkException) as raised:
        spark.sql("SELECT CAST(concat('x', id) AS INT) FROM range(2)").collect()
    origin: Any = vars(raised.value)["_origin"]
    wrapped = spark._jvm.org.apache.spark.SparkException("several", origin)
    for error in (raised.value, Py4JJavaError("several", wrapped)):
        assert of_values(error) == condition_of(error) == "CAST_INVALID_INPUT"


def test_a_view_equals_its_query_over_all_rows_that_it_can_compute(
    spark: "SparkSession", tmp_path: Path
) -> None:
    """An order fails by its customer: it may come, change, go, or be mended from either side."""
    seed = seed_of("views-unfit")
    dice, lake = random.Random(seed), Lake(spark, tmp_path, _VALUE.format(""))
    rates = [0.0, 0.5, 2.0, None]

    def some_customer() -> AnyEvent:
        key = dice.randrange(4)
        if dice.random() < 0.2:
            return change(key, "delete", collection="customers")
        return customer(key, region=dice.choice(["n", "s"]), rate=dice.choice(rates))

    def some_order() -> AnyEvent:
        key = dice.randrange(12)
        if dice.random() < 0.2:
            return change(key, "delete")
        fields = {"customer": dice.randrange(5), "n": dice.choice([None, dice.randrange(50)])}
        return change(key, "replace", {"_id": key, **fields})

    lake.batch(
        *(customer(key, region="n", rate=rates[key]) for key in range(4)),
        *(change(key, "insert", {"_id": key, "customer": key, "n": key}) for key in range(5)),
    )
    for number in range(2):
        events = [some_order() for _ in range(dice.randrange(1, 6))]
        if number % 2:
            events += [some_customer(), some_customer()]
        assert not lake.batch(*events).anew
        assert lake.rows() == lake.expected(_VALUE.format(_COMPUTED))
    assert lake.refused
    shutil.rmtree(lake.config.path)
    assert lake.upkeep.catch_up().anew
    assert lake.rows() == lake.expected(_VALUE.format(_COMPUTED))


def test_a_row_that_cannot_be_computed_is_left_out_until_it_changes(
    spark: "SparkSession", tmp_path: Path
) -> None:
    lake = Lake(spark, tmp_path, "SELECT sum(10 / n) AS total FROM orders")
    assert lake.batch(put(1, n=5)).anew
    assert lake.batch(put(2, n=0), put(3, n=2)).refused == 1
    assert lake.rows() == [(7.0,)]
    (one,) = lake.refused
    assert (one.collection, one.key, one.sequence) == ("orders", '{"_id":2}', 2)
    assert one.document == '{"n":0}'
    assert one.reason.endswith(": DIVIDE_BY_ZERO")
    # Others go on, and it is not told again.
    assert lake.batch(put(3, n=1)).refused == 0
    assert lake.rows() == [(12.0,)]
    lake.batch(put(2, n=10))
    assert lake.rows() == [(13.0,)]
    assert len(lake.refused) == 1


@pytest.mark.soak
def test_a_row_that_what_it_is_joined_to_spoils_takes_out_what_it_came_to(
    spark: "SparkSession", tmp_path: Path
) -> None:
    """The order itself did not change, so no file that changed has it."""
    lake = Lake(spark, tmp_path, _VALUE.format(""))
    orders = [change(key, "insert", {"_id": key, "customer": key, "n": 5}) for key in range(3)]
    lake.batch(customer(0, region="n", rate=0.5), *orders)
    for rate, refused in ((0.0, 1), (2.5, 0), (0.0, 1)):
        assert lake.batch(customer(1, region="n", rate=rate)).refused == refused
        assert lake.rows() == lake.expected(_VALUE.format(_COMPUTED))
    lake.batch(change(1, "delete", collection="customers"))
    assert lake.rows() == lake.expected(_VALUE.format(_COMPUTED))


@pytest.mark.parametrize(
    "condition",
    [
        "o.customer = CAST(c.code AS INT)",
        pytest.param("o.customer = c.code", marks=pytest.mark.soak),
    ],
)
def test_a_row_that_cannot_be_joined_to_any_is_joined_to_none(
    spark: "SparkSession", tmp_path: Path, condition: str
) -> None:
    lake = Lake(
        spark,
        tmp_path,
        "SELECT count(*) AS n, count(c._id) AS known "
        f"FROM orders o LEFT JOIN customers c ON {condition}",
    )
    orders = [change(key, "insert", {"_id": key, "customer": key}) for key in range(4)]
    lake.batch(*orders, customer(1, code="1"), customer(2, code="2"))
    assert lake.rows() == [(4, 2)]
    assert lake.batch(customer(2, code="two"), customer(3, code="3")).refused == 1
    assert lake.rows() == [(4, 2)]
    assert [(one.collection, one.document) for one in lake.refused] == [
        ("customers", '{"_id":2,"code":"two"}')
    ]
    assert lake.batch(customer(2, code="0"), change(9, "insert", {"_id": 9})).refused == 0
    assert lake.rows() == [(5, 3)]


@pytest.mark.soak
def test_rows_of_a_joined_collection_are_told_apart_only_where_a_join_fails(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To tell them apart costs all of them."""
    asked: list[str] = []
    numbered = Search._numbered  # pyright: ignore[reportPrivateUsage]

    def noted(search: Search, relation: str, *more: Any, **named: Any) -> Any:
        asked.append(relation)
        return numbered(search, relation, *more, **named)

    monkeypatch.setattr(Search, "_numbered", noted)
    lake = Lake(
        spark,
        tmp_path,
        "SELECT sum(10 / o.n) AS total FROM orders o "
        "JOIN customers c ON o.customer = CAST(c.code AS INT)",
    )
    orders = [change(key, "insert", {"_id": key, "customer": 1, "n": key}) for key in (1, 2)]
    lake.batch(*orders, customer(1, code="1"))
    assert lake.batch(change(3, "insert", {"_id": 3, "customer": 1, "n": 0})).refused == 1
    assert set(asked) == {"now0"}
    assert lake.batch(customer(2, code="two")).refused == 1
    assert set(asked) == {"now0", "now1"}
    assert lake.rows() == [(15.0,)]


def test_numbers_of_rows_take_little_of_the_driver(spark: "SparkSession") -> None:
    rows = 40_000
    relations = Relations(spark, parse_query("SELECT count(*) AS n FROM orders"), {})
    statement = f"SELECT id AS `its number` FROM range({rows})"
    tracemalloc.start()
    try:
        with _Numbered(spark, relations, statement) as numbered:
            held, _ = tracemalloc.get_traced_memory()
            assert len(numbered) == rows
            assert [numbered.number(at) for at in (0, 1, rows - 1)] == [0, 1, rows - 1]
            part = numbered.part(2, 5, [3])
            found: Any = spark.sql(f"SELECT * FROM {part}")
            assert sorted(row[0] for row in found.collect()) == [2, 4]
    finally:
        tracemalloc.stop()
    assert held < 8 * rows


@pytest.mark.soak
def test_a_row_whose_condition_cannot_be_computed_is_left_out(
    spark: "SparkSession", tmp_path: Path
) -> None:
    lake = Lake(
        spark,
        tmp_path,
        "SELECT count(*) AS n FROM orders o LEFT JOIN customers c ON CAST(o.code AS INT) = c._id",
    )
    lake.batch(put(1, code="1"), customer(1, code="1"), customer(2, code="1"))
    lake.batch(put(2, code="two"), put(3, code="3"))
    assert lake.rows() == [(2,)]
    # It stays so where what it would be joined to changes.
    lake.batch(customer(3, code="1"))
    assert lake.rows() == [(2,)]
    assert {one.collection for one in lake.refused} == {"orders"}
    lake.batch(put(2, code="2"))
    assert lake.rows() == [(3,)]


def test_a_row_that_where_excludes_is_none_that_fails(
    spark: "SparkSession", tmp_path: Path
) -> None:
    """It is never joined, so the condition of the join is not asked of it."""
    query = (
        "SELECT count(*) AS n FROM orders o LEFT JOIN customers c ON CAST(o.code AS INT) = c._id "
        "WHERE o.status <> 'void'"
    )
    lake = Lake(spark, tmp_path, query)
    lake.batch(put(1, code="two", status="void"), put(2, code="2", status="new"), customer(2, n=1))
    assert lake.batch(customer(2, n=2), customer(3, n=1)).refused == 0
    assert lake.rows() == [(1,)]


def test_a_row_for_which_the_sum_of_its_group_has_no_room_is_left_out(
    spark: "SparkSession", tmp_path: Path
) -> None:
    query = "SELECT k, count(*) AS n, sum(total) AS total FROM orders GROUP BY k"
    lake = Lake(spark, tmp_path, query)

    def row(key: int, group: str, digits: str) -> AnyEvent:
        decimal = f'{{"$numberDecimal": "{digits}"}}'
        return change(key, "replace", text=f'{{"_id": {key}, "k": "{group}", "total": {decimal}}}')

    large = "9" * 20
    lake.batch(row(1, "a", large), row(2, "b", "1.5"))
    assert lake.batch(row(3, "a", large), row(4, "b", "1.5")).refused == 1
    assert [row[:2] for row in lake.rows()] == [("a", 1), ("b", 2)]
    lake.batch(row(3, "a", "0.1"))
    assert [row[:2] for row in lake.rows()] == [("a", 2), ("b", 2)]
    lake.batch(row(1, "a", "0.1"), row(3, "b", "7"))
    assert [row[:2] for row in lake.rows()] == [("a", 1), ("b", 3)]
    assert len(lake.refused) == 1


def test_a_column_that_cannot_be_computed_for_a_group_is_null_there_and_says_so(
    spark: "SparkSession", tmp_path: Path
) -> None:
    lake = Lake(
        spark,
        tmp_path,
        "SELECT k, sum(n) AS n, sum(n) / sum(m) AS rate, coalesce(sum(m) / sum(n), 0) AS back, "
        "avg(total) AS mean, coalesce(avg(total), 0) AS known FROM orders GROUP BY k",
    )

    def row(key: int, group: str, n: int, m: int, total: str = "1") -> AnyEvent:
        decimal = f'{{"$numberDecimal": "{total}"}}'
        text = f'{{"_id": {key}, "k": "{group}", "n": {n}, "m": {m}, "total": {decimal}}}'
        return change(key, "replace", text=text)

    def shown() -> dict[Any, tuple[Any, ...]]:
        return {
            row["k"]: (row["n"], row["rate"], row["back"], row["mean"], row[FAILED])
            for row in lake.found()
        }

    lake.batch(row(1, "a", 1, 2), row(2, "b", 3, 4))
    assert lake.batch(row(3, "a", 1, -2), row(4, "c", 0, 0)).refused == 2
    assert shown() == {
        "a": (2, None, 0.0, 1, "rate: DIVIDE_BY_ZERO"),
        "b": (3, 0.75, 4 / 3, 1, None),
        "c": (0, None, None, 1, "rate: DIVIDE_BY_ZERO, back: DIVIDE_BY_ZERO"),
    }
    assert [(one.key, one.sequence) for one in lake.refused] == [('["a"]', None), ('["c"]', None)]
    # What is kept of the group goes on; it is told once.
    assert lake.batch(row(5, "a", 1, 0), row(6, "b", 1, 0)).refused == 0
    assert shown()["a"] == (3, None, 0.0, 1, "rate: DIVIDE_BY_ZERO")
    # An average has less room than its values.
    assert lake.batch(row(1, "a", 1, 4, "1E17"), change(4, "delete")).refused == 1
    assert shown()["a"][:3] == (3, 1.5, 2 / 3)
    assert shown()["a"][3:] == (None, shown()["a"][4])
    assert "mean: NUMERIC_OUT_OF_SUPPORTED_RANGE" in shown()["a"][4]
    assert "known: NUMERIC_OUT_OF_SUPPORTED_RANGE" in shown()["a"][4]
    lake.batch(row(1, "a", 1, 4))
    assert shown() == {"a": (3, 1.5, 2 / 3, 1, None), "b": (4, 1.0, 1.0, 1, None)}


def test_too_many_rows_stop_by_name(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "NEW_MAX", 2)
    lake = Lake(spark, tmp_path, "SELECT sum(10 / n) AS total FROM orders")
    lake.batch(put(1, n=5))
    with pytest.raises(PipelineError, match=r"pipeline p: .* fails on more than 2 rows of orders"):
        lake.batch(*(put(key, n=0) for key in range(2, 6)))
    assert lake.rows() == [(2.0,)]
    lake.batch(*(put(key, n=1) for key in range(2, 4)))
    assert lake.rows() == [(22.0,)]


@pytest.mark.soak
def test_rows_that_were_apart_before_are_none_too_many(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they are joined to changes, and they fail as before; or the view is made anew."""
    monkeypatch.setattr(upkeep, "NEW_MAX", 1)
    lake = Lake(spark, tmp_path, _VALUE.format(""))
    lake.batch(
        *(customer(1, region="n", rate=2.0), customer(2, region="s", rate=0.0)),
        *(put(key, customer=min(key, 2), n=4) for key in range(1, 4)),
    )
    assert lake.batch(customer(2, region="t", rate=0.0), put(5, customer=2, n=1)).refused == 1
    assert lake.rows() == lake.expected(_VALUE.format(_COMPUTED))
    assert {one.key for one in lake.refused} == {f'{{"_id":{key}}}' for key in (2, 3, 5)}


@pytest.mark.soak
def test_a_row_takes_none_of_those_out_that_it_is_compared_with(
    spark: "SparkSession", tmp_path: Path
) -> None:
    query = (
        "SELECT count(*) AS n FROM orders o JOIN rates r "
        "ON o.currency = r.currency AND CAST(o.day AS INT) >= r.since"
    )
    lake = Lake(spark, tmp_path, query)

    def rate(key: int, currency: str) -> AnyEvent:
        document = {"_id": key, "currency": currency, "since": key}
        return change(key, "replace", document, collection="rates")

    orders = [put(1, currency="e", day="5"), put(2, currency="d", day="5")]
    lake.batch(rate(1, "e"), rate(2, "e"), rate(3, "d"), rate(4, "d"), *orders)
    assert lake.rows() == [(4,)]
    assert lake.batch(put(3, currency="e", day="n/a"), put(4, currency="e", day="1")).refused == 1
    assert lake.rows() == [(5,)]
    assert {one.collection for one in lake.refused} == {"orders"}


@pytest.mark.soak
def test_a_joined_row_comes_back_when_those_are_gone_that_it_failed_with(
    spark: "SparkSession", tmp_path: Path
) -> None:
    lake = Lake(
        spark,
        tmp_path,
        "SELECT count(*) AS n, count(c._id) AS known "
        "FROM orders o LEFT JOIN customers c ON o.n > 10 / c.size",
    )
    lake.batch(put(1, n=50), put(2, n=50), customer(1, size=2))
    assert lake.batch(customer(2, size=0)).refused == 1
    assert {one.collection for one in lake.refused} == {"customers"}
    assert lake.rows() == [(2, 2)]
    lake.batch(change(1, "delete"), change(2, "delete"))
    assert lake.rows() == [(0, 0)]
    assert DeltaTable(ApartTable("p", lake.config).path).to_pyarrow_table().num_rows == 0


def test_what_mends_too_many_rows_is_read_before_the_view_stops(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It is in the log after them: a view that stopped before it would stop for ever."""
    mended_at = 3
    said = {"to": "view", "source": "shop", "query": "SELECT sum(10 / n) AS total FROM orders"}
    config = ViewPipelineConfig.model_validate({**said, "path": str(tmp_path)})
    there = [0]

    def catch_up(_: object) -> Kept:
        if there[-1] >= mended_at:
            return Kept(groups=1)
        raise PipelineError("too many") from TooManyError("101 rows")

    def apply(_: object, batch: object, batch_id: int, *, until: Progress) -> Applied:
        there.append(until.sequence)
        return Applied(entries=1, rows=1)

    def nothing(_: object, *__: object, **___: object) -> None: ...

    def start(*_: object) -> Progress:
        return place(there[-1])

    monkeypatch.setattr(Upkeep, "__init__", nothing)
    monkeypatch.setattr(Upkeep, "catch_up", catch_up)
    monkeypatch.setattr(TableTarget, "start", start)
    monkeypatch.setattr(TableTarget, "apply", apply)

    def place(sequence: int) -> Progress:
        return Progress(1, sequence, 0)

    def bounds(head: int) -> Bounds:
        return Bounds(
            log_id=1, trimmed=0, trimmed_check=0, head=head, head_commit=head, head_check=0
        )

    def run(*, head: int) -> None:
        target = ViewTarget("p", config, cast("SparkSession", None))
        after = target.start(bounds(head))
        for at in range(after.sequence + 1, head + 1):
            target.apply(cast("DataFrame", None), at, until=place(at))

    with pytest.raises(PipelineError):
        run(head=0)
    with pytest.raises(PipelineError):
        run(head=2)
    assert there[-1] == 2
    run(head=4)
    assert there[-1] == 4


def test_a_crash_before_the_view_loses_no_row_and_no_notice(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is apart is in a table of its own: the view says which version of it it is without."""
    lake = Lake(spark, tmp_path, "SELECT sum(10 / n) AS total FROM orders")
    lake.batch(put(1, n=5), put(2, n=1))

    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as context:
        context.setattr(lake.view, "merge", die)
        with pytest.raises(KeyboardInterrupt):
            lake.batch(put(2, n=0))
    assert lake.rows() == [(12.0,)]
    lake.upkeep.catch_up()
    assert lake.rows() == [(2.0,)]
    assert len(lake.refused) == 2
    with monkeypatch.context() as context:
        context.setattr(lake.view, "merge", die)
        with pytest.raises(KeyboardInterrupt):
            lake.batch(put(2, n=2))
    lake.upkeep.catch_up()
    assert lake.rows() == [(7.0,)]
    # Nobody knows any more what it is without: made anew, though no row changes.
    lake.batch(put(2, n=0))
    apart = ApartTable("p", lake.config)
    for file in Path(apart.path).glob("*.parquet"):
        file.unlink()
    with pytest.raises(PipelineError, match="nobody knows any more which rows"):
        lake.upkeep.apart()
    assert lake.upkeep.catch_up().anew
    assert lake.rows() == [(2.0,)]
    assert [row.key for row in lake.upkeep.apart()] == ['{"_id":2}']
    # What is apart is none that was so once.
    lake.commit(put(2, n=1))
    lake.apply()
    shutil.rmtree(lake.config.path)
    assert lake.upkeep.catch_up().anew
    assert apart.now()[0] == lake.upkeep.apart() == frozenset()


@pytest.mark.slow
def test_a_pipeline_tells_them_in_the_rejects_and_a_replay_settles_them(
    spark: "SparkSession", tmp_path: Path
) -> None:
    log = BlockLog(block_events=11)
    config = Lake(
        spark, tmp_path, "SELECT k, sum(10 / n) / sum(m) AS x FROM orders GROUP BY k"
    ).config

    def run(*events: AnyEvent) -> int:
        if events:
            log.append([[*events]])
        told: list[int] = []
        run_pipeline(
            "p",
            config,
            server.address,
            spark=spark,
            once=True,
            on_progress=lambda progress: told.append(progress.rejected),
        )
        return sum(told)

    def replayed() -> list[tuple[str | None, str]]:
        outcomes = replay_rejects("p", config, server.address, spark=spark)
        return [(one.key, one.state) for one in outcomes]

    server = FlightServer(log)
    server.start()
    try:
        run(put(1, k=1, n=5, m=1))
        assert run(put(2, k=1, n=0, m=1), put(3, k=2, n=1, m=0)) == 2
        pending = pending_rejects("p", config, spark=spark)
        assert [(row["step"], row["key"], row["pipeline"]) for row in pending] == [
            ("view", '{"_id":2}', "p"),
            ("view", '["2"]', "p"),
        ]
        assert pending[0]["full_document"] == '{"k":1,"m":1,"n":0}'
        assert replayed() == [('{"_id":2}', "left"), ('["2"]', "left")]
        assert run() == 0
        run(put(2, k=1, n=1, m=1), put(3, k=2, n=1, m=1))
        assert replayed() == [('{"_id":2}', "superseded"), ('["2"]', "replayed")]
        assert pending_rejects("p", config, spark=spark) == []
        assert {
            row["k"]: row["x"] for row in DeltaTable(config.path).to_pyarrow_table().to_pylist()
        } == {1: 6.0, 2: 10.0}
    finally:
        server.stop()
