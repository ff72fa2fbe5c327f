"""Where a shard's newest record is, as a place that is the same after a restart.

Not the time: a record's is that of its source. What a source changed before LATEST was asked for,
and what was captured behind it, would be older than that and never be read.
"""

from typing import Final

from penstock.errors import TriggerError
from penstock.trigger.lineage import Place, Shard
from penstock.trigger.records import read_record
from penstock.trigger.streams import ExpiredError, Streams, TrimmedError

_LOOK_BACK_SECONDS: Final = (60, 600, 3600)
"""How far back records are looked for, before the whole shard is read: a busy one may be large."""


async def newest_place(streams: Streams, stream: str, shard: Shard) -> Place:
    """The place behind the newest record of a shard, or one in front of it; never behind a record
    that is written once this has returned.

    In front of it are at most records that came behind a page of GetRecords that was empty.
    """
    horizon = Place("TRIM_HORIZON")
    _, now_seconds = await streams.iterator(stream, shard.id, horizon)
    for ago in _LOOK_BACK_SECONDS:
        at = Place("AT_TIMESTAMP", f"{now_seconds - ago:.0f}")
        try:
            newest = await _last_number(streams, stream, shard, at, now_seconds)
        except TriggerError:
            break  # a service that does not know it: the whole shard tells the same
        if newest is not None:
            return Place("AFTER_SEQUENCE_NUMBER", newest)
    newest = await _last_number(streams, stream, shard, horizon, now_seconds)
    if newest is not None:
        return Place("AFTER_SEQUENCE_NUMBER", newest)
    if shard.first:
        begin = Place("AT_SEQUENCE_NUMBER", shard.first)
        try:
            await streams.iterator(stream, shard.id, begin)
        except TrimmedError:
            return horizon
        return begin
    return horizon


async def _last_number(
    streams: Streams, stream: str, shard: Shard, place: Place, until_seconds: float
) -> str | None:
    """The number of the last record from a place to the first page without any, or to one that
    ends with a record of that time."""
    last: str | None = None
    then: str | None
    then, _ = await streams.iterator(stream, shard.id, place)
    while then is not None:
        try:
            page = await streams.records(then)
        except (ExpiredError, TrimmedError):
            break
        if not page.records:
            break
        newest = read_record(page.records[-1], stream=stream)
        last, then = newest.number, page.then
        if newest.arrived_seconds >= until_seconds:
            break
    return last
