"""`penstock store index create | drop`, and `penstock store query`, by key or by an index."""

import base64
import binascii
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import output
from penstock.cli.store_items import (
    FormOption,
    PathArgument,
    TableArgument,
    key_of,
    opened,
    write,
    written,
)
from penstock.errors import RequestError

if TYPE_CHECKING:
    from penstock.store import AnyStore, Item
    from penstock.store.keys import KeyAttribute
    from penstock.store.values import Scalar

app = typer.Typer(help="Secondary indexes of a store's tables.", no_args_is_help=True)

IndexArgument = Annotated[str, typer.Argument(help="The index's name.", metavar="INDEX")]


@app.command("create")
def create(
    path: PathArgument,
    table: TableArgument,
    index: IndexArgument,
    partition_key: Annotated[
        str, typer.Option(help="Name and type: customer:S, total:N or hash:B.", metavar="NAME:TYPE")
    ],
    sort_key: Annotated[
        str | None, typer.Option(help="As the partition key.", metavar="NAME:TYPE")
    ] = None,
    scope: Annotated[
        str | None,
        typer.Option(
            help="Only items whose partition key begins with this and '#'.", metavar="TEXT"
        ),
    ] = None,
    as_json: output.JsonOption = False,
) -> None:
    """Make an index of a table, and of all items in it, while others read and write."""
    with opened(path, write=True) as db:
        described = db.create_index(table, index).partition_key(*key_of(partition_key))
        if sort_key is not None:
            described.sort_key(*key_of(sort_key))
        if scope is not None:
            described.scope(scope)
        described.execute()
    if as_json:
        output.emit({"created": index})


@app.command("drop")
def drop(
    path: PathArgument,
    table: TableArgument,
    index: IndexArgument,
    as_json: output.JsonOption = False,
) -> None:
    """Remove an index. Items are left as they are."""
    with opened(path, write=True) as db:
        db.drop_index(table, index)
    if as_json:
        output.emit({"dropped": index})


def query(
    path: PathArgument,
    table: TableArgument,
    partition: Annotated[
        str,
        typer.Argument(
            help="The partition key as it is: text, a number, or base64 of bytes.", metavar="KEY"
        ),
    ],
    index: Annotated[
        str | None, typer.Option(help="By this index; without, by the table's key.")
    ] = None,
    low: Annotated[
        str | None, typer.Option("--from", help="Sort keys from this on, with it.", metavar="KEY")
    ] = None,
    high: Annotated[
        str | None, typer.Option("--to", help="Sort keys up to this, with it.", metavar="KEY")
    ] = None,
    reverse: Annotated[bool, typer.Option("--reverse", help="Descending by sort key.")] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="No more items than this.")] = None,
    dynamodb: FormOption = False,
    as_json: output.JsonOption = False,  # noqa: ARG001 - it is JSON without asking
) -> None:
    """Print the items of one partition by sort key, one JSON line each.

    Page by page: each page is of its own moment.
    """
    with opened(path) as db:
        last: Item | None = None
        left = limit
        while True:
            described = _described(db, table, index, partition, low, high)
            described.scan_forward(not reverse).exclusive_start_key(last)
            if left is not None:
                described.limit(left)
            page = described.execute()
            for item in page.items:
                write(sys.stdout.buffer, written(item, dynamodb=dynamodb))
            left = None if left is None else left - len(page.items)
            last = page.last_key
            if last is None or left == 0:
                return


def _described(
    db: "AnyStore",
    table: str,
    index: str | None,
    partition: str,
    low: str | None,
    high: str | None,
) -> Any:
    from penstock.store import IndexNotFoundError

    schema: Any = db.describe_table(table)
    described: Any = db.query(table)
    if index is not None:
        named = [one for one in schema.indexes if one.name == index]
        if not named:
            raise IndexNotFoundError(table, index)
        schema, described = named[0], db.query_index(table, index)
    described.partition_key(_value(partition, schema.partition_key))
    if low is None and high is None:
        return described
    if schema.sort_key is None:
        raise RequestError("what is asked has no sort key, so --from and --to mean nothing")
    first = None if low is None else _value(low, schema.sort_key)
    final = None if high is None else _value(high, schema.sort_key)
    if first is None:
        assert final is not None, "one of the two was given"
        return described.sort_key_le(final)
    return (
        described.sort_key_ge(first) if final is None else described.sort_key_between(first, final)
    )


def _value(text: str, key: "KeyAttribute") -> "Scalar":
    """A key as it is written on the command line."""
    from decimal import Decimal, InvalidOperation

    from penstock.store.keys import KeyType

    try:
        match key.type:
            case KeyType.STRING:
                return text
            case KeyType.NUMBER:
                return Decimal(text)
            case KeyType.BINARY:
                return base64.b64decode(text, validate=True)
    except (InvalidOperation, binascii.Error):
        kind = "number" if key.type is KeyType.NUMBER else "base64"
        raise RequestError(
            f"{text!r} is no {kind}, and {key.name!r} is of type {key.type}"
        ) from None
