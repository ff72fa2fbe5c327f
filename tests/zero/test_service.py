"""The endpoint for zero-cache in a whole service: configured, killed, watched."""

import asyncio
import contextlib
import json
import random
import socket
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed

from penstock.cli.config import load
from penstock.errors import ConfigError
from penstock.event import Commit
from penstock.log.lmdb import LmdbLog
from tests.children import MODULE, Child
from tests.cli.service import SHOP, Service, configure, penstock
from tests.state.histories import change
from tests.waiting import turns, until
from tests.zero.endpoint import SHIPPED, Address, Replica, ack, connection, message, opened

SERVER = "tests.zero.server_process"
ZERO = """
[serve.zero]
status_interval = "50ms"
permissions = { tables = {} }
[serve.zero.sources.shop]
"""


async def written(log: LmdbLog, commits: int) -> None:
    """Commits, one after the other."""
    for _ in range(commits):
        sequence = (await log.bounds()).head
        event = change("shop", "items", sequence, document={"_id": sequence, "name": "x"})
        await log.append([Commit(source="shop", position=str(sequence), events=(event,))])
        await asyncio.sleep(0)


async def followed(address: str, replica: Replica, until: int) -> None:
    """Follow to a commit, acknowledging each, until the server is gone."""
    known = replica.resuming() if replica.watermark else {}
    async with connection(Address(address), **SHIPPED, **known) as client:
        while not replica.watermark or replica.commit < until:
            if replica.take(await message(client)) == "commit":
                await ack(client, replica.watermark)
            assert not replica.resets


@pytest.mark.slow
async def test_a_killed_serve_process_costs_a_shard_nothing(tmp_path: Path) -> None:
    """Z2, Z3, Z10: under writes, it goes on behind the last transaction that it had whole."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    replica = Replica()
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    async with opened(tmp_path) as log:
        await written(log, 50)
        for _ in range(4):
            with Child(*MODULE, SERVER, tmp_path, address) as server:
                assert await asyncio.to_thread(server.line), server.tail()
                writing = asyncio.create_task(written(log, 200))
                following = asyncio.create_task(followed(address, replica, 1 << 40))
                enough = len(replica.transactions) + chance.randrange(1, 150)
                while len(replica.transactions) < enough and not following.done():
                    await turns(1)
                server.kill()
                with contextlib.suppress(ConnectionClosed):
                    await following
                await writing
            replica.abandon()
            replica.statuses.clear()
        with Child(*MODULE, SERVER, tmp_path, address) as server:
            assert await asyncio.to_thread(server.line), server.tail()
            await followed(address, replica, (await log.bounds()).head_commit)
    assert len(replica.rows["item"]) == 50 + 4 * 200
    assert len({*replica.transactions}) == len(replica.transactions)


@pytest.mark.slow
async def test_a_shard_that_waits_for_rows_is_seen_to_wait(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In /health, in metrics and in the status, with the reason."""
    # Nobody has ever copied the simulated shop, so that not all of its rows are known.
    with Service(configure(tmp_path, SHOP.format(rate=50) + ZERO)) as service:
        address = str(service.ready["http"])

        def get(path: str) -> str:
            with urllib.request.urlopen(f"http://{address}{path}") as answer:
                return str(answer.read().decode())

        async with connection(Address(address), **SHIPPED):
            shards: list[dict[str, Any]] = []
            while not shards or not shards[0]["code"]:
                shards = json.loads(await asyncio.to_thread(get, "/health"))["shards"]
            (shard,) = shards
            assert (shard["shard"], shard["state"]) == ("zero/0", "waiting")
            assert (shard["status"], shard["code"]) == ("degraded", "state.incomplete")
            assert shard["gaps"] == ["shop"]
            metrics = await asyncio.to_thread(get, "/metrics")
            assert 'penstock_zero_shards{state="waiting"} 1.0' in metrics
            assert "penstock_zero_lag_commits" in metrics

            def told() -> list[dict[str, Any]] | None:
                done = penstock(capsys, "status", "--config", str(service.config), "--json")
                found: list[dict[str, Any]] = json.loads(done.out)["shards"]
                return found if found and found[0]["code"] else None

            said = await until(lambda: asyncio.to_thread(told))
            assert (said[0]["shard"], said[0]["gaps"]) == ("zero/0", ["shop"])


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("[state]\nenabled = false\n", r"\[state\]"),
        ("[serve.zero.tables.x]\nsource = 'shp'\ncollection = 'a'\n", r"did you mean shop"),
        ("[serve.zero.publications]\na = ['nothing']\n", "nothing"),
        ("[serve.zero.clients]\nsource = 'crm'\ncollection = 'a'\n", "sources.crm"),
    ],
)
def test_what_could_not_be_served_is_refused_at_the_start(
    tmp_path: Path, text: str, word: str
) -> None:
    with pytest.raises(ConfigError, match=word):
        load(configure(tmp_path, SHOP.format(rate=1) + ZERO + text))


def test_permissions_that_are_no_json_are_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "permissions.json").write_text("[]")
    text = ZERO.replace("{ tables = {} }", "'permissions.json'")
    with pytest.raises(ConfigError, match="no JSON object"):
        load(configure(tmp_path, SHOP.format(rate=1) + text))
