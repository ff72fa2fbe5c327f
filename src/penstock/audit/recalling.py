"""Take back what commits that are in no trail have left in staging.

A driver that ended in the middle of a large commit leaves the parts of it, until the next one
begins. They are recalled: the head's `recalled` goes up, so that the compare-and-set by which they
would become committed fails, whoever tries it; then they go, with the values that lie beside them.
A driver that lives finds its parts recalled at the end of the commit, and writes it anew from the
log, as it does behind an erasure.
"""

import time
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from bson.int64 import Int64
from msgspec import structs

from penstock.audit.heads import unmoved
from penstock.audit.outages import Patience
from penstock.audit.own import require_head
from penstock.audit.reading import Reader
from penstock.audit.trail import Document, Head, Trail
from penstock.errors import TrailBusyError

_PAUSE: Final = 0.2


def recall(trail: Trail, patience: Patience) -> int:
    """Remove the parts of commits that have not ended; returns how many there were.

    Of those of the driver whose trail it is too. Repeating it changes nothing. Raises
    TrailBusyError while a commit is on its way in, for what is in the trail then is not all shown.
    """
    until = time.monotonic() + trail.config.answer_seconds
    while True:
        head = require_head(trail, patience)
        found = None if head.staged else patience.call(partial(_recalled, trail, head))
        if found is not None:
            return _drop(trail, patience, found)
        if time.monotonic() > until:
            raise TrailBusyError(trail=trail.source)
        patience.pause(_PAUSE)


def _recalled(trail: Trail, head: Head) -> Head | None:
    """The head, behind all parts that are there; None if it moved meanwhile."""
    now = {"epoch": Int64(head.epoch), "recalled": Int64(head.recalled)}
    if trail.staging.find_one({**_pending(trail), **now}, {"_id": 1}) is None:
        return head
    moved = trail.heads.update_one(unmoved(head), {"$inc": {"recalled": Int64(1)}})
    # Where the answer of an attempt before was lost, another look shows that it was done.
    return structs.replace(head, recalled=head.recalled + 1) if moved.matched_count else None


def _pending(trail: Trail) -> Document:
    return {"source": trail.source, "status": "pending"}


def _older(head: Head) -> Document:
    """Finds what was written under a head that cannot move any more."""
    return {
        "$or": [
            {"epoch": {"$lt": Int64(head.epoch)}},
            {"epoch": Int64(head.epoch), "recalled": {"$lt": Int64(head.recalled)}},
        ]
    }


def _drop(trail: Trail, patience: Patience, head: Head) -> int:
    parts = {**_pending(trail), **_older(head)}
    shape = {"events._id": 1, "events.spilled": 1}

    def spilled() -> Iterator[str]:
        for part in trail.staging.find(parts, shape):
            events: list[Any] = part["events"]
            yield from (str(one["_id"]) for one in events if "spilled" in one)

    # First what is found through the parts: a record that came into the trail since keeps its own.
    names = patience.call(lambda: list(spilled()))
    reader = Reader(trail, patience)
    for name in names:
        if reader.record(name) is None:
            mine = {"_id": {"$gt": f"{name}:", "$lt": f"{name};"}, **_older(head)}
            patience.call(partial(trail.spilled.delete_many, mine))
    return patience.call(lambda: trail.staging.delete_many(parts).deleted_count)
