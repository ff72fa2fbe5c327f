"""A marker names a history, and not one entry of it: whoever has it is told of another history."""

import shutil
from pathlib import Path

import pytest

from penstock.errors import StreamChangedError
from penstock.event import Commit
from penstock.log import LmdbLog, LogConfig
from penstock.log.layout import ENTRIES
from penstock.log.maintenance import check
from penstock.ports import LogReader
from penstock.progress import parse_progress
from penstock.subscribe import start
from penstock.testing.contracts.entries import changes, read_all
from tests.log.test_maintenance import entries_of, fill, put
from tests.log.unchained import unchain


def config(path: Path) -> LogConfig:
    return LogConfig(path=path, free_bytes_min=0)


async def append(log: LmdbLog, *sources: str, bytes_: int = 40, count: int = 1) -> None:
    for source in sources:
        events = changes(source, "1", count, bytes_=bytes_)
        await log.append([Commit(source=source, position="1", events=events)])


async def markers_of(log: LogReader) -> list[str]:
    return [entry.progress for entry in await read_all(log)]


@pytest.mark.parametrize("count", [1, 40], ids=["inline", "of an extent"])
async def test_an_older_copy_of_the_folder_that_grew_another_history_refuses_what_it_lost(
    tmp_path: Path, count: int
) -> None:
    """The same entry at the same sequence, and others before it: the copy is a disk's snapshot, so
    that nothing but the entries can tell."""
    async with LmdbLog(config(tmp_path / "log")) as log:
        await append(log, "start")
    shutil.copytree(tmp_path / "log", tmp_path / "copy")
    async with LmdbLog(config(tmp_path / "log")) as log:
        await append(log, "b", "a", bytes_=9_000, count=count)
        kept, *_, lost = await markers_of(log)
    async with LmdbLog(config(tmp_path / "copy")) as copy:
        await append(copy, "c", "a", bytes_=9_000, count=count)
        *_, there = await read_all(copy)
        marker = parse_progress(lost)
        assert (there.sequence, there.event.source) == (marker.sequence, "a")
        assert (await copy.bounds()).log_id == marker.log_id
        with pytest.raises(StreamChangedError):
            await start(copy, lost)
        assert (await start(copy, kept)).sequence == 1


async def test_markers_of_a_log_of_the_older_layout_resume_and_what_follows_is_chained(
    tmp_path: Path,
) -> None:
    async with LmdbLog(config(tmp_path / "log")) as log:
        await fill(log)
    unchain(tmp_path / "log")
    shutil.copytree(tmp_path / "log", tmp_path / "copy")
    histories: list[list[str]] = []
    for name, source in (("log", "x"), ("copy", "y")):
        async with LmdbLog(config(tmp_path / name)) as log:
            old = await markers_of(log)
            head = len(old)
            assert parse_progress(old[-1]).check == (await log.bounds()).head_check
            await append(log, source, "a")
            await fill(log, 100)
            new = await markers_of(log)
            assert new[:head] == old
            for at in range(0, len(new), 50):
                assert (await start(log, new[at])).sequence == at + 1
            assert check(tmp_path / name).problems == []
            await log.trim(head - 3)
            assert (await start(log, new[head - 4])).sequence == head - 3
            assert check(tmp_path / name).problems == []
            histories.append(new)
    first, second = histories
    assert first[:head] == second[:head]
    assert not any(a == b for a, b in zip(first[head:], second[head:], strict=True))


async def test_a_block_that_follows_other_entries_is_found(tmp_path: Path) -> None:
    """Each of them sound: of another copy of the same log, for one."""
    for name, sources in (("one", "abc"), ("other", "cab")):
        async with LmdbLog(config(tmp_path / name)) as log:
            await append(log, *sources)
    (_, _, (key, value)) = entries_of(tmp_path / "one", ENTRIES)
    put(tmp_path / "other", ENTRIES, key, value)
    first, second = check(tmp_path / "other").problems
    assert "does not follow the entries before it" in first
    assert "check at the head" in second
