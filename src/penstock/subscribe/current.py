"""The current rows of a log's collections, for a reader that rebuilds for itself.

A reading gives every row once, as of one place of the log, and names that place: following from
there gives exactly the later changes. Whatever a server sends of it ends with that marker, so that
a reading that broke off is never taken for a whole one.
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec
from msgspec import Raw, Struct, structs

from penstock.errors import RequestError
from penstock.event import ChangeEvent
from penstock.extjson import relaxed
from penstock.progress import Progress
from penstock.subscribe.criteria import Criteria
from penstock.wire import Mask, Stream, encode
from penstock.wire.layout import tag, varint
from penstock.wire.shown import id_shown, key_shown, names_shown, without


class CurrentRow(ChangeEvent, frozen=True, kw_only=True, rename="camel"):
    """A row: an insert that says `snapshot`, without `full_document` where that is not known.

    Its `event_id`, `cluster_time` and `timestamp` are those of its last change.
    """

    sequence: int
    """Of its last change."""


class Reading(Protocol):
    """Rows as of `progress`, whatever is written meanwhile. Belongs to one reader; not to a loop.

    Holds no transaction between two calls. To be closed: what it still has to see takes space.
    """

    progress: Progress

    def read(self, *, bytes_max: int) -> list[CurrentRow]:
        """The next rows, of about `bytes_max` bytes and at least one; empty at the end.

        Raises ServiceUnavailableError if the rows were taken away: what came is not whole; and
        RowsOvertakenError if what follows them was.
        """
        ...

    def close(self) -> None: ...


class CurrentStatus(Struct, frozen=True, kw_only=True, rename="camel"):
    """How the current rows are kept up, as whoever keeps them says."""

    sequence: int
    """How much of the log they have."""
    code: str = ""
    """Of the error that keeps them from having more; empty while none does."""
    message: str = ""
    """That error's sentence."""


class Declared(Struct, frozen=True, kw_only=True, rename="camel"):
    """Which fields of a collection have values that differ in shape, as its source declares."""

    database: str
    collection: str
    varying: dict[str, str]
    """By field: its type."""
    sequence: int
    """From which on it is declared so."""


class CurrentState(Protocol):
    """Whoever keeps current rows. Safe for any number of threads."""

    def open(self, criteria: Criteria) -> Reading:
        """Begin a reading of the collections that `criteria` wants.

        Raises StateIncompleteError if not every row of them is known.
        """
        ...

    def declared(self, source: str, *, at: int) -> Sequence[Declared] | None:
        """What the source declares of its collections at the sequence `at`; None while the rows
        have not come that far.

        Without those of which it is not known: nothing was declared of them, or something else
        since, or changes of them were lost.
        """
        ...


def rows_shown(rows: Sequence[CurrentRow], criteria: Criteria) -> Sequence[CurrentRow]:
    """The rows that the reader may see, as it may see them.

    Raises RequestError for a key that is replaced, where shards were asked for: they would tell of
    what is hidden.
    """
    if criteria.scope.is_everything:
        return rows
    found: list[CurrentRow] = []
    masks: dict[Stream, Mask | None] = {}
    for row in rows:
        stream = Stream(row.source, row.database, row.tenant, row.collection)
        if not criteria.wants(stream):
            continue
        if stream not in masks:
            masks[stream] = criteria.scope.mask(stream)
        mask = masks[stream]
        if mask is None or not mask.hides_rows:
            found.append(row)
            continue
        shown = _row_shown(row, mask)
        if criteria.shards is not None and shown.document_id != row.document_id:
            raise RequestError(
                f"the keys of {row.source}/{row.collection} have a field that you may not see, so "
                f"its rows cannot be had by shards. Throw away what came. Ask without shards, or "
                f"without that collection."
            )
        found.append(shown)
    return found


def _row_shown(row: CurrentRow, mask: Mask) -> CurrentRow:
    document = row.full_document
    changed = structs.replace(
        row,
        full_document=None if document is None else Raw(without(bytes(document), mask.hidden)),
        unchanged=tuple(names_shown(row.unchanged, mask.hidden)),
    )
    key, name = key_shown(bytes(row.key), mask, (row.source, row.database, row.collection))
    if name is None:
        return changed
    return structs.replace(
        changed,
        key=Raw(key),
        document_id=name,
        position="",
        event_id=id_shown(row.event_id, mask),
    )


_SEQUENCE = tag(30, 0)


def row_messages(rows: Sequence[CurrentRow]) -> list[bytes]:
    """Rows as `penstock.v1.Event` bytes, without progress: only the end has that."""
    encoded = encode(rows)
    lengths: list[int] = encoded.index["length"].tolist()
    payload, start = bytes(encoded.payload), 0
    messages: list[bytes] = []
    for row, length in zip(rows, lengths, strict=True):
        end = start + length
        messages.append(payload[start:end] + _SEQUENCE + varint(row.sequence))
        start = end
    return messages


def row_json(row: CurrentRow, *, plain_numbers: bool = True) -> bytes:
    """A row as JSON, in the names of `wire.to_json`; absent fields are left out."""
    named = zip(row.__struct_fields__, row.__struct_encode_fields__, strict=True)
    values = ((name, getattr(row, field)) for field, name in named)
    fields = {name: value for name, value in values if value not in (None, (), "")}
    encoded = msgspec.json.encode(fields | {"kind": "data"})
    return relaxed(encoded) if plain_numbers else encoded
