"""Archives of a trail: folders of Parquet files, which prove themselves against the trail.

An archive is a folder of its own, written once, whole or not at all:

    manifest.json           what it is of, and the SHA-256 of every file
    records-00000.parquet   the records, by `at`: their BSON exactly as it was stored, which is what
                            a leaf is made of, with salt and spilled values; and beside them, for
                            reading and filtering with whatever reads Parquet, their time,
                            operation, table, key and transaction
    batches.parquet         the chain over them: leaves, roots and hashes

Parquet, because it is read everywhere, compressed well, and found in by column without us; BSON
inside, because a record written in other words would prove nothing.
"""

# The stubs of pyarrow leave element types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import hashlib
import heapq
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from bson.raw_bson import RawBSONDocument
from msgspec import Struct

from penstock.audit.trail import RAW
from penstock.errors import AuditError

arrow: Any = pa
"""The stubs of pyarrow know its types as objects."""
MANIFEST: Final = "manifest.json"
FORMAT: Final = "penstock audit archive"
VERSION: Final = 1
_ROWS_TOGETHER: Final = 256

RECORD_SCHEMA: Final = arrow.schema(
    [
        ("at", pa.int64()),
        ("ts", pa.timestamp("ms", "UTC")),
        ("op", pa.string()),
        ("db", pa.string()),
        ("tbl", pa.string()),
        ("pk_text", pa.string()),
        ("txn", pa.string()),
        ("id", pa.string()),
        ("batch", pa.int64()),
        ("record", pa.large_binary()),
        ("salt", pa.binary(16)),
        ("spilled", pa.large_binary()),
    ]
)
BATCH_SCHEMA: Final = arrow.schema(
    [
        ("number", pa.int64()),
        ("first", pa.int64()),
        ("last", pa.int64()),
        ("leaves", pa.large_binary()),
        ("root", pa.binary(32)),
        ("before", pa.binary(32)),
        ("hash", pa.binary(32)),
        ("ts", pa.timestamp("ms", "UTC")),
    ]
)


class File(Struct, frozen=True, kw_only=True):
    """A file of an archive."""

    name: str
    rows: int
    first: int
    """Its first place, or batch,"""
    last: int
    """and its last."""
    sha256: str


class Manifest(Struct, frozen=True, kw_only=True, rename="camel"):
    """What an archive is."""

    format: str
    version: int
    source: str
    database: str
    records: str
    table: str | None
    """As "db.tbl"; None: of all."""
    first: int
    """Every record from this place,"""
    last: int
    """to this one, of the table, is in it; but for those that were retired before."""
    batch: int
    """The batch that ends there,"""
    hash: str
    """and the chain's hash behind it."""
    created: str
    files: list[File]
    chain: File


class ArchivedRow(NamedTuple):
    """A record as an archive has it."""

    at: int
    record: RawBSONDocument
    salt: bytes
    spilled: bytes | None
    batch: int
    file: str


class Archive:
    """One archive."""

    def __init__(self, folder: Path) -> None:
        """Raises AuditError for a folder that is none."""
        self.folder = folder
        self.manifest = self._manifest()
        self._damaged: set[str] = set()

    def read(self) -> None:
        """Read its manifest again: another process may have written it. Raises AuditError."""
        self.manifest = self._manifest()

    def _manifest(self) -> Manifest:
        try:
            found = msgspec.json.decode((self.folder / MANIFEST).read_bytes(), type=Manifest)
        except (OSError, msgspec.DecodeError) as error:
            raise AuditError(
                f"{self.folder} is no archive of an audit trail, or its manifest was altered "
                f"({type(error).__name__}). Nothing was changed."
            ) from error
        if (found.format, found.version) != (FORMAT, VERSION):
            raise AuditError(
                f"{self.folder} is an archive of version {found.version}, and this Penstock "
                f"reads {VERSION}. Nothing was changed. Use the version that wrote it."
            )
        return found

    def damaged(self) -> list[str]:
        """Files that are not what the manifest says; from now on they are read as far as may be."""
        paths = {one.name: self.folder / one.name for one in self.files}
        self._damaged = {
            one.name
            for one in self.files
            if not paths[one.name].is_file() or digest_of(paths[one.name]) != one.sha256
        }
        return [str(paths[name]) for name in sorted(self._damaged)]

    def leftovers(self) -> list[Path]:
        """Files of records that do not belong to it: a rewriting that died left them."""
        known = {one.name for one in self.files}
        return [one for one in self.folder.glob("records-*.parquet") if one.name not in known]

    @property
    def files(self) -> tuple[File, ...]:
        """All that belong to it."""
        return (*self.manifest.files, self.manifest.chain)

    def rows(self, first: int, last: int) -> Iterator[ArchivedRow]:
        """Its records from place `first` to `last`. Raises AuditError for an unreadable file."""
        for file in self.manifest.files:
            if file.last < first or file.first > last:
                continue
            try:
                yield from self.rows_of(file, first, last)
            except AuditError:
                if file.name not in self._damaged:
                    raise

    def rows_of(self, file: File, first: int, last: int) -> Iterator[ArchivedRow]:
        """The records of one of its files. Raises as `rows`."""
        path = self.folder / file.name
        for row in read_rows(path, ("at", "record", "salt", "spilled", "batch")):
            if first <= row["at"] <= last:
                yield ArchivedRow(
                    at=row["at"],
                    record=RawBSONDocument(row["record"], RAW),
                    salt=row["salt"],
                    spilled=row["spilled"],
                    batch=row["batch"],
                    file=str(path),
                )

    def chain(self) -> Iterator[dict[str, Any]]:
        """The batches over its records, by number: columns of BATCH_SCHEMA."""
        yield from read_rows(self.folder / self.manifest.chain.name, BATCH_SCHEMA.names)


class Archives:
    """Several archives, as one."""

    def __init__(self, archives: Sequence[Archive]) -> None:
        self.all = list(archives)

    @classmethod
    def at(cls, folders: Sequence[Path], *, source: str) -> "Archives":
        """Those in folders: each an archive, or a folder of archives; of this source alone.

        Raises AuditError for a folder without any.
        """
        found: list[Archive] = []
        for folder in folders:
            here = [Archive(one) for one in _archives_in(folder)]
            if not here:
                raise AuditError(
                    f"there is no archive of an audit trail in {folder}. Nothing was changed."
                )
            found += [one for one in here if one.manifest.source == source]
        return cls(sorted(found, key=lambda one: (one.manifest.first, one.manifest.last)))

    def damaged(self) -> list[str]:
        """As `Archive.damaged`, of all."""
        return [path for one in self.all for path in one.damaged()]

    def leftovers(self) -> list[str]:
        """As `Archive.leftovers`, of all."""
        return [str(path) for one in self.all for path in one.leftovers()]

    def rows(self, first: int, last: int) -> Iterator[ArchivedRow]:
        """Their records from place `first` to `last`, by place; one in several comes so often."""
        return heapq.merge(*(one.rows(first, last) for one in self.all), key=lambda row: row.at)


def _archives_in(folder: Path) -> list[Path]:
    if (folder / MANIFEST).is_file():
        return [folder]
    if not folder.is_dir():
        return []
    return sorted(one.parent for one in folder.glob(f"*/{MANIFEST}"))


def read_rows(path: Path, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The rows of a file. Raises AuditError where it cannot be read."""
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=_ROWS_TOGETHER, columns=list(columns)):
                yield from batch.to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise AuditError(
            f"{path} of an archive cannot be read ({type(error).__name__}). Nothing was changed. "
            f"Put it back from a copy."
        ) from error


def digest_of(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
