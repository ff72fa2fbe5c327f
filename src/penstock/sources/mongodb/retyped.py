"""Writes that keep a document but give its `_id` another type. Pure.

To MongoDB the `_id`s 5, 5.0 and Decimal128("5") are equal, so a replace, or an update with a
pipeline, may put one in the place of another, also inside an `_id` that is a document. To us they
are two keys (decision 0012), as they are to every table and dictionary. So such a write is a delete
of the old key and what brings the new one.

Seen on 6.0.5 and 6.0.27: `documentKey` is the `_id` before the write, in its old type; the document
has the new one; all later events have the new one as their `documentKey`. A replace is reported as
such; a pipeline's update as a replace too, unless a description is shorter, and then `_id` or a
path below it is in `updatedFields`. Update operators refuse to touch `_id`.

A document that was looked up (P25) is found by a key that is equal to the server, so it may be one
that a later write has given another type. That says no more than a look-up that finds nothing: the
key that the event was of is gone by then, and its end follows in the stream.
"""

# A document's values may be anything, and isinstance says no more than "a dict".
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from typing import Any, NamedTuple

from bson import Int64, ObjectId

from penstock.event import Operation
from penstock.sources.mongodb.documents import BsonEncoder
from penstock.updates import InexactError, apply_update

Document = dict[str, Any]

_PLAIN = frozenset({ObjectId, str, int, Int64, bool})
"""Types of which equal values are one key."""


class Told(NamedTuple):
    """One of the changes that an event is told as."""

    operation: Operation
    document: Document
    """The raw event, as it would be if the server had told just this."""


def told(
    operation: Operation, document: Document, *, images: bool, encoder: BsonEncoder
) -> tuple[Told, ...]:
    """What a raw replace or update is told as: mostly itself alone.

    `images`: the document of an update is a stored post-image, and not looked up.

    Raises TypeError for a write that gives `_id` another type where the new document is not known.
    """
    key = document["documentKey"]
    if "_id" not in key:
        return (Told(operation, document),)
    full = document.get("fullDocument")
    old = key["_id"]
    found = old if full is None else full["_id"]
    if operation is Operation.REPLACE or (images and full is not None):
        new = found
    else:
        new = _updated(old, document.get("updateDescription") or {})
    if new is old or _is_same(new, old, encoder):
        if found is old or _is_same(found, old, encoder):
            return (Told(operation, document),)
        return (Told(operation, {**document, "fullDocument": None}),)
    gone = {
        name: value
        for name, value in document.items()
        if name not in {"fullDocument", "updateDescription"}
    }
    come = {**document, "documentKey": {**key, "_id": new}}
    come.pop("fullDocumentBeforeChange", None)
    if full is not None and (found is new or _is_same(found, new, encoder)):
        come.pop("updateDescription", None)
        return (Told(Operation.DELETE, gone), Told(Operation.INSERT, come))
    if images or "fullDocument" not in document:
        raise TypeError(
            "its _id gets another type, and the new document is not known (full_document = "
            "'updateLookup', or stored post-images, would tell it)"
        )
    return (Told(Operation.DELETE, gone), Told(operation, {**come, "fullDocument": None}))


def _updated(old: Any, update: Document) -> Any:
    """The `_id` after an update's description; `old` itself where it does not touch it."""
    updated: Document = update.get("updatedFields") or {}
    if "_id" in updated:
        return updated["_id"]
    paths: Document | None = update.get("disambiguatedPaths")
    below = {
        path: value
        for path, value in updated.items()
        # Else it is of a field whose own name begins with "_id.".
        if path.startswith("_id.") and (paths or {}).get(path, ["_id"])[0] == "_id"
    }
    if not below or not isinstance(old, dict):
        return old
    try:
        return apply_update({"_id": old}, {"updatedFields": below}, paths)["_id"]
    except InexactError:
        return old


def _is_same(a: Any, b: Any, encoder: BsonEncoder) -> bool:
    """Whether two values of `_id` are one key."""
    if type(a) is type(b) and type(a) in _PLAIN:
        return bool(a == b)
    return bytes(encoder.encode({"_id": a})) == bytes(encoder.encode({"_id": b}))
