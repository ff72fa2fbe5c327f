"""Take content out of a trail: from records, salts, spilled values, staged copies and archives.

What an erasure's record names is taken, wherever it broke off before: every step may be repeated.
A record goes last, so that what lies beside it is found through it; then its salt. What is left of
it is its head, and the hash of its content, which without the salt says nothing.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final

import bson
from bson.binary import Binary
from bson.int64 import Int64
from bson.raw_bson import RawBSONDocument

from penstock.audit.archives import Archive, ArchivedRow, Archives
from penstock.audit.archiving import rewrite, writing
from penstock.audit.chain import ERASED_SALT, SALT_BYTES
from penstock.audit.own import Deed
from penstock.audit.reading import Reader
from penstock.audit.records import Record, without_content
from penstock.audit.trail import RAW

_TOGETHER: Final = 200


def carry_out(reader: Reader, deed: Deed, *, last: int) -> int:
    """Take what an erasure names out of MongoDB; `last` is the number of the last batch.

    Returns how many records had content.
    """
    taken = 0
    places = deed.places()
    while chunk := list(islice(places, _TOGETHER)):
        taken += _carry_out(reader, deed, dict(chunk), last=last)
    return taken


def say_done(reader: Reader, deed: Deed) -> None:
    """Spare the next erasure to look at this one again."""
    reader.call(lambda: reader.trail.records.update_one({"_id": deed.id}, {"$set": {"done": True}}))


def _carry_out(reader: Reader, deed: Deed, places: dict[int, bytes | None], *, last: int) -> int:
    trail, call = reader.trail, reader.call
    wanted = {"at": {"$in": [Int64(at) for at in places]}}
    records: list[RawBSONDocument] = call(lambda: list(trail.raw_records.find(wanted)))
    numbers = batches_of(reader, places, last=last)
    for record in records:
        drop_pieces(reader, str(record["_id"]))
    drop_staged(reader, numbers)
    taken = 0
    for record in records:
        if "erased" in record:
            continue
        left = erased(record, deed, places[int(record["at"])])
        still = {"_id": record["_id"], "at": record["at"], "erased": {"$exists": False}}
        call(partial(trail.records.replace_one, still, left))
        taken += 1
    for number, at in numbers.items():
        call(partial(_drop_salts, reader, number, at))
    return taken


def erased(record: RawBSONDocument, deed: Deed, digest: bytes | None) -> Record:
    """What a record is once it is erased."""
    said = {"at": Int64(deed.at), "digest": Binary(digest or b""), "by": deed.id}
    return {**without_content(record), "erased": said}


def batches_of(reader: Reader, places: Iterable[int], *, last: int) -> dict[int, list[int]]:
    """By the number of each batch, which of its offsets are of these places."""
    found: dict[int, list[int]] = {}
    number, ends = 0, (0, -1)
    for place in sorted(places):
        if not ends[0] <= place <= ends[1]:
            batch: Any = reader.batch_of_place(place, last=last)
            if batch is None:
                continue
            number, ends = int(batch["_id"]), (int(batch["first"]), int(batch["last"]))
        found.setdefault(number, []).append(place - ends[0])
    return found


def _drop_salts(reader: Reader, number: int, offsets: Sequence[int]) -> None:
    """Zero the salts of some places of a batch; none that another erasure zeroes comes back."""
    batches = reader.trail.batches
    while True:
        batch = batches.find_one({"_id": Int64(number)}, {"salts": 1})
        if batch is None or not isinstance(batch.get("salts"), bytes):
            return
        before = bytes(batch["salts"])
        after = bytearray(before)
        for offset in offsets:
            start = offset * SALT_BYTES
            if start + SALT_BYTES <= len(after):
                after[start : start + SALT_BYTES] = ERASED_SALT
        if after == before:
            return
        moved = {"$set": {"salts": Binary(bytes(after))}}
        still = {"_id": Int64(number), "salts": Binary(before)}
        if batches.update_one(still, moved).matched_count:
            return


def drop_pieces(reader: Reader, record: str) -> None:
    """Remove the values of a record that lie beside it."""
    mine = {"_id": {"$gt": f"{record}:", "$lt": f"{record};"}}
    reader.call(lambda: reader.trail.spilled.delete_many(mine))


def drop_staged(reader: Reader, numbers: Iterable[int]) -> None:
    """Remove staged copies of batches that are in the trail."""
    mine = {
        "source": reader.trail.source,
        "status": "committed",
        "number": {"$in": [Int64(number) for number in numbers]},
    }
    reader.call(lambda: reader.trail.staging.delete_many(mine))


def carry_out_archived(archives: Archives, deed: Deed) -> int:
    """Take what an erasure names out of archives. Returns how many records had content there."""
    taken = 0
    for archive in archives.all:
        with writing(archive):
            taken += _taken_out(archive, deed)
    return taken


def _taken_out(archive: Archive, deed: Deed) -> int:
    counted: list[int] = []
    for file in archive.manifest.files:
        if file.last < deed.first or file.first > deed.last:
            continue
        rows = archive.rows_of(file, deed.first, deed.last)
        if any(_is_of(row, deed) for row in rows):
            everything = archive.rows_of(file, 0, file.last)
            rewrite(archive, file, _erased_rows(everything, deed, counted))
    return len(counted)


def _is_of(row: ArchivedRow, deed: Deed) -> bool:
    return "erased" not in row.record and deed.holds(row.at)


def _erased_rows(
    rows: Iterable[ArchivedRow], deed: Deed, counted: list[int]
) -> Iterator[ArchivedRow]:
    digests = dict(deed.places())
    for row in rows:
        if _is_of(row, deed):
            counted.append(row.at)
            left = bson.encode(erased(row.record, deed, digests[row.at]))
            record = RawBSONDocument(left, RAW)
            yield row._replace(record=record, salt=ERASED_SALT, spilled=None)
        else:
            yield row
