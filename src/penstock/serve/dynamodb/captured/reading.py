"""A page of a shard out of the log: bounded work, whatever else the log holds."""

from collections.abc import Iterator as Iterating
from typing import Final

import numpy as np
from msgspec import Struct

from penstock._generated.penstock.v1 import penstock_pb2 as pb
from penstock.errors import AheadError, TrimmedError
from penstock.event import Kind
from penstock.serve.dynamodb.captured.changes import Record, records_of, views_of
from penstock.serve.dynamodb.captured.facts import Shard, Stream
from penstock.serve.dynamodb.captured.index import CapturedLog, Shown
from penstock.serve.dynamodb.captured.names import (
    Name,
    place_of,
    read_before,
    table_name,
)
from penstock.serve.dynamodb.captured.values import key_of
from penstock.serve.dynamodb.errors import WireError, trimmed, unavailable, validation
from penstock.serve.dynamodb.iterators import Iterator
from penstock.serve.dynamodb.numbers import begins_with
from penstock.wire import Block

_BYTES_MAX: Final = 1 << 20
"""Of a page's records, by their SizeBytes; the first may be larger."""
_READ_BYTES: Final = 1 << 20
"""How much of the log is held at once."""


class Page(Struct):
    """Records of a shard, and where to go on."""

    records: list[Record]
    after: int
    """The place up to which everything was looked at."""
    since: int | None
    ended: bool = False
    bytes: int = 0
    full: bool = False


def has_lost(shard: Shard, *, after: int, trimmed: int) -> bool:
    """Whether retention may have removed records of the shard behind the sequence `after`. False
    for whoever stands at the end of a quiet shard, however much of the log is gone since."""
    return after < trimmed and shard.newest > after and shard.first <= trimmed


def read_page(
    log: CapturedLog,
    shown: Shown,
    stream: Stream,
    shard: Shard,
    iterator: Iterator,
    *,
    limit: int,
    scan_bytes: int,
) -> Page:
    """The page behind an iterator. Raises WireError: where what follows was trimmed, where the next
    change cannot be shown in the stream's view, and while the index does not go on."""
    gone = log.bounds_now().trimmed
    if iterator.after is None:
        after = max(shard.first - 1, gone)
        place = place_of(after)
    else:
        place, after = iterator.after, read_before(iterator.after)
        if has_lost(shard, after=after, trimmed=gone):
            raise trimmed()
        after = max(after, gone)
    until = shown.sequence if shard.last is None else shard.last
    if stream.stalled is not None and shard.number == stream.shards[-1].number:
        until = min(until, stream.stalled - 1)
        if after >= until:
            raise _unfit(stream, stream.stalled)
    page = Page(
        [], max(place, place_of(after)) if after > read_before(place) else place, iterator.since
    )
    if after < until:
        _fill(page, log, shown, stream, shard, after, until, limit=limit, scan_bytes=scan_bytes)
    if shard.last is not None and page.after >= place_of(shard.last):
        page.ended = True
    if shown.failure and not page.records and not page.ended and read_before(page.after) >= until:
        raise unavailable(f"The index of streams does not go on: {shown.failure}")
    return page


def key_types(log: CapturedLog, shown: Shown, stream: Stream) -> dict[str, str]:
    """The types of a stream's key attributes, as its newest record has them; none when the log has
    not that record any more."""
    newest = stream.newest
    if newest <= log.bounds_now().trimmed:
        return {}
    try:
        blocks = _blocks(log, shown, newest - 1, newest)
    except WireError:
        return {}  # it is trimmed by now
    return {
        name: kind
        for block in blocks
        for _, event in _changes(block, stream.name)
        for name, value in key_of(event.key).attributes.items()
        for kind in value
    }


def _fill(
    page: Page,
    log: CapturedLog,
    shown: Shown,
    stream: Stream,
    shard: Shard,
    after: int,
    until: int,
    *,
    limit: int,
    scan_bytes: int,
) -> None:
    last = min(until, shard.newest)
    place, scanned = page.after, 0
    while after < last and scanned < scan_bytes:
        for block in _blocks(log, shown, after, last):
            for i, event in _changes(block, stream.name):
                if not _take(page, stream, block, i, event, place, limit):
                    return
            after = block.last_sequence
            scanned += block.nbytes
        page.after = max(page.after, place_of(after))
    if after >= last:
        page.after = max(page.after, place_of(until))


def _take(
    page: Page, stream: Stream, block: Block, i: int, event: pb.Event, place: int, limit: int
) -> bool:
    """Add the records of a change, which is entry `i` of the block; False if the page ends in front
    of one of them."""
    sequence = block.first_sequence + i
    if stream.view not in views_of(event):
        if page.records:
            page.after = max(page.after, place_of(sequence - 1))
            return False
        raise _unfit(stream, sequence)
    check = block.history(i)
    for record in records_of(event, sequence=sequence, check=check, view=stream.view):
        if record.place <= place:
            continue
        if page.since is not None:
            if record.seconds < page.since:
                continue
            page.since = None
        if len(page.records) == limit or (page.records and page.bytes + record.size > _BYTES_MAX):
            page.after = page.records[-1].place
            return False
        page.records.append(record)
        page.bytes += record.size
    return True


def _blocks(log: CapturedLog, shown: Shown, after: int, until: int) -> list[Block]:
    try:
        blocks = log.read_now(after=after, until=until, bytes_max=_READ_BYTES)
    except TrimmedError:
        raise trimmed() from None
    except AheadError:
        blocks = []
    if not blocks or any(block.log_id != shown.log_id for block in blocks):
        raise unavailable("The log was replaced, and its streams are not known yet. Try again.")
    return blocks


def _changes(block: Block, name: Name) -> Iterating[tuple[int, pb.Event]]:
    """The changes of a collection in a block, with where they stand in it."""
    wanted = [
        number
        for number, one in enumerate(block.streams)
        if (one.source, one.database, one.collection) == name
    ]
    if not wanted:
        return
    of_it = np.isin(block.stream_numbers(), wanted) & (block.kinds() == Kind.DATA)
    for i in np.flatnonzero(of_it[block.start : block.stop]).tolist():
        at = block.start + int(i)
        yield at, pb.Event.FromString(block.stored(at))


def _unfit(stream: Stream, sequence: int) -> WireError:
    table = table_name(stream.name)
    return validation(
        f"The change of {table} at {begins_with(place_of(sequence))} has not the images that "
        f"{stream.view} needs, and none is made up. Nothing was skipped. Ask for a view that the "
        f"source gives ([serve.dynamodb] views) and restart: it is told under that view then, in "
        f"this stream or, where this one ends in front of it, in the next."
    )
