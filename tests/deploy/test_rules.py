"""Each shipped alert rule, evaluated by promtool over what a real service shows."""

import json
import re
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock import store
from penstock.audit.trail import Trail
from penstock.cli.pipeline_metrics import Meter, shown
from penstock.serve.flight import FlightServer
from penstock.spark.progress import RunBegan
from penstock.store import KeyType, Store, StreamViewType
from tests.audit.conftest import trail
from tests.audit.support import row, write
from tests.cli.service import Service, spawn
from tests.flight.blocks import BlockLog, insert
from tests.waiting import until
from tests_support.servers import free_ports
from tests_support.servers.debian import PROMETHEUS
from tests_support.servers.packages import ServerUnavailableError

__all__ = ["trail"]  # a fixture

RULES = Path(__file__).parents[2] / "deploy/prometheus-rules.yml"
CONFIG = """
[log]
path = "log"
free_bytes_min = {floor}
[capture]
time_to_loss_min = 0
[serve]
grpc = "127.0.0.1:0"
flight = "127.0.0.1:0"
http = "127.0.0.1:0"
[sources.shop]
type = "store"
path = "{folder}/shop"
start = "beginning"
on_position_lost = "gap"
[sources.halting]
type = "store"
path = "{folder}/halting"
start = "beginning"
on_position_lost = "halt"
"""
Page = dict[str, float]
SERIES = re.compile(r"^(\w+(?:\{.*\})?) (\S+)$", re.MULTILINE)
ASKED = frozenset(re.findall(r"penstock_\w+", RULES.read_text()))
SOURCES = ("shop", "halting")


def promtool() -> tuple[str, ...]:
    try:
        return tuple(PROMETHEUS.command(PROMETHEUS.executable))
    except ServerUnavailableError as error:
        pytest.skip(str(error))


def firing(folder: Path, before: Page, after: Page) -> set[tuple[str, str]]:
    """The alerts, each with its source or pipeline, that fire within an hour of `after`, where an
    hour of `before` came first."""
    series = [
        {
            "series": one.replace("{", '{job="penstock",', 1)
            if "{" in one
            else f'{one}{{job="penstock"}}',
            "values": f"{values(before, one)} {values(after, one)}",
        }
        for one in sorted({*before, *after})
        if one.partition("{")[0] in ASKED
    ]
    moments = (61, 64, 70, 80, 100)
    tests: list[dict[str, object]] = [
        {"expr": 'ALERTS{alertstate="firing"}', "eval_time": f"{minute}m", "exp_samples": []}
        for minute in moments
    ]
    described: dict[str, object] = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "1m",
        "tests": [{"interval": "1m", "input_series": series, "promql_expr_test": tests}],
    }
    path = folder / "rules-test.yml"  # JSON is YAML
    path.write_text(json.dumps(described))
    outcome = subprocess.run(
        [*promtool(), "test", "rules", str(path)], capture_output=True, text=True, check=False
    )
    said = outcome.stdout + outcome.stderr
    assert "FAILED" in said or outcome.returncode == 0, said
    got = "".join(re.findall(r"got:(.*)", said))
    fired = set[tuple[str, str]]()
    for labels in re.findall(r"\{__name__=\\?\"ALERTS[^}]*\}|ALERTS\{[^}]*\}", got):
        of = dict(re.findall(r'(\w+)=\\?"([^"\\]*)', labels))
        fired.add((of["alertname"], of.get("source") or of.get("pipeline") or ""))
    assert bool(fired) == (outcome.returncode != 0), said
    return fired


def page(address: str) -> Page:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=20) as answer:
        text = answer.read().decode()
    return {name: float(value) for name, value in SERIES.findall(text)}


def of(page: Page, *names: str) -> Page:
    """The series of these sources and pipelines, and those of none: tests that ran before in the
    same process have left others."""
    named = re.compile(r'(?:source|pipeline)="([^"]*)"')
    return {
        one: value
        for one, value in page.items()
        if all(name in names for name in named.findall(one))
    }


def values(page: Page, series: str) -> str:
    return f"{page[series]}x60" if series in page else "_x61"


def changed(page: Page, **by_name: float) -> Page:
    """The page with another value of each series of a metric, which must be there."""
    for name in by_name:
        assert any(re.fullmatch(rf"{name}(\{{.*\}})?", one) for one in page), name
    return {one: by_name.get(one.partition("{")[0], value) for one, value in page.items()}


class Shop:
    """A service that captures two stores."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.stores = {name: made(folder / name) for name in SOURCES}
        self.config = folder / "penstock.toml"
        self.floor(0)
        self.service = Service(self.config)

    def floor(self, size: int) -> None:
        self.config.write_text(CONFIG.format(folder=self.folder, floor=size))

    def page(self) -> Page:
        return page(self.service.ready["http"])

    async def shows(self, ask: Callable[[Page], bool]) -> Page:
        """The first page of which `ask` is true."""
        found = Page()

        def look() -> bool:
            nonlocal found
            found = self.page()
            return ask(found)

        await until(look)
        return found

    def lose(self, name: str) -> None:
        """Have the source miss changes that its store does not hold any more."""
        told = ("--config", str(self.config))
        assert spawn("pause", name, *told).code == 0
        db = self.stores[name]
        for number in range(3):
            db.put("orders", {"id": f"lost{number}"})
        with db.view() as view:
            db.prune_stream("orders", until_sequence=view.sequence)
        assert spawn("resume", name, *told).code == 0


def made(path: Path) -> Store:
    db = store.open(str(path))
    table = db.create_table("orders").partition_key("id", KeyType.STRING)
    table.stream(StreamViewType.NEW_AND_OLD_IMAGES).execute()
    db.put("orders", {"id": "1"})
    return db


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    promtool()
    shop = Shop(tmp_path)
    with shop.service:
        yield shop
    for one in shop.stores.values():
        one.close()


def value(page: Page, name: str, **labels: str) -> float | None:
    for one, found in page.items():
        if one.partition("{")[0] == name and all(f'{k}="{v}"' in one for k, v in labels.items()):
            return found
    return None


@pytest.mark.server
async def test_each_rule_of_capture_fires_on_its_fault_and_none_while_idle(shop: Shop) -> None:
    idle = await shop.shows(
        lambda page: all(
            (value(page, "penstock_events_ingested_total", source=name) or 0) > 0
            and value(page, "penstock_source_state", source=name, state="running") == 1
            for name in SOURCES
        )
    )
    for name in SOURCES:
        assert value(idle, "penstock_gaps_detected_total", source=name) == 0
        code = "source.position_lost"
        assert value(idle, "penstock_source_errors_total", source=name, code=code) == 0
    assert value(idle, "penstock_publish_errors_total", protocol="grpc", code="TRIMMED") == 0
    assert firing(shop.folder, idle, idle) == set()

    shop.lose("shop")
    gap = await shop.shows(lambda page: value(page, "penstock_gaps_open", source="shop") == 1)
    assert firing(shop.folder, idle, gap) == {("PenstockGap", "shop")}
    closed = changed(gap, penstock_gaps_open=0)
    assert firing(shop.folder, idle, closed) == {("PenstockGap", "shop")}, "by its counter alone"
    assert firing(shop.folder, gap, gap) == {("PenstockGap", "shop")}, "of before a restart"

    shop.lose("halting")
    stopped = await shop.shows(
        lambda page: value(page, "penstock_source_state", source="halting", state="stopped") == 1
    )
    assert firing(shop.folder, gap, stopped) >= {("PenstockSourceStopped", "halting")}

    shop.service.stop()
    shop.floor(1 << 60)
    shop.stores["shop"].put("orders", {"id": "2"})
    with Service(shop.config) as shop.service:
        full = await shop.shows(
            lambda page: value(page, "penstock_source_state", source="shop", state="log_full") == 1
        )
    assert ("PenstockLogFull", "") in firing(shop.folder, gap, full)

    # What needs more time than a test has: on the same series, as they are after it.
    for metric, worst, alerts in (
        ("penstock_capture_up", 0, {"PenstockCaptureDown"}),
        ("penstock_source_near_loss", 1, {"PenstockTimeToLossCritical"}),
        ("penstock_checkpoint_failures", 3, {"PenstockCheckpointsFailing"}),
        ("penstock_source_lag_seconds", 2000, {"PenstockSourceLagging", "PenstockSourceFarBehind"}),
    ):
        fired = firing(shop.folder, idle, changed(idle, **{metric: worst}))
        assert {alert for alert, _ in fired} == alerts
    near = {**changed(idle, penstock_source_lag_seconds=400)}
    for name in SOURCES:
        near[f'penstock_source_time_to_loss_seconds{{source="{name}"}}'] = 3600.0
    assert {alert for alert, _ in firing(shop.folder, idle, near)} == {
        *("PenstockSourceLagging", "PenstockTimeToLossShort", "PenstockTimeToLossCritical")
    }
    assert firing(shop.folder, idle, {}) == {("PenstockCaptureDown", "")}


@pytest.mark.server
def test_each_rule_of_pipelines_fires_on_its_fault_and_none_while_idle(
    trail: Trail, tmp_path: Path
) -> None:
    """On what a driver shows beside its trail, as it is after each fault."""
    promtool()
    log = BlockLog()
    log.append([[insert(number)] for number in range(4)])
    server = FlightServer(log)
    server.start()
    try:
        meter = Meter(["trail"], server.address)
        write(trail, [row(1, after={"id": 1})])
        (port,) = free_ports(1)
        with shown([f"127.0.0.1:{port}"], meter):
            begun = page(f"127.0.0.1:{port}")
            meter.began(RunBegan(pipeline="trail", sequence=4, head=4))
            shows = of(page(f"127.0.0.1:{port}"), "shop", "trail")
            idle = shows | {"penstock_capture_up": 1.0}  # the service's
    finally:
        server.stop()
    assert value(begun, "penstock_pipeline_behind_entries", pipeline="trail") is None
    assert firing(tmp_path, idle, idle) == set()
    stalled, lagging = "PenstockPipelineStalled", "PenstockPipelineLagging"
    for metric, worst, alerts in (
        ("penstock_pipeline_stalled_seconds", 400, {stalled}),
        ("penstock_pipeline_stalled_seconds", 1000, {stalled, "PenstockPipelineStopped"}),
        ("penstock_pipeline_lag_seconds", 400, {lagging}),
        ("penstock_pipeline_lag_seconds", 2000, {lagging, "PenstockPipelineFarBehind"}),
        ("penstock_pipeline_behind_entries", 200_000, {"PenstockPipelineFallingBehind"}),
        ("penstock_audit_pending_parts", 200, {"PenstockPendingParts"}),
        (
            "penstock_audit_pending_parts",
            2000,
            {"PenstockPendingParts", "PenstockManyPendingParts"},
        ),
        ("penstock_audit_circuit_open", 1, {"PenstockTrailUnreachable"}),
    ):
        fired = firing(tmp_path, idle, changed(idle, **{metric: worst}))
        assert {alert for alert, _ in fired} == alerts, metric
        whose = {one for _, one in fired}
        assert whose == {"shop" if "audit" in metric else "trail"}
    rules = set(re.findall(r"alert: (\w+)", RULES.read_text().partition("pipelines")[2]))
    assert len(rules) == 8
