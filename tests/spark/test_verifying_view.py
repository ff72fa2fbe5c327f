"""A view that is not what its log says is found, told, and made right."""

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from penstock.errors import PipelineError
from penstock.serve.flight import FlightServer
from penstock.spark.config import ViewPipelineConfig
from penstock.spark.run import run_pipeline
from penstock.spark.table.plan import KEY
from penstock.spark.verifying import Verified
from penstock.spark.verifying_view import verify_view
from penstock.spark.view.sql import GROUP
from penstock.spark.views import tables_of
from tests.flight.blocks import BlockLog
from tests.seeds import seed_of
from tests.spark.tables import change

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.event import AnyEvent

pytestmark = pytest.mark.slow

_QUERY = (
    "SELECT l.kind, count(*) AS orders, sum(o.n) AS n, min(o.n) AS least, avg(o.x) AS x, "
    "sum(8 / o.n) AS parts, sum(o.n) / (count(*) - 4) AS odd "
    "FROM orders o LEFT JOIN lines l ON o._id = l._id GROUP BY l.kind"
)


@pytest.fixture
def log() -> BlockLog:
    return BlockLog(block_events=11)


@pytest.fixture
def endpoint(log: BlockLog) -> Iterator[str]:
    server = FlightServer(log)
    server.start()
    yield server.address
    server.stop()


@pytest.fixture
def config(tmp_path: Path) -> ViewPipelineConfig:
    return ViewPipelineConfig.model_validate(
        {"to": "view", "source": "shop", "path": f"{tmp_path}/v", "query": _QUERY}
    )


def some(dice: random.Random) -> "list[AnyEvent]":
    events: list[AnyEvent] = []
    for _ in range(dice.randrange(1, 6)):
        collection, key = dice.choice(["orders", "orders", "lines"]), dice.randrange(30)
        fields = {"n": dice.choice([None, *range(1, 12)]), "x": dice.random()}
        if collection == "lines":
            fields = {"kind": dice.choice(["a", "b", "c"])}
        if dice.random() < 0.2:
            events.append(change(key, "delete", collection=collection))
        else:
            document = {"_id": key, **fields}
            events.append(change(key, "replace", document, collection=collection))
    return events


def told(found: Verified) -> list[tuple[str, int, int]]:
    view = found.tables[-1]
    assert view.collection == ""
    tables = sorted(found.tables, key=lambda one: one.collection)
    return [(one.collection, one.differences, one.repaired) for one in tables]


def test_what_a_view_and_its_rows_are_is_compared_and_made_right(
    spark: "SparkSession", log: BlockLog, endpoint: str, config: ViewPipelineConfig
) -> None:
    """Rows that the query cannot compute, and columns of groups, raise no alarm."""
    dice = random.Random(seed_of("views-verify"))

    def verified(**more: Any) -> Verified:
        return verify_view("p", config, endpoint, spark=spark, ranges=16, **more)

    with pytest.raises(PipelineError, match="has never run"):
        verified()
    apart = change(100, "insert", {"_id": 100, "n": 0, "x": 0.5}, collection="orders")
    for at in range(2):
        log.append([*(some(dice) for _ in range(15)), *([[apart]] if at else [])])
        run_pipeline("p", config, endpoint, spark=spark, once=True)
    found = verified()
    assert told(found) == [("", 0, 0), ("lines", 0, 0), ("orders", 0, 0)]
    assert found.sound
    view = DeltaTable(config.path)
    rows = {row["kind"]: row for row in view.to_pyarrow_table().to_pylist()}
    assert found.tables[-1].rows == len(rows) > 2
    # The order with n = 0 is apart.
    assert found.tables[-1].rejected > 0

    kinds = sorted(kind for kind in rows if kind)
    view.update({"n": "n + 1"}, predicate=f"kind = '{kinds[0]}'")
    view.delete(f"kind = '{kinds[1]}'")
    # A row that is gone from below it: the rejects have it, and know it from one that never fitted.
    state = DeltaTable(tables_of(config).table_path("orders"))
    bad = next(row for row in state.to_pyarrow_table().to_pylist() if row["n"] == 0)
    state.delete(f"{KEY} = '{bad[KEY]}'")
    good = next(row for row in state.to_pyarrow_table().to_pylist() if row["n"])
    state.update({"n": "n + 1"}, predicate=f"{KEY} = '{good[KEY]}'")
    found = verified(repair=True)
    assert told(found) == [("", 2, 2), ("lines", 0, 0), ("orders", 2, 2)]
    assert [one.rejected for one in found.tables[:2]] == [0, 0]
    assert [(one.key, one.what, one.columns) for one in found.tables[-1].listed] == [
        (rows[kinds[0]][GROUP], "different", ("n",)),
        (rows[kinds[1]][GROUP], "missing", ()),
    ]
    assert {
        row["kind"]: row for row in DeltaTable(config.path).to_pyarrow_table().to_pylist()
    } == rows


@pytest.mark.soak
def test_a_view_of_another_query_is_not_compared(
    spark: "SparkSession", log: BlockLog, endpoint: str, config: ViewPipelineConfig
) -> None:
    log.append([[change(1, "insert", {"_id": 1, "n": 1, "x": 0.5})]])
    run_pipeline("p", config, endpoint, spark=spark, once=True)
    other = config.model_copy(update={"query": _QUERY.replace("8 / o.n", "9 / o.n")})
    with pytest.raises(PipelineError, match=r"of another query.* pipeline run p --once"):
        verify_view("p", other, endpoint, spark=spark)
    found = verify_view("p", other, endpoint, spark=spark, repair=True)
    assert told(found) == [("", 0, 0), ("orders", 0, 0)]
    shutil.rmtree(f"{config.path}/_delta_log")
    with pytest.raises(PipelineError, match=r"is gone, or of"):
        verify_view("p", other, endpoint, spark=spark)
