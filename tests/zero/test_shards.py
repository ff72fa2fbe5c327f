"""What is kept of a shard, and who may go on from where."""

import asyncio
import contextlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw, structs
from structlog.testing import capture_logs
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from penstock.serve.zero.acks import Ack
from penstock.serve.zero.marks import Marks
from penstock.serve.zero.record import Mark
from penstock.serve.zero.watermarks import read_watermark, watermark_of
from penstock.telemetry import SERVE_REGISTRY
from penstock.zero.lexi import lexi_version
from tests.state.histories import change
from tests.waiting import until
from tests.zero.endpoint import (
    DESIGN,
    ITEMS,
    SHIPPED,
    Endpoint,
    Replica,
    ack,
    connection,
    fold,
    message,
    served,
    url,
)

pytestmark = pytest.mark.slow


async def begun(endpoint: Endpoint, **parameters: Any) -> Replica:
    """A replica with the snapshot."""
    replica = Replica()
    async with connection(endpoint, **(parameters or SHIPPED)) as socket:
        await fold(socket, replica)
    return replica


async def closed(socket: ClientConnection) -> tuple[int, str]:
    """How the server closes, after whatever else it says."""
    with contextlib.suppress(ConnectionClosed):
        async for _ in socket:
            pass
    return socket.close_code or 0, socket.close_reason or ""


async def reset(endpoint: Endpoint, **parameters: Any) -> str:
    """Why a client is told to begin anew."""
    async with connection(endpoint, **parameters) as socket:
        said = await message(socket)
        assert said[:1] == ["control"]
        assert said[1]["tag"] == "reset-required"
        await closed(socket)
        return str(said[1]["message"])


async def acknowledged(endpoint: Endpoint, commit: int) -> None:
    """The only shard has acknowledged `commit`."""
    (key,) = endpoint.service.book.records
    await until(lambda: endpoint.service.book.records[key].floor.commit >= commit)


def mark(commit: int) -> Mark:
    return Mark(commit, commit * 10, 0)


def test_an_echo_of_a_status_proves_nothing_of_a_transaction_that_is_not_acknowledged() -> None:
    """Z4."""
    marks = Marks(mark(1), 1)
    marks.sent(mark(2), changes=True)
    marks.sent(mark(5), changes=False)
    assert marks.acknowledged(Ack(5, of_rows=False)) is None
    found = marks.acknowledged(Ack(2, of_rows=True))
    assert found is not None
    assert found.mark == mark(2)
    marks.sent(mark(6), changes=False)
    found = marks.acknowledged(Ack(6, of_rows=False))
    assert found is not None
    assert (found.mark, found.changed) == (mark(6), 2)


def test_only_what_was_sent_can_be_acknowledged_and_little_of_it_is_remembered() -> None:
    marks = Marks(mark(1), 1)
    for commit in range(2, 100_000):
        marks.sent(mark(commit), changes=True)
    with pytest.raises(ValueError, match="not sent"):
        marks.acknowledged(Ack(100_000, of_rows=True))
    found = marks.acknowledged(Ack(99_000, of_rows=True))
    assert found is not None
    assert 90_000 < found.mark.commit <= 99_000
    found = marks.acknowledged(Ack(99_999, of_rows=True))
    assert found is not None
    assert found.mark == mark(99_999)


async def test_a_shard_whose_place_was_trimmed_begins_anew_and_is_told_why(tmp_path: Path) -> None:
    """Z11: after an acknowledgement the log may go; retention has the last word."""
    async with served(tmp_path) as endpoint:
        await endpoint.put(1, name="one")
        await endpoint.applied()
        replica = await begun(endpoint)
        for key in range(2, 8):
            await endpoint.put(key, name="more")
        bounds = await endpoint.log.bounds()
        await endpoint.log.trim(until=bounds.head - 2)
        assert "retention" in await reset(endpoint, **SHIPPED, **replica.resuming())


async def test_a_shard_that_retention_overtakes_while_it_takes_nothing_begins_anew(
    tmp_path: Path,
) -> None:
    """Z11: also on a connection that goes on; what it is in the middle of is taken back first."""
    async with served(tmp_path, batch_bytes_max=64 << 10) as endpoint:
        await endpoint.put(1, name="one")
        await endpoint.applied()
        replica = await begun(endpoint)
        at = url(endpoint, **SHIPPED, **replica.resuming())
        socket = await connect(at, max_queue=1, compression=None, max_size=None)
        try:
            for key in range(2, 202):
                await endpoint.put(key, name="x" * 100_000)
            bounds = await endpoint.log.bounds()
            await endpoint.log.trim(until=bounds.head - 2)
            while not replica.resets:
                replica.take(await message(socket))
        finally:
            socket.transport.abort()
        assert "retention" in replica.resets[0]
        assert replica.commit < bounds.head_commit - 2


async def test_a_status_that_was_acknowledged_lets_the_log_go(tmp_path: Path) -> None:
    """Z4: the client comes back with its last commit, which is trimmed, and misses nothing."""
    async with served(tmp_path) as endpoint:
        await endpoint.put(1, name="one")
        await endpoint.applied()
        replica = Replica()
        async with connection(endpoint, **SHIPPED) as socket:
            await fold(socket, replica)
            last = 0
            for key in range(5):
                last = await endpoint.put(key, "others")
            told = 0
            while told < last:
                replica.take(await message(socket))
                await ack(socket, replica.statuses[-1], of_rows=False)
                told = read_watermark(replica.statuses[-1]).commit
            await acknowledged(endpoint, last)
        await endpoint.log.trim(until=(await endpoint.log.bounds()).head)
        commit = await endpoint.put(2, name="two")
        replica.statuses.clear()
        async with connection(endpoint, **SHIPPED, **replica.resuming()) as socket:
            await fold(socket, replica, commit)
        assert replica.rows["item"].keys() == {(1,), (2,)}


async def test_only_who_cannot_go_on_begins_anew(tmp_path: Path) -> None:
    """Z4: a shard that nobody knows, another replica, a watermark from elsewhere."""
    async with served(tmp_path) as endpoint:
        await endpoint.put(1, name="one")
        await endpoint.applied()
        replica = await begun(endpoint)
        other = {"appID": "other", "shardNum": "0"}
        assert "no record" in await reset(endpoint, **other, **replica.resuming())
        foreign = {**replica.resuming(), "replicaVersion": "01"}
        assert "another snapshot" in await reset(endpoint, **SHIPPED, **foreign)
        ahead = {**replica.resuming(), "lastWatermark": "1rs"}
        assert "ahead of the log" in await reset(endpoint, **SHIPPED, **ahead)
        async with connection(endpoint, **SHIPPED, **replica.resuming()) as socket:
            commit = await endpoint.put(2, name="two")
            await fold(socket, replica, commit)
            assert not replica.resets


@pytest.mark.parametrize("lost", [True, False])
async def test_a_replica_of_a_history_that_was_lost_begins_anew(tmp_path: Path, lost: bool) -> None:
    """The folder is put back from an older copy, and the same change comes as the same commit, with
    another one before it."""
    path, copy = tmp_path / "log", tmp_path / "copy"
    async with served(path) as endpoint:
        await endpoint.put(1, name="one")
        await endpoint.applied()
        replica = await begun(endpoint)
    shutil.copytree(path, copy)
    if lost:
        async with (
            served(path) as endpoint,
            connection(endpoint, **SHIPPED, **replica.resuming()) as socket,
        ):
            await endpoint.put(9, "others")
            await fold(socket, replica, await endpoint.put(2, name="two"))
    shutil.rmtree(path)
    copy.rename(path)
    async with served(path) as endpoint:
        await endpoint.put(3, name="three")
        commit = await endpoint.put(2, name="two")
        if lost:
            assert replica.commit == commit
            said = await reset(endpoint, **SHIPPED, **replica.resuming())
            assert "put back from an older copy" in said
            return
        async with connection(endpoint, **SHIPPED, **replica.resuming()) as socket:
            await fold(socket, replica, commit)
        assert replica.rows["item"].keys() == {(1,), (2,), (3,)}


async def test_a_replica_that_an_earlier_penstock_told_goes_on(tmp_path: Path) -> None:
    """Its watermarks are the numbers of commits, and those that follow rise above them."""
    async with served(tmp_path) as endpoint:
        await endpoint.put(1, name="one")
        await endpoint.applied()
        replica = await begun(endpoint)
        replica.watermark = replica.version = lexi_version(replica.commit)
        async with connection(endpoint, **SHIPPED, **replica.resuming()) as socket:
            await fold(socket, replica, await endpoint.put(2, name="two"))
        assert replica.rows["item"].keys() == {(1,), (2,)}


async def test_who_comes_back_from_before_an_acknowledgement_is_told_by_no_later_tables(
    tmp_path: Path,
) -> None:
    """Z7: zero-cache's own database was restored. It goes on only if its tables are still known."""
    tables = {"item": {"source": "shop", "collection": "items"}}
    async with served(tmp_path, tables=tables) as endpoint:
        await endpoint.put(1, name="one")
        await endpoint.applied()
        replica = await begun(endpoint)
        before = replica.resuming()
        async with connection(endpoint, **SHIPPED, **before) as socket:
            await fold(socket, replica, await endpoint.put(2, name="two"))
            await ack(socket, replica.watermark)
            await acknowledged(endpoint, replica.commit)
        again = Replica()
        again.tables, again.rows = replica.tables, {**replica.rows, "item": {}}
        row = replica.rows["item"][1,]
        again.rows["item"][1,] = row
        async with connection(endpoint, **SHIPPED, **before) as socket:
            await fold(socket, again)
        assert again.rows == replica.rows
        (held,) = endpoint.service.book.records.values()
        floor = watermark_of(held.floor.commit, held.floor.check)
        assert floor == before["lastWatermark"], "it is kept once more"
        async with connection(endpoint, **SHIPPED, **replica.resuming()) as socket:
            await fold(socket, replica, await endpoint.put(3, name="three", extra="x"))
            await ack(socket, replica.watermark)
            await acknowledged(endpoint, replica.commit)
        said = await reset(endpoint, **SHIPPED, **before)
        assert "its tables were others there" in said


async def test_a_shard_outlives_its_service_but_not_other_tables(tmp_path: Path) -> None:
    """Z2: the record of what was acknowledged is durable; other tables need another replica."""
    async with served(tmp_path) as endpoint:
        await endpoint.put(1, name="one")
        await endpoint.applied()
        replica = await begun(endpoint)
        await endpoint.put(2, name="two")
    async with served(tmp_path) as endpoint:
        async with connection(endpoint, **SHIPPED, **replica.resuming()) as socket:
            await fold(socket, replica)
        assert replica.rows["item"].keys() == {(1,), (2,)}
    wider = {"item": {**ITEMS["tables"]["item"], "rest": "rest"}}
    async with served(tmp_path, tables=wider) as endpoint:
        said = await reset(endpoint, **SHIPPED, **replica.resuming())
        assert "configured otherwise" in said


async def test_a_newer_connection_of_a_shard_ends_the_older(tmp_path: Path) -> None:
    async with served(tmp_path) as endpoint:
        await endpoint.put(1, name="one")
        await endpoint.applied()
        replica = await begun(endpoint)
        async with (
            connection(endpoint, **SHIPPED, **replica.resuming()) as older,
            connection(endpoint, **SHIPPED, **replica.resuming()) as newer,
        ):
            assert "took its place" in (await closed(older))[1]
            commit = await endpoint.put(2, name="two")
            await fold(newer, replica, commit)


async def test_an_older_connection_that_takes_nothing_keeps_no_newer_one_waiting(
    tmp_path: Path,
) -> None:
    """Its machine may be gone: nothing is left of it that could hear why it ends."""
    async with served(tmp_path, batch_bytes_max=64 << 10) as endpoint:
        filler = "x" * 100_000
        for key in range(200):
            await endpoint.put(key, name=filler)
        await endpoint.applied()
        older = await connect(url(endpoint), max_queue=1, ping_interval=None, compression=None)
        try:
            await message(older)
            (status,) = endpoint.service.shards()
            rows = -1
            while status.rows != rows:
                rows = status.rows
                await asyncio.sleep(0.1)
                (status,) = endpoint.service.shards()
            replica = await begun(endpoint)
        finally:
            older.transport.abort()
        assert len(replica.rows["item"]) == 200


async def test_the_first_design_has_its_own_words_and_zero_cache_never_hears_them(
    tmp_path: Path,
) -> None:
    """Z1."""
    async with served(tmp_path) as endpoint:
        await endpoint.put(1, name="one")
        await endpoint.applied()
        replica = Replica()
        async with connection(endpoint, **DESIGN) as socket:
            await fold(socket, replica)
            assert "zero_s1.clients" in replica.tables
            # The increments follow on the same connection.
            commit = await endpoint.put(2, name="two")
            await fold(socket, replica, commit)
            await endpoint.put(3, "others")
            assert (await message(socket))[1]["tag"] == "ack-requested"
            await socket.send(json.dumps(["ack", {"watermark": replica.watermark}]))
            await acknowledged(endpoint, replica.commit)
        shipped = Replica()
        async with connection(endpoint, **SHIPPED) as socket:
            await fold(socket, shipped)
            await endpoint.put(4, "others")
            assert shipped.take(await message(socket)) == "status"


async def test_an_acknowledgement_of_what_was_not_sent_ends_the_connection(tmp_path: Path) -> None:
    async with served(tmp_path) as endpoint:
        await endpoint.put(1, name="one")
        await endpoint.applied()
        replica = Replica()
        async with connection(endpoint, **SHIPPED) as socket:
            await fold(socket, replica)
            await ack(socket, "1rs")
            code, reason = await closed(socket)
        assert code == 1002
        assert "not sent" in reason


async def test_a_value_that_does_not_fit_stops_the_shard_and_says_where(tmp_path: Path) -> None:
    """Z7: never a silent null, and nothing of its transaction stays."""
    async with served(tmp_path) as endpoint:
        await endpoint.put(1, name="one")
        await endpoint.applied()
        replica = await begun(endpoint)
        await endpoint.put(2, name="two")
        await endpoint.put(3, name=["secret"])
        async with connection(endpoint, **SHIPPED, **replica.resuming()) as socket:
            await fold(socket, replica)
            code, reason = await closed(socket)
        assert code == 1011
        assert "table item, column name" in reason
        assert "secret" not in reason
        (status,) = endpoint.service.shards()
        assert (status.state, status.code) == ("stopped", "zero.misfit")
        assert replica.rows["item"].keys() == {(1,), (2,)}


async def test_a_transaction_that_cannot_be_told_to_its_end_is_taken_back(tmp_path: Path) -> None:
    """Z10: it was begun already, for a commit may be larger than what is read at once."""
    async with served(tmp_path, batch_bytes_max=1024) as endpoint:
        await endpoint.put(1, name="one")
        await endpoint.applied()
        replica = await begun(endpoint)
        names = ["x" * 10_000] * 30 + [5]
        await endpoint.append(
            *(
                change("shop", "items", key, document={"_id": key, "name": name}, ordinal=key)
                for key, name in enumerate(names)
            )
        )
        tags: list[str] = []
        async with connection(endpoint, **SHIPPED, **replica.resuming()) as socket:
            with contextlib.suppress(ConnectionClosed):
                while True:
                    tags.append(replica.take(await message(socket)))
            assert socket.close_code == 1011
        assert tags[:2] == ["begin", "data"]
        assert tags[-1] == "rollback"
        assert "commit" not in tags
        assert replica.rows["item"].keys() == {(1,)}


async def test_two_shards_have_the_tables_that_their_publications_name(tmp_path: Path) -> None:
    tables = {
        **ITEMS["tables"],
        "other": {
            "source": "shop",
            "collection": "others",
            "columns": {"id": {"from": "_id", "type": "int"}},
            "key": ["id"],
        },
    }
    views = {"items": ["item"], "all": ["item", "other"]}
    async with served(tmp_path, tables=tables, publications=views) as endpoint:
        await endpoint.put(1, name="one")
        await endpoint.put(2, "others")
        await endpoint.applied()
        few = await begun(endpoint, **SHIPPED, publications="items")
        second = {"appID": "zero", "shardNum": "1"}
        many = await begun(endpoint, **second, publications=["all", "items"])
        assert "other" not in few.tables
        assert many.rows["other"].keys() == {(2,)}
        said = await reset(endpoint, **SHIPPED, **few.resuming(), publications="all")
        assert "configured otherwise" in said


async def test_a_publication_of_a_whole_source_leaves_out_what_another_table_is_made_of(
    tmp_path: Path,
) -> None:
    """A collection of which a table has some columns is no table of all of them elsewhere."""
    given: dict[str, Any] = {**ITEMS, "sources": {"shop": {}}, "publications": {"rest": ["shop"]}}
    async with served(tmp_path, **given) as endpoint:
        await endpoint.put(1, name="one", secret="s")
        await endpoint.put(2, "others")
        await endpoint.applied()
        replica = await begun(endpoint, **SHIPPED, publications="rest")
        assert {name for name in replica.tables if "." not in name} == {"others"}
        async with connection(endpoint, **SHIPPED, **replica.resuming(), publications="rest") as it:
            await endpoint.put(3, name="three", secret="s")
            await fold(it, replica, await endpoint.put(4, "others"))
        assert {name for name in replica.tables if "." not in name} == {"others"}


async def test_a_collection_that_can_be_no_table_is_said_also_when_it_comes_later(
    tmp_path: Path,
) -> None:
    given: dict[str, Any] = {**ITEMS, "sources": {"shop": {}}}
    async with served(tmp_path, **given) as endpoint:
        await endpoint.put(1, name="one")
        await endpoint.applied()
        replica = await begun(endpoint)
        keyless = change("shop", "lines", 1, document={"line": "x"}, position=20)
        keyless = structs.replace(keyless, key=Raw(b'{"_row":"ab"}'))
        with capture_logs() as lines:
            async with connection(endpoint, **SHIPPED, **replica.resuming()) as socket:
                await endpoint.append(keyless)
                await fold(socket, replica, await endpoint.put(2, name="two"))
                await fold(socket, replica, await endpoint.put(3, name="three"))
        said = [line["collections"] for line in lines if "no tables" in line["event"]]
        assert said == [["lines"]]


async def test_a_client_that_takes_nothing_costs_a_few_batches(tmp_path: Path) -> None:
    """Z10: what is sent waits; only what lies in buffers was read."""
    async with served(tmp_path, batch_bytes_max=64 << 10) as endpoint:
        filler = "x" * 10_000
        for first in range(0, 2_000, 100):
            await endpoint.append(
                *(
                    change("shop", "items", key, document={"_id": key, "name": filler}, ordinal=key)
                    for key in range(first, first + 100)
                )
            )
        await endpoint.applied()
        async with connection(endpoint, **SHIPPED) as socket:
            await message(socket)
            (status,) = endpoint.service.shards()
            rows = -1
            while status.rows != rows:
                rows = status.rows
                await asyncio.sleep(0.1)
                (status,) = endpoint.service.shards()
            assert rows < 1_500, "the rest was not read"
            replica = Replica()
            replica.take(["begin", {}, {"commitWatermark": "1rs"}])
            taken = 0
            while (said := await message(socket))[0] != "commit":
                taken += said[1]["tag"] == "insert"
            assert taken == 2_001


async def test_a_row_that_does_not_fit_stops_the_copy_and_says_where(tmp_path: Path) -> None:
    """Z7; and a log line tells it once, however often zero-cache comes back."""
    async with served(tmp_path) as endpoint:
        await endpoint.put(1, name=5)
        await endpoint.applied()
        with capture_logs() as lines:
            for _ in range(3):
                async with connection(endpoint, **SHIPPED) as socket:
                    code, reason = await closed(socket)
                assert (code, "column name" in reason) == (1011, True)
        assert [line["code"] for line in lines if line["log_level"] == "error"] == ["zero.misfit"]
        (status,) = endpoint.service.shards()
        assert (status.state, status.code) == ("stopped", "zero.misfit")


async def test_what_is_sent_is_counted(tmp_path: Path) -> None:
    def counted(what: str) -> float:
        return SERVE_REGISTRY.get_sample_value(what) or 0.0

    names = (
        "penstock_zero_rows_total",
        "penstock_zero_messages_total",
        "penstock_zero_resets_total",
    )
    before = [counted(name) for name in names]
    async with served(tmp_path) as endpoint:
        await endpoint.put(1, name="one")
        await endpoint.applied()
        replica = await begun(endpoint)
        commit = await endpoint.put(2, name="two")
        async with connection(endpoint, **SHIPPED, **replica.resuming()) as socket:
            await fold(socket, replica, commit)
        foreign = {**replica.resuming(), "replicaVersion": "01"}
        await reset(endpoint, **SHIPPED, **foreign)
    rows, messages, resets = (counted(name) - was for name, was in zip(names, before, strict=True))
    # The copy of a whole source has a row of its own.
    assert (rows >= 1, messages, resets) == (True, 3, 1)
