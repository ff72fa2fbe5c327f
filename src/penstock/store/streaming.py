"""The streams of a store's tables: enabled and read, followed and consumed.

`Store` is this and the operations on items.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import contextmanager
from time import monotonic
from typing import Final

import msgspec

from penstock.kv import Transaction as Txn
from penstock.store import admin, consume, consumers, streams
from penstock.store.builders import ReadRecords
from penstock.store.consume import Consumer
from penstock.store.consumers import Checkpoint, Start
from penstock.store.engine import Engine
from penstock.store.errors import StreamError
from penstock.store.merged import View
from penstock.store.records import StreamRecord
from penstock.store.retention import prune_until
from penstock.store.schema import Retention, Stream, StreamViewType, Table
from penstock.store.streams import Page, Position, StreamInfo

_PRUNE_RECORDS: Final = 1000


class Streams(Engine):
    """What a store does with streams."""

    # --- streams ---------------------------------------------------------------------------------

    def _enable(
        self, txn: Txn, table: Table, view: StreamViewType, retention: Retention, unchanged: bool
    ) -> Table:
        return admin.enable_stream(
            self._layout,
            txn,
            table,
            view=view,
            retention=retention,
            unchanged=unchanged,
            now_ms=self._clock.wall_ms(),
        )

    def enable_stream(
        self,
        table: str,
        view: StreamViewType,
        *,
        retention: Retention | None = None,
        unchanged: bool = False,
    ) -> None:
        """Begin a stream of a table: it holds what is written from now on.

        Raises StreamAlreadyEnabledError and TableNotFoundError.
        """
        with self._writing() as txn:
            schema = self._table(txn, table)
            schema = self._enable(txn, schema, view, retention or Retention(), unchanged)
            self._layout.put_table(txn, schema)

    def disable_stream(self, table: str) -> None:
        """End a table's stream. What it holds stays readable, and its readers are told of the end.

        Raises StreamNotEnabledError and TableNotFoundError.
        """
        with self._writing() as txn:
            schema = self._table(txn, table)
            schema = admin.disable_stream(self._layout, txn, schema, now_ms=self._clock.wall_ms())
            self._layout.put_table(txn, schema)

    def alter_table_stream_retention(self, table: str, retention: Retention) -> None:
        """Keep more or less of a table's stream from now on."""
        with self._writing() as txn:
            stream = admin.stream_of(self._layout, txn, self._table(txn, table))
            self._layout.put_stream(txn, msgspec.structs.replace(stream, retention=retention))

    def prune_stream(self, table: str, *, until_sequence: int) -> int:
        """Remove a table's records up to a sequence, with it; returns how many there were."""
        removed = 0
        while True:
            with self._writing() as txn:
                stream = self._stream(txn, table, None)
                left = prune_until(
                    self._layout, txn, stream, until=until_sequence, limit=_PRUNE_RECORDS
                )
                self._layout.put_stream(txn, left)
            removed += stream.records - left.records
            if stream.records - left.records < _PRUNE_RECORDS:
                return removed

    def get_stream_info(self, table: str) -> StreamInfo:
        """A table's stream, or its last one. Raises StreamNotEnabledError if it never had one."""
        with self._reading() as txn:
            stream = self._stream(txn, table, None)
            now_ms = self._clock.wall_ms()
            known = consumers.infos(self._layout, txn, stream, now_ms=now_ms)
            return streams.info(self._layout, txn, self._state(txn), stream, known)

    @contextmanager
    def view(self) -> Generator[View]:
        """The store as of one moment, for readers of all of it; of use only inside the block.

        Keep it short: no page of the file that it sees is used again meanwhile.
        """
        outside = getattr(self._mine, "views", 0)
        with self._reading() as txn:
            self._mine.views = outside + 1
            view = View(self._layout, txn, self._state(txn))
            try:
                yield view
            finally:
                view.end()
                self._mine.views = outside

    def get_stream_records(self, table: str) -> ReadRecords:
        """Describe a part of a table's stream, and read it with `execute`."""
        return ReadRecords(self._read_records, table)

    def _read_records(self, wanted: ReadRecords) -> Page:
        deadline = monotonic() + wanted.wait_seconds
        begin = wanted.begin
        while True:
            rings = self.bell.rings
            page = self._page(wanted, begin)
            left = deadline - monotonic()
            if page.records or page.closed or left <= 0:
                return page
            begin = page.position
            self.wait(rings, left)

    async def read_async(self, wanted: ReadRecords) -> Page:
        """What `wanted.execute()` returns, without holding up the event loop."""
        deadline, begin = monotonic() + wanted.wait_seconds, wanted.begin
        while True:
            rings = self.bell.rings
            page = await asyncio.to_thread(self._page, wanted, begin)
            left = deadline - monotonic()
            if page.records or page.closed or left <= 0:
                return page
            begin = page.position
            await self.wait_async(rings, left)

    def follow(
        self,
        table: str,
        *,
        after: str | None = None,
        start: Start = "trim_horizon",
        idle_seconds: float | None = None,
    ) -> Generator[StreamRecord]:
        """A table's records as they commit, behind the position `after`, or from `start` on.

        It ends once nothing has come for `idle_seconds`, without them never. Raises
        StreamClosedError when the stream ended and everything of it was read, StoreClosedError when
        the store is closed meanwhile, and what `get_stream_records` raises.
        """
        return consume.follow(self, table, after or start, idle_seconds=idle_seconds)

    def follow_async(
        self,
        table: str,
        *,
        after: str | None = None,
        start: Start = "trim_horizon",
        idle_seconds: float | None = None,
    ) -> AsyncGenerator[StreamRecord]:
        """As `follow`, in an event loop."""
        return consume.follow_async(self, table, after or start, idle_seconds=idle_seconds)

    # --- consumers -------------------------------------------------------------------------------

    def consume(
        self,
        table: str,
        name: str,
        *,
        start: Start = "trim_horizon",
        resync: Callable[[StreamError], None] | None = None,
        limit: int = 100,
        hold_bytes_max: int | None = None,
    ) -> Consumer:
        """A consumer of a table's stream, whose checkpoint the store keeps under its name.

        It begins at its checkpoint, or where `start` says when it has none, and handles at most
        `limit` records at once: `run`. `resync` copies the table when the checkpoint cannot be read
        on from; without it that is an error. With `hold_bytes_max`, retention keeps what it has not
        handled while the stream has no more bytes (`penstock.store.consumers`).
        """
        return Consumer(
            self,
            table,
            name,
            start=start,
            resync=resync,
            limit=limit,
            hold_bytes_max=hold_bytes_max,
        )

    def register_consumer(
        self,
        table: str,
        name: str,
        *,
        start: Start = "trim_horizon",
        hold_bytes_max: int | None = None,
    ) -> Checkpoint:
        """A consumer's checkpoint, made where `start` says if it has none.

        Raises StreamNotEnabledError and TableNotFoundError.
        """
        with self._writing() as txn:
            return consumers.register(
                self._layout,
                txn,
                self._state(txn),
                self._stream(txn, table, None),
                name,
                start=start,
                hold_bytes_max=hold_bytes_max,
                now_ms=self._clock.wall_ms(),
            )

    def save_checkpoint(
        self, table: str, name: str, position: str, *, expected: str | None
    ) -> None:
        """Move a consumer's checkpoint from `expected` to `position`, durably.

        Raises CheckpointConflictError when it is elsewhere: another consumer has the same name.
        """
        with self._writing() as txn:
            consumers.save(
                self._layout,
                txn,
                self._state(txn),
                [one for one in self._layout.streams(txn) if one.table == table],
                name,
                table=table,
                position=Position.parse(position),
                expected=expected,
                now_ms=self._clock.wall_ms(),
            )

    def forget_consumer(self, table: str, name: str) -> bool:
        """Forget a consumer and what is held for it; False when there was none."""
        with self._writing() as txn:
            return consumers.forget(self._layout, txn, table, name)

    def _page(self, wanted: ReadRecords, begin: str | int) -> Page:
        with self._reading() as txn:
            state = self._state(txn)
            position = Position.parse(begin) if isinstance(begin, str) and ":" in begin else None
            stream = self._stream(txn, wanted.table, position)
            if begin == "trim_horizon":
                position = streams.horizon(state, stream)
            elif begin == "latest":
                position = streams.latest(state, stream)
            elif isinstance(begin, int):
                position = Position(streams.stream_id(state, stream), begin)
            elif position is None:
                position = Position.parse(begin)
            page = streams.read(
                self._layout,
                txn,
                state,
                stream,
                after=position,
                limit=wanted.limit_,
                bytes_max=wanted.bytes_max,
            )
            at_end = page.closed and not page.records
            if at_end and self._stream(txn, wanted.table, None).id != stream.id:
                raise streams.changed(wanted.table)
            return page

    def _stream(self, txn: Txn, table: str, position: Position | None) -> Stream:
        """The stream that a position is of, if it is one of the table's; else its newest."""
        of_table = [one for one in self._layout.streams(txn) if one.table == table]
        if position is not None:
            state = self._state(txn)
            for stream in of_table:
                if streams.stream_id(state, stream) == position.stream_id:
                    return stream
        if of_table:
            return of_table[-1]
        return admin.stream_of(self._layout, txn, self._table(txn, table))
