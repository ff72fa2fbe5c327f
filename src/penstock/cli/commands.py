"""The commands of `penstock`: the core's own, and those that installed packages bring."""

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, Final

import typer
from typer.core import TyperGroup

from penstock.cli import output
from penstock.doors import COMMANDS, find, load, names, unusable
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
"""By command, where it is in `penstock.cli`; in the order of the help. No package replaces one."""


class Commands(TyperGroup):
    """Commands that are imported when they are asked for."""

    finds_commands = True
    """So they are not all there from the start."""

    def __init__(self, **facts: Any) -> None:
        super().__init__(**facts)
        self.commands: Any = _Commands(self.commands)

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        """Their names: the core's own first."""
        return list(self.commands)


class _Commands(Mapping[str, Any]):
    """Every command by name. One of a package that cannot be loaded is in the help as that, and
    says why where it is run."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        """`given` are those that were made for the application itself."""
        self._given = given

    def __iter__(self) -> Iterator[str]:
        yield from dict.fromkeys([*_OWN, *self._given, *names(COMMANDS)])

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __getitem__(self, name: str) -> Any:
        if own := _OWN.get(name):
            module, _, attribute = own.partition(":")
            return _made(name, getattr(import_module(f"penstock.cli.{module}"), attribute))
        if name in self._given:
            return output.literal(self._given[name])
        try:
            point = find(COMMANDS, name)
            if point is None:
                raise KeyError(name)
            try:
                return _made(name, load(point))
            except (ImportError, TypeError) as error:
                raise unusable(point, error) from error
        except ConfigError as error:
            return _broken(name, str(error))


def _broken(name: str, why: str) -> Any:
    def refuse() -> None:
        raise ConfigError(why)

    anything = {"ignore_unknown_options": True, "allow_extra_args": True}
    return _made(name, refuse, help="Cannot be loaded.", context_settings=anything)


def _made(name: str, found: Any, **facts: Any) -> Any:
    """The command of that name. Raises TypeError for what is none."""
    if isinstance(found, typer.Typer):
        command: Any = typer.main.get_group(found)
        command.name = name
    elif callable(found):
        alone = typer.Typer(add_completion=False)
        alone.command(name, **facts)(found)
        command = typer.main.get_command(alone)
    else:
        raise TypeError(f"{found!r} is neither a function nor a typer.Typer")
    return output.literal(command)
