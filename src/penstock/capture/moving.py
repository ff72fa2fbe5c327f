"""Moving a source's position by hand. Whoever follows the source is told, in its place, by a gap.

Only for a source that is not captured: see `Supervisor.at_rest`.
"""

from msgspec import Raw, Struct, json

from penstock.errors import RequestError
from penstock.event import ClusterTime, Commit, SystemEvent, event_id
from penstock.ports import ChangeLog, SourceState
from penstock.telemetry import GAPS_DETECTED


class Move(Struct, frozen=True, kw_only=True):
    """What was done."""

    source: str
    before: str | None
    """The position until now; None if there was none."""
    after: str | None
    gap: bool
    """Whether the log has a gap that says so: not for a source that was nowhere, nor is."""


async def move(log: ChangeLog, source: str, position: str | None, *, now_ms: int) -> Move:
    """Have `source` go on from `position`, or from where its `start` says (None).

    The gap and the new position are one write. For None the gap comes first: a crash in between
    leaves a gap too many, and the position as it was. A source that the log does not know gets its
    position without a gap, since nobody was told anything of it. What it had staged is dropped.
    Raises RequestError when there is nothing to move.
    """
    state = next((one for one in await log.sources() if one.source == source), None)
    before = None if state is None else state.position
    if before == position:
        where = "has no position" if position is None else "stands there already"
        raise RequestError(f"{source} {where}. Nothing was changed.")
    # What is staged would become visible with the next commit.
    await log.abandon(source)
    if state is None:
        await log.set_position(source, position)
        return Move(source=source, before=None, after=position, gap=False)
    stays = state.position if position is None else position
    event = _gap(state, position, now_ms=now_ms)
    await log.append([Commit(source=source, position=stays, events=(event,))])
    GAPS_DETECTED.labels(source).inc()
    if position is None:
        await log.set_position(source, None)
    return Move(source=source, before=before, after=position, gap=True)


def _gap(state: SourceState, position: str | None, *, now_ms: int) -> SystemEvent:
    facts = {
        "source": state.source,
        "from": state.position,
        "to": position,
        "reason": "the position was moved by hand",
        "atMs": now_ms,
    }
    return SystemEvent(
        event_id=event_id(state.source, f"moved:{now_ms}:{state.position}", 0),
        source=state.source,
        database="",
        tenant=state.source,
        collection="",
        cluster_time=ClusterTime(state.last_timestamp // 1000),
        timestamp=state.last_timestamp,
        position=state.position if position is None else position,
        operation="gap",
        description=Raw(json.encode(facts)),
    )
