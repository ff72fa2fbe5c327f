"""A view's pipeline in a process of its own, to be killed: view_driver.py ENDPOINT PATH."""

import sys

from penstock.spark.config import ViewPipelineConfig
from penstock.spark.progress import PipelineProgress
from penstock.spark.run import run_pipeline
from penstock.spark.session import local_session

# It cannot be computed for an order with n = 0.
QUERY = (
    "SELECT l.kind, count(*) AS orders, sum(o.n) AS n, min(o.n) AS least, max(o.name) AS last, "
    "sum(8 / o.n) AS parts "
    "FROM orders o LEFT JOIN lines l ON o._id = l._id GROUP BY l.kind"
)


def config(path: str) -> ViewPipelineConfig:
    return ViewPipelineConfig.model_validate(
        {"to": "view", "source": "shop", "path": path, "query": QUERY, "max_events_per_batch": 60}
    )


def say(progress: PipelineProgress) -> None:
    print(progress.sequence, flush=True)


if __name__ == "__main__":
    run_pipeline(
        "p",
        config(sys.argv[2]),
        sys.argv[1],
        spark=local_session(
            master="local[2]",
            settings={
                "spark.log.level": "OFF",
                "spark.driver.memory": "512m",
                "spark.sql.shuffle.partitions": "2",
                # Few rows: to compile their plans would take longer than to run them.
                "spark.sql.codegen.wholeStage": "false",
            },
        ),
        once=True,
        on_progress=say,
    )
