"""A captured change as records of the protocol, and which views of its stream it can fill. Pure."""

from typing import Any, Final

import xxhash
from msgspec import Struct

from penstock._generated.penstock.v1 import penstock_pb2 as pb
from penstock.event import Operation
from penstock.serve.dynamodb.captured.names import FIRST_OF_TWO, LAST, place_of
from penstock.serve.dynamodb.captured.values import Told, item_of, key_of, key_within
from penstock.serve.dynamodb.config import ViewType
from penstock.serve.dynamodb.numbers import number_of

KEYS_ONLY: Final[ViewType] = "KEYS_ONLY"
_NEW: Final = frozenset({"NEW_IMAGE", "NEW_AND_OLD_IMAGES"})
_OLD: Final = frozenset({"OLD_IMAGE", "NEW_AND_OLD_IMAGES"})


class Record(Struct, frozen=True):
    """One record of the protocol."""

    place: int
    check: int
    """Of all that the log tells up to it."""
    event_id: str
    event: str
    """INSERT, MODIFY or REMOVE."""
    seconds: int
    keys: Told
    new: Told | None
    old: Told | None
    view: ViewType

    @property
    def size(self) -> int:
        """SizeBytes: keys and images, as they are in the record."""
        return self.keys.size + sum(image.size for image in (self.new, self.old) if image)

    def write(self, *, region: str) -> dict[str, Any]:
        """The record as GetRecords answers it."""
        change: dict[str, Any] = {
            "ApproximateCreationDateTime": self.seconds,
            "Keys": self.keys.attributes,
            "SequenceNumber": number_of(self.place, self.check),
            "SizeBytes": self.size,
            "StreamViewType": self.view,
        }
        if self.new is not None:
            change["NewImage"] = self.new.attributes
        if self.old is not None:
            change["OldImage"] = self.old.attributes
        return {
            "eventID": self.event_id,
            "eventName": self.event,
            "eventVersion": "1.1",
            "eventSource": "aws:dynamodb",
            "awsRegion": region,
            "dynamodb": change,
        }


def views_of(event: pb.Event) -> frozenset[ViewType]:
    """The views that can show all of the change: those whose images the log has, as of the event.

    An insert had nothing before, and a delete leaves nothing. A document that was looked up later,
    or lacks fields that were not sent again, is no image.
    """
    operation = event.operation_type
    after = operation == Operation.DELETE or (
        bool(event.full_document) and event.full_document_as_of_event and not event.unchanged
    )
    before = operation == Operation.INSERT or bool(event.full_document_before_change)
    fits: set[ViewType] = {"KEYS_ONLY"}
    if after:
        fits.add("NEW_IMAGE")
    if before:
        fits.add("OLD_IMAGE")
    if after and before:
        fits.add("NEW_AND_OLD_IMAGES")
    return frozenset(fits)


def best_of(views: frozenset[ViewType]) -> ViewType:
    """What a stream is given where nobody asks for a view."""
    if "NEW_AND_OLD_IMAGES" in views:
        return "NEW_AND_OLD_IMAGES"
    return "NEW_IMAGE" if "NEW_IMAGE" in views else KEYS_ONLY


def records_of(event: pb.Event, *, sequence: int, check: int, view: ViewType) -> list[Record]:
    """The records of a change that fits the view: one; two where the key changed; none where the
    item before and after is the same."""
    keys = key_of(event.key)
    names = tuple(keys.attributes)
    insert = event.operation_type == Operation.INSERT
    delete = event.operation_type == Operation.DELETE
    after = before = None
    if not delete and event.full_document:
        after = item_of(event.full_document, names)
    if not insert and event.full_document_before_change:
        before = item_of(event.full_document_before_change, names)
    new = after if view in _NEW else None
    old = before if view in _OLD else None

    def record(part: int, kind: str, keys: Told, new: Told | None, old: Told | None) -> Record:
        return Record(
            place_of(sequence, part),
            check,
            event.id if part == LAST else xxhash.xxh3_128_hexdigest(f"{event.id}:{part}".encode()),
            kind,
            event.timestamp // 1000,
            keys,
            new,
            old,
            view,
        )

    if insert:
        return [record(LAST, "INSERT", keys, new, None)]
    if delete:
        return [record(LAST, "REMOVE", keys, None, old)]
    whole = event.full_document_as_of_event and not event.unchanged
    seen = before is not None and after is not None and whole
    if seen and before == after:
        return []
    was = None if before is None else _key_in(before, names)
    if was is not None and was.attributes != keys.attributes:
        return [
            record(FIRST_OF_TWO, "REMOVE", was, None, old),
            record(LAST, "INSERT", keys, new, None),
        ]
    return [record(LAST, "MODIFY", keys, new, old)]


def _key_in(image: Told, names: tuple[str, ...]) -> Told | None:
    """The key that an image has; None if it does not show all of it."""
    if any(name not in image.attributes for name in names):
        return None
    return key_within(image, names)
