"""Events without what their reader may not see. Pure.

| part | left out |
|---|---|
| documents | hidden fields, also within arrays; every other byte stays as it was stored |
| update | paths that lead to, into or past a hidden field; values lose what is hidden in them |
| unchanged, disambiguated paths | the names of hidden fields |
| key with a hidden field | that field; `penstock_hidden`, as `documentId`, stands for the key |
| digest of a row without a key | as a key with a hidden field, also where an image before is |
| position of such an event | all of it: a source may have written the key into it |
| id of such an event | an HMAC stands for it: a source may have made it of the key |
| before image | all of it without the verb |
| origin, system events | the text of statements, without `admin` or where fields are hidden |
| origin | of `masked`, the names of hidden fields; all of it without the verb of before images |
| schema events | the text of statements where fields are hidden |
| commit rows and digest | always: they are of entries that the reader does not have as they are |

`penstock_hidden` is HMAC-SHA256 of the stream and the key under the service's secret: equal where
keys are, so that a reader can still tell documents apart, and good for nothing else.
"""

import hashlib
import hmac
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from penstock._generated.penstock.v1 import penstock_pb2 as pb
from penstock.event import Kind

HIDDEN_KEY: Final = "penstock_hidden"
"""The field that stands for a key which may not be shown."""
ROW_KEY: Final = "_row"
"""The key of a row whose table has none: a digest of the whole row."""
_ROW_DIGEST: Final = b'{"_row":'
_MASKED: Final = "masked"
_STATEMENT: Final = ("statement", "statementBytes", "statementIn")

_PATHS_MAX: Final = 4_096
"""Paths of fields of which it is remembered whether they are hidden: documents share them."""

_objects: Final = msgspec.json.Decoder(dict[str, Raw])
_arrays: Final = msgspec.json.Decoder(list[Raw])
_names: Final = msgspec.json.Decoder(list[str])
_encode: Final = msgspec.json.Encoder().encode


class Mask(Struct, frozen=True, kw_only=True):
    """What a reader may not see of one stream's events."""

    hidden: frozenset[str] = frozenset()
    """Names of fields; dots lead inside."""
    before_images: bool = True
    hidden_before: frozenset[str] = frozenset()
    """As `hidden`, in images before."""
    statements: bool = True
    """Whether the text of statements is shown."""
    definitions: bool = True
    """Whether the text of statements that changed a shape is."""
    secret: bytes = b""
    """For `penstock_hidden`."""

    @property
    def hides_rows(self) -> bool:
        """Whether something of a row is left out, as it is or as it was: then so is a digest of
        all of it."""
        return bool(self.hidden or self.hidden_before) or not self.before_images


def shown(message: bytes, mask: Mask) -> bytes:
    """Complete Event bytes as the reader of `mask` may see them. A heartbeat stays as it is."""
    event = pb.Event.FromString(message)
    if not event.id:
        return message
    show(event, mask)
    return event.SerializeToString()


def show(event: pb.Event, mask: Mask) -> None:
    """Take out of `event` what the reader of `mask` may not see."""
    event.ClearField("commit_rows")
    event.ClearField("commit_digest")
    event.origin = origin_shown(event.origin, mask)
    kind = int(event.kind)
    if kind != Kind.DATA:
        of_shape = kind == Kind.SCHEMA
        event.full_document = description_shown(event.full_document, mask, of_shape=of_shape)
        return
    if not mask.before_images:
        event.ClearField("full_document_before_change")
    else:
        before = event.full_document_before_change
        event.full_document_before_change = without(before, mask.hidden_before)
    if mask.hidden:
        event.full_document = without(event.full_document, mask.hidden)
        event.update_description = update_shown(event.update_description, mask.hidden)
        event.disambiguated_paths = paths_shown(event.disambiguated_paths, mask.hidden)
        event.unchanged[:] = names_shown(event.unchanged, mask.hidden)
    stream = (event.source, event.database, event.collection)
    key, name = key_shown(event.key, mask, stream)
    if name is not None:
        event.key, event.document_id, event.position = key, name, ""
        event.id = id_shown(event.id, mask)


# --- parts --------------------------------------------------------------------------------------


def without(document: bytes, hidden: frozenset[str]) -> bytes:
    """A JSON object without its hidden fields; nothing stays nothing."""
    return bytes(_stripped(document, "", hidden)) if document and hidden else document


def key_shown(key: bytes, mask: Mask, stream: tuple[str, ...]) -> tuple[bytes, str | None]:
    """A key, and the documentId that stands for it if some of it is hidden."""
    stripped = without(key, mask.hidden)
    is_digest = key.startswith(_ROW_DIGEST) and list(_objects.decode(key)) == [ROW_KEY]
    if mask.hides_rows and is_digest:
        stripped = b"{}"
    if stripped == key:
        return key, None
    said = msgspec.json.encode([*stream]) + b"\0" + key
    name = hmac.new(mask.secret, said, hashlib.sha256).hexdigest()[:32]
    fields: dict[str, Any] = {HIDDEN_KEY: name}
    return _encode({**fields, **_objects.decode(stripped)}), name


def id_shown(event_id: str, mask: Mask) -> str:
    """What stands for the id of an event whose key is hidden."""
    return hmac.new(mask.secret, b"id\0" + event_id.encode(), hashlib.sha256).hexdigest()[:32]


def update_shown(update: bytes, hidden: frozenset[str]) -> bytes:
    """An update's description without its hidden fields."""
    if not update:
        return update
    said: dict[str, Any] = dict(_objects.decode(update))
    if "updatedFields" in said:
        fields: Mapping[str, Raw] = msgspec.json.decode(said["updatedFields"], type=dict[str, Raw])
        said["updatedFields"] = {
            path: _stripped(value, plain_path(path), hidden)
            for path, value in fields.items()
            if not is_hidden(path, hidden)
        }
    if "removedFields" in said:
        said["removedFields"] = names_shown(msgspec.json.decode(said["removedFields"]), hidden)
    if "truncatedArrays" in said:
        cut: list[dict[str, Any]] = msgspec.json.decode(said["truncatedArrays"])
        said["truncatedArrays"] = [one for one in cut if not is_hidden(one["field"], hidden)]
    return _encode(said)


def paths_shown(paths: bytes, hidden: frozenset[str]) -> bytes:
    """Disambiguated paths without those that are hidden."""
    if not paths:
        return paths
    found = _objects.decode(paths)
    return _encode({path: steps for path, steps in found.items() if not is_hidden(path, hidden)})


def names_shown(names: Iterable[str], hidden: frozenset[str]) -> list[str]:
    """Paths without those that are hidden."""
    return [name for name in names if not is_hidden(name, hidden)]


def origin_shown(origin: bytes, mask: Mask) -> bytes:
    """How the source wrote it; without the statement's text where that is not shown, and without
    the names of hidden fields."""
    if not origin:
        return origin
    left = origin if mask.statements else _without_statement(origin)
    return _without_masked(left, mask) if mask.hides_rows else left


def description_shown(description: bytes, mask: Mask, *, of_shape: bool) -> bytes:
    """What a control event says."""
    seen = mask.definitions if of_shape else mask.statements
    return description if seen or not description else _without_statement(description)


@lru_cache(_PATHS_MAX)
def is_hidden(path: str, hidden: frozenset[str]) -> bool:
    """Whether the path of an update leads to a hidden field, or into one."""
    return _within(path.replace("\\", ""), hidden) or _within(plain_path(path), hidden)


def _within(path: str, hidden: frozenset[str]) -> bool:
    return path in hidden or any(path.startswith(f"{name}.") for name in hidden)


@lru_cache(_PATHS_MAX)
def plain_path(path: str) -> str:
    """A path without places in arrays. A field whose name is a number is taken for one, so that
    more is hidden rather than less."""
    first, *rest = path.replace("\\", "").split(".")
    return ".".join([first, *(step for step in rest if not step.isdecimal())])


@lru_cache(_PATHS_MAX)
def _leads_in(path: str, hidden: frozenset[str]) -> bool:
    prefix = f"{path}." if path else ""
    return any(name.startswith(prefix) for name in hidden)


def _stripped(value: Raw | bytes, path: str, hidden: frozenset[str]) -> Raw:
    """A value at `path` without what is hidden in it."""
    encoded = bytes(value)
    first = encoded[:1]
    if first == b"{" and _leads_in(path, hidden):
        kept: dict[str, Raw] = {}
        changed = False
        for name, inner in _objects.decode(encoded).items():
            # A name with dots of its own is taken for a path, so that more is hidden.
            at = f"{path}.{name}" if path else name
            if is_hidden(at, hidden):
                changed = True
                continue
            kept[name] = _stripped(inner, plain_path(at), hidden)
            changed = changed or kept[name] is not inner
        if changed:
            return Raw(_encode(kept))
    elif first == b"[" and _leads_in(path, hidden):
        elements: Sequence[Raw] = _arrays.decode(encoded)
        stripped = [_stripped(one, path, hidden) for one in elements]
        if any(one is not other for one, other in zip(stripped, elements, strict=True)):
            return Raw(_encode(stripped))
    return value if isinstance(value, Raw) else Raw(encoded)


def _without_statement(said: bytes) -> bytes:
    facts = _objects.decode(said)
    if not any(name in facts for name in _STATEMENT):
        return said
    return _encode({name: fact for name, fact in facts.items() if name not in _STATEMENT})


def _without_masked(origin: bytes, mask: Mask) -> bytes:
    """That a value changed is told of the image before it, too."""
    facts: dict[str, Any] = dict(_objects.decode(origin))
    if _MASKED not in facts:
        return origin
    try:
        names = _names.decode(facts.pop(_MASKED))
    except msgspec.ValidationError:  # of another's source: nobody knows what it is
        names = []
    hidden = mask.hidden | mask.hidden_before
    left = names_shown(names, hidden) if mask.before_images else []
    return _encode({**facts, _MASKED: left} if left else facts)
