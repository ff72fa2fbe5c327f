"""What the tests of comparing replicas share."""

from typing import TYPE_CHECKING, Any

from penstock.spark.replica.verifying import verify_replica
from penstock.spark.run import run_pipeline
from penstock.spark.verifying import Verified
from tests.spark.replica.support import MongoReplica, MysqlReplica, PostgresReplica, Replica

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.spark.config import ReplicatePipelineConfig


class Pipeline:
    """One of these replicas."""

    def __init__(self, spark: "SparkSession", endpoint: str, replica: Replica) -> None:
        self.replica = replica
        self.endpoint = endpoint
        self._spark = spark

    def config(self, *collections: str, **more: Any) -> "ReplicatePipelineConfig":
        return self.replica.config(*collections, **{"max_events_per_batch": 120, **more})

    def run(self, *collections: str, **more: Any) -> None:
        config = self.config(*collections, **more)
        run_pipeline("p", config, self.endpoint, spark=self._spark, once=True)

    def verify(self, *collections: str, repair: bool = False, **more: Any) -> Verified:
        config = self.config(*collections, **more)
        # In other batches than it was written in, so that nothing hangs on where they end.
        config = config.model_copy(update={"max_events_per_batch": 70})
        return verify_replica(
            "p", config, self.endpoint, spark=self._spark, ranges=16, repair=repair
        )


def ask(replica: Replica, *statements: str) -> None:
    """Of an SQL database, in its own words."""
    assert isinstance(replica, PostgresReplica | MysqlReplica)
    for statement in statements:
        replica.ask(statement)


def meddled(replica: Replica) -> None:
    """A row more, one fewer, one with another value, and one without one."""
    if isinstance(replica, MongoReplica):
        orders = replica.database["orders"]
        orders.delete_one({"_id": 3})
        orders.update_one({"_id": 4}, {"$inc": {"n": 1}})
        orders.update_one({"_id": 8}, {"$unset": {"name": 1}})
        orders.insert_one({"_id": 999, "n": 1})
        return
    ask(
        replica,
        "DELETE FROM orders WHERE _id = 3",
        "UPDATE orders SET n = n + 1 WHERE _id = 4",
        "UPDATE orders SET name = NULL WHERE _id = 8",
        "INSERT INTO orders (_id, n) VALUES (999, 1)",
    )
