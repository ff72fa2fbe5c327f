"""A token that Spark shows, and what it reads with it."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.serve.access import Access, AccessConfig
from penstock.serve.flight import FlightServer
from tests.access.support import ALL, issue
from tests.flight.blocks import BlockLog, insert

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[tuple[str, str, str]]:
    tokens = tmp_path / "access.json"
    whole, masked = issue(tokens, "whole", verbs=ALL), issue(tokens, "masked", hidden=("n",))
    log = BlockLog()
    log.append([[insert(1), insert(2)]])
    access = Access(AccessConfig(tokens=tokens))
    server = FlightServer(log, access=access)
    server.start()
    yield server.address, whole, masked
    server.stop()
    access.close()


def test_spark_shows_its_token_and_reads_what_it_may(
    spark: "SparkSession", guarded: tuple[str, str, str]
) -> None:
    endpoint, whole, masked = guarded

    def rows(token: str) -> list[Any]:
        reader = spark.read.format("penstock").option("endpoint", endpoint)
        return reader.option("token", token).load().collect()

    assert len(rows(whole)) == 2
    assert all(row.commit_digest is not None for row in rows(whole))
    found = rows(masked)
    assert len(found) == 2
    assert all(row.commit_digest is None and row.check is None for row in found)
    with pytest.raises(Exception, match="wants to know who asks"):
        rows("")
