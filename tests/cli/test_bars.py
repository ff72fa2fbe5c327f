"""What a bar says: never more than all, and no number that nobody knows."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from penstock.cli import drawing
from penstock.cli.bars import (
    PACE_SECONDS,
    Line,
    Step,
    left_words,
    line,
    rate_per_second,
    seconds_left,
    stepped,
)

COUNTS = st.integers(-5, 1 << 40)


def pictured(*lines: Line, width: int = 100) -> list[str]:
    """The lines as a terminal of that width shows them, without colours."""
    console = Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None)
    with console.capture() as captured:
        console.print(drawing.Bars(lines))
    return [one.rstrip() for one in captured.get().splitlines()]


@given(COUNTS, st.none() | COUNTS)
def test_a_bar_is_never_more_than_full(done: int, total: int | None) -> None:
    one = line("p", done=done, total=total)
    assert one.done >= 0
    if total is None:
        assert one.percent == ""
    else:
        assert one.total is not None
        assert one.done <= one.total
        assert 0 <= int(one.percent.removesuffix("%")) <= 100
        assert (one.percent == "100%") == (one.done == one.total)


@given(
    st.lists(
        st.tuples(st.floats(0, 1e6), st.integers(0, 1 << 40), st.integers(0, 1 << 40)), max_size=20
    ),
    st.floats(0, 2e6),
    st.integers(0, 1 << 40),
)
def test_a_pace_is_a_number_of_what_was_seen_or_none(
    seen: list[tuple[float, int, int]], now: float, behind: int
) -> None:
    steps: tuple[Step, ...] = ()
    for at, done, left in sorted(seen):
        steps = stepped(steps, Step(at=at, done=done, behind=left))
    rate = rate_per_second(steps, now)
    assert rate is None or rate >= 0
    left_seconds = seconds_left(steps, now, behind=behind)
    assert left_seconds is None or left_seconds >= 0
    if not behind:
        assert left_seconds == 0
    elif len(steps) < 2:
        assert (rate, left_seconds) == (None, None)


def test_a_pace_is_that_of_late_and_slows_down_while_nothing_comes() -> None:
    steps, done = stepped((), Step(at=0, done=0, behind=10_000)), 0
    for second in range(10, 101, 10):
        done += 10 * (1 if second < 50 else 100)
        steps = stepped(steps, Step(at=float(second), done=done, behind=10_000 - done))
    assert len(steps) <= 1 + PACE_SECONDS / 10
    assert rate_per_second(steps, 100.0) == pytest.approx(100)
    assert seconds_left(steps, 100.0, behind=10_000 - done) == pytest.approx(39.6)
    assert rate_per_second(steps, 170.0) == pytest.approx(30)


def test_what_does_not_come_nearer_says_no_end() -> None:
    steps = (Step(at=0, done=0, behind=100), Step(at=10, done=500, behind=300))
    assert rate_per_second(steps, 10.0) == 50
    assert seconds_left(steps, 10.0, behind=300) is None
    assert left_words(seconds_left(steps, 10.0, behind=300)) == ""


def test_slow_steps_have_a_pace_too() -> None:
    steps: tuple[Step, ...] = ()
    for minute in range(10):
        steps = stepped(steps, Step(at=minute * 60.0, done=minute * 60, behind=0))
    assert rate_per_second(steps, 540.0) == pytest.approx(1)


def test_who_tells_often_is_heard_and_little_is_kept() -> None:
    steps = stepped((), Step(at=0, done=0))
    for tick in range(20_001):
        steps = stepped(steps, Step(at=tick / 1000, done=tick, behind=0))
    assert len(steps) < 100
    assert (steps[0].done, steps[-1].done) == (0, 20_000)
    assert rate_per_second(steps, 20.0) == pytest.approx(1000)


def test_a_bar_is_as_long_as_what_is_done() -> None:
    def heavy(done: int, total: int) -> int:
        return pictured(line("p", done=done, total=total))[0].count("━")

    # Without colours rich draws what is done, and nothing else.
    assert heavy(0, 100) == 0
    assert heavy(50, 100) == heavy(100, 100) / 2
    assert heavy(100, 100) == heavy(0, 0) == 40


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_the_bar_gives_way_and_the_words_do_not(width: int) -> None:
    shown = pictured(
        line(
            "orders",
            done=1_240_118,
            total=2_000_000,
            rate="18,400/s",
            count="759,882 behind",
            left="41 s left",
            said=(("running", "green"), ("7 rejected", "yellow")),
        ),
        width=width,
    )
    assert all(len(one) <= width for one in shown)
    whole = " ".join(shown)
    for word in ("orders", "62%", "759,882 behind", "running", "rejected"):
        assert word in whole
    assert ("18,400/s" in whole) == (width >= 80)
    assert ("41 s left" in whole) == (width >= 70)
    assert "━━━" in whole


def test_a_bar_without_an_end_has_no_percentage() -> None:
    (shown,) = pictured(line("p", done=7, total=None, said=(("7 ranges", ""),)))
    assert "%" not in shown
    assert "7 ranges" in shown
    assert "━" in shown
    assert "━" not in pictured(line("p", done=0, total=None, moves=False))[0]
