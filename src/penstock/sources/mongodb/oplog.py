"""What the server's oplog still holds, seen from a position: how long until it is lost, and what
can be captured again."""

from typing import Any

from bson import Timestamp
from pymongo import ReadPreference
from pymongo.errors import OperationFailure

from penstock.errors import ConfigError, RequestError, SourceUnavailableError
from penstock.event import ClusterTime
from penstock.mongo_causes import UNAUTHORIZED
from penstock.sources.mongodb.deployment import Client
from penstock.sources.mongodb.positions import (
    MongoPosition,
    OplogEntry,
    Token,
    parse_position,
)

_UNKNOWN = frozenset({UNAUTHORIZED, 136, 8000})
"""We may not look, also in Atlas' own words (AtlasError); or CappedPositionLost: what was looked at
is gone."""


async def seconds_to_loss(client: Client, position: str) -> float | None:
    """How many seconds of changes lie between the oldest one in the oplog and `position`.

    0 when the oplog begins after it, so that changes may be lost; None while nothing was ever
    discarded, so that its age says nothing. Raises what the driver raises: without the right to
    read `local.oplog.rs` it is not known.
    """
    oldest = await client["local"]["oplog.rs"].find_one(
        {}, {"ts": 1, "o.msg": 1}, sort=[("$natural", 1)]
    )
    # The entry with which every replica set begins: mongo/src/mongo/db/repl/repl_set_config.
    if oldest is None or oldest.get("o", {}).get("msg") == "initiating set":
        return None
    return max(0.0, float(parse_position(position).token.time.t - time_of(oldest).t))


async def committed_entry(client: Client) -> OplogEntry | None:
    """The newest entry of the oplog that a majority has, and so no election takes back; None where
    the server says of none."""
    hello = await client.admin.command("hello")
    found = hello.get("lastWrite", {}).get("majorityOpTime")
    return None if found is None else (found["ts"].time, found["ts"].inc, int(found["t"]))


async def is_of_another_history(source: str, client: Client, known: MongoPosition) -> bool:
    """Whether the primary's oplog lacks an entry that was there when `known` was written: the one
    that is kept with it, or that of its event (record 0039).

    The server looks for an event itself, but only once another event comes: until then it answers
    with moments of its own history. A moment between two events is any time to it: also to one
    whose disk is older than the moment, and that has written other things since. False where we may
    not look, and where the oplog begins after those entries: then the stream tells what is lost.

    Raises SourceUnavailableError where the entry is missing and no later one has a majority: so it
    is of a primary that was cut off from its set, until that one finds out.
    """
    # A set's first entry has no term, of which `hello` says -1: mongo/src/mongo/db/repl/optime.h.
    kept = [] if known.entry is None else [(Timestamp(*known.entry[:2]), known.entry[2])]
    time = known.token.time
    of_event = [(Timestamp(time.t, time.i), None)] if known.token.is_of_event else []
    oplog = client["local"].get_collection("oplog.rs", read_preference=ReadPreference.PRIMARY)
    try:
        for at, term in (*kept, *of_event):
            # From a time on, the server finds an entry without a look at those before.
            found = await oplog.find_one(
                {"ts": {"$gte": at}}, {"ts": 1, "t": 1}, sort=[("$natural", 1)]
            )
            # Behind it: what is removed in between is not taken for missing.
            oldest = await oplog.find_one({}, {"ts": 1}, sort=[("$natural", 1)])
            if oldest is None or oldest["ts"] > at:
                continue
            if found is None or found["ts"] != at or term not in {None, found.get("t", -1)}:
                committed = await committed_entry(client)
                if committed is not None and Timestamp(*committed[:2]) > at:
                    return True
                raise SourceUnavailableError(
                    f"{source}: the primary lacks an entry that was captured, and has none of a "
                    f"majority behind it: it may be cut off from its set. Nothing was skipped; "
                    f"capture asks again."
                )
    except OperationFailure as error:
        if error.code not in _UNKNOWN:
            raise
    return False


def time_of(entry: dict[str, Any]) -> ClusterTime:
    """The cluster time of an entry of the oplog."""
    return ClusterTime(entry["ts"].time, entry["ts"].inc)


def place_before(
    source: str, known: MongoPosition, *, to: str | None, by_seconds: float | None
) -> Timestamp:
    """The cluster time from which a source is captured again when it is rewound.

    What happened at that time comes again: a time belongs to one write or transaction, so none is
    cut. `to` is an earlier position of the source, or of one of its events. Raises RequestError for
    what is neither, is not earlier, or while a snapshot is being copied.
    """
    if known.copying is not None:
        raise RequestError(
            f"{source}: a snapshot is being copied, and a position before it would copy it anew. "
            f"Nothing was changed. Resume the source, and rewind it when the snapshot is complete."
        )
    now = known.token.time
    if to is None:
        place = ClusterTime(max(1, now.t - int(by_seconds or 0)), 0)
    else:
        try:
            place = parse_position(to).token.time if to.startswith("{") else Token(to).time
        except (ValueError, ConfigError):
            raise RequestError(
                f"{source}: {to[:40]!r} is no position of a MongoDB source. Nothing was changed. "
                f"Take one from `penstock status --json`, or an event's `position`."
            ) from None
    if place > now:
        raise RequestError(
            f"{source}: that position is ahead of where the source stands. Nothing was changed: "
            f"going there would skip changes."
        )
    return Timestamp(place.t, place.i)
