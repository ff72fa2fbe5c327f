"""How the capture of a source is, and what that means for health. Plain values."""

from enum import StrEnum
from typing import Final

from msgspec import Struct

from penstock.capture.breaker import Circuit


class State(StrEnum):
    """What the capture of a source is doing."""

    STARTING = "starting"
    """Nothing has been made durable yet, and nothing has failed."""
    RUNNING = "running"
    RETRYING = "retrying"
    """A transient error; it goes on by itself."""
    LOG_FULL = "log_full"
    """The log has no space; it goes on by itself once there is some (P5)."""
    OVER_QUOTA = "over_quota"
    """It has written its share of the log; it goes on by itself once some of that is old."""
    PAUSED = "paused"
    """Somebody paused it; it goes on when somebody resumes it."""
    STOPPED = "stopped"
    """An error that no retry mends; somebody must act. The position stands."""
    FINISHED = "finished"
    """The source has said that it has nothing more to say."""


class Health(StrEnum):
    """Whether capture keeps up its promise; the words are those of the puller's health."""

    OK = "ok"
    DEGRADED = "degraded"
    """It does, but somebody should look before it does not."""
    UNHEALTHY = "unhealthy"
    """Changes are not being captured, and it does not look as if that passes by itself."""


_SEVERITY: Final = (Health.OK, Health.DEGRADED, Health.UNHEALTHY)


def worst(*healths: Health) -> Health:
    """The worst of them; OK of none."""
    return max(healths, key=_SEVERITY.index, default=Health.OK)


class SourceStatus(Struct, frozen=True, kw_only=True):
    """The state of a source's capture, for `status`, health and metrics."""

    source: str
    state: State
    since_ms: int
    """Unix milliseconds when this state was entered."""
    code: str = ""
    """The code of the error that led here; empty if none did."""
    message: str = ""
    """That error's sentence."""
    failures: int = 0
    """Failures in a row since something was last made durable."""
    errors: int = 0
    """All failures since capture started; they are counted, and never held against the source."""
    restarts: int = 0
    """Sessions started after the first one."""
    circuit: Circuit = Circuit.CLOSED
    as_of_ms: int | None = None
    """Unix milliseconds up to which everything of the source is durable, by its heartbeats and
    events; None before either since capture started."""
    dead_letters: int = 0
    """Changes that could not be decoded, kept in the log, and not dealt with yet."""


def health_of(
    status: SourceStatus, *, failures_max: int, silent: bool = False, near_loss: bool = False
) -> Health:
    """The health of one source. Retrying never ends, but after `failures_max` failures in a row it
    counts as an outage; one change made durable ends that (P34)."""
    if status.state in {State.STOPPED, State.LOG_FULL} or status.failures >= failures_max:
        return Health.UNHEALTHY
    held_up = status.state in {State.RETRYING, State.PAUSED, State.OVER_QUOTA}
    worrying = near_loss or (silent and status.state is State.RUNNING)
    if held_up or status.failures or worrying or status.dead_letters:
        return Health.DEGRADED
    return Health.OK
