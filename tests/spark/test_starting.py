"""Where a run begins on a log with an archive: whoever goes on needs nothing of what that has."""

from collections.abc import Callable
from typing import Any

import pytest

from penstock.errors import ArchiveUnavailableError, PipelineChangedError
from penstock.ports import Bounds
from penstock.progress import Progress
from penstock.spark import audit
from penstock.spark.config import ReplicatePipelineConfig, TablePipelineConfig
from penstock.spark.replica import place
from penstock.spark.table import standing

LOG = 7
HERE = Progress(LOG, 900, 9)
Whole = Callable[[], Bounds]
Decide = Callable[[bool, str, Whole], Progress]
"""Of a pipeline that stands HERE, or is new, and its `start`."""


def bounds(trimmed: int) -> Bounds:
    return Bounds(
        log_id=LOG,
        trimmed=trimmed,
        trimmed_check=trimmed,
        head=1000,
        head_commit=1000,
        head_check=1,
    )


LIVE, JOINED = bounds(800), bounds(100)


def away() -> Bounds:
    raise ArchiveUnavailableError("s3://bucket", TimeoutError())


def of_tables(stands: bool, start: str, whole: Whole, **more: Any) -> Progress:
    said = {"source": "shop", "collections": ["orders", "lines"], "path": "lake", "start": start}
    kept = standing.Standing(
        pipeline="p",
        source="shop",
        collections=("orders", "lines"),
        progress=HERE,
        tables={"orders": 850},
    )
    return standing.decide_start(
        TablePipelineConfig.model_validate(said | more),
        "p",
        standing=kept if stands else None,
        bounds=LIVE,
        applied=lambda name: {"orders": 850}.get(name, 0),
        whole=whole,
    ).after


def of_a_trail(stands: bool, start: str, whole: Whole) -> Progress:
    marker, knowingly = str(HERE) if stands else "", start == "oldest"
    return audit.decide_start("p", marker, LIVE, knowingly=knowingly, whole=whole)


def of_a_replica(stands: bool, start: str, whole: Whole) -> Progress:
    said = {"to": "replicate", "source": "shop", "uri": "mongodb://h/d", "start": start}
    kept = place.Place(pipeline="p", source="shop", collections=(), epoch=1, progress=HERE)
    return place.decide_start(
        "p",
        ReplicatePipelineConfig.model_validate(said),
        place=kept if stands else None,
        tables={},
        gone=(),
        bounds=LIVE,
        whole=whole,
    ).progress


@pytest.mark.parametrize("start", ["beginning", "oldest"])
@pytest.mark.parametrize("decide", [of_tables, of_a_trail, of_a_replica])
def test_an_archive_that_is_away_stops_whoever_begins_and_nobody_who_goes_on(
    decide: Decide, start: str
) -> None:
    """A new one would begin behind what the archive has, and step over it."""
    assert decide(True, start, away) == HERE
    with pytest.raises(ArchiveUnavailableError):
        decide(False, start, away)


@pytest.mark.parametrize("decide", [of_tables, of_a_trail, of_a_replica])
def test_who_begins_does_so_with_the_first_that_log_and_archive_hold(decide: Decide) -> None:
    assert decide(False, "oldest", lambda: JOINED) == Progress(LOG, 100, 100)
    assert decide(False, "beginning", lambda: bounds(0)) == Progress(LOG, 0, 0)


def test_a_collection_that_was_added_is_read_from_the_first_that_both_hold() -> None:
    more = ["orders", "lines", "refunds"]
    found = of_tables(True, "oldest", lambda: JOINED, collections=more)
    assert found == Progress(LOG, 100, 100)
    with pytest.raises(PipelineChangedError, match="first 100 entries"):
        of_tables(True, "beginning", lambda: JOINED, collections=more)
    with pytest.raises(ArchiveUnavailableError):
        of_tables(True, "oldest", away, collections=more)
