"""`penstock zero propose`: tables for Rocicorp Zero, from what was captured."""

from typing import Annotated

import typer
from msgspec import to_builtins
from rich.text import Text

from penstock.cli import output
from penstock.errors import ConfigError

app = typer.Typer(help="Tables for Rocicorp Zero.", no_args_is_help=True)


@app.command("propose")
def propose(
    source: Annotated[str, typer.Argument(help="The source's name, as under [sources].")],
    config: output.ConfigOption = output.DEFAULT_CONFIG,
    as_json: output.JsonOption = False,
    rows_max: Annotated[
        int,
        typer.Option("--rows", min=1, help="So many rows of each collection are looked at."),
    ] = 100_000,
) -> None:
    """Print tables for a source's collections, as its current rows show them.

    The service may run. The output is a part of its configuration file.
    """
    from penstock.cli.config import load
    from penstock.state.browsing import browse
    from penstock.zero.proposing import Proposer, toml

    settings = load(config)
    if source not in settings.sources:
        known = ", ".join(sorted(settings.sources)) or "none"
        raise ConfigError(f"there is no source {source!r} in {config}; there are: {known}.")
    proposer = Proposer(source)
    for row in browse(settings.log.path, source, rows_max=rows_max):
        if row.full_document is not None:
            key, document = bytes(row.key), bytes(row.full_document)
            proposer.add(row.database, row.collection, key, document)
    tables = proposer.tables()
    if not tables:
        raise ConfigError(
            f"there are no current rows of {source} yet, so nothing can be proposed. Run `penstock "
            f"run` until they are copied (`penstock status` says so), and ask again."
        )
    if as_json:
        output.emit({"source": source, "tables": to_builtins(tables)})
    else:
        output.stdout().print(Text(toml(tables)), soft_wrap=True)
