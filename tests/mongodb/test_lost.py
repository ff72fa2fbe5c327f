"""A position that the server no longer holds is an error or a gap, never a silence (S7, P20)."""

import asyncio
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import structs
from pymongo import MongoClient

from penstock.capture.pump import pump
from penstock.errors import ConfigError, PositionLostError, SourceUnavailableError
from penstock.event import AnyEvent, ChangeEvent, Fragment, SystemEvent
from penstock.log.memory import MemoryLog
from penstock.sources.mongodb import assemble
from penstock.sources.mongodb.positions import (
    Copying,
    MongoPosition,
    Server,
    Token,
    parse_position,
)
from tests.conftest import started
from tests.mongodb.histories import roll_over
from tests.mongodb.support import Reading, failing, folded, loaded, reading, source, stored_rows
from tests.waiting import patience
from tests_support.servers import MongoReplicaSet

Client = MongoClient[dict[str, Any]]
pytestmark = pytest.mark.server


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
            # Rolled over is not restored: the server says what is lost.
            position = MongoPosition(server, token, entry=(time.time, time.inc, 1))
            client["shop"]["orders"].delete_one({"_id": 0})
            client["shop"]["orders"].insert_one({"_id": 5})
            roll_over(client, position.token.time)
        yield mongo.uri, position.text()


def facts_of(event: AnyEvent) -> dict[str, Any]:
    assert isinstance(event, SystemEvent)
    return msgspec.json.decode(event.description)  # type: ignore[no-any-return]


async def test_by_default_a_lost_position_is_one_gap_in_the_log_and_stops_the_source(
    lost: tuple[str, str],
) -> None:
    """S7, P19, invariant 4: nobody is moved ahead silently, and a restart says nothing twice."""
    uri, position = lost
    async with source(uri, database="shop") as opened:
        read = Reading(opened, position=position)
        for _ in range(3):
            with pytest.raises(PositionLostError, match=r"ChangeStreamHistoryLost \(286\)") as e:
                await read.until(lambda r: len(r.events) > 1)
            assert parse_position(e.value.position).token == parse_position(position).token
        (gap,) = read.events
        assert gap.operation == "gap"
        assert gap.cluster_time == parse_position(position).token.time
        assert facts_of(gap) == {
            "source": "shop",
            "from": parse_position(position).token.data,
            "to": None,
            "reason": "ChangeStreamHistoryLost (286)",
        }
        stopped = read.position
        # Before the gap was durable: the same one again.
        repeated = Reading(opened, position=position)
        await repeated.next()
        assert repeated.events == [gap]

    # The way out: another mode goes on, and the loss is still one gap.
    options: dict[str, Any] = {"database": "shop", "on_position_lost": "snapshot"}
    async with reading(uri, position=stopped, **options) as read:
        await read.until(lambda r: any(e.operation == "snapshot_completed" for e in r.events))
        assert [e.operation for e in read.events[:2]] == ["gap_ended", "snapshot_started"]
        ended = facts_of(read.events[0])
        assert ended["from"] == facts_of(gap)["from"]
        assert ended["to"] is not None
        assert not parse_position(read.position or "").gap_said
        with Client(uri) as client:
            assert folded(read.events) == stored_rows(client["shop"], ["orders"])


async def test_restarts_at_a_lost_position_leave_one_gap_in_the_log(lost: tuple[str, str]) -> None:
    """P19, S7: it is durable before the source stops, and once the operator chose, one only."""
    uri, position = lost
    log = MemoryLog()
    await log.set_position("shop", position)
    for _ in range(3):
        async with source(uri, database="shop") as opened:
            with pytest.raises(PositionLostError):
                await pump(opened, log)
        assert (await log.bounds()).head == 1
    async with source(uri, database="shop", on_position_lost="gap") as opened:
        pumping = asyncio.create_task(pump(opened, log))
        await log.wait(after=1)
        pumping.cancel()
        await asyncio.gather(pumping, return_exceptions=True)
    blocks = await log.read(after=0)
    said = [entry.event.operation for block in blocks for entry in block.entries()]
    assert said == ["gap", "gap_ended"]
    await log.close()


async def test_a_gap_is_recorded_before_the_source_goes_on(lost: tuple[str, str]) -> None:
    """S7, P20: a lost position does not become "now" silently."""
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


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("after", ["gap", "halt"])
async def test_a_copy_that_a_loss_interrupts_is_begun_anew(
    lost: tuple[str, str], whole: bool, after: str
) -> None:
    """P20: what it read before the loss does not tell what is there now."""
    uri, text = lost
    orders = ("shop", "orders")
    copying = Copying(
        snapshot=f"{parse_position(text).token.data}:old",
        pending=(("shop", "later"),),
        announced=True,
        announcements=1,
        documents=5,
        copies=1,
        covers=(orders, ("shop", "later")),
        whole=whole,
    )
    position = msgspec.structs.replace(parse_position(text), copying=copying).text()
    options: dict[str, Any] = {"database": "shop", "on_position_lost": after}
    async with reading(uri, position=position, **options) as read:
        await read.until(lambda r: bool(r.events))
        assert facts_of(read.events[0])["reason"]
        anew = parse_position(read.commits[0].position).copying
        assert anew is not None
        assert anew.snapshot != copying.snapshot
        assert (anew.announcements, anew.documents, anew.copies) == (0, 0, 0)
        assert anew.whole is whole
        assert orders in anew.pending
        assert anew.pending == anew.covers
        if after == "gap":
            await read.until(lambda r: r.events[-1].operation == "snapshot_completed")
            started, *rows, _ = read.events[1:]
            assert facts_of(started)["snapshot"] == anew.snapshot
            assert "again" not in facts_of(started)
            assert {row.document_id for row in rows if isinstance(row, ChangeEvent)} == set("12345")


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
        read = Reading(opened, position=forged.text())
        with pytest.raises(PositionLostError, match="280"):
            await read.until(lambda r: len(r.events) > 1)
        assert [event.operation for event in read.events] == ["gap"]


@pytest.mark.parametrize("code", [286, 280, 260, 136])
@pytest.mark.parametrize("command", ["aggregate", "getMore"])
async def test_every_code_of_a_lost_position_is_a_gap_and_stops_the_source(
    mongo_with_fail_points: MongoReplicaSet, code: int, command: str
) -> None:
    """S7: whether it is found when the stream is opened or while it is read."""
    uri = mongo_with_fail_points.uri
    async with reading(uri, database="lost") as read:
        start = parse_position(read.position or "")
    with Client(uri) as client:
        failing(client, command, code)
        async with source(uri, database="lost") as opened:
            read = Reading(opened, position=start.text())
            with pytest.raises(PositionLostError, match=rf"\({code}\)"):
                await read.until(lambda r: len(r.events) > 1)
            (gap,) = read.events
            assert facts_of(gap)["from"] == start.token.data
            # The loss has passed, as after a restore: the stream goes on from there.
            client["lost"]["orders"].insert_one({"_id": f"{code} {command}"})
            await read.until(lambda r: bool(r.changes))
            await read.stop()


async def test_a_loss_within_a_transaction_in_fragments_leaves_a_gap_and_nothing_of_it(
    mongo_with_fail_points: MongoReplicaSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S7, S14: the gap begins before the transaction, and does not end it."""
    monkeypatch.setattr(assemble, "FRAGMENT_BYTES", 2000)
    uri = mongo_with_fail_points.uri
    options: dict[str, Any] = {"database": "parts", "batch_events_max": 4}
    with Client(uri) as client:
        orders = client["parts"]["orders"]
        orders.insert_one({"_id": -1})
        async with source(uri, on_position_lost="gap", **options) as opened:
            read = Reading(opened)
            await read.next()
            start = parse_position(read.position or "")
            with client.start_session() as session, session.start_transaction():
                for n in range(40):
                    orders.insert_one({"_id": n, "pad": "x" * 300}, session=session)
            items = opened.changes(position=start.text())
            async for item in items:
                if isinstance(item, Fragment):
                    break
            failing(client, "getMore", 286, times=2)
            with pytest.raises(SourceUnavailableError, match="within a transaction"):
                _ = [item async for item in items]
            await read.until(lambda r: bool(r.events))
            (gap,) = read.events
            assert gap.operation == "gap"
            assert facts_of(gap)["from"] == start.token.data
            orders.insert_one({"_id": "after"})
            await read.until(lambda r: bool(r.changes))
            await read.stop()
        assert [change.document_id for change in read.changes] == ["after"]


async def test_a_beginning_that_is_discarded_while_it_is_opened_is_tried_again_and_then_refused(
    mongo_with_fail_points: MongoReplicaSet,
) -> None:
    """P20: it terminates, with what to do, instead of restarting for ever."""
    uri = mongo_with_fail_points.uri
    with Client(uri) as client:
        client["begin"]["orders"].insert_one({"_id": 1})
        failing(client, "aggregate", 286, times=2)
        async with reading(uri, database="begin", start="beginning") as read:
            await read.until(lambda r: bool(r.changes))
        failing(client, "aggregate", 286, times=5)
        async with source(uri, database="begin", start="beginning") as opened:
            with pytest.raises(ConfigError, match="Nothing was captured"):
                await Reading(opened).next()


@pytest.mark.parametrize(
    ("start", "told"),
    [("now", ["3"]), ("snapshot", ["1", "2", "3"]), ("beginning", ["1", "2", "3"])],
)
async def test_each_start_has_its_history_and_counts_only_without_a_position(
    mongo: MongoReplicaSet, mongo_client: Client, mongo_database: str, start: str, told: list[str]
) -> None:
    """P20: a second run goes on where the first was, whatever `start` says."""
    orders = mongo_client[mongo_database]["orders"]
    orders.insert_many([{"_id": 1}, {"_id": 2}])
    options: dict[str, Any] = {"database": mongo_database, "start": start}
    async with reading(mongo.uri, **options) as read:
        orders.insert_one({"_id": 3})
        await read.until(lambda r: {"3"} <= {change.document_id for change in r.changes})
        if start == "snapshot":
            await read.until(lambda r: r.events[-1].operation == "snapshot_completed")
    assert sorted({change.document_id for change in read.changes}) == told
    for again in ("now", "snapshot", "beginning"):
        orders.insert_one({"_id": f"then {again}"})
        options["start"] = again
        async with reading(mongo.uri, position=read.position, **options) as second:
            await second.until(lambda r: bool(r.changes))
        assert second.changes[0].document_id == "then now"


@pytest.mark.parametrize("quiet", [True, False], ids=["quiet", "behind an event"])
async def test_a_disk_that_went_back_is_a_lost_position(quiet: bool, tmp_path: Path) -> None:
    """S6: a moment between two events is any time to a server, also one of another history; and of
    an event it says nothing before another one comes."""
    with ExitStack() as stack:
        mongo = started(stack, MongoReplicaSet())
        data = mongo.data(0)
        with Client(mongo.uri, w="majority") as client:
            client["shop"]["orders"].insert_one({"_id": 1})
        mongo.members[0].stop()
        shutil.copytree(data, tmp_path / "copy")
        mongo.restart(0)
        mongo.primary_index()
        async with reading(mongo.uri, database="shop", heartbeat_seconds=0.2) as read:
            await read.next()
            with Client(mongo.uri, w="majority") as client:
                client["shop"]["orders"].insert_one({"_id": 2})
                await read.until(lambda r: len(r.changes) == 1)
                if quiet:
                    client["other"]["other"].insert_one({})
                    await read.until(lambda r: not position_of(r).token.is_of_event)
            position = position_of(read)
        if quiet:
            assert position.entry is not None
            *at, term = position.entry
            parallel = structs.replace(position, entry=(*at, term + 1))
            async with reading(mongo.uri, position=parallel.text(), database="shop") as read:
                with pytest.raises(PositionLostError, match="set up anew"):
                    await read.until(lambda r: len(r.events) > 1)
        mongo.members[0].stop()
        shutil.rmtree(data)
        (tmp_path / "copy").rename(data)
        mongo.restart(0)
        mongo.primary_index()
        async with reading(mongo.uri, position=position.text(), database="shop") as read:
            with pytest.raises(PositionLostError, match="restored from an older copy"):
                await read.until(lambda r: len(r.events) > 1 or r.heartbeats > 0)
            assert [event.operation for event in read.events] == ["gap"]
        with Client(mongo.uri, w="majority") as client:
            client["shop"]["orders"].insert_one({"_id": 3})
        options: dict[str, Any] = {"database": "shop", "on_position_lost": "snapshot"}
        async with reading(mongo.uri, position=position.text(), **options) as read:
            await read.until(lambda r: any(e.operation == "snapshot_completed" for e in r.events))
            assert [event.document_id for event in read.changes] == ["1", "3"]


async def test_a_disk_that_went_back_while_capture_runs_is_a_lost_position(tmp_path: Path) -> None:
    """S6: its primary was elected earlier than the one that the client knew last."""
    with ExitStack() as stack:
        mongo = started(stack, MongoReplicaSet())
        mongo.members[0].stop()
        shutil.copytree(mongo.data(0), tmp_path / "copy")
        for _ in range(3):
            mongo.restart_all()  # each time it is elected once more
        options: dict[str, Any] = {"heartbeat_seconds": 0.2, "heartbeat_deadline_seconds": 2.0}
        async with patience(), reading(mongo.uri, database="shop", **options) as read:
            with Client(mongo.uri, w="majority") as client:
                client["shop"]["orders"].insert_one({"_id": 1})
            await read.until(lambda r: len(r.changes) == 1)
            await asyncio.to_thread(mongo.restart_all, tmp_path / "copy")
            with pytest.raises(PositionLostError):
                await read.until(lambda r: len(r.events) > 3)
            assert read.failures
            assert [event.operation for event in read.events] == ["create", "insert", "gap"]


async def test_the_first_entry_of_a_new_set_is_ours() -> None:
    """S6: it has no term, of which the server itself says -1."""
    with ExitStack() as stack:
        mongo = started(stack, MongoReplicaSet())
        with Client(mongo.uri) as client:
            first = client["local"]["oplog.rs"].find_one({}, sort=[("$natural", 1)])
            assert first is not None
            assert "t" not in first
        async with reading(mongo.uri, database="shop") as read:
            position = position_of(read)
        entry = (first["ts"].time, first["ts"].inc, -1)
        known = structs.replace(position, entry=entry)
        assert not known.token.is_of_event
        async with reading(mongo.uri, position=known.text(), database="shop") as read:
            await read.until(lambda r: r.heartbeats > 0)
            assert read.events == []


def position_of(read: Reading) -> MongoPosition:
    return parse_position(read.position or "")
