"""Tasks are counted while they run, and nobody's own group of jobs is taken from him."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.spark.tasks import counted_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_GROUP = "spark.jobGroup.id"


def waits_for(batches: Iterator[Any], folder: str) -> Iterator[Any]:
    """Each task but the first ends when there is a file."""
    for batch in batches:
        while batch.column(0)[0].as_py() and not Path(f"{folder}/go").exists():
            time.sleep(0.05)
        yield batch


def test_tasks_are_told_while_others_still_run(spark: "SparkSession", tmp_path: Path) -> None:
    told: list[int] = []
    seen = threading.Event()

    def tell(done: int) -> None:
        told.append(done)
        if done == 1:
            (tmp_path / "go").touch()
            seen.set()

    folder = str(tmp_path)
    frame = spark.range(0, 3, 1, 3).mapInArrow(lambda them: waits_for(them, folder), "id long")
    with counted_tasks(spark, tell):
        assert frame.count() == 3
    assert seen.is_set()
    assert told == sorted(told)
    assert spark.sparkContext.getLocalProperty(_GROUP) is None


def test_jobs_of_a_group_stay_in_it_and_are_not_counted(spark: "SparkSession") -> None:
    context = spark.sparkContext
    context.setLocalProperty(_GROUP, "mine")
    try:
        with counted_tasks(spark, lambda _: None):
            assert context.getLocalProperty(_GROUP) == "mine"
    finally:
        context.setLocalProperty(_GROUP, None)  # type: ignore[arg-type]
