"""Whatever the state's thread meets is said, and tried again: it never ends unseen."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import structlog

from penstock.errors import LogCorruptError, LogError, LogFullError, StateFailedError
from penstock.event import Commit
from penstock.log.memory import MemoryLog
from penstock.state import keeper as keeper_module
from penstock.state.config import StateConfig
from penstock.state.keeper import StateKeeper
from penstock.state.tables import write_applied
from penstock.subscribe import Criteria
from tests.state.histories import change, copied_whole
from tests.waiting import wait_until

SECRET = "swordfish"


class Step:
    """Fails with what it is told to, instead of what it stands for."""

    def __init__(self, real: Callable[..., Any]) -> None:
        self.error: Exception | None = None
        self.tried = threading.Semaphore(0)
        self._real = real

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        self.tried.release()
        if self.error is not None:
            raise self.error
        return self._real(*arguments, **options)


async def log_with_a_row() -> MemoryLog:
    log = MemoryLog()
    await log.append(copied_whole("shop"))
    row = change("shop", "a", 1, document={"_id": 1}, position=1)
    await log.append([Commit(source="shop", position="1", events=(row,))])
    return log


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_RETRY_SECONDS", "_FULL_SECONDS", "_WAIT_SECONDS"):
        monkeypatch.setattr(keeper_module, name, 0.01)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("error", "code", "raised"),
    [
        (KeyError(SECRET), "state.failed", StateFailedError),
        (LogCorruptError("a hole"), "log.corrupt", LogCorruptError),
    ],
)
async def test_an_error_that_no_wait_mends_is_said_and_tried_again_until_it_is_gone(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    code: str,
    raised: type[Exception],
) -> None:
    """A defect ended the thread in silence: rows stood still, and nobody was told."""
    log = await log_with_a_row()
    write = Step(write_applied)
    monkeypatch.setattr(keeper_module, "write_applied", write)
    write.error = error
    config = StateConfig(free_bytes_min=0, interval=0)
    with structlog.testing.capture_logs() as lines, StateKeeper(log, tmp_path, config) as keeper:
        wait_until(lambda: keeper.status().code == code)
        assert keeper.status().sequence == 0
        assert SECRET not in keeper.status().message
        with pytest.raises(raised):
            keeper.open(Criteria())
        write.error = None
        wait_until(lambda: keeper.status().code == "")
        head = (await log.bounds()).head
        wait_until(lambda: keeper.status().sequence == head)
        reading = keeper.open(Criteria())
        assert len(reading.read(bytes_max=1 << 20)) == 1
        reading.close()
    said = [line["event"] for line in lines]
    assert said.count("state stopped; it needs attention") == 1
    assert said.count("state goes on") == 1
    assert SECRET not in str(lines)
    await log.close()


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("what", ["_reload", "wait_now"])
async def test_a_defect_outside_a_write_is_said_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Loading again after a failed write, and the wait for the log, are part of the thread."""
    log = await log_with_a_row()
    keeper = StateKeeper(log, tmp_path, StateConfig(free_bytes_min=0, interval=0))
    owner = keeper if what == "_reload" else log
    failing = Step(getattr(owner, what))
    monkeypatch.setattr(owner, what, failing)
    failing.error = RuntimeError(SECRET)
    if what == "_reload":
        write = Step(write_applied)
        write.error = LogFullError("no space")
        monkeypatch.setattr(keeper_module, "write_applied", write)
    with keeper:
        wait_until(lambda: keeper.status().code == "state.failed")
        failing.error = None
        monkeypatch.undo()
        monkeypatch.setattr(keeper_module, "_RETRY_SECONDS", 0.01)
        head = (await log.bounds()).head
        wait_until(lambda: keeper.status().code == "" and keeper.status().sequence == head)
    await log.close()


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("error", [LogFullError("no space"), LogError("opened anew")])
async def test_what_passes_is_said_in_the_status_and_the_rows_stay_readable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    log = await log_with_a_row()
    write = Step(write_applied)
    with StateKeeper(log, tmp_path, StateConfig(free_bytes_min=0, interval=0)) as keeper:
        head = (await log.bounds()).head
        wait_until(lambda: keeper.status().sequence == head)
        monkeypatch.setattr(keeper_module, "write_applied", write)
        write.error = error
        row = change("shop", "a", 2, document={"_id": 2}, position=2)
        await log.append([Commit(source="shop", position="2", events=(row,))])
        wait_until(lambda: keeper.status().code != "")
        reading = keeper.open(Criteria())
        assert len(reading.read(bytes_max=1 << 20)) == 1
        reading.close()
        write.error = None
        wait_until(lambda: keeper.status().sequence > head and keeper.status().code == "")
    await log.close()
