"""One source cannot push another's history out of the log (the quotas of [capture])."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.capture_process import capture
from penstock.cli.config import Settings, load
from penstock.cli.quotas import share_of
from penstock.errors import ConfigError
from penstock.log import LmdbLog
from penstock.log.wake import ask
from tests.capture.doubles import ManualClock, entries
from tests.waiting import patience, until

FLOOD = """
[log]
path = "log"
free_bytes_min = 0
retention = "1h"
retention_bytes = "{total}"
[capture]
{quotas}
[sources.flood]
type = "script"
events_per_second = 0
note_bytes = 2000
[sources.quiet]
type = "script"
seed = 2
transactions = 20
"""


def settings_in(folder: Path, quotas: str = "", total: str = "16MiB") -> Settings:
    path = folder / "penstock.toml"
    path.write_text(FLOOD.format(quotas=quotas, total=total))
    return load(path, environment={})


async def state(log: LmdbLog, name: str) -> dict[str, Any]:
    answer = await asyncio.to_thread(ask, log.path, {"request": "status"})
    sources: list[dict[str, Any]] = answer.get("sources", [])
    found = [one for one in sources if one["source"] == name]
    return found[0] if found else {}


async def flooded(settings: Settings) -> tuple[int, int, int]:
    """Capture until the flood waits or was trimmed; (trimmed, the quiet one's entries, all)."""
    async with LmdbLog(settings.log) as log, patience():
        stop = asyncio.Event()
        running = asyncio.ensure_future(capture(settings, log, stop=stop))

        async def is_done() -> bool:
            return (await state(log, "quiet")).get("state") == "finished" and (
                (await state(log, "flood"))["state"] == "over_quota"
                or (await log.bounds()).trimmed > 1000
            )

        await until(is_done, task=running)
        flood = await state(log, "flood")
        stop.set()
        await running
        trimmed = (await log.bounds()).trimmed
        held = await entries(log, after=trimmed)
        if flood["state"] == "over_quota":
            assert flood["health"] == "degraded"
        return trimmed, sum(one.event.source == "quiet" for one in held), len(held)


@pytest.mark.slow
async def test_a_flood_waits_and_what_the_quiet_source_said_stays_for_its_age(
    tmp_path: Path,
) -> None:
    """Quotas: the oldest entries go first, whoever wrote them, so the flood must wait."""
    trimmed, kept, all_ = await flooded(settings_in(tmp_path, 'quotas = { flood = "12MiB" }'))
    assert trimmed == 0
    assert kept >= 40
    used = (tmp_path / "log" / "data.mdb").stat().st_blocks * 512
    assert used < 16 << 20, "the estimate of what an append takes up is too low"
    # A restart counts what was written before it.
    async with LmdbLog(settings_in(tmp_path).log) as log:
        settings, stop = settings_in(tmp_path, 'quotas = { flood = "12MiB" }'), asyncio.Event()
        running = asyncio.ensure_future(capture(settings, log, stop=stop))

        async def waits() -> bool:
            return (await state(log, "flood")).get("state") == "over_quota"

        await until(waits, task=running)
        stop.set()
        await running
        held = await entries(log)
        assert sum(len(bytes(getattr(one.event, "full_document", b"") or b"")) for one in held) < (
            12 << 20
        )
    assert all_ > 1000


@pytest.mark.slow
async def test_without_a_quota_the_flood_pushes_out_what_the_quiet_source_said(
    tmp_path: Path,
) -> None:
    """What the quota is for; the default, for a log whose sources are trusted."""
    trimmed, _, _ = await flooded(settings_in(tmp_path))
    assert trimmed > 1000


@pytest.mark.parametrize(
    ("quotas", "message"),
    [
        ('quotas = { fload = "1MiB" }', r"no \[sources.fload\] \(did you mean flood"),
        ('quotas = { flood = "1GiB" }', "log.retention_bytes only"),
        ('quotas = { flood = "a lot" }', "is not a size"),
    ],
)
def test_a_quota_that_keeps_nothing_is_refused(tmp_path: Path, quotas: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        settings_in(tmp_path, quotas)


def test_a_quota_without_an_age_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "penstock.toml"
    text = FLOOD.format(quotas='quotas = { flood = "1MiB" }', total="16MiB")
    path.write_text(text.replace('"1h"', '"none"'))
    with pytest.raises(ConfigError, match="bytes within"):
        load(path, environment={})


@pytest.mark.slow
async def test_what_was_written_is_kept_over_restarts_and_a_damaged_file_is_said(
    tmp_path: Path,
) -> None:
    settings, clock = settings_in(tmp_path, 'quotas = { flood = "1MiB" }'), ManualClock()
    settings.log.path.mkdir()
    first = share_of(settings, "flood", clock=clock)
    assert first is not None
    await first.admit((1 << 20) - 5000)
    again = share_of(settings, "flood", clock=clock)
    assert again is not None
    waits = asyncio.ensure_future(again.admit(100_000))
    await clock.until(lambda: again.waiting)
    assert not first.waiting
    while not waits.done():  # what it keeps is written by a thread
        if clock.waiting:
            clock.wake()
        await asyncio.wait([waits], timeout=0.01)
    assert clock.seconds >= 3600
    assert share_of(settings, "quiet", clock=clock) is None
    (settings.log.path / "quota-flood.json").write_text("[")
    with pytest.raises(ConfigError, match="Remove the file"):
        share_of(settings, "flood", clock=clock)
