"""A change as a consumer gets it, and the bookkeeping of which ones are processed (P30)."""

from collections import deque
from functools import cached_property
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw

from penstock._generated.penstock.v1 import penstock_pb2 as pb
from penstock.event import AnyEvent, ChangeEvent, Entry, Kind
from penstock.extjson import relaxed
from penstock.wire import entry_of


class Change:
    """One entry of the log, decoded as far as it is asked."""

    def __init__(self, taken: "Taken") -> None:
        self.taken = taken

    @property
    def message(self) -> bytes:
        """The bytes of `penstock.v1.Event`."""
        return self.taken.message

    @cached_property
    def _parsed(self) -> pb.Event:
        return pb.Event.FromString(self.taken.message)

    @cached_property
    def entry(self) -> Entry:
        return entry_of(self._parsed)

    @property
    def event(self) -> AnyEvent:
        """What the source said. Its documents are encoded; `document` decodes them."""
        return self.entry.event

    @property
    def progress(self) -> str:
        """The marker that resumes after this change."""
        return self._parsed.progress

    @property
    def sequence(self) -> int:
        return self._parsed.sequence

    @property
    def commit(self) -> int:
        return self._parsed.commit

    @property
    def ordinal(self) -> int:
        return self._parsed.ordinal

    @property
    def coalesced(self) -> int:
        """How many changes this one stands for, itself the last of them; 0 = as captured."""
        return self._parsed.coalesced

    @property
    def kind(self) -> Kind:
        return Kind(self._parsed.kind)

    @property
    def operation(self) -> str:
        """insert, update, replace or delete; of a control event, its own word."""
        return self._parsed.operation_type

    @property
    def collection(self) -> str:
        return self._parsed.collection

    @property
    def document_id(self) -> str:
        return self._parsed.document_id

    @cached_property
    def document(self) -> dict[str, Any] | None:
        """The document after the change, as plain values; what a control event says.

        Relaxed Extended JSON: integers are int, doubles float; `$oid`, `$date` and the like stay
        wrapped. None for a delete, or where the source did not send it.
        """
        return _decoded(self._parsed.full_document)

    @cached_property
    def document_before(self) -> dict[str, Any] | None:
        """The document before the change, where the source keeps it."""
        return _decoded(self._parsed.full_document_before_change)

    @cached_property
    def update(self) -> dict[str, Any] | None:
        """{updatedFields, removedFields, truncatedArrays} of an update."""
        return _decoded(self._parsed.update_description)

    @property
    def txn_number(self) -> int | None:
        """None outside a transaction, never 0 in its place (P28)."""
        event = self.event
        return event.txn_number if isinstance(event, ChangeEvent) else None

    def __repr__(self) -> str:
        # Without key and document: this ends up in logs.
        return f"<Change {self.sequence} {self.operation} {self.collection!r}>"


def _decoded(encoded: bytes) -> dict[str, Any] | None:
    if not encoded:
        return None
    decoded: dict[str, Any] = msgspec.json.decode(relaxed(bytes(Raw(encoded))))
    return decoded


class Received(NamedTuple):
    """What came together: Event bytes, and the marker after them and all that was filtered out."""

    messages: list[bytes]
    progress: str


class Taken(NamedTuple):
    """A change that was handed out: its bytes, and its number, from 1."""

    message: bytes
    number: int


class Cursor:
    """Which changes were received, handed out and processed. Decides; does no IO.

    With `confirm_on_ask`, asking for the next change says that the one before is processed.
    Without, only `confirm` does. Asking and taking are two steps, with the save between them: a
    change that was taken is in the consumer's hand, so nothing may fail after that.
    """

    def __init__(self, marker: str) -> None:
        self._queue: deque[bytes | str] = deque()
        self._last = Taken(b"", 0)
        self._after_last = ""
        """A marker that came after the last change taken, and waits for it to be confirmed."""
        self._confirmed = 0
        # Bytes are those of a change: its marker is parsed only if it is saved.
        self._processed: bytes | str = marker
        self._saving: bytes | str = marker
        self._saved: bytes | str = marker
        self.received = marker
        """Where to reconnect: everything up to here was received, though perhaps not processed."""
        self.confirm_on_ask = True

    def receive(self, received: Received) -> None:
        """Queue what came. Its marker is passed once the changes before it are confirmed."""
        self._queue.extend(received.messages)
        if received.progress:
            self._queue.append(received.progress)
            self.received = received.progress

    def asked(self) -> None:
        """The next change is asked for. As often as you like before it is taken."""
        if self.confirm_on_ask:
            self.confirm(self._last)

    def take(self) -> Taken | None:
        """The next change, which counts as handed out; None if more must be received first."""
        while self._queue:
            item = self._queue.popleft()
            if isinstance(item, bytes):
                self._after_last = ""
                self._last = Taken(item, self._last.number + 1)
                return self._last
            self._after_last = item
            if self._confirmed == self._last.number:
                self._processed = item
        return None

    def confirm(self, taken: Taken) -> None:
        """`taken` and all before it are processed."""
        if taken.number <= self._confirmed:
            return
        self._confirmed = taken.number
        passed_all = taken.number == self._last.number and self._after_last
        self._processed = self._after_last if passed_all else taken.message

    @property
    def unsaved(self) -> bool:
        return self._processed is not self._saved

    def to_save(self) -> str:
        """The marker of all that is processed. Call `saved` once it is durable."""
        processed = self._saving = self._processed
        return processed if isinstance(processed, str) else progress_of(processed)

    def saved(self) -> None:
        """The marker that `to_save` gave last is durable; what was processed since is not."""
        self._saved = self._saving


def progress_of(message: bytes) -> str:
    """The marker in Event bytes."""
    return pb.Event.FromString(message).progress
