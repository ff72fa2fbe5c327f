"""A collection that convertToCapped makes anew, which the server fills without a word to change
streams, has the rows of the server wherever a pipeline keeps them."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from penstock.client.flight import LogClient, ReadRequest
from penstock.spark.config import TablePipelineConfig
from penstock.spark.replica.verifying import verify_replica
from penstock.spark.run import run_pipeline
from penstock.spark.verifying import verify_tables
from tests.spark.captured import captured
from tests.spark.histories import history
from tests.spark.replica.support import MongoReplica
from tests.spark.tables import pipeline, rows_of
from tests.waiting import wait_until
from tests_support.servers import MongoReplicaSet

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.spark.captured import Client


@pytest.mark.server
@pytest.mark.slow
def test_tables_histories_and_replicas_have_the_rows_of_a_collection_that_was_made_capped(
    spark: "SparkSession",
    mongo: MongoReplicaSet,
    mongo_client: "Client",
    mongo_database: str,
    tmp_path: Path,
) -> None:
    orders = mongo_client[mongo_database]["orders"]
    replica = MongoReplica(mongo.uri, f"{mongo_database}_replica")
    configs: dict[str, Any] = {
        "table": pipeline(tmp_path / "table", "orders"),
        "history": history(tmp_path / "history", "orders"),
        "replica": replica.config("orders"),
    }
    with captured(mongo_client, mongo.uri, mongo_database) as shop, LogClient(shop.endpoint) as log:

        def copies() -> int:
            bounds = log.bounds()
            request = ReadRequest(log_id=bounds.log_id, after=0, until=bounds.head)
            told = [one for batch in log.read(request) for one in batch.to_pylist()]
            return sum(one["operation_type"] == "snapshot_completed" for one in told)

        orders.insert_many({"_id": n, "text": "x" * 100} for n in range(50))
        # The new one is too small for all of them: the server leaves the oldest out.
        mongo_client[mongo_database].command("convertToCapped", "orders", size=4096)
        wait_until(copies, "the copy")
        wanted = {row["_id"]: row for row in orders.find()}
        assert 1 < len(wanted) < 50
        for name, config in configs.items():
            run_pipeline(name, config, shop.endpoint, spark=spark, once=True)
            verify: Any = verify_replica if name == "replica" else verify_tables
            assert verify(name, config, shop.endpoint, spark=spark, ranges=4).sound
    table, versions = configs["table"], DeltaTable(configs["history"].path).to_pyarrow_table()
    assert isinstance(table, TablePipelineConfig)
    assert {row["_id"]: row for row in rows_of(table.path).values()} == wanted
    current = [row for row in versions.to_pylist() if row["_current"]]
    assert {row["_id"]: {"_id": row["_id"], "text": row["text"]} for row in current} == wanted
    assert replica.rows("orders") == wanted
    mongo_client.drop_database(f"{mongo_database}_replica")
    replica.close()
