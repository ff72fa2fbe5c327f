"""A collection in ranges of its keys, for others to read at once: what `ReadsRanges` promises.

Where the ranges end a sample of the keys says, in the order of the server's own index, so that no
order of BSON is made here. A range is read by the chunks of a snapshot, each as of the time of a
position of the log or later, and its rows are told as a snapshot's are: the same values as the
stream's (invariant 9).
"""

import itertools
from collections.abc import Sequence
from typing import Any, Final

import bson
from bson import MaxKey
from bson.raw_bson import RawBSONDocument

from penstock.errors import ConfigError, SourceUnavailableError, UndecodableError
from penstock.event import ChangeEvent, ClusterTime
from penstock.ports import InexactRow, KeyRange, Listing, RangeRows
from penstock.sources.mongodb.config import MongoSourceConfig
from penstock.sources.mongodb.cursor import RAW
from penstock.sources.mongodb.deployment import Client
from penstock.sources.mongodb.documents import BsonEncoder, decode
from penstock.sources.mongodb.normalise import Normaliser
from penstock.sources.mongodb.positions import MongoPosition
from penstock.sources.mongodb.snapshot import Chunk, collections, key_of, read_chunk

_WHOLE: Final = frozenset({"updateLookup", "required"})
"""With these settings a change says all of its document, or that it is gone."""
_RANGE_BYTES: Final = 32 << 20
"""A range is about so large, or less."""
_RANGES_MAX: Final = 10_000
_GREATEST: Final = bson.encode({"_id": MaxKey()})
_KEYS_PER_RANGE: Final = 10
"""Of the sample: the more, the more alike the ranges are."""


def require_whole_documents(source: str, config: MongoSourceConfig) -> None:
    """Refuse a source whose updates may say less than the document: rows that are read beside the
    stream are only right if each change of a row says all of it, or that it is gone (P25).

    Raises ConfigError.
    """
    if config.full_document not in _WHOLE:
        raise ConfigError(
            f"{source}: its updates do not always say the whole document (full_document = "
            f"{config.full_document!r}), so rows cannot be read beside the stream. Nothing was "
            f"read. Set full_document = 'updateLookup' or 'required', or have the service copy "
            f"the rows through the log: penstock snapshot {source}."
        )


def require_agreement(source: str, config: MongoSourceConfig, known: MongoPosition) -> None:
    """Refuse to read what the log is not captured from, or not with whole documents: what counts
    is what the service captures with, as its position says. Raises ConfigError."""
    require_whole_documents(source, config)
    if known.full_document is not None and known.full_document not in _WHOLE:
        raise ConfigError(
            f"{source}: the service captures updates that do not always say the whole document "
            f"(full_document = {known.full_document!r}; this configuration says "
            f"{config.full_document!r}), so rows cannot be read beside the stream. Nothing was "
            f"read. Start the service with full_document = 'updateLookup' or 'required' first."
        )
    if known.scope is not None and known.scope != config.scope:
        raise ConfigError(
            f"{source}: the service captures other collections than this configuration says, so "
            f"rows might be read whose changes nobody tells. Nothing was read. Use the service's "
            f"configuration, and let it start with it first."
        )


async def split(
    client: Client, config: MongoSourceConfig, database: str, collection: str, *, rows: int
) -> Listing:
    """Ranges of about `rows` documents, or fewer large ones, of what is captured and so named."""
    found: list[KeyRange] = []
    for namespace in await collections(client, config):
        if database in {"", namespace[0]} and collection in {"", namespace[1]}:
            edges = [None, *await _edges(client, namespace, rows=rows), None]
            found += [
                KeyRange(database=namespace[0], collection=namespace[1], start=start, stop=stop)
                for start, stop in itertools.pairwise(edges)
            ]
    # Asked for now: no collection that was there before has a name that is told later.
    at = (await client.admin.command("ping"))["$clusterTime"]["clusterTime"]
    return Listing(ranges=tuple(found), read_at=f"{at.time}.{at.inc}")


async def _edges(client: Client, namespace: tuple[str, str], *, rows: int) -> list[bytes]:
    database, name = namespace
    cursor = await client[database].list_collections(filter={"name": name})
    about = await cursor.to_list()
    if any("collation" in one.get("options", {}) for one in about):
        return []  # its keys have another order, and a sample need not come in it
    statistics: list[dict[str, Any]] = [
        {"$collStats": {"storageStats": {}}},
        {"$project": {"storageStats.count": 1, "storageStats.size": 1}},
    ]
    cells = await (await client[database][name].aggregate(statistics)).to_list()
    count = sum(int(cell["storageStats"].get("count", 0)) for cell in cells)
    size = sum(int(cell["storageStats"].get("size", 0)) for cell in cells)
    ranges = min(max(-(-count // rows), -(-size // _RANGE_BYTES)), count, _RANGES_MAX)
    if ranges < 2:
        return []
    sample: list[dict[str, Any]] = [
        {"$sample": {"size": ranges * _KEYS_PER_RANGE}},
        {"$project": {"_id": 1}},
        {"$sort": {"_id": 1}},
    ]
    raw: Any = client[database].get_collection(name, codec_options=RAW)
    documents: list[RawBSONDocument] = await (await raw.aggregate(sample)).to_list()
    keys = [key_of(bytes(document.raw)) for document in documents]
    return edges_of(keys, ranges=ranges)


def edges_of(keys: Sequence[bytes], *, ranges: int) -> list[bytes]:
    """Where `ranges` ranges meet, by a sample of the keys in their order. Pure.

    A sample may hold a key more than once, and then there are fewer ranges. The greatest key that
    there can be is none of them: the server does not take it for the least of a range.
    """
    unique = [key for key in dict.fromkeys(keys) if key != _GREATEST]
    places = {len(unique) * number // ranges for number in range(1, ranges)}
    return [unique[place] for place in sorted(places - {0})]


async def read(
    client: Client,
    source: str,
    config: MongoSourceConfig,
    part: KeyRange,
    *,
    not_before: ClusterTime,
    snapshot: str,
) -> RangeRows:
    """The next documents of a range, told as rows of the snapshot of that name."""
    namespace = (part.database, part.collection)
    chunk = await read_chunk(
        client,
        namespace,
        after=part.after,
        limit=config.snapshot_chunk_documents,
        not_before=not_before,
        start=part.start,
        stop=part.stop,
    )
    if chunk.put_off:
        raise SourceUnavailableError(f"{source}: {chunk.put_off}")
    normaliser = Normaliser(
        source,
        database=config.database,
        tenant=config.tenant,
        post_images=config.full_document == "required",
        flat=config.flatten == "dot",
    )
    rest = KeyRange(
        database=part.database,
        collection=part.collection,
        start=part.start if chunk.after is None else None,
        stop=part.stop,
        after=chunk.after,
    )
    events, inexact = told(
        *(normaliser, source, chunk),
        namespace=namespace,
        snapshot=snapshot,
        halts=config.on_undecodable == "halt",
    )
    return RangeRows(
        events=events,
        inexact=inexact,
        rest=None if chunk.last else rest,
        read_at=f"{chunk.at.t}.{chunk.at.i}",
    )


def told(
    normaliser: Normaliser,
    source: str,
    chunk: Chunk,
    *,
    namespace: tuple[str, str],
    snapshot: str,
    halts: bool,
) -> tuple[tuple[ChangeEvent, ...], tuple[InexactRow, ...]]:
    """The documents as rows of the snapshot, and those that have no exact form. Pure.

    Raises UndecodableError for one of these if it `halts`.
    """
    events: list[ChangeEvent] = []
    inexact: list[InexactRow] = []
    for raw in chunk.documents:
        try:
            events.append(normaliser.copied(raw, namespace=namespace, copy=snapshot, at=chunk.at))
        except UndecodableError as error:
            if not halts:
                row = InexactRow(
                    source=source,
                    database=namespace[0],
                    collection=namespace[1],
                    key=_key_text(bytes(raw)),
                    reason=error.what,
                )
                inexact.append(row)
                continue
            raise UndecodableError(
                source=source,
                what=f"{error.what} (its key is {_key_text(bytes(raw))})",
                position=error.position,
                safe="It was read for a first load or a comparison, which goes no further; capture "
                "goes on, and what was loaded before is in the tables",
                remedy="Correct or delete the document at the source, and start again. Or, for a "
                "first load, set on_undecodable = 'dead_letter' for the source: then such a "
                "document is in the rejects with its key, and the load goes on. And please report "
                "it with the type named here.",
            ) from None
    return tuple(events), tuple(inexact)


def _key_text(raw: bytes) -> str:
    """A document's key as the log would have it; its bytes in hex where there is none."""
    key = key_of(raw)
    try:
        return bytes(BsonEncoder().encode(decode(key))).decode()
    except (TypeError, ValueError):
        return key.hex()


def has_told(position: MongoPosition, read_at: str) -> bool:
    """Whether a source that stands at `position` has told all that was committed up to a read.

    At the very time of the read it may be before an event of that time, or between two of them. An
    idle server moves its time on every ten seconds.
    """
    seconds, _, increment = read_at.partition(".")
    return position.token.time > ClusterTime(int(seconds), int(increment))
