"""What `penstock log` promises: the log is verified, copied and compacted, and its errors said."""

import asyncio
import json
from pathlib import Path

import pytest

from penstock.capture import pump
from penstock.cli.config import load
from penstock.log import LmdbLog
from penstock.sources.script import ScriptSource, ScriptSourceConfig
from tests.audit.terminal import terminal
from tests.cli.service import configure, penstock, spawn


async def fill(config: Path) -> None:
    async with LmdbLog(load(config).log) as log:
        source = ScriptSource("shop", ScriptSourceConfig(transactions=200, events_per_second=0))
        await pump(source, log)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = configure(tmp_path)
    asyncio.run(fill(path))
    return path


def test_a_sound_log_is_said_to_be_sound(capsys: pytest.CaptureFixture[str], config: Path) -> None:
    done = penstock(capsys, "log", "check", "--config", str(config), "--json")
    assert done.code == 0, done.err
    said = json.loads(done.out)
    assert said["ok"] is True
    assert said["commits"] == 200
    assert said["entries"] == said["head"]
    assert "as it was written" in penstock(capsys, "log", "check", "-c", str(config)).out


def test_a_damaged_log_is_exit_code_4(capsys: pytest.CaptureFixture[str], config: Path) -> None:
    data = config.parent / "log" / "data.mdb"
    content = bytearray(data.read_bytes())
    at = content.rfind(b"example.org")
    content[at : at + 7] = b"EXAMPLE"
    data.write_bytes(content)
    done = penstock(capsys, "log", "check", "--config", str(config), "--json")
    assert done.code == 4
    assert json.loads(done.out)["problems"]


def test_a_backup_is_a_log_of_its_own(capsys: pytest.CaptureFixture[str], config: Path) -> None:
    target = config.parent / "copy"
    done = penstock(capsys, "log", "backup", str(target), "--config", str(config), "--json")
    assert done.code == 0, done.err
    said = penstock(capsys, "log", "check", "--path", str(target), "--json")
    assert json.loads(said.out)["commits"] == 200
    again = penstock(capsys, "log", "backup", str(target), "--config", str(config))
    assert again.code == 2
    assert "not an empty folder" in again.err


def test_a_log_is_compacted_and_still_sound(
    capsys: pytest.CaptureFixture[str], config: Path
) -> None:
    done = penstock(capsys, "log", "compact", "--config", str(config), "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["bytes_after"] > 0
    assert penstock(capsys, "log", "check", "--config", str(config)).code == 0


def test_a_log_that_is_not_there_is_exit_code_4(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    done = penstock(capsys, "log", "check", "--path", str(tmp_path / "none"))
    assert done.code == 4
    assert "Traceback" not in done.err


@pytest.mark.slow
def test_a_check_has_a_bar_on_a_terminal(config: Path) -> None:
    with terminal("log", "check", "--config", str(config)) as tty:
        assert tty.ended() == 0, tty.written
        assert tty.restored()
        bars, result = tty.written.rsplit("\x1b[?25h", 1)
    head = int(result.split(" entries (1 to ", 1)[1].split(")", 1)[0].replace(",", ""))
    for word in ("checking", "100%", f"{head:,} of {head:,} entries", "━━━"):
        assert word in bars
    assert "as it was written" in result
    assert "checking" not in result
    done = spawn("log", "check", "--config", str(config))
    assert "as it was written" in done.out
    assert done.err == ""
