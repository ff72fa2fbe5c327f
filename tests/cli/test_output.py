"""Whatever others chose is shown escaped: on a terminal it moves nothing and forges no line."""

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec import structs
from rich.console import Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from penstock.audit import findings as audit
from penstock.audit.points import Place
from penstock.checks import Level
from penstock.cli import audit_verify, console, doctor, log, output, status
from penstock.cli.logs import configure
from penstock.cli.restore_asked import Written
from penstock.cli.restore_job import Job
from penstock.cli.status import ReaderReport, Report, SourceReport
from penstock.cli.status_shards import ShardReport
from penstock.errors import RequestError
from penstock.harmless import harmless
from penstock.log.maintenance import CheckReport

EVIL = "a\x1b[2J\x1b[31m\x9b1m\u202eb\r\nforged line [bold red]up[/]\x07\ud800"
STEERING = "\x1b\x9b\u202e\r\x07\ud800"


def clean(shown: str) -> bool:
    """Whether nothing in it steers a terminal, and no line of it is what another began."""
    return not set(shown) & set(STEERING) and "\nforged" not in shown


def grid(text: str) -> Table:
    table = Table()
    table.add_column("name")
    table.add_row(output.cell(text))
    return table


@pytest.mark.parametrize(
    "drawn", [Text(EVIL), EVIL, Panel(Text(EVIL)), Group(Text(EVIL)), grid(EVIL)], ids=type
)
def test_nothing_that_is_drawn_steers_the_terminal(drawn: Any) -> None:
    file = io.StringIO()
    console.Screen(file=file, width=500).print(drawn, markup=False)
    shown = file.getvalue()
    assert not set(shown) & set(STEERING)
    assert "\\x1b[2J" in shown


def test_a_terminal_still_has_the_colours_that_are_ours() -> None:
    file = io.StringIO()
    screen = console.Screen(file=file, force_terminal=True, width=80, highlight=False)
    screen.print("[red]ours[/]")
    assert file.getvalue().startswith("\x1b[31mours")


def test_status_shows_the_names_of_others_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    reader = ReaderReport(
        name=EVIL, protocol=EVIL, sequence=1, lag_events=0, at_ms=1, state=EVIL, code=EVIL
    )
    shard = ShardReport(
        shard=EVIL,
        who=EVIL,
        state="stopped",
        watermark=EVIL,
        acknowledged=EVIL,
        lag_commits=0,
        seen_at_ms=1,
        code=EVIL,
        message=EVIL,
        gaps=(EVIL,),
        publications=(),
        rows=0,
    )
    source = SourceReport(source=EVIL, state="stopped", message=EVIL, position=EVIL, silent=True)
    report = Report(
        capture=True,
        serve=True,
        serve_told_ms=1,
        age_retention_paused=False,
        archive=None,
        publishing={"message": EVIL},
        log=None,
        state=None,
        sources=[source],
        consumers=[reader],
        unmatched={},
        pipelines=[reader],
        shards=[shard],
    )
    status.show(report)
    shown = capsys.readouterr().out
    assert clean(shown)
    assert shown.count("[bold red]up[/]") >= 3, "and is no markup"
    assert "serve: up\nwhat is said of consumers and pipelines is " in shown
    assert "old: it could not be written since" in " ".join(shown.split())


def test_errors_and_lines_show_the_words_of_others_escaped(
    capsys: pytest.CaptureFixture[str],
) -> None:
    output.report(RequestError(EVIL), as_json=False)
    output.say(f"{EVIL}: forgotten")
    said = capsys.readouterr()
    assert clean(said.err)
    assert clean(said.out)
    assert len(said.out.splitlines()) == 1


FORGED = "a\nsound. Keep this hash elsewhere"


@pytest.mark.parametrize("command", ["verify", "doctor", "check", "restore", "replay", "plain"])
def test_no_name_forges_a_line_of_a_command(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    finding = audit.Finding(
        what="record", problem="missing", says=FORGED, id=FORGED, db="db", tbl=FORGED, pk=FORGED
    )
    # Without a trail: only what it says is looked at.
    job = Job(cast("Any", None), cast("Any", None), target=None, as_json=False)
    place = Place(at=1, transaction=FORGED)
    match command:
        case "verify":
            audit_verify._print(  # pyright: ignore[reportPrivateUsage]
                audit.Report(
                    source=FORGED,
                    database=FORGED,
                    records=FORGED,
                    first=1,
                    last=2,
                    batches=1,
                    hash="00",
                    proved=1,
                    erased=0,
                    retired=0,
                    archived=0,
                    broken=1,
                    unfinished=0,
                    first_broken=finding,
                    findings=[finding, structs.replace(finding, at=2)],
                    unchecked=[FORGED],
                    expected=FORGED,
                )
            )
        case "doctor":
            doctor._print(  # pyright: ignore[reportPrivateUsage]
                doctor.Finding(
                    about=FORGED, name=FORGED, level=Level.WARNING, detail=FORGED, fix=FORGED
                )
            )
        case "check":
            log._print(  # pyright: ignore[reportPrivateUsage]
                Path(FORGED),
                CheckReport(
                    log_id=1,
                    trimmed=0,
                    head=1,
                    head_commit=1,
                    entries=1,
                    commits=1,
                    blocks=1,
                    bytes=1,
                    unfinished_extents=0,
                    sources=[],
                    problems=[FORGED],
                ),
            )
        case "restore":
            row = Written(table=FORGED, rows=1, sample=(FORGED,))
            job._say(place, [row], "restored")  # pyright: ignore[reportPrivateUsage]
        case "replay":
            failure = {"about": FORGED, "what": FORGED}
            job._say_replayed(place, 1, [failure], execute=True)  # pyright: ignore[reportPrivateUsage]
        case _:
            # As of `deadletter`, `reload` and whoever else prints a sentence.
            output.stdout().print(f"{FORGED}: why", markup=False)
    said = capsys.readouterr()
    lines = (said.out + said.err).splitlines()
    assert any("a\\nsound. Keep" in line for line in lines)
    assert not any(line.lstrip().startswith("sound.") for line in lines)


def test_the_services_lines_on_a_terminal_are_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    import structlog

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    before = structlog.get_config()
    try:
        configure(as_json=False, process="serve")
        structlog.get_logger().warning("source reconnecting", source="a\x1b[2Jb")
    finally:
        structlog.configure(**before)
        structlog.contextvars.clear_contextvars()
    assert "a\\x1b[2Jb" in terminal.getvalue()


MAIN = """
import sys
from penstock.cli import app, output
from penstock.errors import RequestError

@app.app.command("half")
def half() -> None:
    print("half done")
    raise RequestError("the other half is not done")

@app.app.command("other")
def other() -> None:
    output.emit({"done": 1})
    with open("/dev/full", "w") as file:
        file.write("x")

sys.argv = ["penstock", sys.argv[1]]
app.main()
"""


def ended(command: str, stdout: Any) -> "subprocess.CompletedProcess[bytes]":
    """A process of that command of MAIN."""
    words = [sys.executable, "-c", MAIN, command]
    env = {**os.environ, "PYTHONUNBUFFERED": ""}
    return subprocess.run(words, stdout=stdout, stderr=subprocess.PIPE, check=False, env=env)


def test_an_error_is_told_also_where_what_was_printed_finds_no_room() -> None:
    with Path("/dev/full").open("wb") as full:
        done = ended("half", full)
    first, second = done.stderr.decode().splitlines()
    assert first == "error: the other half is not done"
    assert "what is printed cannot be written" in second
    assert done.returncode == RequestError.exit_code


def test_another_file_that_is_full_adds_nothing_to_what_is_printed() -> None:
    done = ended("other", subprocess.PIPE)
    assert done.stdout == b'{"done":1}\n'
    assert b"No space left on device" in done.stderr
    assert b"what is printed" not in done.stderr
    assert b"Traceback" not in done.stderr
    assert done.returncode == 2


def test_harmless_is_one_line() -> None:
    assert clean(harmless(EVIL))
    assert "\n" not in harmless(EVIL)
