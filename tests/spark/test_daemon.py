"""Spark's Python workers have from the start what tasks load, and do not look for garbage among
that, task by task."""

import gc
import importlib
import subprocess
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from penstock.spark import daemon
from tests.waiting import PATIENCE_SECONDS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PROGRAM = """
import gc, weakref
from penstock.spark import daemon

class Node: ...

def cycle():
    one = Node()
    one.own = one
    return weakref.ref(one)

daemon.LONG_SECONDS = 3600.0
daemon.Collector.collect()
assert gc.get_freeze_count() == 0
daemon.LONG_SECONDS = 0.0
many, first = [[] for _ in range(1000)], cycle()
assert daemon.Collector.collect() > 0 and first() is None
assert gc.get_freeze_count() > 1000
second = cycle()
daemon.Collector.collect()
assert second() is None
kept = weakref.ref(last := Node())
daemon.Collector.collect()
del last
assert kept() is None
"""


def test_what_is_left_out_of_a_search_is_what_is_alive_and_long_to_look_at() -> None:
    """Garbage is found as before; what was left out goes with the last reference to it."""
    subprocess.run([sys.executable, "-c", _PROGRAM], check=True, timeout=PATIENCE_SECONDS)


_FORKED = """
import os
from penstock.spark import daemon

daemon.preload("pyspark.worker")
tasks = "/proc/self/task"
threads = [open(f"{tasks}/{one}/comm").read().strip() for one in os.listdir(tasks)]
assert sum(name != "jemalloc_bg_thd" for name in threads) == 1, threads
for _ in range(2):
    if os.fork() == 0:
        import numpy as np
        import pyarrow.compute as pc
        assert pc.sum(list(range(100))).as_py() == 4950
        print(np.random.random(), flush=True)
        os._exit(0)
assert [os.wait()[1] for _ in range(2)] == [0, 0]
"""


def test_what_is_loaded_before_a_fork_leaves_no_thread_and_no_random_numbers_to_share() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", _FORKED],
        check=True,
        timeout=PATIENCE_SECONDS,
        capture_output=True,
        text=True,
    )
    assert len(set(ran.stdout.split())) == 2


def _loaded(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    there = all(name in sys.modules for name in daemon.PRELOADED)
    for _ in batches:
        yield pa.RecordBatch.from_pydict({"there": [there]})


@pytest.mark.slow
def test_workers_of_a_session_start_with_what_tasks_load(spark: "SparkSession") -> None:
    found: Any = spark.range(1).mapInArrow(_loaded, "there BOOLEAN").toArrow()
    assert found["there"].to_pylist() == [True]


def _frozen(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    importlib.import_module("penstock.spark.run")  # what a worker of a pipeline loads
    for _ in batches:
        yield pa.RecordBatch.from_pydict({"n": [gc.get_freeze_count()]})


@pytest.mark.slow
def test_workers_of_a_session_leave_out_what_they_have_loaded(spark: "SparkSession") -> None:
    left_out: list[int] = []
    for _ in range(3):
        found: Any = spark.range(0, 2, 1, 2).mapInArrow(_frozen, "n LONG").toArrow()
        left_out = found["n"].to_pylist()
    assert min(left_out) > 10_000
