"""Tables compared with a real MongoDB, capture and all (decision 0036)."""

import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import bson
import pyarrow as pa
import pytest
from bson.raw_bson import RawBSONDocument
from deltalake import DeltaTable, write_deltalake

from penstock.client.flight import LogClient, ReadRequest
from penstock.errors import UndecodableError
from penstock.sources.mongodb import MongoSource
from penstock.sources.mongodb.cursor import RAW
from penstock.spark.against.judging import _each_once  # pyright: ignore[reportPrivateUsage]
from penstock.spark.against.source import verify_with_source
from penstock.spark.config import TablePipelineConfig
from penstock.spark.progress import VerifyProgress
from penstock.spark.replaying import pending_rejects
from penstock.spark.run import run_pipeline
from penstock.spark.table.plan import KEY
from penstock.spark.verifying import Verified, verify_tables
from tests.mongodb.support import config as source_config
from tests.seeds import seed_of
from tests.spark.captured import Captured, captured
from tests.spark.loads import Client, documents, writing
from tests.spark.tables import pipeline, rejects_of, rows_of
from tests.waiting import wait_until
from tests_support.servers import MongoReplicaSet

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ROWS = 300


@pytest.fixture
def shop(mongo: MongoReplicaSet, mongo_client: Client, mongo_database: str) -> Iterator[Captured]:
    """A database with rows from before its log."""
    orders = mongo_client[mongo_database]["orders"]
    orders.insert_many({"_id": key, "n": key, "a.b": "x"} for key in range(_ROWS))
    with captured(mongo_client, mongo.uri, mongo_database) as made:
        yield made


def loading(path: Path, *collections: str, **more: Any) -> TablePipelineConfig:
    return pipeline(path, *collections, first_load="source", first_load_rows=100, **more)


def run(config: TablePipelineConfig, shop: Captured, spark: "SparkSession") -> None:
    run_pipeline("p", config, shop.endpoint, spark=spark, once=True, open_source=shop.open_source)


def verified(
    config: TablePipelineConfig, shop: Captured, spark: "SparkSession", **more: Any
) -> Verified:
    return verify_with_source(
        "p", config, shop.endpoint, spark=spark, open_source=shop.open_source, ranges=16, **more
    )


def told(shop: Captured, client: Client, database: str) -> None:
    """All that was written until now is in the log."""
    name = uuid.uuid4().hex
    with LogClient(shop.endpoint) as log:
        after = log.head().sequence
        client[database]["told"].insert_one({"_id": name})

        def is_in_the_log() -> bool:
            bounds = log.bounds()
            request = ReadRequest(log_id=bounds.log_id, after=after, until=bounds.head)
            return any(name in batch["document_id"].to_pylist() for batch in log.read(request))

        wait_until(is_in_the_log, "the log")


def differences(found: Verified) -> list[tuple[str, str, tuple[str, ...]]]:
    (table,) = found.tables
    assert table.differences == len(table.listed)
    return [(one.key, one.what, one.columns) for one in table.listed]


@pytest.mark.soak
def test_tables_are_equal_to_a_source_that_is_written_and_rows_that_change_are_not_judged(
    spark: "SparkSession",
    shop: Captured,
    mongo_client: Client,
    mongo_database: str,
    tmp_path: Path,
) -> None:
    """With rows that no log tells, and a pipeline that lags; nobody is stopped for it."""
    seed = seed_of("against-source")
    more: dict[str, Any] = {"verify_every": "1d", "verify_against": "source"}
    config = loading(tmp_path / "t", **more)
    with writing(mongo_client, mongo_database, keys=50, seed=seed, pause_seconds=0.02):
        run(config, shop, spark)
        found = verified(config, shop, spark)
    # The pipeline did it too, behind its last batch.
    (known,) = DeltaTable(config.verified_path).to_pyarrow_table().to_pylist()
    assert known["differences"] == 0
    (table,) = found.tables
    assert (found.against, found.sound) == ("source", True), table.listed
    assert table.changed > 0
    assert table.rows == table.found >= _ROWS - 50
    assert table.changed + table.rows <= _ROWS


@pytest.mark.soak
def test_a_load_goes_on_behind_a_document_without_an_exact_form_and_no_comparison_does(
    spark: "SparkSession",
    mongo: MongoReplicaSet,
    mongo_client: Client,
    mongo_database: str,
    tmp_path: Path,
) -> None:
    orders = mongo_client[mongo_database].get_collection("orders", codec_options=RAW)
    sound = [bson.encode({"_id": key, "text": "a"}) for key in range(3)]
    bad = sound[1].replace(b"a\0\0", b"\xff\0\0")
    orders.insert_many([RawBSONDocument(one) for one in (sound[0], bad, sound[2])])
    config = loading(tmp_path / "t")
    with captured(mongo_client, mongo.uri, mongo_database) as shop:
        with pytest.raises(UndecodableError, match=r"on_undecodable = 'dead_letter'"):
            run(config, shop, spark)
        letters = source_config(
            mongo.uri, database=mongo_database, heartbeat_seconds=0.5, on_undecodable="dead_letter"
        )
        shop.open_source = partial(MongoSource, "shop", letters)
        run(config, shop, spark)
        (reject,) = pending_rejects("p", config)
        assert (reject["key"], reject["operation_type"]) == ('{"_id":1}', "load")
        assert "utf" in reject["reason"].lower()
        assert {key for _, key in rows_of(tmp_path / "t")} == {'{"_id":0}', '{"_id":2}'}
        with pytest.raises(UndecodableError, match=r'its key is {"_id":1}.*compare again'):
            verified(config, shop, spark)
        orders.replace_one({"_id": 1}, {"_id": 1, "text": "a"})
        told(shop, mongo_client, mongo_database)
        run(config, shop, spark)
        assert len(rows_of(tmp_path / "t")) == len(sound)
        assert verified(config, shop, spark).sound


@pytest.mark.soak
def test_a_comparison_with_the_source_tells_which_ranges_are_read(
    spark: "SparkSession", shop: Captured, tmp_path: Path
) -> None:
    config = loading(tmp_path / "t")
    run(config, shop, spark)
    heard: list[VerifyProgress] = []
    assert verified(config, shop, spark, on_progress=heard.append).sound
    steps = list(dict.fromkeys(one.step for one in heard))
    assert steps == ["dividing", "reading", "waiting", "changes", "comparing"]
    read = [one for one in heard if one.step == "reading"]
    assert {(one.total, one.collection) for one in read} == {(_ROWS // 100, "orders")}
    assert (read[0].done, read[-1].done) == (0, _ROWS // 100)
    assert [one.total for one in heard if one.step in {"waiting", "changes"}] == [None, None]


def test_a_change_that_capture_lost_is_found_and_made_right(
    spark: "SparkSession",
    shop: Captured,
    mongo_client: Client,
    mongo_database: str,
    tmp_path: Path,
) -> None:
    """S1: the log says that all is well, for it never knew of them."""
    orders = mongo_client[mongo_database]["orders"]
    orders.delete_many({})
    orders.insert_many({"_id": key, "n": key} for key in range(20))
    told(shop, mongo_client, mongo_database)
    shop.lose(1, 2, 3, 99)
    orders.update_one({"_id": 3}, {"$set": {"fresh": 1}})
    orders.update_one({"_id": 1}, {"$set": {"n": -1}})
    orders.delete_one({"_id": 2})
    orders.insert_one({"_id": 99, "n": 99})
    orders.insert_one({"_id": 100, "n": "no number"})
    told(shop, mongo_client, mongo_database)
    config = pipeline(tmp_path / "t")
    run(config, shop, spark)
    assert verify_tables("p", config, shop.endpoint, spark=spark).sound
    found = verified(config, shop, spark)
    assert differences(found) == [
        ('{"_id":1}', "different", ("n",)),
        ('{"_id":2}', "extra", ()),
        ('{"_id":3}', "different", ("fresh",)),
        ('{"_id":99}', "missing", ()),
    ]
    (table,) = found.tables
    assert (table.rows, table.found, table.changed, table.rejected) == (20, 20, 0, 1)
    assert [one["key"] for one in rejects_of(tmp_path / "t")] == ['{"_id":100}']
    (table,) = verified(config, shop, spark, repair=True, listed_max=0).tables
    assert (table.differences, table.repaired) == (4, 3)
    # For that a column is needed, which is the pipeline's to make.
    assert differences(verified(config, shop, spark)) == [('{"_id":3}', "different", ("fresh",))]
    # It is still the pipeline's table, and goes on where it stood.
    shop.lose()
    orders.update_one({"_id": 3}, {"$set": {"n": 33}})
    orders.update_one({"_id": 99}, {"$set": {"n": 0}})
    orders.delete_one({"_id": 100})
    told(shop, mongo_client, mongo_database)
    run(config, shop, spark)
    own = {key: row for (_, key), row in rows_of(config.path).items()}
    assert own == documents(mongo_client, mongo_database)


@pytest.mark.soak
def test_what_somebody_altered_is_found_but_not_what_changed_since(
    spark: "SparkSession",
    shop: Captured,
    mongo_client: Client,
    mongo_database: str,
    tmp_path: Path,
) -> None:
    """The pipeline is behind: what the log names there is left to it, a dropped collection too."""
    database = mongo_client[mongo_database]
    database["lines"].insert_one({"_id": 1})
    told(shop, mongo_client, mongo_database)
    config = loading(tmp_path / "t", "orders", "lines")
    run(config, shop, spark)
    database["orders"].update_one({"_id": 5}, {"$set": {"n": "text"}})
    told(shop, mongo_client, mongo_database)
    run(config, shop, spark)
    table = DeltaTable(config.table_path("orders"))
    for key in (1, 3):
        table.delete(f"`{KEY}` = '{{\"_id\":{key}}}'")
    table.update({"n": "n + 1"}, predicate=f"`{KEY}` IN ('{{\"_id\":2}}', '{{\"_id\":4}}')")
    rows = table.to_pyarrow_table()
    (row,) = (one for one in rows.to_pylist() if one[KEY] == '{"_id":10}')
    extra = pa.Table.from_pylist([row, {**row, KEY: '{"_id":999}'}], schema=rows.schema)
    write_deltalake(table, extra, mode="append")
    database["orders"].update_one({"_id": 1}, {"$set": {"n": 0}})
    database["orders"].delete_one({"_id": 2})
    database["orders"].insert_one({"_id": 1000})
    database["lines"].drop()
    lines, orders = verified(config, shop, spark).tables
    assert (lines.changed, lines.differences, lines.rows, lines.found) == (1, 0, 0, 0)
    assert [(one.key, one.what, one.columns) for one in orders.listed] == [
        ('{"_id":10}', "repeated", ()),
        ('{"_id":3}', "missing", ()),
        ('{"_id":4}', "different", ("n",)),
        ('{"_id":999}', "extra", ()),
    ]
    # Of 1 nothing was there, nor of 1000 in the table; 5 is stale.
    assert (orders.changed, orders.rejected, orders.rows) == (3, 1, _ROWS - 3)


def test_equal_rows_of_a_table_without_a_key_are_one(spark: "SparkSession") -> None:
    """As in the stream, which tells each of them by the same key."""
    columns = "_key STRING, _source STRING, _database STRING, n INT"
    keyless, keyed = ('{"_row":"ab"}', "shop", "db", 1), ('{"id":1}', "shop", "db", 1)
    rows = spark.createDataFrame([keyless, keyed, keyless], columns)
    assert _each_once(rows).count() == 2
    assert _each_once(spark.createDataFrame([keyed], columns)).count() == 1
