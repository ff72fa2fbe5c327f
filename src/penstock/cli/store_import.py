"""`penstock store import`: items of lines, of a file or of an export that DynamoDB has made to S3.

Sources: DynamoDB's developer guide, "DynamoDB table export output format" (S3DataExport.Output);
RFC 1952 (gzip).
"""

import base64
import gzip
import hashlib
import io
import sys
import zlib
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, Final, NamedTuple, cast

import msgspec
import typer

from penstock.cli import output
from penstock.cli.store_items import PathArgument, TableArgument, counted, opened
from penstock.errors import RequestError

if TYPE_CHECKING:
    from penstock.store import AnyStore, Item

_ITEMS: Final = 25
_GZIP: Final = b"\x1f\x8b"
_BOM: Final = b"\xef\xbb\xbf"
_FILES: Final = "manifest-files.json"
_SUMMARY: Final = "manifest-summary.json"


class _File(msgspec.Struct, frozen=True, rename="camel"):
    """A data file of an export, as its manifest says it."""

    item_count: int
    md5_checksum: str
    data_file_s3_key: str = msgspec.field(name="dataFileS3Key")


class _Summary(msgspec.Struct, frozen=True, rename="camel"):
    """What of an export's summary decides whether it can be read."""

    item_count: int | None = None
    output_format: str = "DYNAMODB_JSON"
    export_type: str = "FULL_EXPORT"


class Source(NamedTuple):
    """Lines to read."""

    path: Path | None
    """None for standard input."""
    items: int | None = None
    """How many there must be."""
    md5: bytes | None = None
    """Of the file as it is."""

    def at(self, line: int | None) -> str:
        """A line, or the last one, for people."""
        named = "the last line" if line is None else f"line {line}"
        return named if self.items is None else f"{self.path}, {named}"


def import_(
    path: PathArgument,
    table: TableArgument,
    file: Annotated[
        Path | None,
        typer.Argument(
            help="Lines to read, or the folder or manifest of an export that DynamoDB made to S3; "
            "without, standard input."
        ),
    ] = None,
    as_json: output.JsonOption = False,
) -> None:
    """Put the items of lines of {"Item": ...} in DynamoDB's JSON, 25 in a transaction.

    Compressed with gzip or not. What has the key of an item that is there replaces it. At a line
    that cannot be read it stops: the sentence says which, and how many items before it were put.
    """
    sources = [Source(file)] if file is None or not _is_export(file) else [*_exported(file)]
    count = 0
    with opened(path, write=True) as db:
        for source in sources:
            count = _import(db, table, source, count)
    counted("imported", count, as_json=as_json)


def _import(db: "AnyStore", table: str, source: Source, before: int) -> int:
    """Put what a source has; how many items were put by then."""
    count, batch = before, list["Item"]()
    try:
        for number, line in _lines(source):
            if not line.strip():
                continue
            try:
                batch.append(_item(line))
            except Exception as error:
                raise RequestError(
                    f"{source.at(number)}: {error}. The {count} items that were put before are "
                    f"kept; mend the line, and import again: what is there already is put again."
                ) from error
            if len(batch) == _ITEMS:
                count += _put(db, table, batch, source.at(number), count)
                batch.clear()
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise RequestError(
            f"{source.path or 'standard input'} is compressed with gzip, and damaged or cut off "
            f"({error}). The {count} items that were put before are kept. Fetch it again."
        ) from error
    count += _put(db, table, batch, source.at(None), count)
    if source.items not in {None, count - before}:
        raise RequestError(
            f"{source.path} has {count - before} items, and the export's manifest says "
            f"{source.items}. The {count} items that were put are kept. Fetch the export again."
        )
    return count


def _item(line: bytes) -> "Item":
    from penstock.store.attributevalue import decode_attributes

    decoded = msgspec.json.decode(line, type=dict[str, Any])
    if list(decoded) != ["Item"]:
        raise RequestError('not an object of {"Item": ...}')
    return decode_attributes(decoded["Item"])


def _put(db: "AnyStore", table: str, batch: "list[Item]", last: str, count: int) -> int:
    from penstock.store import RefusedError

    if not batch:
        return 0
    try:
        db.write_batch(puts=[(table, item) for item in batch])
    except RefusedError as error:
        raise RequestError(
            f"one of the {len(batch)} items up to {last} is refused: {error} None of them was put, "
            f"and the {count} before are kept."
        ) from error
    return len(batch)


# --- files ----------------------------------------------------------------------------------------


def _lines(source: Source) -> Iterator[tuple[int, bytes]]:
    """The lines of a source, compressed or not, from 1."""
    opening = nullcontext(sys.stdin.buffer) if source.path is None else source.path.open("rb")
    with opening as file:
        plain = cast("IO[bytes]", gzip.GzipFile(fileobj=file)) if _is_packed(file) else file
        for number, line in enumerate(plain, 1):
            yield number, line.removeprefix(_BOM) if number == 1 else line


def _is_packed(file: IO[bytes]) -> bool:
    return isinstance(file, io.BufferedReader) and file.peek(2)[:2] == _GZIP


def _is_export(file: Path) -> bool:
    return file.is_dir() or file.name in {_FILES, _SUMMARY}


def _exported(file: Path) -> Iterator[Source]:
    """The data files of an export, each looked at before any is read. Raises RequestError."""
    folder = file if file.is_dir() else file.parent
    manifest, summary = folder / _FILES, folder / _SUMMARY
    try:
        said = _Summary()
        if summary.exists():
            said = msgspec.json.decode(summary.read_bytes(), type=_Summary)
        files = msgspec.json.Decoder(_File).decode_lines(manifest.read_bytes())
        found = [
            Source(
                folder / "data" / one.data_file_s3_key.rpartition("/")[2],
                one.item_count,
                base64.b64decode(one.md5_checksum, validate=True),
            )
            for one in files
        ]
    except FileNotFoundError as error:
        raise RequestError(
            f"there is no {_FILES} in {folder}, which an export of DynamoDB to S3 has. Nothing was "
            f"imported. Name the folder AWSDynamoDB/EXPORT of the export, or a file of lines."
        ) from error
    except (msgspec.MsgspecError, ValueError) as error:
        raise RequestError(
            f"the manifest in {folder} is not that of an export of DynamoDB to S3 ({error}). "
            f"Nothing was imported."
        ) from error
    _refuse_others(said, sum(one.item_count for one in files), summary)
    for source in found:
        _refuse_damaged(source, len(found))
    yield from found


def _refuse_others(summary: _Summary, items: int, path: Path) -> None:
    """Raise RequestError for an export in another form than lines of whole items, or with other
    `items` in its files than it says."""
    if summary.item_count not in {None, items}:
        raise RequestError(
            f"{path}: the export has {summary.item_count} items, and {_FILES} beside it says "
            f"{items}. Nothing was imported. Fetch it again."
        )
    if summary.output_format != "DYNAMODB_JSON":
        raise RequestError(
            f"{path}: the export is in the format {summary.output_format}. Nothing was imported. "
            f"Export it as DYNAMODB_JSON."
        )
    if summary.export_type != "FULL_EXPORT":
        raise RequestError(
            f"{path}: the export is a {summary.export_type}, which has changes and not items. "
            f"Nothing was imported. Make a full export."
        )


def _refuse_damaged(source: Source, files: int) -> None:
    """Raise RequestError for a file of an export that is not there, or not as it was made."""
    assert source.path is not None
    try:
        with source.path.open("rb") as file:
            digest = hashlib.file_digest(file, partial(hashlib.md5, usedforsecurity=False)).digest()
    except FileNotFoundError as error:
        raise RequestError(
            f"{source.path} is not there, one of the {files} files of the export. Nothing was "
            f"imported. Fetch the whole folder of the export."
        ) from error
    if digest != source.md5:
        raise RequestError(
            f"{source.path} is not as the export's manifest says (MD5). Nothing was imported. "
            f"Fetch it again."
        )
