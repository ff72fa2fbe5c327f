"""A pipeline's driver in a process of its own: cluster_driver.py MASTER ENDPOINT LAKE ZIP."""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from penstock.client.credentials import Credentials
from penstock.spark.progress import PipelineProgress
from penstock.spark.run import run_pipeline
from penstock.spark.session import local_session
from tests.spark.cluster import SMALL
from tests.spark.tables import pipeline


def say(progress: PipelineProgress) -> None:
    print(progress.sequence, flush=True)


def main(master: str, endpoint: str, lake: str, archive: str) -> None:
    spark = local_session(master=master, settings=SMALL)

    # Nested, with its imports: executors do not have this module.
    def seen(_: Iterable[int]) -> Iterator[str]:
        from importlib.util import find_spec
        from pathlib import Path

        yield f"penstock: {find_spec('penstock') is not None}, files: {Path(archive).exists()}"

    found = spark.sparkContext.parallelize(range(2), 2).mapPartitions(seen).collect()
    print("; ".join(sorted(set(found))), flush=True)
    spark.sparkContext.addPyFile(archive)
    run_pipeline(
        "p",
        pipeline(Path(lake), "orders", "lines", max_events_per_batch=42_000),
        endpoint,
        spark=spark,
        once=True,
        on_progress=say,
        credentials=Credentials.from_environment(),
    )
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
