"""What a replay has put where it belongs is what the log says: a comparison raises no alarm."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.archive.opening import log_client
from penstock.serve.flight import FlightServer
from penstock.spark.changelog.replaying import ChangelogReplay
from penstock.spark.replaying import replay_rejects
from penstock.spark.run import run_pipeline
from penstock.spark.verifying import verify_tables
from penstock.spark.verifying_changelog import verify_changelog
from tests.flight.blocks import BlockLog
from tests.spark.changelogs import changelog
from tests.spark.histories import history
from tests.spark.tables import change, pipeline, put

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.spark.verifying import Verified

pytestmark = pytest.mark.slow

STEPS: dict[str, Any] = {
    "expect": [
        {"name": "small", "condition": "n < 10", "document_schema": "n INT", "action": "drop"},
    ]
}


@pytest.fixture
def endpoint() -> Iterator[str]:
    log = BlockLog()
    stories = [put(1, n=1), put(2, n=20), put(2, n=2), put(3, n=30), put(1, n=10)]
    log.append([[one] for one in [*stories, change(3, "delete"), put(4, n=40)]])
    server = FlightServer(log)
    server.start()
    yield server.address
    server.stop()


@pytest.mark.parametrize("form", ["delta", "parquet"])
def test_an_entry_of_a_changelog_that_is_told_again_is_no_repetition(
    spark: "SparkSession", endpoint: str, tmp_path: Path, form: str
) -> None:
    config = changelog(tmp_path / "c", format=form, **STEPS)
    mended = changelog(tmp_path / "c", format=form)

    def found(config: Any, **more: Any) -> "Verified":
        return verify_changelog("c", config, endpoint, spark=spark, ranges=4, **more)

    run_pipeline("c", config, endpoint, spark=spark, once=True)
    (compared,) = found(mended).tables
    assert [row.what for row in compared.listed] == ["different"] * 4
    with log_client(endpoint) as client:
        replayed = ChangelogReplay("c", mended, client, spark).run()
    assert [one.state for one in replayed] == ["replayed"] * 4
    (compared,) = found(mended).tables
    assert (compared.differences, compared.rejected, compared.rows) == (0, 4, 7)


def test_versions_and_rows_that_are_replayed_are_as_the_log_says(
    spark: "SparkSession", endpoint: str, tmp_path: Path
) -> None:
    for make, rows in ((history, 6), (pipeline, 3)):
        path = tmp_path / make.__name__
        config, mended = make(path, **STEPS), make(path)
        run_pipeline("p", config, endpoint, spark=spark, once=True)
        replayed = replay_rejects("p", mended, endpoint, spark=spark)
        assert {one.state for one in replayed} <= {"replayed", "superseded"}
        assert len(replayed) == 4
        (compared,) = verify_tables("p", mended, endpoint, spark=spark, ranges=4).tables
        assert (compared.differences, compared.rejected, compared.rows) == (0, 0, rows)
