"""How commands speak: tables and sentences to people, JSON lines to programs.

What draws for people is imported when it is needed: it takes longer than most commands.
"""

import os
import sys
from datetime import UTC, datetime
from io import BufferedWriter, FileIO, TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from penstock.errors import PenstockError
from penstock.harmless import harmless

if TYPE_CHECKING:
    from rich.console import Console

ConfigOption = Annotated[
    Path, typer.Option("--config", "-c", help="The configuration.", metavar="FILE")
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Write JSON, one object a line, instead of text.")
]
TokenFileOption = Annotated[
    Path | None,
    typer.Option(
        "--token-file", help="Whose token to show; without, PENSTOCK_TOKEN.", metavar="FILE"
    ),
]
CaOption = Annotated[
    Path | None,
    typer.Option(
        "--tls-ca",
        help="Certificates that the service's is signed by; without, PENSTOCK_TLS_CA.",
        metavar="FILE",
    ),
]
CertificateOption = Annotated[
    Path | None,
    typer.Option(
        "--tls-certificate",
        help="Our own, for mutual TLS; without, PENSTOCK_TLS_CERTIFICATE.",
        metavar="FILE",
    ),
]
KeyOption = Annotated[
    Path | None,
    typer.Option("--tls-key", help="Its key; without, PENSTOCK_TLS_KEY.", metavar="FILE"),
]
DEFAULT_CONFIG = Path("penstock.toml")


class Out(FileIO):
    """Where stdout goes; remembers why that did not take something."""

    refused: OSError | None = None

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            self.refused = error
            raise


def speak() -> Out | None:
    """Print what the terminal's encoding has no character for as its escape (`\\u65e5`), instead of
    ending with an error. To be done once; returns where stdout goes from now on, None where it is
    not this process's own."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    given = sys.stdout
    if not isinstance(given, TextIOWrapper) or given is not sys.__stdout__:
        return None
    out = Out(given.fileno(), "wb", closefd=False)
    # Without a buffer where there was none, as with python -u.
    sink: Any = out if given.write_through else BufferedWriter(out)
    sys.stdout = TextIOWrapper(
        sink,
        encoding=given.encoding,
        errors="backslashreplace",
        line_buffering=given.line_buffering,
        write_through=given.write_through,
    )
    return out


def stdout() -> "Console":
    """Where results go. Made anew each time, so that a redirected stream is respected."""
    from penstock.cli.console import Screen

    return Screen(highlight=False)


def stderr() -> "Console":
    """Where errors and hints go."""
    from penstock.cli.console import Screen

    return Screen(stderr=True, highlight=False, soft_wrap=True)


def cell(text: str) -> str:
    """Words of others in a cell of a table, or within markup: on one line, and no markup."""
    from rich.markup import escape

    return escape(harmless(text))


def say(line: str, *, err: bool = False) -> None:
    """Write a line with words of others in it, not through rich, which ends the program at a
    broken pipe."""
    typer.echo(harmless(line), err=err)


def literal(command: Any) -> Any:
    """The command, and those below it, with help that is shown as it is written: `[spark]` is a
    word there, not a style. To be done once; not below commands that are found when asked for."""
    for part in (command, *command.params):
        for text in ("help", "short_help", "epilog"):
            said = getattr(part, text, None)
            if said and "[" in said:
                from rich.markup import escape

                setattr(part, text, escape(said))
    if not getattr(command, "finds_commands", False):
        for below in getattr(command, "commands", {}).values():
            literal(below)
    return command


def emit(fact: Any) -> None:
    """Write one JSON line to stdout, at once."""
    sys.stdout.buffer.write(msgspec.json.encode(fact) + b"\n")
    sys.stdout.flush()


def silence() -> None:
    """Nobody reads stdout any more: what is still buffered, and all that follows, goes nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def report(error: PenstockError, *, as_json: bool) -> None:
    """Say on stderr what went wrong: one sentence, no traceback."""
    if as_json:
        fact = {"error": {"code": error.code, "message": str(error)}}
        sys.stderr.buffer.write(msgspec.json.encode(fact) + b"\n")
        sys.stderr.flush()
        return
    from rich.text import Text

    console = stderr()
    console.print("error:", style="bold red", end=" ")
    # A line that somebody else began cannot be taken for one of ours.
    console.print(Text(str(error).replace("\n", "\n  ")))


def ago(unix_ms: int, now_ms: int) -> str:
    """How long ago, for people: 3 s, 5 min, 2 h, 4 d; - for never."""
    if unix_ms <= 0:
        return "-"
    return duration(max(0.0, (now_ms - unix_ms) / 1000))


def duration(seconds: float) -> str:
    """A duration for people, in its largest sensible unit."""
    for unit, size in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"


def size(count: float) -> str:
    """Bytes for people, in powers of 1024."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def instant(unix_ms: int) -> str:
    """A time of day in UTC, for people; - for never."""
    if unix_ms <= 0:
        return "-"
    return f"{datetime.fromtimestamp(unix_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}"
