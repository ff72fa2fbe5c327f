"""Put back what was altered in a trail, from what is proved: never the chain itself.

A record is written again only if its leaf, made anew, is the one that its batch keeps: found
elsewhere in the trail, in an archive, or made from the service's log as the pipeline made it. A
batch is written again only if it gives the hash that the next one, or the head, follows. Of an
erased record the content stays away, wherever it is found. The repair is a record of its own in the
chain, before anything is written.
"""

import time
from collections.abc import Iterable
from functools import partial
from typing import Any, Final

from bson.binary import Binary
from bson.int64 import Int64
from msgspec import Struct, field

from penstock.audit.archives import Archives
from penstock.audit.chain import ERASED_SALT, HASH_BYTES, SALT_BYTES
from penstock.audit.checks import Link, cut_of, leaf_seen, proved, seen
from penstock.audit.deeds import Deeds
from penstock.audit.erasing import drop_pieces
from penstock.audit.findings import Finding
from penstock.audit.outages import Patience
from penstock.audit.own import Told, add_own, records_of, require_head
from penstock.audit.reading import Reader
from penstock.audit.remaking import Log, Remade, Wanted
from penstock.audit.trail import Document, Head, Trail
from penstock.audit.verify import Proof
from penstock.audit.writing import SPILL_BYTES
from penstock.errors import AuditError

FINDINGS_MAX: Final = 10_000
_MENDED: Final = frozenset({"missing", "altered", "misplaced", "spilled", "uncovered"})
_STRAY: Final = frozenset({"inserted", "beyond"})
_LOOSE: Final = frozenset({"record", "piece"})
_PAIRS_MAX: Final = 100_000
"""So often a record is tried at a place."""


class Repaired(Struct, kw_only=True, rename="camel"):
    """What a repair did, or would do."""

    broken: int = 0
    """What a proof found before."""
    records: list[int] = field(default_factory=list[int])
    """Places whose record was put back,"""
    sources: dict[str, int] = field(default_factory=dict[str, int])
    """and from where: trail, archive, log."""
    batches: list[int] = field(default_factory=list[int])
    left: list[str] = field(default_factory=list[str])
    """What could not be repaired, and why."""
    dry_run: bool = True


class Repairer:
    """Repairs one trail."""

    def __init__(
        self,
        trail: Trail,
        patience: Patience,
        archives: Archives,
        log: Log | None,
        *,
        take_over: bool = False,
    ) -> None:
        """`log` makes records anew; None: nothing is taken from there."""
        self._trail = trail
        self._patience = patience
        self._reader = Reader(trail, patience)
        self._archives = archives
        self._log = log
        self._take_over = take_over
        self._key = trail.key

    def repair(self, *, by: str, dry_run: bool) -> Repaired:
        """Repair what a proof names, first batches, then records; at most FINDINGS_MAX of them.

        Raises AuditError where the head itself is broken: nothing could be told from it.
        """
        done = Repaired(dry_run=dry_run)
        head = require_head(self._trail, self._patience)
        found = self._proof()
        done.broken = len(found)
        if any(one.what == "head" for one in found):
            raise AuditError(
                f"the head of the trail of {self._trail.source} is broken, and it is what all else "
                f"is proved by. Nothing was changed. Put it back from a backup, or set what "
                f"`penstock audit verify` says to stand at the end of the batches."
            )
        batches = self._batches(found, head, done)
        if batches and not dry_run:
            self._tell([int(one["first"]) for one in batches], by, f"{len(batches)} batches")
            for batch in batches:
                self._put_batch(batch)
            found = self._proof()
        remade = self._remade(self._wanted(found, head, done), found, done)
        done.records = sorted(remade)
        for one in remade.values():
            done.sources[one.source] = done.sources.get(one.source, 0) + 1
        if remade and not dry_run:
            self._tell(sorted(remade), by, f"{len(remade)} records")
            self._put(remade)
        return done

    def _proof(self) -> list[Finding]:
        proof = Proof(self._trail, self._patience, findings_max=FINDINGS_MAX)
        return [one for one in proof.run().findings if one.problem != "unfinished"]

    def _tell(self, places: list[int], by: str, what: str) -> None:
        told = Told(act="repair", reason=f"{what} put back", by=by)
        records = records_of(
            told,
            sorted(set(places)),
            source=self._trail.source,
            tz=self._trail.config.tz,
            now_ms=time.time_ns() // 1_000_000,
        )
        add_own(self._trail, self._patience, records, take_over=self._take_over)

    # --- batches -------------------------------------------------------------------------------

    def _batches(self, found: Iterable[Finding], head: Head, done: Repaired) -> list[Document]:
        """The batches that can be put back; those that cannot are told."""
        mended: dict[int, Document] = {}
        for one in found:
            if one.what == "retirement":
                done.left.append(f"{one.sentence()}. Look at it, and mend it by hand")
            if one.what != "batch":
                continue
            if one.problem not in {"missing", "altered"} or one.batch is None:
                done.left.append(f"{one.sentence()}. Look at it, and remove it by hand")
                continue
            batch = self._batch(one.batch, head)
            if batch is None:
                done.left.append(
                    f"batch {one.batch}: its leaves and salts are neither in it, in an archive of "
                    f"all tables, nor staged, so that the chain's hash cannot be made"
                )
            else:
                mended[one.batch] = batch
        done.batches = sorted(mended)
        return [mended[number] for number in sorted(mended)]

    def _batch(self, number: int, head: Head) -> Document | None:
        before, after = self._before(number), self._follows(number, head)
        if before is None or after is None:
            return None
        for one in self._candidates(number, before):
            found = proved(one, before, source=self._trail.source, key=self._key, next_before=after)
            if "leaves" in found.wrong or "salts" in found.wrong or not found.leaves:
                continue
            if found.after.hash != after:
                continue
            return {
                "_id": Int64(number),
                "source": self._trail.source,
                "first": Int64(found.first),
                "last": Int64(found.last),
                "leaves": Binary(b"".join(found.leaves)),
                "salts": Binary(b"".join(found.salts)),
                "root": Binary(found.root),
                "before": Binary(before.hash),
                "hash": Binary(after),
                **({"ts": one["ts"]} if "ts" in one else {}),
            }
        return None

    def _before(self, number: int) -> Link | None:
        if number == 1:
            return Link(0, 0, bytes(HASH_BYTES))
        batch: Any = self._reader.batch(number - 1)
        if batch is None or not isinstance(batch.get("last"), int):
            return None
        return Link(number - 1, int(batch["last"]), bytes(batch["hash"]))

    def _follows(self, number: int, head: Head) -> bytes | None:
        if number == head.batch:
            return head.hash
        batch: Any = self._reader.batch(number + 1)
        return None if batch is None else bytes(batch["before"])

    def _candidates(self, number: int, before: Link) -> Iterable[Document]:
        stored: Any = self._reader.batch(number)
        if stored is not None:
            yield dict(stored)
            salts = cut_of(stored, "salts", SALT_BYTES)
            made = self._leaves_of_records(before.last + 1, salts)
            if made is not None:
                yield dict(stored) | {"leaves": Binary(b"".join(made))}
        part = self._reader.call(
            lambda: self._trail.staging.find_one(
                {"source": self._trail.source, "number": Int64(number), "status": "committed"}
            )
        )
        if part is not None:
            yield part["batch"]
        for archive in self._archives.all:
            for row in archive.chain():
                if row["number"] == number:
                    salts = [one.salt for one in archive.rows(row["first"], row["last"])]
                    yield {"leaves": row["leaves"], "salts": b"".join(salts), "ts": row["ts"]}

    def _leaves_of_records(self, first: int, salts: list[bytes]) -> list[bytes] | None:
        made: list[bytes] = []
        for place, salt in enumerate(salts, first):
            record = self._reader.record_at(place)
            one = None if record is None else leaf_seen(seen(record), salt)
            if one is None:
                return None
            made.append(one)
        return made

    def _put_batch(self, batch: Document) -> None:
        self._reader.call(
            lambda: self._trail.batches.replace_one({"_id": batch["_id"]}, batch, upsert=True)
        )

    # --- records -------------------------------------------------------------------------------

    def _wanted(self, found: Iterable[Finding], head: Head, done: Repaired) -> dict[int, Wanted]:
        """What is to be made again, by place."""
        deeds = Deeds(self._reader)
        deeds.load(last=head.at, batch_last=head.batch)
        erasures = [deed for deed in deeds.all if deed.act == "erase"]
        wanted: dict[int, Wanted] = {}
        for one in found:
            if one.what != "record" or one.at is None or one.problem not in _MENDED:
                continue
            kept, salt = self._kept(one.at, head)
            if kept is None:
                done.left.append(f"place {one.at}: its batch must be repaired first")
                continue
            deed = next((deed for deed in erasures if deed.holds(one.at)), None)
            wanted[one.at] = Wanted(at=one.at, id=one.id, leaf=kept, salt=salt, deed=deed)
        return wanted

    def _kept(self, place: int, head: Head) -> tuple[bytes | None, bytes]:
        batch: Any = self._reader.batch_of_place(place, last=head.batch)
        if batch is None:
            return None, ERASED_SALT
        offset = place - int(batch["first"])
        leaves = cut_of(batch, "leaves", HASH_BYTES)
        salts = cut_of(batch, "salts", SALT_BYTES)
        if offset >= min(len(leaves), len(salts)):
            return None, ERASED_SALT
        return leaves[offset], salts[offset]

    def _remade(
        self, wanted: dict[int, Wanted], found: Iterable[Finding], done: Repaired
    ) -> dict[int, Remade]:
        remade: dict[int, Remade] = {}
        self._from_trail(wanted, found, remade)
        for row in self._archives.rows(min(wanted, default=1), max(wanted, default=0)):
            one = wanted.get(row.at)
            if one is not None and row.at not in remade:
                made = one.proved_by(row.record, row.spilled, source="archive")
                if made is not None:
                    remade[row.at] = made
        left = {at: one for at, one in wanted.items() if at not in remade}
        if left and self._log is not None:
            remade |= self._log.remake(left, self._reader)
        ids = {one.id for one in remade.values()}
        done.left += [
            f"{one.sentence()}. Look at it, and remove it by hand"
            for one in found
            if one.what in _LOOSE and one.problem in _STRAY and one.id not in ids
        ]
        done.left += [
            f"place {place}: neither the trail, an archive that was named nor the log has it as "
            f"it was written"
            for place in sorted(set(wanted) - set(remade))
        ]
        return remade

    def _from_trail(
        self, wanted: dict[int, Wanted], found: Iterable[Finding], remade: dict[int, Remade]
    ) -> None:
        """Records that lie elsewhere than at their place."""
        names = [one.id for one in found if one.what == "record" and one.id is not None]
        pairs = 0
        for name in dict.fromkeys(names):
            record = self._reader.record(name)
            if record is None:
                continue
            for one in wanted.values():
                pairs += 1
                if pairs > _PAIRS_MAX:
                    return
                pieces = b"".join(self._reader.pieces(name)) if "spilled" in record else None
                made = one.proved_by(record, pieces, source="trail")
                if made is not None:
                    remade[one.at] = made
                    break

    # --- putting back ----------------------------------------------------------------------------

    def _put(self, remade: dict[int, Remade]) -> None:
        """Put records in their places; every step may be repeated, and none loses what was there.

        What only lies elsewhere is moved: first out of the way, to a place that is none.
        """
        records, call = self._trail.records, self._reader.call
        moved = [(at, one.id) for at, one in sorted(remade.items()) if one.source == "trail"]
        for at, name in moved:
            away = {"$set": {"at": Int64(-at)}}
            call(partial(records.update_one, {"_id": name, "at": {"$ne": Int64(at)}}, away))
        for at, one in sorted(remade.items()):
            if one.spilled is not None:
                self._put_pieces(one.id, one.spilled)
            call(partial(records.delete_many, {"at": Int64(at), "_id": {"$ne": one.id}}))
            put = partial(self._trail.raw_records.replace_one, {"_id": one.id}, one.record)
            call(partial(put, upsert=True))

    def _put_pieces(self, name: str, data: bytes) -> None:
        drop_pieces(self._reader, name)
        for number, start in enumerate(range(0, len(data), SPILL_BYTES)):
            piece = {"_id": f"{name}:{number}", "data": data[start : start + SPILL_BYTES]}
            put = partial(self._trail.spilled.replace_one, {"_id": piece["_id"]}, piece)
            self._reader.call(partial(put, upsert=True))
