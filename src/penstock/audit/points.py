"""Places of a trail, by a time, a transaction or a number; and the records between two of them.

A place is always between two transactions: what is restored has a transaction whole or not at all.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from bson.datetime_ms import DatetimeMS
from msgspec import Struct

from penstock.audit.copies import COMPLETED, COPY, COUNTED, STARTED
from penstock.audit.fold import EXACT, Doubt, Name, decoded, doubt_of
from penstock.audit.moments import span_of
from penstock.audit.trail import Document, Trail
from penstock.errors import AuditError

_AT: Final = re.compile(r"at:(\d+)")
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d([T ]|$)")
_FETCHED: Final = 500
_FACTS: Final = {"at": 1, "ts": 1, "txn": 1, "seq": 1}


class Place(Struct, frozen=True, kw_only=True):
    """Behind a transaction of a trail, or at its beginning (0)."""

    at: int
    """The last record before it."""
    ts: int = 0
    """When that was committed, in Unix milliseconds."""
    transaction: str | None = None
    late: int = 0
    """Records behind it that say a time before the one that was asked for."""


def place_of(trail: Trail, text: str, *, head: int, before: bool = False) -> Place:
    """The place that `text` names, up to `head`: `beginning`; `head`; a time, as `span_of` reads
    it; `at:N`; or a transaction.

    A place is behind what is named, the whole day or second of a time too; with `before`, that of a
    time is before it. It is where the first transaction begins that is dated later; so one behind
    it that a server's clock, or a session's, dated back is not before it, and counted (`late`). A
    number within a transaction means the place before that. Raises AuditError for a time that is
    none, and for a transaction that is not in the trail.
    """
    if text == "beginning":
        return Place(at=0)
    if text == "head":
        return _behind(trail, head)
    number = _AT.fullmatch(text)
    if number:
        return _before_a_cut(trail, min(int(number[1]), head), head)
    if not _DATE.match(text):
        return _of_transaction(trail, text, head)
    try:
        span = span_of(text, tz=trail.config.tz)
    except ValueError as error:
        raise AuditError(f"{error}. Nothing was changed.") from None
    wanted = DatetimeMS(span.first_ms if before else span.end_ms)
    # What was done to the trail itself is dated by another clock, whenever it was.
    of_the_source: Document = {"op": {"$ne": "sys"}}
    later = trail.records.find_one(
        {"at": {"$lte": head}, "ts": {"$gte": wanted}, **of_the_source},
        {"at": 1},
        sort=[("at", 1)],
    )
    if later is None:
        return _behind(trail, head)
    last = int(later["at"]) - 1
    late = trail.records.count_documents(
        {"at": {"$gt": last, "$lte": head}, "ts": {"$lt": wanted}, **of_the_source}
    )
    found = _before_a_cut(trail, last, head)
    return Place(at=found.at, ts=found.ts, transaction=found.transaction, late=late)


def _behind(trail: Trail, at: int) -> Place:
    """Behind a record; where that was retired, with what is known of the last one before it."""
    found = _last(trail, at)
    if found is None:
        return Place(at=at)
    return Place(at=at, ts=int(found["ts"]), transaction=found["txn"]["id"])


def _last(trail: Trail, at: int) -> Document | None:
    """The last record up to a place that is there."""
    exact = trail.records.with_options(codec_options=EXACT)
    return exact.find_one({"at": {"$lte": at}}, _FACTS, sort=[("at", -1)])


def _before_a_cut(trail: Trail, at: int, head: int) -> Place:
    """Behind `at`, or before the transaction that it would cut.

    That has records behind it. Of those before it some may have been retired, and maybe all. An
    older one may have the same name: a server begins anew with them when its binlog was reset.
    """
    records = trail.records
    first = records.find_one({"at": {"$gt": at, "$lte": head}}, _FACTS, sort=[("at", 1)])
    if first is None:
        return _behind(trail, at)
    name = first["txn"]["id"]
    if name is not None:
        begun = int(first["at"]) - int(first["seq"])
        own: Document = {"txn.id": name, "at": {"$gte": begun}}
        first = records.find_one(own, _FACTS, sort=[("at", 1)]) or first
    before = _last(trail, int(first["at"]) - 1)
    filled = 0 if before is None else int(before["at"])
    begins = max(int(first["at"]) - int(first["seq"]), filled + 1)
    return _behind(trail, min(at, begins - 1))


def _of_transaction(trail: Trail, name: str, head: int) -> Place:
    last = trail.records.find_one(
        {"txn.id": name, "at": {"$lte": head}}, {"at": 1}, sort=[("at", -1)]
    )
    if last is None:
        raise AuditError(
            f"{name!r} is neither a time nor a transaction of the trail of {trail.source}. Nothing "
            f"was changed. Write a time as 2026-01-31T12:00:00Z, a transaction as `penstock audit "
            f"query` shows it, a record's place as at:1234, or head."
        )
    return _behind(trail, int(last["at"]))


def records(
    trail: Trail, *, after: int, until: int, tables: Sequence[Name] | None = None
) -> Iterator[Document]:
    """The records behind `after` up to `until`, in order, with what was spilled in its place.

    With `tables`, only those of these tables, and every statement, gap and copy. That a copy is
    complete comes with how many of its rows are there (`penstock.audit.copies`). Raises AuditError
    where spilled values are not there, PyMongoError.
    """
    between: Document = {"at": {"$gt": after, "$lte": until}}
    if tables is not None:
        wanted: list[Document] = [{"meta.db": db, "meta.tbl": tbl} for db, tbl in tables]
        between["$or"] = [*wanted, {"op": {"$in": ["ddl", "gap", COPY]}}]
    exact = trail.records.with_options(codec_options=EXACT)
    for record in exact.find(between).sort("at", 1).batch_size(_FETCHED):
        whole = with_spilled(trail, record)
        yield _counted(trail, whole) if record["op"] == COPY else whole


def _counted(trail: Trail, record: Document) -> Document:
    """What is told of a copy; that it is complete, with how many rows the trail has of it."""
    said: Mapping[str, Any] = record.get("said") or {}
    if said.get("operation") != COMPLETED:
        return record
    begun = trail.records.find_one(
        {
            "op": COPY,
            "at": {"$lt": record["at"]},
            "said.operation": STARTED,
            "said.snapshot": said.get("snapshot"),
        },
        {"at": 1},
        sort=[("at", 1)],
    )
    if begun is None:
        return record
    between = {"at": {"$gt": begun["at"], "$lt": record["at"]}, "flags.copied": True}
    return {**record, COUNTED: trail.records.count_documents(between)}


def with_spilled(trail: Trail, record: Document) -> Document:
    """A record with the values that lie beside it. Raises AuditError where they do not."""
    said: Mapping[str, Any] | None = record.get("spilled")
    if said is None or "erased" in record:
        return record
    pieces: list[bytes] = []
    missing = int(said["bytes"])
    while missing > 0:
        piece = trail.spilled.find_one({"_id": f"{record['_id']}:{len(pieces)}"})
        if piece is None:
            raise AuditError(
                f"record {record['at']} of the trail of {trail.source} has values beside it, and "
                f"they are not there. Nothing was changed. Run `penstock audit verify`."
            )
        pieces.append(bytes(piece["data"]))
        missing -= len(pieces[-1])
    return {**record, **decoded(b"".join(pieces))}


def renames(trail: Trail, *, until: int) -> Iterator[Document]:
    """The statements that gave a table another name."""
    exact = trail.records.with_options(codec_options=EXACT)
    yield from exact.find({"op": "ddl", "at": {"$lte": until}, "said.operation": "rename"})


def absent(trail: Trail, *, after: int, until: int, head: int) -> list[Doubt]:
    """Why records between two places are not there, if some are not: every place is filled, but
    where rows were retired, which a record behind them says.

    What is missing past those is told too; whether it is that which was retired, `audit verify`
    proves.
    """
    between = {"at": {"$gt": after, "$lte": until}}
    missing = until - after - trail.records.count_documents(between)
    if missing <= 0:
        return []
    found: list[Doubt] = []
    exact = trail.records.with_options(codec_options=EXACT)
    retired = {"op": "sys", "at": {"$lte": head}, "sys.act": "retire", "sys.last": {"$gt": after}}
    for record in exact.find(retired).sort("at", 1):
        said = record["sys"]
        missing -= int(said["count"])
        if int(said["first"]) <= until:
            last = min(int(said["last"]), until)
            told = {**record, "at": last}
            found.append(doubt_of(told, "retired", f"changes of it up to record {last} retired"))
    if missing > 0:
        said = f"{missing} records or more are not there; `penstock audit verify` names them"
        found.append(Doubt(kind="missing", table=("", ""), at=until, ts=0, said=said))
    return found


def copied_later(trail: Trail, name: Name, *, after: int, until: int) -> int | None:
    """The next record of a copy of a table behind a place; None if there is none."""
    found = trail.records.find_one(
        {
            "meta.db": name[0],
            "meta.tbl": name[1],
            "at": {"$gt": after, "$lte": until},
            "flags.copied": True,
        },
        {"at": 1},
        sort=[("at", 1)],
    )
    return None if found is None else int(found["at"])
