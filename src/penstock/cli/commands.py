"""The commands of `penstock`: the core's own, and those that installed packages bring."""

from importlib import import_module
from typing import Any, Final

import typer
from typer.core import TyperGroup

from penstock.cli import output
from penstock.doors import COMMANDS, behind
from penstock.errors import ConfigError

_OWN: Final = {
    "run": "run:command",
    "status": "status:command",
    "doctor": "doctor:command",
    "tail": "tail:command",
    "consume": "consume:command",
    "snapshot": "snapshot:command",
    "pause": "operate:pause",
    "resume": "operate:resume",
    "rewind": "operate:rewind",
    "reload": "operate:reload",
    "config": "check:app",
    "access": "access:app",
    "log": "log:app",
    "deadletter": "deadletter:app",
    "checkpoint": "checkpoint:app",
}
"""By command, where it is in `penstock.cli`; in the order of the help."""


class Commands(TyperGroup):
    """Commands that are imported when they are asked for."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        """Their names: the core's own first."""
        return [*_OWN, *sorted(name for name in behind(COMMANDS) if name not in _OWN)]

    def get_command(
        self,
        ctx: Any,  # noqa: ARG002
        cmd_name: str,
    ) -> Any:
        """The command of a name; None for one that is not there. One of an installed package that
        cannot be imported is in the help as that, and says so where it is run."""
        if own := _OWN.get(cmd_name):
            module, _, name = own.partition(":")
            return _made(cmd_name, getattr(import_module(f"penstock.cli.{module}"), name))
        point = behind(COMMANDS).get(cmd_name)
        if point is None:
            return None
        try:
            return _made(cmd_name, point.load())
        except (ImportError, AttributeError) as error:
            package = "" if point.dist is None else f" of the package {point.dist.name}"
            return _broken(
                cmd_name,
                f"the command {cmd_name}{package} cannot be loaded ({error}). Nothing was "
                f"started. Install the package again, or uninstall it.",
            )


def _broken(name: str, why: str) -> Any:
    def refuse() -> None:
        raise ConfigError(why)

    return _made(name, refuse, help="Cannot be loaded.")


def _made(name: str, found: Any, **facts: Any) -> Any:
    """The command of that name."""
    if isinstance(found, typer.Typer):
        command: Any = typer.main.get_group(found)
        command.name = name
    else:
        alone = typer.Typer(add_completion=False)
        alone.command(name, **facts)(found)
        command = typer.main.get_command(alone)
    return output.literal(command)
