"""Moving a source's position by hand. Whoever follows the source is told, in its place, by a gap.

Only for a source that is not captured: see `Supervisor.at_rest`. A copy that was under way begins
anew behind the gap: what it told before the gap proves nothing of what is there after it.
"""

from collections.abc import Iterable
from typing import Literal

from msgspec import Raw, Struct, json, structs

from penstock.errors import RequestError
from penstock.event import ClusterTime, Commit, SystemEvent, event_id
from penstock.ports import ChangeLog, ChangeSource, Moves, SourceState
from penstock.telemetry import GAPS_DETECTED


class Move(Struct, frozen=True, kw_only=True):
    """What was done."""

    source: str
    before: str | None
    """The position until now; None if there was none."""
    after: str | None
    gap: bool
    """Whether the log has a gap that says so: not for a source that was nowhere, nor is."""
    copy: Literal["none", "anew", "dropped"] = "none"
    """What becomes of a copy that was under way. Dropped: `start` decides what is copied then."""


async def move(
    log: ChangeLog,
    source: str,
    position: str | None,
    *,
    now_ms: int,
    adapter: ChangeSource | None = None,
) -> Move:
    """Have `source` go on from `position`, or from where its `start` says (None).

    The gap and the new position are one write. For None the gap comes first: a crash in between
    leaves a gap too many, and the position as it was. A source that the log does not know gets its
    position without a gap, since nobody was told anything of it. What it had staged is dropped.
    `adapter` is the source as it is configured; without it the position is taken as it is.
    Raises RequestError when there is nothing to move, or that is no position of the source.
    """
    state = next((one for one in await log.sources() if one.source == source), None)
    before = None if state is None else state.position
    if before == position:
        where = "has no position" if position is None else "stands there already"
        raise RequestError(f"{source} {where}. Nothing was changed.")
    copy: Literal["none", "anew", "dropped"] = "none"
    if adapter is not None and isinstance(adapter, Moves):
        if position is None:
            copying = before is not None and adapter.is_copying(before)
            copy = "dropped" if copying else "none"
        else:
            position = adapter.moved(position, before=before)
            copy = "anew" if adapter.is_copying(position) else "none"
    # What is staged would become visible with the next commit.
    await log.abandon(source)
    if state is None:
        await log.set_position(source, position)
        return Move(source=source, before=None, after=position, gap=False, copy=copy)
    stays = state.position if position is None else position
    event = _gap(state, position, now_ms=now_ms)
    await log.append([Commit(source=source, position=stays, events=(event,))])
    GAPS_DETECTED.labels(source).inc()
    if position is None:
        await log.set_position(source, None)
    return Move(source=source, before=before, after=position, gap=True, copy=copy)


def in_another_log(
    states: Iterable[SourceState], adapters: Iterable[ChangeSource]
) -> tuple[SourceState, ...]:
    """Where sources go on in a log that has nothing of what they said before."""
    moves = {adapter.name: adapter for adapter in adapters if isinstance(adapter, Moves)}

    def there(state: SourceState) -> SourceState:
        adapter = moves.get(state.source)
        if adapter is None or not adapter.is_copying(state.position):
            return state
        return structs.replace(state, position=adapter.moved(state.position, before=None))

    return tuple(map(there, states))


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
