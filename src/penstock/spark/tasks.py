"""How many of Spark's tasks are done, while the thread that waits for them waits."""

# The stubs of PySpark leave element types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import secrets
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_GROUP: Final = "spark.jobGroup.id"
_LOOK_SECONDS: Final = 0.5


@contextmanager
def counted_tasks(spark: "SparkSession", tell: Callable[[int], None] | None) -> Generator[None]:
    """`tell`, from a thread of its own, how many tasks are done of the jobs that the block starts.

    Not where somebody else has a group for the jobs of this thread, which he may cancel by it.
    """
    context = spark.sparkContext if tell is not None else None
    if tell is None or context is None or context.getLocalProperty(_GROUP):
        yield
        return
    group, over = f"penstock-counted-{secrets.token_hex(4)}", threading.Event()

    def look() -> None:
        while not over.wait(_LOOK_SECONDS):
            try:
                tell(_done(context, group))
            except Exception:
                return  # it ended with its JVM, which whoever waits for the tasks is told

    looking = threading.Thread(target=look, name="penstock-counts", daemon=True)
    nothing: str = None  # type: ignore[assignment] # takes a property away; the stubs do not say so
    context.setLocalProperty(_GROUP, group)
    looking.start()
    try:
        yield
    finally:
        over.set()
        looking.join()
        context.setLocalProperty(_GROUP, nothing)


def _done(context: "SparkContext", group: str) -> int:
    tracker = context.statusTracker()
    jobs = [tracker.getJobInfo(one) for one in tracker.getJobIdsForGroup(group)]
    stages = {stage for job in jobs if job is not None for stage in job.stageIds}
    found = [tracker.getStageInfo(stage) for stage in stages]
    return sum(one.numCompletedTasks for one in found if one is not None)
