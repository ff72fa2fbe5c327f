"""Prove a trail: every batch follows the one before, and every record is what was written.

The chain of batches is walked up to the head, and the records beside it, both in their order and
in bounded memory, beside a writer that goes on. What does not fit is read again before it is told,
for an erasure may have passed. What is proved is proved by the head's hash: kept elsewhere, and
given to a later proof as `expect`, it also tells a trail that was cut short or written anew.

Nothing proves when a batch was written (`ts`), nor the head's marker of the log.
"""

import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, Final

from bson.int64 import Int64
from bson.raw_bson import RawBSONDocument

from penstock.audit.archives import Archives
from penstock.audit.chain import NO_BATCH, root_of
from penstock.audit.checks import Link, Proved, State, facts_of, proved
from penstock.audit.deeds import Deeds
from penstock.audit.findings import FINDINGS_MAX, Findings, Report
from penstock.audit.outages import Patience
from penstock.audit.proving import Looked, Places
from penstock.audit.reading import Reader
from penstock.audit.retired import look_at_retired
from penstock.audit.sealing import OTHER_KEY, USE_ITS_KEY, key_fits
from penstock.audit.spilled import look_at_pieces
from penstock.audit.trail import Document, Head, Trail
from penstock.errors import AuditError, TrailHeadError

_STRAYS: Final = 10 * FINDINGS_MAX
_RAN_ON: Final = 5
"""So often a walk goes on to where the head is now."""


class Proof:
    """One proof of a trail; see the module."""

    def __init__(
        self,
        trail: Trail,
        patience: Patience,
        *,
        first: int = 1,
        expect: bytes | None = None,
        archives: Archives | None = None,
        findings_max: int = FINDINGS_MAX,
    ) -> None:
        """From the batch that holds place `first`; `expect` is a head's hash from elsewhere."""
        self._trail = trail
        self._call = patience.call
        self._reader = Reader(trail, patience)
        self._first = first
        self._expect = expect
        self._expected: str | None = None
        self._archives = archives or Archives(())
        self._findings = Findings(limit=findings_max)
        self._batches = self._proved = self._erased = self._retired = self._archived = 0
        self._unproved = self._unarchived = self._pieces_waiting = 0
        self._unchecked: list[str] = []
        self._key = trail.key
        self._chained = True

    def run(self) -> Report:
        """Walk the trail. Raises AuditError where there is none, or MongoDB refuses."""
        started = time.monotonic()
        head, at, number = self._ends()
        deeds = Deeds(self._reader)
        deeds.load(last=at, batch_last=number)
        for path in self._archives.damaged():
            says = "the file is gone, or not what its manifest says"
            self._findings.add("archive", "altered", says, file=path)
        for path in self._archives.leftovers():
            says = "an erasure left it, and it may hold what is erased: run `penstock audit erase"
            self._findings.add(
                "archive", "unfinished", f"{says} --unfinished` with this --archive", file=path
            )
        self._look_at_key(number, head)
        link = self._start(number)
        begun = link.last + 1
        self._expecting(link.hash, f"what lies before batch {link.number + 1}")
        for _ in range(_RAN_ON):
            places = Places(self._reader, deeds, self._archives, first=link.last + 1, last=at)
            link = self._walk(places, link, at, number, None if head is None else head.hash)
            if head is None or not places.moved:
                break
            # A deed beyond the end was believed: it must be on the chain too.
            moved = self._call(self._trail.head)
            if moved is None or moved.at <= at:
                break
            head, at, number = moved, moved.at, moved.batch
            deeds.load(last=at, batch_last=number)
        self._compare_head(head, link)
        self._look_beyond(at, number)
        self._pieces_waiting = look_at_pieces(self._reader, self._findings)
        look_at_retired(self._reader, deeds, self._findings)
        if self._expect is not None and self._expected is None:
            self._findings.add(
                "head", "missing", "no batch has the hash that was expected: the trail was cut "
                "short, or written anew",
            )  # fmt: skip
        self._say_unchecked(begun)
        return self._report(head, begun, at, time.monotonic() - started)

    # --- the ends --------------------------------------------------------------------------------

    def _ends(self) -> tuple[Head | None, int, int]:
        """The head, and the last place and the last batch to look at."""
        trail = self._trail
        head: Head | None = None
        try:
            head = self._call(trail.head)
        except TrailHeadError as error:
            self._findings.add("head", "altered", str(error))
        if head is not None:
            self._chained = not head.sealed or self._key is not None
            if self._key is not None and not head.sealed:
                self._findings.add(
                    "head", "altered", "it says that the chain is not sealed, and there is a key",
                    part="sealed",
                )  # fmt: skip
            return head, head.at, head.batch
        last: Any = self._call(lambda: trail.batches.find_one({}, {"last": 1}, sort=[("_id", -1)]))
        if last is None and self._call(lambda: trail.records.find_one({}, {"_id": 1})) is None:
            raise AuditError(
                f"there is no trail of {trail.source} in collection {trail.config.records} of "
                f"database {trail.config.database}. Its pipeline makes it when it starts."
            )
        if not self._findings.broken:
            self._findings.add("head", "missing", "the trail has no head")
        at, number = (0, 0) if last is None else (last.get("last"), last["_id"])
        return None, _whole(at) or 0, _whole(number) or 0

    def _look_at_key(self, number: int, head: Head | None) -> None:
        """Another key than the chain's is told once; what needs no key is proved all the same."""
        ends = None if head is None else head.hash
        # Of a single batch nothing tells another key from what was altered.
        if number > 1 and not key_fits(self._trail, self._call, last=number, ends=ends):
            self._chained = False
            says = f"{OTHER_KEY}. {USE_ITS_KEY}"
            self._findings.add("chain", "sealed", says, part="seal_key")

    def _start(self, number: int) -> Link:
        if self._first <= 1:
            return Link(0, 0, NO_BATCH)
        batch: Any = self._reader.batch_of_place(self._first, last=number)
        if batch is None or not isinstance(batch.get("before"), bytes):
            raise AuditError(
                f"no batch of the trail of {self._trail.source} holds place {self._first}. Begin "
                f"at a lower one, or at the first."
            )
        return Link(int(batch["_id"]) - 1, int(batch["first"]) - 1, bytes(batch["before"]))

    def _compare_head(self, head: Head | None, link: Link) -> None:
        if head is None:
            return
        stands = {"batch": link.number, "at": link.last, "hash": link.hash}
        wrong = [name for name, value in stands.items() if getattr(head, name) != value]
        if wrong:
            says = (
                f"it is not what stands at the end of the batches: batch {link.number}, place "
                f"{link.last}, hash {link.hash.hex()}"
            )
            self._findings.add("head", "altered", says, part=", ".join(wrong), at=head.at)

    # --- the walk --------------------------------------------------------------------------------

    def _walk(
        self, places: Places, link: Link, at: int, number: int, head_hash: bytes | None
    ) -> Link:
        begun = link
        for batch, following in _with_next(self._reader.batches(link.number + 1, number)):
            found, first = _whole(batch.get("_id")), _whole(batch.get("first"))
            if found is None or found <= link.number:
                self._findings.add("batch", "inserted", "it is between two batches")
                continue
            if found > link.number + 1:
                first = max(first or 0, link.last + 1)
                self._gap(places, link, found, first)
                link = Link(found - 1, first - 1, _hash(batch, "before") or NO_BATCH)
            follows = head_hash if found == number else _hash(following, "before")
            link = self._batch(places, batch, link, follows)
        if link.number < number:
            self._gap(places, link, number + 1, at + 1)
            link = Link(number, at, head_hash or NO_BATCH)
        elif link is not begun and link.last < at:
            self._gap(places, link, number + 1, at + 1)
        return link

    def _gap(self, places: Places, link: Link, number: int, first: int) -> None:
        """Batches are not there: nothing proves their records, which are only counted."""
        gone = number - 1 - link.number
        if gone > 0:
            says = "there is no batch of this number"
            if gone > 1:
                says += f", nor of those up to {number - 1}"
            self._findings.add("batch", "missing", says, batch=link.number + 1, count=gone)
        self._places_alone(places, link.last + 1, first - 1)

    def _places_alone(self, places: Places, first: int, last: int) -> None:
        places.count(first, last, self._findings)
        self._unproved += max(0, last - first + 1)

    def _batch(self, places: Places, batch: Any, before: Link, follows: bytes | None) -> Link:
        found = proved(
            batch,
            before,
            source=self._trail.source,
            key=self._key,
            next_before=follows,
            chained=self._chained,
        )
        number = before.number + 1
        self._batches += 1
        self._expecting(found.after.hash, f"batch {number}, up to place {found.last}")
        if found.wrong:
            names = ", ".join(found.wrong)
            says = f"its {names} is not what was written"
            if found.wrong == ["hash"] and self._key is not None and not found.kept:
                says = (
                    "its hash is made with another key than the configured seal_key, or by "
                    "somebody without it"
                )
            self._findings.add("batch", "altered", says, batch=number, part=names, at=found.first)
        if not found.leaves:
            self._places_alone(places, found.first, found.last)
        elif "leaves" in found.wrong:
            self._suspect(places, found, number)
        else:
            for offset in range(len(found.leaves)):
                self._count(places.look(found, number, offset, self._findings))
        return found.after

    def _suspect(self, places: Places, batch: Proved, number: int) -> None:
        """A leaf was altered, or a record: where the records give the root, it was the leaf."""
        apart = Findings(limit=FINDINGS_MAX)
        looked = [places.look(batch, number, n, apart) for n in range(len(batch.leaves))]
        made = [one.verdict.leaf for one in looked if one.verdict.leaf is not None]
        if len(made) == len(looked) and root_of(made) == batch.root:
            self._proved += len(made)
            return
        self._findings.take(apart)
        for one in looked:
            self._count(one)

    def _count(self, looked: Looked) -> None:
        verdict = looked.verdict
        if verdict.problem is not None:
            return
        if verdict.state is State.ERASED:
            self._erased += 1
        elif verdict.state is State.WHOLE:
            self._proved += 1
        else:
            self._retired += 1
            self._archived += looked.archived
            self._unarchived += looked.archive_told and not looked.archived

    def _expecting(self, found: bytes, where: str) -> None:
        if self._expect is not None and found == self._expect and self._expected is None:
            self._expected = where

    # --- what lies apart -------------------------------------------------------------------------

    def _look_beyond(self, at: int, number: int) -> None:
        """Nothing lies beyond the head but what is on its way."""
        trail = self._trail
        records = self._strays(trail.records, "at", at)
        batches = self._strays(trail.batches, "_id", number)
        if not records and not batches:
            return
        with suppress(TrailHeadError):  # of a head that cannot be read, which is told already
            head = self._call(trail.head)
            if head is not None:
                at = max(at, head.at, head.staged.at if head.staged else 0)
                number = max(number, head.batch, head.staged.last if head.staged else 0)
        says = "it lies where nothing was written"
        for one in batches:
            if not 0 < (_whole(one.get("_id")) or 0) <= number:
                self._findings.add("batch", "beyond", says, batch=_whole(one.get("_id")))
        for one in records:
            if not 0 < (_whole(one.get("at")) or 0) <= at:
                facts = facts_of(one)._asdict()
                self._findings.add("record", "beyond", says, at=_whole(one.get("at")), **facts)

    def _strays(self, collection: Any, field: str, end: int) -> list[Document]:
        """The first of what lies elsewhere; of the others it is said that they do."""
        wanted = {field: {"$not": {"$gte": Int64(1), "$lte": Int64(end)}}}
        found = self._call(lambda: list(collection.find(wanted).limit(_STRAYS)))
        if len(found) == _STRAYS:
            self._unchecked.append(f"what else lies beyond the head in {collection.name}")
        return found

    # --- the report ------------------------------------------------------------------------------

    def _say_unchecked(self, begun: int) -> None:
        say = self._unchecked.append
        if begun > 1:
            say(f"places 1 to {begun - 1}: the walk began behind them")
        if not self._chained:
            key = "there is no seal_key here" if self._key is None else "with another seal_key"
            say(f"the hashes of the batches: the chain is sealed, and {key}")
        if self._unproved:
            say(f"{self._unproved} records whose batch is missing or has no leaves")
        if self._unarchived:
            say(f"the content of {self._unarchived} retired records: name their --archive")
        gone = self._retired - self._archived - self._unarchived
        if gone:
            say(f"the content of {gone} records that were retired without an archive")
        if self._pieces_waiting:
            say(
                f"{self._pieces_waiting} pieces of spilled values without a record that has them: "
                f"their batch is being written, or the writer that began it ended"
            )
        if self._expect is None and self._key is None:
            say(
                "whether somebody who may write to the database made the whole chain anew: keep "
                "the hash elsewhere and give it as --expect, or begin trails with a seal_key"
            )

    def _report(self, head: Head | None, begun: int, last: int, seconds: float) -> Report:
        config, found = self._trail.config, self._findings
        return Report(
            source=self._trail.source,
            database=config.database,
            records=config.records,
            first=begun,
            last=last,
            batches=self._batches,
            hash=(head.hash if head is not None else NO_BATCH).hex(),
            proved=self._proved,
            erased=self._erased,
            retired=self._retired,
            archived=self._archived,
            broken=found.broken,
            unfinished=found.unfinished,
            first_broken=found.first,
            findings=found.listed,
            unchecked=self._unchecked,
            expected=self._expected,
            seconds=round(seconds, 3),
        )


def _with_next(
    items: Iterable[RawBSONDocument],
) -> Iterator[tuple[RawBSONDocument, RawBSONDocument | None]]:
    before: RawBSONDocument | None = None
    for item in items:
        if before is not None:
            yield before, item
        before = item
    if before is not None:
        yield before, None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _hash(batch: Any, name: str) -> bytes | None:
    found = None if batch is None else batch.get(name)
    return found if isinstance(found, bytes) else None
