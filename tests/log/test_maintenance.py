"""check, backup and compact."""

import asyncio
import fcntl
import os
import signal
import sys
from pathlib import Path

import lmdb
import pytest

from penstock.errors import ConfigError, LogCorruptError, LogFormatError, LogLockedError
from penstock.event import Commit, Fragment
from penstock.log import LmdbLog, LmdbLogReader, LogConfig
from penstock.log.layout import ENTRIES, EXTENTS, FORMAT, FORMAT_KEY, META, STATE_KEY, pack_u64
from penstock.log.maintenance import backup, check, compact
from penstock.ports import Ancestor
from penstock.testing.contracts.entries import changes, read_all
from tests.children import Child


def config(path: Path) -> LogConfig:
    return LogConfig(path=path, free_bytes_min=0)


async def fill(log: LmdbLog, start: int = 0) -> None:
    """Small commits, one over several blocks, and a staged one."""
    for number in range(start, start + 20):
        position = str(number)
        events = changes("a", position, number % 4 + 1, bytes_=900)
        await log.append([Commit(source="a", position=position, events=events)])
    middle = changes("b", str(start), 40, bytes_=9_000)
    await log.append([Commit(source="b", position=str(start), events=middle)])
    for at in range(0, 200, 50):
        part = changes("c", str(start), 50, start=at, bytes_=4_000)
        await log.append([Fragment(source="c", events=part)])
    await log.append([Commit(source="c", position=str(start))])


async def test_a_sound_log_is_found_sound_while_it_is_written(tmp_path: Path) -> None:
    async with LmdbLog(config(tmp_path)) as log:
        await fill(log)
        await log.append([Fragment(source="z", events=changes("z", "1", 50, bytes_=9_000))])
        report = check(tmp_path)
        bounds = await log.bounds()
        assert report.problems == []
        assert (report.entries, report.commits) == (bounds.head, bounds.head_commit)
        assert (report.log_id, report.head) == (bounds.log_id, bounds.head)
        assert report.unfinished_extents == 1
        assert {state.source for state in report.sources} == {"a", "b", "c"}
        await log.trim(55)
        assert check(tmp_path).problems == []
        assert check(tmp_path).entries == bounds.head - 55


def entries_of(path: Path, name: bytes) -> list[tuple[bytes, bytes]]:
    with (
        lmdb.open(str(path), max_dbs=16, map_size=1 << 30) as env,
        env.begin(db=env.open_db(name)) as txn,
    ):
        return list(txn.cursor())


def put(path: Path, name: bytes, key: bytes, value: bytes | None) -> None:
    with (
        lmdb.open(str(path), max_dbs=16, map_size=1 << 30) as env,
        env.begin(write=True, db=env.open_db(name)) as txn,
    ):
        if value is None:
            txn.delete(key)
        else:
            txn.put(key, value)


@pytest.mark.parametrize("name", [ENTRIES, EXTENTS])
@pytest.mark.parametrize("damage", ["flipped", "missing", "moved"])
async def test_damage_is_found(tmp_path: Path, name: bytes, damage: str) -> None:
    async with LmdbLog(config(tmp_path)) as log:
        await fill(log)
    stored = entries_of(tmp_path, name)
    blocks = [(key, value) for key, value in stored if len(value) > 100]
    key, value = blocks[1]
    if damage == "flipped":
        put(tmp_path, name, key, value[:-40] + bytes([value[-40] ^ 1]) + value[-39:])
    elif damage == "missing":
        put(tmp_path, name, key, None)
    else:
        put(tmp_path, name, key, blocks[2][1])
    assert check(tmp_path).problems != []
    if damage == "missing":
        async with LmdbLogReader(tmp_path) as reader:
            with pytest.raises(LogCorruptError, match="does not hold entry"):
                await read_all(reader)


async def test_a_log_of_a_newer_format_is_refused_unchanged(tmp_path: Path) -> None:
    async with LmdbLog(config(tmp_path)):
        pass
    put(tmp_path, META, FORMAT_KEY, pack_u64(FORMAT + 1))
    before = entries_of(tmp_path, META)
    with pytest.raises(LogFormatError):
        LmdbLog(config(tmp_path))
    with pytest.raises(LogFormatError):
        LmdbLogReader(tmp_path)
    assert entries_of(tmp_path, META) == before
    assert dict(before)[STATE_KEY]


@pytest.mark.parametrize("compacted", [True, False])
async def test_a_backup_of_a_running_log_is_whole(tmp_path: Path, compacted: bool) -> None:
    async with LmdbLog(config(tmp_path / "log")) as log:
        await fill(log)
        backup(tmp_path / "log", tmp_path / "copy", compact=compacted)
        with pytest.raises(ConfigError):
            backup(tmp_path / "log", tmp_path / "copy")
        expected = await read_all(log)
        async with LmdbLogReader(tmp_path / "copy") as reader:
            assert await read_all(reader) == expected
    assert check(tmp_path / "copy").problems == []


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


DYING = """
import os, signal, sys
from pathlib import Path
from penstock.log import maintenance

def die(*_): os.kill(os.getpid(), signal.SIGKILL)

if sys.argv[3] == "after":
    mark = maintenance._mark_restored
    maintenance._mark_restored = lambda path: (mark(path), die())
else:
    maintenance._mark_restored = die
maintenance.backup(Path(sys.argv[1]), Path(sys.argv[2]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_backup_that_is_killed_is_no_log_and_the_next_one_takes_its_place(
    tmp_path: Path, moment: str
) -> None:
    """A copy without its mark would pass as the log itself, and markers of one resume in the
    other, where they mean something else."""
    async with LmdbLog(config(tmp_path / "log")) as log:
        await fill(log)
        taken = await log.bounds()
    target = tmp_path / "backup"
    with Child(sys.executable, "-c", DYING, tmp_path / "log", target, moment) as killed:
        assert await asyncio.to_thread(killed.wait) == -signal.SIGKILL, killed.tail()
    assert not target.exists()
    assert names(tmp_path) == [".backup.unfinished", "log"]
    backup(tmp_path / "log", target)
    assert names(tmp_path) == ["backup", "log"]
    async with LmdbLog(config(target)) as restored:
        bounds = await restored.bounds()
        assert bounds.log_id != taken.log_id
        assert [ancestor.log_id for ancestor in bounds.ancestors] == [taken.log_id]


async def test_two_backups_to_one_folder_do_not_mix(tmp_path: Path) -> None:
    async with LmdbLog(config(tmp_path / "log")) as log:
        await fill(log)
    (tmp_path / ".backup.unfinished").mkdir()
    other = os.open(tmp_path / ".backup.unfinished", os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    with pytest.raises(ConfigError, match="under way"):
        backup(tmp_path / "log", tmp_path / "backup")
    os.close(other)
    backup(tmp_path / "log", tmp_path / "backup")
    with pytest.raises(ConfigError, match="not an empty folder"):
        backup(tmp_path / "log", tmp_path / "backup")
    assert check(tmp_path / "backup").problems == []


async def test_a_restored_log_is_another_log_and_names_its_ancestor(tmp_path: Path) -> None:
    """F10: what both hold has the same checks under either id; from there on they differ."""
    async with LmdbLog(config(tmp_path / "log")) as log:
        await fill(log)
        backup(tmp_path / "log", tmp_path / "copy")
        old = await log.bounds()
        await fill(log, start=100)
    ids = {old.log_id}
    for opening in range(2):
        async with LmdbLog(config(tmp_path / "copy")) as restored:
            bounds = await restored.bounds()
            assert bounds.ancestors == (Ancestor(log_id=old.log_id, head=old.head),)
            assert await restored.check_at(old.head) == old.head_check
            ids.add(bounds.log_id)
            await restored.append(
                [Commit(source="a", position=f"r{opening}", events=changes("a", "r", 1))]
            )
    assert len(ids) == 2, "opened again, a restored log stays itself"


@pytest.mark.slow
async def test_compacting_gives_pages_back_and_keeps_the_log(tmp_path: Path) -> None:
    async with LmdbLog(config(tmp_path)) as log:
        for start in range(0, 200, 20):
            await fill(log, start=start)
        bounds = await log.bounds()
        await log.trim(bounds.head - 10)
        with pytest.raises(LogLockedError):
            compact(tmp_path)
        for beat in range(100):
            await log.append([Commit(source="a", position=f"beat {beat}")])
        bounds = await log.bounds()
        kept = await read_all(log, after=bounds.trimmed)
    async with LmdbLogReader(tmp_path):
        with pytest.raises(LogLockedError):
            compact(tmp_path)
    done = compact(tmp_path)
    assert done.bytes_after < done.bytes_before / 4
    async with LmdbLog(config(tmp_path)) as log:
        assert await log.bounds() == bounds
        assert await read_all(log, after=bounds.trimmed) == kept
