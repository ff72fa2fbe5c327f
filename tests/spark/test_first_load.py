"""Rows that were there before the log come from the source, beside the stream (decision 0034)."""

import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.cli.config import load
from penstock.client.flight import LogClient
from penstock.spark.run import PipelineProgress, run_pipeline
from penstock.testing.servers import MongoReplicaSet
from tests.cli.service import Service
from tests.e2e.processes import wait_until
from tests.spark.loads import Client, configured, documents, opens, writing
from tests.spark.tables import rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ROWS = 600
_LAST = 10_000
"""The key that is written last."""


def table_of(lake: Path, database: str) -> dict[str, object]:
    return {key: row for (own, key), row in rows_of(lake).items() if own == database}


@pytest.mark.slow
def test_rows_from_before_the_log_and_changes_meanwhile_end_as_the_source(
    spark: "SparkSession",
    mongo: MongoReplicaSet,
    mongo_client: Client,
    mongo_database: str,
    tmp_path: Path,
) -> None:
    """S10, invariants 2 and 9: newer changes win, and what was deleted meanwhile stays so."""
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"{seed=}")
    orders = mongo_client[mongo_database]["orders"]
    orders.insert_many({"_id": key, "n": -1, "text": "before"} for key in range(_ROWS))
    path = configured(tmp_path, mongo.uri, mongo_database)
    settings = load(path)
    with Service(path) as service, LogClient(service.ready["flight"]) as client:
        wait_until(lambda: client.position("shop"), "capture to begin")
        seen: list[PipelineProgress] = []

        def run() -> None:
            run_pipeline(
                "p",
                settings.pipelines["p"],
                service.ready["flight"],
                spark=spark,
                once=True,
                on_progress=seen.append,
                open_source=opens(settings),
            )

        with writing(mongo_client, mongo_database, keys=_ROWS + 100, seed=seed) as writer:
            run()
        assert writer.writes > 100
        assert sum(one.entries for one in seen) > 0, "changes were applied while rows were read"
        orders.insert_one({"_id": _LAST, "n": 0})
        while f'{{"_id":{_LAST}}}' not in table_of(tmp_path / "lake", mongo_database):
            run()
    assert table_of(tmp_path / "lake", mongo_database) == documents(mongo_client, mongo_database)
    assert not (tmp_path / "lake_rejects").exists()
