"""Write a trail: one writer, and every step of it is whole or invisible.

The head (`penstock.audit.trail`) moves by compare-and-set over several batches at once: in the
transaction that writes them, or behind them where they are staged, by several writers. Record 0023
goes through the crashes. Every step may be repeated: after an attempt whose outcome is not known,
the head tells it.
"""

import os
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
from penstock.audit.bringing import bring_parts, only_duplicates, part_id, part_of, put_parts
from penstock.audit.heads import place_of, refuse_others, unmoved
from penstock.audit.outages import Patience
from penstock.audit.packing import Entry, Parts, Step, Wholes, strides
from penstock.audit.records import ID_KEY_BYTES
from penstock.audit.sealing import OTHER_KEY, USE_ITS_KEY, Call, key_fits
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
        self._key = trail.key
        self._head = Head(
            source=trail.source,
            pipeline=pipeline,
            collections=tuple(sorted(collections)),
            sealed=self._key is not None,
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
        self._refuse_other_key(head, call)
        head = call(partial(self._taken_over, head))
        self._head, self._progress = head, head.progress
        if head.staged is not None:
            self._bring_in(head.staged)
        call(self._drop_pending)
        self._retires = call(self._has_retired)
        return self._head

    def look(self) -> Head | None:
        """The head as `open` would give it; None for a new trail. Raises as it does.

        Writes nothing, and asks once: TrailUnavailableError where MongoDB does not answer.
        """
        head = self._patience.once(self._found)
        if head is None:
            return None
        refuse_others(head, self._head)
        self._refuse_other_key(head, self._patience.once)
        return head if head.staged is None else structs.replace(head, progress=head.staged.progress)

    def _refuse_other_key(self, head: Head, call: Call) -> None:
        """A chain of two keys would be proved by neither."""
        if not key_fits(self._trail, call, last=head.batch, ends=head.hash):
            raise TrailTakenError(trail=head.source, why=OTHER_KEY, remedy=USE_ITS_KEY)

    def _has_retired(self) -> bool:
        wanted = {"op": "sys", "sys.act": "retire"}
        return self._trail.records.find_one(wanted, {"_id": 1}) is not None

    def _found(self) -> Head | None:
        """The head as it is stored; None where a trail may be begun. Raises TrailTakenError."""
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
        return None

    def _opened(self) -> Head:
        trail = self._trail
        head = self._found()
        if head is not None:
            return head
        begun = structs.replace(self._head, id_key=os.urandom(ID_KEY_BYTES))
        try:
            trail.heads.insert_one(self._stored(begun, {}))
        except DuplicateKeyError:
            found = trail.head()
            assert found is not None
            return found
        return begun

    def _taken_over(self, head: Head) -> Head:
        """As the newest writer: what an older one still tries fails from here on."""
        while True:
            mine = structs.replace(head, epoch=head.epoch + 1)
            said: Document = {"epoch": Int64(mine.epoch), "recalled": Int64(mine.recalled)}
            # A trail that leaves some out from here on cannot have them again (refuse_others).
            said["collections"] = list(self._head.collections)
            older = {"_id": head.source, "epoch": Int64(head.epoch)}
            moved = self._trail.heads.update_one(older, {"$set": said})
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
        for counter in (AUDIT_RECORDS, AUDIT_KNOWN):
            counter.labels(self._trail.source)

    # --- what the packer says -----------------------------------------------------------------

    def write(self, steps: Iterable[Step], *, marker: Callable[[int], str]) -> None:
        """Do what the steps say, in order; `marker` gives the marker of an entry of the log.

        Batches become visible together, up to `transaction_events` and `batch_bytes`, or one.
        Raises AuditError, StoppedError, and what `steps` raises; what was written before stands.
        """
        config = self._trail.config
        for stride in strides(
            steps, events_max=config.transaction_events, bytes_max=config.batch_bytes
        ):
            if isinstance(stride, Wholes):
                groups = [step.entries for step in stride.steps]
                self._append(groups, marker(stride.steps[-1].until))
            elif isinstance(stride, Parts):
                self._stage([step.entries for step in stride.steps])
            else:
                self._end_parts(marker(stride.until))

    def append(self, entries: Sequence[Entry], *, progress: str) -> None:
        """Write entries that have records, together; `progress` is the log's marker behind them."""
        self._append([entries], progress)

    def _append(self, groups: Sequence[Sequence[Entry]], progress: str) -> None:
        """Write a batch of each group, all together; an empty one is none."""
        if not self._transactions:
            self._stage(groups)
            self._end_parts(progress)
            return
        if any(entry.spilled is not None for group in groups for entry in group):
            groups = self._without(groups, self._known(groups))  # nothing erased comes back
        groups = [group for group in groups if group]
        while groups:
            self._spill(groups)
            batches = self._chained(self._head, groups, progress)
            outcome = self._patience.call(partial(self._attempt, batches))
            if outcome is Outcome.DONE:
                self._count(sum(map(len, groups)))
                break
            if outcome is Outcome.KNOWN:
                known = self._known(groups)
                if not known:
                    at = f"at {self._head.at + 1}"
                    raise TrailConflictError(trail=self._trail.source, record=at)
                groups = self._without(groups, known)
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

    def _chained(
        self, before: Head, groups: Iterable[Sequence[Entry]], progress: str
    ) -> list[Batch]:
        """A batch of each group, one behind the other."""
        batches: list[Batch] = []
        now_ms = self._now_ms()
        for entries in groups:
            batch = batch_of(before, entries, progress=progress, key=self._key, now_ms=now_ms)
            batches.append(batch)
            before = batch.after
        return batches

    def _attempt(self, batches: Sequence[Batch]) -> Outcome:
        """Write batches with their head, or find that they are written."""
        after = batches[-1].after
        if self._unsure:
            outcome = self._look(after)
            self._unsure = False
            if outcome is not None:
                return outcome
        self._unsure = True
        outcome = self._transaction(batches)
        self._unsure = False
        if outcome is Outcome.DONE:
            self._stand(after)
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

    def _transaction(self, batches: Sequence[Batch]) -> Outcome:
        trail, last = self._trail, batches[-1]
        records = [record for batch in batches for record in batch.records]
        with trail.client.start_session() as session:
            session.start_transaction(
                read_concern=ReadConcern("snapshot"), write_concern=WriteConcern("majority", j=True)
            )
            # First: where an erasure took the batches' places, its records are no duplicates.
            replaced = trail.heads.replace_one(
                unmoved(self._head), self._stored(last.after, last.told), session=session
            )
            if replaced.matched_count == 0:
                session.abort_transaction()
                return Outcome.MOVED
            if self._retires:
                # As of the moment in which they would be inserted: each id is there or here.
                names = {"_id": {"$in": [str(record["_id"]) for record in records]}}
                if trail.retired.find_one(names, session=session) is not None:
                    session.abort_transaction()
                    return Outcome.KNOWN
            try:
                trail.raw_records.insert_many(records, session=session)
                trail.batches.insert_many([one.document for one in batches], session=session)
            except BulkWriteError as error:
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

    def _known(self, groups: Iterable[Sequence[Entry]]) -> set[str]:
        """The ids of those that are in the trail, or were until they were retired (A5).

        Raises TrailConflictError for what is, and says something else.
        """
        wanted = {entry.id: entry for entries in groups for entry in entries}

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
        there = {*stored, *retired}
        self.known += len(there)
        AUDIT_KNOWN.labels(self._trail.source).inc(len(there))
        return there

    @staticmethod
    def _without(groups: Iterable[Sequence[Entry]], known: set[str]) -> list[list[Entry]]:
        left = [[entry for entry in group if entry.id not in known] for group in groups]
        return [group for group in left if group]

    def _spill(self, groups: Iterable[Sequence[Entry]]) -> None:
        """Values that a record has no room for: where they lie is in the record (A8)."""
        for entry in (entry for group in groups for entry in group):
            data = entry.spilled
            if data is None:
                continue
            for number, start in enumerate(range(0, len(data), SPILL_BYTES)):
                piece = {
                    "_id": f"{entry.id}:{number}",
                    "data": data[start : start + SPILL_BYTES],
                    "epoch": Int64(self._head.epoch),
                    "recalled": Int64(self._head.recalled),
                }
                put = partial(self._trail.spilled.replace_one, upsert=True)
                self._patience.call(partial(put, {"_id": piece["_id"]}, piece))

    # --- parts -----------------------------------------------------------------------------------

    def _stage(self, groups: Sequence[Sequence[Entry]]) -> None:
        """Write a part of each group that nobody sees. Writing it again changes nothing (A3)."""
        groups = [group for group in groups if group]
        if groups:
            groups = self._without(groups, self._known(groups))
        if not groups:
            return
        self._spill(groups)
        batches = self._chained(self._parts or self._head, groups, "")
        parts = [part_of(batch, now_ms=self._now_ms()) for batch in batches]
        self._patience.call(lambda: put_parts(self._trail, parts))
        self._parts = batches[-1].after
        AUDIT_PENDING_PARTS.labels(self._trail.source).inc(len(parts))

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
            written_ms=parts.written_ms,
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
        bring = partial(bring_parts, self._trail, staged, transactions=self._transactions)
        self._patience.call(bring)
        after = structs.replace(
            self._head,
            at=staged.at,
            batch=staged.last,
            hash=staged.hash,
            progress=staged.progress,
            written_ms=max(self._head.written_ms, staged.written_ms),
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
