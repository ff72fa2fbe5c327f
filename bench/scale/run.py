"""What a layout of many sources comes to: a simulation from the measured costs of each stage.

    PYTHONPATH=. .venv/bin/python bench/scale/run.py --sources 100 --rate 10000

Nothing is captured here. The costs are those of docs/benchmarks, per event of 1 KB on one core;
--micros changes one. A service is a capture process and a serve process, a core each: its sources
share one log, since a log has one writer. Sources are Poisson with bursts: each runs for a while at
up to several times its mean. Services take them in turn. What waits, waits in order; time goes on
in steps. Spark applies each log's changes in micro-batches, and all pipelines share its cores.

Printed are the use of each stage and the lag behind a commit, and against which limit each stage
stands: with `services` and `cores` left out, as many as keep the busiest stage below --use.
"""

import argparse
import math
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

_STEP_SECONDS: Final = 0.05
_SEED: Final = 7

CAPTURE: Final = {"mongodb": 35.7, "mysql": 8.3, "mysql single rows": 44.1, "script": 10.5}
"""Processor time of an event from its source into the log, in µs: 28.0 k, 120 k and 93 k events/s,
22.7 k transactions of one row."""
SERVE: Final = 1.7
"""Of an event over Arrow Flight to a Spark worker, in the serve process: 585 k events/s."""
PIPELINE: Final = {"table": 29.4, "audit": 225.0, "read only": 6.7}
"""Of an event in Spark, all of its cores together: 68 k, 8.9 k and 300 k events/s on two cores."""
BATCH_SECONDS: Final = 0.5
"""What a micro-batch into Delta costs whatever is in it: plan, commit, standing."""
EVENT_BYTES: Final = 1100


class Layout(NamedTuple):
    """Who does what."""

    sources: int
    rate: float
    """Events a second of each source, on average."""
    services: int
    cores: int
    """Of Spark."""
    capture: float
    pipeline: float


class Result(NamedTuple):
    """How it went."""

    capture_use: float
    serve_use: float
    spark_use: float
    durable: NDArray[np.float64]
    """Seconds from a commit to the log, by step and service."""
    applied: NDArray[np.float64]
    """Seconds from a commit to its table, by batch."""


def simulate(layout: Layout, *, seconds: float, burst: float) -> Result:
    """Run a layout for so many seconds of its own time."""
    dice = np.random.default_rng(_SEED)
    steps = int(seconds / _STEP_SECONDS)
    owner = np.arange(layout.sources) % layout.services
    pace = np.ones(layout.sources)
    waiting = np.zeros(layout.services)
    logged = np.zeros(layout.services)
    busy = np.zeros(layout.services)
    ready = np.zeros(layout.services)
    """When each pipeline's batch that is under way ends."""
    share = layout.cores / layout.services
    room = _STEP_SECONDS * 1e6 / layout.capture
    durable = np.zeros((steps, layout.services))
    applied: list[float] = []
    spark_busy = 0.0
    for step in range(steps):
        now = step * _STEP_SECONDS
        # A source changes its pace every few seconds; its mean stays 1.
        anew = dice.random(layout.sources) < _STEP_SECONDS / 5
        pace[anew] = np.exp(dice.normal(-(burst**2) / 2, burst, int(anew.sum())))
        come = dice.poisson(layout.rate * _STEP_SECONDS * pace)
        waiting += np.bincount(owner, weights=come, minlength=layout.services)
        taken = np.minimum(waiting, room)
        waiting -= taken
        logged += taken
        busy += taken / room
        durable[step] = waiting * layout.capture / 1e6 + _STEP_SECONDS / 2
        for one in np.flatnonzero(ready <= now):
            work = logged[one] * layout.pipeline / 1e6
            took = BATCH_SECONDS + work / max(share, 1e-9)
            spark_busy += work + BATCH_SECONDS * min(1.0, share)
            # What came during the last batch waited for it, and waits for its own.
            applied.append(float(durable[step, one]) + took * 1.5)
            ready[one] = now + took
            logged[one] = 0.0
    return Result(
        capture_use=float(busy.max()) / steps,
        serve_use=layout.rate * layout.sources / layout.services * SERVE / 1e6,
        spark_use=spark_busy / (seconds * layout.cores),
        durable=durable,
        applied=np.array(applied),
    )


def wide_enough(sources: int, rate: float, capture: float, pipeline: float, use: float) -> Layout:
    """The smallest layout whose stages are used no more than `use`, bursts left out."""
    events = sources * rate
    services = max(1, math.ceil(events * max(capture, SERVE) / 1e6 / use))
    cores = math.ceil(events * pipeline / 1e6 / use)
    return Layout(sources, rate, min(services, sources), cores, capture, pipeline)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sources", type=int, default=100)
    parser.add_argument("--rate", type=float, default=10_000)
    parser.add_argument("--source", choices=sorted(CAPTURE), default="mysql")
    parser.add_argument("--to", choices=sorted(PIPELINE), default="table")
    parser.add_argument("--micros", type=float, help="of a captured event, instead")
    parser.add_argument("--services", type=int)
    parser.add_argument("--cores", type=int, help="of Spark")
    parser.add_argument("--use", type=float, default=0.7)
    parser.add_argument("--burst", type=float, default=0.4, help="sigma of a source's pace")
    parser.add_argument("--seconds", type=float, default=300.0)
    given = parser.parse_args()
    capture = given.micros or CAPTURE[given.source]
    layout = wide_enough(given.sources, given.rate, capture, PIPELINE[given.to], given.use)
    layout = layout._replace(
        services=given.services or layout.services, cores=given.cores or layout.cores
    )
    result = simulate(layout, seconds=given.seconds, burst=given.burst)
    events = layout.sources * layout.rate
    title = (
        f"{layout.sources} sources ({given.source}), {events:,.0f} events/s: {layout.services} "
        f"services, {layout.cores} cores of Spark ({given.to})"
    )
    table = Table("stage", "use", "limit of one", "needed", title=title)
    table.add_row(
        "capture, a core each",
        f"{result.capture_use:.0%} of the busiest",
        f"{1e6 / capture:,.0f} ev/s",
        f"{events * capture / 1e6:,.1f} cores",
    )
    table.add_row(
        "serve, a core each",
        f"{result.serve_use:.0%}",
        f"{1e6 / SERVE:,.0f} ev/s",
        f"{events * SERVE / 1e6:,.1f} cores",
    )
    table.add_row(
        "Spark",
        f"{result.spark_use:.0%}",
        f"{1e6 / layout.pipeline:,.0f} ev/s a core",
        f"{events * layout.pipeline / 1e6:,.1f} cores",
    )
    each = events / layout.services * EVENT_BYTES / 1e6
    table.add_row("a log's disk and network", f"{each:,.0f} MB/s written, as much read", "", "")
    Console().print(table)
    lags = Table("lag behind a commit", "p50", "p99", "worst")
    for name, values in (("in the log", result.durable), ("in the table", result.applied)):
        points = [float(np.quantile(values, q)) for q in (0.5, 0.99, 1.0)]
        lags.add_row(name, *(f"{point:.2f} s" for point in points))
    Console().print(lags)


if __name__ == "__main__":
    main()
