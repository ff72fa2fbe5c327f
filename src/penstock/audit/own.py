"""Records of our own: what was done to a trail (erased, retired, repaired) stands in its chain.

Such a record has `op` "sys". Its facts are in its head, so that nothing takes them away:

    sys   {act, count, first, last, places, digests, archived}: what was done ("erase", "retire",
          "repair"), to how many records, the first and last place, all of them
          (`penstock.audit.places`); of an erasure, what stands for each content, 32 bytes each, in
          their order; of a retirement, `id_digest` of each record, and whether what went is
          archived
    meta  {db, tbl} of them, where they are of one table; "" otherwise
    txn   {id, size}: one act may take several records, `seq` from 0

and `said` is what people said of it: {operation, reason, by}. It names no key and no value.
"""

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Any, Final, Literal
from uuid import uuid4

from bson.binary import Binary
from bson.datetime_ms import DatetimeMS
from bson.int64 import Int64
from bson.raw_bson import RawBSONDocument
from msgspec import Struct
from pymongo.read_concern import ReadConcern
from pymongo.write_concern import WriteConcern

from penstock.audit.batches import batch_of
from penstock.audit.chain import HASH_BYTES, cut
from penstock.audit.entries import made_ready
from penstock.audit.heads import unmoved
from penstock.audit.outages import Patience
from penstock.audit.packing import Entry
from penstock.audit.places import packed, unpacked
from penstock.audit.records import Record, local_of
from penstock.audit.sealing import OTHER_KEY, USE_ITS_KEY, key_fits
from penstock.audit.trail import Document, Head, Trail, head_of
from penstock.audit.writing import Writer
from penstock.errors import AuditError, TrailBusyError

Act = Literal["erase", "retire", "repair"]
OWN: Final = "sys"
PLACES_MAX: Final = {"erase": 5_000, "retire": 50_000, "repair": 200_000}
"""So many places are in one record."""
DIGEST_BYTES: Final = {"erase": HASH_BYTES, "retire": 16}
_TOGETHER: Final = 8
_STAGED_PAUSE: Final = 0.2


class Deed(Struct, frozen=True, kw_only=True):
    """A record of our own, read."""

    at: int
    id: str
    act: str
    db: str
    tbl: str
    count: int
    first: int
    last: int
    packed: bytes
    digests: bytes = b""
    archived: bool = True
    done: bool = False
    """Whether it says to be carried out; nothing proves that."""

    def places(self) -> Iterator[tuple[int, bytes | None]]:
        """Its places, ascending, with the digest of each where it keeps them."""
        kept = cut(self.digests, DIGEST_BYTES[self.act]) if self.digests else None
        for number, place in enumerate(unpacked(self.packed)):
            if place >= self.at:
                return  # a deed is done to what was there: a forged one proves nothing
            yield place, None if kept is None else kept[number]

    @property
    def covers(self) -> bool:
        """Whether its places lack what they were written with."""
        return self.act in {"erase", "retire"}

    def digest_at(self, place: int) -> bytes | None:
        """What it keeps of one of its places."""
        return next((digest for at, digest in self.places() if at == place), None)

    def holds(self, place: int) -> bool:
        """Whether a place is one of its own."""
        return self.first <= place <= self.last and place < self.at and place in _all(self.packed)


@lru_cache(maxsize=8)
def _all(data: bytes) -> frozenset[int]:
    return frozenset(unpacked(data))


def id_digest(name: str) -> bytes:
    """What a retirement keeps of a record's id."""
    return hashlib.sha256(name.encode()).digest()[: DIGEST_BYTES["retire"]]


def deed_of(record: RawBSONDocument) -> Deed:
    """What a record of our own says. Raises ValueError for one that we did not write."""
    try:
        said: Any = record["sys"]
        meta: Any = record["meta"]
        deed = Deed(
            at=int(record["at"]),
            id=str(record["_id"]),
            act=str(said["act"]),
            db=str(meta["db"]),
            tbl=str(meta["tbl"]),
            count=int(said["count"]),
            first=int(said["first"]),
            last=int(said["last"]),
            packed=bytes(said["places"]),
            digests=bytes(said["digests"]) if "digests" in said else b"",
            archived=bool(said["archived"]) if "archived" in said else True,
            done=bool(record.get("done")),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError("not a record of our own") from error
    if len(deed.digests) != deed.count * DIGEST_BYTES.get(deed.act, 0):
        raise ValueError("an erasure or a retirement without the digest of every place")
    return deed


class Told(Struct, frozen=True, kw_only=True):
    """What a deed says to people."""

    act: Act
    db: str = ""
    tbl: str = ""
    reason: str = ""
    by: str = ""
    archived: bool = True


def records_of(
    told: Told,
    places: Sequence[int],
    digests: Sequence[bytes] = (),
    *,
    source: str,
    tz: str,
    now_ms: int,
) -> list[Record]:
    """The records of one deed, without `at`; as many as its places take."""
    step = PLACES_MAX[told.act]
    pieces = [(n, places[n : n + step]) for n in range(0, len(places), step)]
    name = f"{OWN}:{uuid4().hex}"
    return [
        {
            "_id": f"{name}:{number}",
            "ts": DatetimeMS(now_ms),
            "op": OWN,
            "meta": {"db": told.db, "tbl": told.tbl},
            "seq": Int64(number),
            "txn": {"id": name, "size": Int64(len(pieces))},
            "src": {"source": source},
            "sys": {
                "act": told.act,
                "count": Int64(len(piece)),
                "first": Int64(piece[0]),
                "last": Int64(piece[-1]),
                "places": Binary(packed(piece)),
                **({"digests": Binary(b"".join(digests[n : n + step]))} if digests else {}),
                **({"archived": told.archived} if told.act == "retire" else {}),
            },
            **local_of(now_ms, tz),
            "said": {"operation": told.act, "reason": told.reason, "by": told.by},
        }
        for number, (n, piece) in enumerate(pieces)
    ]


def _entry(record: Record) -> Entry:
    ready = made_ready(record, bytes_max=1 << 24)
    return Entry(0, 0, 0, 1, 0, record["_id"], **ready)


def add_own(
    trail: Trail,
    patience: Patience,
    records: Sequence[Record],
    *,
    take_over: bool = False,
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
) -> list[int]:
    """Add records of our own behind all others; returns their places.

    Beside a running writer, under its epoch: it goes on behind them, and how far the log was read
    stays as it is. A server without transactions cannot do that: there, with `take_over`, the
    trail is taken over, so that a writer that runs stops, and goes on when it is started again.

    Raises TrailBusyError while a large commit is on its way, and AuditError.
    """
    entries = [_entry(record) for record in records]
    if patience.call(trail.has_transactions):
        adding = _Adding(trail, now_ms)
        for first in range(0, len(entries), _TOGETHER):
            group = entries[first : first + _TOGETHER]
            until = time.monotonic() + trail.config.answer_seconds
            while not patience.call(partial(adding.attempt, group)):
                if time.monotonic() > until:
                    raise TrailBusyError(trail=trail.source)
                patience.pause(_STAGED_PAUSE)
    elif take_over:
        writer = _taken_over(trail, patience)
        for entry in entries:
            writer.append([entry], progress=writer.head.progress)
    else:
        raise AuditError(
            f"trail of {trail.source}: this MongoDB has no transactions, so nothing can be added "
            f"beside a pipeline that may be running. Nothing was changed. Stop the pipeline and "
            f"say --take-over; it goes on where it stood when it is started again."
        )
    names = [entry.id for entry in entries]
    found = patience.call(
        lambda: list(trail.records.find({"_id": {"$in": names}}, {"at": 1}).sort("at", 1))
    )
    return [int(record["at"]) for record in found]


def _taken_over(trail: Trail, patience: Patience) -> Writer:
    head = require_head(trail, patience)
    writer = Writer(trail, head.pipeline, patience=patience, collections=head.collections)
    writer.open()
    return writer


def settled(trail: Trail, patience: Patience, *, take_over: bool) -> Head:
    """The head, behind what a crash left on its way where nobody else is to bring it in.

    Raises as `require_head`.
    """
    head = require_head(trail, patience)
    if head.staged is None or not take_over or patience.call(trail.has_transactions):
        return head
    return _taken_over(trail, patience).head


def require_head(trail: Trail, patience: Patience) -> Head:
    """The head of a trail. Raises AuditError where there is none, or another key's: what is added
    under another one is a chain that no key proves."""
    head = patience.call(trail.head)
    if head is None:
        raise AuditError(
            f"there is no trail of {trail.source} in collection {trail.config.records} of database "
            f"{trail.config.database}. Nothing was changed. Its pipeline makes it when it starts."
        )
    if head.sealed != (trail.config.seal_key is not None):
        raise AuditError(
            f"the chain of the trail of {trail.source} is "
            f"{'made with a seal_key' if head.sealed else 'not sealed'}, and the configuration has "
            f"{'none' if head.sealed else 'one'}. Nothing was changed. Use the pipeline's own key."
        )
    if not key_fits(trail, patience.call, last=head.batch, ends=head.hash):
        raise AuditError(
            f"trail of {trail.source}: {OTHER_KEY}. Nothing was changed. {USE_ITS_KEY}"
        )
    return head


class _Adding:
    def __init__(self, trail: Trail, now_ms: Callable[[], int]) -> None:
        self._trail = trail
        self._now_ms = now_ms
        self._key = trail.key

    def attempt(self, entries: Sequence[Entry]) -> bool:
        """Whether they are in the trail now; may be repeated, whatever came of the last time."""
        trail = self._trail
        if trail.records.find_one({"_id": entries[0].id}, {"_id": 1}) is not None:
            return True
        found = trail.heads.find_one({"_id": trail.source})
        head = None if found is None else head_of(found)
        if head is None or head.staged is not None:
            return False
        batch = batch_of(
            head, entries, progress=head.progress, key=self._key, now_ms=self._now_ms()
        )
        moved: Document = {
            "at": Int64(batch.after.at),
            "batch": Int64(batch.after.batch),
            "hash": Binary(batch.after.hash),
            "writtenAt": DatetimeMS(batch.after.written_ms),
            "updatedAt": DatetimeMS(self._now_ms()),
        }
        with trail.client.start_session() as session:
            session.start_transaction(
                read_concern=ReadConcern("snapshot"), write_concern=WriteConcern("majority", j=True)
            )
            replaced = trail.heads.update_one(unmoved(head), {"$set": moved}, session=session)
            if replaced.matched_count == 0:
                session.abort_transaction()
                return False
            trail.raw_records.insert_many(batch.records, session=session)
            trail.batches.insert_one(batch.document, session=session)
            session.commit_transaction()
        return True
