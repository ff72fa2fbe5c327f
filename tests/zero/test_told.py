"""What is told of a change that came without its document, and of tables that change."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

from penstock.event import Commit, Operation
from penstock.log.config import LogConfig
from penstock.log.lmdb import LmdbLog
from penstock.serve.zero.holding import ShardHolds
from penstock.serve.zero.record import (
    Mark,
    ShardRecord,
    Version,
    acknowledged,
    announced,
    tables_at,
)
from penstock.serve.zero.shards import ShardBook, key_of
from penstock.state.keeper import StateKeeper
from penstock.subscribe import Criteria
from penstock.subscribe.captures.past import Known
from penstock.subscribe.current import Declared, Reading
from tests.state.histories import change, copied_whole
from tests.waiting import patience
from tests.zero.endpoint import SHIPPED, Replica, connection, fold, served

GROWING: dict[str, Any] = {"item": {"source": "shop", "collection": "items"}}


def record(**changes: Any) -> ShardRecord:
    """Of a shard."""
    start = Mark(3, 30, 0)
    facts: dict[str, Any] = {
        "who": "",
        "name": "zero/0",
        "publications": (),
        "sources": ("shop",),
        "fingerprint": "f",
        "log_id": 1,
        "snapshot": start,
        "floor": start,
        "changed": 3,
        "versions": (Version(3, Raw(b"[]")),),
        "seen_at": 1_000,
    }
    return ShardRecord(**{**facts, **changes})


class Late:
    """Current rows that say everything one look later."""

    def __init__(self, keeper: StateKeeper) -> None:
        self._keeper = keeper
        self._before: Known | None = None

    def open(self, criteria: Criteria) -> Reading:
        return self._keeper.open(criteria)

    def declared(self, source: str, *, at: int) -> list[Declared] | None:
        return self._keeper.declared(source, at=at)

    def look(
        self, name: tuple[str, str, str], spellings: Sequence[bytes], *, at: int | None = None
    ) -> Known | None:
        """As the keeper's, but as of the look before."""
        before, self._before = self._before, self._keeper.look(name, spellings, at=at)
        return before


@pytest.mark.slow
async def test_an_update_without_its_document_is_told_with_the_current_one(tmp_path: Path) -> None:
    """The current rows may be behind the log: then it waits, and tells no older document."""
    async with served(tmp_path) as endpoint:
        endpoint.service.rows = Late(endpoint.keeper)
        await endpoint.put(1, name="one")
        await endpoint.applied()
        replica = Replica()
        async with connection(endpoint, **SHIPPED) as socket:
            await fold(socket, replica)
            for number in range(20):
                name = f"name {number}"
                commit = await endpoint.append(
                    change(
                        "shop",
                        "items",
                        1,
                        Operation.UPDATE,
                        update={"updatedFields": {"name": name}, "removedFields": []},
                        position=20 + number,
                    )
                )
                await fold(socket, replica, commit)
                assert replica.rows["item"] == {(1,): {"id": 1, "name": name}}


@pytest.mark.slow
async def test_a_column_that_came_later_is_known_to_who_comes_back(tmp_path: Path) -> None:
    """Z7: tables are kept by commit, before their client is told of them."""
    async with served(tmp_path, tables=GROWING) as endpoint:
        await endpoint.put(1, name="one")
        await endpoint.applied()
        replica = Replica()
        async with connection(endpoint, **SHIPPED) as socket:
            await fold(socket, replica)
        commit = await endpoint.put(2, name="two", extra="x")
        again = Replica()
        for _ in range(2):
            # Who comes back with the watermark before it is told of the column again.
            again = Replica()
            again.tables, again.rows = dict(replica.tables), dict(replica.rows)
            again.watermark, again.version = replica.watermark, replica.version
            async with connection(endpoint, **SHIPPED, **replica.resuming()) as socket:
                await fold(socket, again, commit)
            assert "extra" in again.tables["item"]["columns"]
        last = await endpoint.put(3, name="three", extra="y")
        async with connection(endpoint, **SHIPPED, **again.resuming()) as socket:
            await fold(socket, again, last)
        assert [row["extra"] for row in again.rows["item"].values()] == [None, "x", "y"]


def test_the_tables_of_a_commit_are_those_that_were_told_up_to_it() -> None:
    kept = announced(announced(record(), 5, Raw(b"[5]")), 9, Raw(b"[9]"))
    assert [bytes(tables_at(kept, commit)) for commit in (3, 4, 5, 8, 9)] == [
        b"[]",
        b"[]",
        b"[5]",
        b"[5]",
        b"[9]",
    ]
    assert bytes(tables_at(announced(kept, 5, Raw(b"[55]")), 9)) == b"[55]"


async def test_the_log_keeps_what_a_shard_did_not_acknowledge(tmp_path: Path) -> None:
    """Z2, Z11: for as long as it may, and from what was acknowledged on."""
    path, now = tmp_path / "log", 1_000_000
    log = LmdbLog(LogConfig(path=path, free_bytes_min=0, retention_events=5))
    log.held_by(ShardHolds(path, wall_ms=lambda: now, steady_seconds=iter(range(10**9)).__next__))
    book = await ShardBook.open(path, hold_seconds=100, hold_bytes=1 << 20)
    try:
        await log.append(copied_whole("shop"))
        floor = Mark(1, 3, 0)
        kept = record(floor=floor, seen_at=now)
        await book.save(key_of("", "zero/0"), kept)

        async def grow(first: int) -> int:
            for n in range(first, first + 50):
                event = change("shop", "a", n, document={"_id": n}, position=n)
                await log.append([Commit(source="shop", position=str(n), events=(event,))])
            return (await log.bounds()).trimmed

        assert await grow(10) <= 3
        await book.save(key_of("", "zero/0"), record(floor=Mark(20, 20, 0), seen_at=now))
        assert 3 < await grow(100) <= 20
        now += 101_000
        assert await grow(200) > 20
    finally:
        await book.close()
        await log.close()


async def test_acknowledgements_are_durable_together(tmp_path: Path) -> None:
    book = await ShardBook.open(tmp_path, hold_seconds=100, hold_bytes=1 << 20)
    try:
        for number in range(20):
            book.later(key_of("", str(number)), record(name=str(number)))
        async with asyncio.TaskGroup() as group:
            for number in range(20, 30):
                group.create_task(book.save(key_of("", str(number)), record(name=str(number))))
    finally:
        await book.close()
    again = await ShardBook.open(tmp_path, hold_seconds=100, hold_bytes=1 << 20)
    try:
        assert {one.name for one in again.records.values()} == {str(n) for n in range(30)}
        await again.forget(lambda one: one.name == "3")
    finally:
        await again.close()
    third = await ShardBook.open(tmp_path, hold_seconds=100, hold_bytes=1 << 20)
    assert len(third.records) == 29
    await third.close()


async def test_whoever_writes_behind_an_error_is_told_how_it_went(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An acknowledgement that could not be written is written with the next record."""
    failed = asyncio.Event()
    loop = asyncio.get_running_loop()

    def broken(*_: Any) -> None:
        loop.call_soon_threadsafe(failed.set)
        raise OSError("the disk said no")

    book = await ShardBook.open(tmp_path, hold_seconds=0, hold_bytes=0)
    with monkeypatch.context() as patch:
        patch.setattr("penstock.serve.zero.shards._put", broken)
        book.later(b"a", record(name="a"))
        await failed.wait()
        with pytest.raises(OSError, match="said no"):
            async with patience():
                await book.save(b"b", record(name="b"))
    async with patience():
        await book.save(b"c", record(name="c"))
    await book.close()
    again = await ShardBook.open(tmp_path, hold_seconds=0, hold_bytes=0)
    assert again.records.keys() == {b"a", b"b", b"c"}
    await again.close()


@pytest.mark.parametrize("floor", [2, 3])
def test_a_record_never_moves_back(floor: int) -> None:
    moved = acknowledged(record(), Mark(floor, 5, 0), floor, now_ms=5)
    assert moved.floor.commit == 3
    assert moved.seen_at == 5
