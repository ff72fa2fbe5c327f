"""Stage the parts of a commit, and bring those of one that is committed into its trail.

Several at a time, in any order: each is written whole, and writing it again changes nothing.
"""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from bson.datetime_ms import DatetimeMS
from bson.int64 import Int64
from bson.raw_bson import RawBSONDocument
from pymongo.client_session import ClientSession
from pymongo.errors import BulkWriteError
from pymongo.read_concern import ReadConcern
from pymongo.write_concern import WriteConcern

from penstock.audit.batches import Batch
from penstock.audit.trail import RAW, Document, Staged, Trail
from penstock.errors import AuditError, TrailConflictError

_DUPLICATE: Final = 11_000


def part_id(source: str, epoch: int, number: int) -> str:
    """Of one writer, so that none writes over another's."""
    return f"{source}:{epoch}:{number}"


def part_of(batch: Batch, *, now_ms: int) -> Document:
    """A batch as a part, which nobody sees."""
    head = batch.after
    return {
        "_id": part_id(head.source, head.epoch, head.batch),
        "source": head.source,
        "number": Int64(head.batch),
        "epoch": Int64(head.epoch),
        "recalled": Int64(head.recalled),
        "batch": batch.document,
        "events": batch.records,
        **batch.told,
        "createdAt": DatetimeMS(now_ms),
        "status": "pending",
    }


def put_parts(trail: Trail, parts: Sequence[Document]) -> None:
    """Stage parts, `writers` at a time. Raises PyMongoError; what was staged stays so."""

    def put(part: Document) -> None:
        still = {"_id": part["_id"], "status": "pending"}
        trail.staging.replace_one(still, part, upsert=True)

    _at_once(trail, put, parts)


def _at_once(trail: Trail, act: Callable[[Any], None], items: Sequence[Any]) -> None:
    if len(items) == 1:
        act(items[0])
        return
    pool = ThreadPoolExecutor(trail.config.writers, thread_name_prefix="penstock-audit")
    try:
        for done in [pool.submit(act, item) for item in items]:
            done.result()
    finally:
        # Behind one that failed, those not begun are not: each would wait as long for a server.
        pool.shutdown(cancel_futures=True)


def bring_parts(trail: Trail, staged: Staged, *, transactions: bool) -> None:
    """Put the records and batches of every part where they belong, in any order.

    Raises AuditError if a part is gone, TrailConflictError if another record is in its place, and
    PyMongoError; what was brought in stands.
    """
    wanted = {
        "source": trail.source,
        "epoch": Int64(staged.epoch),
        "number": {"$gte": Int64(staged.first), "$lte": Int64(staged.last)},
    }
    parts = trail.staging.find(wanted, {"number": 1, "status": 1})
    there = {int(part["number"]): part["status"] for part in parts}
    # One that was brought in long ago has expired, when it took as long to be called again.
    first, last = Int64(staged.first), Int64(staged.last)
    known = trail.batches.find({"_id": {"$gte": first, "$lte": last}}, {"_id": 1})
    numbers = {*there, *(int(batch["_id"]) for batch in known)}
    gone = [n for n in range(staged.first, staged.last + 1) if n not in numbers]
    if gone:
        raise AuditError(
            f"trail of {trail.source}: part {gone[0]} of a commit that is committed is not in "
            f"{trail.staging.name} any more; somebody removed it. Nothing was lost from the log. "
            f"Put the part back from a backup, or begin a new trail."
        )
    pending = [number for number, status in there.items() if status == "pending"]
    names = [part_id(trail.source, staged.epoch, number) for number in pending]

    def bring(name: str) -> None:
        bring_part(trail, name, transactions=transactions)

    _at_once(trail, bring, names)


def bring_part(trail: Trail, name: str, *, transactions: bool) -> None:
    """Put the records and the batch of one part where they belong, unless somebody has.

    In one transaction with the part's own mark: a driver that slept meanwhile finds the mark, and
    puts nothing back that was retired since. Without transactions it looks behind what it wrote.
    """
    raw = trail.staging.with_options(codec_options=RAW)
    part: Any = raw.find_one({"_id": name, "status": "pending"})
    if part is None:
        return
    # By MongoDB's own clock, which is the one that lets it expire.
    done: Document = {"$set": {"status": "committed"}, "$currentDate": {"committedAt": True}}
    records: list[RawBSONDocument] = list(part["events"])
    batches: list[RawBSONDocument] = [part["batch"]]
    if not transactions:
        _insert_alone(trail, records, batches)
        _take_retired(trail, records)
        trail.staging.update_one({"_id": name}, done)
        return
    while not _insert_together(trail, name, records, batches, done):
        # Begun before this MongoDB had transactions.
        before = len(records) + len(batches)
        records, batches = _absent(trail, records), _absent_batches(trail, batches)
        if len(records) + len(batches) == before:
            raise TrailConflictError(trail=trail.source, record=f"at {part['batch']['first']}")


def _insert_together(
    trail: Trail,
    name: str,
    records: Sequence[RawBSONDocument],
    batches: Sequence[RawBSONDocument],
    done: Document,
) -> bool:
    """Whether it is in now, by whomever; False: some of it was there before."""
    with trail.client.start_session() as session:
        session.start_transaction(
            read_concern=ReadConcern("snapshot"), write_concern=WriteConcern("majority", j=True)
        )
        marked = trail.staging.update_one({"_id": name, "status": "pending"}, done, session=session)
        if marked.matched_count == 0:
            session.abort_transaction()
            return True
        try:
            _insert(trail, records, batches, session)
        except BulkWriteError as error:
            if not only_duplicates(error):
                raise
            session.abort_transaction()
            return False
        session.commit_transaction()
    return True


def _insert(
    trail: Trail,
    records: Sequence[RawBSONDocument],
    batches: Sequence[RawBSONDocument],
    session: ClientSession,
) -> None:
    if records:
        trail.raw_records.insert_many(records, session=session)
    if batches:
        kept = trail.batches.with_options(codec_options=RAW)
        kept.insert_many(batches, session=session)


def _insert_alone(
    trail: Trail, records: Sequence[RawBSONDocument], batches: Sequence[RawBSONDocument]
) -> None:
    try:
        trail.raw_records.insert_many(records, ordered=False)
    except BulkWriteError as error:
        if not only_duplicates(error):
            raise
        if _absent(trail, records):
            at = f"at {records[0]['at']}"
            raise TrailConflictError(trail=trail.source, record=at) from None
    try:
        trail.batches.with_options(codec_options=RAW).insert_many(batches)
    except BulkWriteError as error:
        if not only_duplicates(error):
            raise
        # Never written over: an erasure may have taken salts of it since.
        _absent_batches(trail, batches)


def _take_retired(trail: Trail, records: Sequence[RawBSONDocument]) -> None:
    """What was retired while we slept, and is there again by us, goes again."""
    places = {str(record["_id"]): record["at"] for record in records}
    found = list(trail.retired.find({"_id": {"$in": list(places)}}, {"_id": 1}))
    for one in found:
        trail.records.delete_one({"_id": one["_id"], "at": places[one["_id"]]})


def _absent(trail: Trail, records: Sequence[RawBSONDocument]) -> list[RawBSONDocument]:
    """Those that are not there. Raises TrailConflictError for one that is, in another place."""
    names = [str(record["_id"]) for record in records]
    found = trail.records.find({"_id": {"$in": names}}, {"at": 1})
    there = {str(one["_id"]): int(one["at"]) for one in found}
    for record in records:
        name = str(record["_id"])
        if there.get(name, record["at"]) != record["at"]:
            raise TrailConflictError(trail=trail.source, record=name)
    return [record for record in records if str(record["_id"]) not in there]


def _absent_batches(trail: Trail, batches: Iterable[RawBSONDocument]) -> list[RawBSONDocument]:
    """Those that are not there. Raises TrailConflictError for another one of the same number."""
    absent: list[RawBSONDocument] = []
    for batch in batches:
        known = trail.batches.find_one({"_id": batch["_id"]}, {"hash": 1})
        if known is None:
            absent.append(batch)
        elif known["hash"] != batch["hash"]:
            raise TrailConflictError(trail=trail.source, record=f"batch {batch['_id']}")
    return absent


def only_duplicates(error: BulkWriteError) -> bool:
    """Whether all that a write failed with is that something is there already."""
    details: Document = dict(error.details or {})
    wrong: list[Document] = details.get("writeErrors") or []
    return (
        bool(wrong)
        and not details.get("writeConcernErrors")
        and all(one.get("code") == _DUPLICATE for one in wrong)
    )
