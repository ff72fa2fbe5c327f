"""The circuit breaker's rules (P18), by themselves."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.capture.breaker import Breaker, Circuit
from tests.seeds import cases

FAILURES_MAX, OPEN_SECONDS = 5, 30.0


class Now:
    seconds = 1_000.0

    def __call__(self) -> float:
        return self.seconds


def opened(now: Now) -> Breaker:
    breaker = Breaker(steady_seconds=now, failures_max=FAILURES_MAX, open_seconds=OPEN_SECONDS)
    for _ in range(FAILURES_MAX):
        assert breaker.circuit is Circuit.CLOSED
        assert breaker.admit()
        breaker.failed()
    assert breaker.circuit is Circuit.OPEN
    return breaker


def test_it_opens_at_the_fifth_failure_in_a_row_and_admits_nobody_for_its_time() -> None:
    now = Now()
    breaker = opened(now)
    assert breaker.wait_seconds() == OPEN_SECONDS
    now.seconds += OPEN_SECONDS - 1
    assert not breaker.admit()
    assert breaker.wait_seconds() == 1


def test_a_success_in_between_starts_the_count_again() -> None:
    breaker = Breaker(steady_seconds=Now(), failures_max=2)
    for _ in range(9):
        breaker.failed()
        breaker.succeeded()
    assert breaker.circuit is Circuit.CLOSED


def test_when_its_time_has_come_one_trial_is_admitted_and_decides() -> None:
    now = Now()
    breaker = opened(now)
    now.seconds += OPEN_SECONDS
    assert breaker.admit()
    assert breaker.circuit is Circuit.HALF_OPEN
    assert not breaker.admit()
    breaker.failed()
    assert breaker.wait_seconds() == OPEN_SECONDS
    now.seconds += OPEN_SECONDS
    assert breaker.admit()
    breaker.succeeded()
    assert breaker.wait_seconds() == 0
    assert breaker.admit()


def test_a_trial_that_told_nothing_lets_the_next_one_try_at_once() -> None:
    now = Now()
    breaker = opened(now)
    now.seconds += OPEN_SECONDS
    assert breaker.admit()
    breaker.undecided()
    assert breaker.circuit is Circuit.OPEN
    assert breaker.admit()
    breaker.failed()
    breaker.undecided()
    assert breaker.wait_seconds() == OPEN_SECONDS


def test_a_breaker_that_could_never_admit_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one failure"):
        Breaker(steady_seconds=Now(), failures_max=0)


class Calls(RuleBasedStateMachine):
    """Whatever happens in whatever order, against the rules as the sheet says them."""

    def __init__(self) -> None:
        super().__init__()
        self.now = Now()
        self.breaker = Breaker(
            steady_seconds=self.now, failures_max=FAILURES_MAX, open_seconds=OPEN_SECONDS
        )
        self.in_a_row = 0
        self.closed_until = 0.0
        self.calling = 0

    @property
    def open(self) -> bool:
        return self.in_a_row >= FAILURES_MAX

    @rule(seconds=st.floats(min_value=0, max_value=40))
    def wait(self, seconds: float) -> None:
        self.now.seconds += seconds

    @rule()
    def call(self) -> None:
        may = not self.open or (self.now.seconds >= self.closed_until and not self.calling)
        assert self.breaker.admit() is may
        self.calling += may

    @precondition(lambda self: self.calling)
    @rule()
    def succeed(self) -> None:
        self.breaker.succeeded()
        self.in_a_row = self.calling = 0

    @precondition(lambda self: self.calling)
    @rule()
    def fail(self) -> None:
        self.breaker.failed()
        self.in_a_row += 1
        self.calling = 0
        self.closed_until = self.now.seconds + OPEN_SECONDS

    @precondition(lambda self: self.calling)
    @rule()
    def learn_nothing(self) -> None:
        self.breaker.undecided()
        self.calling = 0

    @invariant()
    def says_how_it_stands(self) -> None:
        assert (self.breaker.circuit is Circuit.CLOSED) is not self.open


Calls.TestCase.settings = settings(max_examples=cases(100), deadline=None)
TestCalls = Calls.TestCase
