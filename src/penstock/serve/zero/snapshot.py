"""The first transaction of a shard: its tables, and every current row in them."""

from collections.abc import Iterable
from typing import NamedTuple

from msgspec import Raw

from penstock.errors import DocumentUnknownError
from penstock.serve.frames import frames
from penstock.serve.zero.increments import tables_json
from penstock.serve.zero.record import Mark
from penstock.serve.zero.view import View
from penstock.serve.zero.watermarks import watermark_of
from penstock.subscribe.current import CurrentRow, Reading, rows_shown
from penstock.wire import Stream
from penstock.zero.changes import Teller, creation
from penstock.zero.mapping import Sampling
from penstock.zero.messages import Begin, Committed, downstream_text
from penstock.zero.tables import Table


class RowsPortion(NamedTuple):
    """Some rows."""

    frames: bytes
    rows: int
    tables: Raw | None
    """Tables that they changed: to be kept before they are sent."""


def needs_sample(view: View) -> bool:
    """Whether rows must be seen before the tables can be told."""
    if any(grant.hidden for grant in view.scope.grants):
        return True  # which columns are shown is known by the streams of rows
    made = {(table.schema, table.name) for table in view.mapping.sampling().tables()}
    drafts = view.mapping.drafts
    return any(one.infers or (one.schema, one.name) not in made for one in drafts) or bool(
        view.criteria.sources - {one.source for one in drafts}
    )


def sample(reading: Reading, view: View, sampling: Sampling, *, bytes_max: int) -> bool:
    """Look at the next rows; False at the end."""
    rows = reading.read(bytes_max=bytes_max)
    for row, stream, document in _documents(rows_shown(rows, view.criteria)):
        sampling.add(stream, bytes(row.key), document)
    return bool(rows)


class Copy:
    """The rows of a reading, as messages. Blocks; belongs to one thread at a time."""

    def __init__(self, reading: Reading, view: View, teller: Teller) -> None:
        self._reading = reading
        self._view = view
        self._teller = teller
        self._kept = teller.tables

    def beginning(self, start: Mark) -> bytes:
        """What comes before the rows: the tables, each with its unique index (Z5), Zero's own among
        them, and the row of permissions (Z6)."""
        created = [message for table in self._kept for message in creation(table)]
        begin = downstream_text(Begin(watermark=watermark_of(start.commit, start.check)))
        return frames([begin, *created, self._view.permissions_row])

    def next(self, *, bytes_max: int) -> RowsPortion | None:
        """The next rows; None at the end. Raises what the reading and the teller raise."""
        rows = self._reading.read(bytes_max=bytes_max)
        if not rows:
            return None
        messages: list[bytes] = []
        tell = self._teller.row
        for row, stream, document in _documents(rows_shown(rows, self._view.criteria)):
            messages += tell(stream, bytes(row.key), document)
        tables: tuple[Table, ...] = self._teller.tables
        changed = None if tables is self._kept else tables_json(tables)
        self._kept = tables
        return RowsPortion(frames(messages), len(rows), changed)

    @staticmethod
    def end(start: Mark) -> bytes:
        """What comes after them."""
        said = Committed(watermark=watermark_of(start.commit, start.check))
        return frames([downstream_text(said)])


def _documents(rows: Iterable[CurrentRow]) -> Iterable[tuple[CurrentRow, Stream, bytes]]:
    for row in rows:
        if row.full_document is None:
            raise DocumentUnknownError(source=row.source, collection=row.collection)
        stream = Stream(row.source, row.database, row.tenant, row.collection)
        yield row, stream, bytes(row.full_document)
