"""`penstock audit`: look at an audit trail, prove it, and mend it. One module per command."""

from importlib import import_module
from typing import Any, Final

import typer
from typer.core import TyperGroup

from penstock.cli import output

_MODULES: Final = {
    "query": "audit_query",
    "view": "audit_view",
    "verify": "audit_verify",
    "repair": "audit_verify",
    "erase": "audit_erase",
    "archive": "audit_archive",
    "retain": "audit_archive",
    "restore": "audit_restore",
}
"""Where each command is: imported when it is asked for, so that `penstock` starts without what they
need. Each has `register(app)`, which adds it."""


class _Commands(TyperGroup):
    """The commands, each imported when it is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        return list(_MODULES)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in _MODULES:
            return None
        alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        alone.callback()(_nothing)  # so that it is a group, however many commands it has
        import_module(f"penstock.cli.{_MODULES[cmd_name]}").register(alone)
        group: Any = typer.main.get_command(alone)
        return output.literal(group.get_command(ctx, cmd_name))


def _nothing() -> None:
    pass


app = typer.Typer(
    help="Look at an audit trail, prove it, go back by it.", no_args_is_help=True, cls=_Commands
)
