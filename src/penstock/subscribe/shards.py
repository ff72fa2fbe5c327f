"""Which shard an event belongs to, so that several readers can share one stream. Pure.

A document's shard is a function of the values of `by`, in their order:

    XXH3-64( for each value: its length as 32 bits, little-endian, then its bytes ) modulo `count`

`source`, `database`, `tenant` and `collection` are text; `documentId` is the typed key, as JSON, so
5 and "5" are two documents; any other name is a top-level field of the document, as JSON (no bytes
if it has none). A field that is called like one of these is written `document.NAME`.

By what a document cannot change (the first five) every event has one shard, deletes included
(P24). By a field, a document can move: then an event goes to every shard that may hold the
document, and to those that it is not in any more as a delete. What an event does not tell may be
anything: a delete or a replace without the document before it, an update of the field, and a
copied row go to all.
"""

from collections.abc import Mapping, Sequence
from enum import Enum
from functools import lru_cache
from typing import Any, Final

import msgspec
import xxhash
from msgspec import Raw, Struct

from penstock.errors import RequestError
from penstock.event import Operation
from penstock.wire import OPERATION_CODES, Block, Stream, unchanged_of
from penstock.wire.layout import FLAG_SNAPSHOT

COUNT_MAX: Final = 1024

_OF_STREAM: Final = ("source", "database", "tenant", "collection")
_KEY: Final = "documentId"
_SPELLINGS: Final = {"document_id": _KEY, "tenantId": "tenant", "tenant_id": "tenant"}
_FIELD: Final = "document."

_UPDATE: Final = OPERATION_CODES[Operation.UPDATE]
_INSERT: Final = OPERATION_CODES[Operation.INSERT]
_DELETE: Final = OPERATION_CODES[Operation.DELETE]

_Document = Mapping[str, Raw]


class Claim(Enum):
    """What an event is to a reader of some shards."""

    NONE = "none"
    """Its document neither is nor was in them."""
    HELD = "held"
    LEAVING = "leaving"
    """Its document may have been in them, and is not any more: it goes out as a delete."""


class Shards(Struct, frozen=True, kw_only=True):
    """The shards that a reader takes, of all that there are.

    Raises RequestError for what cannot be meant: whoever got everything, or nothing, for a slip
    would not notice.
    """

    by: tuple[str, ...]
    """The names of the values that a document's shard is made of."""
    count: int
    """How many there are: 1 to COUNT_MAX, the same for every reader that shares the stream."""
    ids: frozenset[int]
    """Those that this reader takes, from 0."""

    def __post_init__(self) -> None:
        if not self.by:
            raise _refused("shard_by is empty: it says what shards are made by, as documentId")
        if len(set(self.by)) < len(self.by) or not all(self.by):
            raise _refused("shard_by has a name twice, or an empty one")
        if not 1 <= self.count <= COUNT_MAX:
            raise _refused(f"shard_count is {self.count}: it must be from 1 to {COUNT_MAX}")
        if not self.ids:
            raise _refused("shard_ids is empty: it says which shards are wanted")
        if not all(0 <= number < self.count for number in self.ids):
            raise _refused(f"shard_ids: shards are numbered from 0 to {self.count - 1}")

    @property
    def by_field(self) -> bool:
        """Whether a document can move from one shard to another."""
        return any(name not in _OF_STREAM and name != _KEY for name in self.by)

    @property
    def fields(self) -> list[str]:
        """The fields of a document among the values."""
        return _fields(self)

    def holds(self, stream: Stream, key: bytes, document: bytes | None) -> bool:
        """Whether a current row is in them. One whose document is not known is in all shards by
        field, as its changes are."""
        if document is None and self.by_field:
            return True
        return _shard(self, stream, key, _document(document or b"") or {}) in self.ids

    def claim(self, block: Block, i: int) -> Claim:
        """What the data entry `i` is to the reader."""
        if not self.by_field:
            key = block.cell(i, "key")
            held = _shard(self, block.stream(i), key, {}) in self.ids
            return Claim.HELD if held else Claim.NONE
        return _claim_by_field(self, block, i)


def shards_of(by: Sequence[str], count: int, ids: Sequence[int]) -> Shards | None:
    """The shards that a request asks for; None if it asks for none, and so for everything.

    Raises RequestError as Shards does.
    """
    if not by and not count and not ids:
        return None
    if len(set(ids)) < len(ids):
        raise _refused("shard_ids has a shard twice")
    names = tuple(_SPELLINGS.get(name, name) for name in by)
    return Shards(by=names, count=count, ids=frozenset(ids))


def _refused(problem: str) -> RequestError:
    return RequestError(f"{problem}. Nothing was sent.")


def _claim_by_field(shards: Shards, block: Block, i: int) -> Claim:
    stream, key = block.stream(i), block.cell(i, "key")
    operation = int(block.index["operation"][i])
    before = _document(block.cell(i, "full_document_before_change"))
    was = None if before is None else _shard(shards, stream, key, before)
    if operation == _DELETE:
        # Nothing is known of a document that is gone, so it is gone from everywhere.
        return Claim.HELD if was is None or was in shards.ids else Claim.NONE
    after = _document(block.cell(i, "full_document"))
    if after is None or _unsent(shards, block, i):
        # A reader without the document has nothing that this update could apply to.
        return Claim.HELD
    now = _shard(shards, stream, key, after)
    if now in shards.ids:
        return Claim.HELD
    copied = bool(block.index["flags"][i] & FLAG_SNAPSHOT)
    if operation == _INSERT and not copied:
        return Claim.NONE
    if operation == _UPDATE and was is None and not _touched(shards, block, i):
        return Claim.NONE
    return Claim.LEAVING if was is None or was in shards.ids else Claim.NONE


def _shard(shards: Shards, stream: Stream, key: bytes, document: _Document) -> int:
    parts: list[bytes] = []
    for name in shards.by:
        if name == _KEY:
            value = key
        elif name in _OF_STREAM:
            value = _text(getattr(stream, name))
        else:
            value = bytes(document.get(name.removeprefix(_FIELD), b""))
        parts.append(len(value).to_bytes(4, "little"))
        parts.append(value)
    return xxhash.xxh3_64_intdigest(b"".join(parts)) % shards.count


@lru_cache(maxsize=4096)
def _text(value: str) -> bytes:
    return value.encode()


def _document(encoded: bytes) -> _Document | None:
    return msgspec.json.decode(encoded, type=dict[str, Raw]) if encoded else None


def _fields(shards: Shards) -> list[str]:
    return [
        name.removeprefix(_FIELD) for name in shards.by if name not in _OF_STREAM and name != _KEY
    ]


def _unsent(shards: Shards, block: Block, i: int) -> bool:
    """Whether the document lacks a field of the shard because the source did not send it again."""
    unsent = unchanged_of(block.stored(i)) if block.index["unchanged"][i] else []
    return any(name in unsent for name in _fields(shards))


def _touched(shards: Shards, block: Block, i: int) -> bool:
    """Whether an update may have changed a field of the shard."""
    encoded = block.cell(i, "update_description")
    if not encoded:
        return True
    said: dict[str, Any] = msgspec.json.decode(encoded)
    paths = [
        *said.get("updatedFields", {}),
        *said.get("removedFields", []),
        *(one["field"] for one in said.get("truncatedArrays", [])),
    ]
    fields = _fields(shards)
    # A field's name may have dots of its own; a path that only begins like it counts as well.
    return any(path == name or path.startswith(f"{name}.") for path in paths for name in fields)
