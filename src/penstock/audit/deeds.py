"""What was done to a trail, as its own records say: by which a missing content is no loss."""

import heapq
from collections.abc import Iterator
from typing import Any

from bson.raw_bson import RawBSONDocument
from msgspec import structs

from penstock.audit.chain import HASH_BYTES, SALT_BYTES, cut
from penstock.audit.checks import leaf_seen, seen
from penstock.audit.own import Deed, deed_of
from penstock.audit.reading import Reader
from penstock.errors import TrailHeadError


class Deeds:
    """The deeds of a trail whose records are proved by a batch; those that are not are left out."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._batch_last = 0
        self._read = 0
        self.all: list[Deed] = []
        self._batch: RawBSONDocument | None = None

    def load(self, *, last: int, batch_last: int) -> None:
        """Read those up to a place; what people said of them is not kept."""
        self._batch_last = batch_last
        while self._read < last:
            found = self._reader.own(after=self._read, last=last)
            for record in found:
                deed = self._proved(record)
                if deed is not None:
                    # Of what is retired there are millions: their digests are read when needed.
                    kept = b"" if deed.act == "retire" else deed.digests
                    self.all.append(structs.replace(deed, digests=kept))
            self._read = int(found[-1]["at"]) if found else last

    def reach(self) -> None:
        """Read those up to where the head is now."""
        try:
            head = self._reader.call(self._reader.trail.head)
        except TrailHeadError:
            return  # who walks the trail has said it
        if head is not None and head.at > self._read:
            self.load(last=head.at, batch_last=head.batch)

    def whole(self, deed: Deed) -> Deed | None:
        """A deed with its digests; None if it is not what it was."""
        record = self._reader.record(deed.id)
        return None if record is None else self._proved(record)

    def _proved(self, record: RawBSONDocument) -> Deed | None:
        try:
            deed = deed_of(record)
        except ValueError:
            return None
        batch = self._batch_of(deed.at)
        if batch is None:
            return None
        number = deed.at - int(batch["first"])
        leaves, salts = cut(batch["leaves"], HASH_BYTES), cut(batch["salts"], SALT_BYTES)
        if number >= min(len(leaves), len(salts)):
            return None
        return deed if leaf_seen(seen(record), salts[number]) == leaves[number] else None

    def _batch_of(self, at: int) -> Any:
        batch: Any = self._batch
        if batch is None or not int(batch["first"]) <= at <= int(batch["last"]):
            batch = self._reader.batch_of_place(at, last=self._batch_last)
            readable = (
                batch is not None
                and isinstance(batch.get("leaves"), bytes)
                and isinstance(batch.get("salts"), bytes)
            )
            self._batch = batch if readable else None
            return self._batch
        return batch

    def in_order(self) -> Iterator[tuple[int, int, bytes | None]]:
        """Every place that a deed covers, ascending: (place, number in `all`, digest or None)."""
        return heapq.merge(
            *(_numbered(deed, number) for number, deed in enumerate(self.all) if deed.covers)
        )


def _numbered(deed: Deed, number: int) -> Iterator[tuple[int, int, bytes | None]]:
    for place, digest in deed.places():
        yield place, number, digest
