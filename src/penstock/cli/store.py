"""The store: `penstock store serve`, and `tables`, `get`, `put`, `import`, `backup` and others."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from penstock.cli import output, store_import, store_index, store_serve
from penstock.cli.store_items import (
    FormOption,
    PathArgument,
    TableArgument,
    counted,
    is_socket,
    key_of,
    opened,
    read,
    require,
    write,
    written,
)
from penstock.errors import RequestError

if TYPE_CHECKING:
    from penstock.store import AnyStore, Item
    from penstock.store.keys import KeyAttribute
    from penstock.store.schema import Table as Schema

app = typer.Typer(
    help="Embedded tables with change streams: serve a store, look into it, fill it, copy it.",
    no_args_is_help=True,
)

FolderArgument = Annotated[Path, typer.Argument(help="The store's folder.", metavar="PATH")]
KeyArgument = Annotated[
    str, typer.Argument(help="The item's key attributes, as JSON.", metavar="KEY")
]

_COLUMNS = (
    "table",
    "partition key",
    "sort key",
    "ttl",
    "indexes",
    "stream",
    "records",
    "consumers",
)


app.command("serve")(store_serve.serve)
app.command("query")(store_index.query)
app.add_typer(store_index.app, name="index")


@app.command("tables")
def tables(path: PathArgument, as_json: output.JsonOption = False) -> None:
    """List the tables: keys, time to live, indexes, stream."""
    with opened(path) as db:
        facts = [_facts(db, db.describe_table(name)) for name in db.list_tables()]
    if as_json:
        for fact in facts:
            output.emit(fact)
        return
    listed = Table(box=None, pad_edge=False, header_style="bold")
    for column in _COLUMNS:
        listed.add_column(column, no_wrap=True)
    for fact in facts:
        stream: dict[str, Any] = fact["stream"] or {}
        listed.add_row(
            output.cell(fact["table"]),
            output.cell(fact["partitionKey"]),
            output.cell(fact["sortKey"] or "-"),
            output.cell(fact["ttl"] or "-"),
            output.cell(", ".join(index["name"] for index in fact["indexes"]) or "-"),
            stream.get("view", "-"),
            f"{stream['records']:,}" if stream else "-",
            ", ".join(
                f"{output.cell(one['name'])} (-{one['lag_records']:,})"
                for one in stream.get("consumers", [])
            )
            or "-",
        )
    output.stdout().print(listed)


def _facts(db: "AnyStore", table: "Schema") -> dict[str, Any]:
    info = None if table.stream is None else db.get_stream_info(table.name)
    return {
        "table": table.name,
        "partitionKey": _key_text(table.partition_key),
        "sortKey": None if table.sort_key is None else _key_text(table.sort_key),
        "ttl": table.ttl_attribute,
        "indexes": [
            {
                "name": index.name,
                "partitionKey": _key_text(index.partition_key),
                "sortKey": None if index.sort_key is None else _key_text(index.sort_key),
                "scope": index.scope,
                "ready": index.ready,
            }
            for index in table.indexes
        ],
        "stream": None
        if info is None
        else {
            "id": info.stream_id,
            "view": info.view_type,
            "oldest": info.oldest_sequence,
            "latest": info.latest_sequence,
            "records": info.records,
            "bytes": info.bytes,
            "consumers": [one._asdict() for one in info.consumers],
        },
    }


def _key_text(key: "KeyAttribute") -> str:
    return f"{key.name}:{key.type}"


@app.command("create")
def create(
    path: PathArgument,
    table: TableArgument,
    partition_key: Annotated[
        str, typer.Option(help="Name and type: id:S, number:N or hash:B.", metavar="NAME:TYPE")
    ],
    sort_key: Annotated[
        str | None, typer.Option(help="As the partition key.", metavar="NAME:TYPE")
    ] = None,
    ttl: Annotated[
        str | None, typer.Option(help="The attribute that says when an item expires.")
    ] = None,
    stream: Annotated[
        str | None,
        typer.Option(help="KEYS_ONLY, NEW_IMAGE, OLD_IMAGE or NEW_AND_OLD_IMAGES.", metavar="VIEW"),
    ] = None,
    as_json: output.JsonOption = False,
) -> None:
    """Make a table, and the store if it is not there."""
    from penstock.store import StreamViewType

    with opened(path, write=True, create=True) as db:
        described = db.create_table(table).partition_key(*key_of(partition_key))
        if sort_key is not None:
            described.sort_key(*key_of(sort_key))
        if ttl is not None:
            described.ttl(ttl)
        if stream is not None:
            if stream not in set(StreamViewType):
                views = ", ".join(StreamViewType)
                raise RequestError(f"{stream!r} is no view; views are {views}. Nothing was made.")
            described.stream(StreamViewType(stream))
        described.execute()
        fact = _facts(db, db.describe_table(table))
    if as_json:
        output.emit(fact)


@app.command("get")
def get(
    path: PathArgument,
    table: TableArgument,
    key: KeyArgument,
    dynamodb: FormOption = False,
    as_json: output.JsonOption = False,
) -> None:
    """Print one item as JSON. Exit code 1 when there is none."""
    with opened(path) as db:
        found = db.get(table, read(key, dynamodb=dynamodb))
    if found is None:
        if as_json:
            write(sys.stdout.buffer, b"null")
        else:
            output.stderr().print("there is no item of that key")
        raise typer.Exit(1)
    write(sys.stdout.buffer, written(found, dynamodb=dynamodb))


@app.command("put")
def put(
    path: PathArgument,
    table: TableArgument,
    item: Annotated[str, typer.Argument(help="The item, as JSON.", metavar="ITEM")],
    dynamodb: FormOption = False,
    as_json: output.JsonOption = False,
) -> None:
    """Write one item, whole."""
    with opened(path, write=True) as db:
        old = db.put(table, read(item, dynamodb=dynamodb))
    if as_json:
        output.emit({"put": True, "replaced": old is not None})


@app.command("delete")
def delete(
    path: PathArgument,
    table: TableArgument,
    key: KeyArgument,
    dynamodb: FormOption = False,
    as_json: output.JsonOption = False,
) -> None:
    """Remove one item. That there is none is no error."""
    with opened(path, write=True) as db:
        old = db.delete(table, read(key, dynamodb=dynamodb))
    if as_json:
        output.emit({"deleted": old is not None})


@app.command("scan")
def scan(
    path: PathArgument,
    table: TableArgument,
    condition: Annotated[
        str | None,
        typer.Option(
            "--filter",
            help='Only items of which this holds: {"Gt": [{"Attr": "n"}, {"Literal": 1}]}',
            metavar="JSON",
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="No more items than this.")] = None,
    dynamodb: FormOption = False,
    as_json: output.JsonOption = False,  # noqa: ARG001 - it is JSON without asking
) -> None:
    """Print a table's items, one JSON line each, page by page: each page is of its own moment."""
    with opened(path) as db:
        for number, item in enumerate(_items(db, table, condition)):
            if number == limit:
                break
            write(sys.stdout.buffer, written(item, dynamodb=dynamodb))


@app.command("export")
def export(
    path: PathArgument,
    table: TableArgument,
    file: Annotated[
        Path | None, typer.Option("--output", "-o", help="Where to; without, standard output.")
    ] = None,
    as_json: output.JsonOption = False,
) -> None:
    """Write a table as lines of {"Item": ...} in DynamoDB's JSON, as DynamoDB's own export does.

    Page by page, each of its own moment: to have one moment while others write, export a backup.
    """
    import msgspec

    from penstock.store.attributevalue import encode_attributes

    count = 0
    with ExitStack() as stack:
        db = stack.enter_context(opened(path))
        target = nullcontext(sys.stdout.buffer) if file is None else file.open("wb")
        lines = stack.enter_context(target)
        for item in _items(db, table, None):
            write(lines, msgspec.json.encode({"Item": encode_attributes(item)}))
            count += 1
    if file is not None:
        counted("exported", count, as_json=as_json)


app.command("import")(store_import.import_)


@app.command("backup")
def backup(
    path: FolderArgument,
    target: Annotated[
        Path, typer.Argument(help="A folder that does not exist yet.", metavar="TARGET")
    ],
    as_json: output.JsonOption = False,
) -> None:
    """Copy one moment of a store to a new folder, while others write it.

    The folder appears whole or not at all, and is a store. Put it where the store was to restore
    it: positions of what was written later are then refused, and consumers copy their tables anew.
    """
    from penstock import store

    if is_socket(path):
        raise RequestError(f"{path} is a socket; name the store's folder. Nothing was copied.")
    require(path)
    with store.open(path, read_only=True) as db:
        db.backup(target)
    if as_json:
        output.emit({"store": str(path), "backup": str(target)})
    else:
        _say(f"{path} is copied to {target}")


def _items(db: "AnyStore", table: str, condition: str | None) -> "Iterator[Item]":
    import msgspec

    from penstock.store.filters import condition_from_json

    last: Item | None = None
    while True:
        described = db.scan(table).exclusive_start_key(last)
        if condition is not None:
            try:
                described.filter(condition_from_json(msgspec.json.decode(condition)))
            except msgspec.DecodeError as error:
                raise RequestError(f"--filter is no JSON: {error}") from error
        page = described.execute()
        yield from page.items
        if (last := page.last_key) is None:
            return


def _say(line: str) -> None:
    output.stdout().print(line, markup=False, soft_wrap=True, highlight=False)
