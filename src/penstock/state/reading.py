"""One reading of current rows: consistent as of its beginning, however long it takes.

It holds no transaction while its reader is slow, for that would pin pages and let the file grow
without end. Instead, whoever writes a row that a reading has not come to yet first keeps the row as
it was (`BEFORE`), once; so a reading costs at most the rows that it has still to read.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from penstock.errors import RowsOvertakenError, ServiceUnavailableError
from penstock.kv import Env, Transaction
from penstock.ports import Bounds
from penstock.progress import Progress
from penstock.state.layout import (
    BEFORE,
    ROWS,
    Name,
    key_in,
    number_key,
    number_of,
    unpack_row,
)
from penstock.state.looking import current_row
from penstock.subscribe.current import CurrentRow
from penstock.subscribe.shards import Shards
from penstock.wire import Stream

_ROWS_MAX = 10_000


class StateReading:
    """A `subscribe.current.Reading`; the keeper makes it, and looks at `numbers` and `cursor`."""

    def __init__(
        self,
        env: Env,
        *,
        reading: int,
        names: Mapping[int, Name],
        progress: Progress,
        shards: Shards | None,
        bounds: Callable[[], Bounds],
        closed: Callable[["StateReading"], None],
    ) -> None:
        self.id = reading
        self.progress = progress
        self.numbers = frozenset(names)
        self.cursor = b""
        self.broken = False
        """What it reads is being taken away; set before that is done."""
        self._env = env
        self._names = dict(names)
        self._left = sorted(names)
        self._shards = shards
        self._bounds = bounds
        self._closed = closed

    @property
    def ended(self) -> bool:
        """Everything was read, and its reader is about to follow."""
        return not self._left

    def read(self, *, bytes_max: int) -> list[CurrentRow]:
        """As `Reading.read`."""
        rows = self._read(bytes_max)
        bounds = self._bounds()
        # After the transaction: one that saw nothing any more began after this was set.
        if self.broken or bounds.log_id != self.progress.log_id:
            raise ServiceUnavailableError(
                "the log was replaced while rows were sent. Throw away what came, and ask again."
            )
        if bounds.trimmed > self.progress.sequence:
            raise RowsOvertakenError
        return rows

    def _read(self, bytes_max: int) -> list[CurrentRow]:
        rows: list[CurrentRow] = []
        size = 0
        with self._env.read() as txn:
            while self._left:
                number = self._left[0]
                for place, value in _merged(txn, self._env, self.id, number, after=self.cursor):
                    row = self._row(place, value) if value else None
                    if row is not None and self._holds(row):
                        rows.append(row)
                        size += len(value)
                    if size >= bytes_max or len(rows) >= _ROWS_MAX:
                        self.cursor = place
                        return rows
                self._left.pop(0)
                self.cursor = number_key(number + 1)
        return rows

    def close(self) -> None:
        self._closed(self)

    def _holds(self, row: CurrentRow) -> bool:
        if self._shards is None:
            return True
        stream = Stream(row.source, row.database, row.tenant, row.collection)
        document = None if row.full_document is None else bytes(row.full_document)
        return self._shards.holds(stream, bytes(row.key), document)

    def _row(self, place: bytes, value: bytes) -> CurrentRow:
        name, row = self._names[number_of(place)], unpack_row(value)
        return current_row(name, key_in(place, row), row, value)


def _merged(
    txn: Transaction, env: Env, reading: int, number: int, *, after: bytes
) -> Iterator[tuple[bytes, bytes]]:
    """The rows of one collection after a place, in order, as the reading has them.

    Place and value; the value is empty where there was no row.
    """
    prefix, kept = number_key(number), number_key(reading)
    # The zero byte makes the next possible key.
    start = after + b"\0" if after.startswith(prefix) else prefix
    with txn.cursor(env[ROWS]) as rows, txn.cursor(env[BEFORE]) as before:
        row = _place(rows, rows.set_range(start), prefix)
        old = _place(before, before.set_range(kept + start), kept + prefix)[len(kept) :]
        while row or old:
            if old and (not row or old <= row):
                found = old, before.value()
                if row == old:
                    row = _place(rows, rows.next(), prefix)
                old = _place(before, before.next(), kept + prefix)[len(kept) :]
            else:
                found = row, rows.value()
                row = _place(rows, rows.next(), prefix)
            yield found


def _place(cursor: Any, found: bool, prefix: bytes) -> bytes:
    """Where a cursor stands, if that begins with `prefix`; else nothing."""
    key: bytes = cursor.key() if found else b""
    return key if key.startswith(prefix) else b""
