"""A change that cannot be decoded is kept, in its place, and nobody misses it silently (P6)."""

import asyncio
import json
import struct
from typing import Any

import bson
import pytest
from bson import Binary, Int64, ObjectId, Timestamp
from bson.raw_bson import RawBSONDocument
from msgspec import structs
from pymongo import MongoClient

from penstock.capture.deadletter import COLLECTION, Letter, Outcome, Outstanding
from penstock.capture.tenant import TenantRule
from penstock.errors import RequestError, SourceUnavailableError, UndecodableError
from penstock.event import AnyEvent, ChangeEvent, SystemEvent, kind_of
from penstock.sources.mongodb import MongoSource
from penstock.sources.mongodb.documents import OPTIONS, decode
from penstock.sources.mongodb.normalise import Change, Normaliser
from penstock.sources.mongodb.poison import DeadLetters
from penstock.sources.mongodb.positions import parse_position
from tests.mongodb.support import Reading, folded, loaded, reading, source, stored_rows
from tests.mongodb.test_documents import document, element, text
from tests.mongodb.test_large_events import grow
from tests.mongodb.test_normalise import TOKEN, raw
from tests_support.servers import MongoReplicaSet

Client = MongoClient[dict[str, Any]]
TWICE = element(0x10, b"k", b"\1\0\0\0") * 2
DAMAGES = {
    "a field that occurs twice": TWICE,
    "text that is not UTF-8": element(0x02, b"k", text(b"\xff")),
    "a lone surrogate": element(0x02, b"k", text(b"\xed\xa0\x80")),
    "an unknown type": element(0x55, b"k", b""),
    "a wrapper's mimic": bson.encode({"k": {"$oid": "none"}})[4:-1],
}


def damaged(operation: str, damage: bytes, **fields: Any) -> bytes:
    """A raw event whose fullDocument cannot be decoded."""
    whole = raw(operation, documentKey={"_id": 1}, **fields)
    broken = element(0x03, b"fullDocument", document(element(0x10, b"_id", b"\1\0\0\0") + damage))
    return document(whole[4:-1] + broken)


def lettered(*parts: bytes, tenant: Any = None) -> Change:
    """The letter of an event that came as `parts`."""
    normaliser = Normaliser("shop", database=None, tenant=tenant, post_images=False)
    for part in parts[:-1]:
        assert normaliser.change(part) is None
    with pytest.raises(UndecodableError) as refused:
        normaliser.change(parts[-1])
    assert not normaliser.mid_event
    letters = DeadLetters("shop", database=None, tenant=tenant)
    return letters.change(normaliser.parts(parts[-1]), refused.value)


def letter_of(change: Change) -> dict[str, Any]:
    assert isinstance(change.event, ChangeEvent)
    return loaded(change.event.full_document)  # type: ignore[no-any-return]


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_what_cannot_be_decoded_keeps_its_bytes_and_what_is_known_of_it(damage: bytes) -> None:
    """P6."""
    event = damaged("insert", damage, collectionUUID=Binary(bytes(16), 4))
    change = lettered(event)
    letter = letter_of(change)
    assert [bytes(part) for part in letter["raw"]] == [event]
    assert (letter["database"], letter["collection"]) == ("shop", "orders")
    assert (letter["operation"], letter["position"]) == ("insert", TOKEN)
    assert (letter["key"], bytes(letter["keyRaw"])) == ({"_id": 1}, bson.encode({"_id": 1}))
    assert letter["generation"] == "0" * 32
    assert "k" in letter["reason"]
    assert change.token.data == TOKEN
    (gap,) = change.also
    assert isinstance(gap, SystemEvent)
    assert kind_of(gap).name == "GAP"
    assert (gap.database, gap.collection) == ("shop", "orders")
    facts = json.loads(bytes(gap.description))
    assert facts["from"] == facts["to"] == TOKEN
    assert facts["deadLetter"] == letter["_id"] == change.event.event_id
    assert len({change.event.event_id, gap.event_id}) == 2


def test_a_change_that_is_lettered_again_is_the_same_letter() -> None:
    """P2, P26: capture may see it twice."""
    assert lettered(damaged("insert", TWICE)) == lettered(damaged("insert", TWICE))


@pytest.mark.parametrize("operation", ["resizeUniverse", "reshardCollection"])
def test_an_operation_of_a_later_server_is_kept(operation: str) -> None:
    """P6: with its namespace if it has one; a gap of no collection concerns the whole source."""
    change = lettered(raw(operation, operationDescription={"n": 1}))
    assert letter_of(change)["operation"] == operation
    assert letter_of(change)["keyRaw"] is None
    assert change.also[0].collection == "orders"
    event = decode(raw(operation))
    del event["ns"]
    change = lettered(bson.encode(event, codec_options=OPTIONS))
    assert (change.also[0].collection, change.also[0].tenant) == ("", "shop")


def test_a_letter_stays_in_its_transaction() -> None:
    session = {"id": Binary(bytes(16), 4), "uid": b""}
    change = lettered(damaged("insert", TWICE, lsid=session, txnNumber=Int64(3)))
    assert change.event.transaction == f"{'0' * 32}:3" == change.also[0].transaction


@pytest.mark.parametrize("broken", [1, 2])
def test_a_split_event_with_a_damaged_part_is_kept_with_all_its_parts(broken: int) -> None:
    """S9."""
    parts: list[bytes] = []
    for number in (1, 2):
        event = {
            "_id": {"_data": TOKEN if number == 2 else TOKEN[:-2] + "00"},
            "splitEvent": {"fragment": number, "of": 2},
        }
        if number == 1:
            event |= {
                "operationType": "update",
                "clusterTime": Timestamp(1_700_000_000, 7),
                "ns": {"db": "shop", "coll": "orders"},
                "documentKey": {"_id": 1},
            }
        part = bson.encode(event, codec_options=OPTIONS)
        if number == broken:
            name = b"fullDocumentBeforeChange" if number == 1 else b"fullDocument"
            part = document(part[4:-1] + element(0x03, name, document(TWICE)))
        parts.append(part)
    change = lettered(*parts)
    letter = letter_of(change)
    assert [bytes(part) for part in letter["raw"]] == parts
    assert (letter["operation"], letter["position"]) == ("update", TOKEN)


def test_a_letter_has_a_tenant_whatever_can_be_told() -> None:
    """P24."""
    rule = TenantRule.model_validate({"field": "org"})
    before = {"fullDocumentBeforeChange": {"_id": 1, "org": "acme"}}
    assert lettered(damaged("update", TWICE, **before), tenant=rule).event.tenant == "acme"
    assert lettered(damaged("insert", TWICE), tenant=rule).event.tenant == "shop"
    # That it cannot be told whose a delete was is itself a reason.
    assert (
        "tenant"
        in letter_of(lettered(raw("delete", documentKey={"_id": 1}), tenant=rule))["reason"]
    )


def test_a_sharded_key_and_a_damaged_key_are_kept_too() -> None:
    key = {"region": "eu", "_id": ObjectId("0" * 24)}
    assert letter_of(lettered(raw("delete", documentKey=key)))["key"] == key
    broken = element(0x03, b"documentKey", document(element(0x02, b"_id", text(b"\xff"))))
    letter = letter_of(lettered(document(raw("delete")[4:-1] + broken)))
    assert letter["key"] is None
    assert bytes(letter["keyRaw"]) == document(element(0x02, b"_id", text(b"\xff")))


@pytest.mark.parametrize("lacks", ["_id", "clusterTime"])
def test_without_a_place_to_go_on_from_capture_stops(lacks: str) -> None:
    """Invariant 10: nothing could be said to come after it."""
    event = decode(damaged("insert", b""))
    del event[lacks]
    whole = bson.encode(event, codec_options=OPTIONS)
    broken = document(whole[4:-1] + element(0x03, b"more", document(TWICE)))
    with pytest.raises(UndecodableError):
        lettered(broken)


def twice(key: int) -> RawBSONDocument:
    """A document that the server stores and that has no exact form."""
    return RawBSONDocument(document(element(0x10, b"_id", struct.pack("<i", key)), TWICE))


async def test_letters_come_in_their_place_and_transaction_and_capture_goes_on(
    mongo: MongoReplicaSet, mongo_client: Client, mongo_database: str
) -> None:
    """P6, and the same after a restart at every commit."""
    orders = mongo_client[mongo_database]["orders"]
    orders.insert_one({"_id": 0})
    options: dict[str, Any] = {"database": mongo_database, "on_undecodable": "dead_letter"}
    async with reading(mongo.uri, **options) as read:
        start = read.position
        orders.insert_one(twice(1))
        with mongo_client.start_session() as session, session.start_transaction():
            orders.insert_one({"_id": 2}, session=session)
            orders.insert_one(twice(3), session=session)
            orders.insert_one({"_id": 4}, session=session)
        orders.insert_one(twice(5))
        orders.insert_one({"_id": 6})
        await read.until(lambda r: bool(r.changes) and r.changes[-1].document_id == "6")

    def told(event: AnyEvent) -> str:
        if isinstance(event, ChangeEvent) and event.collection == COLLECTION:
            return f"letter {loaded(event.full_document)['key']['_id']}"
        return event.document_id if isinstance(event, ChangeEvent) else event.operation

    assert [[told(event) for event in commit.events] for commit in read.commits] == [
        ["letter 1", "gap"],
        ["2", "letter 3", "gap", "4"],
        ["letter 5", "gap"],
        ["6"],
    ]
    # Each position counts the letters up to its own commit, and no further.
    assert [parse_position(commit.position).letters for commit in read.commits] == [1, 2, 3, 3]
    for number, position in enumerate([start, *(commit.position for commit in read.commits[:-1])]):
        async with reading(mongo.uri, position=position, **options) as again:
            await again.until(lambda r: bool(r.changes) and r.changes[-1].document_id == "6")
        assert again.commits == read.commits[number:]
    outstanding = Outstanding("shop")
    outstanding.take(read.events)
    assert [letter.operation for letter in outstanding] == ["insert"] * 3


async def test_by_default_capture_stops_before_what_it_cannot_decode(
    mongo: MongoReplicaSet, mongo_client: Client, mongo_database: str
) -> None:
    """Invariant 10, on a server that stores such documents."""
    orders = mongo_client[mongo_database]["orders"]
    async with reading(mongo.uri, database=mongo_database) as read:
        orders.insert_one({"_id": 0})
        orders.insert_one(twice(1))
        for _ in range(2):
            with pytest.raises(UndecodableError, match=r"k, which occurs twice.*dead_letter"):
                await read.until(lambda r: len(r.changes) == 2)
        assert [change.document_id for change in read.changes] == ["0"]
    # The way out, from the very position where it stopped.
    options: dict[str, Any] = {"on_undecodable": "dead_letter", "position": read.position}
    async with reading(mongo.uri, database=mongo_database, **options) as on:
        orders.insert_one({"_id": 2})
        await on.until(lambda r: len(r.changes) == 2)
    assert [change.document_id for change in on.changes][1:] == ["2"]


async def test_a_row_that_cannot_be_decoded_does_not_stop_the_copy(
    mongo: MongoReplicaSet, mongo_client: Client, mongo_database: str
) -> None:
    """P6."""
    orders = mongo_client[mongo_database]["orders"]
    orders.insert_many([{"_id": 0}, twice(1), {"_id": 2}])
    options: dict[str, Any] = {"database": mongo_database, "start": "snapshot"}
    async with reading(mongo.uri, on_undecodable="dead_letter", **options) as read:
        await read.until(lambda r: r.events[-1:] != [] and r.events[-1].operation.endswith("ted"))
        await read.until(lambda r: r.events[-1].operation == "snapshot_completed")
    assert [change.collection for change in read.changes] == ["orders", COLLECTION, "orders"]
    letter = loaded(read.changes[1].full_document)
    assert letter["isRow"]
    assert bytes(letter["raw"][0]) == twice(1).raw
    assert [event.operation for event in read.events].count("gap") == 1
    assert parse_position(read.position or "").letters == 1


async def test_an_event_over_16_mib_is_a_letter_where_the_server_cannot_split_it(
    mongo: MongoReplicaSet, mongo_client: Client, mongo_database: str
) -> None:
    """S9, P6: what is before and after it is captured, and it says which document it was of."""
    options: dict[str, Any] = {"database": mongo_database, "on_undecodable": "dead_letter"}
    async with reading(mongo.uri, **options) as read:
        grow(mongo_client, mongo_database)
        await read.until(lambda r: bool(r.changes) and r.changes[-1].document_id == "last")
    told = [change.document_id for change in read.changes]
    assert told[:6] == ["k1", "0", "1", "2", "3", "4"]
    assert [change.collection for change in read.changes[6:]] == [COLLECTION, "blobs"]
    letter = loaded(read.changes[6].full_document)
    assert (letter["operation"], letter["key"], letter["raw"]) == ("update", {"_id": "k1"}, [])
    assert "16 MiB" in letter["reason"]


async def test_a_collection_of_the_reserved_name_is_not_mixed_with_letters(
    mongo: MongoReplicaSet, mongo_client: Client, mongo_database: str
) -> None:
    own = mongo_client[mongo_database].create_collection(COLLECTION)
    options: dict[str, Any] = {"database": mongo_database, "on_undecodable": "dead_letter"}
    async with reading(mongo.uri, **options) as read:
        own.insert_one({"_id": "mine"})
        await read.until(lambda r: bool(r.changes))
    assert loaded(read.changes[0].full_document)["key"] == {"_id": "mine"}
    async with reading(mongo.uri, database=mongo_database) as read:
        own.insert_one({"_id": "mine too"})
        await read.until(lambda r: bool(r.changes))
    assert read.changes[0].document_id == "mine too", "where no letters are kept, it is one as any"


async def letters_of(read: Reading) -> list[Letter]:
    outstanding = Outstanding("shop")
    outstanding.take(read.events)
    return list(outstanding)


async def dealt_with(read: Reading, opened: MongoSource, *, settle: bool = False) -> list[Outcome]:
    """What becomes of all outstanding letters; reads on meanwhile."""
    asked = asyncio.create_task(opened.replay(await letters_of(read), settle=settle))
    while not asked.done():
        await read.next()
        for _ in range(5):
            await asyncio.sleep(0)  # the answer is on its way
    return await asked


async def test_a_replay_says_what_the_document_is_now_not_what_the_old_change_was(
    mongo: MongoReplicaSet, mongo_client: Client, mongo_database: str
) -> None:
    """P6: an old change applied late would overwrite newer ones. Deleted ones are deletes; what is
    damaged still stays a letter; and the fold ends with what the database holds."""
    orders = mongo_client[mongo_database].create_collection("orders")
    options: dict[str, Any] = {"database": mongo_database, "on_undecodable": "dead_letter"}
    # A stream that is idle for long: a replay does not wait for it.
    async with source(mongo.uri, heartbeat_seconds=60, **options) as opened:
        read = Reading(opened)
        await read.next()
        orders.insert_many([twice(n) for n in range(4)])
        orders.replace_one({"_id": 0}, {"v": "newer"})
        orders.delete_one({"_id": 1})
        mongo_client[mongo_database].create_collection("moved").insert_one(twice(9))
        mongo_client[mongo_database]["moved"].rename("elsewhere")
        await read.until(lambda r: any(e.operation == "rename" for e in r.events))
        assert opened.dead_letters == 5
        # Mended by hand, and captured as what it is now.
        with_key_2 = orders.find_one_and_replace({"_id": 2}, {"v": "mended"})
        assert with_key_2 is not None
        outcomes = await dealt_with(read, opened)
        await read.until(lambda r: parse_position(r.position or "").letters == 2)
        left = await letters_of(read)
        assert opened.dead_letters == len(left) == 2
        assert [outcome.done for outcome in outcomes] == [True, True, True, False, False]
        assert "occurs twice" in outcomes[3].detail
        assert "renamed since; copy it again with `penstock snapshot" in outcomes[4].detail

        commit = next(c for c in read.commits if c.events[-1].operation == "dead_letter_replayed")
        said = [
            (e.operation.value, e.document_id, e.snapshot)
            for e in commit.events
            if isinstance(e, ChangeEvent) and e.collection == "orders"
        ]
        assert said == [("insert", "0", True), ("delete", "1", False), ("insert", "2", True)]
        rows = folded([e for e in read.events if e.collection == "orders"])
        assert rows == {
            'orders/{"_id":0}': {"_id": 0, "v": "newer"},
            'orders/{"_id":2}': {"_id": 2, "v": "mended"},
        }

        outcomes = await dealt_with(read, opened, settle=True)
        await read.until(lambda r: parse_position(r.position or "").letters == 0)
        assert all(outcome.done for outcome in outcomes)
        assert await letters_of(read) == []
        assert opened.dead_letters == 0
        await read.stop()
        with pytest.raises(RequestError, match="not being captured"):
            await opened.replay([], settle=True)


async def test_a_letter_is_not_replayed_from_a_view_that_took_its_collections_name(
    mongo: MongoReplicaSet, mongo_client: Client, mongo_database: str
) -> None:
    database = mongo_client[mongo_database]
    orders = database.create_collection("orders")
    options: dict[str, Any] = {"database": mongo_database, "on_undecodable": "dead_letter"}
    async with source(mongo.uri, **options) as opened:
        read = Reading(opened)
        await read.next()
        orders.insert_one(twice(1))
        orders.replace_one({"_id": 1}, {"v": "mended"})
        orders.rename("orders_v2")
        database.create_collection("orders", viewOn="orders_v2", pipeline=[])
        await read.until(lambda r: any(e.operation == "rename" for e in r.events))
        (outcome,) = await dealt_with(read, opened)
        await read.stop()
    assert not outcome.done
    assert "dropped or renamed since" in outcome.detail


async def test_a_replay_says_both_keys_of_a_document_whose_id_got_another_type(
    mongo: MongoReplicaSet, mongo_client: Client, mongo_database: str
) -> None:
    """The letter may be of the very write that gave it: the old key is gone, the new one is."""
    orders = mongo_client[mongo_database].create_collection("orders")
    options: dict[str, Any] = {"database": mongo_database, "on_undecodable": "dead_letter"}
    async with source(mongo.uri, **options) as opened:
        read = Reading(opened)
        await read.next()
        orders.insert_one({"_id": 5})
        retyped = document(element(0x01, b"_id", struct.pack("<d", 5.0)), TWICE)
        orders.replace_one({"_id": 5}, RawBSONDocument(retyped))
        await read.until(lambda _: opened.dead_letters == 1)
        orders.replace_one({"_id": 5}, {"_id": 5.0, "v": "mended"})
        await dealt_with(read, opened)
        await read.until(lambda r: parse_position(r.position or "").letters == 0)
        commit = next(c for c in read.commits if c.events[-1].operation == "dead_letter_replayed")
        assert [
            (e.operation.value, e.document_id)
            for e in commit.events
            if isinstance(e, ChangeEvent) and e.collection == "orders"
        ] == [("delete", "5"), ("insert", "5.0")]
        rows = folded([e for e in read.events if e.collection == "orders"])
        assert rows == {'orders/{"_id":5.0}': {"_id": 5.0, "v": "mended"}}
        await read.stop()


async def test_a_replay_while_changes_pour_in_ends_with_what_the_database_holds(
    mongo: MongoReplicaSet, mongo_client: Client, mongo_database: str
) -> None:
    """The row is read at the place where it is said, or after; later changes come after it."""
    orders = mongo_client[mongo_database].create_collection("orders")
    options: dict[str, Any] = {"database": mongo_database, "on_undecodable": "dead_letter"}
    async with source(mongo.uri, **options) as opened:
        read = Reading(opened)
        await read.next()
        orders.insert_many([twice(n) for n in range(20)])
        await read.until(lambda _: opened.dead_letters == 20)

        def write() -> None:
            for n in range(400):
                key = {"_id": n * 7 % 20}
                if n % 5 == 4:
                    orders.delete_one(key)
                else:
                    orders.replace_one(key, {"n": n}, upsert=True)

        writing = asyncio.create_task(asyncio.to_thread(write))
        for _ in range(5):
            await dealt_with(read, opened)
        await read.until(lambda _: writing.done())
        orders.insert_one({"_id": "last"})
        await read.until(lambda r: bool(r.changes) and r.changes[-1].document_id == "last")
        await read.stop()
    rows = folded([e for e in read.events if e.collection == "orders"])
    stored = stored_rows(mongo_client[mongo_database], ["orders"])
    assert rows == stored


async def test_a_replay_of_a_key_that_got_another_type_takes_the_old_one_and_brings_the_new_one(
    mongo: MongoReplicaSet, mongo_client: Client, mongo_database: str
) -> None:
    """To the server 5 and 5.0 are one key, to us two (decision 0012)."""
    orders = mongo_client[mongo_database].create_collection("orders")
    options: dict[str, Any] = {"database": mongo_database, "on_undecodable": "dead_letter"}
    async with source(mongo.uri, **options) as opened:
        read = Reading(opened)
        await read.next()
        orders.insert_one(twice(5))
        await read.until(lambda _: opened.dead_letters == 1)
        orders.delete_one({"_id": 5})
        orders.insert_one({"_id": 5.0})
        await dealt_with(read, opened)
        await read.stop()
    commit = next(c for c in read.commits if c.events[-1].operation == "dead_letter_replayed")
    said = [(e.operation.value, bytes(e.key)) for e in commit.events if isinstance(e, ChangeEvent)]
    assert said[:2] == [("delete", b'{"_id":5}'), ("insert", b'{"_id":5.0}')]


async def test_letters_that_a_rewind_repeats_are_one_and_settling_all_sets_their_count_right(
    mongo: MongoReplicaSet, mongo_client: Client, mongo_database: str
) -> None:
    options: dict[str, Any] = {"database": mongo_database, "on_undecodable": "dead_letter"}
    async with source(mongo.uri, **options) as opened:
        read = Reading(opened)
        await read.next()
        start = parse_position(read.position or "")
        mongo_client[mongo_database]["orders"].insert_one(twice(1))
        await read.until(lambda _: opened.dead_letters == 1)
        await read.stop()
        # As a rewind does: the place is an earlier one, and the count is kept.
        read.position = structs.replace(start, letters=1).text()
        await read.until(lambda _: opened.dead_letters == 2)
        letters = await letters_of(read)
        assert len(letters) == 1
        asked = asyncio.create_task(opened.replay(letters, settle=True, everything=True))
        await read.until(lambda r: parse_position(r.position or "").letters == 0)
        assert [outcome.done for outcome in await asked] == [True]
        await read.stop()
        assert opened.dead_letters == 0


async def test_whoever_waits_for_a_replay_is_told_when_capture_breaks_off(
    mongo: MongoReplicaSet, mongo_client: Client, mongo_database: str
) -> None:
    async with source(mongo.uri, database=mongo_database) as opened:
        items = opened.changes(position=None)
        await anext(items)
        reading_on = asyncio.ensure_future(anext(items))
        await asyncio.sleep(0)  # it begins
        asked = asyncio.ensure_future(opened.replay([], settle=True))
        await asyncio.sleep(0)
        reading_on.cancel()
        await asyncio.gather(reading_on, return_exceptions=True)
        await items.aclose()  # type: ignore[attr-defined]
        with pytest.raises(SourceUnavailableError, match="broke off"):
            await asked
