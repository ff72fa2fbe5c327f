"""The service archives its log, says how far it is, and a log is made of its archive."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.archive import writing
from penstock.archive.reading import Archive
from penstock.archive.writing import Archiver
from penstock.cli.capture_process import capture
from penstock.cli.config import Settings, load
from penstock.event import Commit
from penstock.log import LmdbLog, LmdbLogReader
from penstock.log.wake import ask
from penstock.telemetry import REGISTRY
from penstock.testing.contracts.entries import changes
from tests.captures.sockets import get
from tests.cli.service import SHOP, Service, configure, penstock
from tests.waiting import patience


def configured(folder: Path, archive: str = "archive") -> Path:
    path = folder / "penstock.toml"
    path.write_text(
        f'[log]\npath = "{folder / "log"}"\nfree_bytes_min = 0\n'
        f'[archive]\npath = "{archive}"\nrange_age = "1ms"\n'
        '[sources.shop]\ntype = "script"\ntransactions = 5\nevents_per_second = 0\n'
    )
    return path


async def status(log: LmdbLog) -> dict[str, Any]:
    answer = await asyncio.to_thread(ask, log.path, {"request": "status"})
    found: dict[str, Any] = answer.get("archive") or {}
    return found


async def run_until(
    settings: Settings, log: LmdbLog, holds: Callable[[dict[str, Any]], bool]
) -> dict[str, Any]:
    """Capture until the archive's status says what is wanted."""
    stop = asyncio.Event()
    running = asyncio.ensure_future(capture(settings, log, stop=stop))
    try:
        while not holds(found := await status(log)):
            assert not running.done(), running.result()
        return found
    finally:
        stop.set()
        await running


async def test_capture_archives_and_a_log_is_restored_from_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = configured(tmp_path)
    settings = load(config, environment={})
    assert settings.archive.path == str(tmp_path / "archive")
    async with LmdbLog(settings.log, trims=False) as log, patience():
        await log.append([Commit(source="other", position="1", events=changes("other", "1", 9))])
        found = await run_until(settings, log, lambda said: (said.get("until") or 0) >= 9)
        assert (found["begin"], found["lost"], found["message"]) == (0, 0, None)
        head = (await log.bounds()).head
        # Told at each look, so they may be of a later one.
        assert (REGISTRY.get_sample_value("penstock_archive_sequence") or 0) >= found["until"]
        assert (REGISTRY.get_sample_value("penstock_archive_bytes") or 0) >= found["bytes"]
        assert REGISTRY.get_sample_value("penstock_archive_lost_entries") == 0
    restored = tmp_path / "restored"
    arguments = ("log", "restore", "--config", str(config), "--path", str(restored))
    done = await asyncio.to_thread(penstock, capsys, *arguments, "--json")
    assert done.code == 0, done.err
    said = json.loads(done.out)
    until = Archive.open(str(tmp_path / "archive")).manifest.until
    assert said["head"] == until <= head
    checked = await asyncio.to_thread(penstock, capsys, "log", "check", "--path", str(restored))
    assert checked.code == 0, checked.out
    again = await asyncio.to_thread(penstock, capsys, *arguments)
    assert again.code == 2
    assert "not an empty folder" in again.err
    missing = await asyncio.to_thread(
        penstock, capsys, "log", "restore", "--archive", str(tmp_path / "x"), "--path", "y"
    )
    assert missing.code == 4
    assert "there is no archive" in missing.err


@pytest.mark.slow
async def test_history_of_a_running_service_begins_with_the_archive(tmp_path: Path) -> None:
    more = 'retention_events = 100\n[archive]\npath = "archive"\nrange_age = "1ms"\n[sources'
    config = configure(tmp_path, SHOP.format(rate=2_000).replace("[sources", more, 1))
    with Service(config) as service:
        reader = LmdbLogReader(tmp_path / "log")
        try:
            while (bounds := await reader.bounds()).trimmed < 50:
                await reader.wait(after=bounds.head)
        finally:
            await reader.close()
        async with get(service.ready["http"], "/rest/shop/changes?limit=5") as answer:
            page = await answer.json()
        assert service.stop() == 0
    assert page["previous"] is None
    assert page["changes"][0]["version"] == 1


async def test_an_archive_that_fails_never_stops_capture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invariant 8."""
    (tmp_path / "taken").write_text("no folder")
    settings = load(configured(tmp_path, "taken"), environment={})
    async with LmdbLog(settings.log, trims=False) as log, patience():
        found = await run_until(settings, log, lambda said: bool(said.get("code")))
        assert found["code"] == "archive.unavailable"
        assert "taken" in found["message"]
        assert found["until"] is None
        failed = "penstock_archive_errors_total"
        assert (REGISTRY.get_sample_value(failed, {"code": found["code"]}) or 0) > 0

        def defect(_: Archiver) -> bool:
            raise ZeroDivisionError("a document")

        monkeypatch.setattr(writing.Archiver, "step", defect)
        found = await run_until(settings, log, lambda said: said.get("code") == "archive")
        assert "ZeroDivisionError" in found["message"]
        assert "document" not in found["message"]


def test_without_a_path_there_is_no_archive(tmp_path: Path) -> None:
    path = tmp_path / "penstock.toml"
    path.write_text('[sources.shop]\ntype = "script"\n')
    assert load(path, environment={}).archive.path is None


def test_a_url_stays_as_it_is(tmp_path: Path) -> None:
    assert load(configured(tmp_path, "s3://b/c"), environment={}).archive.path == "s3://b/c"
