"""P5 on the real log: when there is no space left, capture waits, says so, and loses nothing."""

import asyncio
import random
from pathlib import Path

import pytest

from penstock.capture import PumpLimits, Supervised, Supervisor
from penstock.capture.status import State
from penstock.capture.supervise import LOG_FULL_WAIT_SECONDS
from penstock.event import Entry, SystemEvent
from penstock.log import LmdbLog, LogConfig
from penstock.sources.script import ScriptSource, ScriptSourceConfig
from tests.capture.doubles import ManualClock, entries

TRANSACTIONS = 3_000


def told_of(held: list[Entry]) -> list[str]:
    """What the source told; capture's own notices are not its."""
    return [one.event.event_id for one in held if not isinstance(one.event, SystemEvent)]


@pytest.mark.slow
async def test_capture_goes_on_by_itself_once_the_full_log_has_space_again(tmp_path: Path) -> None:
    source = ScriptSource(
        "shop", ScriptSourceConfig(transactions=TRANSACTIONS, events_per_second=0)
    )
    clock = ManualClock()
    config = LogConfig(path=tmp_path / "log", map_bytes=2 << 20, free_bytes_min=0)
    async with LmdbLog(config) as log:
        supervisor = Supervisor(
            log,
            [Supervised(source=source, silence_seconds_max=1e9)],
            clock=clock,
            rng=random.Random(1),
            limits=PumpLimits(batch_events_max=200),
        )
        running = asyncio.ensure_future(supervisor.run())
        seen: list[str] = []
        waited = read = 0
        while not running.done():
            if clock.waiting and clock.slept[-1] == LOG_FULL_WAIT_SECONDS:
                waited += 1
                (status,) = supervisor.status()
                assert status.state is State.LOG_FULL
                assert status.code == "log.full"
                held = await entries(log, after=read)
                if held:  # else what was trimmed last is still on its way back to the map
                    assert await log.position("shop") == held[-1].event.position
                    seen += told_of(held)
                    read = held[-1].sequence
                    await log.trim(held[-1].sequence)
                clock.wake()
            # Everything else is done by the log's own threads.
            await asyncio.wait([running], timeout=0.01)
        await running
        seen += told_of(await entries(log, after=read))
        assert supervisor.status()[0].state is State.FINISHED
    assert waited >= 1
    told = (source.shop.transaction(n) for n in range(1, TRANSACTIONS + 1))
    assert seen == [event.event_id for commit in told for event in commit.events]
