"""The store: `penstock store serve`, and `tables`, `get`, `put`, `import`, `backup` and others."""

import stat
import sys
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from penstock.cli import output, store_serve
from penstock.errors import RequestError

if TYPE_CHECKING:
    from penstock.store import AnyStore, Item
    from penstock.store.keys import KeyAttribute
    from penstock.store.schema import Table as Schema

app = typer.Typer(
    help="Embedded tables with change streams: serve a store, look into it, fill it, copy it.",
    no_args_is_help=True,
)

PathArgument = Annotated[
    Path,
    typer.Argument(help="The store's folder, or the socket of its server.", metavar="PATH"),
]
FolderArgument = Annotated[Path, typer.Argument(help="The store's folder.", metavar="PATH")]
TableArgument = Annotated[str, typer.Argument(help="The table's name.", metavar="TABLE")]
KeyArgument = Annotated[
    str, typer.Argument(help="The item's key attributes, as JSON.", metavar="KEY")
]
FormOption = Annotated[
    bool,
    typer.Option(
        "--dynamodb",
        help='Items and keys are DynamoDB\'s JSON ({"id": {"S": "a"}}), which has bytes and sets.',
    ),
]

_IMPORT_ITEMS = 25


app.command("serve")(store_serve.serve)


@app.command("tables")
def tables(path: PathArgument, as_json: output.JsonOption = False) -> None:
    """List the tables: keys, time to live, stream."""
    with _opened(path) as db:
        facts = [_facts(db, db.describe_table(name)) for name in db.list_tables()]
    if as_json:
        for fact in facts:
            output.emit(fact)
        return
    listed = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("table", "partition key", "sort key", "ttl", "stream", "records", "consumers"):
        listed.add_column(column, no_wrap=True)
    for fact in facts:
        stream: dict[str, Any] = fact["stream"] or {}
        listed.add_row(
            fact["table"],
            fact["partitionKey"],
            fact["sortKey"] or "-",
            fact["ttl"] or "-",
            stream.get("view", "-"),
            f"{stream['records']:,}" if stream else "-",
            ", ".join(
                f"{one['name']} (-{one['lag_records']:,})" for one in stream.get("consumers", [])
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

    with _opened(path, write=True, create=True) as db:
        described = db.create_table(table).partition_key(*_key(partition_key))
        if sort_key is not None:
            described.sort_key(*_key(sort_key))
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


def _key(text: str) -> "KeyAttribute":
    from penstock.store.keys import KeyAttribute, KeyType

    name, _, kind = text.rpartition(":")
    if not name or kind not in set(KeyType):
        raise RequestError(
            f"{text!r} is no key: write NAME:TYPE, with type S, N or B. Nothing was made."
        )
    return KeyAttribute(name, KeyType(kind))


@app.command("get")
def get(
    path: PathArgument,
    table: TableArgument,
    key: KeyArgument,
    dynamodb: FormOption = False,
    as_json: output.JsonOption = False,
) -> None:
    """Print one item as JSON. Exit code 1 when there is none."""
    with _opened(path) as db:
        found = db.get(table, _read(key, dynamodb=dynamodb))
    if found is None:
        if as_json:
            _write(sys.stdout.buffer, b"null")
        else:
            output.stderr().print("there is no item of that key")
        raise typer.Exit(1)
    _write(sys.stdout.buffer, _written(found, dynamodb=dynamodb))


@app.command("put")
def put(
    path: PathArgument,
    table: TableArgument,
    item: Annotated[str, typer.Argument(help="The item, as JSON.", metavar="ITEM")],
    dynamodb: FormOption = False,
    as_json: output.JsonOption = False,
) -> None:
    """Write one item, whole."""
    with _opened(path, write=True) as db:
        old = db.put(table, _read(item, dynamodb=dynamodb))
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
    with _opened(path, write=True) as db:
        old = db.delete(table, _read(key, dynamodb=dynamodb))
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
    with _opened(path) as db:
        for number, item in enumerate(_items(db, table, condition)):
            if number == limit:
                break
            _write(sys.stdout.buffer, _written(item, dynamodb=dynamodb))


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
        db = stack.enter_context(_opened(path))
        target = nullcontext(sys.stdout.buffer) if file is None else file.open("wb")
        lines = stack.enter_context(target)
        for item in _items(db, table, None):
            _write(lines, msgspec.json.encode({"Item": encode_attributes(item)}))
            count += 1
    if file is not None:
        _counted("exported", count, as_json=as_json)


@app.command("import")
def import_(
    path: PathArgument,
    table: TableArgument,
    file: Annotated[
        Path | None, typer.Argument(help="Lines to read; without, standard input.")
    ] = None,
    as_json: output.JsonOption = False,
) -> None:
    """Put the items of lines of {"Item": ...} in DynamoDB's JSON, 25 in a transaction.

    What has the key of an item that is there replaces it. At a line that cannot be read it stops:
    the sentence says which, and how many items before it were put.
    """
    count = 0
    with ExitStack() as stack:
        db = stack.enter_context(_opened(path, write=True))
        source = nullcontext(sys.stdin.buffer) if file is None else file.open("rb")
        lines = stack.enter_context(source)
        batch: list[Item] = []
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                batch.append(_imported(line))
            except Exception as error:
                raise RequestError(
                    f"line {number}: {error}. The {count} items that were put before are kept; "
                    f"mend the line, and import again: what is there already is put again."
                ) from error
            if len(batch) == _IMPORT_ITEMS:
                count += _put(db, table, batch, number, count)
                batch.clear()
        count += _put(db, table, batch, None, count)
    _counted("imported", count, as_json=as_json)


def _imported(line: bytes) -> "Item":
    import msgspec

    from penstock.store.attributevalue import decode_attributes

    decoded = msgspec.json.decode(line, type=dict[str, Any])
    if list(decoded) != ["Item"]:
        raise RequestError('not an object of {"Item": ...}')
    return decode_attributes(decoded["Item"])


def _put(db: "AnyStore", table: str, batch: "list[Item]", number: int | None, count: int) -> int:
    from penstock.store import RefusedError

    if not batch:
        return 0
    try:
        db.write_batch(puts=[(table, item) for item in batch])
    except RefusedError as error:
        last = "the last line" if number is None else f"line {number}"
        raise RequestError(
            f"one of the {len(batch)} items up to {last} is refused: {error} None of them was put, "
            f"and the {count} before are kept."
        ) from error
    return len(batch)


def _counted(what: str, count: int, *, as_json: bool) -> None:
    if as_json:
        output.emit({what: count})
    else:
        output.stderr().print(f"{what} {count:,} items")


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

    if _is_socket(path):
        raise RequestError(f"{path} is a socket; name the store's folder. Nothing was copied.")
    _require(path)
    with store.open(path, read_only=True) as db:
        db.backup(target)
    if as_json:
        output.emit({"store": str(path), "backup": str(target)})
    else:
        _say(f"{path} is copied to {target}")


# --- what all of them need ------------------------------------------------------------------------


@contextmanager
def _opened(path: Path, *, write: bool = False, create: bool = False) -> Generator["AnyStore"]:
    """The store in a folder, or behind a socket."""
    from penstock import store

    if _is_socket(path):
        with store.Client(path) as client:
            yield client
        return
    if not create:
        _require(path)
    with store.open(path, read_only=not write, sweep_seconds=None) as db:
        yield db


def _is_socket(path: Path) -> bool:
    try:
        return stat.S_ISSOCK(path.stat().st_mode)
    except OSError:
        return False


def _require(path: Path) -> None:
    from penstock.kv import exists

    if not exists(path):
        raise RequestError(
            f"there is no store at {path}. Nothing was changed. `penstock store create` makes one."
        )


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


def _read(text: str, *, dynamodb: bool) -> "Item":
    import msgspec

    from penstock.store import from_json
    from penstock.store.attributevalue import decode_attributes

    try:
        read = decode_attributes(msgspec.json.decode(text)) if dynamodb else from_json(text)
    except msgspec.DecodeError as error:
        raise RequestError(f"this is no JSON: {error}. Nothing was changed.") from error
    if not isinstance(read, dict):
        raise RequestError("an item and a key are JSON objects. Nothing was changed.")
    return read


def _written(item: "Item", *, dynamodb: bool) -> bytes:
    import msgspec

    from penstock.store import ValueRefusedError, to_json
    from penstock.store.attributevalue import encode_attributes

    if dynamodb:
        return msgspec.json.encode(encode_attributes(item))
    try:
        return to_json(item)
    except ValueRefusedError as error:
        raise RequestError(
            "the item has bytes or a set, which plain JSON does not have; say --dynamodb"
        ) from error


def _write(lines: IO[bytes], line: bytes) -> None:
    lines.write(line + b"\n")
    lines.flush()


def _say(line: str) -> None:
    output.stdout().print(line, markup=False, soft_wrap=True, highlight=False)
