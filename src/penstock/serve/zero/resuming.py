"""Where a client goes on that has a replica, or why it cannot and must begin anew.

A reset costs the client all of its rows, so it is asked for when, and only when, what it has and
what the log holds cannot be joined.
"""

from typing import NamedTuple

from penstock.errors import AheadError, TrimmedError
from penstock.ports import Bounds, LogReader
from penstock.serve.zero.record import Mark, ShardRecord
from penstock.serve.zero.request import ZeroRequest
from penstock.serve.zero.watermarks import Watermark, read_watermark
from penstock.subscribe.commits import end_of


class Resumed(NamedTuple):
    """A place to go on from."""

    mark: Mark
    changed: int
    """A commit up to it, behind which no other had a change for the shard."""


class ResetNeededError(Exception):
    """The client must begin anew; the text says why, and is told."""


async def place_of(
    log: LogReader, record: ShardRecord | None, request: ZeroRequest, fingerprint: str
) -> Resumed:
    """After which entry to go on. Raises ResetNeededError."""
    given = request.last or Watermark(0, None)
    last = given.commit
    if record is None:
        raise ResetNeededError(
            "this endpoint has no record of this shard: its replica is of another endpoint, or of "
            "one that was set up anew"
        )
    if request.replica and not _began_with(request.replica, record.snapshot):
        raise ResetNeededError("the replica began with another snapshot than the shard's last one")
    if last < record.snapshot.commit:
        raise ResetNeededError("the watermark is older than the snapshot of the shard")
    if record.fingerprint != fingerprint:
        raise ResetNeededError(
            "its tables are configured otherwise now, or what its token may see has changed"
        )
    bounds = await log.bounds()
    agreed = _agreed(record, bounds)
    check = await log.check_at(record.floor.sequence)
    if check is not None and check != record.floor.check:
        raise ResetNeededError("the log holds other changes than those that were acknowledged")
    try:
        found = await _found(log, record, given, bounds)
    except TrimmedError:
        raise ResetNeededError(
            "retention removed changes that follow the watermark: the shard stayed away for longer "
            "than [serve.zero] hold, or further behind than hold_bytes"
        ) from None
    except AheadError:
        raise ResetNeededError(
            "the watermark is ahead of the log, which was restored from an older copy"
        ) from None
    if agreed is not None and found.mark.sequence > agreed:
        raise ResetNeededError("the log was restored from a copy that ended before the watermark")
    if found.mark.commit < record.versions[0].commit:
        # Rows told by later tables would have columns that its replica lacks (Z7).
        raise ResetNeededError(
            "the watermark is older than what was acknowledged, and its tables were others there"
        )
    return found


def _agreed(record: ShardRecord, bounds: Bounds) -> int | None:
    """Up to which sequence this log is the one that the shard was told of; None: all of it."""
    if record.log_id == bounds.log_id:
        return None
    for ancestor in bounds.ancestors:
        if ancestor.log_id == record.log_id:
            return ancestor.head
    raise ResetNeededError("the replica is of another log")


def _began_with(replica: str, snapshot: Mark) -> bool:
    try:
        began = read_watermark(replica)
    except ValueError:
        return False  # of another endpoint: one of two parts
    return began.commit == snapshot.commit and began.check in {None, snapshot.check}


async def _found(log: LogReader, record: ShardRecord, given: Watermark, bounds: Bounds) -> Resumed:
    last, floor = given.commit, record.floor
    if record.changed <= last <= floor.commit and bounds.trimmed <= floor.sequence <= bounds.head:
        # Between the two nothing concerned it, whether or not the log still holds it (Z4).
        return Resumed(floor, record.changed)
    end = await end_of(log, last)
    if given.check is not None and given.check != end.check:
        raise ResetNeededError(
            "what the log tells up to the watermark is not what the replica was told: the log was "
            "put back from an older copy, and went on differently"
        )
    return Resumed(Mark(last, end.sequence, end.check), last)
