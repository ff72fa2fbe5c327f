"""Write a trail: one writer, and every step of it is whole or invisible.

The head (`penstock.audit.trail`) moves by compare-and-set, in the transaction that writes a batch,
or behind it where the batch is staged. Record 0023 goes through the crashes. Every step may be
repeated: after an attempt whose outcome is not known, the head tells it.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import Enum, auto
from functools import partial
from typing import Final

import structlog
from bson.binary import Binary
from bson.datetime_ms import DatetimeMS
from bson.int64 import Int64
from bson.raw_bson import RawBSONDocument
from msgspec import structs
from pymongo.errors import BulkWriteError, DuplicateKeyError
from pymongo.read_concern import ReadConcern
from pymongo.write_concern import WriteConcern

from penstock.audit.batches import Batch, batch_of, says_the_same
from penstock.audit.outages import Patience
from penstock.audit.packing import Ended, Entry, Part, Place, Step
from penstock.audit.trail import RAW, Document, Head, Staged, Trail, document_of_head
from penstock.errors import AuditError, TrailConflictError, TrailMovedError, TrailTakenError
from penstock.telemetry import AUDIT_KNOWN, AUDIT_PENDING_PARTS, AUDIT_RECORDS

logger = structlog.get_logger(__name__)

SPILL_BYTES: Final = 8 << 20
"""Values that are spilled lie in documents of so many bytes."""
WRITERS: Final = 4
"""Parts that are brought into the trail at the same time."""
_DUPLICATE: Final = 11_000
_QUIET_SECONDS: Final = 10.0
"""How often the head moves on while nothing is written: it needs to only before retention."""


class Outcome(Enum):
    """What became of an attempt to write a batch."""

    DONE = auto()
    KNOWN = auto()
    """Some of its records are in the trail already."""
    MOVED = auto()
    """The head has moved on since; the batch must be made anew."""


class Writer:
    """The one writer of a trail. Blocks, and belongs to one thread."""

    def __init__(
        self,
        trail: Trail,
        pipeline: str,
        *,
        patience: Patience,
        collections: tuple[str, ...] = (),
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._trail = trail
        self._patience = patience
        self._now_ms = now_ms
        key = trail.config.seal_key
        self._key = None if key is None else key.get_secret_value().encode()
        self._head = Head(
            source=trail.source,
            pipeline=pipeline,
            collections=tuple(sorted(collections)),
            sealed=key is not None,
        )
        self._progress = ""
        """Up to where all is written; the stored head's may be behind."""
        self._transactions = False
        self._unsure = False
        """Whether the outcome of the last attempt is not known."""
        self._parts: Head | None = None
        """Behind the parts of a commit that has not ended."""
        self._saved_at = time.monotonic()
        self.written = 0
        """Records that this writer added."""
        self.known = 0
        """Records that were in the trail already."""

    @property
    def head(self) -> Head:
        """As it was last stored."""
        return self._head

    # --- the start -------------------------------------------------------------------------------

    def open(self) -> Head:
        """Make what is not there; finish what a crash left before anything else is written (A2).

        Raises TrailTakenError for the trail of another pipeline, or of another key.
        """
        trail, call = self._trail, self._patience.call
        self._transactions = call(trail.has_transactions)
        if not self._transactions:
            logger.warning(
                "this MongoDB has no transactions: every batch is staged; use a replica set",
                trail=trail.source,
            )
        call(trail.create_indexes)
        wanted = self._head
        head = call(self._opened)
        _refuse_others(head, wanted)
        head = call(partial(self._taken_over, head))
        self._head, self._progress = head, head.progress
        if head.staged is not None:
            self._bring_in(head.staged)
        call(self._drop_pending)
        return self._head

    def _opened(self) -> Head:
        trail = self._trail
        head = trail.head()
        if head is not None:
            return head
        other = trail.heads.find_one(
            {"records": trail.config.records, "_id": {"$ne": trail.source}}, {"_id": 1}
        )
        if other is not None:
            raise TrailTakenError(
                trail=trail.source,
                why=f"the collection holds the trail of source {other['_id']}",
                remedy="Give this pipeline another `records`, or another database.",
            )
        try:
            trail.heads.insert_one(self._stored(self._head, {}))
        except DuplicateKeyError:
            found = trail.head()
            assert found is not None
            return found
        return self._head

    def _taken_over(self, head: Head) -> Head:
        """As the newest writer: what an older one still tries fails from here on."""
        while True:
            mine = structs.replace(head, epoch=head.epoch + 1)
            moved = self._trail.heads.update_one(
                {"_id": head.source, "epoch": Int64(head.epoch)},
                {"$set": {"epoch": Int64(mine.epoch)}},
            )
            # What the older one did before is there; only now is it known to be all.
            found = self._trail.head()
            assert found is not None
            if moved.matched_count == 1 and found.epoch == mine.epoch:
                return found
            head = found

    def _stored(self, head: Head, told: Document) -> Document:
        document = document_of_head(head, now_ms=self._now_ms(), told=told)
        return document | {"records": self._trail.config.records}

    def _drop_pending(self) -> None:
        """Parts of a commit that never ended, ours or an older writer's; it comes again whole."""
        theirs = {"source": self._trail.source, "epoch": {"$lte": Int64(self._head.epoch)}}
        self._trail.staging.delete_many({**theirs, "status": "pending"})
        AUDIT_PENDING_PARTS.labels(self._trail.source).set(0)

    # --- what the packer says -----------------------------------------------------------------

    def write(self, steps: Iterable[Step], *, marker: Callable[[Place], str]) -> None:
        """Do what the steps say, in order; `marker` gives the marker of a place in the log.

        Raises AuditError, StoppedError; what was written before stands.
        """
        for step in steps:
            if isinstance(step, Part):
                self._stage(step.entries)
            elif isinstance(step, Ended):
                self._end_parts(marker(step.until))
            else:
                self.append(step.entries, progress=marker(step.until))

    def append(self, entries: Sequence[Entry], *, progress: str) -> None:
        """Write entries that have records, together; `progress` is the log's marker behind them."""
        if not self._transactions:
            self._stage(entries)
            self._end_parts(progress)
            return
        self._spill(entries)
        entries = list(entries)
        while entries:
            batch = self._batch(self._head, entries, progress)
            outcome = self._patience.call(partial(self._attempt, batch))
            if outcome is Outcome.DONE:
                self._count(len(entries))
                break
            if outcome is Outcome.KNOWN:
                entries = self._new(entries)
        self._progress = progress

    def _count(self, records: int) -> None:
        self.written += records
        AUDIT_RECORDS.labels(self._trail.source).inc(records)

    def save(self, progress: str) -> None:
        """Everything up to `progress` is in the trail; stored at once, or after a while."""
        self._progress = progress
        if time.monotonic() - self._saved_at >= _QUIET_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Store how far the log was read, if that is not stored."""
        if self._progress != self._head.progress:
            self._patience.call(self._store_progress)

    def _store_progress(self) -> None:
        moved = {"progress": self._progress, "updatedAt": DatetimeMS(self._now_ms())}
        while not self._trail.heads.update_one(_unmoved(self._head), {"$set": moved}).matched_count:
            self._adopt()
        self._head = structs.replace(self._head, progress=self._progress)
        self._saved_at = time.monotonic()

    # --- one transaction -------------------------------------------------------------------------

    def _batch(self, before: Head, entries: Sequence[Entry], progress: str) -> Batch:
        return batch_of(before, entries, progress=progress, key=self._key, now_ms=self._now_ms())

    def _attempt(self, batch: Batch) -> Outcome:
        """Write a batch with its head, or find that it is written."""
        if self._unsure:
            outcome = self._look(batch.after)
            self._unsure = False
            if outcome is not None:
                return outcome
        self._unsure = True
        outcome = self._transaction(batch)
        self._unsure = False
        if outcome is Outcome.DONE:
            self._stand(batch.after)
        elif outcome is Outcome.MOVED:
            self._adopt()
        return outcome

    def _look(self, wanted: Head) -> Outcome | None:
        """What became of an attempt to move the head to `wanted`; None: nothing."""
        head = self._settled_head()
        if head is not None and head.hash == wanted.hash and head.staged is None:
            self._stand(head)
            return Outcome.DONE
        if head is not None and _place(head) == _place(self._head):
            return None
        self._adopt()
        return Outcome.MOVED

    def _settled_head(self) -> Head | None:
        """The head with everything that the primary has taken so far.

        A majority may not have it yet, and a read would not show it. A write that changes nothing
        waits until it has.
        """
        self._trail.heads.update_one(
            {"_id": self._trail.source}, {"$set": {"source": self._trail.source}}
        )
        return self._trail.head()

    def _transaction(self, batch: Batch) -> Outcome:
        trail = self._trail
        with trail.client.start_session() as session:
            session.start_transaction(
                read_concern=ReadConcern("snapshot"), write_concern=WriteConcern("majority", j=True)
            )
            try:
                trail.raw_records.insert_many(batch.records, session=session)
                trail.batches.insert_one(batch.document, session=session)
            except (BulkWriteError, DuplicateKeyError) as error:
                if not _only_duplicates(error):
                    raise
                session.abort_transaction()
                return Outcome.KNOWN
            replaced = trail.heads.replace_one(
                _unmoved(self._head), self._stored(batch.after, batch.told), session=session
            )
            if replaced.matched_count == 0:
                session.abort_transaction()
                return Outcome.MOVED
            session.commit_transaction()
        return Outcome.DONE

    def _stand(self, head: Head) -> None:
        self._head = head
        self._saved_at = time.monotonic()

    def _adopt(self) -> None:
        """Go on behind what an erasure added. Raises TrailTakenError if it was another writer."""
        head = self._trail.head()
        if head is None or head.staged is not None or head.epoch != self._head.epoch:
            raise self._overtaken()
        self._head = head

    def _overtaken(self) -> TrailTakenError:
        return TrailTakenError(
            trail=self._trail.source,
            why="another process has begun to write it since",
            remedy="Run one driver for each pipeline.",
        )

    def _new(self, entries: Sequence[Entry]) -> list[Entry]:
        """Those that are not in the trail (A5).

        Raises TrailConflictError for what is, and says something else.
        """
        wanted = {entry.id: entry for entry in entries}

        def find() -> dict[str, RawBSONDocument]:
            found = self._trail.raw_records.find({"_id": {"$in": list(wanted)}})
            return {str(record["_id"]): record for record in found}

        stored = self._patience.call(find)
        for name, record in stored.items():
            known = int(record["at"]) <= self._head.at
            if not known or not says_the_same(RawBSONDocument(wanted[name].record or b""), record):
                raise TrailConflictError(trail=self._trail.source, record=name)
        if self._transactions and not stored:
            raise TrailConflictError(trail=self._trail.source, record=f"at {self._head.at + 1}")
        self.known += len(stored)
        AUDIT_KNOWN.labels(self._trail.source).inc(len(stored))
        return [entry for entry in entries if entry.id not in stored]

    def _spill(self, entries: Iterable[Entry]) -> None:
        """Values that a record has no room for: where they lie is in the record (A8)."""
        for entry in entries:
            data = entry.spilled
            if data is None:
                continue
            for number, start in enumerate(range(0, len(data), SPILL_BYTES)):
                piece = {"_id": f"{entry.id}:{number}", "data": data[start : start + SPILL_BYTES]}
                put = partial(self._trail.spilled.replace_one, upsert=True)
                self._patience.call(partial(put, {"_id": piece["_id"]}, piece))

    # --- parts -----------------------------------------------------------------------------------

    def _stage(self, entries: Sequence[Entry]) -> None:
        """Write a part that nobody sees. Writing it again changes nothing (A3)."""
        entries = self._unknown(entries)
        if not entries:
            return
        self._spill(entries)
        batch = self._batch(self._parts or self._head, entries, "")
        part = {
            "_id": self._part_id(batch.after.batch, self._head.epoch),
            "source": self._trail.source,
            "number": Int64(batch.after.batch),
            "epoch": Int64(self._head.epoch),
            "batch": batch.document,
            "events": batch.records,
            **batch.told,
            "createdAt": DatetimeMS(self._now_ms()),
            "status": "pending",
        }
        still = {"_id": part["_id"], "status": "pending"}
        self._patience.call(lambda: self._trail.staging.replace_one(still, part, upsert=True))
        self._parts = batch.after
        AUDIT_PENDING_PARTS.labels(self._trail.source).inc()

    def _unknown(self, entries: Sequence[Entry]) -> list[Entry]:
        entries = list(entries)
        if not entries:
            return entries
        transactions, self._transactions = self._transactions, False
        try:
            return self._new(entries)
        finally:
            self._transactions = transactions

    def _part_id(self, number: int, epoch: int) -> str:
        """Of one writer, so that none writes over another's."""
        return f"{self._trail.source}:{epoch}:{number}"

    def _end_parts(self, progress: str) -> None:
        """The commit is whole: from now on its parts are in the trail, whatever happens."""
        parts, self._parts = self._parts, None
        if parts is None:
            self._progress = progress
            return
        staged = Staged(
            first=self._head.batch + 1,
            last=parts.batch,
            at=parts.at,
            hash=parts.hash,
            progress=progress,
            epoch=self._head.epoch,
        )
        if not self._patience.call(lambda: self._say_staged(staged)):
            self._patience.call(self._drop_pending)
            self._patience.call(self._adopt)
            raise TrailMovedError(trail=self._trail.source)
        self._count(parts.at - self._head.at)
        self._bring_in(staged)
        self._progress = progress

    def _say_staged(self, staged: Staged) -> bool:
        said = self._stored(structs.replace(self._head, staged=staged), {})["staged"]
        moved = self._trail.heads.update_one(_unmoved(self._head), {"$set": {"staged": said}})
        if moved.matched_count == 1:
            return True
        # An attempt before this one may have said it, and its answer have been lost.
        head = self._settled_head()
        return head is not None and head.staged == staged

    def _bring_in(self, staged: Staged) -> None:
        """From parts into the trail, then show them."""
        self._patience.call(lambda: self._bring_parts(staged))
        after = structs.replace(
            self._head,
            at=staged.at,
            batch=staged.last,
            hash=staged.hash,
            progress=staged.progress,
            staged=None,
        )
        self._patience.call(lambda: self._show(staged, after))
        AUDIT_PENDING_PARTS.labels(self._trail.source).set(0)
        self._stand(after)
        self._progress = after.progress

    def _bring_parts(self, staged: Staged) -> None:
        wanted = {
            "source": self._trail.source,
            "epoch": Int64(staged.epoch),
            "number": {"$gte": Int64(staged.first), "$lte": Int64(staged.last)},
        }
        parts = self._trail.staging.find(wanted, {"number": 1, "status": 1})
        there = {int(part["number"]): part["status"] for part in parts}
        # One that was brought in long ago has expired, when it took as long to be called again.
        first, last = Int64(staged.first), Int64(staged.last)
        known = self._trail.batches.find({"_id": {"$gte": first, "$lte": last}}, {"_id": 1})
        numbers = {*there, *(int(batch["_id"]) for batch in known)}
        gone = [n for n in range(staged.first, staged.last + 1) if n not in numbers]
        if gone:
            raise AuditError(
                f"trail of {self._trail.source}: part {gone[0]} of a commit that is committed is "
                f"not in {self._trail.staging.name} any more; somebody removed it. Nothing was "
                f"lost from the log. Put the part back from a backup, or begin a new trail."
            )
        pending = [number for number, status in there.items() if status == "pending"]
        with ThreadPoolExecutor(WRITERS, thread_name_prefix="penstock-audit") as pool:
            names = [self._part_id(number, staged.epoch) for number in pending]
            for done in [pool.submit(self._bring_part, name) for name in names]:
                done.result()

    def _bring_part(self, name: str) -> None:
        trail = self._trail
        part = trail.staging.with_options(codec_options=RAW).find_one({"_id": name})
        assert part is not None
        records: list[RawBSONDocument] = list(part["events"])
        try:
            trail.raw_records.insert_many(records, ordered=False)
        except BulkWriteError as error:
            if not _only_duplicates(error):
                raise
            self._require_there(records)
        batch = part["batch"]
        trail.batches.with_options(codec_options=RAW).replace_one(
            {"_id": batch["_id"]}, batch, upsert=True
        )
        trail.staging.update_one(
            {"_id": name},
            {"$set": {"status": "committed", "committedAt": DatetimeMS(self._now_ms())}},
        )

    def _require_there(self, records: Sequence[RawBSONDocument]) -> None:
        """Some were brought in before; all must be there now, each in its place."""
        places = {str(record["_id"]): int(record["at"]) for record in records}
        found = self._trail.records.find({"_id": {"$in": list(places)}}, {"at": 1})
        there = {str(record["_id"]): int(record["at"]) for record in found}
        for name, at in places.items():
            if there.get(name) != at:
                raise TrailConflictError(trail=self._trail.source, record=name)

    def _show(self, staged: Staged, after: Head) -> None:
        told = self._trail.staging.find_one(
            {"_id": self._part_id(staged.last, staged.epoch)},
            {"gtid": 1, "file": 1, "pos": 1, "_id": 0},
        )
        moved = self._trail.heads.replace_one(
            {"_id": after.source, "staged.hash": Binary(staged.hash)},
            self._stored(after, told or {}),
        )
        if moved.matched_count == 0:
            head = self._trail.head()
            if head is None or _place(head) != _place(after):
                raise self._overtaken()


def _refuse_others(head: Head, wanted: Head) -> None:
    if head.pipeline != wanted.pipeline:
        raise TrailTakenError(
            trail=head.source,
            why=f"it is written by pipeline {head.pipeline}, not {wanted.pipeline}",
            remedy="Give this pipeline another database or other collections, or its old name.",
        )
    if head.collections and not set(wanted.collections or ("",)) <= set(head.collections):
        raise TrailTakenError(
            trail=head.source,
            why=f"it keeps the changes of {', '.join(head.collections)}, and the pipeline has more",
            remedy="What others changed before would be missing, or come out of its order: give "
            "them a pipeline and a trail of their own.",
        )
    if head.sealed != wanted.sealed:
        raise TrailTakenError(
            trail=head.source,
            why="its chain is made with a seal_key, and there is none now"
            if head.sealed
            else "its chain was begun without a seal_key, and there is one now",
            remedy="Give the pipeline the key with which the trail was begun, or a new trail.",
        )


def _unmoved(head: Head) -> Document:
    """Finds the stored head if it is still `head`, and nothing is staged."""
    return {
        "_id": head.source,
        "at": Int64(head.at),
        "batch": Int64(head.batch),
        "hash": Binary(head.hash),
        "epoch": Int64(head.epoch),
        "staged": {"$exists": False},
    }


def _place(head: Head) -> tuple[int, int, bytes, int, Staged | None]:
    return head.at, head.batch, head.hash, head.epoch, head.staged


def _only_duplicates(error: BulkWriteError | DuplicateKeyError) -> bool:
    if isinstance(error, DuplicateKeyError):
        return True
    details: Document = dict(error.details or {})
    wrong: list[Document] = details.get("writeErrors") or []
    return (
        bool(wrong)
        and not details.get("writeConcernErrors")
        and all(one.get("code") == _DUPLICATE for one in wrong)
    )
