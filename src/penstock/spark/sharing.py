"""How the pipelines of one driver share what there is of Spark.

They start a few at a time: each has a Python process of its own that reads the source, and Spark
gives it ten seconds to come up, which no setting changes. Many that start at once on a busy machine
would all be too slow, be started again together, and never come up.

Each batch has a pool of Spark's fair scheduler, and pools go round: of pools that have equally
little at work Spark prefers the first by name. With more pipelines than cores, one whose pool had
its own name would wait for as long as those before it in the alphabet have work.
"""

import itertools
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

POOL: Final = "spark.scheduler.pool"
"""The property of a thread that says of which fair share its jobs are."""
_POOLS: Final = 100
"""A batch is overtaken by fewer than so many."""
_TURNS: Final = itertools.count()
STARTS: Final = max(1, (os.cpu_count() or 1) // 2)
"""So many may start at once: those that run need the other cores."""
_STARTS: Final = threading.BoundedSemaphore(STARTS)
_LOOK_SECONDS: Final = 0.05
_INITIALIZING: Final = "Initializing"
"""How Spark begins to say what a query does until it has its source."""


def enter_pool(spark: "SparkSession") -> None:
    """What this thread asks of Spark from now on waits its turn behind what was asked before."""
    pool = f"penstock-{next(_TURNS) % _POOLS:02d}"
    spark.sparkContext.setLocalProperty(POOL, pool)


def in_turn(start: Callable[[], "StreamingQuery"], stopping: threading.Event) -> "StreamingQuery":
    """The query that `start` starts, when fewer than STARTS are starting.

    Returns once it has its source, has ended, or we are to stop.
    """
    with _STARTS:
        query = start()
        while query.isActive and str(query.status["message"]).startswith(_INITIALIZING):
            if stopping.wait(_LOOK_SECONDS):
                break
        return query
