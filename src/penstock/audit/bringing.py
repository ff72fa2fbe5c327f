"""Bring the parts of a commit that is committed into its trail. Repeating it changes nothing."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from bson.datetime_ms import DatetimeMS
from bson.int64 import Int64
from bson.raw_bson import RawBSONDocument
from pymongo.errors import BulkWriteError, DuplicateKeyError

from penstock.audit.trail import RAW, Document, Staged, Trail
from penstock.errors import AuditError, TrailConflictError

WRITERS: Final = 4
"""Parts that are brought into the trail at the same time."""
_DUPLICATE: Final = 11_000


def part_id(source: str, epoch: int, number: int) -> str:
    """Of one writer, so that none writes over another's."""
    return f"{source}:{epoch}:{number}"


def bring_parts(trail: Trail, staged: Staged, *, now_ms: Callable[[], int]) -> None:
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
    with ThreadPoolExecutor(WRITERS, thread_name_prefix="penstock-audit") as pool:
        names = [part_id(trail.source, staged.epoch, number) for number in pending]
        for done in [pool.submit(bring_part, trail, name, now_ms=now_ms) for name in names]:
            done.result()


def bring_part(trail: Trail, name: str, *, now_ms: Callable[[], int]) -> None:
    """Put the records and the batch of one part where they belong."""
    part = trail.staging.with_options(codec_options=RAW).find_one({"_id": name})
    assert part is not None
    records: list[RawBSONDocument] = list(part["events"])
    try:
        trail.raw_records.insert_many(records, ordered=False)
    except BulkWriteError as error:
        if not only_duplicates(error):
            raise
        _require_there(trail, records)
    batch = part["batch"]
    try:
        trail.batches.with_options(codec_options=RAW).insert_one(batch)
    except DuplicateKeyError:
        # Brought in before, and never written over: an erasure may have taken salts of it since.
        known = trail.batches.find_one({"_id": batch["_id"], "hash": batch["hash"]}, {"_id": 1})
        if known is None:
            raise TrailConflictError(trail=trail.source, record=f"batch {batch['_id']}") from None
    trail.staging.update_one(
        {"_id": name}, {"$set": {"status": "committed", "committedAt": DatetimeMS(now_ms())}}
    )


def _require_there(trail: Trail, records: Sequence[RawBSONDocument]) -> None:
    """Some were brought in before; all must be there now, each in its place."""
    places = {str(record["_id"]): int(record["at"]) for record in records}
    found = trail.records.find({"_id": {"$in": list(places)}}, {"at": 1})
    there = {str(record["_id"]): int(record["at"]) for record in found}
    for name, at in places.items():
        if there.get(name) != at:
            raise TrailConflictError(trail=trail.source, record=name)


def only_duplicates(error: BulkWriteError | DuplicateKeyError) -> bool:
    """Whether all that a write failed with is that something is there already."""
    if isinstance(error, DuplicateKeyError):
        return True
    details: Document = dict(error.details or {})
    wrong: list[Document] = details.get("writeErrors") or []
    return (
        bool(wrong)
        and not details.get("writeConcernErrors")
        and all(one.get("code") == _DUPLICATE for one in wrong)
    )
