"""Whether the records of a trail, place by place, are what their leaves say."""

from collections.abc import Iterable, Iterator, Sequence
from math import ceil
from typing import Any, Final, Generic, NamedTuple, TypeVar

from bson.decimal128 import Decimal128
from bson.raw_bson import RawBSONDocument

from penstock.audit.archives import ArchivedRow, Archives
from penstock.audit.chain import HASH_BYTES, SALT_BYTES
from penstock.audit.checks import (
    Erasure,
    Proved,
    Verdict,
    belongs_at,
    cut_of,
    facts_of,
    judge,
    pieces_fit,
    seen,
    spilled_of,
)
from penstock.audit.deeds import Deeds
from penstock.audit.findings import Findings
from penstock.audit.own import Deed
from penstock.audit.reading import Reader

T = TypeVar("T")
_LOOKS: Final = 500
_SPILLED: Final = "its values, which lie beside it, are not what was written"


class Cover(NamedTuple):
    """A deed that holds a place, and the digest that an erasure keeps of it."""

    deed: Deed
    digest: bytes | None


class Looked(NamedTuple):
    """A place, judged."""

    verdict: Verdict
    record: RawBSONDocument | None = None
    archived: bool = False
    """Whether an archive has it, proved."""
    archive_told: bool = False
    """Whether its retirement says that it is archived."""


class Places:
    """Walks the places of a trail in their order: in MongoDB, in the deeds and in archives."""

    def __init__(
        self, reader: Reader, deeds: Deeds, archives: Archives, *, first: int, last: int
    ) -> None:
        self._reader = reader
        self._deeds = deeds
        self._streamed = len(deeds.all)
        self._records = Peek(reader.records(first, last))
        self._covers = Peek(one for one in deeds.in_order() if one[0] >= first)
        self._rows = Peek(archives.rows(first, last))
        self._confirmed = 0
        """Problems in a row that another look did not end."""
        self.moved = False
        """Whether something was told by a deed beyond the end of this walk."""

    # --- streams -------------------------------------------------------------------------------

    def _take(
        self, place: int, findings: Findings
    ) -> tuple[list[RawBSONDocument], list[Cover], list[ArchivedRow]]:
        records: list[RawBSONDocument] = []
        while (record := self._records.head) is not None and stored_place(record) <= place:
            self._records.next()
            if stored_place(record) == place:
                records.append(record)
            else:
                says = "it is between two places"
                findings.add("record", "inserted", says, **facts_of(record)._asdict())
        covers: list[Cover] = []
        while (cover := self._covers.head) is not None and cover[0] <= place:
            self._covers.next()
            if cover[0] == place:
                covers.append(Cover(self._deeds.all[cover[1]], cover[2]))
        rows: list[ArchivedRow] = []
        while (row := self._rows.head) is not None and row.at <= place:
            self._rows.next()
            if row.at == place:
                rows.append(row)
        return records, covers, rows

    def count(self, first: int, last: int, findings: Findings) -> None:
        """Places without leaves: whether a record is there is all that can be said."""
        while first <= last:
            heads = (
                None if self._records.head is None else ceil(stored_place(self._records.head)),
                None if self._covers.head is None else self._covers.head[0],
                None if self._rows.head is None else self._rows.head.at,
            )
            place = min((one for one in heads if one is not None), default=last + 1)
            if place > first:
                until = min(place - 1, last)
                says = "there is no record at this place"
                if until > first:
                    says += f", nor at those up to {until}"
                findings.add("record", "missing", says, at=first, count=until - first + 1)
                first = until + 1
                continue
            records, covers, rows = self._take(first, findings)
            if not records and not rows and not _retired(covers):
                findings.add("record", "missing", "there is no record at this place", at=first)
            first += 1

    # --- one place -----------------------------------------------------------------------------

    def look(self, batch: Proved, number: int, offset: int, findings: Findings) -> Looked:
        """Judge the next place, which is `offset` of a batch; what is wrong goes to `findings`."""
        place, kept = batch.first + offset, batch.leaves[offset]
        records, covers, rows = self._take(place, findings)
        salt = batch.salts[offset] if batch.salts else None
        record, verdict = self._best(records, kept, salt, covers)
        if verdict.problem is not None and self._is_worth_another_look():
            record, verdict, covers = self._again(number, offset, place, kept, covers)
            self._confirmed = 0 if verdict.problem is None else self._confirmed
        if len(records) > 1:
            for other in records:
                if record is None or other.raw != record.raw:
                    facts = facts_of(other)._asdict()
                    says = "it is at the place of another record"
                    findings.add("record", "inserted", says, at=place, **facts)
        if verdict.problem is not None:
            self._tell(place, record, verdict, batch, findings)
        archived = [self._archived(place, kept, row, covers, findings) for row in rows]
        told = any(one.deed.archived for one in covers if one.deed.act == "retire")
        return Looked(verdict, record, any(archived), told)

    def _is_worth_another_look(self) -> bool:
        """Whether something may have been done since; where all is broken, now and then."""
        self._confirmed += 1
        return self._confirmed <= _LOOKS or self._confirmed % _LOOKS == 0

    def _best(
        self,
        records: Sequence[RawBSONDocument],
        kept: bytes,
        salt: bytes | None,
        covers: Sequence[Cover],
    ) -> tuple[RawBSONDocument | None, Verdict]:
        """The record that is the right one, or else the first."""
        best: list[tuple[RawBSONDocument | None, Verdict]] = []
        for record in records or (None,):
            verdict = judge(
                record,
                leaf_kept=kept,
                salt=salt,
                erasures=_erasures(covers),
                retired=_retired(covers),
            )
            if verdict.problem is None and record is not None and not self._pieces_right(record):
                verdict = verdict._replace(problem="spilled", says=_SPILLED, part="spilled")
            if verdict.problem is None:
                return record, verdict
            best.append((record, verdict))
        return best[0]

    def _pieces_right(self, record: RawBSONDocument) -> bool:
        spilled = None if "erased" in record else spilled_of(record)
        return spilled is None or pieces_fit(spilled, self._reader.pieces(str(record["_id"])))

    def _again(
        self, number: int, offset: int, place: int, kept: bytes, covers: list[Cover]
    ) -> tuple[RawBSONDocument | None, Verdict, list[Cover]]:
        """Once more, as it is now: an erasure may have passed since it was read."""
        # The batch before the record: a salt goes with the content or behind it, never before.
        batch = self._reader.batch(number)
        salts = [] if batch is None else cut_of(batch, "salts", SALT_BYTES)
        leaves = [] if batch is None else cut_of(batch, "leaves", HASH_BYTES)
        record = self._reader.record_at(place)
        self._deeds.reach()
        newer = [
            Cover(deed, deed.digest_at(place))
            for deed in self._deeds.all[self._streamed :]
            if deed.covers and deed.holds(place)
        ]
        self.moved = self.moved or bool(newer)
        covers = [*covers, *newer]
        salt = salts[offset] if len(salts) == len(leaves) and offset < len(salts) else None
        records = [] if record is None else [record]
        return *self._best(records, kept, salt, covers), covers

    def _tell(
        self,
        place: int,
        record: RawBSONDocument | None,
        verdict: Verdict,
        batch: Proved,
        findings: Findings,
    ) -> None:
        assert verdict.problem is not None
        problem, says, part = verdict.problem, verdict.says, verdict.part
        if problem == "altered" and record is not None:
            other = belongs_at(seen(record), batch.leaves, batch.salts)
            if other is not None:
                problem, part = "misplaced", "at"
                says = f"it is the record of place {batch.first + other}"
        facts = facts_of(record)._asdict()
        findings.add("record", problem, says, at=place, part=part, **facts)

    def _archived(
        self,
        place: int,
        kept: bytes,
        row: ArchivedRow,
        covers: Sequence[Cover],
        findings: Findings,
    ) -> bool:
        verdict = judge(
            row.record, leaf_kept=kept, salt=row.salt, erasures=_erasures(covers), retired=False
        )
        spilled = None if "erased" in row.record else spilled_of(row.record)
        if verdict.problem is None and spilled is not None:
            pieces: Iterable[bytes] = () if row.spilled is None else (row.spilled,)
            if not pieces_fit(spilled, iter(pieces)):
                verdict = verdict._replace(problem="spilled", says=_SPILLED, part="spilled")
        if verdict.problem is None:
            return True
        says = verdict.says
        if verdict.problem == "unfinished":
            says += "; run `penstock audit erase` with this --archive"
        facts = facts_of(row.record)._asdict()
        findings.add(
            "archive", verdict.problem, says, at=place, part=verdict.part, file=row.file, **facts
        )
        return False


def _erasures(covers: Iterable[Cover]) -> list[Erasure]:
    return [
        Erasure(one.deed.at, one.deed.id, one.digest) for one in covers if one.deed.act == "erase"
    ]


def _retired(covers: Iterable[Cover]) -> bool:
    return any(one.deed.act == "retire" for one in covers)


class Peek(Generic[T]):
    """An iterator whose next item can be looked at."""

    def __init__(self, items: Iterable[T]) -> None:
        self._items: Iterator[T] = iter(items)
        self.head: T | None = next(self._items, None)

    def next(self) -> None:
        """Go on to the next."""
        self.head = next(self._items, None)


def stored_place(record: Any) -> Any:
    """The place that a record says to have: a number of whatever type it is."""
    at = record["at"]
    return at.to_decimal() if isinstance(at, Decimal128) else at
