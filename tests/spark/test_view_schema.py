"""What a view's schema says is so from the start, or it stops by name."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from penstock.errors import PipelineChangedError
from penstock.ports import Bounds
from penstock.spark.config import ViewPipelineConfig
from penstock.spark.table.kinds import Kind
from penstock.spark.tables import TableTarget
from penstock.spark.view.state import StateTable
from penstock.spark.view.upkeep import Upkeep
from penstock.spark.views import ViewTarget, beginning_of_view, tables_of
from tests.spark.tables import put
from tests.spark.viewed import Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_KINDS = {
    "small": Kind.INT32,
    "n": Kind.INT64,
    "d": Kind.DOUBLE,
    "id": Kind.OBJECT_ID,
    "text": Kind.STRING,
    "doc": Kind.JSON,
}
_BOUNDS = Bounds(log_id=1, trimmed=0, trimmed_check=0, head=0, head_commit=0, head_check=0)


@pytest.mark.parametrize(
    ("declared", "others"),
    [
        (_KINDS, {}),
        # They have widened.
        ({"n": Kind.INT32, "D": Kind.INT32, "missing": Kind.BOOL}, {}),
        ({"id": Kind.STRING, "text": Kind.OBJECT_ID}, {}),
        ({"small": Kind.INT64, "n": Kind.DOUBLE}, {"small": Kind.INT32, "n": Kind.INT64}),
        ({"text": Kind.JSON, "Doc": Kind.STRING}, {"text": Kind.STRING, "Doc": Kind.JSON}),
    ],
)
def test_columns_of_another_kind_than_declared_are_known(
    tmp_path: Path, declared: dict[str, Kind], others: dict[str, Kind]
) -> None:
    table = StateTable(str(tmp_path / "t"), storage_options={})
    assert table.others(declared) == {}
    table.create(_KINDS)
    assert table.others(declared) == others


def test_a_column_that_is_declared_later_is_added(tmp_path: Path) -> None:
    table = StateTable(str(tmp_path / "t"), storage_options={})
    table.create({"n": Kind.INT32})
    table.create({"N": Kind.INT32, "more": Kind.DECIMAL, "doc": Kind.JSON})
    assert table.others({"more": Kind.DECIMAL, "doc": Kind.JSON}) == {}
    assert table.schema.names[-3:] == ["n", "more", "doc"]
    version = table.mark.version
    table.create({"more": Kind.DECIMAL})
    assert table.mark.version == version


def test_a_schema_that_was_changed_stops_the_pipeline_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def config(ddl: str) -> ViewPipelineConfig:
        return ViewPipelineConfig.model_validate(
            {
                "to": "view",
                "source": "shop",
                "path": str(tmp_path / "v"),
                "query": "SELECT sum(n) AS n FROM orders",
                "schema": {"orders": ddl},
            }
        )

    old, new = config("n INT"), config("n DOUBLE")
    StateTable(tables_of(old).table_path("orders"), storage_options={}).create({"n": Kind.INT32})

    def nothing(_: object, *__: object, **___: object) -> None: ...

    monkeypatch.setattr(Upkeep, "__init__", nothing)
    monkeypatch.setattr(TableTarget, "start", pytest.fail)
    target = ViewTarget("p", new, cast("SparkSession", None))
    for begin in (lambda: target.start(_BOUNDS), lambda: beginning_of_view("p", new, _BOUNDS)):
        with pytest.raises(
            PipelineChangedError, match=r"n of orders is DOUBLE, and .* it is INT\. .* new path"
        ):
            begin()
    beginning_of_view("p", old, _BOUNDS)


def test_a_column_that_a_schema_adds_has_its_type_in_the_view(
    spark: "SparkSession", tmp_path: Path
) -> None:
    lake = Lake(spark, tmp_path, "SELECT max(m) AS m FROM orders")
    lake.batch(put(1, n=1))
    assert lake.rows() == [(None,)]
    lake.state["orders"].create({"m": Kind.INT64})
    lake.upkeep.catch_up()
    lake.batch(put(2, n=1, m=7))
    assert lake.rows() == [(7,)]
    view: Any = DeltaTable(lake.config.path).to_pyarrow_table()
    assert view.schema.field("m").type == pa.int64()
