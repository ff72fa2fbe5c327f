"""The commands by name, and the one place where an error becomes a sentence and an exit code."""

import errno
import sys
from typing import Final, NoReturn

import typer

from penstock import __version__
from penstock.cli import output
from penstock.cli.commands import Commands
from penstock.cli.exit_codes import ENDED_BY_FORCE, INTERRUPTED
from penstock.errors import ConfigError, PenstockError


def _exit_codes() -> str:
    """Every exit code, with the codes of the errors that end with it."""
    endings: dict[int, list[str]] = {
        0: ["done"],
        1: ["failed"],
        2: ["usage"],
        ENDED_BY_FORCE: ["ended by force"],
        INTERRUPTED: ["interrupted"],
    }
    kinds: list[type[PenstockError]] = [PenstockError]
    while kinds:
        kind = kinds.pop(0)
        kinds.extend(kind.__subclasses__())
        if "exit_code" in vars(kind) and kind is not PenstockError:
            endings.setdefault(kind.exit_code, []).append(kind.code)
    listed = "; ".join(f"{code} {', '.join(endings[code])}" for code in sorted(endings))
    return f"Exit codes: {listed}."


app = typer.Typer(
    name="penstock",
    cls=Commands,
    help="Change data capture for Python and Spark: capture once, keep one log, serve anyone.",
    epilog=_exit_codes(),
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


_OF_FILES: Final = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.EACCES, errno.EPERM}
    | {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG}
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"penstock {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Show the version."
    ),
) -> None:
    pass


def main() -> None:
    """Run the command line; never returns. Exit codes are stable (see `penstock --help`)."""
    out = output.speak()
    try:
        try:
            output.literal(typer.main.get_command(app))(prog_name="penstock")
        except SystemExit:
            _flush()  # while it can still be said that this fails
            raise
    except PenstockError as error:
        _fail(error)
    except BrokenPipeError:
        output.silence()
        sys.exit(1)
    except OSError as error:
        if out is not None and error is out.refused:
            output.silence()
            _fail(_unwritten(error))
        if error.errno not in _OF_FILES or sys.argv[1:2] == ["run"]:
            raise  # a service's log says where
        _fail(_of_a_file(error))
    except KeyboardInterrupt:
        _let_go()
        sys.exit(INTERRUPTED)


def _flush() -> None:
    if sys.stdout is not None:  # pyright: ignore[reportUnnecessaryComparison]
        sys.stdout.flush()


def _let_go() -> OSError | None:
    """Write what is buffered for stdout, after which nothing comes; returns why it was refused."""
    try:
        _flush()
    except OSError as error:
        output.silence()
        return error
    return None


def _unwritten(error: OSError) -> ConfigError:
    return ConfigError(
        f"what is printed cannot be written ({error.strerror}). What came before may end within a "
        f"line. Make room where it goes, or print elsewhere."
    )


def _of_a_file(error: OSError) -> ConfigError:
    where = f" at {error.filename}" if error.filename else ""
    return ConfigError(
        f"the command ended at a file that it could not read or write{where} ({error.strerror}). "
        f"What it had said to be done is done. Correct the name, make room, or give this user the "
        f"file, and run it again."
    )


def _fail(error: PenstockError) -> NoReturn:
    as_json = "--json" in sys.argv
    output.report(error, as_json=as_json)
    refused = _let_go()
    if refused is not None and not isinstance(refused, BrokenPipeError):
        output.report(_unwritten(refused), as_json=as_json)
    sys.exit(error.exit_code)
