"""A new machine whose published position the oplog no longer holds (P20, S7)."""

import asyncio
import shutil
import uuid
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from pymongo import MongoClient

from penstock.capture import State
from penstock.event import Kind, SystemEvent, kind_of
from penstock.log.wake import ask
from penstock.sources.mongodb.positions import MongoPosition, Token, parse_position
from penstock.testing.contracts.entries import read_all
from penstock.testing.servers import MongoReplicaSet
from tests.checkpoints.support import facts, machine, published, republish, service


def ancient(position: MongoPosition) -> str:
    """`position`, long before any oplog begins; see `Token.beyond`."""
    version = position.token.data[18:22]
    return structs.replace(position, token=Token(f"820000000100000001{version}29296E04")).text()


def sections(mongo: MongoReplicaSet, database: str, on_position_lost: str) -> tuple[str, str]:
    """A store in the deployment that is captured is fine for a test, and for nothing else."""
    checkpoint = (
        f'[checkpoint]\nstore = "mongodb"\ninstance = "{uuid.uuid4().hex}"\nuri = "{mongo.uri}"\n'
        f'database = "{database}_copies"\ninterval = "50ms"\n'
    )
    source = (
        f'[sources.shop]\ntype = "mongodb"\nuri = "{mongo.uri}"\ndatabase = "{database}"\n'
        f'heartbeat_seconds = 0.2\non_position_lost = "{on_position_lost}"\n'
    )
    return checkpoint, source


@pytest.fixture
def copies(mongo_client: MongoClient[dict[str, Any]], mongo_database: str) -> Any:
    yield mongo_client[mongo_database]
    mongo_client.drop_database(f"{mongo_database}_copies")


@pytest.mark.parametrize("mode", ["gap", "halt"])
async def test_a_published_position_that_is_too_old_is_a_gap_of_its_own_and_ends(
    tmp_path: Path, mongo: MongoReplicaSet, mongo_database: str, copies: Any, mode: str
) -> None:
    """Two losses, two gaps: the log of the machine before, and what the oplog let go. And then as
    on_position_lost says: nothing starts over for ever, and nothing starts at "now" in silence."""
    checkpoint, source = sections(mongo, mongo_database, mode)
    async with service(machine(tmp_path / "a", checkpoint, source)) as first:
        await until_moved(first)
        await asyncio.to_thread(copies["orders"].insert_many, [{"n": n} for n in range(5)])
        while (await first.log.bounds()).head < 5:
            await first.log.wait(after=4, timeout_seconds=0.1)
        copy = await first.until_published()
    shutil.rmtree(tmp_path / "a")
    (state,) = copy.sources
    old = ancient(parse_position(state.position))
    settings = machine(tmp_path / "b", checkpoint, source)
    now = await published(settings)
    assert now is not None
    await republish(settings, structs.replace(now, sources=(structs.replace(state, position=old),)))
    async with service(settings) as new:
        while len(gaps := await gaps_of(new)) < 2:
            await new.log.wait(after=(await new.log.bounds()).head, timeout_seconds=0.1)
        assert [bool(gap["from"]) for gap in gaps] == [False, True]
        assert gaps[0]["to"] == old
        assert gaps[1]["reason"] == "ChangeStreamHistoryLost"
        if mode == "halt":
            await until_state(new, State.STOPPED)
            return
        await asyncio.to_thread(copies["orders"].insert_one, {"n": 5})
        while not await data_of(new):
            await new.log.wait(after=(await new.log.bounds()).head, timeout_seconds=0.1)


async def until_moved(running: Any) -> None:
    while await running.log.position("shop") is None:
        await running.log.wait(after=(await running.log.bounds()).head, timeout_seconds=0.1)


async def until_state(running: Any, state: State) -> None:
    while True:
        answer = await asyncio.to_thread(ask, running.log.path, {"request": "status"})
        if answer.get("sources", [{}])[0].get("state") == state.value:
            return


async def gaps_of(running: Any) -> list[dict[str, Any]]:
    base = (await running.log.bounds()).trimmed
    return [
        facts(entry.event.description)
        for entry in await read_all(running.log, after=base)
        if isinstance(entry.event, SystemEvent) and entry.event.kind is Kind.GAP
    ]


async def data_of(running: Any) -> list[Any]:
    base = (await running.log.bounds()).trimmed
    return [
        entry
        for entry in await read_all(running.log, after=base)
        if kind_of(entry.event) is Kind.DATA
    ]
