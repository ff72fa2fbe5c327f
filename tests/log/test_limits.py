"""Everything has a limit, and the limit has an outcome: disk, map, memory, steps."""

import asyncio
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import lmdb
import pytest
from pydantic import ValidationError

from penstock import kv
from penstock.disks import network_filesystem, space
from penstock.errors import ConfigError, LogFullError
from penstock.event import Commit, Fragment
from penstock.log import LmdbLog, LmdbLogReader, LogConfig
from penstock.log.layout import ENTRIES, EXTENTS
from penstock.log.retention import within_disk
from penstock.log.trimming import Trimmer
from penstock.testing.contracts import ManualClock
from penstock.testing.contracts.entries import changes, read_all, require_whole_commits
from tests.waiting import PATIENCE_SECONDS, turns, until

_ROOT = Path(__file__).parents[2]


def commit(number: int, *, rows: int = 5, bytes_: int = 20_000) -> Commit:
    position = str(number)
    return Commit(source="a", position=position, events=changes("a", position, rows, bytes_=bytes_))


async def fill_until_refused(log: LmdbLog, *, start: int = 1) -> int:
    """Append until the log is full; returns the number of the commit that was refused."""
    for number in range(start, 10_000):
        try:
            await log.append([commit(number)])
        except LogFullError as error:
            if error.transient:
                return number
            raise
    raise AssertionError("never full")


async def require_nothing_lost(log: LmdbLog, refused: int) -> None:
    """Everything before the refused commit is there, nothing of it, and the position says so."""
    entries = await read_all(log)
    require_whole_commits(entries)
    assert len(entries) == (refused - 1) * 5
    assert await log.position("a") == str(refused - 1)


async def test_a_full_disk_refuses_whole_batches_and_goes_on_when_there_is_room(
    small_disk: Path,
) -> None:
    """P5: ENOSPC from the file system itself."""
    async with LmdbLog(LogConfig(path=small_disk / "log", free_bytes_min=0)) as log:
        await log.append([commit(0)])
        await log.set_position("a", "0")
        ballast = small_disk / "ballast"
        ballast.write_bytes(b"x" * (16 << 20))
        refused = await fill_until_refused(log)
        # Not even a heartbeat pretends to be durable, and whatever is tried changes nothing.
        for _ in range(3):
            with pytest.raises(LogFullError):
                await log.append([commit(refused)])
        entries = await read_all(log)
        require_whole_commits(entries)
        assert len(entries) == refused * 5
        assert await log.position("a") == str(refused - 1)
        ballast.unlink()
        await log.append([commit(refused)])
        assert len(await read_all(log)) == (refused + 1) * 5
        before = await log.bounds()
    async with LmdbLog(LogConfig(path=small_disk / "log", free_bytes_min=0)) as log:
        assert await log.bounds() == before


_READERS_ON_A_FULL_DISK = """
import asyncio, sys
from contextlib import ExitStack
from pathlib import Path
from penstock import kv
from penstock.log import LmdbLog, LogConfig

async def main(disk: Path) -> None:
    async with LmdbLog(LogConfig(path=disk / "log", free_bytes_min=0)) as log:
        with (disk / "ballast").open("wb", buffering=0) as ballast:
            try:
                while True:
                    ballast.write(b"x" * 4096)
            except OSError:
                pass
        with ExitStack() as readers, kv.open_env(log.path, create=False) as env:
            for _ in range(kv.READERS_MAX - 2):
                readers.enter_context(env.read())

asyncio.run(main(Path(sys.argv[1])))
"""


@pytest.mark.slow
async def test_readers_come_and_go_on_a_full_disk(small_disk: Path) -> None:
    """A hole in LMDB's lock file would kill the process with SIGBUS."""
    run = [sys.executable, "-c", _READERS_ON_A_FULL_DISK, str(small_disk)]
    await asyncio.to_thread(subprocess.run, run, check=True, cwd=_ROOT)


async def test_the_floor_of_free_space_refuses_before_the_disk_does(small_disk: Path) -> None:
    """P5: LMDB itself would only say EIO."""
    config = LogConfig(path=small_disk / "log", free_bytes_min=12 << 20, retention_bytes=None)
    async with LmdbLog(config) as log:
        refused = await fill_until_refused(log)
        assert space(small_disk).free > 10 << 20
        await require_nothing_lost(log, refused)
        # Trimming makes room in the file, so it may go below the floor.
        await log.trim(20)
        assert (await log.bounds()).trimmed == 20


async def test_what_was_trimmed_is_room_though_the_file_does_not_shrink(small_disk: Path) -> None:
    """P5, P23: the disk stays at its floor, and the log goes on inside its file."""
    config = LogConfig(path=small_disk / "log", free_bytes_min=12 << 20, retention_bytes=None)
    async with LmdbLog(config) as log:
        refused = await fill_until_refused(log)
        await log.trim((refused - 2) * 5)
        await until(lambda: blocks_stored(log)[0] <= 10)
        for number in range(refused, refused + 60):
            await log.append([commit(number)])
        assert space(small_disk).free > 10 << 20
        await fill_until_refused(log, start=refused + 60)
        assert space(small_disk).free > 10 << 20
        require_whole_commits(await read_all(log, after=(refused - 2) * 5))


@pytest.mark.slow
async def test_retention_keeps_to_a_disk_that_is_smaller_than_its_limit(small_disk: Path) -> None:
    """P23: 10 GiB were allowed, the disk has 24 MiB, and capture never waits for space."""
    config = LogConfig(path=small_disk / "log", free_bytes_min=12 << 20)
    async with LmdbLog(config) as log:
        for number in range(1, 301):
            await log.append([commit(number)])
        bounds = await log.bounds()
        assert bounds.head == 1500
        assert 200 < bounds.head - bounds.trimmed < 500
        require_whole_commits(await read_all(log, after=bounds.trimmed))
        assert space(small_disk).free > 10 << 20


@pytest.mark.parametrize(
    ("allowed", "total", "floor", "kept"),
    [
        (10 << 30, 100 << 30, 1 << 30, 10 << 30),
        (10 << 30, 9 << 30, 1 << 30, 6 << 30),
        (10 << 30, 1 << 30, 2 << 30, 10 << 30),
        (None, 9 << 30, 1 << 30, None),
    ],
)
def test_how_much_of_a_disk_retention_by_bytes_may_fill(
    allowed: int | None, total: int, floor: int, kept: int | None
) -> None:
    """P23: three quarters of what lies above the floor; "none" stays none."""
    config = LogConfig(retention_bytes=allowed, free_bytes_min=floor)
    assert within_disk(config, total).retention_bytes == kept


async def test_a_full_map_refuses_whole_batches_and_goes_on_when_there_is_room(
    tmp_path: Path,
) -> None:
    """P5: as a full disk does."""
    config = LogConfig(path=tmp_path, map_bytes=8 << 20, free_bytes_min=0)
    async with LmdbLog(config) as log:
        refused = await fill_until_refused(log)
        await require_nothing_lost(log, refused)
    async with LmdbLog(LogConfig(path=tmp_path, map_bytes=64 << 20, free_bytes_min=0)) as log:
        await require_nothing_lost(log, refused)
        await log.append([commit(refused)])
        assert await log.position("a") == str(refused)


async def test_what_does_not_fit_is_not_another_source_s_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invariant 8: three appends meet in one transaction, and one of them cannot be written."""
    config = LogConfig(path=tmp_path, map_bytes=4 << 20, free_bytes_min=0)
    async with LmdbLog(config) as log:
        met = threading.Event()

        def wait_at_the_door(_: kv.Env, bytes_min: int, *, bytes_needed: int) -> None:
            met.wait(PATIENCE_SECONDS)

        # Holds the writer's thread until all three are there.
        monkeypatch.setattr(kv.Env, "require_space", wait_at_the_door)
        held = asyncio.ensure_future(log.append([Commit(source="x", position="1")]))
        three = [
            asyncio.ensure_future(log.append([one]))
            for one in (
                Commit(source="b", position="1", events=changes("b", "1", 1)),
                commit(1, rows=250),
                Commit(source="c", position="1", events=changes("c", "1", 1)),
            )
        ]
        await turns(20)
        met.set()
        await held
        results = await asyncio.gather(*three, return_exceptions=True)
        assert [type(result) for result in results] == [type(None), LogFullError, type(None)]
        assert await log.position("a") is None
        assert (await log.bounds()).head == 2


async def test_a_fragment_that_was_refused_can_be_sent_again(tmp_path: Path) -> None:
    """P5: what was staged before it is as it was."""
    config = LogConfig(path=tmp_path, map_bytes=8 << 20, free_bytes_min=0)
    async with LmdbLog(config) as log:
        await log.append([commit(number) for number in range(1, 31)])
        rows = 0

        async def stage_one() -> None:
            nonlocal rows
            # Several in one append, so that the first of them fit.
            parts = [
                changes("b", "1", 10, start=start, bytes_=9_000)
                for start in range(rows, rows + 100, 10)
            ]
            await log.append([Fragment(source="b", events=part) for part in parts])
            rows += 100

        async def stage_without_end() -> None:
            for _ in range(1000):
                await stage_one()

        with pytest.raises(LogFullError):
            await stage_without_end()
        await log.trim(150)
        for beat in range(20):
            await log.append([Commit(source="beat", position=str(beat))])
        await stage_one()
        await log.append([Commit(source="b", position="1")])
        entries = await read_all(log, after=150)
        require_whole_commits(entries)
        assert len(entries) == rows


@pytest.mark.slow
async def test_a_large_commit_is_staged_however_it_is_given(tmp_path: Path) -> None:
    """S14: over 16 MiB, its blocks never stand in the way of another source's append."""
    async with LmdbLog(LogConfig(path=tmp_path, free_bytes_min=0)) as log:
        await log.append([commit(1, rows=800)])
        assert blocks_stored(log)[1] == 0
        await log.append([commit(2, rows=900)])
        entries, extents = blocks_stored(log)
        assert extents > 200
        await log.append([commit(3, rows=1)])
        assert blocks_stored(log) == (entries + 1, extents)
        require_whole_commits(await read_all(log))


async def test_a_full_log_takes_no_part_of_a_staged_commit(tmp_path: Path) -> None:
    """P5, S14: staging fails, what was visible stays, and the source starts its commit again."""
    config = LogConfig(path=tmp_path, map_bytes=8 << 20, free_bytes_min=0)
    async with LmdbLog(config) as log:
        await log.append([commit(1)])

        async def stage_without_end() -> None:
            for _ in range(1000):
                part = changes("b", "1", 100, bytes_=9_000)
                await log.append([Fragment(source="b", events=part)])

        with pytest.raises(LogFullError):
            await stage_without_end()
        await log.abandon("b")
        large = Commit(source="b", position="1", events=changes("b", "1", 3000, bytes_=9_000))
        with pytest.raises(LogFullError):
            await log.append([large])
        assert (await log.bounds()).head == 5
        for beat in range(60):
            await log.append([Commit(source="beat", position=str(beat))])
        await log.append([commit(2, rows=20)])
        assert (await log.bounds()).head == 25


async def test_a_log_goes_on_after_lmdb_asks_for_a_new_start(tmp_path: Path) -> None:
    """P5: MDB_PANIC, when not even the meta page could be restored; readers here go on too."""
    config = LogConfig(path=tmp_path, free_bytes_min=0)
    async with LmdbLog(config) as log, LmdbLogReader(tmp_path) as reader:
        await log.append([commit(1)])
        env = kv.open_env(log.path, create=False)
        with pytest.raises(LogFullError), env.write():
            raise lmdb.PanicError("the meta page")
        env.close()
        await log.append([commit(2)])
        assert await read_all(reader) == await read_all(log)
        assert (await log.bounds()).head == 10


def test_limits_can_be_turned_off_and_mistyped_ones_are_errors() -> None:
    """P23."""
    off = LogConfig.model_validate({"retention": "none", "retention_bytes": "none"})
    assert (off.retention, off.retention_bytes, off.retention_events) == (None, None, None)
    said = LogConfig.model_validate({"retention": "36h", "retention_bytes": "10G"})
    assert (said.retention, said.retention_bytes) == (36 * 3600, 10 << 30)
    for wrong in ({"retention": "7 weeks"}, {"retention_bytes": "10Q"}, {"retentoin": "1d"}):
        with pytest.raises(ValidationError):
            LogConfig.model_validate(wrong)


def test_network_file_systems_are_refused() -> None:
    mounts = """\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
40 22 0:40 / /mnt/share rw - nfs4 host:/share rw
41 40 0:41 / /mnt/share/local\\040disk rw - xfs /dev/vdb rw
42 22 0:42 / /home/me rw master:1 - fuse.sshfs me@host: rw
43 22 0:43 / /mnt/größe rw - nfs4 host:/share rw
"""
    assert network_filesystem(Path("/data/log"), mounts) is None
    assert network_filesystem(Path("/mnt/share/log"), mounts) == "nfs4"
    assert network_filesystem(Path("/mnt/share/local disk/log"), mounts) is None
    assert network_filesystem(Path("/mnt/shared/log"), mounts) is None
    assert network_filesystem(Path("/home/me/log"), mounts) == "fuse.sshfs"
    assert network_filesystem(Path("/mnt/größe/log"), mounts) == "nfs4"


def test_a_log_on_a_network_file_system_is_not_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text("40 22 0:40 / / rw - nfs4 host:/share rw\n")
    monkeypatch.setattr("penstock.disks._MOUNTS", mounts)
    with pytest.raises(ConfigError, match="network file system"):
        LmdbLog(LogConfig(path=tmp_path / "log"))
    assert not (tmp_path / "log" / "data.mdb").exists()


# --- work in steps ------------------------------------------------------------------------------


def blocks_stored(log: LmdbLog) -> tuple[int, int]:
    """How many values the log and its extents have on disk."""
    env = kv.open_env(log.path, create=False)
    try:
        with env.read() as txn:
            return txn.stat(env[ENTRIES])["entries"], txn.stat(env[EXTENTS])["entries"]
    finally:
        env.close()


def transactions_written(log: LmdbLog) -> int:
    """How many write transactions the log has seen."""
    env = kv.open_env(log.path, create=False)
    try:
        with env.read() as txn:
            return txn.id()
    finally:
        env.close()


async def test_trimming_takes_a_bounded_step_with_each_append(tmp_path: Path) -> None:
    """A hundred blocks are hidden at once, and removed a few at a time.

    An idle writer takes steps of its own, so the bound is on each transaction.
    """
    clock = ManualClock()
    config = LogConfig(path=tmp_path, retention_bytes=None, free_bytes_min=0)
    async with LmdbLog(config, clock=clock) as log:
        await log.append([commit(number, rows=4) for number in range(1, 101)])
        stored, _ = blocks_stored(log)
        assert stored >= 100
        before = transactions_written(log)
        await log.trim(400)
        removed = stored - blocks_stored(log)[0]
        assert removed <= 16 * (transactions_written(log) - before)
        for beat in range(stored):
            await log.append([Commit(source="a", position=f"beat {beat}")])
        assert blocks_stored(log) == (0, 0)


@pytest.mark.slow
async def test_age_trims_a_log_that_nobody_appends_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And an idle log that has nothing to trim is left alone: no write, no fsync."""
    clock = ManualClock()
    config = LogConfig(path=tmp_path, retention=3600, free_bytes_min=0)
    async with LmdbLog(config, clock=clock) as log, LmdbLogReader(tmp_path) as reader:
        await log.append([commit(1), commit(2)])
        env = kv.open_env(log.path, create=False)
        with env.read() as txn:
            before = txn.id()
        clock.pass_(3000)
        looked = threading.Event()
        wanted = Trimmer.wanted

        def looking(trimmer: Trimmer, truth: Any) -> bool:
            looked.set()
            return wanted(trimmer, truth)

        monkeypatch.setattr(Trimmer, "wanted", looking)
        for _ in range(2):  # the first may have been under way
            looked.clear()
            clock.pass_(10)
            assert await asyncio.to_thread(looked.wait, PATIENCE_SECONDS)
        with env.read() as txn:
            assert txn.id() == before
        env.close()
        clock.pass_(3000)

        def trimmed() -> bool:
            clock.pass_(2)  # the look under way may have taken its time before it all went by
            return reader.bounds_now().trimmed >= 10

        await until(trimmed)
        await until(lambda: blocks_stored(log) == (0, 0))


@pytest.mark.parametrize("away", [30 * 86400, -30 * 86400, 7200])
async def test_a_clock_that_may_be_wrong_at_the_start_is_not_believed_for_an_hour(
    tmp_path: Path, away: float
) -> None:
    """P22: a machine that comes up a month ahead would throw all away. One that was off for a while
    looks the same, so it keeps what is too old for an hour more, and not for ever."""
    clock = ManualClock()
    config = LogConfig(path=tmp_path, retention=1800, retention_bytes=None, free_bytes_min=0)
    async with LmdbLog(config, clock=clock) as log:
        await log.append([commit(1)])
    clock.jump(away)
    async with LmdbLog(config, clock=clock) as log:
        for beat in range(6):
            await log.append([Commit(source="beat", position=str(beat))])
            assert (await log.bounds()).trimmed == 0
            assert log.age_retention_paused
            clock.pass_(599)
        clock.pass_(10)
        if away < 0:
            clock.pass_(30 * 86400)
        await log.append([Commit(source="beat", position="last")])
        assert not log.age_retention_paused
        assert (await log.bounds()).trimmed == 5


async def test_a_log_that_was_closed_for_minutes_trims_by_age_at_once(tmp_path: Path) -> None:
    clock = ManualClock()
    config = LogConfig(path=tmp_path, retention=1800, retention_bytes=None, free_bytes_min=0)
    async with LmdbLog(config, clock=clock) as log:
        await log.append([commit(1)])
    clock.pass_(3000)
    async with LmdbLog(config, clock=clock) as log:
        await log.append([Commit(source="beat", position="1")])
        assert (await log.bounds()).trimmed == 5


async def test_an_abandoned_commit_gives_its_pages_back(tmp_path: Path) -> None:
    config = LogConfig(path=tmp_path, free_bytes_min=0)
    async with LmdbLog(config) as log:
        for start in range(0, 500, 100):
            part = changes("a", "1", 100, start=start, bytes_=9_000)
            await log.append([Fragment(source="a", events=part)])
        assert blocks_stored(log)[1] > 50
        await log.abandon("a")
        for beat in range(20):
            await log.append([Commit(source="b", position=str(beat))])
        assert blocks_stored(log) == (0, 0)
        await log.append([Fragment(source="a", events=changes("a", "1", 50, bytes_=9_000))])
    async with LmdbLog(config) as log:
        for beat in range(20):
            await log.append([Commit(source="b", position=str(beat))])
        assert blocks_stored(log) == (0, 0)


@pytest.mark.slow
async def test_the_file_stays_near_what_is_kept(tmp_path: Path) -> None:
    """P23: trimmed pages are used again, so the file does not grow with what passed through."""
    limit = 4 << 20
    config = LogConfig(path=tmp_path, retention=None, retention_bytes=limit, free_bytes_min=0)
    async with LmdbLog(config) as log, LmdbLogReader(tmp_path) as reader:
        for number in range(400):
            await log.append([commit(number)])
            # A reader that kept its transaction would pin every page that it ever saw.
            bounds = await reader.bounds()
            await reader.read(after=bounds.head - 1)
        size = (tmp_path / "data.mdb").stat().st_blocks * 512
        assert size < 2 * limit, f"{size >> 20} MiB for {400 * 5 * 20_000 >> 20} MiB that passed"


async def test_appends_that_meet_become_durable_in_one_transaction(tmp_path: Path) -> None:
    """Group commit: a hundred sources do not cost a hundred fsyncs."""
    config = LogConfig(path=tmp_path, free_bytes_min=0)
    async with LmdbLog(config) as log:
        env = kv.open_env(log.path, create=False)
        with env.read() as txn:
            before = txn.id()
        await asyncio.gather(
            *(
                log.append([Commit(source=f"s{n}", position="1", events=changes(f"s{n}", "1", 2))])
                for n in range(100)
            )
        )
        with env.read() as txn:
            assert txn.id() - before < 20
        env.close()
        require_whole_commits(await read_all(log))


# --- memory -------------------------------------------------------------------------------------

_STAGE = """
import asyncio, sys
from pathlib import Path
from penstock.event import Commit, Fragment
from penstock.log import LmdbLog, LogConfig
from penstock.testing.contracts.entries import changes

def anonymous() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    raise AssertionError

async def main(path: str, rows: int) -> None:
    peak = 0
    config = LogConfig(path=Path(path), free_bytes_min=0, retention_bytes=None)
    async with LmdbLog(config) as log:
        for start in range(0, rows, 1000):
            events = changes("a", "1", min(1000, rows - start), start=start, bytes_=120)
            await log.append([Fragment(source="a", events=events)])
            peak = max(peak, anonymous())
        assert (await log.bounds()).head == 0
        await log.append([Commit(source="a", position="1")])
        peak = max(peak, anonymous())
        after = 0
        while blocks := await log.read(after=after):
            assert {block.first_commit for block in blocks} == {1}
            after = blocks[-1].last_sequence
            peak = max(peak, anonymous())
        assert after == rows, after
    print(peak)

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


async def stage(path: Path, rows: int) -> int:
    """The most anonymous memory that a process needs to stage, publish and read one commit."""
    said = await asyncio.to_thread(
        subprocess.check_output,
        [sys.executable, "-c", _STAGE, str(path), str(rows)],
        cwd=_ROOT,
        text=True,
    )
    return int(said)


@pytest.mark.slow
async def test_a_large_commit_passes_in_bounded_memory(tmp_path: Path) -> None:
    """S14: twenty times the rows take no more than the readers' cache of blocks, which is full."""
    small = await stage(tmp_path / "small", 10_000)
    large = await stage(tmp_path / "large", 200_000)
    assert large < 256 << 20
    assert large - small < 64 << 20, f"{small >> 20} MiB became {large >> 20} MiB"


@pytest.mark.soak
async def test_five_million_rows_in_one_commit_stay_under_512_mb(tmp_path: Path) -> None:
    """S14."""
    assert await stage(tmp_path / "log", 5_000_000) < 512_000_000


async def test_times_of_entries_never_run_backwards_over_a_restart(tmp_path: Path) -> None:
    """Searches by time go by them, and so does what is too old."""
    clock = ManualClock()
    config = LogConfig(path=tmp_path, retention=None, free_bytes_min=0)
    times = list[int]()
    for number in (1, 2):
        async with LmdbLog(config, clock=clock) as log:
            await log.append([commit(number)])
            times = [block.ingested_at for block in await log.read(after=0)]
        clock.jump(-864_000)
    assert set(times) == {ManualClock().wall_ms()}
