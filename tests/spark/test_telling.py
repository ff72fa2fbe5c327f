"""Telling the service neither fails nor holds up a pipeline, and what it wants is heard."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from penstock.client.credentials import NOBODY
from penstock.client.pipelines import PipelineOrder
from penstock.progress import Progress
from penstock.serve.flight import FlightServer
from penstock.serve.pipelines import PipelineBook
from penstock.spark import telling
from penstock.spark.target import Applied
from penstock.spark.telling import ServiceTeller
from penstock.subscribe.scope import EVERYTHING
from tests.flight.blocks import BlockLog, insert
from tests.waiting import wait_until


def teller(endpoint: str, stop: threading.Event) -> ServiceTeller:
    return ServiceTeller(
        "p", source="shop", to="table", endpoint=endpoint, credentials=NOBODY, on_stop=stop.set
    )


@pytest.fixture
def log() -> BlockLog:
    log = BlockLog()
    log.append([insert(number)] for number in range(20))
    return log


@pytest.fixture
def book(tmp_path: Path, log: BlockLog) -> Iterator[PipelineBook]:
    book = PipelineBook(tmp_path / "consumers", log, hold_seconds=60, hold_bytes=0)
    yield book
    book.close()


@pytest.mark.slow
@pytest.mark.parametrize("answers", ["refuses", "is silent"])
def test_a_service_that_cannot_be_told_does_not_stop_the_driver_and_is_logged_once(
    answers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telling, "_CALL_SECONDS", 0.2)
    monkeypatch.setattr(telling, "_TELL_SECONDS_MIN", 0.0)
    stop = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        if answers == "refuses":
            listening.close()
        tell = teller(f"127.0.0.1:{port}", stop)
        with capture_logs() as logged:
            tell.began(Progress(1, 0, 0))
            for sequence in range(100):
                tell.applied(Applied(entries=1, rows=1), seconds=1)
                tell.passed(Progress(1, sequence, 0))
                tell.settled()
            tell.close("ended")
    assert [(one["log_level"], one["code"]) for one in logged] == [
        ("warning", "service.unavailable")
    ]
    assert not stop.is_set()


@pytest.mark.slow
def test_only_what_is_stored_is_told_and_an_order_to_stop_is_heard(
    log: BlockLog, book: PipelineBook
) -> None:
    server, stop = FlightServer(log, book=book), threading.Event()
    server.start()
    try:
        tell = teller(server.address, stop)
        tell.began(log.marker(3))
        tell.passed(log.marker(9))
        tell.applied(Applied(entries=6, rows=5, rejected=1, lost=((9, 11), (11, 12))), seconds=2.0)
        wait_until(lambda: any(one.batches for one in book.status(EVERYTHING)))
        known = book.status(EVERYTHING)
        assert (known[0].sequence, known[0].entries_per_second) == (3, 3.0)
        book.order(PipelineOrder(pipeline="p", order="stop"), EVERYTHING)
        tell.settled()
        stop.wait()
        tell.close("stopped" if tell.stopped else "ended")
        tell.close("failed", "the first word counts")
    finally:
        server.stop()
    (one,) = book.status(EVERYTHING)
    assert (one.sequence, one.state, one.code) == (9, "stopped", "")
    assert (one.rejected, one.lost) == (1, 3)


def test_a_run_that_never_began_says_nothing(log: BlockLog, book: PipelineBook) -> None:
    """It would be taken for a pipeline that stands somewhere."""
    teller("127.0.0.1:1", threading.Event()).close("failed", "pipeline")
    assert book.status(EVERYTHING) == []
