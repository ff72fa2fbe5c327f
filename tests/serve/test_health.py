"""Health says what matters now: a source that stands still, and not the errors that passed."""

from typing import Any

import pytest

from penstock.errors import LogCorruptError, PenstockError, ServiceUnavailableError
from penstock.ports import SourceState
from penstock.serve.health import (
    CapturesHealth,
    CurrentRowsHealth,
    Facts,
    Health,
    health,
)
from penstock.subscribe.current import CurrentStatus

NOW = 1_750_000_000_000


def told(name: str = "shop", **more: Any) -> dict[str, Any]:
    """A source as capture tells of it."""
    return {"source": name, "state": "running", "health": "ok", "code": "", **more}


def durable(name: str = "shop", *, moved_seconds_ago: float = 1.0) -> SourceState:
    """A source as the log knows it."""
    return SourceState(
        source=name,
        position="p",
        commits=3,
        events=7,
        last_timestamp=NOW - 86_400_000,
        moved_at=NOW - int(moved_seconds_ago * 1000),
    )


def decided(*sources: dict[str, Any], lag_max: float = 300.0, **more: Any) -> Health:
    facts: dict[str, Any] = {
        "capture": {"sources": list(sources)},
        "sources": [durable(str(one["source"])) for one in sources],
        "consumers": 2,
        "buffer_size": 4096,
    }
    return health(
        Facts(**{**facts, **more}),
        version="1",
        started_at=NOW - 5000,
        now_ms=NOW,
        lag_seconds_max=lag_max,
    )


def test_everything_well_is_ok_and_200() -> None:
    found = decided(told("a"), told("b"))
    assert (found.status, found.http_status, found.uptime) == ("ok", 200, 5.0)
    assert [(one.name, one.events_total) for one in found.backends] == [("a", 7), ("b", 7)]
    assert (found.consumers, found.buffer_size) == (2, 4096)


def test_p19_a_source_without_events_for_a_day_is_ok_while_its_position_moves() -> None:
    assert decided(told()).backends[0].last_event == NOW - 86_400_000
    assert decided(told()).status == "ok"


@pytest.mark.parametrize(
    ("seconds", "status", "code"), [(299.9, "ok", 200), (300.1, "unhealthy", 503)]
)
def test_p34_a_source_whose_position_stands_still_is_unhealthy(
    seconds: float, status: str, code: int
) -> None:
    found = decided(told(), sources=[durable(moved_seconds_ago=seconds)])
    assert (found.status, found.http_status) == (status, code)
    assert found.lag == pytest.approx(seconds)


def test_a_limit_of_zero_is_none() -> None:
    assert decided(told(), lag_max=0, sources=[durable(moved_seconds_ago=1e6)]).status == "ok"


@pytest.mark.parametrize("state", ["finished", "paused"])
def test_a_source_that_rests_on_purpose_does_not_lag(state: str) -> None:
    found = decided(told(state=state), sources=[durable(moved_seconds_ago=1e6)])
    assert found.status == "ok"


def test_p34_the_service_is_as_healthy_as_its_worst_source() -> None:
    degraded = decided(told("a"), told("b", health="degraded", state="retrying"))
    assert (degraded.status, degraded.http_status) == ("degraded", 200)
    stopped = decided(told("a"), told("b", health="unhealthy", state="stopped", code="decode"))
    assert (stopped.status, stopped.http_status) == ("unhealthy", 503)
    assert [one.status for one in stopped.backends] == ["ok", "unhealthy"]
    assert stopped.backends[1].code == "decode"


def test_without_capture_the_service_is_unhealthy() -> None:
    assert decided(capture=None).http_status == 503


def test_a_retention_that_waits_for_the_clock_is_degraded() -> None:
    found = decided(capture={"sources": [told()], "ageRetentionPaused": True})
    assert found.status == "degraded"


@pytest.mark.parametrize(("code", "status"), [("", "ok"), ("state.failed", "degraded")])
def test_rows_that_are_not_kept_up_are_a_reason_to_look_and_no_outage(
    code: str, status: str
) -> None:
    """Invariant 8: they hold up neither capture nor streams. That they lag is no fault."""
    found = decided(told(), head=100, current=CurrentStatus(sequence=40, code=code))
    assert (found.status, found.http_status) == (status, 200)
    assert found.current_rows == CurrentRowsHealth(status=status, code=code, lag_events=60)
    assert decided(told()).current_rows is None
    worse = decided(told(health="unhealthy"), current=CurrentStatus(sequence=0, code=code))
    assert worse.status == "unhealthy"


@pytest.mark.parametrize(
    ("error", "status", "http_status"),
    [
        (None, "ok", 200),
        (ServiceUnavailableError("not now"), "degraded", 200),
        (LogCorruptError("block 7"), "unhealthy", 503),
    ],
)
def test_capture_subscriptions_that_get_nothing_are_said_to(
    error: PenstockError | None, status: str, http_status: int
) -> None:
    found = decided(told(), captures=True, captures_failure=error)
    assert found.captures == CapturesHealth(status=status, code="" if error is None else error.code)
    assert (found.status, found.http_status) == (status, http_status)
    assert decided(told()).captures is None
