"""Whether every piece of spilled values belongs to a record that has it.

Pieces are written before the batch of their record. So those of a batch that is being written
belong to no record yet, and those of a batch whose writer ended stay, until another writer writes
it again. A piece says which writer wrote it; nothing proves that.
"""

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from penstock.audit.checks import facts_of, spilled_of
from penstock.audit.findings import Findings
from penstock.audit.reading import Reader
from penstock.audit.trail import Document, Head
from penstock.audit.writing import SPILL_BYTES
from penstock.errors import TrailHeadError

_TOGETHER: Final = 500
_NAME: Final = re.compile(r"(.+):(0|[1-9][0-9]{0,17})", re.DOTALL)
_OF_RECORDS: Final = dict.fromkeys(
    ("at", "erased", "spilled", "meta.db", "meta.tbl", "meta.pk_text"), 1
)
_OF_PIECES: Final = dict.fromkeys(("epoch", "recalled"), 1)


def look_at_pieces(reader: Reader, findings: Findings) -> int:
    """Report each piece that belongs to no record, beside a writer that goes on.

    Those are not reported whose batch may be on its way, or may never have been written: returns
    how many they are.
    """
    waiting = 0
    after: Any = None
    while True:
        found: list[Any] = reader.call(partial(_names, reader, after))
        waiting += _look(reader, [name for name in found if name != after], findings)
        if len(found) < _TOGETHER:
            return waiting
        after = found[-1]


def _names(reader: Reader, after: Any) -> list[Any]:
    """The next names, of any type, in their order; from `after` on, if that is still there."""
    found = reader.trail.spilled.find({}, {"_id": 1}).sort("_id", 1).hint([("_id", 1)])
    if after is not None:
        found = found.min([("_id", after)])
    return [one["_id"] for one in found.limit(_TOGETHER)]


def _look(reader: Reader, names: Sequence[Any], findings: Findings) -> int:
    """Judge one page; returns how many may be of a batch that is not written."""
    owners = {owner for owner, _ in map(_owner, names)}
    records: dict[str, Document] = {
        str(one["_id"]): one for one in reader.call(partial(_records, reader, owners))
    }
    strays = [name for name in names if not _belongs(name, records)]
    if not strays:
        return 0
    # In this order: an erasure or a retirement takes pieces too, and a writer is in the head first.
    pieces: list[Document] = reader.call(partial(_pieces, reader, strays))
    head = _head(reader)
    waiting = 0
    erased: dict[str, Document] = {}
    for piece in pieces:
        owner, number = _owner(piece["_id"])
        record = records.get(owner)
        if record is not None and "erased" in record:
            erased[owner] = record
        elif number is not None and _may_wait(piece, record, head):
            waiting += 1
        else:
            _tell(findings, piece["_id"], record)
    for name, record in erased.items():
        says = "it is erased, and values of it still lie in the spilled ones"
        findings.add("record", "unfinished", says, at=_place(record), id=name, part="spilled")
    return waiting


def _owner(name: Any) -> tuple[str, int | None]:
    """The record that a piece is named after, and its number; None for what is no piece's name."""
    found = _NAME.fullmatch(name) if isinstance(name, str) else None
    return ("", None) if found is None else (found[1], int(found[2]))


def _belongs(name: Any, records: dict[str, Document]) -> bool:
    owner, number = _owner(name)
    record = records.get(owner)
    if record is None or number is None or "erased" in record or "spilled" not in record:
        return False
    said = spilled_of(record)
    # Where it does not say how much, it was altered, and the walk says so.
    return said is None or number * SPILL_BYTES < said[0]


def _may_wait(piece: Document, record: Document | None, head: Head | None) -> bool:
    """Whether a writer may have written it, and its batch not, or another writer the batch.

    Another writer's may have been larger (`batch_bytes`), and its record hold the values. Of those
    that are spilled, every writer makes the same pieces.
    """
    written = piece.get("epoch"), piece.get("recalled")
    if not all(isinstance(one, int) for one in written):
        return False
    if record is not None and "spilled" in record:
        return False
    if head is None:
        return True
    stands = head.epoch, head.recalled
    return written <= stands if record is None else written < stands


def _tell(findings: Findings, name: Any, record: Document | None) -> None:
    owner, number = _owner(name)
    if number is None:
        says = "it lies among the spilled values, and its name is not that of a piece"
        findings.add("piece", "inserted", says, id=str(name)[:128])
        return
    facts: dict[str, Any] = {"id": owner[:128]}
    says = f"number {number} of its spilled values is there, and the record is not"
    if record is not None:
        facts = {"at": _place(record), **facts_of(record)._asdict()}
        says = f"number {number} of its spilled values is there, and the record has none such"
    findings.add("piece", "inserted", says, part=str(number), **facts)


def _place(record: Document) -> int | None:
    at = record.get("at")
    return at if isinstance(at, int) else None


def _records(reader: Reader, names: Iterable[str]) -> list[Document]:
    wanted = {"_id": {"$in": list(names)}}
    return list(reader.trail.records.find(wanted, _OF_RECORDS))


def _pieces(reader: Reader, names: Sequence[Any]) -> list[Document]:
    wanted = {"_id": {"$in": list(names)}}
    return list(reader.trail.spilled.find(wanted, _OF_PIECES).sort("_id", 1))


def _head(reader: Reader) -> Head | None:
    """The head; None for one that is not there or cannot be read, which the proof reports."""
    head: Head | None = None
    with suppress(TrailHeadError):
        head = reader.call(reader.trail.head)
    return head
