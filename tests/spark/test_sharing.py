"""The pipelines of one driver share what there is, and none of them starves."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from penstock.spark.sharing import STARTS, in_turn


class Query:
    """What is asked of a query of Spark's that starts for as long as `held`."""

    def __init__(self, starting: set["Query"], held: threading.Event) -> None:
        self._starting, self._held = starting, held
        self.isActive = True
        starting.add(self)

    @property
    def status(self) -> dict[str, Any]:
        if not self._held.is_set():
            return {"message": "Initializing sources"}
        self._starting.discard(self)
        return {"message": "Waiting for data to arrive"}


def test_no_more_queries_start_at_once_than_come_up_in_time() -> None:
    """Spark gives up on a Python process that is not up within ten seconds; P18."""
    starting: set[Query] = set()
    held, stopping = threading.Event(), threading.Event()
    most: list[int] = []
    full = threading.Semaphore(0)

    def start() -> Any:
        query = Query(starting, held)
        most.append(len(starting))
        full.release()
        return query

    with ThreadPoolExecutor(STARTS + 3) as pool:
        made = [pool.submit(in_turn, start, stopping) for _ in range(STARTS + 3)]
        for _ in range(STARTS):
            full.acquire()
        assert not any(one.done() for one in made)
        held.set()
        for one in made:
            one.result()
    assert len(most) == STARTS + 3
    assert max(most) == STARTS


def test_one_that_is_told_to_stop_does_not_wait_for_its_source() -> None:
    stopping = threading.Event()
    stopping.set()
    query: Any = Query(set(), threading.Event())
    assert in_turn(lambda: query, stopping) is query
