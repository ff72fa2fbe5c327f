"""Where a marker leads: to the very next entry, or to a sentence that says why not."""

import pytest

from penstock.errors import (
    AheadError,
    MalformedProgressError,
    StreamChangedError,
    TrimmedError,
)
from penstock.ports import Ancestor, Bounds
from penstock.progress import Progress
from penstock.subscribe import resume, start
from tests.subscribe.events import PartialLog

BOUNDS = Bounds(log_id=7, trimmed=10, trimmed_check=0xAA, head=20, head_commit=20, head_check=0xBB)


def test_an_empty_marker_starts_at_the_head_without_history() -> None:
    assert resume(None, bounds=BOUNDS, check=None) == Progress(7, 20, 0xBB)


def test_a_marker_resumes_right_after_its_entry() -> None:
    assert resume(Progress(7, 15, 5), bounds=BOUNDS, check=5) == Progress(7, 15, 5)


def test_a_marker_at_the_head_and_at_the_trim_watermark_resumes_p7() -> None:
    assert resume(Progress(7, 20, 0xBB), bounds=BOUNDS, check=0xBB).sequence == 20
    assert resume(Progress(7, 10, 0xAA), bounds=BOUNDS, check=0xAA).sequence == 10


def test_a_marker_before_the_trim_watermark_is_told_the_oldest_that_resumes_p7() -> None:
    with pytest.raises(TrimmedError) as caught:
        resume(Progress(7, 9, 1), bounds=BOUNDS, check=None)
    assert caught.value.oldest == str(Progress(7, 10, 0xAA))
    assert caught.value.oldest in str(caught.value)


def test_a_marker_beyond_the_head_is_ahead_never_an_endless_wait() -> None:
    with pytest.raises(AheadError):
        resume(Progress(7, 21, 1), bounds=BOUNDS, check=None)


def test_a_marker_of_another_log_is_refused() -> None:
    with pytest.raises(StreamChangedError):
        resume(Progress(8, 15, 5), bounds=BOUNDS, check=5)


def test_a_marker_whose_entry_was_rewritten_is_refused_at_the_watermarks_too() -> None:
    for sequence, check in ((15, 5), (20, 0xBB), (10, 0xAA)):
        with pytest.raises(StreamChangedError):
            resume(Progress(7, sequence, 99), bounds=BOUNDS, check=check)


def test_a_marker_of_an_ancestor_resumes_only_as_far_as_the_copy_went() -> None:
    restored = Bounds(
        log_id=9,
        trimmed=10,
        trimmed_check=0xAA,
        head=30,
        head_commit=30,
        head_check=0xCC,
        ancestors=(Ancestor(log_id=7, head=20),),
    )
    assert resume(Progress(7, 20, 0xBB), bounds=restored, check=0xBB) == Progress(9, 20, 0xBB)
    with pytest.raises(StreamChangedError, match="ended at sequence 20"):
        resume(Progress(7, 21, 5), bounds=restored, check=5)


class MovingLog(PartialLog):
    """A log that changes between two questions."""

    def __init__(self, *, bounds: Bounds, checks: list[int | None]) -> None:
        self._bounds = bounds
        self._checks = checks

    async def bounds(self) -> Bounds:
        return self._bounds

    async def check_at(self, sequence: int) -> int | None:
        return self._checks.pop(0)


async def test_a_marker_of_an_entry_that_just_arrived_resumes() -> None:
    log = MovingLog(bounds=BOUNDS, checks=[None, 5])
    assert await start(log, str(Progress(7, 15, 5))) == Progress(7, 15, 5)


async def test_a_marker_that_retention_just_passed_is_told_so() -> None:
    log = MovingLog(bounds=BOUNDS, checks=[None])
    with pytest.raises(TrimmedError):
        await start(log, str(Progress(7, 9, 5)))


@pytest.mark.parametrize("marker", ["x", "AAAA", "ä", "A" * 28 + "=", "{}", "A" * 10_000])
async def test_what_is_no_marker_is_refused_and_not_taken_for_an_empty_one_p28(
    marker: str,
) -> None:
    with pytest.raises(MalformedProgressError):
        await start(MovingLog(bounds=BOUNDS, checks=[]), marker)
