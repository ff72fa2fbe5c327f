"""One writer, readers in any process: the lock, the wake socket, and what survives kill -9."""

import asyncio
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import LogError, LogLockedError, SourceUnavailableError
from penstock.event import Commit
from penstock.log import LmdbLog, LmdbLogReader, LogConfig
from penstock.log.wake import ask
from penstock.testing.contracts.entries import changes, read_all, require_whole_commits
from tests.children import MODULE, Child
from tests.waiting import PATIENCE_SECONDS

_ROOT = Path(__file__).parents[2]


def config(path: Path) -> LogConfig:
    return LogConfig(path=path, free_bytes_min=0)


def commit(number: int) -> Commit:
    position = str(number)
    return Commit(source="a", position=position, events=changes("a", position, 2))


_WRITER = ("penstock.testing.contracts.crash_child", "tests.log.test_contract:TestLmdbLog")
"""Appends to FOLDER/log until it is killed."""


@pytest.mark.slow
async def test_a_second_writer_is_refused_in_this_process_and_in_another(tmp_path: Path) -> None:
    async with LmdbLog(config(tmp_path / "log")):
        with pytest.raises(LogLockedError, match=str(os.getpid())):
            LmdbLog(config(tmp_path / "log"))
        code = (
            "import sys; from pathlib import Path; from penstock.log import LmdbLog, LogConfig\n"
            "from penstock.errors import LogLockedError\n"
            "try: LmdbLog(LogConfig(path=Path(sys.argv[1])))\n"
            "except LogLockedError as error: print(error)"
        )
        said = await asyncio.to_thread(
            subprocess.check_output, [sys.executable, "-c", code, str(tmp_path / "log")], text=True
        )
        assert str(os.getpid()) in said
    async with LmdbLog(config(tmp_path / "log")):
        pass


@pytest.mark.slow
async def test_a_reader_outlives_the_writers_that_are_killed_under_it(tmp_path: Path) -> None:
    """P4: it reads on across kill -9 and restart, and never sees a commit in part."""
    opening = asyncio.ensure_future(
        LmdbLogReader.open(tmp_path / "log", timeout_seconds=PATIENCE_SECONDS)
    )
    after = 0
    reader: LmdbLogReader | None = None
    entries: list[Any] = []
    for life in range(2):
        with Child(*MODULE, *_WRITER, tmp_path, life, cwd=_ROOT) as writer:
            assert await asyncio.to_thread(writer.line), writer.tail()
            reader = reader or await opening
            for _ in range(5):
                assert await reader.wait(after=after, timeout_seconds=PATIENCE_SECONDS)
                for block in await reader.read(after=after):
                    entries += block.entries()
                after = entries[-1].sequence
    assert reader is not None
    entries += await read_all(reader, after=after)
    require_whole_commits(entries)
    assert (await reader.bounds()).head == entries[-1].sequence
    await reader.close()


async def test_a_reader_waits_for_a_log_that_does_not_exist_yet(tmp_path: Path) -> None:
    path = tmp_path / "later" / "log"
    with pytest.raises(LogError, match="no log at"):
        await LmdbLogReader.open(path, timeout_seconds=0)
    with pytest.raises(LogError, match="no log at"):
        LmdbLogReader(path)
    opening = asyncio.ensure_future(LmdbLogReader.open(path, timeout_seconds=PATIENCE_SECONDS))
    async with LmdbLog(config(path)) as log, await opening as reader:
        await log.append([commit(1)])
        assert await reader.wait(after=0, timeout_seconds=PATIENCE_SECONDS)


@pytest.mark.parametrize("depth", [1, 12])
async def test_the_wake_socket_works_however_long_the_path_is(tmp_path: Path, depth: int) -> None:
    """A unix socket's path may have 107 bytes."""
    path = tmp_path.joinpath(*["a-rather-long-folder"] * depth)
    async with LmdbLog(config(path)) as log, LmdbLogReader(path) as reader:

        async def answer(request: dict[str, Any]) -> dict[str, Any]:
            if request["request"] == "fail":
                raise SourceUnavailableError("it does not answer")
            return {"pid": os.getpid(), **request}

        refused = await asyncio.to_thread(ask, path, {"request": "hello"})
        assert refused["error"] == "request"
        log.on_request(answer)
        waiting = asyncio.ensure_future(reader.wait(after=0, timeout_seconds=PATIENCE_SECONDS))
        told = await asyncio.to_thread(ask, path, {"request": "hello", "n": 1})
        assert told == {"pid": os.getpid(), "request": "hello", "n": 1}
        failed = await asyncio.to_thread(ask, path, {"request": "fail"})
        assert failed == {"error": "source.unavailable", "message": "it does not answer"}
        await log.append([commit(1)])
        assert await waiting
        assert (path / "wake.sock").stat().st_mode & 0o777 == 0o600
    with pytest.raises(LogError, match="nobody answers"):
        ask(path, {"request": "hello"})


async def test_threads_wait_and_read_without_an_event_loop(tmp_path: Path) -> None:
    async with LmdbLog(config(tmp_path)) as log, LmdbLogReader(tmp_path) as reader:
        waiting = [
            asyncio.ensure_future(
                asyncio.to_thread(one.wait_now, after=0, timeout_seconds=PATIENCE_SECONDS)
            )
            for one in (log, reader)
        ]
        await log.append([commit(1), commit(2)])
        assert await asyncio.gather(*waiting) == [True, True]
        assert reader.bounds_now() == log.bounds_now()
        assert [len(block) for block in reader.read_now(after=1)] == [3]
        assert not reader.wait_now(after=4, timeout_seconds=0.01)


async def test_readers_at_one_place_share_one_decoded_block(tmp_path: Path) -> None:
    async with LmdbLog(config(tmp_path)) as log, LmdbLogReader(tmp_path) as reader:
        await log.append([commit(1)])
        (first,), (second,) = await asyncio.gather(reader.read(after=0), reader.read(after=0))
        assert first is second


async def test_a_reader_goes_over_to_a_log_that_was_put_in_the_place_of_its_own(
    tmp_path: Path,
) -> None:
    """As after a restore: it must not go on answering from files that nobody writes."""
    async with LmdbLog(config(tmp_path / "new")) as log:
        await log.append([commit(1), commit(2), commit(3)])
        other = await log.bounds()
    async with LmdbLog(config(tmp_path / "log")) as log:
        await log.append([commit(1)])
        reader = LmdbLogReader(tmp_path / "log")
    (tmp_path / "log").rename(tmp_path / "old")
    (tmp_path / "new").rename(tmp_path / "log")
    assert await reader.wait(after=2, timeout_seconds=PATIENCE_SECONDS)
    assert await reader.bounds() == other
    await reader.close()


async def test_what_splits_and_ends_are_for_a_plan(tmp_path: Path) -> None:
    """Commit ends never cut a commit, ranges meet at block boundaries and cover all."""
    async with LmdbLog(config(tmp_path)) as log:
        for number in range(1, 6):
            position = str(number)
            events = changes("a", position, 30, bytes_=4_000)
            await log.append([Commit(source="a", position=position, events=events)])
        ends = [30, 60, 90, 120, 150]
        for after in range(150):
            for events_max in (1, 29, 30, 31, 65, 1000):
                within = [end for end in ends if after < end <= after + events_max]
                first = next(end for end in ends if end > after)
                expected = within[-1] if within else first
                assert log.commit_end(after=after, events_max=events_max) == expected
        assert log.commit_end(after=150, events_max=10) == 150
        lasts = {block.last_sequence for block in log.read_now(after=0, bytes_max=1 << 30)}
        for count in (1, 2, 3, 7, 100):
            ranges = log.ranges(after=5, until=140, count=count)
            assert (ranges[0][0], ranges[-1][1]) == (5, 140)
            assert len(ranges) <= count
            assert all(one[1] == two[0] for one, two in pairwise(ranges))
            assert {until for _, until in ranges[:-1]} <= lasts
        assert log.ranges(after=150, until=150, count=4) == []
