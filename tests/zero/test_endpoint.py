"""The endpoint for zero-cache, told by a plain client that folds what it hears into tables."""

import asyncio
import time
from pathlib import Path

import pytest

from tests.waiting import until
from tests.zero.endpoint import (
    SHIPPED,
    Replica,
    ack,
    connection,
    fold,
    message,
    served,
)


@pytest.mark.slow
async def test_a_shard_begins_with_every_row_and_gets_each_commit_after_it(tmp_path: Path) -> None:
    """Z2, Z5, Z6: the snapshot is one transaction, with Zero's own tables and its one permission;
    what is committed after it comes in the order of the log."""
    async with served(tmp_path) as endpoint:
        await endpoint.put(1, name="one")
        await endpoint.put(2, name="two")
        await endpoint.applied()
        replica = Replica()
        async with connection(endpoint, **SHIPPED) as socket:
            await fold(socket, replica)
            assert replica.rows["item"] == {
                (1,): {"id": 1, "name": "one"},
                (2,): {"id": 2, "name": "two"},
            }
            assert {"zero_0.clients", "zero_0.mutations"} <= replica.tables.keys()
            assert list(replica.rows["zero.permissions"].values()) == [
                {"lock": True, "permissions": None, "hash": None}
            ]
            assert all("index" in table for table in replica.tables.values())
        commit = await endpoint.put(3, name="three")
        async with connection(endpoint, **SHIPPED, **replica.resuming()) as socket:
            await fold(socket, replica, commit)
            assert replica.rows["item"][3,] == {"id": 3, "name": "three"}
            await ack(socket, replica.watermark)


@pytest.mark.slow
async def test_a_clock_that_is_set_back_lets_no_shard_go_sooner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is set right again one day, and what was dated by it would be over at once."""
    real = time.time_ns
    async with served(tmp_path) as endpoint:
        await endpoint.put(1, name="one")
        await endpoint.applied()
        began_ms = real() // 1_000_000
        monkeypatch.setattr(time, "time_ns", lambda: real() - 200 * 86_400 * 10**9)
        replica = Replica()
        async with connection(endpoint, **SHIPPED) as socket:
            await fold(socket, replica)
            (record,) = endpoint.service.book.records.values()
            assert record.seen_at >= began_ms
            await fold(socket, replica, await endpoint.put(2, name="two"))
            await ack(socket, replica.watermark)
            await until(lambda: endpoint.service.shards()[0].commit >= replica.commit)
        (record,) = endpoint.service.book.records.values()
        assert record.seen_at >= began_ms


@pytest.mark.slow
async def test_an_idle_shard_is_told_of_commits_that_do_not_concern_it(tmp_path: Path) -> None:
    """Z4: a status moves the watermark; who comes back with the commit before it is resumed."""
    async with served(tmp_path) as endpoint:
        await endpoint.put(1, name="one")
        await endpoint.applied()
        replica = Replica()
        async with connection(endpoint, **SHIPPED) as socket:
            await fold(socket, replica)
            await endpoint.put(1, "others")
            assert replica.take(await message(socket)) == "status"
            await ack(socket, replica.statuses[-1], of_rows=False)
            key = next(iter(endpoint.service.book.records))
            await until(lambda: endpoint.service.book.records[key].floor.commit > replica.commit)
            # Ten times the interval: what did not move is not told again.
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await message(socket)


@pytest.mark.slow
async def test_whoever_comes_back_is_told_no_watermark_that_it_has(tmp_path: Path) -> None:
    """Z3: watermarks rise strictly, over connections too; zero-cache drops what does not rise."""
    async with served(tmp_path) as endpoint:
        await endpoint.put(1, name="one")
        await endpoint.applied()
        replica = Replica()
        async with connection(endpoint, **SHIPPED) as socket:
            await fold(socket, replica)
        async with connection(endpoint, **SHIPPED, **replica.resuming()) as socket:
            await fold(socket, replica, await endpoint.put(2, name="not acknowledged"))
        async with connection(endpoint, **SHIPPED, **replica.resuming()) as socket:
            # Ten times the interval at which it is told of what does not concern it.
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await message(socket)
