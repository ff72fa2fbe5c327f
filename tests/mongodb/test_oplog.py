"""What the oplog still holds: how long until a position is lost, and going back to one that is."""

from collections.abc import Callable
from typing import Any

import pytest
from pymongo import MongoClient

from penstock.errors import RequestError
from penstock.ports import Retains, Rewinds
from penstock.sources.mongodb.positions import parse_position
from tests.mongodb.histories import roll_over
from tests.mongodb.support import Reading, source
from tests_support.servers import MongoReplicaSet


async def test_a_rewound_source_tells_again_what_followed_whole_and_with_the_same_ids(
    mongo: MongoReplicaSet, mongo_client: MongoClient[dict[str, Any]], mongo_database: str
) -> None:
    """Invariant 7: the same eventIds; invariant 3: a transaction is not cut by going back to one
    of its events."""
    orders = mongo_client[mongo_database]["orders"]
    async with source(mongo.uri, database=mongo_database) as opened:
        read = Reading(opened)
        await read.until(lambda r: r.position is not None)
        orders.insert_one({"_id": 1})
        with mongo_client.start_session() as session, session.start_transaction():
            for n in (2, 3, 4):
                orders.insert_one({"_id": n}, session=session)
        orders.insert_one({"_id": 5})
        await read.until(lambda r: len(r.changes) == 5)
        assert isinstance(opened, Rewinds)
        assert read.position is not None
        inside = read.changes[2].position
        by_event = await opened.rewound(read.position, to=inside, by_seconds=None)
        again = Reading(opened, position=by_event)
        await again.until(lambda r: len(r.changes) == 4)
        assert [one.event_id for one in again.changes] == [one.event_id for one in read.changes[1:]]
        place_t = opened.told_at(by_event) // 1000
        assert 0 < place_t <= min(one.cluster_time.t for one in again.changes)
        by_time = await opened.rewound(read.position, to=None, by_seconds=5)
        assert parse_position(by_time).token.time <= parse_position(read.position).token.time
        longer = Reading(opened, position=by_time)
        await longer.until(lambda r: len(r.changes) >= 5)
        ids = [one.event_id for one in longer.changes]
        assert ids[-5:] == [one.event_id for one in read.changes]


async def test_a_place_that_is_ahead_or_none_is_refused(
    mongo: MongoReplicaSet, mongo_database: str
) -> None:
    """Invariant 4: to go ahead would skip changes."""
    async with source(mongo.uri, database=mongo_database) as opened:
        read = Reading(opened)
        await read.until(lambda r: r.position is not None)
        assert read.position is not None
        time = parse_position(read.position).token.time
        with pytest.raises(RequestError, match="ahead of where"):
            await opened.rewound(
                read.position, to=f"82{time.t + 9:08X}{0:08X}2B0229296E04", by_seconds=None
            )
        for nonsense in ("yesterday", "{}", "82"):
            with pytest.raises(RequestError, match="no position of a MongoDB source"):
                await opened.rewound(read.position, to=nonsense, by_seconds=None)


async def test_once_the_oplog_discards_the_time_to_loss_is_known_and_what_is_gone_is_refused(
    start_mongo: Callable[..., MongoReplicaSet],
) -> None:
    """P20: how long a source may stay down is told before it is too late."""
    mongo = start_mongo(oplog_mb=16, extra_args=("--syncdelay", "1"))
    with MongoClient[dict[str, Any]](mongo.uri, w="majority") as client:
        async with source(mongo.uri, database="shop") as opened:
            read = Reading(opened)
            await read.until(lambda r: r.position is not None)
            assert isinstance(opened, Retains)
            assert read.position is not None
            assert await opened.seconds_to_loss(read.position) is None
            roll_over(client, parse_position(read.position).token.time)
            assert await opened.seconds_to_loss(read.position) == 0
            fresh = Reading(opened)
            await fresh.until(lambda r: r.position is not None)
            assert fresh.position is not None
            oldest = client["local"]["oplog.rs"].find_one({}, sort=[("$natural", 1)])
            left = await opened.seconds_to_loss(fresh.position)
            assert oldest is not None
            assert left is not None
            now = parse_position(fresh.position).token.time.t
            assert 0 <= left <= now - oldest["ts"].time
            with pytest.raises(RequestError, match="does not reach back that far"):
                await opened.rewound(fresh.position, to=read.position, by_seconds=None)
