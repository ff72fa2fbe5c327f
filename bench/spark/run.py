"""The data pipeline on Spark: every destination, its latency, and what exactly-once costs.

    PYTHONPATH=. .venv/bin/python bench/spark/run.py
    PYTHONPATH=. .venv/bin/python bench/spark/run.py --changes 200000 --keys 20000 --batch 50000

Changes are of about 1 KB and twelve fields, in commits of ten, over keys chosen at random; one in
twenty is a delete. They are in a durable log that another process serves; pipelines run as users
run them, on two cores (`local[2]`), which service and destinations share. Every stage has a process
and a Spark of its own, and starts with an empty destination. It ends behind the batch in which
`--seconds` have passed (0: at the end of the log), so the whole ends in time on any machine. Its
rate is from the start of its first batch to the end of its last one, Spark's own work between them
and what is cold at first included. What it has made is compared with the fold of the changes that
it took: a wrong result is an error, not a figure.

The named peer is the usual pipeline: the same changes as JSON files, and a MERGE in foreachBatch
(bench/spark/peer.py). A ratio is over as many changes as both have done, because tables get slower
to merge into as they grow.
"""

import argparse
import asyncio
import multiprocessing
import os
import shutil
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from bench.serving import serving
from bench.spark import (
    audit,
    changelog,
    history,
    latency,
    once,
    peer,
    reading,
    replicate,
    table,
    view,
)
from bench.spark.orders import Orders
from bench.spark.stage import Figure, Given, Measure, ratio

STAGES: Final[dict[str, tuple[Measure, ...]]] = {
    "read": (reading.measure,),
    "table": (table.measure,),
    "history": (history.measure,),
    "view": view.MEASURES,
    "replicate": (replicate.measure,),
    "changelog": (changelog.measure,),
    "audit": (audit.measure,),
    "latency": (latency.to_noop, latency.in_foreach_batch),
    "once": (once.proved, once.unproved, once.unproved, once.proved),
    "json": (peer.by_jars, peer.by_delta_rs),
}
"""By name: what is run, each in a process of its own."""

TARGETS: Final = {
    reading.STREAM: "400 k ev/s",
    table.WHAT: "120 k ev/s",
    history.WHAT: "60 k ev/s",
    view.SUMS: "100 k ev/s",
    audit.WHAT: "15 k ev/s",
    latency.WHAT: "p50 ≤ 150 ms",
    once.COST: "≤ 15 %",
}
_JSON_CHANGES_MAX: Final = 2_000_000
"""So many are also written as JSON files: more than the peer takes in a minute."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--changes", type=int, default=10_000_000)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=250_000, help="changes of a micro-batch")
    parser.add_argument("--seconds", type=float, default=25.0, help="of a stage, at most")
    parser.add_argument("--stages", default=",".join(STAGES), help="which, separated by commas")
    given = parser.parse_args()
    stages: list[str] = given.stages.split(",")
    if unknown := set(stages).difference(STAGES):
        parser.error(f"{', '.join(sorted(unknown))}: no stage; there are {', '.join(STAGES)}")
    console = Console(width=120)
    with tempfile.TemporaryDirectory(prefix="bench-spark-") as scratch:
        folder = Path(scratch)
        orders = Orders(given.changes, given.keys)
        started = time.monotonic()
        asyncio.run(orders.fill(folder / "log"))
        console.print(f"{orders.changes / (time.monotonic() - started):,.0f} changes/s generated")
        some = min(given.changes, _JSON_CHANGES_MAX)
        if {"read", "json"}.intersection(stages):
            orders.write_json(folder / "json", some)
        with serving(folder / "log") as endpoint:
            whole = Given(
                *(endpoint, folder / "json", folder / "stage", given.changes, given.keys),
                *(some, given.batch, given.seconds),
            )
            figures: list[Figure] = []
            for name in stages:
                for measure in STAGES[name]:
                    found = _in_a_process(measure, whole)
                    for one in found:
                        said = one.said or f"{one.rate:,.0f} ev/s of {one.changes:,}"
                        console.print(f"{time.monotonic() - started:4.0f} s  {one.what}: {said}")
                    figures += found
    console.print(_table(figures, whole))


def _in_a_process(measure: Measure, given: Given) -> list[Figure]:
    """What a stage measures, in a process of its own, and a folder that goes with it."""
    given.folder.mkdir()
    try:
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=spawn) as process:
            return process.submit(measure, given).result()
    finally:
        shutil.rmtree(given.folder, ignore_errors=True)


def _table(figures: list[Figure], given: Given) -> Table:
    title = (
        f"{given.changes:,} changes over {given.keys:,} keys, batches of {given.batch:,}, "
        f"{given.seconds:g} s a stage; load {os.getloadavg()[1]:.1f}"
    )
    shown = Table("what", "target", "measured", "over", "of its peers", title=title, expand=True)
    for one in figures:
        reads = one.what.startswith("read") or one.what in reading.PEERS
        peers = reading.PEERS if reads else peer.NAMES
        beside = ", ".join(
            f"{ratio(one, other):.2f} × {peers[other.what]}"
            for other in figures
            if other.what in peers and one.curve and one is not other
        )
        rate, over = (one.said, "") if one.said else (f"{one.rate:,.0f} ev/s", f"{one.changes:,}")
        shown.add_row(one.what, TARGETS.get(one.what, ""), rate, over, beside)
    if cost := once.cost(figures):
        shown.add_row(once.COST, TARGETS[once.COST], cost.said, "", "")
    return shown


if __name__ == "__main__":
    main()
