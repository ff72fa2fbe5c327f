"""The capture process ends when what it runs has died, and says what its log cannot do."""

import asyncio
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from penstock import folders
from penstock.capture import Supervisor
from penstock.cli import kept_file, last_states
from penstock.cli.capture_process import capture
from penstock.cli.config import Settings, load
from penstock.event import Commit
from penstock.folders import keep_whole, write_whole
from penstock.log import LmdbLog
from penstock.log.wake import ask
from penstock.testing.contracts import ManualClock
from penstock.testing.contracts.entries import changes
from tests.waiting import patience, until


def settings_in(folder: Path) -> Settings:
    path = folder / "penstock.toml"
    path.write_text(
        f'[log]\npath = "{folder / "log"}"\nfree_bytes_min = 0\n'
        '[sources.shop]\ntype = "script"\ntransactions = 1\n'
    )
    return load(path, environment={})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("process", "unused"),
    [
        ("capture", {"strawberry", "graphql", "starlette", "uvicorn", "grpc"}),
        ("serve", {"strawberry", "graphql"}),
    ],
)
def test_a_process_imports_nothing_that_few_need(process: str, unused: set[str]) -> None:
    """It starts anew after each crash: half of its imports were for who serves, or for GraphQL."""
    program = (
        f"import sys, penstock.cli.{process}_process\n"
        f"print(set({sorted(unused)}) & sys.modules.keys())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "set()"), done.stderr


async def test_a_supervisor_that_crashed_ends_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P5: capture that has stopped must not look like capture that is quiet."""

    async def crash(_: Supervisor, *, lasting: bool) -> None:
        await asyncio.sleep(0)
        raise ZeroDivisionError

    monkeypatch.setattr(Supervisor, "run", crash)
    settings = settings_in(tmp_path)
    async with LmdbLog(settings.log) as log, patience():
        with pytest.raises(ZeroDivisionError):
            await capture(settings, log, stop=asyncio.Event())


async def test_capture_goes_on_when_its_sources_have_finished_and_says_that_age_is_paused(
    tmp_path: Path,
) -> None:
    """P22: the clock was set, so nothing is removed for its age, and `penstock status` knows."""
    settings = settings_in(tmp_path)
    clock = ManualClock()
    async with LmdbLog(settings.log, clock=clock) as log, patience():
        stop = asyncio.Event()
        running = asyncio.ensure_future(capture(settings, log, stop=stop))

        async def finished() -> dict[str, Any] | None:
            answer = await asyncio.to_thread(ask, log.path, {"request": "status"})
            over = "sources" in answer and answer["sources"][0]["state"] == "finished"
            return answer if over else None

        answer = await until(finished, task=running)
        assert answer["ageRetentionPaused"] is False
        clock.jump(7200)
        clock.pass_(10)
        await log.append([Commit(source="other", position="1", events=changes("other", "1", 1))])
        answer = await asyncio.to_thread(ask, log.path, {"request": "status"})
        assert answer["ageRetentionPaused"] is True
        assert not running.done()
        stop.set()
        await running


async def test_states_of_sources_are_written_by_one_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the end comes while the observer writes them."""
    began, written = asyncio.Event(), threading.Event()
    writing, at_once = 0, list[int]()

    def write(path: Path, content: bytes) -> None:
        if path.name == last_states.NAME:
            assert written.wait(timeout=60)
        write_whole(path, content)

    async def keep(path: Path, content: bytes) -> None:
        nonlocal writing
        if path.name != last_states.NAME:
            await keep_whole(path, content)
            return
        writing += 1
        at_once.append(writing)
        began.set()
        try:
            await keep_whole(path, content)
        finally:
            writing -= 1

    monkeypatch.setattr(folders, "write_whole", write)
    monkeypatch.setattr(kept_file, "keep_whole", keep)
    settings = settings_in(tmp_path)
    async with LmdbLog(settings.log) as log, patience():
        stop = asyncio.Event()
        running = asyncio.ensure_future(capture(settings, log, stop=stop))
        await began.wait()
        stop.set()
        for _ in range(100):  # turns of the loop: it comes as far as it can
            await asyncio.sleep(0)
        written.set()
        await running
    assert set(at_once) == {1}
    assert last_states.LastStates(settings.log.path).read().keys() == {"shop"}


async def test_a_disk_that_refuses_what_is_kept_is_told_once_until_it_takes_it(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "log"
    kept = kept_file.KeptFile(folder / "kept.json", unkept="it is not kept")
    with capture_logs() as logged:
        assert not await kept.keep(b"1")
        assert not await kept.keep(b"2")
        folder.mkdir()
        assert await kept.keep(b"2")
        kept.path.unlink()
        assert await kept.keep(b"2"), "as it is already"
        assert not kept.path.exists()
        folder.rmdir()
        assert not await kept.keep(b"3")
    assert [one["event"] for one in logged] == ["it is not kept"] * 2
    assert logged[0]["why"] == "No such file or directory"
