"""The usual way: the same changes as JSON files, and a MERGE of each micro-batch in foreachBatch.

Spark's own stream of files, with a schema that is known beforehand; row_number for the newest
change of each key; one MERGE into a Delta table. Once with Delta Lake's own jars, as on a cluster,
once through delta-rs, as people without jars write it. Both know no type conflicts, no new fields,
no gaps and no transactions of the source, and both read local files where ours is sent the changes
by a service on the same cores. Delta's jars get twice the memory, which MERGE needs.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from deltalake import DeltaTable, write_deltalake

from bench.spark.orders import FILE_CHANGES, JSON_DOCUMENT, quantity
from bench.spark.stage import Clock, Figure, Given, agree, columns_of, session
from tests_support.servers import DELTA

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BY_JARS: Final = "json: MERGE by Delta's jars"
BY_DELTA_RS: Final = "json: merge by delta-rs"
NAMES: Final = {BY_JARS: "JSON and Delta's jars", BY_DELTA_RS: "JSON and delta-rs"}

_SCHEMA: Final = f"sequence BIGINT, op STRING, id BIGINT, document STRUCT<{JSON_DOCUMENT}>"
Merge = Callable[["DataFrame", Path], None]


def by_jars(given: Given) -> list[Figure]:
    spark = session(
        given,
        **{
            "spark.driver.memory": "4g",
            "spark.jars": ",".join(map(str, DELTA.paths())),
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        },
    )
    path = given.folder / "orders"
    spark.sql(f"CREATE TABLE delta.`{path}` (sequence BIGINT, {JSON_DOCUMENT}) USING delta")
    return [_measured(given, spark, path, BY_JARS, _merged_by_jars)]


def by_delta_rs(given: Given) -> list[Figure]:
    path = given.folder / "orders"
    return [_measured(given, session(given), path, BY_DELTA_RS, _merged_by_delta_rs)]


def _measured(given: Given, spark: "SparkSession", path: Path, what: str, merge: Merge) -> Figure:
    clock = Clock(given.seconds)
    files = max(1, given.batch // FILE_CHANGES)

    def apply(rows: "DataFrame", batch_id: int) -> None:
        if clock.stop.is_set():
            return  # the time is over
        started = time.monotonic()
        merge(_newest(rows), path)
        left = given.json_changes - batch_id * files * FILE_CHANGES
        clock.passed(min(files * FILE_CHANGES, left), seconds=time.monotonic() - started)

    query = (
        spark.readStream.schema(_SCHEMA)
        .option("maxFilesPerTrigger", files)
        .json(str(given.json))
        .writeStream.foreachBatch(apply)
        .option("checkpointLocation", str(given.folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    while query.isActive and not clock.stop.is_set():
        query.awaitTermination(1)
    query.stop()
    spark.stop()
    figure = Figure(what, clock.curve)
    expected = given.orders.fold(figure.changes)
    rows = columns_of(path, "_id", "number", "quantity")
    agree("the peer's keys", rows["_id"], expected.keys)
    agree("the changes that its rows are of", rows["number"], expected.last)
    agree("a column of them", rows["quantity"], quantity(expected.last))
    return figure


def _newest(rows: "DataFrame") -> "DataFrame":
    """The newest change of each key."""
    from pyspark.sql import Window
    from pyspark.sql import functions as sql

    newest = Window.partitionBy("id").orderBy(sql.col("sequence").desc())
    return (
        rows.withColumn("rank", sql.row_number().over(newest))
        .where("rank = 1")
        .select("op", "id", "sequence", "document.*")
    )


def _assignments(names: list[str]) -> dict[str, str]:
    return {name: f"s.{name}" for name in names if name not in {"op", "id"}}


def _merged_by_jars(changes: "DataFrame", path: Path) -> None:
    changes.createOrReplaceTempView("changes")
    values = _assignments(changes.columns)
    updates = ", ".join(f"t.{name} = {value}" for name, value in values.items())
    changes.sparkSession.sql(
        f"MERGE INTO delta.`{path}` t USING changes s ON t._id = s.id "
        f"WHEN MATCHED AND s.op = 'delete' THEN DELETE "
        f"WHEN MATCHED THEN UPDATE SET {updates} "
        f"WHEN NOT MATCHED AND s.op <> 'delete' THEN "
        f"INSERT ({', '.join(values)}) VALUES ({', '.join(values.values())})"
    )


def _merged_by_delta_rs(changes: "DataFrame", path: Path) -> None:
    rows = changes.toArrow()
    if not DeltaTable.is_deltatable(str(path)):
        write_deltalake(str(path), rows.drop_columns(["op", "id"]).slice(0, 0))
    values = _assignments(rows.column_names)
    (
        DeltaTable(str(path))
        .merge(rows, "t._id = s.id", source_alias="s", target_alias="t")
        .when_matched_delete("s.op = 'delete'")
        .when_matched_update(values)
        .when_not_matched_insert(values, predicate="s.op <> 'delete'")
        .execute()
    )
