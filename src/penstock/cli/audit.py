"""`penstock audit`: look at an audit trail, prove it, and mend it. One module per command."""

import typer

from penstock.cli import audit_query, audit_view

app = typer.Typer(help="Look at an audit trail.", no_args_is_help=True)
app.command("query")(audit_query.command)
app.command("view")(audit_view.command)
