"""A source's share of the log: never more than its quota within the window, whatever happens."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.capture.quota import Quota, Reservation

WINDOW, MAX = 64_000, 12_800
"""A span is a second, and a reservation at least 100 bytes."""


def test_a_source_that_has_written_its_quota_waits_until_some_of_it_is_old() -> None:
    quota = Quota(bytes_max=MAX, window_ms=WINDOW)
    assert quota.wait_ms(MAX - 100, 0) == 0
    assert quota.take(MAX - 100, 0)
    assert quota.wait_ms(100, 10) == 0
    assert quota.take(100, 10)
    # Both have lapsed when their window and a span are over: no entry of theirs is younger.
    assert quota.wait_ms(200, 1000) == WINDOW + 1000 - 1000
    assert quota.wait_ms(1, WINDOW + 999) == 1
    assert quota.wait_ms(1, WINDOW + 1000) == 0


def test_small_appends_share_a_reservation_which_alone_must_be_kept() -> None:
    quota = Quota(bytes_max=MAX, window_ms=WINDOW)
    assert [quota.take(40, at) for at in (0, 10, 20, 30)] == [True, False, True, False]


def test_what_is_larger_than_the_whole_quota_passes_when_nothing_else_counts() -> None:
    """Invariant 6: full means wait, and waiting must end."""
    quota = Quota(bytes_max=MAX, window_ms=WINDOW)
    assert quota.wait_ms(10 * MAX, 0) == 0
    assert quota.take(10 * MAX, 0)
    assert quota.wait_ms(1, 1) > 0
    assert quota.wait_ms(10 * MAX, WINDOW + 1000) == 0


def test_a_slow_source_never_waits_though_its_reservations_lapse() -> None:
    quota = Quota(bytes_max=MAX, window_ms=WINDOW)
    for second in range(200):
        assert quota.wait_ms(40, second * 1000) == 0
        quota.take(40, second * 1000)


def test_a_clock_that_was_set_back_makes_nobody_wait_for_longer_than_the_window() -> None:
    quota = Quota(bytes_max=MAX, window_ms=WINDOW, reserved=[Reservation(10**9, MAX)])
    assert quota.wait_ms(1, 0) == WINDOW + 1000


@given(
    st.lists(
        st.tuples(
            st.integers(min_value=1, max_value=MAX // 3),
            st.integers(min_value=0, max_value=WINDOW // 8),
            st.booleans(),
        ),
        max_size=60,
    )
)
def test_no_window_ever_holds_more_than_the_quota_restarts_included(
    story: list[tuple[int, int, bool]],
) -> None:
    quota, kept, now = Quota(bytes_max=MAX, window_ms=WINDOW), list[Reservation](), 0
    written: list[tuple[int, int]] = []
    for size, pause, crash in story:
        now += pause
        while (wait := quota.wait_ms(size, now)) > 0:
            now += wait
        if quota.take(size, now):
            kept = quota.reserved(now)
        written.append((now, size))
        inside = sum(size for at, size in written if at > now - WINDOW)
        assert inside <= MAX
        if crash:
            quota = Quota(bytes_max=MAX, window_ms=WINDOW, reserved=kept)
