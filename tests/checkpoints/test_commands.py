"""`penstock checkpoint show | set | clear`, with the service down and up."""

import asyncio
import json
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.capture.moving import move
from penstock.event import Commit, Fragment, Kind, SystemEvent, kind_of
from penstock.log import LmdbLog, LmdbLogReader
from penstock.log.wake import ask
from penstock.testing.contracts.entries import changes, read_all
from tests.checkpoints.support import etcd_section, facts, machine
from tests.cli.service import Done, Service, penstock
from tests.waiting import wait_until
from tests_support.servers import EtcdServer

SERVE = '[serve]\ngrpc = "127.0.0.1:0"\nflight = "127.0.0.1:0"\nhttp = "off"\n'
SLOW = '[sources.shop]\ntype = "script"\nevents_per_second = 50\nheartbeat_seconds = 0.2\n'


async def in_thread(
    run: Callable[..., Done], capsys: pytest.CaptureFixture[str], *arguments: str
) -> Done:
    """A command has a loop of its own, so it cannot run in ours."""
    return await asyncio.to_thread(run, capsys, *arguments)


async def capture_some(folder: Path, *, events: int = 3) -> Path:
    """A log in which the source `shop` stands at 1:7; returns the configuration."""
    settings = machine(folder, "")
    async with LmdbLog(settings.log) as log:
        await log.append(
            [Commit(source="shop", position="1:7", events=changes("shop", "1:7", events))]
        )
    return settings.path


async def test_set_moves_a_source_and_leaves_a_gap_in_the_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Invariant 4: nobody is moved ahead silently."""
    config = await capture_some(tmp_path / "a")
    done = await in_thread(penstock, capsys, "checkpoint", "set", "shop", "1:15", "-c", str(config))
    assert done.code == 0, done.err
    assert "the log has a gap that says so" in done.out
    async with LmdbLogReader(config.parent / "log") as log:
        (state,) = await log.sources()
        entries = await read_all(log)
    assert (state.position, state.events) == ("1:15", 4)
    event = entries[-1].event
    assert isinstance(event, SystemEvent)
    assert event.kind is Kind.GAP
    said = facts(event.description)
    assert (said["from"], said["to"]) == ("1:7", "1:15")
    assert said["reason"] == "the position was moved by hand"


async def test_clear_has_a_source_begin_again_and_leaves_a_gap(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = await capture_some(tmp_path / "a")
    done = await in_thread(penstock, capsys, "checkpoint", "clear", "shop", "-c", str(config))
    assert done.code == 0, done.err
    async with LmdbLogReader(config.parent / "log") as log:
        assert await log.sources() == []
        entries = await read_all(log)
    assert kind_of(entries[-1].event) is Kind.GAP
    again = await in_thread(penstock, capsys, "checkpoint", "clear", "shop", "-c", str(config))
    assert again.code == 2
    assert "has no position" in again.err


async def test_what_a_source_had_staged_does_not_come_out_with_the_gap(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """S14: a transaction that was cut off stays unseen."""
    config = await capture_some(tmp_path / "a")
    settings = machine(tmp_path / "a", "")
    async with LmdbLog(settings.log) as log:
        await log.append([Fragment(source="shop", events=changes("shop", "1:8", 5))])
        await move(log, "shop", "1:9", now_ms=1)
        entries = await read_all(log)
    assert [kind_of(entry.event) for entry in entries[3:]] == [Kind.GAP]
    assert config.exists()


async def test_a_source_that_was_never_captured_gets_its_start_without_a_gap(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """P14: nobody was told anything of it, so nothing is skipped."""
    config = await capture_some(tmp_path / "a")
    text = config.read_text() + '[sources.other]\ntype = "script"\n'
    config.write_text(text)
    done = await in_thread(penstock, capsys, "checkpoint", "set", "other", "1:2", "-c", str(config))
    assert done.code == 0, done.err
    async with LmdbLogReader(config.parent / "log") as log:
        assert {one.source: one.position for one in await log.sources()}["other"] == "1:2"
        assert len(await read_all(log)) == 3


async def test_an_unknown_source_and_a_missing_log_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = await capture_some(tmp_path / "a")
    done = await in_thread(penstock, capsys, "checkpoint", "set", "shpo", "1:2", "-c", str(config))
    assert done.code == 2
    assert "did you mean shop" in done.err
    empty = machine(tmp_path / "b", "").path
    done = await in_thread(penstock, capsys, "checkpoint", "set", "shop", "1:2", "-c", str(empty))
    assert done.code == 4
    assert not (tmp_path / "b" / "log").exists()
    done = await in_thread(penstock, capsys, "checkpoint", "clear", "-c", str(empty))
    assert done.code == 2


@pytest.mark.slow
def test_while_capture_runs_a_source_is_moved_only_when_it_is_paused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = machine(tmp_path / "a", "", SLOW + SERVE).path
    with Service(config):
        until_captured(config)
        refused = penstock(capsys, "checkpoint", "set", "shop", "1:9000", "-c", str(config))
        assert refused.code == 2
        assert "penstock pause shop" in refused.err
        assert penstock(capsys, "pause", "shop", "-c", str(config)).code == 0
        moved = penstock(capsys, "checkpoint", "set", "shop", "1:9000", "--json", "-c", str(config))
        assert moved.code == 0, moved.err
        assert json.loads(moved.out)["after"] == "1:9000"
        assert json.loads(moved.out)["gap"] is True
        assert penstock(capsys, "resume", "shop", "-c", str(config)).code == 0
        shown = penstock(capsys, "checkpoint", "show", "--json", "-c", str(config))
        (source,) = json.loads(shown.out)["sources"]
        assert int(source["position"].split(":")[1]) >= 9000


def until_captured(config: Path) -> None:
    """Wait until the shop has a position."""

    def is_running() -> bool:
        answer = ask(config.parent / "log", {"request": "status"})
        # Before its sources are opened, it takes no requests yet.
        return bool(answer.get("sources", [{}])[0].get("state") == "running")

    wait_until(is_running)


def test_show_says_both_positions_with_their_ages_and_the_service_up_or_down(
    tmp_path: Path, etcd: EtcdServer, capsys: pytest.CaptureFixture[str]
) -> None:
    instance = f"test-{uuid.uuid4().hex[:12]}"
    section = etcd_section(etcd, instance)
    config = machine(tmp_path / "a", section, SLOW + SERVE).path
    before = penstock(capsys, "checkpoint", "show", "-c", str(config))
    assert (before.code, "log: none yet" in before.out) == (0, True)
    assert "nothing yet" in before.out
    with Service(config):
        until_captured(config)
        up = json.loads(penstock(capsys, "checkpoint", "show", "--json", "-c", str(config)).out)
        assert up["publishing"]["instance"] == instance
        assert up["publishing"]["circuit"] == "closed"
    down = penstock(capsys, "checkpoint", "show", "--json", "-c", str(config))
    assert down.code == 0
    report = json.loads(down.out)
    (source,) = report["sources"]
    assert source["position"] == source["published"]
    assert source["movedAtMs"] == source["publishedMovedAtMs"] > 0
    copy = report["published"]
    assert (copy["logId"], copy["sequence"]) == (report["logId"], report["sequence"])
    assert (copy["standing"], copy["lagEvents"]) == ("ours", 0)
    assert report["publishing"] is None
    people = penstock(capsys, "checkpoint", "show", "-c", str(config)).out
    assert f"published in etcd as {instance}" in people
    assert source["position"] in people


def test_show_says_what_the_log_holds_even_if_the_store_is_down(
    tmp_path: Path, start_etcd: Callable[[], EtcdServer], capsys: pytest.CaptureFixture[str]
) -> None:
    server = start_etcd()
    config = machine(tmp_path / "a", etcd_section(server, "x"), SLOW + SERVE).path
    with Service(config):
        until_captured(config)
        server.kill()
        down = penstock(capsys, "checkpoint", "show", "--json", "-c", str(config))
        assert down.code == 8
        report = json.loads(down.out)
        assert report["code"] == "checkpoint.unavailable"
        assert report["sources"][0]["position"].startswith("1:")
        assert server.endpoint not in down.out
        status = penstock(capsys, "status", "--json", "-c", str(config))
        assert status.code == 0, "capture does what it should"


def test_clear_published_gives_the_name_to_the_next_one(
    tmp_path: Path, etcd: EtcdServer, capsys: pytest.CaptureFixture[str]
) -> None:
    section = etcd_section(etcd, f"test-{uuid.uuid4().hex[:12]}")
    one = machine(tmp_path / "a", section, SLOW + SERVE).path
    other = machine(tmp_path / "b", "", SLOW + SERVE).path
    for config in (one, other):
        with Service(config):
            until_captured(config)
    machine(tmp_path / "b", section, SLOW + SERVE)
    refused = penstock(capsys, "run", "--role", "capture", "-c", str(other))
    assert refused.code == 9
    assert "checkpoint clear --published" in refused.err
    cleared = penstock(capsys, "checkpoint", "clear", "--published", "-c", str(other))
    assert cleared.code == 0, cleared.err
    with Service(other):
        until_captured(other)
    shown = penstock(capsys, "checkpoint", "show", "--json", "-c", str(other))
    assert json.loads(shown.out)["published"]["standing"] == "ours"
