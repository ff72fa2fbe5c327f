"""A pipeline in a process of its own, to be killed: driver.py ENDPOINT PATH [history | FORMAT].

With a format it keeps a changelog, and tidies it all the time.
"""

import sys
from pathlib import Path

from penstock.spark.config import PipelineConfig
from penstock.spark.progress import PipelineProgress
from penstock.spark.run import run_pipeline
from penstock.spark.session import local_session
from tests.spark.changelogs import changelog
from tests.spark.histories import history
from tests.spark.tables import pipeline


def say(progress: PipelineProgress) -> None:
    print(progress.sequence, flush=True)


def kept(path: Path, form: str = "table") -> PipelineConfig:
    if form in {"delta", "parquet"}:
        return changelog(
            path, format=form, max_events_per_batch=60, compact_every=2, vacuum_every=2
        )
    made = history if form == "history" else pipeline
    return made(path, "orders", "lines", max_events_per_batch=60)


if __name__ == "__main__":
    endpoint, path, *more = sys.argv[1:]
    run_pipeline(
        "p",
        kept(Path(path), *more),
        endpoint,
        spark=local_session(
            master="local[2]", settings={"spark.log.level": "OFF", "spark.driver.memory": "512m"}
        ),
        once=True,
        on_progress=say,
    )
