"""Read a trail in its order, in bounded memory, through outages."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

from bson.int64 import Int64
from bson.raw_bson import RawBSONDocument
from pymongo.collection import Collection
from pymongo.errors import PyMongoError

from penstock.audit.outages import Patience
from penstock.audit.trail import RAW, Document, Trail

_TOGETHER: Final = 500
"""Documents that are asked for together,"""
_BYTES: Final = 16 << 20
"""and their bytes, give or take one."""


class Reader:
    """Reads a trail's collections, whole or not at all; one thread."""

    def __init__(self, trail: Trail, patience: Patience) -> None:
        self.trail = trail
        self.patience = patience
        self._raw_batches = trail.batches.with_options(codec_options=RAW)

    # --- in order --------------------------------------------------------------------------------

    def records(self, first: int, last: int) -> Iterator[RawBSONDocument]:
        """Whatever has an `at` from `first` to `last`, by `at`: numbers of any type."""
        yield from self._ordered(self.trail.raw_records, "at", first, last)

    def batches(self, first: int, last: int) -> Iterator[RawBSONDocument]:
        """Whatever has a number from `first` to `last` in the collection of batches, in order."""
        yield from self._ordered(self._raw_batches, "_id", first, last)

    def retired(self) -> Iterator[RawBSONDocument]:
        """What is kept of records that were retired, by their places; what has none comes last."""
        retired = self.trail.retired.with_options(codec_options=RAW)
        placed: Document = {"at": {"$type": "long", "$not": {"$type": "array"}}}
        yield from self._ordered(retired, "at", -(1 << 63), (1 << 63) - 1, also=placed)
        others: Document = {"$nor": [placed]}
        yield from self.call(lambda: list(retired.find(others).limit(_TOGETHER)))

    def _ordered(
        self,
        collection: Collection[RawBSONDocument],
        field: str,
        first: int,
        last: int,
        *,
        also: Document | None = None,
    ) -> Iterator[RawBSONDocument]:
        place: Any = Int64(first)
        seen: set[Any] = set()
        while True:
            wanted: Document = {field: {"$gte": place, "$lte": Int64(last)}}
            if also is not None:
                wanted = {"$and": [wanted, also]}
            found, whole = self.patience.call(partial(_some, collection, wanted, field, len(seen)))
            yield from (one for one in found if _identity(one) not in seen)
            if whole:
                return
            place = found[-1][field]
            seen = {_identity(one) for one in found if one[field] == place}

    # --- one ------------------------------------------------------------------------------------

    def record_at(self, at: int) -> RawBSONDocument | None:
        """The record of a place."""
        return self.patience.call(lambda: self.trail.raw_records.find_one({"at": Int64(at)}))

    def record(self, name: str) -> RawBSONDocument | None:
        """A record by its id."""
        return self.patience.call(lambda: self.trail.raw_records.find_one({"_id": name}))

    def batch(self, number: int) -> RawBSONDocument | None:
        """A batch by its number."""
        return self.patience.call(lambda: self._raw_batches.find_one({"_id": Int64(number)}))

    def batch_of_place(self, at: int, *, last: int) -> RawBSONDocument | None:
        """The batch up to number `last` that says to hold a place."""
        low, high = 1, last
        while low <= high:
            middle = (low + high) // 2
            batch = self.batch(middle)
            ends = None if batch is None else _ends(batch)
            if batch is None or ends is None:
                break
            if at < ends[0]:
                high = middle - 1
            elif at > ends[1]:
                low = middle + 1
            else:
                return batch
        # One on the way is gone or says nonsense: look at all of them.
        wanted = {"first": {"$lte": Int64(at)}, "last": {"$gte": Int64(at)}}
        return self.patience.call(lambda: self._raw_batches.find_one(wanted))

    def own(self, *, after: int, last: int) -> list[RawBSONDocument]:
        """The next records of our own behind a place, by `at`; none when there are no more."""
        wanted = {"op": "sys", "at": {"$gt": Int64(after), "$lte": Int64(last)}}
        return self.patience.call(
            lambda: list(self.trail.raw_records.find(wanted).sort("at", 1).limit(16))
        )

    def pieces(self, record: str) -> Iterator[bytes]:
        """The spilled values of a record, piece by piece; ends where one is missing."""
        number = 0
        while True:
            piece = self.patience.call(partial(self._piece, f"{record}:{number}"))
            if piece is None:
                return
            yield piece
            number += 1

    def _piece(self, name: str) -> bytes | None:
        found = self.trail.spilled.find_one({"_id": name})
        data = None if found is None else found.get("data")
        return data if isinstance(data, bytes) else None

    def call(self, act: Callable[[], Any]) -> Any:
        """`act`, once MongoDB answers."""
        return self.patience.call(act)


def _some(
    collection: Collection[RawBSONDocument], wanted: Document, field: str, known: int
) -> tuple[list[RawBSONDocument], bool]:
    """The first of what is wanted, more than `known`; and whether it is all."""
    limit = _TOGETHER + known
    found: list[RawBSONDocument] = []
    size = 0
    with collection.find(wanted).sort(field, 1).limit(limit) as cursor:
        for one in cursor:
            found.append(one)
            size += len(one.raw)
            if size > _BYTES and len(found) > known:
                return found, False
    return found, len(found) < limit


def _identity(document: RawBSONDocument) -> Any:
    try:
        return document["_id"] if isinstance(document["_id"], str | int) else document.raw
    except (KeyError, ValueError, PyMongoError):
        return document.raw


def _ends(batch: RawBSONDocument) -> tuple[int, int] | None:
    first, last = batch.get("first"), batch.get("last")
    if isinstance(first, int) and isinstance(last, int):
        return first, last
    return None
