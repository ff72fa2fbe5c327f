"""A pipeline in a process of its own, to be killed: driver.py ENDPOINT PATH [history]."""

import sys
from pathlib import Path

from penstock.spark.run import PipelineProgress, run_pipeline
from penstock.spark.session import local_session
from tests.spark.histories import history
from tests.spark.tables import pipeline


def say(progress: PipelineProgress) -> None:
    print(progress.sequence, flush=True)


if __name__ == "__main__":
    kept = history if sys.argv[3:] == ["history"] else pipeline
    run_pipeline(
        "p",
        kept(Path(sys.argv[2]), "orders", "lines", max_events_per_batch=60),
        sys.argv[1],
        spark=local_session(
            master="local[2]", settings={"spark.log.level": "OFF", "spark.driver.memory": "512m"}
        ),
        once=True,
        on_progress=say,
    )
