"""Whether the service keeps its promise, decided from what capture and the log say. Pure.

A source is judged by what it does, not by its events: a quiet one moves its position with every
heartbeat, so only one that stands still lags. Errors that passed are counted and never held
against it: the next change that becomes durable makes a source `ok` again (P34).
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from penstock.client.pipelines import PipelineStatus
from penstock.errors import PenstockError
from penstock.ports import SourceState
from penstock.serve.zero.status import ShardStatus
from penstock.subscribe.current import CurrentStatus

OK: Final = "ok"
DEGRADED: Final = "degraded"
UNHEALTHY: Final = "unhealthy"
_SEVERITY: Final = (OK, DEGRADED, UNHEALTHY)


class BackendHealth(Struct, frozen=True, kw_only=True, rename="camel"):
    """One source; the puller calls it a backend."""

    name: str
    status: str
    state: str
    """What its capture is doing, as `penstock status` says it."""
    code: str = ""
    """Of the error that led there."""
    last_event: int | None = None
    """Unix milliseconds of its newest event, by its own clock; null before the first."""
    events_total: int = 0
    errors: int = 0
    """Since capture started."""
    gaps_detected: int = 0
    lag: float | None = None
    """For how many seconds it may have had what is not captured yet; null before it said anything.
    """


class CurrentRowsHealth(Struct, frozen=True, kw_only=True, rename="camel"):
    """The current rows beside the log; they hold up neither capture nor streams."""

    status: str
    code: str = ""
    """Of the error that keeps them from going on."""
    lag_events: int
    """Entries of the log that they do not have yet."""


class CapturesHealth(Struct, frozen=True, kw_only=True):
    """Capture subscriptions; they hold up neither capture nor other streams."""

    status: str
    """Unhealthy where only a restart helps."""
    code: str = ""
    """Of the error by which subscriptions get nothing."""


class ShardHealth(Struct, frozen=True, kw_only=True, rename="camel"):
    """A shard of Zero; it holds up neither capture nor anybody else."""

    shard: str
    who: str = ""
    status: str
    """`degraded` where it is stopped or waits, or its rows may be wrong."""
    state: str
    """As `penstock status` says it."""
    watermark: str
    acknowledged: str
    lag_commits: int
    """Commits of the log behind what it acknowledged."""
    code: str = ""
    message: str = ""
    gaps: tuple[str, ...] = ()
    """Its sources of which rows may be missing or wrong, until they are copied again."""


class Health(Struct, frozen=True, kw_only=True, rename="camel"):
    """The answer to GET /health: 200 for ok and degraded, 503 for unhealthy."""

    status: str
    version: str
    started_at: int
    """Unix milliseconds."""
    uptime: float
    """Seconds."""
    lag: float | None
    """Of the source that lags most."""
    backends: list[BackendHealth]
    consumers: int
    """Readers connected."""
    buffer_size: int
    """Bytes that the log takes up."""
    current_rows: CurrentRowsHealth | None = None
    """None where nobody keeps them."""
    captures: CapturesHealth | None = None
    """None where none are served."""
    shards: list[ShardHealth] = []
    """Of Zero."""
    pipelines: list[PipelineStatus] = []
    """Those that told how far they are. They run elsewhere, so they make nothing unhealthy here."""

    @property
    def http_status(self) -> int:
        return 503 if self.status == UNHEALTHY else 200


class Facts(Struct, frozen=True, kw_only=True):
    """What health is decided from."""

    capture: Mapping[str, Any] | None
    """What the capture process says of itself (request `status`); None if it does not answer."""
    sources: Sequence[SourceState]
    """What the log says of each source."""
    consumers: int
    buffer_size: int
    head: int = 0
    """Sequence of the log's newest entry."""
    head_commit: int = 0
    current: CurrentStatus | None = None
    """What the keeper of the current rows says of itself."""
    captures: bool = False
    """Capture subscriptions are served;"""
    captures_failure: PenstockError | None = None
    """and why they get nothing."""
    shards: Sequence[ShardStatus] = ()
    """What the endpoint of Zero says of its own."""
    pipelines: Sequence[PipelineStatus] = ()
    """What drivers of pipelines said."""
    incomplete: frozenset[str] = frozenset()
    """Sources of which not all current rows are known."""


def health(
    facts: Facts, *, version: str, started_at: int, now_ms: int, lag_seconds_max: float
) -> Health:
    """The health of the service: that of its worst part, and unhealthy without capture.

    A source that has been captured and whose position has stood still for `lag_seconds_max` is
    unhealthy, whatever it says of itself; 0 asks for no such limit.
    """
    told: list[Mapping[str, Any]] = list((facts.capture or {}).get("sources", ()))
    durable = {state.source: state for state in facts.sources}
    backends = [
        _backend(one, durable.get(str(one["source"])), now_ms, lag_seconds_max) for one in told
    ]
    rows = _current_rows(facts)
    captures = _captures(facts)
    shards = [_shard(one, facts) for one in facts.shards]
    found = [one.status for one in (*backends, *shards, rows, captures) if one is not None]
    worst = max(found, key=_SEVERITY.index, default=OK)
    if facts.capture is None:
        worst = UNHEALTHY
    elif facts.capture.get("ageRetentionPaused"):
        worst = max(worst, DEGRADED, key=_SEVERITY.index)
    return Health(
        status=worst,
        version=version,
        started_at=started_at,
        uptime=max(0, now_ms - started_at) / 1000,
        lag=max((one.lag for one in backends if one.lag is not None), default=None),
        backends=backends,
        consumers=facts.consumers,
        buffer_size=facts.buffer_size,
        current_rows=rows,
        captures=captures,
        shards=shards,
        pipelines=list(facts.pipelines),
    )


def _shard(told: ShardStatus, facts: Facts) -> ShardHealth:
    gaps = tuple(name for name in told.sources if name in facts.incomplete)
    return ShardHealth(
        shard=told.shard,
        who=told.who,
        status=DEGRADED if told.code or gaps else OK,
        state=told.state,
        watermark=told.watermark,
        acknowledged=told.acknowledged,
        lag_commits=max(0, facts.head_commit - told.commit),
        code=told.code,
        message=told.message,
        gaps=gaps,
    )


def _captures(facts: Facts) -> CapturesHealth | None:
    if not facts.captures:
        return None
    error = facts.captures_failure
    if error is None:
        return CapturesHealth(status=OK)
    return CapturesHealth(status=DEGRADED if error.transient else UNHEALTHY, code=error.code)


def _current_rows(facts: Facts) -> CurrentRowsHealth | None:
    """Degraded at worst: who asks for rows meanwhile is answered with the error."""
    current = facts.current
    if current is None:
        return None
    return CurrentRowsHealth(
        status=DEGRADED if current.code else OK,
        code=current.code,
        lag_events=max(0, facts.head - current.sequence),
    )


def _backend(
    told: Mapping[str, Any], durable: SourceState | None, now_ms: int, lag_seconds_max: float
) -> BackendHealth:
    still = None if durable is None else max(0, now_ms - durable.moved_at) / 1000
    status = str(told["health"])
    # One that has said all that it has to say, or was paused, stands still on purpose.
    rests = told["state"] in {"finished", "paused"}
    if not rests and still is not None and 0 < lag_seconds_max < still:
        status = UNHEALTHY
    return BackendHealth(
        name=str(told["source"]),
        status=status,
        state=str(told["state"]),
        code=str(told["code"]),
        last_event=(durable.last_timestamp or None) if durable is not None else None,
        events_total=durable.events if durable is not None else 0,
        errors=int(told.get("errors", 0)),
        gaps_detected=int(told.get("gapsDetected", 0)),
        lag=told.get("lagSeconds", still),
    )
