"""A driver to be killed: killed.py CONFIG SEED. It applies the history of that seed, in batches."""

import random
import sys
from pathlib import Path

from penstock.spark.config import ReplicatePipelineConfig
from tests.spark.replica.contract import history
from tests.spark.replica.support import Driver
from tests.spark.tables import Entries


def entries_of(seed: int) -> Entries:
    entries = Entries()
    history(random.Random(seed), entries, commits=150)
    return entries


def ends_of(entries: Entries) -> list[int]:
    """The last entry of each commit."""
    commits = entries.table()["commit"].to_pylist()
    return [
        at + 1 for at in range(len(commits)) if commits[at : at + 1] != commits[at + 1 : at + 2]
    ]


if __name__ == "__main__":
    config = ReplicatePipelineConfig.model_validate_json(Path(sys.argv[1]).read_text())
    driver = Driver(entries := entries_of(int(sys.argv[2])), config)
    after = driver.start()
    print("started", flush=True)
    for end in [*ends_of(entries)[::2], entries.head]:
        if end > after:
            driver.apply(after, end)
            print(end, flush=True)
            after = end
    driver.close()
