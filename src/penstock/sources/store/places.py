"""Places in a store's history: an earlier one to go back to, and how near the next loss is."""

import time
from typing import Any

from penstock.errors import RequestError
from penstock.sources.store.positions import StorePosition, parse_position
from penstock.store import Store, StreamRecord, View


def place_before(
    source: str, db: Store, known: StorePosition, *, to: str | None, by_seconds: float | None
) -> dict[str, Any]:
    """What a position at an earlier place says of it: its sequence, and who wrote that.

    Exactly one of `to` (a position of the source, or of one of its events) and `by_seconds`, which
    counts back from the time of the store's newest record. At or before what was asked for, at the
    end of a commit. Raises RequestError.
    """
    with db.view() as view:
        if view.store_id != known.store or known.sequence > view.sequence:
            raise RequestError(
                f"{source}: the store is not the one that was captured. Nothing was changed."
            )
        if to is not None:
            sequence = _end_before(view, _sequence_of(source, to, known))
        else:
            sequence = _at(view, known, view.time_ms - round(1000 * (by_seconds or 0)))
        missing = view.missing(after=sequence, known=known.known, tables=known.scope.__contains__)
        if missing:
            tables = ", ".join(sorted({repr(one.table) for one in missing})[:10])
            raise RequestError(
                f"{source}: the streams do not reach back that far: retention removed changes of "
                f"{tables}. Nothing was changed."
            )
        return {"sequence": sequence, "life": view.life(sequence)}


def _sequence_of(source: str, to: str, known: StorePosition) -> int:
    """The last sequence before which everything is to come again."""
    if to.startswith("{"):
        place = parse_position(to)
        if place.store == known.store and place.sequence <= known.sequence:
            return place.sequence
    else:
        name, _, rest = to.partition(":")
        text = rest.partition(":")[0]
        if name.partition(".")[0] == known.store and text.isdecimal():
            # A place is behind a record; an event is to come again, so its place is before it.
            sequence = int(text) - ("." in name)
            if 0 <= sequence <= known.sequence:
                return sequence
    raise RequestError(
        f"{source}: {to[:40]!r} is no place before {known.place} in its store. Nothing was changed."
    )


def _end_before(view: View, sequence: int) -> int:
    """The last sequence up to `sequence` with which a commit ends."""
    page = view.changes(after=sequence, known=_gone(view, sequence), records_max=1)
    if not page.parts:
        return sequence
    first = page.parts[0].records[0]
    ordinal = first.change.ordinal if isinstance(first.change, StreamRecord) else 0
    return min(sequence, first.sequence - ordinal - 1)


def _at(view: View, known: StorePosition, time_ms: int) -> int:
    """The end of the last commit before which everything is older than `time_ms`."""
    after, done, gone = 0, False, _gone(view, 0)
    while not done:
        page = view.changes(after=after, known=gone, tables=known.scope.__contains__)
        for part in page.parts:
            first = part.records[0]
            record = first.change
            when = record.timestamp if isinstance(record, StreamRecord) else record.time_ms
            if when >= time_ms:
                return min(_end_before(view, first.sequence - 1), known.sequence)
        after, done = page.sequence, page.at_end
    return known.sequence


def _gone(view: View, sequence: int) -> dict[int, int]:
    """All that is missing behind `sequence`, as known."""
    return {one.stream: one.until for one in view.missing(after=sequence)}


def seconds_to_loss(db: Store, known: StorePosition) -> float | None:
    """How far the position is, at the least, from a stream's oldest record, in seconds; see
    `Retains`. None while no stream that is captured has lost anything."""
    found = list[float]()
    with db.view() as view:
        for stream in view.streams():
            if stream.table not in known.scope or not stream.trimmed or stream.retention.manual:
                continue
            if stream.trimmed > known.sequence:
                if known.known.get(stream.id, 0) < stream.trimmed:
                    return 0.0
                continue
            oldest = view.time_of(stream=stream.id, after=stream.trimmed)
            unread = view.time_of(stream=stream.id, after=known.sequence)
            if oldest is not None:
                until_ms = time.time_ns() // 1_000_000 if unread is None else unread
                found.append(max(0.0, (until_ms - oldest) / 1000))
    return min(found, default=None)
