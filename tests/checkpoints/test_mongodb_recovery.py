"""A new machine whose published position the oplog no longer holds (P20, S7)."""

import asyncio
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient

from penstock.capture import State
from penstock.event import Entry, Kind, SystemEvent, kind_of
from penstock.log.wake import ask
from penstock.sources.mongodb.positions import parse_position
from penstock.testing.contracts.entries import read_all
from tests import waiting
from tests.checkpoints.support import Running, etcd_section, facts, machine, service
from tests.conftest import started
from tests.mongodb.histories import roll_over
from tests_support.servers import EtcdServer, MongoReplicaSet

Client = MongoClient[dict[str, Any]]


@pytest.fixture(scope="module")
def small() -> Iterator[MongoReplicaSet]:
    """A replica set that keeps little history."""
    with ExitStack() as stack:
        yield started(stack, MongoReplicaSet(oplog_mb=16, extra_args=("--syncdelay", "1")))


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["gap", "halt"])
async def test_a_published_position_that_is_too_old_is_a_gap_of_its_own_and_ends(
    tmp_path: Path, small: MongoReplicaSet, etcd: EtcdServer, mode: str
) -> None:
    """Two losses, two gaps: the log of the machine before, and what the oplog let go. And then as
    on_position_lost says: nothing starts over for ever, and nothing starts at "now" in silence."""
    checkpoint = etcd_section(etcd, f"test-{uuid.uuid4().hex[:12]}")
    database = f"shop_{mode}"
    source = (
        f'[sources.shop]\ntype = "mongodb"\nuri = "{small.uri}"\ndatabase = "{database}"\n'
        f'heartbeat_seconds = 0.2\non_position_lost = "{mode}"\n'
    )
    with Client(small.uri, w="majority") as client:
        orders = client[database]["orders"]
        async with service(machine(tmp_path / "a", checkpoint, source)) as first:
            await until_moved(first)
            await asyncio.to_thread(orders.insert_many, [{"n": n} for n in range(5)])
            await until(first, lambda entries: len(data(entries)) == 5)
            copy = await first.until_published()
        shutil.rmtree(tmp_path / "a")
        (state,) = copy.sources
        await asyncio.to_thread(roll_over, client, parse_position(state.position).token.time)
        async with service(machine(tmp_path / "b", checkpoint, source)) as new:
            entries = await until(new, lambda entries: len(gaps(entries)) == 2)
            log_gone, lost = gaps(entries)
            assert (log_gone["from"], log_gone["sequence"]) == (None, copy.sequence)
            assert lost["from"] == parse_position(lost_at(log_gone)).token.data
            assert lost["reason"] == "ChangeStreamHistoryLost (286)"
            if mode == "halt":
                await until_state(new, State.STOPPED)
                return
            await asyncio.to_thread(orders.insert_one, {"n": 5})
            await until(new, lambda entries: len(data(entries)) == 1)


def lost_at(gap: dict[str, Any]) -> str:
    """The position that was published."""
    return str(gap["to"])


async def until_moved(running: Running) -> None:
    await waiting.until(lambda: running.log.position("shop"), task=running.task)


async def until_state(running: Running, state: State) -> None:
    async def is_so() -> bool:
        answer = await asyncio.to_thread(ask, running.log.path, {"request": "status"})
        return bool(answer.get("sources", [{}])[0].get("state") == state.value)

    await waiting.until(is_so, task=running.task)


async def until(running: Running, reached: Callable[[list[Entry]], bool]) -> list[Entry]:
    """The entries of its log, once they are so."""

    async def held() -> list[Entry] | None:
        entries = await read_all(running.log, after=(await running.log.bounds()).trimmed)
        return entries if reached(entries) else None

    return await waiting.until(held, task=running.task)


def gaps(entries: list[Entry]) -> list[dict[str, Any]]:
    return [
        facts(entry.event.description)
        for entry in entries
        if isinstance(entry.event, SystemEvent) and entry.event.kind is Kind.GAP
    ]


def data(entries: list[Entry]) -> list[Entry]:
    return [entry for entry in entries if kind_of(entry.event) is Kind.DATA]
