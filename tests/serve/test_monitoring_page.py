"""The page of metrics names every metric that there is, and no other."""

import re
from pathlib import Path

from penstock.telemetry import REGISTRY, SERVE_REGISTRY

PAGE = Path(__file__).parents[2] / "docs/reference/monitoring.md"
OF_A_PROCESS = re.compile("penstock_(capture|serve)_process_")
"""One row of the page stands for these; they exist once a process has begun to count itself."""


def test_the_page_of_metrics_is_complete_and_true() -> None:
    declared = set[str]()
    for registry in (REGISTRY, SERVE_REGISTRY):
        for metric in registry.collect():
            suffix = "_total" if metric.type == "counter" else ""
            if not OF_A_PROCESS.match(metric.name):
                declared.add(metric.name + suffix)
    listed = set(re.findall(r"^\| `(penstock_\w+)`", PAGE.read_text(), re.MULTILINE))
    assert listed - {"penstock_capture_up"} == declared


def test_no_metric_is_declared_for_both_processes() -> None:
    names = [{metric.name for metric in one.collect()} for one in (REGISTRY, SERVE_REGISTRY)]
    assert not names[0] & names[1]
