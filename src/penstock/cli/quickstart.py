"""`penstock quickstart`: the whole way once, from an embedded store to Delta tables equal to it."""

from pathlib import Path
from typing import Annotated, Final

import typer

from penstock.cli import output

TRANSACTIONS: Final = 4_000


def command(
    folder: Annotated[
        Path, typer.Option(help="Where to work; made anew.", metavar="FOLDER")
    ] = Path("penstock-quickstart"),
    transactions: Annotated[
        int, typer.Option(min=1, help="Transactions of the simulated shop.")
    ] = TRANSACTIONS,
    as_json: output.JsonOption = False,
) -> None:
    """Have a simulated shop write to a store, carry it through log, gRPC and Spark, and compare.

    Needs no database; leaves nothing running. Exit code 1 if a table differs from the shop.
    """
    from penstock.cli.walkthrough import walk

    if not walk(folder, transactions=transactions, as_json=as_json):
        raise typer.Exit(1)
