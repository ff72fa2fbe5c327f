"""`penstock audit`: look at an audit trail, prove it, and mend it. One module per command."""

from importlib import import_module
from typing import Any, Final

import typer
from typer.core import TyperGroup

from penstock.cli import audit_erase, audit_query, audit_verify, audit_view
from penstock.cli.config import missing_extra

_LATER: Final = {"restore": "penstock.cli.audit_restore"}
"""Commands whose modules need MongoDB's driver, by name: imported when they are asked for, so that
`penstock` starts without it. Each has `register(app)`, which adds it."""


class _Commands(TyperGroup):
    """The commands, some of which are imported when they are asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *_LATER]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in _LATER:
            return super().get_command(ctx, cmd_name)
        try:
            module = import_module(_LATER[cmd_name])
        except ImportError as error:
            raise missing_extra(f"penstock audit {cmd_name}", "mongodb", error) from error
        alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        module.register(alone)
        return typer.main.get_command(alone)


app = typer.Typer(help="Audit trails.", no_args_is_help=True, cls=_Commands)
app.command("query")(audit_query.command)
app.command("view")(audit_view.command)
audit_verify.register(app)
audit_erase.register(app)
