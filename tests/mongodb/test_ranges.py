"""A collection in ranges: every key once, whatever its type; and who cannot be read beside it."""

import asyncio
from typing import Any

import bson
import pytest
from bson.raw_bson import RawBSONDocument
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from penstock.errors import ConfigError, SourceChangedError, UndecodableError
from penstock.event import ChangeEvent, ClusterTime
from penstock.ports import KeyRange, ReadsRanges
from penstock.sources.mongodb import MongoSource
from penstock.sources.mongodb.cursor import RAW
from penstock.sources.mongodb.documents import OPTIONS
from penstock.sources.mongodb.normalise import Normaliser
from penstock.sources.mongodb.positions import MongoPosition, Scope, Server, Token, parse_position
from penstock.sources.mongodb.ranges import edges_of, has_told, told
from penstock.sources.mongodb.snapshot import Chunk
from tests.mongodb.support import config, reading, source
from tests.mongodb.test_snapshot import KEYS, Client
from tests_support.servers import MongoReplicaSet

TOKEN = Token("82" + "00000064" + "00000002" + "29296E04")


@given(st.lists(st.binary(min_size=1, max_size=3)), st.integers(1, 40))
def test_edges_are_keys_of_the_sample_in_its_order_each_once(
    sample: list[bytes], ranges: int
) -> None:
    sample.sort()
    edges = edges_of(sample, ranges=ranges)
    assert len(edges) < ranges or not edges
    assert sorted(set(edges)) == edges
    assert set(edges) <= set(sample)
    assert not edges or sample[0] != edges[0], "nothing is before the first key"
    greatest = bson.encode({"_id": bson.MaxKey()})
    assert edges_of([b"", greatest], ranges=2) == []


async def position_of(mongo: MongoReplicaSet, database: str, **options: Any) -> str:
    """Where a source of that database stands now."""
    async with reading(mongo.uri, database=database, **options) as read:
        await read.next()
        assert read.position is not None
        return read.position


async def read_all(opened: MongoSource, part: KeyRange, position: str) -> list[ChangeEvent]:
    rows: list[ChangeEvent] = []
    rest: KeyRange | None = part
    while rest is not None:
        read = await opened.read_range(rest, position=position)
        rows += read.events
        rest = read.rest
    return rows


@pytest.mark.parametrize(
    "options",
    [{}, {"collation": {"locale": "en", "strength": 2}}, {"clusteredIndex": True}],
    ids=["plain", "collation", "clustered"],
)
async def test_ranges_hold_every_key_once_whatever_its_type(
    mongo: MongoReplicaSet, mongo_client: Client, mongo_database: str, options: dict[str, Any]
) -> None:
    """Invariant 9: rows are told as a snapshot tells them, which is as the stream does."""
    if options.get("clusteredIndex"):
        options = {"clusteredIndex": {"key": {"_id": 1}, "unique": True}}
    rows = mongo_client[mongo_database].create_collection("keys", codec_options=OPTIONS, **options)
    rows.insert_many({"_id": key} for key in KEYS)
    position = await position_of(mongo, mongo_database)
    async with source(mongo.uri, database=mongo_database, snapshot_chunk_documents=2) as opened:
        assert isinstance(opened, ReadsRanges)
        ranges = (await opened.ranges("", "keys", rows=3, position=position)).ranges
        assert len(ranges) == 1 if "collation" in options else len(ranges) > 2
        told = [await read_all(opened, part, position) for part in ranges]
        chunk = await opened.read_chunk("keys", after_key=None, limit=1000)
    keys = [bytes(event.key) for part in told for event in part]
    assert len(set(keys)) == len(keys) == len(KEYS) == len(chunk.documents)


@pytest.mark.parametrize("edge", KEYS[:-2], ids=lambda key: type(key).__name__)
async def test_any_key_may_be_where_two_ranges_meet(
    mongo: MongoReplicaSet, mongo_client: Client, mongo_database: str, edge: Any
) -> None:
    created: dict[str, Any] = {"clusteredIndex": {"key": {"_id": 1}, "unique": True}}
    cases: dict[str, dict[str, Any]] = {"plain": {}, "clustered": created}
    for name, options in cases.items():
        rows = mongo_client[mongo_database].create_collection(
            name, codec_options=OPTIONS, **options
        )
        rows.insert_many({"_id": key} for key in KEYS)
    position = await position_of(mongo, mongo_database)
    at = bson.encode({"_id": edge}, codec_options=OPTIONS)
    async with source(mongo.uri, database=mongo_database, snapshot_chunk_documents=3) as opened:
        for name in ("plain", "clustered"):
            whole = KeyRange(database=mongo_database, collection=name)
            parts = [structs.replace(whole, stop=at), structs.replace(whole, start=at)]
            halves = [await read_all(opened, part, position) for part in parts]
            keys = [bytes(event.key) for half in halves for event in half]
            expected = [bytes(event.key) for event in await read_all(opened, whole, position)]
            assert keys == expected
            assert len(keys) == len(KEYS)


async def test_what_is_not_captured_has_no_ranges(
    mongo: MongoReplicaSet, mongo_client: Client, mongo_database: str
) -> None:
    for name in ("a", "b"):
        mongo_client[mongo_database][name].insert_one({"_id": 1})
    position = await position_of(mongo, mongo_database, exclude=("b",))
    async with source(mongo.uri, database=mongo_database, exclude=("b",)) as opened:

        async def named(database: str, collection: str) -> list[tuple[str, str]]:
            found = await opened.ranges(database, collection, rows=10, position=position)
            return [(one.database, one.collection) for one in found.ranges]

        assert await named("", "") == [(mongo_database, "a")]
        assert await named("", "b") == []
        assert await named("other", "a") == []


async def test_a_collection_that_is_gone_has_no_rows(
    mongo: MongoReplicaSet, mongo_client: Client, mongo_database: str
) -> None:
    mongo_client[mongo_database]["a"].insert_one({"_id": 1})
    position = await position_of(mongo, mongo_database)
    whole = KeyRange(database=mongo_database, collection="gone")
    parts = [
        whole,
        structs.replace(whole, start=bson.encode({"_id": 1})),
        structs.replace(whole, stop=bson.encode({"_id": 1})),
    ]
    async with source(mongo.uri, database=mongo_database) as opened:
        for part in parts:
            assert await read_all(opened, part, position) == []


async def test_a_view_under_the_name_of_a_collection_has_no_rows(
    mongo: MongoReplicaSet, mongo_client: Client, mongo_database: str
) -> None:
    """Nor does it stop who reads on behind a key."""
    mongo_client[mongo_database]["a"].insert_many({"_id": n} for n in range(4))
    position = await position_of(mongo, mongo_database)
    whole = KeyRange(database=mongo_database, collection="a")
    parts = [whole, structs.replace(whole, after=bson.encode({"_id": 1}))]
    async with source(mongo.uri, database=mongo_database) as opened:
        assert [len(await read_all(opened, part, position)) for part in parts] == [4, 2]
        mongo_client[mongo_database]["a"].rename("b")
        mongo_client[mongo_database].create_collection("a", viewOn="b", pipeline=[])
        assert [len(await read_all(opened, part, position)) for part in parts] == [0, 0]


@pytest.mark.parametrize("full_document", ["default", "whenAvailable"])
async def test_updates_that_do_not_say_the_document_are_refused(
    mongo: MongoReplicaSet, mongo_client: Client, mongo_database: str, full_document: str
) -> None:
    """Left to the stream, a row that such an update names would be missing for ever."""
    mongo_client[mongo_database]["a"].insert_one({"_id": 1})
    position = await position_of(mongo, mongo_database)
    async with source(mongo.uri, database=mongo_database, full_document=full_document) as opened:
        with pytest.raises(ConfigError, match="updateLookup"):
            await opened.ranges("", "a", rows=10, position=position)


async def test_another_server_or_scope_than_the_logs_is_refused(
    mongo: MongoReplicaSet, mongo_client: Client, mongo_database: str
) -> None:
    """S6: rows of one server beside the changes of another would be no state of either."""
    mongo_client[mongo_database]["a"].insert_one({"_id": 1})
    known = parse_position(await position_of(mongo, mongo_database))
    other = structs.replace(known, server=Server("other", "0"))
    wider = structs.replace(known, scope=Scope(None))
    async with source(mongo.uri, database=mongo_database) as opened:
        with pytest.raises(SourceChangedError):
            await opened.ranges("", "a", rows=10, position=other.text())
        part = KeyRange(database=mongo_database, collection="a")
        with pytest.raises(SourceChangedError):
            await opened.read_range(part, position=other.text())
        with pytest.raises(ConfigError, match="captures other collections"):
            await opened.ranges("", "a", rows=10, position=wider.text())


@pytest.mark.parametrize("captured", ["default", "whenAvailable"])
async def test_what_the_service_captures_with_counts_for_lists_and_for_reads(captured: str) -> None:
    """P25: the log's position says it, whatever the pipeline's own configuration does."""
    opened = MongoSource("shop", config("mongodb://h/?replicaSet=r"))
    known = MongoPosition(Server("r"), TOKEN, scope=opened.config.scope, full_document=captured)
    part = KeyRange(database="d", collection="a")
    with pytest.raises(ConfigError, match=f"the service captures updates.*'{captured}'"):
        await opened.ranges("", "a", rows=10, position=known.text())
    with pytest.raises(ConfigError, match="the service captures updates"):
        await opened.read_range(part, position=known.text())
    other = structs.replace(known, scope=Scope("another"), full_document=None)
    with pytest.raises(ConfigError, match="captures other collections"):
        await opened.read_range(part, position=other.text())
    await opened.close()


def test_settings_that_do_not_say_the_document_are_refused_before_anybody_is_asked() -> None:
    opened = MongoSource("shop", config("mongodb://h/?replicaSet=r", full_document="default"))
    with pytest.raises(ConfigError, match="updateLookup"):
        opened.require_readable()


async def test_the_position_says_with_what_changes_are_captured(
    mongo: MongoReplicaSet, mongo_database: str
) -> None:
    for full_document in ("default", "updateLookup"):
        position = await position_of(mongo, mongo_database, full_document=full_document)
        assert parse_position(position).full_document == full_document


def test_a_document_that_cannot_be_decoded_is_named_and_capture_is_not_said_to_stop() -> None:
    """Invariant 10: only the load stops, for capture has its own way with such a document."""
    sound = bson.encode({"_id": 7, "text": "a"})
    chunk = Chunk([sound.replace(b"a\0\0", b"\xff\0\0")], None, True, ClusterTime(1, 1))
    normaliser = Normaliser("shop", database="d", tenant="t", post_images=False)
    with pytest.raises(UndecodableError, match="first load") as raised:
        told(normaliser, "shop", chunk, namespace=("d", "a"), snapshot="s", halts=True)
    said = str(raised.value)
    assert 'its key is {"_id":7}' in said
    assert "Capture has stopped" not in said
    assert "capture goes on" in said


async def test_where_the_stream_goes_on_behind_such_a_document_a_read_does_and_names_it(
    mongo: MongoReplicaSet, mongo_client: Client, mongo_database: str
) -> None:
    """P6: `on_undecodable` is for both."""
    rows = mongo_client[mongo_database].get_collection("a", codec_options=RAW)
    sound = [bson.encode({"_id": key, "text": "a"}) for key in range(3)]
    bad = sound[1].replace(b"a\0\0", b"\xff\0\0")
    rows.insert_many([RawBSONDocument(one) for one in (sound[0], bad, sound[2])])
    letters = {"database": mongo_database, "on_undecodable": "dead_letter"}
    position = await position_of(mongo, mongo_database)
    async with source(mongo.uri, **letters) as opened:
        part = KeyRange(database=mongo_database, collection="a")
        read = await opened.read_range(part, position=position)
    assert [event.document_id for event in read.events] == ["0", "2"]
    (left,) = read.inexact
    assert (left.source, left.collection, left.key) == ("shop", "a", '{"_id":1}')
    assert "utf" in left.reason.lower()


def test_a_position_at_the_time_of_a_read_may_be_before_what_was_read() -> None:
    position = MongoPosition(Server("r"), TOKEN)
    assert has_told(position, "100.1")
    assert has_told(position, "99.7")
    assert not has_told(position, "100.2")
    assert not has_told(position, "101.1")
    opened = MongoSource("shop", config("mongodb://h/?replicaSet=r"))
    assert opened.has_told(position.text(), "100.1")
    asyncio.run(opened.close())
