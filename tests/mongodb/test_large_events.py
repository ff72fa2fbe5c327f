"""An event over 16 MiB is joined from its parts, or stops capture by name (S9)."""

from typing import Any

import pytest
from pymongo import MongoClient

from penstock.errors import UndecodableError
from penstock.sources.mongodb import cursor
from tests.mongodb.support import failing, loaded, reading, source
from tests_support.servers import MongoReplicaSet

Client = MongoClient[dict[str, Any]]
LARGE = 5_800_000
"""Three of them are over 16 MiB: before image, update and document. Written to four places by one
update, more would not fit the small cache that the test servers have."""


def grow(client: Client, database: str) -> None:
    """Small changes around one whose images make its event larger than a reply can be."""
    blobs = client[database].create_collection(
        "blobs", changeStreamPreAndPostImages={"enabled": True}
    )
    blobs.insert_one({"_id": "k1", "body": "a" * LARGE})
    for n in range(5):
        blobs.insert_one({"_id": n})
    blobs.update_one({"_id": "k1"}, {"$set": {"body": "b" * LARGE}})
    blobs.insert_one({"_id": "last"})


async def test_a_server_that_can_split_gives_the_whole_event(mongo6027: MongoReplicaSet) -> None:
    """S9: joined from its parts, whichever reply brings them, and resumed before and after it."""
    with Client(mongo6027.uri) as client:
        # Replies of one event hold one part each.
        for batch_events_max in (1, 1000):
            options: dict[str, Any] = {
                "database": f"split{batch_events_max}",
                "batch_events_max": batch_events_max,
            }
            async with reading(mongo6027.uri, **options) as read:
                start = read.position
                grow(client, options["database"])
                await read.until(lambda r: bool(r.changes) and r.changes[-1].document_id == "last")
            assert [c.document_id for c in read.changes] == [
                *("k1", "0", "1", "2", "3", "4", "k1", "last")
            ]
            large = read.changes[-2]
            assert loaded(large.full_document) == {"_id": "k1", "body": "b" * LARGE}
            assert loaded(large.full_document_before_change) == {"_id": "k1", "body": "a" * LARGE}
            assert len({event.event_id for event in read.events}) == len(read.events)

            # A restart at each commit: before the large event, and right after it.
            async with source(mongo6027.uri, **options) as opened:
                position, again = start, [*read.commits]
                for commit in read.commits:
                    items = opened.changes(position=position)
                    async for item in items:
                        if item.events:
                            assert item == again.pop(0)
                            break
                    await items.aclose()  # type: ignore[attr-defined]
                    position = commit.position


async def test_a_server_that_cannot_split_stops_with_the_key_after_what_came_before(
    mongo: MongoReplicaSet, mongo_client: Client, mongo_database: str
) -> None:
    """S9, and again after a restart: the error is named, not a loop of restarts."""
    async with reading(mongo.uri, database=mongo_database) as read:
        grow(mongo_client, mongo_database)
        for _ in range(2):
            with pytest.raises(UndecodableError, match=r'blobs, key \{"_id":"k1"\}.*16 MiB') as e:
                await read.until(lambda r: len(r.changes) == 8)
            assert not e.value.transient
            assert [c.document_id for c in read.changes] == ["k1", "0", "1", "2", "3", "4"]

    async with reading(
        mongo.uri,
        database=mongo_database,
        position=read.position,
        full_document_before_change="off",
    ) as mended:
        await mended.until(lambda r: len(r.changes) == 2)
    assert [c.document_id for c in mended.changes] == ["k1", "last"]


async def test_after_an_event_that_was_too_large_for_a_moment_replies_are_whole_again(
    mongo_with_fail_points: MongoReplicaSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S9: what a look-up made too large may be smaller when it is read again, one by one."""
    uri = mongo_with_fail_points.uri
    sizes: list[int] = []
    more = cursor.ChangeCursor.more

    async def counted(*arguments: Any, **options: Any) -> cursor.Reply:
        reply = await more(*arguments, **options)
        sizes.append(len(reply.events))
        return reply

    with Client(uri) as client:
        orders = client["large"]["orders"]
        orders.insert_one({"_id": -1})
        async with reading(uri, database="large", batch_events_max=10) as read:
            start = read.position
            orders.insert_many({"_id": n} for n in range(60))
        monkeypatch.setattr(cursor.ChangeCursor, "more", counted)
        failing(client, "getMore", 10334)
        async with reading(uri, database="large", batch_events_max=10, position=start) as read:
            await read.until(lambda r: len(r.changes) == 60)
    assert [change.document_id for change in read.changes] == [str(n) for n in range(60)]
    assert sizes[:10] == [1] * 10
    assert max(sizes) == 10
