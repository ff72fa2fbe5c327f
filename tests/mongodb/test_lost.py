"""A position that the server no longer holds is an error or a gap, never a silence (S7, P20)."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import msgspec
import pytest
from pymongo import MongoClient
from tests.conftest import started
from tests.mongodb.support import folded, loaded, reading, source, stored_rows

from penstock.errors import PositionLostError
from penstock.event import SystemEvent
from penstock.sources.mongodb.positions import (
    MongoPosition,
    Server,
    Token,
    parse_position,
)
from penstock.testing.servers import MongoReplicaSet

Client = MongoClient[dict[str, Any]]
pytestmark = pytest.mark.server


def roll_over(client: Client, position: MongoPosition) -> None:
    """Write until the oplog no longer reaches back to `position`."""
    pads = client["pads"]["pads"]
    oplog = client["local"]["oplog.rs"]
    for _ in range(600):
        oldest = oplog.find_one({}, {"ts": 1}, sort=[("$natural", 1)])
        assert oldest is not None
        if (oldest["ts"].time, oldest["ts"].inc) > (position.token.time.t, position.token.time.i):
            return
        pads.insert_many({"body": "x" * (1 << 20)} for _ in range(4))
        pads.drop()
    raise AssertionError("the oplog was not truncated")


@pytest.fixture(scope="module")
def lost() -> Iterator[tuple[str, str]]:
    """A server, and a position of it that is lost: shop.orders has changed since."""
    with ExitStack() as stack:
        mongo = started(stack, MongoReplicaSet(oplog_mb=16, extra_args=("--syncdelay", "1")))
        with Client(mongo.uri, w="majority") as client:
            client["shop"]["orders"].insert_many({"_id": n} for n in range(5))
            time = client.admin.command("ping")["operationTime"]
            # A stream that was read up to here stands at such a token.
            token = Token(f"82{time.time:08X}{time.inc:08X}2B0229296E04")
            config = client.admin.command("replSetGetConfig")["config"]
            server = Server("rs0", str(config["settings"]["replicaSetId"]))
            position = MongoPosition(server, token)
            client["shop"]["orders"].delete_one({"_id": 0})
            client["shop"]["orders"].insert_one({"_id": 5})
            roll_over(client, position)
        yield mongo.uri, position.text()


async def test_by_default_a_lost_position_stops_the_source(lost: tuple[str, str]) -> None:
    """Invariant 4: nobody is moved ahead silently."""
    uri, position = lost
    async with source(uri, database="shop") as opened:
        for _ in range(2):
            with pytest.raises(PositionLostError, match=r"ChangeStreamHistoryLost \(286\)") as e:
                await anext(opened.changes(position=position))
            assert e.value.position == position


async def test_a_gap_is_recorded_before_the_source_goes_on(lost: tuple[str, str]) -> None:
    uri, position = lost
    options: dict[str, Any] = {"database": "shop", "on_position_lost": "gap"}
    async with reading(uri, position=position, **options) as read:
        await read.until(lambda r: bool(r.events))
        (gap,) = read.events
        assert isinstance(gap, SystemEvent)
        assert gap.operation == "gap"
        facts = msgspec.json.decode(gap.description)
        assert set(facts) == {"source", "from", "to", "reason"}
        assert facts["from"] == parse_position(position).token.data
        assert facts["to"] == parse_position(read.position or "").token.data
        with Client(uri) as client:
            client["shop"]["orders"].insert_one({"_id": "gap"})
        await read.until(lambda r: bool(r.changes))
        assert read.changes[0].document_id == "gap"
        after_gap = read.commits[0].position
    async with reading(uri, position=after_gap, **options) as resumed:
        await resumed.until(lambda r: bool(r.events))
        assert resumed.changes[0].document_id == "gap", "one gap, once"
    async with reading(uri, position=position, **options) as repeated:
        await repeated.until(lambda r: bool(r.events))
        assert repeated.events[0].event_id == gap.event_id
    with Client(uri) as client:
        client["shop"]["orders"].delete_one({"_id": "gap"})


async def test_a_gap_may_be_closed_by_a_snapshot(lost: tuple[str, str]) -> None:
    uri, position = lost
    async with reading(
        uri, position=position, database="shop", on_position_lost="snapshot"
    ) as read:
        await read.until(lambda r: any(e.operation == "snapshot_completed" for e in r.events))
    assert [e.operation for e in read.events[:2]] == ["gap", "snapshot_started"]
    with Client(uri) as client:
        assert folded(read.events) == stored_rows(client["shop"], ["orders"])


async def test_the_beginning_of_an_oplog_that_rolled_over_is_its_oldest_entry(
    lost: tuple[str, str],
) -> None:
    """P20: it terminates, and what comes after it is captured."""
    uri, _ = lost
    async with reading(uri, database="shop", start="beginning") as read:
        with Client(uri) as client:
            client["shop"]["orders"].insert_one({"_id": "new"})
            await read.until(lambda r: bool(r.changes) and r.changes[-1].document_id == "new")
            client["shop"]["orders"].delete_one({"_id": "new"})
        assert loaded(read.changes[-1].full_document) == {"_id": "new"}


async def test_a_token_that_the_server_never_gave_is_a_lost_position(
    mongo: MongoReplicaSet, mongo_client: Client, mongo_database: str
) -> None:
    """Code 280: the oplog was replaced, by a restore for instance."""
    async with reading(mongo.uri, database=mongo_database) as read:
        mongo_client[mongo_database]["orders"].insert_many([{"_id": 1}, {"_id": 2}])
        await read.until(lambda r: len(r.changes) == 1)
        position = parse_position(read.position or "")
    # The key inside of it: 1 became 3.
    other = position.token.data.replace("5F6964002B02", "5F6964002B06")
    assert other != position.token.data
    forged = MongoPosition(position.server, Token(other, position.token.type_bits))
    async with source(mongo.uri, database=mongo_database) as opened:
        with pytest.raises(PositionLostError, match="280"):
            await anext(opened.changes(position=forged.text()))
