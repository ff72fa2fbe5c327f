"""Retention: take old rows of a table out of MongoDB, once an archive has them.

First the retirement is added to the chain, with every place that it takes; from then on a proof
tells a record that is missing there from one that was stolen, and the records are looked for in the
archives. Then they go, with their spilled values and staged copies. Their batches stay, with their
leaves: some 100 bytes for each record prove that it was there, and what an archive says of it.

Rows are retired (`i`, `u`, `d`), by when they came into the trail; schema changes, gaps and what
was done to the trail are few, and stay. The ids of what went are kept beside the trail, in
`_retired`, so that a log which is read again adds none of it twice.
"""

import time
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final

from bson.datetime_ms import DatetimeMS
from bson.int64 import Int64
from bson.raw_bson import RawBSONDocument
from msgspec import Struct, field
from pymongo import ReplaceOne
from pymongo.collection import Collection

from penstock.audit.archives import Archives
from penstock.audit.archiving import last_before
from penstock.audit.chain import HASH_BYTES, SALT_BYTES
from penstock.audit.checks import cut_of, leaf_seen, pieces_fit, seen, spilled_of
from penstock.audit.deeds import Deeds
from penstock.audit.erasing import batches_of, drop_pieces, drop_staged, say_done
from penstock.audit.fold import Name
from penstock.audit.names import Table, names_of
from penstock.audit.outages import Patience
from penstock.audit.own import (
    PLACES_MAX,
    Deed,
    Told,
    add_own,
    deed_of,
    id_digest,
    records_of,
    require_head,
    settled,
)
from penstock.audit.proving import Peek
from penstock.audit.reading import Reader
from penstock.audit.trail import Document, Head, Trail
from penstock.errors import AuditError

_TOGETHER: Final = 500
ROWS: Final = ("i", "u", "d")


class Retired(Struct, kw_only=True, rename="camel"):
    """What a retirement did, or would do."""

    records: int = 0
    """Rows that were due and still there."""
    unarchived: int = 0
    """Of them, those that no archive has."""
    taken: int = 0
    resumed: int = 0
    """Retirements that were found unfinished, and finished."""
    last: int = 0
    """Up to this place rows were due."""
    names: list[str] = field(default_factory=list[str])
    """The other names that the table had, under which its rows were due too."""


class Retirer:
    """Retires rows of one trail; may run beside the writer."""

    def __init__(
        self, trail: Trail, patience: Patience, archives: Archives, *, take_over: bool = False
    ) -> None:
        self._trail = trail
        self._patience = patience
        self._reader = Reader(trail, patience)
        self._archives = archives
        self._take_over = take_over

    def resume(self, *, everything: bool = False) -> int:
        """Finish retirements that broke off; with `everything` carry out all of them again."""
        head = settled(self._trail, self._patience, take_over=self._take_over)
        deeds = Deeds(self._reader)
        deeds.load(last=head.at, batch_last=head.batch)
        wanted = [one for one in deeds.all if one.act == "retire" and (everything or not one.done)]
        for deed in wanted:
            self._carry_out(deed, head.batch)
        return len(wanted)

    def retire(
        self,
        table: Table | None,
        *,
        before_ms: int,
        reason: str,
        by: str,
        without_archive: bool = False,
        dry_run: bool = False,
    ) -> Retired:
        """Retire the rows of a table, under each name that it had, or of all, that came into the
        trail before a moment.

        Nothing goes that no archive has, proved, unless `without_archive` says so: then AuditError.
        """
        done = Retired(resumed=0 if dry_run else self.resume())
        head = require_head(self._trail, self._patience)
        names = None if table is None else names_of(self._reader, table, last=head.at)
        done.names = [] if names is None else names.others_shown()
        wanted: Document = {} if names is None else names.wanted()
        number = self._last_batch(wanted, head, before_ms)
        batch: Any = self._reader.batch(number) if number else None
        done.last = 0 if batch is None else int(batch["last"])
        if not without_archive:
            # All are looked at before the first one goes.
            due = self._due(wanted, done.last, before_ms)
            done.unarchived = sum(1 for _ in self._unarchived(due, done.last, number))
            if done.unarchived and not dry_run:
                raise AuditError(
                    f"trail of {self._trail.source}: {done.unarchived} of the rows that are due "
                    f"are in none of the archives that were named, or not as they were written. "
                    f"Nothing was removed. Run `penstock audit archive` first, or say "
                    f"--without-archive to have them gone for good."
                )
        everything: dict[Name, Document] = {("", ""): {}}
        # Each name has records of its own: whoever reads the trail under it is told what is gone.
        for (db, tbl), of_name in (names.parts() if names else everything).items():
            told = Told(
                act="retire", db=db, tbl=tbl, reason=reason, by=by, archived=not without_archive
            )
            self._retire(told, of_name, done, before_ms=before_ms, number=number, dry_run=dry_run)
        return done

    def _retire(
        self,
        told: Told,
        wanted: Document,
        done: Retired,
        *,
        before_ms: int,
        number: int,
        dry_run: bool,
    ) -> None:
        places = self._due(wanted, done.last, before_ms)
        while group := list(islice(places, PLACES_MAX["retire"])):
            done.records += len(group)
            if dry_run:
                continue
            records = records_of(
                told,
                group,
                list(self._digests(group, number)),
                source=self._trail.source,
                tz=self._trail.config.tz,
                now_ms=time.time_ns() // 1_000_000,
            )
            for at in add_own(self._trail, self._patience, records, take_over=self._take_over):
                record = self._reader.record_at(at)
                assert record is not None
                done.taken += self._carry_out(deed_of(record), self._head().batch)

    def _head(self) -> Head:
        return require_head(self._trail, self._patience)

    # --- what is due ---------------------------------------------------------------------------

    def _last_batch(self, wanted: Document, head: Head, before_ms: int) -> int:
        """The last batch of which rows are due; 0 for none."""
        oldest = next(self._due(wanted, head.at, before_ms), None)
        if oldest is None:
            return 0
        begin: Any = self._reader.batch_of_place(oldest, last=head.batch)
        first = 1 if begin is None else int(begin["_id"])
        return last_before(self._reader, head, before_ms, first=first)

    def _due(self, wanted: Document, last: int, before_ms: int) -> Iterator[int]:
        """The places of rows up to one, ascending.

        None that was committed since: whatever a clock said when it was written, it came later.
        """
        due: Document = {"op": {"$in": list(ROWS)}, "ts": {"$lt": DatetimeMS(before_ms)}}
        at = 0
        while True:
            window = wanted | due | {"at": {"$gt": Int64(at), "$lte": Int64(last)}}
            found = self._reader.call(partial(self._some, window))
            if not found:
                return
            for one in found:
                at = int(one["at"])
                yield at

    def _some(self, wanted: Document) -> list[Document]:
        found = self._trail.records.find(wanted, {"at": 1}).sort("at", 1)
        return list(found.limit(10 * _TOGETHER))

    def _unarchived(self, due: Iterator[int], last: int, number: int) -> Iterator[int]:
        """Of the places that are due, those that no archive proves."""
        proved = Peek(self._archived(last, number))
        for place in due:
            while proved.head is not None and proved.head < place:
                proved.next()
            if proved.head != place:
                yield place

    def _archived(self, last: int, number: int) -> Iterator[int]:
        """The places up to one of which an archive has the record as its leaf says."""
        ends, leaves = (0, -1), list[bytes]()
        for row in self._archives.rows(1, last):
            if not ends[0] <= row.at <= ends[1]:
                batch: Any = self._reader.batch_of_place(row.at, last=number)
                if batch is None:
                    continue
                ends = (int(batch["first"]), int(batch["last"]))
                leaves = cut_of(batch, "leaves", HASH_BYTES)
            offset = row.at - ends[0]
            spilled = None if "erased" in row.record else spilled_of(row.record)
            whole = spilled is None or pieces_fit(spilled, iter((row.spilled or b"",)))
            kept = leaves[offset] if offset < len(leaves) else None
            if whole and kept is not None and leaf_seen(seen(row.record), row.salt) == kept:
                yield row.at

    def _digests(self, places: Sequence[int], last: int) -> Iterator[bytes]:
        """What proves the id of each record, all of which are as they were written.

        Raises AuditError: an id that was altered would have another change left out.
        """
        for first in range(0, len(places), _TOGETHER):
            chunk = places[first : first + _TOGETHER]
            wanted = {"at": {"$in": [Int64(place) for place in chunk]}}
            found: list[RawBSONDocument] = self._reader.call(
                partial(_all, self._trail.raw_records, wanted)
            )
            records = {int(record["at"]): record for record in found}
            ends, leaves, salts = (0, -1), list[bytes](), list[bytes]()
            for place in chunk:
                if not ends[0] <= place <= ends[1]:
                    batch: Any = self._reader.batch_of_place(place, last=last)
                    batch = {"first": place, "last": place} if batch is None else batch
                    ends = (int(batch["first"]), int(batch["last"]))
                    leaves = cut_of(batch, "leaves", HASH_BYTES)
                    salts = cut_of(batch, "salts", SALT_BYTES)
                record, offset = records.get(place), place - ends[0]
                kept = leaves[offset] if offset < min(len(leaves), len(salts)) else None
                if record is None or kept is None or leaf_seen(seen(record), salts[offset]) != kept:
                    raise AuditError(
                        f"trail of {self._trail.source}: record {place} is not what was written. "
                        f"Neither it nor what is due behind it was removed. Run `penstock audit "
                        f"verify` and `penstock audit repair` first."
                    )
                yield id_digest(str(record["_id"]))

    # --- taking ----------------------------------------------------------------------------------

    def _carry_out(self, deed: Deed, batch_last: int) -> int:
        taken = 0
        places = (place for place, _ in deed.places())
        while chunk := list(islice(places, _TOGETHER)):
            taken += self._take(chunk, batch_last)
        say_done(self._reader, deed)
        return taken

    def _take(self, places: Sequence[int], batch_last: int) -> int:
        trail, call = self._trail, self._reader.call
        wanted = {"at": {"$in": [Int64(place) for place in places]}}
        shape = {"at": 1, "spilled": 1}
        found: list[Document] = call(lambda: list(trail.records.find(wanted, shape)))
        if not found:
            return 0
        ids = [{"_id": one["_id"], "at": Int64(one["at"])} for one in found]
        kept = [ReplaceOne({"_id": one["_id"]}, one, upsert=True) for one in ids]
        call(lambda: trail.retired.bulk_write(kept, ordered=False))
        for one in found:
            if "spilled" in one:
                drop_pieces(self._reader, str(one["_id"]))
        drop_staged(self._reader, batches_of(self._reader, places, last=batch_last))
        mine = wanted | {"_id": {"$in": [one["_id"] for one in ids]}}
        return int(call(lambda: trail.records.delete_many(mine)).deleted_count)


def _all(collection: Collection[RawBSONDocument], wanted: Document) -> list[RawBSONDocument]:
    return list(collection.find(wanted))
