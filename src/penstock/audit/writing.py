"""Write a trail: one writer, and every step of it is whole or invisible.

The head (`penstock.audit.trail`) moves by compare-and-set, in the transaction that writes a batch,
or behind it where the batch is staged. Record 0023 goes through the crashes. Every step may be
repeated: after an attempt whose outcome is not known, the head tells it.
"""

import time
from collections.abc import Callable, Iterable, Sequence
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
from penstock.audit.bringing import bring_parts, only_duplicates, part_id
from penstock.audit.heads import place_of, refuse_others, unmoved
from penstock.audit.outages import Patience
from penstock.audit.packing import Ended, Entry, Part, Place, Step
from penstock.audit.trail import Document, Head, Staged, Trail, document_of_head
from penstock.errors import TrailBehindError, TrailConflictError, TrailMovedError, TrailTakenError
from penstock.telemetry import AUDIT_KNOWN, AUDIT_PENDING_PARTS, AUDIT_RECORDS

logger = structlog.get_logger(__name__)

SPILL_BYTES: Final = 8 << 20
"""Values that are spilled lie in documents of so many bytes."""
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
        self._retires = False
        """Whether records have gone from the trail by retention."""
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
        refuse_others(head, wanted)
        head = call(partial(self._taken_over, head))
        self._head, self._progress = head, head.progress
        if head.staged is not None:
            self._bring_in(head.staged)
        call(self._drop_pending)
        self._retires = call(self._has_retired)
        return self._head

    def _has_retired(self) -> bool:
        wanted = {"op": "sys", "sys.act": "retire"}
        return self._trail.records.find_one(wanted, {"_id": 1}) is not None

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
                # A trail that leaves some out from here on cannot have them again (refuse_others).
                {"$set": {"epoch": Int64(mine.epoch), "collections": list(self._head.collections)}},
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
        entries = list(entries)
        if any(entry.spilled is not None for entry in entries):
            entries = self._unknown(entries)  # of an erased record nothing comes back
        self._spill(entries)
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
        while not self._trail.heads.update_one(unmoved(self._head), {"$set": moved}).matched_count:
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
        if head is not None and place_of(head) == place_of(self._head):
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
            # First: where an erasure took the batch's places, its records are no duplicates.
            replaced = trail.heads.replace_one(
                unmoved(self._head), self._stored(batch.after, batch.told), session=session
            )
            if replaced.matched_count == 0:
                session.abort_transaction()
                return Outcome.MOVED
            if self._retires:
                # As of the moment in which they would be inserted: each id is there or here.
                names = {"_id": {"$in": [str(record["_id"]) for record in batch.records]}}
                if trail.retired.find_one(names, session=session) is not None:
                    session.abort_transaction()
                    return Outcome.KNOWN
            try:
                trail.raw_records.insert_many(batch.records, session=session)
                trail.batches.insert_one(batch.document, session=session)
            except (BulkWriteError, DuplicateKeyError) as error:
                if not only_duplicates(error):
                    raise
                session.abort_transaction()
                return Outcome.KNOWN
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
        if not self._goes_on(head):
            raise TrailBehindError(trail=self._trail.source)
        self._head = head
        self._retires = self._has_retired()

    def _goes_on(self, head: Head) -> bool:
        """Whether a head stands behind what we wrote: after a restore from a backup it does not."""
        mine = self._head
        if mine.batch == 0 or head.batch < mine.batch:
            return mine.batch == 0
        last = {"_id": Int64(mine.batch), "hash": Binary(mine.hash)}
        return self._trail.batches.find_one(last, {"_id": 1}) is not None

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

        def find_retired() -> set[str]:
            found = self._trail.retired.find({"_id": {"$in": list(wanted)}}, {"_id": 1})
            return {str(one["_id"]) for one in found}

        stored = self._patience.call(find)
        retired = self._patience.call(find_retired) - set(stored)
        for name, record in stored.items():
            known = int(record["at"]) <= self._head.at
            if not known or not says_the_same(RawBSONDocument(wanted[name].record or b""), record):
                raise TrailConflictError(trail=self._trail.source, record=name)
        if self._transactions and not stored and not retired:
            raise TrailConflictError(trail=self._trail.source, record=f"at {self._head.at + 1}")
        there = {*stored, *retired}
        self.known += len(there)
        AUDIT_KNOWN.labels(self._trail.source).inc(len(there))
        return [entry for entry in entries if entry.id not in there]

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
            "_id": part_id(self._trail.source, self._head.epoch, batch.after.batch),
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
        moved = self._trail.heads.update_one(unmoved(self._head), {"$set": {"staged": said}})
        if moved.matched_count == 1:
            return True
        # An attempt before this one may have said it, and its answer have been lost.
        head = self._settled_head()
        return head is not None and head.staged == staged

    def _bring_in(self, staged: Staged) -> None:
        """From parts into the trail, then show them."""
        self._patience.call(lambda: bring_parts(self._trail, staged, now_ms=self._now_ms))
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

    def _show(self, staged: Staged, after: Head) -> None:
        told = self._trail.staging.find_one(
            {"_id": part_id(self._trail.source, staged.epoch, staged.last)},
            {"gtid": 1, "file": 1, "pos": 1, "_id": 0},
        )
        moved = self._trail.heads.replace_one(
            {
                "_id": after.source,
                "staged.hash": Binary(staged.hash),
                "epoch": Int64(after.epoch),
            },
            self._stored(after, told or {}),
        )
        if moved.matched_count == 0:
            head = self._trail.head()
            if head is None or place_of(head) != place_of(after):
                raise self._overtaken()
