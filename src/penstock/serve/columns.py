"""Batches of the log without what their reader may not see, for Flight. Pure.

The same as `wire.shown`, column by column; what only proves an entry (`check`, the commit's rows
and digest) is null where a part may be left out, and `key_hash` of a key that is replaced is made
of what stands for it.
"""

# The stubs of pyarrow leave element types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa

from penstock.event import Kind
from penstock.wire import ARROW_SCHEMA, Mask, Stream, key_hash
from penstock.wire.shown import (
    description_shown,
    id_shown,
    key_shown,
    names_shown,
    origin_shown,
    paths_shown,
    update_shown,
    without,
)

_NEEDED: Final = ("kind", "key", *Stream._fields)
_PROOFS: Final = ("check", "commit_rows", "commit_digest")
_BY_KEY: Final = ("key", "document_id", "position", "event_id", "key_hash")


class _Key(NamedTuple):
    """What stands in the place of a key."""

    key: bytes
    document_id: str
    stream: Stream
    mask: Mask

    def of(self, name: str, own: Any) -> Any:
        """What stands for a row's own value."""
        if name == "key":
            return self.key.decode()
        if name == "document_id":
            return self.document_id
        if name == "event_id":
            return id_shown(own, self.mask)
        return "" if name == "position" else key_hash(self.stream, self.key)


def needed(columns: Sequence[str]) -> list[str]:
    """The columns that must be read to show `columns`."""
    return [*columns, *(name for name in _NEEDED if name not in columns)]


def batch_shown(
    batch: pa.RecordBatch, columns: Sequence[str], mask_of: Callable[[Stream], Mask | None]
) -> pa.RecordBatch:
    """`columns` of a batch that has all that are `needed`."""
    streams = list(map(Stream, *(batch.column(name).to_pylist() for name in Stream._fields)))
    known = {stream: mask_of(stream) for stream in set(streams)}
    masks = [known[stream] for stream in streams]
    kinds: list[Any] = batch.column("kind").to_pylist()
    arrays: dict[str, Any] = {}
    keys: list[_Key | None] = []
    if any(name in columns for name in _BY_KEY):
        keys = _keys(batch, streams, masks)
    for name in columns:
        kind = ARROW_SCHEMA.field(name).type
        if name in _PROOFS:
            arrays[name] = _proofs(batch.column(name), masks)
        elif name in _BY_KEY:
            arrays[name] = _by_key(batch, name, keys)
        elif name in _SHOWN:
            show = _SHOWN[name]
            found = batch.column(name).to_pylist()
            shown = [
                value if mask is None or value is None else show(value, mask, of)
                for value, mask, of in zip(found, masks, kinds, strict=True)
            ]
            arrays[name] = pa.array(shown, kind)
        else:
            arrays[name] = batch.column(name)
    schema = pa.schema([ARROW_SCHEMA.field(name) for name in columns])
    return pa.RecordBatch.from_arrays([arrays[name] for name in columns], schema=schema)


def _proofs(column: Any, masks: Sequence[Mask | None]) -> Any:
    """What proves an entry, of those that are shown as they are."""
    values = zip(column.to_pylist(), masks, strict=True)
    return pa.array([one if mask is None else None for one, mask in values], column.type)


def _keys(
    batch: pa.RecordBatch, streams: Sequence[Stream], masks: Sequence[Mask | None]
) -> list[_Key | None]:
    """Of each row, what stands in the place of its key; None where it is shown."""
    found: list[_Key | None] = []
    for key, stream, mask in zip(batch.column("key").to_pylist(), streams, masks, strict=True):
        replaced = None
        if key and mask is not None and mask.hides_rows:
            names = (stream.source, stream.database, stream.collection)
            other, name = key_shown(key.encode(), mask, names)
            replaced = None if name is None else _Key(other, name, stream, mask)
        found.append(replaced)
    return found


def _by_key(batch: pa.RecordBatch, name: str, keys: Sequence[_Key | None]) -> Any:
    own = batch.column(name)
    if not any(keys):
        return own
    values = zip(own.to_pylist(), keys, strict=True)
    return pa.array([one if key is None else key.of(name, one) for one, key in values], own.type)


def _document(value: str, mask: Mask, kind: int) -> str | None:
    if kind == Kind.DATA:
        return without(value.encode(), mask.hidden).decode()
    said = description_shown(value.encode(), mask, of_shape=kind == Kind.SCHEMA)
    return said.decode()


def _before(value: str, mask: Mask, _: int) -> str | None:
    return without(value.encode(), mask.hidden_before).decode() if mask.before_images else None


_SHOWN: Final[dict[str, Callable[[Any, Mask, int], Any]]] = {
    "full_document": _document,
    "full_document_before_change": _before,
    "update_description": lambda value, mask, _: (
        update_shown(value.encode(), mask.hidden).decode() if mask.hidden else value
    ),
    "disambiguated_paths": lambda value, mask, _: (
        paths_shown(value.encode(), mask.hidden).decode() if mask.hidden else value
    ),
    "unchanged": lambda value, mask, _: names_shown(value, mask.hidden),
    "origin": lambda value, mask, _: origin_shown(value.encode(), mask).decode(),
}
