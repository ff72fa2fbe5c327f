"""The page of metrics names every metric that there is, and no other."""

import re
from pathlib import Path

from penstock.cli.pipeline_metrics import BEHIND, LAG, STALLED
from penstock.telemetry import PIPELINE_REGISTRY, REGISTRY, SERVE_REGISTRY

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs/reference/monitoring.md"
OF_A_PROCESS = re.compile("penstock_(capture|serve)_process_")
"""One row of the page stands for these; they exist once a process has begun to count itself."""


THE_DESIGNS = [
    "events_ingested_total",
    "ingestion_latency_seconds",
    "events_published_total",
    "publish_latency_seconds",
    "publish_errors_total",
    "checkpoints_saved_total",
    "checkpoint_errors_total",
    "gaps_detected_total",
    "backpressure_events_total",
    "queue_depth",
    "batch_size",
    "checkpoint_latency_seconds",
    "events_by_shard",
    "shard_filter_ratio",
    "consumers_by_shard_config",
]
"""The puller's design names these, each after `puller_`."""


def declared_names() -> set[str]:
    declared = set[str]()
    declared |= {name for name, _ in (BEHIND, LAG, STALLED)}
    for registry in (REGISTRY, SERVE_REGISTRY, PIPELINE_REGISTRY):
        for metric in registry.collect():
            suffix = "_total" if metric.type == "counter" else ""
            if not OF_A_PROCESS.match(metric.name):
                declared.add(metric.name + suffix)
    return declared


def test_the_page_of_metrics_is_complete_and_true() -> None:
    declared = declared_names()
    listed = set(re.findall(r"^\| `(penstock_\w+)`", PAGE.read_text(), re.MULTILINE))
    assert listed - {"penstock_capture_up"} == declared


def test_no_metric_is_declared_for_both_processes() -> None:
    names = [{metric.name for metric in one.collect()} for one in (REGISTRY, SERVE_REGISTRY)]
    assert not names[0] & names[1]


def test_every_metric_of_the_pullers_design_is_translated_on_the_page() -> None:
    row = re.compile(r"^\| `puller_(\w+)(?:\{.*?\})?` \| `(penstock_\w+)", re.MULTILINE)
    rows = row.findall(PAGE.read_text())
    assert sorted(name for name, _ in rows) == sorted(THE_DESIGNS)
    assert {ours for _, ours in rows} <= declared_names()


def test_every_metric_is_asserted_after_some_workload() -> None:
    """P27: a metric that nothing increments is worse than none."""
    tests = "".join(path.read_text() for path in TESTS.rglob("test_*.py") if path != Path(__file__))
    assert [name for name in sorted(declared_names()) if name not in tests] == []


def test_rules_and_dashboard_ask_for_metrics_that_there_are() -> None:
    """A22: an alert on a metric that nobody has would never be told."""
    deploy = TESTS.parent / "deploy"
    for name in ("prometheus-rules.yml", "grafana-dashboard.json"):
        asked = set(re.findall(r"penstock_\w+", (deploy / name).read_text()))
        known = declared_names() | {"penstock_capture_up", "penstock_pipeline_batch_seconds_bucket"}
        assert asked
        assert asked <= known, name
