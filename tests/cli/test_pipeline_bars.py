"""The bar of a pipeline tells how far it is between where it began and the log's head."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from penstock.cli.pipeline_ask import PipelineReport
from penstock.cli.pipeline_bars import (
    Course,
    follows,
    lines_of,
    state_of,
    with_batch,
    with_end,
    with_fact,
    with_look,
)
from penstock.spark.progress import LoadProgress, PipelineProgress, RunBegan, RunWaits

NEW = Course(pipeline="p")


def began(sequence: int, head: int) -> RunBegan:
    return RunBegan(pipeline="p", sequence=sequence, head=head)


def batch(until: int, *, rejected: int = 0, lost: int = 0) -> PipelineProgress:
    return PipelineProgress(
        pipeline="p",
        batch_id=0,
        entries=1,
        rows=1,
        rejected=rejected,
        sequence=0,
        seconds=1,
        until=until,
        lost=lost,
    )


def loaded(done: int, ranges: int, *undivided: str, complete: bool = False) -> LoadProgress:
    return LoadProgress(
        pipeline="p", loaded=done, ranges=ranges, undivided=undivided, complete=complete
    )


def report(state: str, **facts: Any) -> PipelineReport:
    return PipelineReport(
        pipeline="p", to="table", source="shop", configured=True, state=state, **facts
    )


def words(course: Course, now: float = 0.0) -> list[str]:
    return [text for one in lines_of(course, now) for text, _ in one.said]


PLACES = st.integers(0, 1000)
EVENTS: st.SearchStrategy[Any] = st.one_of(
    st.builds(began, PLACES, PLACES),
    st.builds(batch, PLACES),
    PLACES,
    st.builds(RunWaits, pipeline=st.just("p"), code=st.just("c")),
    st.builds(loaded, st.integers(0, 9), st.integers(9, 20)),
)
"""What is told of a pipeline; a number is where the log ends."""


@given(st.lists(EVENTS, max_size=30), st.booleans())
def test_a_bar_never_goes_over_its_end_nor_back(events: list[Any], once: bool) -> None:
    """Whatever order facts come in, and wherever the head goes."""
    course, dones = Course(pipeline="p", once=once), [0]
    for at, event in enumerate(events):
        if isinstance(event, int):
            course = with_look(course, event, None, at)
        elif isinstance(event, PipelineProgress):
            course = with_batch(course, event, at)
        else:
            course = with_fact(course, event, at)
        assert course.behind >= 0
        for one in lines_of(course, at + 0.5):
            assert one.total is None or 0 <= one.done <= one.total
        dones.append(course.done)
    assert dones == sorted(dones)


def test_catching_up_says_how_far_how_fast_and_how_long_still() -> None:
    course = with_fact(NEW, began(1000, 2000), 0)
    (line,) = lines_of(course, 0)
    assert (line.done, line.total, line.percent) == (0, 1000, "0%")
    assert (line.rate, line.left) == ("", "")  # nobody knows yet
    course = with_batch(course, batch(1300), 10)
    course = with_look(course, 2100, None, 10)
    (line,) = lines_of(course, 10)
    assert (line.done, line.total, line.percent) == (300, 1100, "27%")
    assert line.rate == "30/s"
    assert line.count == "800 behind"
    # 200 fewer than there were 10 seconds ago: the log grows, too.
    assert line.left == "40 s left"
    assert state_of(course, 10) == "running"


def test_who_has_what_the_log_had_a_moment_ago_follows_it() -> None:
    course = with_fact(NEW, began(0, 100), 0)
    for second in range(1, 40):
        course = with_look(course, 100 + 10 * second, None, second)
    assert not follows(course, 39)
    course = with_batch(course, batch(390), 39)
    assert follows(course, 39)
    assert words(course, 39) == ["following"]
    (line,) = lines_of(course, 39)
    assert line.left == ""
    assert line.count == "100 behind"
    assert not follows(with_look(course, 500, None, 60), 71)


def test_nobody_follows_a_head_that_nobody_has_seen_for_long() -> None:
    course = with_look(with_fact(NEW, began(0, 100), 0), 100, None, 20)
    course = with_batch(course, batch(100), 20)
    assert follows(course, 25)
    assert not follows(course, 3600)


def test_once_ends_at_the_head_that_was_there_when_it_began() -> None:
    course = with_fact(Course(pipeline="p", once=True), began(0, 100), 0)
    course = with_look(course, 900, None, 1)
    assert lines_of(course, 1)[0].total == 100
    course = with_batch(course, batch(100), 2)
    assert lines_of(course, 2)[0].percent == "100%"
    # Spark looks at the head itself, a little later.
    course = with_batch(course, batch(130), 3)
    (line,) = lines_of(with_end(course, ""), 3)
    assert (line.done, line.total, line.count) == (130, 130, "0 behind")
    assert words(with_end(course, "")) == ["ended"]


def test_a_log_with_nothing_new_is_all_done() -> None:
    (line,) = lines_of(with_fact(NEW, began(7, 7), 0), 0)
    assert (line.percent, line.count) == ("100%", "0 behind")


def test_a_run_that_goes_on_after_an_error_has_not_begun_anew() -> None:
    course = with_batch(with_fact(NEW, began(0, 100), 0), batch(50), 1)
    course = with_fact(course, RunWaits(pipeline="p", code="serve.unavailable"), 2)
    assert words(course, 2) == ["waiting (serve.unavailable)"]
    course = with_fact(course, began(40, 120), 3)
    (line,) = lines_of(course, 3)
    assert (line.done, line.total) == (50, 120)
    assert words(course, 3) == ["running"]


def test_what_is_wrong_is_said() -> None:
    course = with_batch(with_fact(NEW, began(0, 100), 0), batch(50, rejected=7, lost=1002), 1)
    course = with_batch(course, batch(60, rejected=1), 2)
    said = report("running", differences=3, trimmed=True)
    course = with_look(course, 100, said, 3)
    assert words(course, 3) == ["running", "8 rejected", "1,002 LOST", "TRIMMED", "3 DIFFER"]
    stopping = with_look(course, 100, report("running", stopping=True), 4)
    assert words(stopping, 4)[0] == "stopping"
    failed = with_end(course, "pipeline.spark")
    assert words(failed, 4)[0] == "failed (pipeline.spark)"


def test_what_the_service_knows_of_an_earlier_run_is_not_said_of_this_one() -> None:
    old = report("failed", code="old", differences=3, trimmed=True)
    assert words(with_look(NEW, 5, old, 0)) == ["starting"]
    assert words(with_fact(with_look(NEW, 5, old, 0), began(0, 50), 0)) == ["running"]


def test_a_first_load_has_a_bar_of_its_own_until_it_is_complete() -> None:
    course = with_fact(with_fact(NEW, began(5, 5), 0), loaded(0, 0, ""), 0)
    bar = lines_of(course, 0)[1]
    assert (bar.total, bar.percent, bar.count) == (None, "", "0 ranges")
    assert words(course, 0)[-1] == "source not divided into ranges yet"
    course = with_fact(course, loaded(3, 12, "lines", "notes"), 1)
    bar = lines_of(course, 1)[1]
    assert (bar.total, bar.percent, bar.count) == (None, "", "3 ranges")
    assert words(course, 1)[-1] == "2 collections not divided into ranges yet"
    course = with_fact(course, loaded(0, 40), 2)
    course = with_fact(course, loaded(10, 40), 12)
    bar = lines_of(course, 12)[1]
    assert (bar.label.strip(), bar.percent, bar.left) == ("first load", "25%", "30 s left")
    assert bar.count == "10 of 40 ranges"
    course = with_fact(course, loaded(40, 40), 42)
    assert words(course, 42)[-1] == "waits for the log"
    course = with_fact(course, loaded(40, 40, complete=True), 43)
    assert len(lines_of(course, 43)) == 1
