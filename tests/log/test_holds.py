"""What somebody is about to need stays, whatever retention says; but never at capture's cost."""

import os
import resource
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from penstock.disks import space
from penstock.errors import LogError, PenstockError
from penstock.event import Commit
from penstock.holds import WrittenHolds
from penstock.kv import Env, exists, open_env
from penstock.log import LmdbLog
from penstock.log import trimming as trimming_module
from penstock.log.config import LogConfig
from penstock.log.memory import MemoryLog
from penstock.log.retention import Holdings, Old, due
from penstock.ports import Hold
from penstock.testing.contracts import ManualClock
from penstock.testing.contracts.entries import changes

Log = LmdbLog | MemoryLog
GIB = 1 << 30


def hold(sequence: int, *, bytes_max: int = GIB) -> Hold:
    return Hold(sequence=sequence, until_ms=1 << 60, bytes_max=bytes_max)


@pytest.fixture(params=["lmdb", "memory"])
async def log(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Log]:
    config = LogConfig(path=tmp_path / "log", retention_events=10, free_bytes_min=0)
    opened: Log = LmdbLog(config) if request.param == "lmdb" else MemoryLog(config)
    async with opened:
        yield opened


async def appended(log: Log, commits: int) -> int:
    """Append so many commits of two events; returns what is trimmed then."""
    for number in range(commits):
        events = changes("shop", str(number), 2)
        await log.append([Commit(source="shop", position=str(number), events=events)])
    return (await log.bounds()).trimmed


def test_who_begins_with_the_oldest_entry_holds_what_is_left(tmp_path: Path) -> None:
    env = open_env(tmp_path / "holds", create=True)
    env.databases([b"d"], create=True)
    one = Hold(sequence=5, until_ms=1 << 60, bytes_max=GIB)
    for oldest, trimmed, held in [(False, 5, 5), (False, 6, None), (True, 4, 5), (True, 6, 6)]:
        written = msgspec.structs.replace(one, oldest=oldest)
        with env.write() as txn:
            txn.put(b"k", msgspec.json.encode([written]), db=env[b"d"])
        holds = WrittenHolds(
            lambda: open_env(tmp_path / "holds", create=False), database=b"d", key=b"k"
        )
        found = holds(trimmed)
        assert (found and found.sequence) == held
        holds.close()
    env.close()


async def test_what_is_held_stays_until_it_is_let_go(log: Log) -> None:
    held: list[Hold] = []
    log.held_by(lambda _: held[0] if held else None)
    held.append(hold(6))
    assert await appended(log, 50) == 6
    held[0] = hold(31)
    assert 6 < await appended(log, 2) <= 31
    held.clear()
    trimmed = await appended(log, 20)
    assert trimmed > 31


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("days", [200, -200])
async def test_a_clock_that_was_set_ends_nothing_that_is_held(
    tmp_path: Path, *, restarted: bool, days: int
) -> None:
    """Until it has gone on so for an hour: then whoever set it meant it."""
    clock, seconds = ManualClock(), count().__next__
    config = LogConfig(path=tmp_path / "log", retention_events=10, free_bytes_min=0)
    until_ms = clock.wall_ms() + 86_400_000

    def held(log: LmdbLog) -> None:
        holds = WrittenHolds(
            lambda: open_env(tmp_path / "holds", create=False),
            database=b"d",
            key=b"k",
            wall_ms=log.earliest_ms,
            steady_seconds=seconds,
        )
        closing.append(holds)
        log.held_by(holds)

    closing = list[WrittenHolds]()
    with open_env(tmp_path / "holds", create=True) as env:
        env.databases([b"d"], create=True)
        one = Hold(sequence=4, until_ms=until_ms, bytes_max=GIB)
        with env.write() as txn:
            txn.put(b"k", msgspec.json.encode([one]), db=env[b"d"])
        async with AsyncExitStack() as running:
            log = await running.enter_async_context(LmdbLog(config, clock=clock))
            held(log)
            assert await appended(log, 30) == 4
            if restarted:
                await running.aclose()
            clock.jump(days * 86_400)
            if restarted:
                log = await running.enter_async_context(LmdbLog(config, clock=clock))
                held(log)
            for _ in range(6):
                assert await appended(log, 2) == 4
                clock.pass_(599)
            assert await appended(log, 2) == 4
            clock.pass_(10)
            if days < 0:
                clock.pass_(201 * 86_400)
            assert await appended(log, 12) > 4
        for holds in closing:
            holds.close()


async def test_a_disk_that_is_nearly_full_is_not_kept_for_readers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invariant 8: capture would have to wait for them."""
    config = LogConfig(path=tmp_path / "log", retention_events=10, free_bytes_min=1 << 20)
    async with LmdbLog(config) as log:
        log.held_by(lambda _: hold(0))
        assert await appended(log, 30) == 0

        def nearly_full(path: Path) -> Any:
            return space(path)._replace(free=(1 << 21) - 1)

        monkeypatch.setattr(trimming_module, "space", nearly_full)
        assert await appended(log, 1) > 0


@given(
    sizes=st.lists(st.integers(1, 100), min_size=1, max_size=30),
    held_from=st.integers(0, 30),
    bytes_max=st.integers(0, 2000),
    retention_bytes=st.integers(1, 2000) | st.none(),
    retention_events=st.integers(1, 30) | st.none(),
    retention=st.integers(1, 30) | st.none(),
)
def test_a_hold_only_ever_keeps_more_and_only_within_its_bytes(
    sizes: list[int],
    held_from: int,
    bytes_max: int,
    retention_bytes: int | None,
    retention_events: int | None,
    retention: int | None,
) -> None:
    olds: list[Old] = []
    for number, size in enumerate(sizes, 1):
        gone = size + (olds[-1].bytes if olds else 0)
        olds.append(Old(number, 0, ingested_at=number * 1000, bytes=gone))
    config = LogConfig(
        retention_bytes=retention_bytes, retention_events=retention_events, retention=retention
    )
    held, now = Holdings(head=len(olds), bytes=olds[-1].bytes), len(olds) * 1000 + 1

    def trimmed(wanted: Hold | None) -> int:
        old = due(olds, config=config, held=held, now=now, holds=[] if wanted is None else [wanted])
        return 0 if old is None else old.sequence

    free, with_hold = trimmed(None), trimmed(hold(held_from, bytes_max=bytes_max))
    assert with_hold <= free
    if with_hold < free:
        assert with_hold >= min(free, held_from)
        assert retention_bytes is None or held.bytes - (
            olds[with_hold - 1].bytes if with_hold else 0
        ) <= retention_bytes + min(bytes_max, retention_bytes // 4)
    else:
        assert free <= held_from or (retention_bytes is not None and free > 0)


def test_two_holds_each_keep_what_they_need_up_to_their_own_size() -> None:
    """A hold that reaches further back and may take less of the disk gives up by itself: the other
    one still has what it needs."""
    olds = [Old(number, 0, ingested_at=0, bytes=10 * number) for number in range(1, 11)]
    config = LogConfig(retention_bytes=40, retention=None)

    def trimmed(*holds: Hold) -> int:
        held = Holdings(head=11, bytes=100)
        old = due(olds, config=config, held=held, now=None, holds=holds)
        return 0 if old is None else old.sequence

    poor, rich = hold(2, bytes_max=0), hold(4, bytes_max=10)
    assert (trimmed(), trimmed(poor), trimmed(rich)) == (6, 6, 5)
    assert trimmed(poor, rich) == trimmed(rich, poor) == 5


async def test_nothing_goes_before_all_who_hold_something_have_said_so(tmp_path: Path) -> None:
    """A log is open before its archive is: retention by then would leave a hole in it."""
    config = LogConfig(path=tmp_path / "log", retention_events=10, free_bytes_min=0)
    async with LmdbLog(config, trims=False) as log:
        assert await appended(log, 30) == 0
        log.held_by(lambda _: hold(20))
        log.begin_trimming()
        assert await appended(log, 2) == 20


async def test_holds_that_cannot_be_read_hold_everything_until_they_can(tmp_path: Path) -> None:
    """One read that fails must not have the log lose what somebody is about to need."""
    env = open_env(tmp_path / "holds", create=True)
    env.databases([b"d"], create=True)
    broken: list[PenstockError] = []

    def find() -> Env:
        if broken:
            raise broken[0]
        found = open_env(tmp_path / "holds", create=False)
        found.databases([b"d"], create=False)
        return found

    def write(data: bytes) -> None:
        with env.write() as txn:
            txn.put(b"k", data, db=env[b"d"])

    def look() -> WrittenHolds:
        return WrittenHolds(find, database=b"d", key=b"k", steady_seconds=iter(range(99)).__next__)

    write(msgspec.json.encode([hold(31)]))
    holds = look()
    config = LogConfig(path=tmp_path / "log", retention_events=10, free_bytes_min=0)
    async with LmdbLog(config) as log:
        log.held_by(holds)
        assert await appended(log, 10) == 10, "31 is not there yet"
        write(b'[{"sequence": "of a newer Penstock"}]')
        with capture_logs() as said:
            assert await appended(log, 10) == 10
        assert [one["code"] for one in said] == ["ValidationError"]
        write(b"[]")
        with capture_logs() as said:
            assert await appended(log, 1) > 10
        assert [one["event"] for one in said] == ["holds are read again; retention goes on"]
    holds.close()
    broken.append(LogError("the disk does not answer"))
    holds = look()
    found = holds()
    assert found is not None
    assert found.sequence == 0
    broken.clear()
    assert holds() is None
    holds.close()
    env.close()


def test_holds_that_nobody_may_look_at_hold_everything(tmp_path: Path) -> None:
    """A folder of another user is not one that is not there."""
    folder = tmp_path / "of another"
    open_env(folder / "holds", create=True).close()
    if os.geteuid() == 0:
        folder.joinpath("loop").symlink_to("loop")
        path = folder / "loop" / "holds"
    else:
        folder.chmod(0)
        path = folder / "holds"

    def find() -> Env | None:
        return open_env(path, create=False) if exists(path) else None

    found = WrittenHolds(find, database=b"d", key=b"k")()
    folder.chmod(0o700)
    assert found is not None
    assert found.sequence == 0


def test_holds_that_cannot_be_opened_for_want_of_files_hold_everything(tmp_path: Path) -> None:
    """Who writes the log must not fail for it."""
    open_env(tmp_path, create=True).close()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    holds = WrittenHolds(lambda: open_env(tmp_path, create=False), database=b"d", key=b"k")
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        found = holds()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert found is not None
    assert found.sequence == 0
