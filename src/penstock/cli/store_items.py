"""What the commands of a store share: the store that is named, and items as they are written."""

import stat
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from penstock.cli import output
from penstock.errors import RequestError

if TYPE_CHECKING:
    from penstock.store import AnyStore, Item
    from penstock.store.keys import KeyAttribute

PathArgument = Annotated[
    Path,
    typer.Argument(help="The store's folder, or the socket of its server.", metavar="PATH"),
]
TableArgument = Annotated[str, typer.Argument(help="The table's name.", metavar="TABLE")]
FormOption = Annotated[
    bool,
    typer.Option(
        "--dynamodb",
        help='Items and keys are DynamoDB\'s JSON ({"id": {"S": "a"}}), which has bytes and sets.',
    ),
]


def key_of(text: str) -> "KeyAttribute":
    """A key attribute of NAME:TYPE."""
    from penstock.store.keys import KeyAttribute, KeyType

    name, _, kind = text.rpartition(":")
    if not name or kind not in set(KeyType):
        raise RequestError(
            f"{text!r} is no key: write NAME:TYPE, with type S, N or B. Nothing was made."
        )
    return KeyAttribute(name, KeyType(kind))


@contextmanager
def opened(path: Path, *, write: bool = False, create: bool = False) -> Generator["AnyStore"]:
    """The store in a folder, or behind a socket."""
    from penstock import store

    if is_socket(path):
        with store.Client(path) as client:
            yield client
        return
    if not create:
        require(path)
    with store.open(path, read_only=not write, sweep_seconds=None) as db:
        yield db


def is_socket(path: Path) -> bool:
    """Whether a server's socket is named."""
    try:
        return stat.S_ISSOCK(path.stat().st_mode)
    except OSError:
        return False


def require(path: Path) -> None:
    """Raise RequestError unless there is a store in the folder."""
    from penstock.kv import exists

    if not exists(path):
        raise RequestError(
            f"there is no store at {path}. Nothing was changed. `penstock store create` makes one."
        )


def read(text: str, *, dynamodb: bool) -> "Item":
    """An item or a key."""
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


def written(item: "Item", *, dynamodb: bool) -> bytes:
    """An item as JSON."""
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


def write(lines: IO[bytes], line: bytes) -> None:
    """Print a line."""
    lines.write(line + b"\n")
    lines.flush()


def counted(what: str, count: int, *, as_json: bool) -> None:
    """Say of how many items something was done."""
    if as_json:
        output.emit({what: count})
    else:
        output.stderr().print(f"{what} {count:,} items")
