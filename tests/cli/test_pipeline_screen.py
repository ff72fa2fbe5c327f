"""The live table of a driver says what the service knows, and what ended here."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from penstock.cli.pipeline_screen import Screen, screen
from penstock.client.credentials import NOBODY
from penstock.client.pipelines import PipelineTold
from penstock.errors import PipelineError
from penstock.serve.flight import FlightServer
from penstock.serve.pipelines import PipelineBook
from penstock.subscribe.scope import EVERYTHING
from tests.flight.blocks import BlockLog, insert


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


def drawn(screen: Screen) -> list[str]:
    console = Console(width=160, record=True, file=None, quiet=False)
    with console.capture() as captured:
        console.print(screen)
    return captured.get().splitlines()


def test_a_line_for_each_pipeline_of_the_driver(log: BlockLog, book: PipelineBook) -> None:
    for name in ("a", "b", "another driver's"):
        place = log.marker(5)
        book.tell(
            PipelineTold(
                pipeline=name,
                run="1",
                source="shop",
                to="table",
                place=place,
                batches=1,
                rejected=7,
                entries_per_second=1234.0,
            ),
            EVERYTHING,
        )
    server = FlightServer(log, book=book)
    server.start()
    try:
        found = Screen(["a", "b"], server.address, NOBODY)
        found.look()
        found.ended("b", PipelineError("cannot go on"))
        found.ended("a", None)
        heading, first, second = drawn(found)
    finally:
        server.stop()
    assert heading.split()[:4] == ["pipeline", "to", "source", "state"]
    for word in ("a", "table", "shop", "running", "5", "15,", "1,234/s", "7"):
        assert word in first.split()
    assert "running (pipeline)" in second
    found.look()
    assert "does not answer" in drawn(found)[0]


def test_nothing_is_drawn_where_nobody_looks() -> None:
    with screen(["a"], "127.0.0.1:1", NOBODY, wanted=True) as found:
        assert found is None
