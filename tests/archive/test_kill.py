"""Killed anywhere, archive and log together are the history: no hole, no overlap, no orphan."""

import random
import sys
from collections import Counter
from pathlib import Path

import pytest

from penstock.archive.config import ArchiveConfig
from penstock.archive.writing import Archiver
from penstock.log import LmdbLog, LogConfig
from penstock.log.maintenance import check
from penstock.log.restoring import restore
from penstock.testing.contracts.durable import SOURCES, steps_of
from tests.archive.logs import archived_rows, archiver, live_rows, opened
from tests.children import MODULE, Child


def run_and_kill(folder: Path, seed: int, of: random.Random) -> None:
    """Kill the child in the middle of something, after it has archived a little."""
    with Child(*MODULE, "tests.archive.child", folder, seed) as child:
        for _ in range(of.randrange(1, 6)):
            assert child.line() == "archived", child.tail()
        # Some way into what it does next, which takes a few milliseconds.
        for _ in range(of.randrange(0, 400_000)):
            pass


def expected(source: str, position: int) -> list[str]:
    """The events of a source up to its position, by their ids."""
    return [
        event.event_id
        for number in range(1, position + 1)
        for step in steps_of(source, number)
        for event in step.events
    ]


async def verify(folder: Path) -> None:
    """Fold archive and log, and compare with what was appended."""
    config = LogConfig(path=folder / "log", free_bytes_min=0)
    async with LmdbLog(config) as log:
        # As a service that starts: what was never finished is removed, nothing else.
        work = Archiver(log, _idle(), str(folder / "archive"))
        work.step()
        archive, bounds = opened(folder), log.bounds_now()
        manifest = archive.manifest
        assert (manifest.begin, manifest.lost) == (0, ()), "a hole"
        files = {f"data/{one.name}" for one in (folder / "archive" / "data").iterdir()}
        assert files == {one.name for one in manifest.ranges}, "an orphan"
        assert len(list((folder / "archive").iterdir())) == 2
        assert bounds.trimmed <= manifest.until <= bounds.head
        old = archived_rows(archive, 0, manifest.until)
        new = live_rows(log, manifest.until, bounds.head)
        shared = archived_rows(archive, bounds.trimmed, manifest.until)
        assert shared.equals(live_rows(log, bounds.trimmed, manifest.until))
        found: dict[str, list[str]] = {source: [] for source in SOURCES}
        for table in (old, new):
            for row in table.select(["source", "event_id"]).to_pylist():
                found[row["source"]].append(row["event_id"])
        for source in SOURCES:
            position = int(await log.position(source) or 0)
            assert found[source] == expected(source, position)
        assert Counter(old["sequence"].to_pylist()).most_common(1)[0][1] == 1


def _idle() -> ArchiveConfig:
    return ArchiveConfig(range_age=86_400, range_bytes=1 << 40)


async def kill_often(folder: Path, kills: int, seed: int) -> None:
    sys.stdout.write(f"seed {seed}\n")
    of = random.Random(seed)
    for kill in range(kills):
        run_and_kill(folder, seed + kill, of)
        await verify(folder)
    made = restore(opened(folder), folder / "restored")
    assert made.head == opened(folder).manifest.until
    assert check(folder / "restored").problems == []
    config = LogConfig(path=folder / "log", free_bytes_min=0)
    async with LmdbLog(config) as log:
        assert log.bounds_now().trimmed > 0
        archiver(log, folder).step()
        assert opened(folder).manifest.until == log.bounds_now().head


@pytest.mark.slow
async def test_kill_9_leaves_archive_and_log_whole(tmp_path: Path) -> None:
    await kill_often(tmp_path, 3, random.randrange(1 << 32))


@pytest.mark.soak
async def test_kill_9_very_often(tmp_path: Path) -> None:
    for round_ in range(10):
        await kill_often(tmp_path / str(round_), 20, random.randrange(1 << 32))
