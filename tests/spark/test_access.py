"""A token that Spark shows, and what it reads with it."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from penstock.serve.access import Access, AccessConfig
from penstock.serve.flight import FlightServer
from penstock.spark.datasource import PenstockStreamReader
from penstock.spark.options import parse_options
from penstock.spark.rows import ENTRY_SCHEMA
from penstock.telemetry import SERVE_REGISTRY
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


def refusals() -> float:
    labels = {"protocol": "flight", "code": "access.forbidden"}
    return SERVE_REGISTRY.get_sample_value("penstock_publish_errors_total", labels) or 0.0


def test_a_query_whose_reports_are_refused_says_so_once_and_sends_no_more(
    guarded: tuple[str, str, str],
) -> None:
    """Each refusal is a line of the service's record; the query itself goes on."""
    endpoint, _, masked = guarded
    options = {"endpoint": endpoint, "token": masked, "pipeline": "mine"}
    reader = PenstockStreamReader(parse_options(options, starting_default="latest"), ENTRY_SCHEMA)
    before = refusals()
    with capture_logs() as logged:
        for sequence in (1, 2, 2):
            reader.commit({"logId": f"{1:016x}", "sequence": sequence, "check": 0})
    assert refusals() - before == 1
    (said,) = [one for one in logged if one.get("pipeline")]
    assert (said["log_level"], said["pipeline"], said["code"]) == (
        *("warning", "mine", "access.forbidden"),
    )
    assert "`penstock access create NAME --source SOURCE`" in said["event"]
