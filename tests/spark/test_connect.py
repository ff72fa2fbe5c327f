"""`format("penstock")` through Spark Connect: the client is here, the driver is elsewhere."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import ConfigError
from penstock.spark import register
from penstock.spark.functions import (
    build_on,
    changelog,
    collection_events,
    current_rows,
    latest_changes,
    row_versions,
)
from penstock.spark.run import run_pipeline
from tests.flight.blocks import BlockLog, insert
from tests.spark.cluster import Certified, serving
from tests.spark.tables import pipeline
from tests_support.servers import ServerUnavailableError, SparkConnectServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture(scope="module")
def remote() -> Iterator["SparkSession"]:
    """A client's session of a server that has Penstock."""
    from pyspark.sql.connect.session import SparkSession

    try:
        with SparkConnectServer() as server:
            session: Any = SparkSession.builder.remote(server.url).getOrCreate()
            register(session)
            yield session
            session.stop()
    except ServerUnavailableError as error:
        if "true" in (os.environ.get("CI"), os.environ.get("PENSTOCK_SERVERS_REQUIRED")):
            pytest.fail(str(error))
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """What reads a log of three entries: its service wants TLS and a token."""
    certified = Certified(tmp_path_factory.mktemp("service"))
    log = BlockLog()
    log.append([[insert(1), insert(2)], [insert(3)]])
    with serving(log, certified) as address:
        shown = {"token": certified.token, "tlsCa": certified.ca.read_text()}
        yield {"endpoint": address, "startingOffsets": "earliest", **shown}


def test_a_batch_is_read(remote: "SparkSession", options: dict[str, str]) -> None:
    rows = remote.read.format("penstock").options(**options).load().collect()
    assert [row.sequence for row in rows] == [1, 2, 3]
    assert [row.document_id for row in rows] == ["1", "2", "3"]


def test_a_stream_is_followed(remote: "SparkSession", options: dict[str, str]) -> None:
    stream = remote.readStream.format("penstock").options(**options).load()
    writer = stream.writeStream.format("memory").queryName("followed")
    writer.trigger(availableNow=True).start().awaitTermination()
    rows = remote.table("followed").orderBy("sequence").collect()
    assert [row.sequence for row in rows] == [1, 2, 3]


def test_functions_make_rows_of_entries(remote: "SparkSession", options: dict[str, str]) -> None:
    entries = remote.read.format("penstock").options(**options).load()
    kept = current_rows(entries, schema="_id INT, total INT")
    assert sorted(row.document.total for row in kept.collect()) == [2, 4, 6]
    changes = latest_changes(entries).transform(build_on, current_rows(entries))
    assert [row.operation for row in changes.collect()] == ["upsert"] * 3
    assert row_versions(entries).where("_current").count() == 3
    assert changelog(entries).count() == 3
    assert collection_events(entries).collect() == []
    with pytest.raises(ConfigError, match="inside foreachBatch"):
        latest_changes(remote.readStream.format("penstock").options(**options).load())


def test_a_pipeline_is_refused_with_what_to_do(
    remote: "SparkSession", options: dict[str, str], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="spark-submit"):
        run_pipeline("p", pipeline(tmp_path), options["endpoint"], spark=remote, once=True)
