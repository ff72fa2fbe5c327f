"""What capture itself says of a source, in the log, in its place among the source's commits.

Few and small: `started` when a capture begins or goes on, `stopped` with the code of the error that
ended it, `paused`, `resumed`, `rewound`, and `removed` when the configuration no longer has it.
Retries are not said: metrics count them. A notice leaves the source's position where it is (but
`rewound`, whose point it is to move it), and goes only to readers who asked for control events.
"""

from collections.abc import Mapping

from msgspec import Raw, json

from penstock.event import ClusterTime, Commit, SystemEvent, event_id
from penstock.ports import SourceState


def notice(
    source: str,
    operation: str,
    *,
    position: str,
    at_ms: int,
    timestamp: int,
    facts: Mapping[str, object],
) -> Commit:
    """The commit that says `operation` of `source` at `position`.

    `at_ms` is when it happened by our clock, in Unix milliseconds; the event's own time is the
    source's, `timestamp` of the change before it (0: there is none), so that lag stays what it is.
    """
    event = SystemEvent(
        event_id=event_id(source, f"{operation}:{at_ms}:{position}", 0),
        source=source,
        database="",
        tenant=source,
        collection="",
        cluster_time=ClusterTime(timestamp // 1000),
        timestamp=timestamp,
        position=position,
        operation=operation,
        description=Raw(json.encode({"source": source, "atMs": at_ms, **facts})),
    )
    return Commit(source=source, position=position, events=(event,))


def notice_at(
    state: SourceState, operation: str, *, at_ms: int, facts: Mapping[str, object]
) -> Commit:
    """As `notice`, where the log says that the source stands."""
    return notice(
        state.source,
        operation,
        position=state.position,
        at_ms=at_ms,
        timestamp=state.last_timestamp,
        facts=facts,
    )
