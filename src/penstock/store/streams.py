"""Reading a stream: where a reader stands, and what it gets next.

A position is what to go on after: the stream, a sequence, and a check of the record there, as text.
It is compared before anything is read, so a reader is never moved silently (F4, F10):

- of another stream than the table's: StreamChangedError. The stream was disabled and enabled
  again, the table dropped and made anew, or the store restored to before the record. What an
  ended stream still holds is read first.
- before the trim point: TrimmedDataError. Exactly at it is good: nothing that follows is missing.
- beyond what was ever written: AheadOfStreamError.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from penstock.kv import Transaction
from penstock.store.errors import (
    AheadOfStreamError,
    RefusedError,
    StreamChangedError,
    TrimmedDataError,
)
from penstock.store.layout import Layout, State, record_check
from penstock.store.records import StreamRecord, decode_stored, record_of
from penstock.store.schema import Stream, StreamViewType

BYTES_MAX: Final = 1 << 20
"""Of items in an answer, as DynamoDB counts them; at the least one record comes (F13)."""
RECORDS_MAX: Final = 1000


class Position(NamedTuple):
    """A place in a stream: behind the record of that sequence."""

    stream_id: str
    sequence: int
    check: int | None = None
    """Of the record there, if it is known."""

    def __str__(self) -> str:
        check = "" if self.check is None else f":{self.check:08x}"
        return f"{self.stream_id}:{self.sequence}{check}"

    @classmethod
    def parse(cls, text: str) -> "Position":
        """Raises RefusedError for what is no position."""
        stream_id, _, rest = text.partition(":")
        sequence, _, check = rest.partition(":")
        try:
            if not stream_id or not sequence.isdecimal() or (check and len(check) != 8):
                raise ValueError
            return cls(stream_id, int(sequence), int(check, 16) if check else None)
        except ValueError:
            raise RefusedError(
                f"{text[:80]!r} is no position in a stream. Use the text that a record or a page "
                f"gave, whole."
            ) from None


class ConsumerInfo(NamedTuple):
    """A consumer of a stream, as of one moment."""

    name: str
    sequence: int
    """What it has handled, up to here."""
    lag_records: int
    """How many records it has not handled; those too that retention has removed."""
    lag_ms: int
    """The age of the oldest record that it has not handled; 0 when there is none."""
    saved_ms: int
    hold_bytes_max: int | None
    overrun: bool
    """Whether retention removed records that it had not handled."""
    current: bool
    """Whether it reads this stream; False: an earlier one of the table."""


class StreamInfo(NamedTuple):
    """A table's stream, as of one moment."""

    stream_id: str
    table_name: str
    enabled: bool
    view_type: StreamViewType
    oldest_sequence: int | None
    """None while the stream holds nothing (F3)."""
    latest_sequence: int | None
    """None until something was written; pruning does not change it."""
    records: int
    bytes: int
    created_ms: int
    closed_ms: int | None
    consumers: Sequence[ConsumerInfo] = ()
    """Those that have a checkpoint, with how far behind each is (F12)."""


class Page(NamedTuple):
    """What a reader gets at once."""

    records: list[StreamRecord]
    position: str
    """What to go on after; it moves though nothing came."""
    closed: bool
    """Whether the stream was disabled and nothing follows in it, ever (F19). To go on after its
    end is StreamChangedError once the table has another."""


def stream_id(state: State, stream: Stream) -> str:
    """The stream's name in every position: no other stream of any store has it."""
    return ".".join(filter(None, (state.id, str(stream.id), stream.drawn)))


def horizon(state: State, stream: Stream) -> Position:
    """Where the oldest record that is left follows."""
    trimmed = max(stream.first, stream.trimmed)
    return Position(stream_id(state, stream), trimmed, stream.trimmed_check)


def latest(state: State, stream: Stream) -> Position:
    """Where only what is yet to be written follows."""
    if stream.latest is None:
        return Position(stream_id(state, stream), stream.first)
    return Position(stream_id(state, stream), stream.latest, stream.latest_check)


def changed(table: str) -> StreamChangedError:
    """The table has another stream by now, and nothing more is left of the position's."""
    return StreamChangedError(
        f"{table}: the position is of another stream than the one that the table has now: it was "
        f"disabled and enabled again, or the table was dropped and made anew. What was read before "
        f"is good, and changes may lie between. Copy the table again, and start from trim_horizon."
    )


def check(
    layout: Layout, txn: Transaction, state: State, stream: Stream, position: Position
) -> None:
    """Raise unless everything that follows `position` in the stream is still there."""
    if position.stream_id != stream_id(state, stream):
        raise changed(stream.table)
    trimmed = max(stream.first, stream.trimmed)
    if position.sequence < trimmed:
        raise TrimmedDataError(stream.table, after=position.sequence, trimmed=trimmed)
    if position.sequence > state.sequence:
        raise AheadOfStreamError(
            f"{stream.table}: sequence {position.sequence} was never written; the newest is "
            f"{state.sequence}. The position is of another store, or of this one before it was "
            f"restored from a backup. Copy the table again, and start from trim_horizon."
        )
    if position.check is None:
        return
    found = stream.trimmed_check
    if position.sequence != stream.trimmed:
        data = layout.record(txn, stream.id, position.sequence)
        found = None if data is None else record_check(data)
    if found != position.check:
        raise StreamChangedError(
            f"{stream.table}: another change stands at sequence {position.sequence} than the one "
            f"that was read: the store was restored from a backup, and went on differently. Copy "
            f"the table again, and start from trim_horizon."
        )


def read(
    layout: Layout,
    txn: Transaction,
    state: State,
    stream: Stream,
    *,
    after: Position,
    limit: int,
    bytes_max: int,
    until: int | None = None,
) -> Page:
    """At most `limit` records behind `after`, and no more than `bytes_max` but for the first.

    None behind the sequence `until`.

    Raises StreamChangedError, TrimmedDataError and AheadOfStreamError.
    """
    check(layout, txn, state, stream, after)
    name, records, size = stream_id(state, stream), list[StreamRecord](), 0
    position = str(after)
    for sequence, data in layout.records(txn, stream.id, after=after.sequence):
        if until is not None and sequence > until:
            return Page(records, position, closed=False)
        size += decode_stored(data).size
        if len(records) == limit or (records and size > bytes_max):
            return Page(records, position, closed=False)
        position = str(Position(name, sequence, record_check(data)))
        records.append(
            record_of(data, sequence=sequence, stream=stream, stream_id=name, position=position)
        )
    return Page(records, position, closed=stream.closed_ms is not None)


def info(
    layout: Layout,
    txn: Transaction,
    state: State,
    stream: Stream,
    consumers: Sequence[ConsumerInfo] = (),
) -> StreamInfo:
    """The stream, as of the transaction."""
    after = max(stream.first, stream.trimmed)
    oldest = next(layout.records(txn, stream.id, after=after), None)
    return StreamInfo(
        stream_id=stream_id(state, stream),
        table_name=stream.table,
        enabled=stream.closed_ms is None,
        view_type=stream.view,
        oldest_sequence=None if oldest is None else oldest[0],
        latest_sequence=stream.latest,
        records=stream.records,
        bytes=stream.bytes,
        created_ms=stream.created_ms,
        closed_ms=stream.closed_ms,
        consumers=consumers,
    )
