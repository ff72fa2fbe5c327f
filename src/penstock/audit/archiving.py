"""Write archives of a trail (`penstock.audit.archives`): only what is proved, and all of it."""

# The stubs of pyarrow leave element types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import fcntl
import hashlib
import os
import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from bson.datetime_ms import DatetimeMS
from bson.int64 import Int64
from bson.raw_bson import RawBSONDocument
from msgspec import Struct

from penstock.audit.archives import (
    BATCH_SCHEMA,
    FORMAT,
    MANIFEST,
    RECORD_SCHEMA,
    VERSION,
    Archive,
    ArchivedRow,
    Archives,
    File,
    Manifest,
    digest_of,
)
from penstock.audit.chain import NO_BATCH
from penstock.audit.checks import Link, facts_of, proved
from penstock.audit.deeds import Deeds
from penstock.audit.findings import Findings
from penstock.audit.names import Names, Table, names_of
from penstock.audit.outages import Patience
from penstock.audit.own import require_head
from penstock.audit.proving import Places
from penstock.audit.reading import Reader
from penstock.audit.trail import Document, Head, Trail
from penstock.errors import AuditError
from penstock.folders import appearing, sync_folder

_TOGETHER: Final = 1000
"""So many batches are looked at with one question."""
_GROUP_BYTES: Final = 16 << 20
_GROUP_ROWS: Final = 4096
_FILE_BYTES: Final = 256 << 20


class Archived(Struct, frozen=True, kw_only=True, rename="camel"):
    """What an archiving did."""

    folder: str | None
    """None: there was nothing to archive."""
    first: int
    last: int
    """The places that it covers,"""
    rows: int
    """and the records of them that it has."""


def archive(
    trail: Trail, patience: Patience, *, before_ms: int, table: Table | None, to: Path
) -> Archived:
    """Archive the batches that were written before a moment, behind what is archived in `to`.

    Of `table` alone, under each name that it had, or of all. The archive is a new folder in `to`,
    and appears whole or not at all; nothing is changed in the trail. Every record is proved by its
    batch before it is written.

    Raises AuditError for what is broken, or of which an erasure is unfinished.
    """
    head = require_head(trail, patience)
    reader = Reader(trail, patience)
    first = _begins(to, trail, table)
    if first > head.at:
        return Archived(folder=None, first=first, last=head.at, rows=0)
    begin: Any = reader.batch_of_place(first, last=head.batch)
    if begin is None or int(begin["first"]) != first:
        raise _broken(trail, f"no batch begins at place {first}")
    number_first = int(begin["_id"])
    number = last_before(reader, head, before_ms, first=number_first)
    if number < number_first:
        return Archived(folder=None, first=first, last=first - 1, rows=0)
    batch: Any = reader.batch(number)
    last = int(batch["last"])
    name = f"{trail.source}-{first:012d}-{last:012d}"
    if table is not None:
        name += f"-{hashlib.sha256(str(table).encode()).hexdigest()[:8]}"
    target = to / name
    names = None if table is None else names_of(reader, table, last=head.at)
    walk = _Walk(reader, head, names, first=first, last=last)
    with appearing(target) as folder:
        files = write_rows(folder, walk.rows(number_first, number, bytes(begin["before"])))
        chain = _write_chain(folder, walk.chain)
        manifest = Manifest(
            format=FORMAT,
            version=VERSION,
            source=trail.source,
            database=trail.config.database,
            records=trail.config.records,
            table=None if table is None else str(table),
            first=first,
            last=last,
            batch=number,
            hash=walk.link.hash.hex(),
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            files=files,
            chain=chain,
        )
        (folder / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(manifest)))
    return Archived(
        folder=str(target), first=first, last=last, rows=sum(file.rows for file in files)
    )


def last_before(reader: Reader, head: Head, before_ms: int, *, first: int) -> int:
    """The last batch of those from `first` on that were all written before a moment; else the one
    before `first`.

    Each is looked at, for the times of batches may run backwards where an older Penstock wrote
    them. Raises AuditError.
    """
    batches, at, end = reader.trail.batches, DatetimeMS(before_ms), head.batch
    stop: Document = {"$or": [{"ts": {"$gte": at}}, {"ts": {"$not": {"$type": "date"}}}]}
    for start in range(first, head.batch + 1, _TOGETHER):
        window = {"$gte": Int64(start), "$lt": Int64(start + _TOGETHER), "$lte": Int64(head.batch)}
        find = partial(batches.find_one, stop | {"_id": window}, {"ts": 1}, sort=[("_id", 1)])
        found = reader.call(find)
        if found is None:
            continue
        end = int(found["_id"]) - 1
        if not isinstance(found.get("ts"), datetime | DatetimeMS):
            raise _broken(reader.trail, f"batch {end + 1} does not say its time")
        break
    if end >= first and reader.batch(end) is None:
        raise _broken(reader.trail, f"batch {end} is missing")
    return end


def _begins(to: Path, trail: Trail, table: Table | None) -> int:
    """Behind what is archived of the same in a folder."""
    if not to.is_dir() or not any(to.glob(f"*/{MANIFEST}")):
        return 1
    mine = [
        one.manifest.last
        for one in Archives.at([to], source=trail.source).all
        if (one.manifest.database, one.manifest.records)
        == (trail.config.database, trail.config.records)
        and one.manifest.table == (None if table is None else str(table))
    ]
    return max(mine, default=0) + 1


def _broken(trail: Trail, what: str) -> AuditError:
    return AuditError(
        f"trail of {trail.source}: {what}. Nothing was archived. Run `penstock audit verify`, and "
        f"mend what it names."
    )


class _Walk:
    """Proves batches, and gives their records."""

    def __init__(
        self, reader: Reader, head: Head, names: Names | None, *, first: int, last: int
    ) -> None:
        self._reader = reader
        self._names = names
        deeds = Deeds(reader)
        deeds.load(last=head.at, batch_last=head.batch)
        self._places = Places(reader, deeds, Archives(()), first=first, last=last)
        self._first = first
        self._key = reader.trail.key
        self.chain: list[dict[str, Any]] = []
        self.link = Link(0, 0, NO_BATCH)

    def rows(self, first: int, last: int, before: bytes) -> Iterator[ArchivedRow]:
        self.link = Link(first - 1, self._first - 1, before)
        for batch in self._reader.batches(first, last):
            yield from self._batch(batch)
        if self.link.number != last:
            raise _broken(self._reader.trail, f"batch {self.link.number + 1} is missing")

    def _batch(self, batch: Any) -> Iterator[ArchivedRow]:
        found = proved(
            batch, self.link, source=self._reader.trail.source, key=self._key, next_before=None
        )
        number = self.link.number + 1
        if found.wrong:
            raise _broken(self._reader.trail, f"batch {number} is missing, or was altered")
        findings = Findings()
        for offset, salt in enumerate(found.salts):
            looked = self._places.look(found, number, offset, findings)
            if findings.listed:
                raise _broken(self._reader.trail, findings.listed[0].sentence())
            record = looked.record
            if record is None or not self._wanted(record, found.first + offset):
                continue
            pieces = b"".join(self._reader.pieces(str(record["_id"])))
            yield ArchivedRow(found.first + offset, record, salt, pieces or None, number, "")
        self.chain.append(
            {
                "number": number,
                "first": found.first,
                "last": found.last,
                "leaves": bytes(batch["leaves"]),
                "root": bytes(batch["root"]),
                "before": bytes(batch["before"]),
                "hash": bytes(batch["hash"]),
                "ts": int(batch["ts"]),
            }
        )
        self.link = found.after

    def _wanted(self, record: RawBSONDocument, at: int) -> bool:
        facts = facts_of(record)
        return self._names is None or self._names.hold(facts.db, facts.tbl, at)


# --- files --------------------------------------------------------------------------------------


def write_rows(folder: Path, rows: Iterable[ArchivedRow]) -> list[File]:
    """Write records to files of a new archive; an archive has one, however empty."""
    files: list[File] = []
    source = iter(rows)
    more = True
    while more:
        with _Writer(folder / f"records-{len(files):05d}.parquet") as writer:
            more = writer.take(source)
        files.append(writer.file)
    return files


class _Writer:
    """One file of records."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows: list[dict[str, Any]] = []
        self._size = 0
        self._written = 0
        self._count = 0
        self._ends = (0, 0)

    def __enter__(self) -> Self:
        self._file = pq.ParquetWriter(self._path, RECORD_SCHEMA, compression="zstd")
        return self

    def __exit__(self, *_: object) -> None:
        self._group()
        self._file.close()

    def take(self, rows: Iterator[ArchivedRow], *, bytes_max: int = _FILE_BYTES) -> bool:
        """Write rows until the file is large enough; whether there may be more."""
        for row in rows:
            self._rows.append(_columns(row))
            self._size += len(row.record.raw) + len(row.spilled or b"")
            self._ends = (self._ends[0] or row.at, row.at)
            self._count += 1
            if self._size >= _GROUP_BYTES or len(self._rows) >= _GROUP_ROWS:
                self._group()
            if self._written >= bytes_max:
                return True
        return False

    def _group(self) -> None:
        if self._rows:
            self._file.write_table(pa.Table.from_pylist(self._rows, schema=RECORD_SCHEMA))
        self._written += self._size
        self._rows, self._size = [], 0

    @property
    def file(self) -> File:
        """What was written."""
        first, last = self._ends
        return File(
            name=self._path.name,
            rows=self._count,
            first=first,
            last=last,
            sha256=digest_of(self._path),
        )


def _columns(row: ArchivedRow) -> dict[str, Any]:
    record: Any = row.record
    facts = facts_of(record)
    return {
        "at": row.at,
        "ts": int(record["ts"]),
        "op": record["op"],
        "db": facts.db,
        "tbl": facts.tbl,
        "pk_text": facts.pk,
        "txn": record["txn"]["id"],
        "id": str(record["_id"]),
        "batch": row.batch,
        "record": record.raw,
        "salt": row.salt,
        "spilled": row.spilled,
    }


def _write_chain(folder: Path, chain: list[dict[str, Any]]) -> File:
    path = folder / "batches.parquet"
    pq.write_table(pa.Table.from_pylist(chain, schema=BATCH_SCHEMA), path, compression="zstd")
    return File(
        name=path.name,
        rows=len(chain),
        first=chain[0]["number"],
        last=chain[-1]["number"],
        sha256=digest_of(path),
    )


@contextmanager
def writing(archive_: Archive) -> Generator[None]:
    """Nobody else writes an archive in the block, and it is read anew: as whoever did left it.

    What a rewriting left is removed, before the block and behind it: it is of no use, and may hold
    what is erased. Raises AuditError while another process writes it.
    """
    folder = archive_.folder
    lock = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise AuditError(
                f"another process writes the archive {folder}. Nothing of it was changed. Run this "
                f"again when that has ended."
            ) from error
        archive_.read()
        _sweep(archive_)
        yield
        _sweep(archive_)
    finally:
        os.close(lock)


def rewrite(archive_: Archive, file: File, rows: Iterable[ArchivedRow]) -> None:
    """Put other rows in the place of a file's, while one is `writing` it: at every moment the
    archive is one or the other."""
    folder = archive_.folder
    path = folder / f"records-{file.name.split('-')[1][:5]}.{time.time_ns():x}.parquet"
    with _Writer(path) as writer:
        writer.take(iter(rows), bytes_max=1 << 62)
    with path.open("rb") as written:
        os.fsync(written.fileno())
    manifest = archive_.manifest
    files = [writer.file if one.name == file.name else one for one in manifest.files]
    archive_.manifest = msgspec.structs.replace(manifest, files=files)
    text = msgspec.json.format(msgspec.json.encode(archive_.manifest))
    draft = folder / f".{MANIFEST}"
    with draft.open("wb") as drafted:
        drafted.write(text)
        drafted.flush()
        os.fsync(drafted.fileno())
    draft.replace(folder / MANIFEST)
    sync_folder(folder)


def _sweep(archive_: Archive) -> None:
    for left in archive_.leftovers():
        left.unlink()
    sync_folder(archive_.folder)
