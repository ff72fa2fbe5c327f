"""Rows that were there before the log come from the source, beside the stream (decision 0034)."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.cli.config import load
from penstock.client.flight import LogClient
from penstock.spark.config import TablePipelineConfig
from penstock.spark.loading.parts import DONE, OPEN, READ
from penstock.spark.loading.reading import PartRows, read_parts
from penstock.spark.loading.stored import StoredPlan
from penstock.spark.progress import PipelineProgress
from penstock.spark.run import run_pipeline
from tests.cli.service import Service
from tests.seeds import seed_of
from tests.spark.drivers import once, run_once
from tests.spark.loads import Client, configured, documents, opens, writing
from tests.spark.tables import rows_of
from tests.waiting import wait_until
from tests_support.servers import MongoReplicaSet

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
    seed = seed_of("first-load-1")
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


@pytest.mark.spark
@pytest.mark.soak
def test_a_driver_killed_in_the_middle_goes_on_with_the_ranges_that_are_left(
    mongo: MongoReplicaSet, mongo_client: Client, mongo_database: str, tmp_path: Path
) -> None:
    """Resumable by range: what is in the table is not read again, and nothing is lost."""
    seed = seed_of("first-load-2")
    orders = mongo_client[mongo_database]["orders"]
    orders.insert_many({"_id": key, "n": -1, "text": "before"} for key in range(4 * _ROWS))
    path = configured(tmp_path, mongo.uri, mongo_database)
    config = load(path).pipelines["p"]
    assert isinstance(config, TablePipelineConfig)
    stored = StoredPlan("p", config)
    with Service(path) as service, LogClient(service.ready["flight"]) as client:
        wait_until(lambda: client.position("shop"), "capture to begin")
        with writing(mongo_client, mongo_database, keys=4 * _ROWS, seed=seed):
            with once(path, service.ready["flight"]) as first:
                first.wait_until(lambda: stored.read().of(READ), "some ranges to be read")
            assert stored.read().of(OPEN), "the driver was killed too late"
            read = stored.read().of(READ)
            run_once(path, service.ready["flight"])
        assert stored.read().complete
        assert {(one.start, one.read_at) for one in read} <= {
            (one.start, one.read_at) for one in stored.read().of(DONE)
        }
        orders.insert_one({"_id": _LAST, "n": 0})
        while f'{{"_id":{_LAST}}}' not in table_of(tmp_path / "lake", mongo_database):
            run_once(path, service.ready["flight"])
    assert table_of(tmp_path / "lake", mongo_database) == documents(mongo_client, mongo_database)
    assert not (tmp_path / "lake_rejects").exists()


@pytest.mark.soak
def test_a_collection_that_is_renamed_or_dropped_while_it_is_loaded_ends_as_the_source(
    spark: "SparkSession",
    mongo: MongoReplicaSet,
    mongo_client: Client,
    mongo_database: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """S10: documents come to a name under which they were not loaded, and go with another."""
    database = mongo_client[mongo_database]
    for name in ("before", "gone", "orders"):
        database[name].insert_many({"_id": key, "n": 1} for key in range(300))
    path = configured(tmp_path, mongo.uri, mongo_database)
    settings = load(path)
    config = settings.pipelines["p"].model_copy(update={"collections": ()})
    assert isinstance(config, TablePipelineConfig)
    read, happened = read_parts, list[str]()

    def interrupted(*given: Any, **named: Any) -> list[PartRows]:
        """The first rows of a collection are read, and then it is no more."""
        rows = read(*given, **named)
        for part in given[1]:
            if part.collection in {"before", "gone"} and part.collection not in happened:
                happened.append(part.collection)
                if part.collection == "gone":
                    database.drop_collection("gone")
                else:
                    database["before"].rename("after")
        return rows

    monkeypatch.setattr("penstock.spark.loading.load.read_parts", interrupted)
    with Service(path) as service, LogClient(service.ready["flight"]) as client:
        wait_until(lambda: client.position("shop"), "capture to begin")
        with writing(mongo_client, mongo_database, keys=300, seed=1):
            run_pipeline(
                "p",
                config,
                service.ready["flight"],
                spark=spark,
                once=True,
                open_source=opens(settings),
            )
    assert sorted(happened) == ["before", "gone"]
    lake = tmp_path / "lake"
    assert table_of(lake / "after", mongo_database) == documents(
        mongo_client, mongo_database, "after"
    )
    for name in ("before", "gone"):
        assert not (lake / name).exists() or table_of(lake / name, mongo_database) == {}
