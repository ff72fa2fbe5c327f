"""`penstock audit`: look at an audit trail, prove it, and mend it. One module per command."""

import typer

from penstock.cli import (
    audit_archive,
    audit_erase,
    audit_query,
    audit_restore,
    audit_verify,
    audit_view,
)

app = typer.Typer(help="Look at an audit trail, prove it, go back by it.", no_args_is_help=True)
app.command("query")(audit_query.command)
app.command("view")(audit_view.command)
for module in (audit_verify, audit_erase, audit_archive, audit_restore):
    module.register(app)
