"""Records as batches: their places, and what proves them. Pure."""

import hashlib
from collections.abc import Sequence
from typing import Any

import bson
from bson.binary import Binary
from bson.datetime_ms import DatetimeMS
from bson.int64 import Int64
from bson.raw_bson import RawBSONDocument
from msgspec import Struct, structs

from penstock.audit.chain import batch_hash, root_of
from penstock.audit.entries import SPILLED_FIELDS
from penstock.audit.packing import Entry
from penstock.audit.records import with_place
from penstock.audit.trail import Document, Head


class Batch(Struct, frozen=True, kw_only=True):
    """Records with their places, and what proves them."""

    after: Head
    """The head behind it."""
    records: list[RawBSONDocument]
    document: Document
    """As it is kept in the collection of batches."""
    told: Document
    """Of its last record: gtid, file and pos, for people."""


def batch_of(
    before: Head, entries: Sequence[Entry], *, progress: str, key: bytes | None, now_ms: int
) -> Batch:
    """The batch of `entries`, all of which have a record, behind `before`."""
    first, last, number = before.at + 1, before.at + len(entries), before.batch + 1
    leaves = [entry.leaf for entry in entries]
    root = root_of(leaves)
    written_ms = max(before.written_ms, now_ms)
    chained = batch_hash(
        before=before.hash, root=root, number=number, first=first, last=last, key=key
    )
    records = [
        RawBSONDocument(with_place(entry.record or b"", at))
        for at, entry in enumerate(entries, first)
    ]
    document: Document = {
        "_id": Int64(number),
        "source": before.source,
        "first": Int64(first),
        "last": Int64(last),
        "leaves": Binary(b"".join(leaves)),
        "salts": Binary(b"".join(entry.salt for entry in entries)),
        "root": Binary(root),
        "before": Binary(before.hash),
        "hash": Binary(chained),
        "ts": DatetimeMS(written_ms),
    }
    after = structs.replace(
        before, at=last, batch=number, hash=chained, progress=progress, written_ms=written_ms
    )
    return Batch(after=after, records=records, document=document, told=told_of(records[-1]))


def told_of(record: RawBSONDocument) -> Document:
    """Where the source was, as people know it."""
    src: Any = record["src"]
    binlog: Any = src.get("binlog") or {}
    return {"gtid": src.get("gtid"), "file": binlog.get("file"), "pos": binlog.get("pos")}


def says_the_same(one: RawBSONDocument, stored: RawBSONDocument) -> bool:
    """Whether a stored record is of the same change; one that was erased is believed to be.

    Where it was read (file, offset, replica) and how many rows were captured beside it may differ.
    """
    if "erased" in stored:
        return bool(one["op"] == stored["op"])
    if any(_bytes(one.get(name)) != _bytes(stored.get(name)) for name in ("op", "meta")):
        return False
    if "spilled" in one or "spilled" in stored:  # how much is spilled is a setting
        return _values(one) == _values(stored)
    return bool(_bytes(one.get("chg")) == _bytes(stored.get("chg")))


def _values(record: RawBSONDocument) -> tuple[int, bytes]:
    said: Any = record.get("spilled")
    if said is not None:
        return int(said["bytes"]), bytes(said["sha256"])
    data = bson.encode({name: record[name] for name in SPILLED_FIELDS if name in record})
    return len(data), hashlib.sha256(data).digest()


def _bytes(value: Any) -> Any:
    return value.raw if isinstance(value, RawBSONDocument) else value
