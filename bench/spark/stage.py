"""What the stages share: what they are given, how their time is taken, and how they are checked."""

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from deltalake import DeltaTable
from numpy.typing import NDArray

from bench.spark.orders import Orders
from penstock.spark.config import PipelineConfig, config_class
from penstock.spark.progress import PipelineProgress
from penstock.spark.run import run_pipeline
from penstock.spark.session import local_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Curve = list[tuple[int, float]]
"""Changes that are done, and seconds since the first batch began; a pair for each batch."""

MASTER: Final = "local[2]"


class Given(NamedTuple):
    """What every stage is given."""

    endpoint: str
    """Of the service that serves the log."""
    json: Path
    """The folder of JSON files, with the first `json_changes`."""
    folder: Path
    """The stage's own; it is removed behind it."""
    changes: int
    keys: int
    json_changes: int
    batch: int
    seconds: float
    """A stage ends behind the batch in which so many have passed; 0: at the end of the log."""

    @property
    def orders(self) -> Orders:
        return Orders(self.changes, self.keys)


class Figure(NamedTuple):
    """One line of what was measured."""

    what: str
    curve: Curve = []  # noqa: RUF012 - never changed
    """Of a rate."""
    said: str = ""
    """Of anything else."""

    @property
    def changes(self) -> int:
        return self.curve[-1][0] if self.curve else 0

    @property
    def rate(self) -> float:
        """Changes a second, from the first batch's start to the last one's end."""
        return self.curve[-1][0] / self.curve[-1][1]

    def seconds_at(self, changes: int) -> float:
        """What so many took."""
        done, seconds = zip((0, 0.0), *self.curve, strict=True)
        return float(np.interp(changes, done, seconds))


def ratio(one: Figure, other: Figure) -> float:
    """How many times as fast `one` is, over as many changes as both have done."""
    changes = min(one.changes, other.changes)
    return other.seconds_at(changes) / one.seconds_at(changes)


class Clock:
    """Takes the time of batches, and says when there were enough of them."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._started = 0.0
        self.stop = threading.Event()
        self.curve: Curve = []

    def told(self, progress: PipelineProgress) -> None:
        """For `on_progress` of a pipeline."""
        self.passed(progress.entries, seconds=progress.seconds)

    def passed(self, changes: int, *, seconds: float) -> None:
        """A batch of so many is in the target, and took so long."""
        now = time.monotonic()
        if not self.curve:
            self._started = now - seconds
        done = changes + (self.curve[-1][0] if self.curve else 0)
        self.curve.append((done, now - self._started))
        if self._seconds and now - self._started >= self._seconds:
            self.stop.set()


class WrongResultError(Exception):
    """What a stage made is not what the changes come to."""


def agree(what: str, found: object, expected: object) -> None:
    """Raises WrongResultError for a number or an array that is not what it must be."""
    if not np.array_equal(np.asarray(found), np.asarray(expected)):
        raise WrongResultError(f"{what} is {found!r}, and must be {expected!r}")


def session(given: Given, **settings: str) -> "SparkSession":
    """Spark on two cores, as a pipeline would make it."""
    # A query that is stopped in time is an error to Spark, and a page of its log.
    ours = {"spark.log.level": "OFF", "spark.local.dir": str(given.folder)}
    return local_session(app_name="bench", master=MASTER, settings={**ours, **settings})


def piped(given: Given, what: str, /, **config: Any) -> Figure:
    """Run a pipeline as a user does, to the end of the log or of its time."""
    clock = Clock(given.seconds)
    run_pipeline(
        "bench",
        configured(given, **config),
        given.endpoint,
        spark=session(given),
        once=True,
        on_progress=clock.told,
        stop=clock.stop,
    )
    return Figure(what, clock.curve)


def configured(given: Given, **config: Any) -> PipelineConfig:
    said: dict[str, Any] = {"source": "shop", "max_events_per_batch": given.batch, **config}
    return config_class(said["to"]).model_validate(said)


def columns_of(path: Path, *names: str) -> Mapping[str, NDArray[Any]]:
    """Columns of a Delta table, its rows ascending by the first of them."""
    table = DeltaTable(str(path)).to_pyarrow_table(columns=list(names)).sort_by(names[0])
    return {name: table[name].to_numpy() for name in names}


Measure = Callable[[Given], list[Figure]]
