"""What a pipeline shows of itself is true while it is behind, and while it is not."""

import socket
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs

from penstock.cli import pipeline_metrics
from penstock.cli.pipeline_metrics import Meter, shown
from penstock.errors import ConfigError
from penstock.serve.flight import FlightServer
from penstock.spark.config import AuditPipelineConfig
from penstock.spark.progress import PipelineProgress, RunBegan
from tests.cli.service import SHOP, configure, penstock
from tests.flight.blocks import BlockLog, insert
from tests.waiting import PATIENCE_SECONDS
from tests_support.servers import free_ports


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
        meter.count(batch(until=4))
        found = scraped(port)
        assert found["penstock_pipeline_behind_entries"] == 6
        assert found["penstock_pipeline_lag_seconds"] > 86_400
        assert found["penstock_pipeline_entries_total"] >= 4
        assert found["penstock_pipeline_rejected_total"] == 0
        assert found["penstock_pipeline_batch_seconds_count"] >= 1
        meter.count(batch(until=10))
        found = scraped(port)
        assert found["penstock_pipeline_behind_entries"] == 0
        assert found["penstock_pipeline_lag_seconds"] == 0
        assert found["penstock_pipeline_stalled_seconds"] == 0


BEHIND, LAG, STALLED = (
    f"penstock_pipeline_{name}" for name in ("behind_entries", "lag_seconds", "stalled_seconds")
)


@pytest.mark.slow
def test_what_has_not_begun_or_is_applied_to_nothing_yet_is_not_well(
    log: BlockLog, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row of nobody's knowledge is left out, and no 0."""
    log.append([[insert(number)] for number in range(10)])
    meter = Meter(["trail"], endpoint)
    (port,) = free_ports(1)
    with shown([f"127.0.0.1:{port}"], meter):
        passes(monkeypatch, seconds=1000)
        found = scraped(port)
        assert found[STALLED] > 900
        assert {BEHIND, LAG}.isdisjoint(found)
        meter.began(began(1))
        found = scraped(port)
        assert found[BEHIND] == 9
        assert found[STALLED] > 900
        assert LAG not in found
        meter.began(began(10))
        found = scraped(port)
        assert [found[name] for name in (BEHIND, LAG, STALLED)] == [0, 0, 0]


@pytest.mark.slow
def test_where_a_run_begins_is_shown_whether_or_not_anybody_watches(
    log: BlockLog,
    endpoint: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log.append([[insert(number)] for number in range(10)])
    (port,) = free_ports(1)
    lines = f'[pipelines.trail]\nsource = "shop"\npath = "t"\nmetrics = "127.0.0.1:{port}"\n'
    config = configure(tmp_path, SHOP.format(rate=0) + lines)
    found: dict[str, float] = {}

    def run(*_: object, on_fact: Callable[[RunBegan], None], **__: object) -> dict[str, object]:
        on_fact(began(1))
        found.update(scraped(port))
        return {}

    def nothing(**_: object) -> Any:
        return SimpleNamespace(stop=lambda: None)

    monkeypatch.setattr("penstock.spark.many.run_pipelines", run)
    monkeypatch.setattr("penstock.spark.session.local_session", nothing)
    monkeypatch.setattr("penstock.cli.logs.configure", nothing)
    arguments = ["--json", "--endpoint", endpoint, "--config", str(config)]
    assert penstock(capsys, "pipeline", "run", "trail", *arguments).code == 0
    assert found[BEHIND] == 9


@pytest.mark.slow
def test_a_target_that_knows_no_times_is_behind_and_not_fifty_years_late(
    log: BlockLog, endpoint: str
) -> None:
    log.append([[insert(number)] for number in range(10)])
    meter = Meter(["trail"], endpoint)
    (port,) = free_ports(1)
    with shown([f"127.0.0.1:{port}"], meter):
        meter.count(structs.replace(batch(until=9), timestamp=0))
        found = scraped(port)
        assert found[BEHIND] == 1
        assert LAG not in found


@pytest.mark.slow
def test_entries_of_others_neither_leave_a_pipeline_behind_nor_make_it_late(
    log: BlockLog, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their batches have no time, and its own last change may be of long ago."""
    log.append([[insert(number)] for number in range(10)])
    meter = Meter(["trail"], endpoint)
    (port,) = free_ports(1)
    others = structs.replace(batch(until=10), entries=0, sequence=0, timestamp=0)
    with shown([f"127.0.0.1:{port}"], meter):
        meter.count(batch(until=4))
        assert scraped(port)[LAG] > 86_400
        meter.count(others)
        passes(monkeypatch, seconds=1000)
        found = scraped(port)
        assert [found[name] for name in (BEHIND, LAG, STALLED)] == [0, 0, 0]
        log.append([[insert(10)]])
        found = scraped(port)
        assert found[BEHIND] == 1
        assert found[LAG] < 60
        assert found[STALLED] < 60


@pytest.mark.slow
def test_changes_that_do_not_meet_an_expectation_are_counted(endpoint: str) -> None:
    """An alert rises with the first one: the counter is there before it, with 0."""
    meter = Meter(["trail"], endpoint, expected=[("trail", "positive")])
    (port,) = free_ports(1)
    with shown([f"127.0.0.1:{port}"], meter):
        assert scraped(port)["penstock_pipeline_unmet_total"] == 0
        meter.count(structs.replace(batch(until=4), unmet={"positive": 3}, lost=7))
        found = scraped(port)
    assert found["penstock_pipeline_lost_entries_total"] == 7
    assert found["penstock_pipeline_unmet_total"] == 3


@pytest.mark.slow
def test_a_service_that_is_away_takes_no_metric_of_its_own_away() -> None:
    (port, nobody) = free_ports(2)
    meter = Meter(["trail"], f"127.0.0.1:{nobody}")
    with shown([f"127.0.0.1:{port}"], meter):
        meter.count(batch(until=4))
        found = scraped(port)
    assert "penstock_pipeline_behind_entries" not in found
    assert found["penstock_pipeline_rows_total"] >= 3


def test_a_port_that_is_in_use_is_said(endpoint: str) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(ConfigError, match=r"cannot show metrics on .* it is in use"),
        shown([f"127.0.0.1:{taken.getsockname()[1]}"], Meter(["trail"], endpoint)),
    ):
        pass


def test_metrics_are_shown_on_this_machine_only() -> None:
    said = {"to": "audit", "source": "s", "uri": "mongodb://x"}
    with pytest.raises(ValueError, match="not of this machine"):
        AuditPipelineConfig.model_validate({**said, "metrics": "0.0.0.0:9464"})
    with pytest.raises(ValueError, match="host:port"):
        AuditPipelineConfig.model_validate({**said, "metrics": "9464"})


def batch(*, until: int) -> PipelineProgress:
    """Whose last own entry is the one before `until`."""
    return PipelineProgress(
        pipeline="trail",
        batch_id=1,
        entries=4,
        rows=3,
        rejected=0,
        sequence=until - 1,
        seconds=0.5,
        timestamp=1_700_000_000_000,
        until=until,
    )


def began(sequence: int) -> RunBegan:
    return RunBegan(pipeline="trail", sequence=sequence, head=10)


def passes(monkeypatch: pytest.MonkeyPatch, *, seconds: float) -> None:
    """Have the meter's clock go so much further."""
    monotonic = time.monotonic

    def later() -> float:
        return monotonic() + seconds

    clock = SimpleNamespace(monotonic=later, time=time.time)
    monkeypatch.setattr(pipeline_metrics, "time", clock)


def scraped(port: int) -> dict[str, float]:
    with urllib.request.urlopen(
        f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_SECONDS
    ) as answer:
        lines = answer.read().decode().splitlines()
    pairs = [line.rsplit(" ", 1) for line in lines if line and not line.startswith("#")]
    return {
        name.partition("{")[0]: float(value) for name, value in pairs if 'pipeline="trail"' in name
    }
