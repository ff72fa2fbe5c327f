"""The place that a moment means: `asOf` of a document. Pure but for the log."""

from datetime import UTC, datetime, timedelta
from typing import Final

import numpy as np
from msgspec import Struct

from penstock.errors import AheadError, HistoryUnknownError, RequestError, TrimmedError
from penstock.ports import LogReader
from penstock.progress import Progress
from penstock.subscribe.captures.requests import Since
from penstock.subscribe.captures.since import resolve
from penstock.subscribe.resume import oldest, start

_READ_BYTES: Final = 1 << 20
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class AsOf(Struct, frozen=True, kw_only=True):
    """A place of the log, and what it is of a moment."""

    place: Progress
    settled: bool = True
    """False of a time that the source has not come to: changes of it may still come."""


async def as_of(
    log: LogReader, given: str | None, *, source: str, now_ms: int, bytes_max: int
) -> AsOf:
    """The place of a marker, behind a version, or behind all that a source had committed at a time
    of its own clock (ISO 8601 with its zone); None is the newest.

    Raises AheadError for what has not come, TrimmedError for what retention removed,
    HistoryUnknownError for a time that is not found within `bytes_max` or what a `Rationed` log
    allows, RequestError for anything else.
    """
    if given is None:
        return AsOf(place=await start(log, ""))
    if given.isascii() and given.isdecimal() and len(given) < 19:
        begins = await resolve(log, Since(version=int(given) + 1))
        if begins.waiting:
            raise _ahead(f"version {given}")
        return AsOf(place=begins.after)
    timestamp = _timestamp(given)
    if timestamp is None:
        return AsOf(place=await start(log, given))
    if timestamp > now_ms:
        raise _ahead("that time")
    return await _at_time(log, timestamp, source=source, bytes_max=bytes_max)


def _timestamp(given: str) -> int | None:
    try:
        moment = datetime.fromisoformat(given)
    except ValueError:
        return None
    if moment.tzinfo is None:
        raise RequestError(
            "asOf is a time without its zone. Nothing was sent. Write 2026-01-31T12:00:00Z, a "
            "version, or a marker."
        )
    return (moment - _EPOCH) // timedelta(milliseconds=1)


async def _at_time(log: LogReader, timestamp: int, *, source: str, bytes_max: int) -> AsOf:
    """Before the source's first transaction that is younger. Others may be out of order with it."""
    begins = await resolve(log, Since(timestamp=timestamp + 1))
    place, read = begins.after, 0
    head = (await log.bounds()).head
    while place.sequence < head:
        if read > bytes_max:
            raise HistoryUnknownError(
                why=f"the source has no change at that time among {bytes_max} bytes of the log "
                f"(scan_bytes_max under [serve.captures])"
            )
        blocks = await log.read(after=place.sequence, until=head, bytes_max=_READ_BYTES)
        for block in blocks:
            read += block.nbytes
            part = slice(block.start, block.stop)
            ours = [number for number, one in enumerate(block.streams) if one.source == source]
            younger = np.isin(block.stream_numbers()[part], ours)
            younger &= block.kinds()[part] == 0
            younger &= block.index["timestamp"][part] > timestamp
            found = np.flatnonzero(younger)
            if len(found):
                i = block.start + int(found[0])
                sequence = block.first_sequence + i - block.ordinal(i) - 1
                check = await log.check_at(sequence)
                bounds = await log.bounds()
                if check is None or sequence < bounds.trimmed:
                    # Its transaction began with what is not kept any more.
                    raise TrimmedError(oldest=str(oldest(bounds)))
                return AsOf(place=Progress(bounds.log_id, sequence, check))
            place = block.place(block.stop - 1)
        if not blocks:
            break
    come = [one.last_timestamp for one in await log.sources() if one.source == source]
    return AsOf(place=place, settled=bool(come) and come[0] > timestamp)


def _ahead(what: str) -> AheadError:
    return AheadError.saying(
        f"{what} is ahead of all that was captured. Nothing was sent. Ask again later."
    )
