"""What pipelines run with is imported before their threads begin."""

import subprocess
import sys

import pytest

SCRIPT = """
import sys
import threading

from penstock.spark import many
from penstock.spark.config import (
    AuditPipelineConfig,
    ChangelogPipelineConfig,
    HistoryPipelineConfig,
    ReplicatePipelineConfig,
    TablePipelineConfig,
    ViewPipelineConfig,
)

of = {"source": "shop"}
configs = {
    "table": TablePipelineConfig.model_validate({**of, "path": "/t"}),
    "history": HistoryPipelineConfig.model_validate({**of, "to": "history", "path": "/h"}),
    "changelog": ChangelogPipelineConfig.model_validate({**of, "to": "changelog", "path": "/c"}),
    "view": ViewPipelineConfig.model_validate(
        {**of, "to": "view", "path": "/v", "query": "SELECT count(*) AS n FROM orders"}
    ),
    "audit": AuditPipelineConfig.model_validate({**of, "to": "audit", "uri": "mongodb://h"}),
    **{
        kind: ReplicatePipelineConfig.model_validate(
            {**of, "to": "replicate", "uri": f"{kind}://u@h/d", "collections": ["a"]}
        )
        for kind in ("mongodb", "mysql", "postgresql")
    },
}


class Begun(threading.Thread):
    def __init__(self, name, config, *_, **more):
        super().__init__()
        self.pipeline, self.error = name, None

    def start(self):
        found = sorted(name for name in sys.modules if name.startswith("penstock.spark."))
        print(self.pipeline, *found)
        sys.exit()


many._Run = Begun
many.run_pipelines({NAME: configs[NAME]}, "localhost:1", spark=None, stop=threading.Event())
"""
IMPORTED = {
    "table": {"tables", "loading.load", "verifying"},
    "history": {"tables", "verifying"},
    "changelog": {"changelogs"},
    "view": {"views"},
    "audit": {"audit"},
    "mongodb": {"replicate", "replica.mongodb"},
    "mysql": {"replicate", "replica.sql", "replica.mysql"},
    "postgresql": {"replicate", "replica.sql", "replica.postgres"},
}


@pytest.mark.parametrize("kind", IMPORTED)
def test_what_a_pipeline_runs_with_is_there_before_its_thread(kind: str) -> None:
    """Threads that import modules which import each other are refused by Python."""
    script = SCRIPT.replace("NAME", repr(kind))
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    name, *found = done.stdout.split()
    assert name == kind
    assert {f"penstock.spark.{one}" for one in IMPORTED[kind]} <= set(found)
