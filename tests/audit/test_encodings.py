"""Commands print and read whatever the locale is: what it has no character for is escaped."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from penstock.audit.trail import Trail
from tests.audit.commands import configured
from tests.audit.support import row, write
from tests.cli.service import COMMAND

LOCALES: Final = [
    {"LC_ALL": "C"},
    {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    {"LC_ALL": "C.UTF-8", "PYTHONIOENCODING": "latin-1"},
    {"LC_ALL": "C.UTF-8", "PYTHONIOENCODING": "ascii"},
]
pytestmark = pytest.mark.parametrize("locale", LOCALES, ids=str)
EVERY_HELP: Final = """
import sys
import typer
from penstock.cli import output
from penstock.cli.app import app

def every(command, *path):
    context = typer.Context(command)
    for name in getattr(command, "list_commands", lambda context: ())(context):
        every(command.get_command(context, name), *path, name)
    command.main([*path, "--help"][len(path):], prog_name=" ".join(path), standalone_mode=False)

output.speak()
every(output.literal(typer.main.get_command(app)), "penstock")
"""


def ran(*command: str, locale: dict[str, str], cwd: Path) -> subprocess.CompletedProcess[bytes]:
    unset = {"LANG", "LC_ALL", "LC_CTYPE", "PYTHONUTF8", "PYTHONIOENCODING"}
    kept = {name: value for name, value in os.environ.items() if name not in unset}
    return subprocess.run(
        command, capture_output=True, check=False, cwd=cwd, env={**kept, **locale}
    )


def test_a_configuration_in_other_words_is_read_and_its_fault_told(
    locale: dict[str, str], tmp_path: Path
) -> None:
    text = '[sources.shop]\ntype = "script"\n"größe 日本" = 1\n'
    (tmp_path / "penstock.toml").write_text(text, encoding="utf-8")
    done = ran(*COMMAND, "config", "check", locale=locale, cwd=tmp_path)
    assert (done.returncode, b"Traceback" in done.stderr) == (2, False), done.stderr
    told = done.stderr.decode("latin-1" if "latin-1" in locale.values() else "utf-8")
    assert "größe" in told or "gr\\xf6\\xdfe" in told
    assert "日本" in told or "\\u65e5\\u672c" in told


@pytest.mark.server
def test_what_rows_hold_is_printed(locale: dict[str, str], trail: Trail, tmp_path: Path) -> None:
    write(trail, [row(1, after={"id": 1, "größe": "日本"})])
    config = configured(tmp_path, trail)
    for form, value in (("table", "日本"), ("csv", "日本"), ("jsonl", "日本")):
        said = ("audit", "query", "trail", "--config", config, "--format", form)
        done = ran(*COMMAND, *said, locale=locale, cwd=tmp_path)
        assert done.returncode == 0, done.stderr.decode(errors="replace")[-2000:]
        assert value.encode() in done.stdout or b"\\u65e5\\u672c" in done.stdout


def test_the_help_of_every_command_is_printed(locale: dict[str, str], tmp_path: Path) -> None:
    done = ran(sys.executable, "-c", EVERY_HELP, locale=locale, cwd=tmp_path)
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-2000:]
    assert done.stdout.count(b"Usage:") > 40
