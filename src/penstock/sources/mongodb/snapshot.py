"""Copying what is there already, chunk by chunk, between looks at the stream.

Why the copy and the stream end right together. The log gets, in this order: stream events up to a
position p; a chunk of rows; stream events after p; the next chunk; and so on. Each chunk is read at
or after the time of p (readConcern majority, afterClusterTime). Take any key, and the last thing
that happens to it:

- It has an event after p, p being the position before the chunk with its row. That event comes
  later in the log than the row. The last one is a delete, or holds the document as of the event or
  later; nothing later happened; so the fold ends with the document's value or its absence.
- It has no event after p. Then its row, read at or after p, is its last value; and if there is no
  row, it was gone by p, and the stream said so if it ever said that it was there.

In between, a fold may show a value older than the row for a moment, never at the end. Because
stream and copy alternate, the position never falls behind by more than one chunk, however long
the copy takes.

A collection that is created meanwhile is wholly in the stream, but for a capped one. The server
fills it with writes that it hides from streams (marked fromMigrate) for convertToCapped, which
makes another one and renames it, and for cloneCollectionAsCapped. The latter keeps a lock on the
database meanwhile, so the first chunk of a capped collection is read once dataSize, which wants
the lock too, has got an answer from the primary. Source: mongo/src/mongo/db/catalog/
capped_utils.cpp; seen on 6.0.5 and 6.0.27.

A collection that is renamed takes documents along that were not copied, so the new name is copied
too; and no chunk is read, nor the snapshot completed, before the stream was read past the last
chunk's time, so that no rename is missed. Past means: up to a later time, or, in a reply that was
asked for after the chunk was read, up to that very time. A stream that was opened "now" stands at
the time that the next write will get, and such a position sorts before that write: in a reply that
was under way already, it says nothing.
"""

import re
import struct
from typing import Any

from bson import Int64, MaxKey, MinKey, Timestamp
from bson.raw_bson import RawBSONDocument
from msgspec import Struct
from pymongo.errors import ExecutionTimeout, OperationFailure

from penstock import checks
from penstock.event import ClusterTime
from penstock.sources.mongodb.config import MongoSourceConfig
from penstock.sources.mongodb.cursor import RAW
from penstock.sources.mongodb.deployment import Client
from penstock.sources.mongodb.faithful import InexactError
from penstock.sources.mongodb.namespaces import SYSTEM_DATABASES, Namespaces

_LOCK_MS = 1000
"""How long a look at a lock may keep everything else waiting."""
_CONVERTED = re.compile(r"tmp\w{5}\.convertToCapped\.")


def is_converted(collection: str) -> bool:
    """Whether this is the temporary collection of convertToCapped."""
    return _CONVERTED.match(collection) is not None


class Chunk(Struct, frozen=True):
    """Documents of a collection that follow each other in the order of `_id`."""

    documents: list[bytes]
    """As BSON."""
    after: bytes | None
    """The last key, as BSON `{_id: ...}`; what to pass for the next chunk."""
    last: bool
    """Whether the collection ended here."""
    at: ClusterTime
    """A time of the server at or after the read."""
    put_off: str = ""
    """Why nothing of the collection can be read for now, and what to do."""


async def collections(
    client: Client, config: MongoSourceConfig, *, whole: bool = False
) -> tuple[tuple[str, str], ...]:
    """The (database, collection)s to copy, in order. Views and time series have no stream.

    `whole`: raises OperationFailure where we may not look, instead of passing over it.
    """
    if config.database is not None:
        databases = [config.database]
    else:
        reply = await client.admin.command(
            {"listDatabases": 1, "nameOnly": True, "authorizedDatabases": not whole}
        )
        databases = [entry["name"] for entry in reply["databases"]]
    namespaces = config.namespaces
    found: list[tuple[str, str]] = []
    for database in sorted(set(databases) - SYSTEM_DATABASES):
        names = await client[database].list_collection_names(filter={"type": "collection"})
        found += [(database, name) for name in sorted(names) if (database, name) in namespaces]
    return tuple(found)


async def unmatched(client: Client, config: MongoSourceConfig) -> list[str]:
    """As `NamesThings.unmatched`."""
    reply = await client.admin.command({"listDatabases": 1, "nameOnly": True})
    databases = sorted({entry["name"] for entry in reply["databases"]} - SYSTEM_DATABASES)
    if config.database is not None and config.database not in databases:
        return checks.unmatched([("database", config.database)], databases, lambda _: False)
    settings = [("include", one) for one in config.include]
    settings += [("exclude", one) for one in config.exclude]
    if not settings:
        return []
    there = [
        (database, name)
        for database in ([config.database] if config.database is not None else databases)
        for name in await client[database].list_collection_names(filter={"type": "collection"})
    ]

    def matches(pattern: str) -> bool:
        one = Namespaces(database=config.database, include=(pattern,), exclude=())
        return any(namespace in one for namespace in there)

    names = {name for _, name in there} | {".".join(namespace) for namespace in there}
    names |= {f"{database}.*" for database, _ in there}
    return checks.unmatched(settings, names, matches)


async def read_chunk(
    client: Client,
    namespace: tuple[str, str],
    *,
    after: bytes | None,
    limit: int,
    not_before: ClusterTime | None = None,
    start: bytes | None = None,
    stop: bytes | None = None,
) -> Chunk:
    """Read up to `limit` documents whose `_id` follows `after`, committed by a majority.

    Or those from `start` on, where there is no `after`; and only those before `stop`. The state
    read is that of `not_before` or later; or nothing is read, and `put_off` says why. A reply holds
    16 MiB, so there may be fewer than `limit`; only `last` says that there are no more. What has
    the collection's name now and is none, a view or a time series, has no stream, and so no
    documents either.
    """

    async def read(not_before: ClusterTime | None) -> Chunk:
        return await _read(
            *(client, namespace),
            after=after,
            limit=limit,
            not_before=not_before,
            start=start,
            stop=stop,
        )

    try:
        chunk = await read(not_before)
    except OperationFailure:
        # A view refuses `min`.
        found = await _found(client, namespace)
        if found.other:
            return Chunk([], after, True, found.at)
        raise
    # Ask after the read: it may have got the name just before that.
    found = await _found(client, namespace)
    if found.other:
        return Chunk([], after, True, found.at)
    if not found.capped or after is not None:
        return chunk
    filled_at = await _filled_at(client, namespace)
    if filled_at is None:
        return Chunk([], after, False, found.at)
    if isinstance(filled_at, str):
        return Chunk([], after, False, found.at, put_off=filled_at)
    return await read(max(filled_at, not_before or filled_at))


class _Found(Struct, frozen=True):
    """What has a name."""

    at: ClusterTime
    """A time of the server when it had."""
    other: bool
    """It is no collection. False where nothing has the name: a drop is told by the stream."""
    capped: bool


async def _found(client: Client, namespace: tuple[str, str]) -> _Found:
    database, collection = namespace
    reply = await client[database].command({"listCollections": 1, "filter": {"name": collection}})
    time, there = reply["operationTime"], reply["cursor"]["firstBatch"]
    return _Found(
        at=ClusterTime(time.time, time.inc),
        other=any(one["type"] != "collection" for one in there),
        capped=any(one["options"].get("capped", False) for one in there),
    )


async def _filled_at(client: Client, namespace: tuple[str, str]) -> ClusterTime | str | None:
    """A time at which no command is filling the collection without events; None if one may be.

    Only the primary of a set knows, which the driver sends commands to unless the connection is a
    direct one. Where a secondary answers: that, as `Chunk.put_off`.
    """
    database, collection = namespace
    where = client[database]
    command = {"dataSize": f"{database}.{collection}", "estimate": True, "maxTimeMS": _LOCK_MS}
    try:
        reply = await where.command(command)
    except ExecutionTimeout:
        return None
    if not (await where.command("hello")).get("isWritablePrimary", False):
        return (
            f"{database}.{collection} is capped, and a secondary answers, which cannot say whether "
            f"cloneCollectionAsCapped still fills it. Nothing was skipped; its copy waits for the "
            f"primary. Leave directConnection out of `uri`, or name the primary there."
        )
    time = reply["operationTime"]
    return ClusterTime(time.time, time.inc)


async def _read(
    client: Client,
    namespace: tuple[str, str],
    *,
    after: bytes | None,
    limit: int,
    not_before: ClusterTime | None,
    start: bytes | None,
    stop: bytes | None,
) -> Chunk:
    database, collection = namespace
    concern: dict[str, Any] = {"level": "majority"}
    if not_before is not None:
        # A stream that was opened "now" stands at the time that the next write will get, and the
        # server refuses to wait for what has no time yet. Nothing is before it that is not here.
        now = (await client.admin.command("ping"))["$clusterTime"]["clusterTime"]
        concern["afterClusterTime"] = min(Timestamp(not_before.t, not_before.i), now)
    find: dict[str, Any] = {
        "find": collection,
        "sort": {"_id": 1},
        "hint": {"_id": 1},
        # One more, for `min` includes the key that it is given.
        "limit": limit + 1,
        "batchSize": limit + 1,
        "readConcern": concern,
    }
    first = after if after is not None else start
    if first is not None:
        # Not a comparison in the filter: that would never leave the type of the key (5 → "a").
        find["min"] = RawBSONDocument(first)
    if stop is not None:
        find["max"] = RawBSONDocument(stop)
        # In a clustered collection, `max` alone means without the least key.
        find.setdefault("min", {"_id": MinKey()})
    async with client.start_session(causal_consistency=False) as session:

        async def run(command: dict[str, Any]) -> Any:
            return await client[database].command(command, codec_options=RAW, session=session)

        reply = await run(find)
        cursor = reply["cursor"]
        seen = [document.raw for document in cursor["firstBatch"]]
        rows = [row for row in seen if after is None or key_of(row) != after]
        while not rows and cursor["id"]:
            reply = await run({"getMore": Int64(cursor["id"]), "collection": collection})
            cursor = reply["cursor"]
            rows = [document.raw for document in cursor["nextBatch"]]
            seen += rows
        if cursor["id"]:
            await run({"killCursors": collection, "cursors": [Int64(cursor["id"])]})
        time = reply["operationTime"]
        last = not cursor["id"] and len(seen) <= limit
        if last and first is not None and stop is None:
            # But in a clustered collection, `min` alone means up to, and without, the greatest key.
            greatest = await run(
                {"find": collection, "filter": {"_id": MaxKey()}, "readConcern": concern}
            )
            known = {after, *(key_of(row) for row in rows[-1:])}
            found = [document.raw for document in greatest["cursor"]["firstBatch"]]
            rows += [row for row in found if key_of(row) not in known]
            last = len(rows) <= limit
    rows = rows[:limit]
    return Chunk(rows, key_of(rows[-1]) if rows else after, last, ClusterTime(time.time, time.inc))


def key_of(raw: bytes) -> bytes:
    """BSON `{_id: ...}` of a document, the value's bytes as they are.

    The server puts `_id` first in what it stores. Source: MongoDB manual, Documents, "The _id
    Field"; lengths by the BSON specification, version 1.1.
    """
    kind, name = raw[4], raw[5:9]
    if name != b"_id\0":
        raise InexactError("a stored document that does not begin with its _id")
    start = 9
    if kind in _FIXED_LENGTHS:
        length = _FIXED_LENGTHS[kind]
    else:
        (counted,) = struct.unpack_from("<i", raw, start)
        length = counted + _COUNTED_EXTRA[kind]
    element = raw[4 : start + length]
    return struct.pack("<i", len(element) + 5) + element + b"\0"


_FIXED_LENGTHS: dict[int, int] = {
    **dict.fromkeys((0x06, 0x0A, 0x7F, 0xFF), 0),
    **dict.fromkeys((0x01, 0x09, 0x11, 0x12), 8),
    0x07: 12,
    0x08: 1,
    0x10: 4,
    0x13: 16,
}
_COUNTED_EXTRA = {0x02: 4, 0x0D: 4, 0x0E: 4, 0x03: 0, 0x0F: 0, 0x05: 5, 0x0C: 16}
"""What a value that begins with a length has beside what that length counts."""
