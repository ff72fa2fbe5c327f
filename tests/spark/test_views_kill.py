"""Killed at any moment, a pipeline's view ends as its query of the fold of the log."""

import os
import random
import signal
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from penstock.event import ChangeEvent
from penstock.serve.flight import FlightServer
from penstock.spark.run import run_pipeline
from penstock.spark.table.arrow import compute
from tests.flight.blocks import BlockLog
from tests.seeds import seed_of
from tests.spark.tables import change, fold
from tests.spark.view_driver import config

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_KILLS = 8
_ROOT = Path(__file__).parents[2]


def history(dice: random.Random) -> list[list[ChangeEvent]]:
    """Commits over two collections, of which one is joined to the other."""
    commits: list[list[ChangeEvent]] = []
    live: set[tuple[str, int]] = set()
    for _ in range(70):
        events: list[ChangeEvent] = []
        for _ in range(dice.randrange(1, 5)):
            own = collection, key = dice.choice(["orders", "orders", "lines"]), dice.randrange(30)
            if own in live and dice.random() < 0.25:
                events.append(change(key, "delete", collection=collection))
                live.discard(own)
                continue
            fields: dict[str, Any] = {"n": dice.randrange(20), "name": f"name {dice.randrange(40)}"}
            if collection == "lines":
                fields = {"kind": dice.choice(["a", "b", "c"])}
            document = {"_id": key, **fields}
            events.append(change(key, "replace", document, collection=collection))
            live.add(own)
        commits.append(events)
    return commits


def expected(entries: pa.Table) -> dict[Any, tuple[Any, ...]]:
    """The query of view_driver, by hand: without orders that it cannot be computed for."""
    rows = {
        name: {
            key: row
            for (_, key), row in fold(
                entries.filter(compute.equal(entries["collection"], name))
            ).items()
        }
        for name in ("orders", "lines")
    }
    groups: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for key, row in rows["orders"].items():
        if row["n"] == 0:
            continue
        groups[rows["lines"].get(key, {}).get("kind")].append(row)
    return {
        kind: (
            len(own),
            sum(row["n"] for row in own),
            min(row["n"] for row in own),
            max(row["name"] for row in own),
            sum(sorted(8 / row["n"] for row in own)),
        )
        for kind, own in groups.items()
    }


@pytest.mark.soak
def test_a_driver_killed_at_any_moment_leaves_a_view_that_ends_right(
    spark: "SparkSession", tmp_path: Path
) -> None:
    seed = seed_of("views-kill")
    dice = random.Random(seed)
    log = BlockLog(block_events=11)
    log.append(history(dice))
    server = FlightServer(log)
    server.start()
    path = str(tmp_path / "v")
    command = [sys.executable, "-m", "tests.spark.view_driver", server.address, path]
    # A test runner's own settings are not the driver's.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(_ROOT / "src"), str(_ROOT)])}
    try:
        for _ in range(_KILLS):
            with subprocess.Popen(
                command,
                cwd=_ROOT,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            ) as driver:
                assert driver.stdout is not None
                # Once a batch has said that it is done, so in the midst of the next.
                driver.stdout.readline()
                try:
                    driver.wait(dice.uniform(0.0, 1.0))
                except subprocess.TimeoutExpired:
                    os.killpg(driver.pid, signal.SIGKILL)
                driver.communicate()
        run_pipeline("p", config(path), server.address, spark=spark, once=True)
    finally:
        server.stop()
    view = {
        row["kind"]: (row["orders"], row["n"], row["least"], row["last"], row["parts"])
        for row in DeltaTable(str(tmp_path / "v")).to_pyarrow_table().to_pylist()
    }
    assert view == expected(pa.Table.from_batches([block.to_arrow() for block in log.blocks]))
