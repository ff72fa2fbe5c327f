"""What a run tells of itself fails, delays and keeps nothing."""

import threading

from penstock.spark.progress import ProgressTeller, RunWaits
from tests.waiting import PATIENCE_SECONDS


def test_one_who_was_a_thousand_behind_is_told_the_end_of_it_and_let_go() -> None:
    told: list[RunWaits] = []
    held, begun = threading.Event(), threading.Event()

    def slow(fact: RunWaits) -> None:
        begun.set()
        held.wait(PATIENCE_SECONDS)
        told.append(fact)

    teller = ProgressTeller(slow)
    for number in range(1200):
        teller.tell(RunWaits(pipeline="p", code=str(number)))
        assert begun.wait(PATIENCE_SECONDS)  # the first waits for no place
    threading.Timer(0.2, held.set).start()
    teller.close()
    assert not teller._thread.is_alive()  # pyright: ignore[reportPrivateUsage]
    assert [fact.code for fact in told] == [str(number) for number in range(1001)]
