"""What is mended by nobody else at once is mended while the pipeline is known not to run."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs

from penstock.client.pipelines import AWAY_SECONDS, PipelineTold
from penstock.errors import PipelineError
from penstock.serve.pipelines import PipelineBook
from penstock.spark.config import PipelineConfig
from penstock.spark.mending import refuse_running
from penstock.subscribe.scope import EVERYTHING
from tests.flight.blocks import BlockLog, insert
from tests.spark.catalogs import in_catalog
from tests.spark.changelogs import changelog
from tests.spark.tables import pipeline

START_MS = 1_700_000_000_000


class Wall:
    """Milliseconds that pass when they are told to."""

    now_ms = START_MS

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def log() -> BlockLog:
    log = BlockLog()
    log.append([insert(number)] for number in range(4))
    return log


@pytest.fixture
def wall() -> Wall:
    return Wall()


@pytest.fixture
def book(tmp_path: Path, log: BlockLog, wall: Wall) -> Iterator[PipelineBook]:
    book = PipelineBook(tmp_path, log, hold_seconds=3600.0, hold_bytes=1 << 30, wall_ms=wall)
    yield book
    book.close()


def refused(book: PipelineBook, config: PipelineConfig) -> str:
    """What is said; nothing if rows may be mended."""
    client: Any = SimpleNamespace(pipelines=lambda: book.status(EVERYTHING))
    try:
        refuse_running("p", config, client)
    except PipelineError as error:
        return str(error)
    return ""


def test_a_pipeline_that_runs_or_may_run_is_not_mended_in_a_catalog(
    book: PipelineBook, log: BlockLog, wall: Wall, tmp_path: Path
) -> None:
    config = in_catalog("spark_catalog.sales")
    folder = pipeline(tmp_path / "t")
    assert refused(book, config) == ""  # nobody has heard of it
    told = PipelineTold(
        pipeline="p", run="1", source="shop", to="table", place=log.marker(log.head)
    )
    book.tell(told, EVERYTHING)
    assert "p is running" in (said := refused(book, config))
    assert "pipeline stop p." in said
    wall.now_ms += int(AWAY_SECONDS * 1000) + 1
    assert [one.state for one in book.status(EVERYTHING)] == ["away"]
    assert "has not said that it ended" in (said := refused(book, config))
    assert "pipeline run p --once." in said
    plain, delta = (changelog(tmp_path / one, format=one) for one in ("parquet", "delta"))
    assert "a folder of plain files" in refused(book, plain)
    assert refused(book, delta) == ""
    assert refused(book, folder) == ""  # there Delta refuses the second of two commits
    book.tell(structs.replace(told, run="2", state="ended"), EVERYTHING)
    assert refused(book, config) == ""
