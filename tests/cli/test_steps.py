"""The bar of work in the foreground: how far each step is, or for how long it lasts."""

import io

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from penstock.cli.steps import Doing, Steps, Work, line_of, steps, with_doing

DOINGS = st.builds(
    Doing,
    what=st.sampled_from(["reading", "comparing"]),
    unit=st.sampled_from(["", "ranges"]),
    done=st.integers(0, 100),
    total=st.none() | st.integers(0, 100),
)


def entries(done: int, total: int | None = 100) -> Doing:
    return Doing(what="applying", unit="entries", done=done, total=total)


@given(st.lists(DOINGS, min_size=1, max_size=20))
def test_a_step_never_goes_back_nor_over_its_end(doings: list[Doing]) -> None:
    work: Work | None = None
    for at, doing in enumerate(doings):
        before = work
        work = with_doing(work, doing, at)
        assert work.doing.what == doing.what
        if before is not None and before.began == work.began:
            assert work.doing.done >= before.doing.done
        line = line_of(work, at + 0.5)
        assert line.total == (None if doing.total is None else max(doing.total, line.done))
        assert line.done == work.doing.done
        assert ("%" in line.percent) == (doing.total is not None)


def test_a_step_with_an_end_says_how_much_and_how_long_still() -> None:
    work = with_doing(None, entries(0), 0)
    work = with_doing(work, entries(25), 10)
    line = line_of(work, 10)
    assert (line.percent, line.count, line.left) == ("25%", "25 of 100 entries", "30 s left")
    assert line.said == (("for 10 s", "dim"),)
    work = with_doing(work, Doing(what="comparing", unit="tables", total=3, of="orders"), 15)
    line = line_of(work, 17)
    assert (line.label, line.percent, line.count) == ("comparing", "0%", "0 of 3 tables")
    assert line.said == (("orders", ""), ("for 2.0 s", "dim"))


def test_an_end_that_moves_is_where_it_is_now() -> None:
    work = with_doing(None, entries(0, 100), 0)
    work = with_doing(work, entries(60, 120), 10)
    line = line_of(work, 10)
    # 100 were left ten seconds ago, and 60 are.
    assert (line.count, line.percent, line.left) == ("60 of 120 entries", "50%", "15 s left")
    assert line.said == (("for 10 s", "dim"),)


def test_a_step_without_an_end_says_for_how_long() -> None:
    work = with_doing(None, Doing(what="waiting"), 5)
    line = line_of(with_doing(work, Doing(what="waiting"), 60), 185)
    assert (line.total, line.percent, line.count, line.left) == (None, "", "", "")
    assert line.said == (("for 3 min", "dim"),)
    assert line_of(with_doing(None, entries(7, None), 0), 1).count == "7 entries"


def test_it_is_drawn_from_the_first_step_on() -> None:
    shown = Steps(clock=lambda: 0.0)
    console = Console(file=io.StringIO(), force_terminal=True, width=100, color_system=None)
    with console.capture() as captured:
        console.print(shown)
        shown.tell(entries(50))
        console.print(shown)
    empty, bar = captured.get().splitlines()
    assert not empty.strip()
    assert "━━━" in bar
    for word in ("applying", "50%", "50 of 100 entries"):
        assert word in bar


def test_nothing_is_drawn_where_nobody_looks() -> None:
    with steps(wanted=True) as shown:
        assert shown is None
