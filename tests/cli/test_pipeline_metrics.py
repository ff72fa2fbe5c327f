"""What a pipeline shows of itself is true while it is behind, and while it is not."""

import urllib.request
from collections.abc import Iterator

import pytest
from msgspec import structs

from penstock.cli.pipeline_metrics import Meter, shown
from penstock.serve.flight import FlightServer
from penstock.spark.config import AuditPipelineConfig
from penstock.spark.progress import PipelineProgress
from penstock.testing.servers import free_ports
from tests.flight.blocks import BlockLog, insert


@pytest.fixture
def log() -> BlockLog:
    return BlockLog()


@pytest.fixture
def endpoint(log: BlockLog) -> Iterator[str]:
    server = FlightServer(log)
    server.start()
    yield server.address
    server.stop()


@pytest.mark.slow
def test_lag_is_shown_while_a_pipeline_is_behind_and_only_then(
    log: BlockLog, endpoint: str
) -> None:
    """A22: how far the trail is behind the log, and for how long nothing was added to it."""
    log.append([[insert(number)] for number in range(10)])
    meter = Meter(["trail"], endpoint)
    (port,) = free_ports(1)
    with shown([f"127.0.0.1:{port}"], meter):
        meter.count(batch(sequence=4))
        found = scraped(port)
        assert found["penstock_pipeline_behind_entries"] == 6
        assert found["penstock_pipeline_lag_seconds"] > 86_400
        assert found["penstock_pipeline_entries_total"] >= 4
        assert found["penstock_pipeline_rejected_total"] == 0
        assert found["penstock_pipeline_batch_seconds_count"] >= 1
        meter.count(batch(sequence=10))
        found = scraped(port)
        assert found["penstock_pipeline_behind_entries"] == 0
        assert found["penstock_pipeline_lag_seconds"] == 0
        assert found["penstock_pipeline_stalled_seconds"] == 0


@pytest.mark.slow
def test_changes_that_do_not_meet_an_expectation_are_counted(endpoint: str) -> None:
    meter = Meter(["trail"], endpoint)
    (port,) = free_ports(1)
    with shown([f"127.0.0.1:{port}"], meter):
        meter.count(structs.replace(batch(sequence=4), unmet={"positive": 3}, lost=7))
        found = scraped(port)
    assert found["penstock_pipeline_lost_entries_total"] == 7
    assert found["penstock_pipeline_unmet_total"] == 3


@pytest.mark.slow
def test_a_service_that_is_away_takes_no_metric_of_its_own_away() -> None:
    (port, nobody) = free_ports(2)
    meter = Meter(["trail"], f"127.0.0.1:{nobody}")
    with shown([f"127.0.0.1:{port}"], meter):
        meter.count(batch(sequence=4))
        found = scraped(port)
    assert "penstock_pipeline_behind_entries" not in found
    assert found["penstock_pipeline_rows_total"] >= 3


def test_metrics_are_shown_on_this_machine_only() -> None:
    said = {"to": "audit", "source": "s", "uri": "mongodb://x"}
    with pytest.raises(ValueError, match="not of this machine"):
        AuditPipelineConfig.model_validate({**said, "metrics": "0.0.0.0:9464"})
    with pytest.raises(ValueError, match="host:port"):
        AuditPipelineConfig.model_validate({**said, "metrics": "9464"})


def batch(*, sequence: int) -> PipelineProgress:
    return PipelineProgress(
        pipeline="trail",
        batch_id=1,
        entries=4,
        rows=3,
        rejected=0,
        sequence=sequence,
        seconds=0.5,
        timestamp=1_700_000_000_000,
    )


def scraped(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    pairs = [line.rsplit(" ", 1) for line in lines if line and not line.startswith("#")]
    return {
        name.partition("{")[0]: float(value) for name, value in pairs if 'pipeline="trail"' in name
    }
