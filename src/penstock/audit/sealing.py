"""Whether a seal_key is the one that a trail's chain is made with."""

from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from bson.int64 import Int64

from penstock.audit.chain import NO_BATCH
from penstock.audit.checks import Link, proved
from penstock.audit.trail import Document, Trail

T = TypeVar("T")
_TOGETHER: Final = 1000
_SAID: Final = dict.fromkeys(("source", "first", "last", "root", "before", "hash"), 1)
OTHER_KEY: Final = (
    "no batch has a hash that the configured seal_key makes: the chain was begun with another key "
    "or none, or somebody without the key made it anew"
)
USE_ITS_KEY: Final = (
    "Set seal_key to the key that the trail was begun with; if it is that one, see "
    "`penstock audit verify`, and put the trail back from a backup."
)


class Call(Protocol):
    """Calls MongoDB, as often as its caller wishes."""

    def __call__(self, act: Callable[[], T], /) -> T: ...


def key_fits(trail: Trail, call: Call, *, last: int, ends: bytes | None) -> bool:
    """Whether the key makes the hash of one batch at least, up to number `last`, behind which the
    head says `ends`; True without a key or a batch.

    Of a chain under this key the last batch shows it at once. Where that one was altered another
    one does, so that a forged batch is never taken for another key.
    """
    if trail.key is None:
        return True
    batch = call(lambda: trail.batches.find_one({"_id": Int64(last)}))
    if batch is not None and _fits(trail, batch, ends):
        return True
    at: Any = Int64(0)
    while found := call(partial(_some, trail, at, last)):
        follows = [*(one.get("before") for one in found[1:]), None]
        if any(_fits(trail, one, after) for one, after in zip(found, follows, strict=True)):
            return True
        at = found[-1]["_id"]
    return bool(at == 0)


def _some(trail: Trail, after: Any, last: int) -> list[Document]:
    wanted = {"_id": {"$gt": after, "$lte": Int64(last)}}
    return list(trail.batches.find(wanted, _SAID).sort("_id", 1).limit(_TOGETHER))


def _fits(trail: Trail, batch: Document, follows: Any) -> bool:
    """Whether what a batch says of itself, or its leaves, gives the hash that is kept of it."""
    number, first, before = (batch.get(name) for name in ("_id", "first", "before"))
    if not isinstance(number, int) or not isinstance(first, int) or not isinstance(before, bytes):
        return False
    if first < 1:
        return False
    link = Link(0, 0, NO_BATCH) if number == 1 else Link(number - 1, first - 1, before)
    return proved(
        batch,
        link,
        source=trail.source,
        key=trail.key,
        next_before=follows if isinstance(follows, bytes) else None,
    ).kept
