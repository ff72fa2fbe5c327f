"""What `penstock run` promises: it survives the death of each of its processes, and says so."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from penstock.cli import run
from penstock.cli.config import load
from penstock.cli.exit_codes import ENDED_BY_FORCE
from penstock.cli.last_states import LastState, LastStates
from penstock.cli.paused import PausedSources
from penstock.client import Change, follow_sync
from penstock.event import SystemEvent
from penstock.log import LmdbLog
from penstock.sources.script import ScriptSource, ScriptSourceConfig
from tests.audit.terminal import terminal
from tests.cli.service import Service, commands_alive, configure, penstock
from tests.waiting import wait_until
from tests_support.servers import MongoReplicaSet

NONE = LastState(source="", state="", since_ms=0)
AT_REST = """[serve]
grpc = '127.0.0.1:0'
flight = '127.0.0.1:0'
http = 'off'
[sources.shop]
type = 'script'
transactions = 1
"""


@pytest.mark.slow
def test_kill_9_of_each_process_is_survived_and_said_and_no_reader_misses_a_change(
    tmp_path: Path,
) -> None:
    """Invariants 2, 3 and 8: one reader stays connected through the death of both processes."""
    with Service(configure(tmp_path)) as service:
        pids = service.ready["pids"]
        seen: list[Change] = []
        with follow_sync(service.ready["grpc"], control_events=True) as changes:
            # Until the head has moved after the last death: everything was lived through.
            for change in changes:
                seen.append(change)
                if len(seen) == 50:
                    pids["capture"] = service.kill("capture", pids["capture"])
                if len(seen) == 150:
                    pids["serve"] = service.kill("serve", pids["serve"])
                if len(seen) >= 400:
                    break
        assert service.stop() == 0
        assert commands_alive(list(pids.values())) == []
    sequences = [change.sequence for change in seen]
    assert sequences == list(range(sequences[0], sequences[0] + len(sequences)))
    assert seen[0].event.position
    shop = ScriptSource("shop", ScriptSourceConfig()).shop
    first = int(seen[0].event.position.partition(":")[2])
    told = [event for n in range(first, first + 400) for event in shop.transaction(n).events]
    start = next(i for i, event in enumerate(told) if event.event_id == seen[0].event.event_id)
    shops = [change.event for change in seen if not isinstance(change.event, SystemEvent)]
    assert [event.event_id for event in shops] == [
        event.event_id for event in told[start : start + len(shops)]
    ]
    notices = [change.event for change in seen if isinstance(change.event, SystemEvent)]
    assert {event.operation for event in notices} == {"started"}


@pytest.mark.slow
def test_both_processes_die_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    """No writer is left behind that would lock the next service out."""
    config = configure(tmp_path)
    with Service(config) as service:
        service.process.kill()
        # The children inherited the pipe: it ends when both are gone.
        service.process.rest()
        with Service(config) as after:
            assert after.stop(signal.SIGINT) == 0


@pytest.mark.slow
def test_a_service_whose_output_nobody_reads_any_more_goes_on(tmp_path: Path) -> None:
    """`penstock run --json | head -1` must not end capture at the next restart."""
    with Service(configure(tmp_path), lines_max=1) as service:
        os.kill(service.ready["pids"]["capture"], signal.SIGKILL)
        with follow_sync(service.ready["grpc"], control_events=True) as changes:
            sequences = [change.sequence for change, _ in zip(changes, range(100), strict=False)]
        assert sequences[-1] - sequences[0] == 99
        assert service.stop() == 0


@pytest.mark.slow
def test_one_process_serves_and_stops_cleanly(tmp_path: Path) -> None:
    with Service(configure(tmp_path), "--one-process") as service:
        with follow_sync(service.ready["grpc"]) as changes:
            assert next(iter(changes)).sequence
        assert service.stop() == 0


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--one-process",)])
def test_why_a_source_stopped_is_logged_and_still_known_when_the_service_is_down(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    mongo: MongoReplicaSet,
    options: tuple[str, ...],
) -> None:
    uri = mongo.uri.replace("mongodb://", "mongodb://cdc:s3cret@")
    config = configure(tmp_path, f"{AT_REST}[sources.crm]\ntype = 'mongodb'\nuri = '{uri}'\n")
    why = f"crm: MongoDB at {mongo.addresses[0]} rejects the user name or password of 'cdc'"
    with Service(config, *options) as service:
        assert service.ready["states"].keys() == {"shop", "crm"}
        wait_until(lambda: "source stopped; it needs attention" in service.errors())
        (line,) = [one for one in service.errors().splitlines() if "needs attention" in one]
        told = json.loads(line)
        assert told["reason"].startswith(why)
        assert "Correct uri: the user, the password" in told["reason"]
        assert "s3cret" not in service.errors()
    done = penstock(capsys, "status", "--config", str(config), "--json")
    shop, crm = json.loads(done.out)["sources"]
    assert (crm["state"], crm["lastState"], crm["code"]) == ("down", "stopped", "config")
    assert crm["message"] == told["reason"]
    assert (shop["state"], shop["message"]) == ("down", "")
    done = penstock(capsys, "status", "--config", str(config))
    assert f"stopped before: {why}" in " ".join(done.out.split())


@pytest.mark.slow
def test_a_terminal_is_told_why_a_source_stopped_and_status_knows_it_after_kill_9(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], mongo: MongoReplicaSet
) -> None:
    uri = mongo.uri.replace("mongodb://", "mongodb://cdc:s3cret@")
    more = f"[sources.crm]\ntype = 'mongodb'\nuri = '{uri}'\n[sources.idle]\ntype = 'script'\n"
    config = configure(tmp_path, AT_REST + more)
    folder = load(config).log.path
    folder.mkdir(parents=True)
    PausedSources(folder).change("idle", paused=True)
    why = f"crm: MongoDB at {mongo.addresses[0]} rejects the user name or password of 'cdc'"
    with terminal("run", "--config", str(config), width=500) as shown:
        lines = shown.shows("ready", why)
        (ready,) = [line for line in lines if line.startswith("ready")]
        assert re.search(r"sources shop \w+, crm \w+, idle paused\. Ctrl-C", ready)
        (stopped,) = [line for line in lines if "needs attention" in line]
        assert why in stopped
        assert "Correct uri: the user, the password" in stopped
        wait_until(lambda: LastStates(folder).read().get("crm", NONE).state == "stopped")
        shown.process.kill()
        shown.process.wait()
    done = penstock(capsys, "status", "--config", str(config))
    assert f"stopped before: {why}" in " ".join(done.out.split())


@pytest.mark.slow
def test_a_quiet_source_is_not_behind_and_says_when_it_last_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The simulated shop's changes are of a day long ago."""
    quiet = "events_per_second = 0.01\nheartbeat_seconds = 0.1\n"
    config = configure(tmp_path, AT_REST.replace("transactions = 1\n", quiet))

    def looked() -> dict[str, Any]:
        done = penstock(capsys, "status", "--config", str(config), "--json")
        found: dict[str, Any] = json.loads(done.out)["sources"][0]
        return found

    with Service(config, "--one-process"):
        wait_until(lambda: (looked()["lagSeconds"] or 1e9) < 60)
        assert looked()["sinceChangeSeconds"] > 86_400
    assert looked()["lagSeconds"] is None


def test_the_terminal_is_told_how_each_source_is(capsys: pytest.CaptureFixture[str]) -> None:
    fact = {"event": "ready", "grpc": "a:1", "flight": "a:2", "dynamodb": "off", "log": "data"}
    run.show({**fact, "states": {"shop": "running", "crm": "stopped"}})
    assert "sources shop running, crm stopped" in capsys.readouterr().out


def test_what_cannot_start_ends_with_the_error_s_sentence_and_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        config = str(configure(tmp_path))
        done = penstock(capsys, "run", "--config", config, "--grpc", address, "--one-process")
    assert done.code == 2
    assert f"cannot listen on {address}" in done.err
    assert "Traceback" not in done.err


@pytest.mark.slow
def test_a_second_service_on_the_same_log_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The child's sentence and exit code are those of the command."""
    config = configure(tmp_path)
    log = LmdbLog(load(config).log)
    try:
        done = penstock(capfd, "run", "--config", str(config), "--json")
    finally:
        asyncio.run(log.close())
    assert done.code == 4
    assert '"code":"log.locked"' in done.err
    assert "Traceback" not in done.err


def test_a_child_without_its_parent_ends_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_PARENT_PID", str(os.getppid() + 1))
    done = penstock(capsys, "run", "--config", str(configure(tmp_path)), "--role", "capture")
    assert done.code == 1


@pytest.mark.slow
@pytest.mark.parametrize("role", ["capture", "serve"])
def test_a_process_that_hangs_is_killed_and_started_again(tmp_path: Path, role: str) -> None:
    """P18, S15: alive is not enough. SIGSTOP is a process whose event loop turns no more."""
    config = configure(tmp_path)
    config.write_text(config.read_text() + "[processes]\nhung_after = 5\n")
    with Service(config) as service:
        pids = service.ready["pids"]
        os.kill(pids[role], signal.SIGSTOP)
        died = service.expect("died")
        assert (died["role"], died["exitCode"]) == (role, -9)
        pids[role] = service.expect("restarted")["pid"]
        assert "a process hangs" in service.errors()
        assert service.stop() == 0
        assert commands_alive(list(pids.values())) == []


@pytest.mark.slow
def test_a_second_signal_while_it_drains_is_safe(tmp_path: Path) -> None:
    config = configure(tmp_path)
    with Service(config) as service:
        pids = service.ready["pids"]
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
            service.process.send_signal(number)
        assert service.process.wait() == 0
        assert commands_alive(list(pids.values())) == []
    with Service(config, "--one-process") as again:
        assert again.stop(signal.SIGINT) == 0


HASTY = """
from penstock.cli import main, parent
parent.DRAIN_SECONDS_MAX = 1.0
main()
"""
"""`penstock`, with less patience at its end than users have."""


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--one-process",)])
def test_what_does_not_end_does_not_keep_the_service_from_ending(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    """P18: a webhook that takes an alert and never answers, and that may take five minutes to."""
    with socket.create_server(("127.0.0.1", 0)) as webhook:
        config = configure(tmp_path)
        text = config.read_text().replace('type = "script"', 'type = "script"\nseed = {seed}')
        alerts = f'[alerts]\nwebhook = "http://127.0.0.1:{webhook.getsockname()[1]}"\n'
        config.write_text(text.format(seed=1) + alerts + "timeout = 300\n")
        with Service(config, *options):
            pass
        # Of another shop than the log: its capture stops, and that is an alert.
        config.write_text(text.format(seed=2) + alerts + "timeout = 300\n")
        with Service(config, *options, command=(sys.executable, "-c", HASTY)) as service:
            hanging, _ = webhook.accept()
            with hanging:
                assert service.stop() == (ENDED_BY_FORCE if options else 0)
        assert "in time" in service.errors()
    with Service(config, *options) as again:
        assert again.stop() == 0


MUTE = """
import threading
from penstock.cli import logs, parent, run
parent.DRAIN_SECONDS_MAX = 0.01
logs.configure(as_json=True, process="penstock")
run._end_in_time()
threading.Event().wait()
"""
"""A service that was asked to stop, and does not."""


@pytest.mark.slow
def test_a_stderr_that_nobody_reads_does_not_keep_the_service_from_ending() -> None:
    """P18: it takes nothing more, so what is said last cannot be said. The end has its own code."""
    reading, writing = os.pipe()
    try:
        os.set_blocking(writing, False)
        with suppress(BlockingIOError):
            while True:
                os.write(writing, b"x" * 65536)
        with suppress(BlockingIOError):
            while True:
                os.write(writing, b"x")
        os.set_blocking(writing, True)
        done = subprocess.run([sys.executable, "-c", MUTE], stderr=writing, check=False)
        assert done.returncode == ENDED_BY_FORCE
    finally:
        os.close(reading)
        os.close(writing)
