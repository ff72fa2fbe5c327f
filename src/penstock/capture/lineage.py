"""What a published copy and a log have to do with each other. Pure.

A log is known by its id, and by the ids of the logs that it goes on from. That is enough to tell
a machine that replaces a lost one from one that was replaced, and both from a stranger.
"""

from collections.abc import Iterable
from enum import StrEnum

from msgspec import Raw, json

from penstock.event import ClusterTime, SystemEvent, event_id
from penstock.ports import Above, Ancestor, Bounds, Checkpoint, SourceState


class Standing(StrEnum):
    """What a log is to the published copy of its instance."""

    NEW = "new"
    """Nothing is published."""
    OURS = "ours"
    """The copy is of this log, at or before its head."""
    BEHIND = "behind"
    """The copy is of this log, but says what the log does not: the log is an older copy of itself,
    and what it writes from now on is another story under the same id."""
    SUCCESSOR = "successor"
    """The copy is of a log that this one goes on from: this one takes its place."""
    SUPERSEDED = "superseded"
    """The copy is of a log that goes on from this one: that one has taken our place."""
    FOREIGN = "foreign"
    """The copy is of a log that has nothing to do with this one."""


def standing(published: Checkpoint | None, bounds: Bounds, *, check: int | None) -> Standing:
    """What the log with `bounds` is to `published`.

    `check` is that of the log's entry at the published sequence, None if it holds none there (any
    more): then only the head can tell.
    """
    if published is None:
        return Standing.NEW
    if published.log_id == bounds.log_id:
        ahead = published.sequence > bounds.head
        other = check is not None and check != published.check
        return Standing.BEHIND if ahead or other else Standing.OURS
    if any(one.log_id == published.log_id for one in bounds.ancestors):
        return Standing.SUCCESSOR
    if any(one.log_id == bounds.log_id for one in published.ancestors):
        return Standing.SUPERSEDED
    return Standing.FOREIGN


def copy_of(
    sources: Iterable[SourceState],
    bounds: Bounds,
    *,
    instance: str,
    writer: str,
    before: Checkpoint | None,
    now_ms: int,
) -> Checkpoint:
    """What to publish. `sources` must have been read before `bounds`.

    Then no position is ahead of the sequence beside it: whatever a source said up to its position
    stands at or before that sequence. The other way round a copy could claim too much. `before` is
    the copy that this one replaces: the sources that it knew and the log no longer does are kept by
    name, so that a log that begins above this copy can say what it lacks of them.
    """
    now = tuple(sources)
    names = {state.source for state in now}
    known: set[str] = set()
    if before is not None:
        known = {*before.past_sources, *(state.source for state in before.sources)}
    return Checkpoint(
        instance=instance,
        log_id=bounds.log_id,
        writer=writer,
        sequence=bounds.head,
        commit=bounds.head_commit,
        check=bounds.head_check,
        ancestors=bounds.ancestors,
        sources=now,
        past_sources=tuple(sorted(known - names)),
        published_at=now_ms,
    )


def above(published: Checkpoint, *, configured: Iterable[str]) -> Above:
    """Where a new log begins when the log of `published` is gone.

    It says a gap for every source that may have had entries there, and for every source that is
    configured, so that whoever follows one of them is told, whatever else it leaves out. With no
    entry published there is nothing to miss, and nothing is said.
    """
    gone = Ancestor(log_id=published.log_id, head=published.sequence, gone=True)
    states = {state.source: state for state in published.sources}
    names = sorted({*states, *published.past_sources, *configured})
    return Above(
        head=published.sequence,
        head_commit=published.commit,
        head_check=published.check,
        ancestors=(gone, *published.ancestors),
        sources=published.sources,
        gaps=tuple(_gap(name, states.get(name), published) for name in names if published.sequence),
    )


def _gap(source: str, state: SourceState | None, published: Checkpoint) -> SystemEvent:
    """The gap of one source: everything up to its published position is not in this log."""
    position = None if state is None else state.position
    at_ms = published.published_at if state is None else state.last_timestamp
    identity = f"log_gone:{published.log_id:016x}:{published.sequence}"
    facts = {
        "source": source,
        "from": None,
        "to": position,
        "reason": "the log of the machine before is gone; this one goes on from its published copy",
        "log": f"{published.log_id:016x}",
        "sequence": published.sequence,
    }
    return SystemEvent(
        event_id=event_id(source, identity, 0),
        source=source,
        database="",
        tenant=source,
        collection="",
        cluster_time=ClusterTime(at_ms // 1000),
        timestamp=at_ms,
        position=position or "",
        operation="gap",
        description=Raw(json.encode(facts)),
    )
