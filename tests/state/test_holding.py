"""P7: whoever takes current rows for long finds what follows them in the log, or is told so."""

# A log is replaced under the keeper.
# pyright: reportPrivateUsage=false

import time
from collections.abc import AsyncGenerator
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest

from penstock.client import follow, snapshot
from penstock.errors import RowsOvertakenError
from penstock.event import Commit
from penstock.log.config import LogConfig
from penstock.log.memory import MemoryLog
from penstock.ports import Hold
from penstock.serve.config import ServeConfig
from penstock.serve.grpc import serve_grpc
from penstock.state.config import StateConfig
from penstock.state.holding import Holds
from penstock.state.keeper import StateKeeper
from penstock.state.layout import HOLDS_KEY, META
from penstock.subscribe import Criteria
from tests.state.histories import change, copied_whole
from tests.waiting import until

CONFIG = StateConfig(free_bytes_min=0, interval=0, hold=100, hold_bytes=5)
ROWS = 40


class Time:
    """Milliseconds that a test sets."""

    now_ms = 1_000_000

    def __call__(self) -> int:
        return self.now_ms


async def rows(log: MemoryLog, first: int, number: int, *, filler: str = "") -> None:
    """Append so many rows, each a commit of its own."""
    for n in range(first, first + number):
        event = change("shop", "a", n, document={"_id": n, "filler": filler}, position=n)
        await log.append([Commit(source="shop", position=str(n), events=(event,))])


@pytest.fixture
async def log() -> AsyncGenerator[MemoryLog]:
    log = MemoryLog(LogConfig(retention_events=ROWS))
    await log.append(copied_whole("shop"))
    # More than a connection holds on its way to a reader that takes nothing.
    await rows(log, 1, ROWS - 10, filler="x" * (1 << 18))
    yield log
    await log.close()


def applied(keeper: StateKeeper) -> None:
    while keeper.step():
        pass


async def test_a_reading_holds_what_follows_it_and_for_a_while_after_it_was_read_whole(
    tmp_path: Path, log: MemoryLog
) -> None:
    time = Time()
    keeper = StateKeeper(log, tmp_path, CONFIG, wall_ms=time)
    holds = Holds(tmp_path, wall_ms=time, steady_seconds=count().__next__)
    assert holds() is None
    applied(keeper)
    first = keeper.open(Criteria())
    held = Hold(sequence=first.progress.sequence, until_ms=1_100_000, bytes_max=5)
    assert holds() == held
    await rows(log, 100, 1)
    applied(keeper)
    time.now_ms += 10_000
    second = keeper.open(Criteria())
    assert holds() == held, "the one that reaches furthest back"
    first.close()
    assert holds() == Hold(sequence=second.progress.sequence, until_ms=1_110_000, bytes_max=5), (
        "one that broke off needs nothing"
    )
    while second.read(bytes_max=1000):
        pass
    second.close()
    found = holds()
    assert found is not None
    assert (found.sequence, found.until_ms) == (second.progress.sequence, time.now_ms + 60_000)
    time.now_ms += 60_000
    assert holds() is None
    third = keeper.open(Criteria())
    time.now_ms += 100_000
    assert holds() is None, "however slow its reader is"
    third.close()
    keeper.close()
    holds.close()


async def test_a_clock_that_is_set_back_lets_no_reading_go_sooner(
    tmp_path: Path, log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is set right again one day, and what was dated by it would be over at once."""
    real = time.time_ns
    keeper = StateKeeper(log, tmp_path, CONFIG)
    applied(keeper)
    monkeypatch.setattr(time, "time_ns", lambda: real() - 200 * 86_400 * 10**9)
    with closing(keeper), closing(keeper.open(Criteria())):
        monkeypatch.undo()
        with closing(Holds(tmp_path)) as holds:
            assert holds() is not None


async def test_what_a_crash_or_another_log_leaves_is_not_held(
    tmp_path: Path, log: MemoryLog
) -> None:
    holds = Holds(tmp_path, steady_seconds=count().__next__)
    keeper = StateKeeper(log, tmp_path, CONFIG)
    applied(keeper)
    keeper.open(Criteria())
    assert holds() is not None
    keeper.close()  # as by a crash: the reading was not closed
    keeper = StateKeeper(log, tmp_path, CONFIG)
    assert holds() is None
    keeper.open(Criteria())
    assert holds() is not None
    other = MemoryLog()
    await other.append(copied_whole("shop"))
    await rows(other, 1, 1)
    keeper._log = other  # as a restore does
    applied(keeper)
    keeper.open(Criteria()).close()
    assert holds() is None
    keeper.close()
    holds.close()
    assert holds() is None
    await other.close()


@pytest.mark.parametrize("written", [b"", b'[{"until":1}]', b'"\xff"'])
async def test_holds_that_cannot_be_read_hold_everything_and_stop_no_writer(
    tmp_path: Path, log: MemoryLog, written: bytes
) -> None:
    """They are asked for on the thread that writes the log."""
    with closing(StateKeeper(log, tmp_path, CONFIG)) as keeper:
        with keeper._env.write() as txn:
            txn.put(HOLDS_KEY, written, db=keeper._env[META])
        with closing(Holds(tmp_path)) as holds:
            held = holds()
        assert held is not None
        assert held.sequence == 0


@pytest.mark.parametrize("read_before", [0, 1, 1000])
async def test_rows_that_cannot_be_followed_any_more_end_with_an_error_that_says_so(
    tmp_path: Path, log: MemoryLog, read_before: int
) -> None:
    """At the next read, not after hours, and never with a marker that is already refused."""
    keeper = StateKeeper(log, tmp_path, CONFIG)
    applied(keeper)
    reading = keeper.open(Criteria())
    for _ in range(read_before):
        if len(reading.read(bytes_max=200)) == 0:
            break
    await log.trim(reading.progress.sequence)
    reading.read(bytes_max=1)
    await rows(log, 100, 1)
    await log.trim(reading.progress.sequence + 1)
    with pytest.raises(RowsOvertakenError, match="Throw away what came"):
        reading.read(bytes_max=1)
    reading.close()
    keeper.close()


@pytest.mark.slow
@pytest.mark.parametrize("held", [True, False])
async def test_a_long_snapshot_is_followed_without_a_loss_though_retention_went_on(
    tmp_path: Path, log: MemoryLog, held: bool
) -> None:
    """Held, it goes on from its marker; not held, its reader is told, and goes in no circles."""
    config = CONFIG.model_copy(update={"hold": 100 if held else 0, "hold_bytes": 1 << 30})
    holds = Holds(tmp_path, steady_seconds=count().__next__)
    log.held_by(holds)
    serve = ServeConfig.model_validate({"grpc": "127.0.0.1:0", "batch_bytes_max": 1})

    async def taken(address: str) -> tuple[set[str], str]:
        found: set[str] = set()
        async with snapshot(address) as current:
            async for row in current:
                if not found:
                    # More than retention keeps, before the second row is read.
                    await rows(log, 1000, 3 * ROWS)
                found.add(row.document_id)
        return found, current.progress

    with StateKeeper(log, tmp_path, config) as keeper:
        await until(lambda: keeper.applied.sequence >= log.bounds_now().head)
        async with await serve_grpc(log, serve, current=keeper) as server:
            if not held:
                with pytest.raises(RowsOvertakenError):
                    await taken(server.address)
            else:
                found, progress = await taken(server.address)
                assert found == {str(n) for n in range(1, ROWS - 9)}
                async with follow(server.address, after=progress) as later:
                    async for one in later:
                        found.add(one.document_id)
                        if one.document_id == str(1000 + 3 * ROWS - 1):
                            break
                assert len(found) == ROWS - 10 + 3 * ROWS
    holds.close()
