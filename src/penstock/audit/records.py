"""Entries of the log as records of a trail. Pure.

A record, in the order of its fields; those of the *content* are marked, all others are its head:

    _id       of the event's own id, which is of source, transaction and place in it (A1), a hash
              by the trail's key (`id_of`); in a trail that an older Penstock began, that id
    at        int64: its place in the trail, from 1; whoever appends gives it
    ts        when it was committed, with milliseconds
    op        "i", "u", "d"; "ddl", and "gap" for what was lost; "copy" for where a copy of tables
              begins and is complete; "sys" for what was done to the trail itself
              (penstock.audit.own)
    meta      {db, tbl, pk*, pk_text*, moved_to*, moved_from*}: the key as an ordered object and as
              text; where a key changed, the delete and the insert name the other's
    seq       int64: the number in the source's transaction, from 0
    chg*      {column: {f, t}}: from and to. An insert has only `t`, a delete only `f`, an update
              the columns that changed; null is null, and a column that was not there has no `f`
              (A14)
    paths*    of an update, where it is known which names with dots in `chg` are paths into a
              column: {name: its steps} of those that are not what stands between the dots. A text
              is a field's own name, a number a place in an array; empty where there is none
    masked*   of an update: the columns that changed and whose rules had both values captured alike,
              so that `chg` does not have them
    txn       {id, size}: the source's name of the transaction, and how much was captured of it
    src       {source, event*, position*, gtid, binlog {file, pos}, thread, sql*, sql_bytes*,
              sql_at, actor*}
    schema    the schema's version, where the source keeps one
    flags     of copied, keyless, partial: those that hold
    ts_local  ISO 8601 in the trail's time zone, which is `tz`
    ts_ist    "YYYY-MM-DD HH:MM:SS", while the time zone is Asia/Kolkata
    said*     of a ddl, gap or copy: what the source said; of a sys: what people said
    sys       of a sys: what was done, and at which places
    spilled*  {bytes, sha256}: instead of chg, said and paths, where they are too large
    erased    {at, digest, by}: the content (*) is gone, by the record at `at` with the id `by`; the
              digest stands for it in the leaf
    done      of a sys: whether all of it was carried out; nothing proves that

`copied`: of a copy, not a change that was seen. `keyless`: the table has no key, and the row's
digest stands for one (A11). `partial`: the row before the change was not sent, so
`chg` has no `f`; or an insert lacks columns.
"""

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Final, NamedTuple
from zoneinfo import ZoneInfo

import bson
import msgspec
from bson.datetime_ms import DatetimeMS
from bson.int64 import Int64

from penstock.audit.copies import COMPLETED, COPY, STARTED
from penstock.audit.values import document_of, value_of
from penstock.event import Kind

Row = Mapping[str, Any]
Record = dict[str, Any]

COLUMNS: Final = (
    *("sequence", "commit", "commit_rows", "commit_digest", "check", "ordinal", "kind"),
    *("operation_type", "source", "database", "collection", "event_id", "document_id", "key"),
    *("full_document", "full_document_before_change", "update_description"),
    *("disambiguated_paths", "position", "transaction", "timestamp", "schema_version"),
    *("snapshot", "unchanged", "origin"),
)
"""What a trail needs of an entry."""

INDIA: Final = "Asia/Kolkata"
_OPERATIONS: Final = {"insert": "i", "update": "u", "replace": "u", "delete": "d"}
_KEYLESS: Final = "_row"
_NOTHING: Final = object()


ID_KEY_BYTES: Final = 32


def id_of(event: str, key: bytes) -> str:
    """The `_id` of an event's record, in a trail with this key.

    Some sources make an event's id of its row's key, as of a copy, or of MongoDB's tokens: whoever
    can list keys would find one that was erased.
    """
    return blake2b(event.encode(), key=key, digest_size=16).hexdigest() if key else event


def record_of(row: Row, *, tz: str, id_key: bytes = b"") -> Record | None:
    """The record of an entry (COLUMNS), without `at`; None for one that the trail does not keep.
    `id_key` is the trail's.

    Rows, schema changes, gaps, and the beginnings and ends of copies are kept; what else Penstock
    says of a source's running is not.
    """
    kind = row["kind"]
    record: Record
    if kind == Kind.DATA:
        record = _change(row)
    elif kind == Kind.SCHEMA:
        record = {"op": "ddl", "said": _said(row)}
    elif kind == Kind.GAP:
        record = {"op": "gap", "said": _said(row)}
    elif kind == Kind.SYSTEM and row["operation_type"] in {STARTED, COMPLETED}:
        record = {"op": COPY, "said": _said(row)}
    else:
        return None
    origin = document_of(row["origin"]) or {}
    of_key: Record = record.pop("meta", {})
    meta: Record = {"db": row["database"], "tbl": row["collection"], **of_key}
    meta |= {
        name: origin[told]
        for name, told in (("moved_to", "movedTo"), ("moved_from", "movedFrom"))
        if told in origin
    }
    flags = record.pop("flags", {})
    return {
        "_id": id_of(row["event_id"], id_key),
        "ts": DatetimeMS(row["timestamp"]),
        "op": record["op"],
        "meta": meta,
        "seq": Int64(row["ordinal"]),
        **{name: record[name] for name in ("chg", "paths") if name in record},
        **({"masked": origin["masked"]} if "masked" in origin else {}),
        "txn": {"id": row["transaction"], "size": Int64(row["commit_rows"] or 1)},
        "src": _origin(row, origin, is_named=bool(id_key)),
        **({"schema": Int64(row["schema_version"])} if row["schema_version"] else {}),
        **({"flags": flags} if flags else {}),
        **local_of(row["timestamp"], tz),
        **({"said": record["said"]} if "said" in record else {}),
    }


def _said(row: Row) -> Record:
    said = document_of(row["full_document"]) or {}
    return {"operation": row["operation_type"], **said}


def _change(row: Row) -> Record:
    operation = _OPERATIONS[row["operation_type"]]
    key = document_of(row["key"]) or {}
    keyless = list(key) == [_KEYLESS]
    before, after = row["full_document_before_change"], row["full_document"]
    partial = False
    paths: Record | None = None
    if operation == "i":
        chg = _from_to(None, after)
        partial = bool(row["unchanged"])
    elif operation == "d":
        chg = _from_to(before, None)
        partial = before is None
    elif before is not None and after is not None and not row["unchanged"]:
        chg = _from_to(before, after)
        paths = _columns(chg)
    else:
        chg = _described(row, before, after)
        paths = _paths(row, chg)
        partial = before is None
    flags = {"copied": bool(row["snapshot"]), "keyless": keyless, "partial": partial}
    return {
        "op": operation,
        "meta": {"pk": key, "pk_text": row["document_id"]},
        "chg": chg,
        **({} if paths is None else {"paths": paths}),
        "flags": {name: True for name, holds in flags.items() if holds},
    }


def _from_to(before: str | None, after: str | None) -> Record:
    """What differs between two rows; a row that is not there has no columns.

    Compared as they are stored: two values that are written alike are the same one.
    """
    was: Record = msgspec.json.decode(before) if before is not None else {}
    now: Record = msgspec.json.decode(after) if after is not None else {}
    changed: Record = {}
    for name, value in was.items():
        other = now.get(name, _NOTHING)
        if other is _NOTHING:
            changed[name] = {"f": value_of(value)}
        elif not _same(value, other):
            changed[name] = {"f": value_of(value), "t": value_of(other)}
    for name, value in now.items():
        if name not in was:
            changed[name] = {"t": value_of(value)}
    return changed


def _same(one: Any, other: Any) -> bool:
    """Whether two values are written alike: 5 and 5.0 are not, nor true and 1.

    The order of a document's fields is part of it.
    """
    if one is other:
        return True
    if type(one) is not type(other) or one != other:
        return False
    return _plain(one) or msgspec.json.encode(one) == msgspec.json.encode(other)


def _plain(value: Any) -> bool:
    """Whether equal values of this type are written alike; 0.0 and -0.0 are not."""
    return isinstance(value, str | int)


def _described(row: Row, before: str | None, after: str | None) -> Record:
    """What an update says of itself, where not both rows were sent whole."""
    description: Record | None = document_of(row["update_description"])
    was: Record = document_of(before) or {}
    if description is None:
        left_out: set[str] = set(row["unchanged"] or ())
        now: Record = document_of(after) or {}
        return {
            name: {**({"f": was[name]} if name in was else {}), "t": value}
            for name, value in now.items()
            if name not in left_out
        }
    changed: Record = {}
    updated: Record = description.get("updatedFields") or {}
    for path, value in updated.items():
        changed[path] = {**({"f": was[path]} if path in was else {}), "t": value}
    for path in description.get("removedFields") or ():
        changed[path] = {"f": was[path]} if path in was else {}
    for cut in description.get("truncatedArrays") or ():
        changed[cut["field"]] = {"size": cut["newSize"]}
    return changed


def _paths(row: Row, chg: Record) -> Record | None:
    """What an update's names with dots are; None where the source does not say."""
    if row["update_description"] is None:
        return _columns(chg)
    return document_of(row["disambiguated_paths"])


def _columns(chg: Record) -> Record | None:
    """As `paths`, where all names are columns' own, also those that read like paths: into what is
    nobody knows, for a row may have kept a column that was dropped since. None where none does."""
    return {name: [name] for name in chg if "." in name} or None


def _origin(row: Row, origin: Record, *, is_named: bool) -> Record:
    src: Record = {"source": row["source"]}
    if is_named:
        src["event"] = row["event_id"]
    src["position"] = row["position"]
    if row["transaction"] is not None:
        src["gtid"] = row["transaction"]
    if "file" in origin:
        src["binlog"] = {"file": origin["file"], "pos": Int64(origin.get("offset", 0))}
    for name, told in _TOLD:
        if told in origin:
            src[name] = origin[told]
    return src


_TOLD: Final = (
    ("thread", "thread"),
    ("sql", "statement"),
    ("sql_bytes", "statementBytes"),
    ("sql_at", "statementAt"),
    ("actor", "actor"),
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@lru_cache(maxsize=1024)
def local_of(timestamp: int, tz: str) -> Record:
    """A moment as people at the trail's place read it."""
    try:
        there = (_EPOCH + timedelta(milliseconds=timestamp)).astimezone(ZoneInfo(tz))
    except OverflowError:
        return {"ts_local": None, "tz": tz}
    local = {"ts_local": there.isoformat(timespec="milliseconds"), "tz": tz}
    if tz == INDIA:
        local["ts_ist"] = there.strftime("%Y-%m-%d %H:%M:%S")
    return local


# --- head and content -------------------------------------------------------------------------

_META_HEAD: Final = frozenset({"db", "tbl"})
_SRC_CONTENT: Final = frozenset({"sql", "sql_bytes", "actor", "position", "event"})
_CONTENT: Final = frozenset({"chg", "paths", "masked", "said", "spilled"})
_NEITHER: Final = frozenset({"at", "erased"})


class Parts(NamedTuple):
    """A record in the two parts that its leaf is made of, as BSON."""

    head: bytes
    """What happened, when, and to which table; it stays for good."""
    content: bytes
    """The key, the values and the statement; what erasure takes."""


def parts_of(record: Mapping[str, Any]) -> Parts:
    """The parts of a record, stored or not, with or without `at`.

    Of a record read from MongoDB its documents must be RawBSONDocument, which are written again as
    they were.
    """
    head: Record = {}
    content: Record = {}
    for name, value in record.items():
        if name in _NEITHER or (name == "done" and record["op"] == "sys"):
            continue
        if name in _CONTENT:
            content[name] = value
        elif name == "meta":
            head[name], content[name] = _split(value, lambda one: one in _META_HEAD)
        elif name == "src":
            head[name], content[name] = _split(value, lambda one: one not in _SRC_CONTENT)
        else:
            head[name] = value
    return Parts(bson.encode(head), bson.encode(content))


def without_content(record: Mapping[str, Any]) -> Record:
    """What is left of a record when its content is erased."""
    left: Record = {}
    for name, value in record.items():
        if name == "meta":
            left[name] = _split(value, lambda one: one in _META_HEAD)[0]
        elif name == "src":
            left[name] = _split(value, lambda one: one not in _SRC_CONTENT)[0]
        elif name not in _CONTENT:
            left[name] = value
    return left


def _split(document: Mapping[str, Any], first: Callable[[str], bool]) -> tuple[Record, Record]:
    mine: Record = {}
    other: Record = {}
    for name, value in document.items():
        (mine if first(name) else other)[name] = value
    return mine, other


def with_place(record: bytes, at: int) -> bytes:
    """A record's BSON with its place at the end."""
    element = b"\x12at\0" + at.to_bytes(8, "little", signed=True)
    size = len(record) + len(element)
    return size.to_bytes(4, "little") + record[4:-1] + element + b"\0"


def changed_columns(record: Mapping[str, Any]) -> Iterator[str]:
    """The columns that a record says to have changed, in their order."""
    yield from record.get("chg") or ()
