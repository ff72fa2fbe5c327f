"""Whether the ids that a writer leaves out are those that retirements took, and all of them.

Whoever may write to `_retired` could have a change left out that is still to come, or let one in
twice. So a retirement's record keeps a digest of each id, by which every entry is proved.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final

from bson.int64 import Int64
from bson.raw_bson import RawBSONDocument

from penstock.audit.deeds import Deeds
from penstock.audit.findings import Findings
from penstock.audit.own import Deed, id_digest
from penstock.audit.reading import Reader
from penstock.audit.trail import Document

_TOGETHER: Final = 1000


def look_at_retired(reader: Reader, deeds: Deeds, findings: Findings) -> None:
    """Prove every entry of `_retired`, beside a retirement that goes on."""
    for entry in _unnamed(reader, deeds):
        _forged(findings, entry)
    for deed in list(deeds.all):
        if deed.act == "retire":
            _look(reader, deeds, deed, findings)


def _unnamed(reader: Reader, deeds: Deeds) -> Iterator[RawBSONDocument]:
    """Entries of places that no retirement names."""
    covered = (at for at, number, _ in deeds.in_order() if deeds.all[number].act == "retire")
    place = next(covered, None)
    begun = len(deeds.all)
    for entry in reader.retired():
        at = entry.get("at")
        if type(at) is Int64:
            while place is not None and place < at:
                place = next(covered, None)
            if place == at:
                continue
            deeds.reach()  # it may have been told since
            newer = deeds.all[begun:]
            if any(one.act == "retire" and one.holds(at) for one in newer):
                continue
        yield entry


def _look(reader: Reader, deeds: Deeds, deed: Deed, findings: Findings) -> None:
    """Whether the ids of a retirement are kept, each as it was."""
    whole = deeds.whole(deed)
    if whole is None:
        return  # it was altered meanwhile: the next proof tells it
    places = whole.places()
    while chunk := dict(islice(places, _TOGETHER)):
        missing = set(chunk)
        for entry in reader.call(partial(_at, reader, list(chunk))):
            if type(entry["at"]) is not Int64:
                continue  # it has no place, and is told
            if id_digest(str(entry["_id"])) == chunk[int(entry["at"])]:
                missing.discard(int(entry["at"]))
            else:
                _forged(findings, entry)
        for place in sorted(missing):
            # In this order: an id is kept before its record goes.
            if reader.record_at(place) is None and not _there(reader, place, chunk[place]):
                says = "it was retired, and its id is not kept: read again, it would be added again"
                findings.add("retirement", "missing", says, at=place)


def _at(reader: Reader, places: Sequence[int]) -> list[Document]:
    return list(reader.trail.retired.find({"at": {"$in": [Int64(place) for place in places]}}))


def _there(reader: Reader, place: int, digest: bytes | None) -> bool:
    found: list[Document] = reader.call(partial(_at, reader, [place]))
    return any(id_digest(str(one["_id"])) == digest for one in found)


def _forged(findings: Findings, entry: Mapping[str, Any]) -> None:
    at: Any = entry.get("at")
    says = "no retirement of the trail took this id, and a change that has it would be left out"
    place = int(at) if isinstance(at, int) else None
    findings.add("retirement", "inserted", says, at=place, id=str(entry["_id"])[:128])
