"""Read a trail: what the head shows and nothing beyond it, page by page.

A page is one command and one answer of MongoDB, of at most 16 MiB: no cursor is left open there,
whoever reads may take as long as he likes, and memory is bounded. Pages follow each other by `at`,
which is dense and never changes, so records that are added meanwhile are neither repeated nor make
others be skipped (A24). Head and records are read in one session, so that whoever reads secondaries
never finds the head on one and misses the records on another.
"""

import hashlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import bson
import pymongo
from bson.int64 import Int64
from bson.raw_bson import RawBSONDocument
from msgspec import Struct
from pymongo.client_session import ClientSession
from pymongo.errors import ExecutionTimeout, NetworkTimeout, PyMongoError

from penstock.audit.cursors import Cursor
from penstock.audit.filters import Conditions, Filters, Order, conditions
from penstock.audit.outages import passes, refused, unavailable
from penstock.audit.plans import Index, Part, Times, by_time, parts_of
from penstock.audit.records import Record
from penstock.audit.trail import TOLERANT, Document, Head, Trail, head_of
from penstock.audit.writing import SPILL_BYTES
from penstock.errors import AuditError, TrailMissingError, TrailSlowError

QUERY_SECONDS: Final = 30.0
"""A page, or a piece of what is spilled, that takes longer is given up."""
PAGE: Final = 1_000
BULK_PAGE: Final = 10_000


class Page(Struct, frozen=True, kw_only=True):
    """Records that follow each other."""

    records: Sequence[RawBSONDocument]
    after: int
    """Everything up to this place, in the order that was asked for, was looked at."""
    done: bool
    """Whether there is nothing behind it now."""
    head: Head


def decoded(record: RawBSONDocument) -> Record:
    """A record for people and programs; values that were spilled are not loaded."""
    return _decoded(bytes(record.raw))


def _decoded(data: bytes) -> Record:
    return bson.decode(data, codec_options=TOLERANT)  # pyright: ignore[reportUnknownMemberType]


class Querier:
    """Reads one trail. Blocks; raises AuditError."""

    def __init__(self, trail: Trail, *, query_seconds: float = QUERY_SECONDS) -> None:
        self._trail = trail
        self._seconds = query_seconds
        self._records = trail.raw_records
        self._spilled = trail.spilled

    @property
    def source(self) -> str:
        return self._trail.source

    def require_answer(self, seconds: float) -> None:
        """Raises TrailUnavailableError if MongoDB does not answer within so many seconds."""
        try:
            with pymongo.timeout(seconds):
                self._trail.client.admin.command("ping")
        except PyMongoError as error:
            if error.timeout or passes(error):
                raise unavailable(self._trail, error, done="Nothing was changed.") from None
            raise self._refusal(error, seconds) from None

    def head(self) -> Head:
        """How far the trail has come. Raises AuditError if there is none."""
        with self._asking() as session:
            return self._head(session)

    def page(
        self,
        filters: Filters,
        *,
        order: Order,
        limit: int,
        after: int | None = None,
        behind: int = 0,
    ) -> Page:
        """The next records that follow the place `after` in `order`, at most `limit`; from the
        start of that order without it. The places up to `behind` are not looked at.

        At least one record, or done. Nothing beyond the head of this moment. Raises TrailSlowError
        when MongoDB takes too long, TrailUnavailableError when it does not answer.
        """
        times = partial(self._times, filters)
        return self._page(filters, times, order=order, limit=limit, after=after, behind=behind)

    def _page(
        self,
        filters: Filters,
        times_by: Callable[[ClientSession], Times | None],
        *,
        order: Order,
        limit: int,
        after: int | None,
        behind: int,
    ) -> Page:
        with self._asking() as session:
            head = self._head(session)
            first, last = behind + 1, head.at
            if after is not None and order == "asc":
                first = max(first, after + 1)
            elif after is not None:
                last = min(last, after - 1)
            times = times_by(session)
            asked = conditions(filters)
            for part in parts_of(filters, first=first, last=last, order=order, times=times):
                found = self._find(asked, part, order, limit, session)
                if found:
                    place = int(found[-1]["at"])
                    return Page(records=found, after=place, done=False, head=head)
        end = max(head.at, after or 0, behind) if order == "asc" else behind
        return Page(records=(), after=end, done=True, head=head)

    def records(
        self,
        filters: Filters,
        *,
        order: Order,
        after: int | None = None,
        limit: int | None = None,
        page: int = BULK_PAGE,
        until: int | None = None,
        behind: int = 0,
    ) -> Iterator[RawBSONDocument]:
        """Every record, page by page, or `limit` of them; none above the place `until`, and only
        those behind the place `behind`.

        In ascending order without `until`, it ends when it has met the head.
        """
        if until is not None and order == "desc":
            after = until + 1 if after is None else min(after, until + 1)
        left = limit
        known: list[Times | None] = []

        def times(session: ClientSession) -> Times | None:
            # Asked for once: they cut the places as well for every later page.
            if not known:
                known.append(self._times(filters, session))
            return known[0]

        while left is None or left > 0:
            found = self._page(
                filters,
                times,
                order=order,
                after=after,
                limit=page if left is None else min(page, left),
                behind=behind,
            )
            for record in found.records:
                if until is not None and record["at"] > until:
                    return
                yield record
                if left is not None:
                    left -= 1
            if found.done:
                return
            after = found.after

    def cursor(self, filters: Filters, *, order: Order, after: int, head: Head) -> Cursor:
        """Where the page ended that ended with `after`."""
        return Cursor(
            order=order,
            after=after,
            at=head.at,
            batch=head.batch,
            hash=head.hash[:8],
            filters=filters.fingerprint(),
        )

    def require(self, cursor: Cursor) -> None:
        """Raises AuditError if the trail is not the one that the cursor was made for."""
        with self._asking() as session:
            head = self._head(session)
            batch = self._trail.batches.find_one(
                {"_id": cursor.batch}, {"hash": 1}, session=session
            )
        # A batch may have been archived since; a trail only ever grows.
        other = batch is not None and bytes(batch["hash"])[:8] != cursor.hash
        if other or head.at < cursor.at:
            raise AuditError(
                f"trail of {self.source}: the cursor is of another trail, or of this one before it "
                f"was begun anew. Nothing was read. Begin without --cursor."
            )

    def at(self, place: int) -> Record:
        """The record at a place, whole. Raises AuditError if it is not there."""
        with self._asking() as session:
            found = self._records.find_one({"at": Int64(place)}, session=session)
        if found is None:
            raise AuditError(
                f"trail of {self.source}: there is no record at place {place} any more. If it was "
                f"not retired, run `penstock audit verify`."
            )
        return self.whole(found)

    def aggregate(
        self, pipeline: list[Document], *, index: Index | None, seconds: float
    ) -> list[Document]:
        """What MongoDB makes of the records; all of it, so it must be little. Raises AuditError."""
        hint: Document = {} if index is None else {"hint": dict(index)}
        with self._asking(seconds) as session:
            return list(self._trail.records.aggregate(pipeline, session=session, **hint))

    def whole(self, record: RawBSONDocument) -> Record:
        """A record with all of its values, those that were spilled too, decoded.

        Raises AuditError for spilled values that are not what the record says.
        """
        found = decoded(record)
        said = found.get("spilled")
        if said is None:
            return found
        data = self._pieces(str(found["_id"]), int(said["bytes"]))
        if hashlib.sha256(data).digest() != said["sha256"]:
            raise AuditError(
                f"trail of {self.source}: the values of record {found['at']} that lie in "
                f"{self._spilled.name} are not those that were written. Nothing was changed. Run "
                f"`penstock audit verify`."
            )
        return found | _decoded(data)

    def columns(self, records: Iterable[RawBSONDocument], *, most: int) -> tuple[set[str], bool]:
        """The names of all columns that records say something of, and whether any says more.

        Raises AuditError if there are over `most` of them.
        """
        names: set[str] = set()
        said = False
        for record in records:
            whole: Mapping[str, Any] = self.whole(record) if "spilled" in record else record
            names.update(whole.get("chg") or (), whole.get("masked") or ())
            said = said or "said" in whole
            if len(names) > most:
                raise AuditError(
                    f"trail of {self.source}: these records have over {most:,} columns, which is "
                    f"no table. Nothing was written. Ask for less, or for --format jsonl."
                )
        return names, said

    # --- one page --------------------------------------------------------------------------------

    @contextmanager
    def _asking(self, seconds: float | None = None) -> Generator[ClientSession]:
        """A session in which what is asked for follows what was answered, within our time."""
        seconds = self._seconds if seconds is None else seconds
        try:
            with pymongo.timeout(seconds), self._trail.client.start_session() as session:
                yield session
        except PyMongoError as error:
            raise self._refusal(error, seconds) from None

    def _refusal(self, error: PyMongoError, seconds: float) -> AuditError:
        if isinstance(error, ExecutionTimeout | NetworkTimeout):
            return TrailSlowError(
                f"trail of {self.source}: MongoDB did not answer within {seconds:g} s, and the "
                f"query was given up. Nothing was changed. Ask for less: a table, a key, a day."
            )
        if passes(error):
            return unavailable(self._trail, error, done="Nothing was changed.")
        return refused(self._trail, error, role="read")

    def _head(self, session: ClientSession) -> Head:
        found = self._trail.heads.find_one({"_id": self.source}, session=session)
        if found is None:
            raise TrailMissingError(
                f"there is no audit trail of {self.source} in {self._trail.heads.full_name} yet. "
                f"Nothing was read. It is begun when its pipeline first runs."
            )
        return head_of(found)

    def _times(self, filters: Filters, session: ClientSession) -> Times | None:
        index = by_time(filters)
        if index is None:
            return None
        asked = conditions(filters)
        asked = {name: asked[name] for name, _ in index if name in asked}
        ends: list[int] = []
        for direction in (1, -1):
            found = self._records.find(asked, {"at": 1, "_id": 0}, session=session)
            places = list(found.sort("ts", direction).limit(-1).hint(list(index)))
            if not places:
                return None
            ends.append(int(places[0]["at"]))
        return Times(*ends)

    def _find(
        self, asked: Conditions, part: Part, order: Order, limit: int, session: ClientSession
    ) -> list[RawBSONDocument]:
        between = {"at": {"$gte": Int64(part.first), "$lte": Int64(part.last)}}
        found = self._records.find({**asked, **between}, session=session)
        # Below 0: one answer, with as many as it holds, and no cursor is left open there. Without
        # a batch size that would be 101.
        found = found.sort("at", 1 if order == "asc" else -1).limit(-limit).batch_size(limit)
        if part.by is not None:
            found = found.hint(list(part.by))
        return found.to_list()

    def _pieces(self, name: str, size: int) -> bytes:
        pieces = bytearray()
        while len(pieces) < size:
            number = f"{name}:{len(pieces) // SPILL_BYTES}"
            with self._asking() as session:
                found = self._spilled.find_one({"_id": number}, session=session)
            if found is None or not found["data"]:
                break
            pieces += found["data"]
        return bytes(pieces)
