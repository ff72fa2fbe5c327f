"""An embedded document database whose tables can have a change stream.

    from penstock import store

    with store.open("shop") as db:
        db.create_table("orders").partition_key("id", KeyType.STRING) \\
            .stream(StreamViewType.NEW_AND_OLD_IMAGES).execute()
        db.put("orders", {"id": "o1", "total": 30})
        for record in db.get_stream_records("orders").execute().records:
            print(record.event_type, record.keys)

One process writes a store; it and others read it. Writes are transactions, one at a time, durable
when they return, and a change and its record are in the same one. Reads see one moment, and wait
for nobody. All of it may be called from any thread.
"""

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import Final

import msgspec

from penstock.clocks import Clock
from penstock.kv import Transaction as Txn
from penstock.store import admin, consume, consumers, queries, streams
from penstock.store.builders import CreateTable, Query, ReadRecords, Scan, UpdateItem
from penstock.store.conditions import Condition
from penstock.store.consume import Consumer
from penstock.store.consumers import Checkpoint, Start
from penstock.store.engine import Engine
from penstock.store.errors import StoreClosedError, StreamError, TableAlreadyExistsError
from penstock.store.layout import unpack_item
from penstock.store.merged import View
from penstock.store.queries import ItemPage
from penstock.store.records import StreamRecord
from penstock.store.retention import prune_until
from penstock.store.schema import Retention, Stream, StreamViewType, Table
from penstock.store.shards import ShardLimits
from penstock.store.streams import Page, Position, StreamInfo
from penstock.store.transaction import Updated
from penstock.store.values import Item, decode_item

_SWEEP_ITEMS: Final = 100
_PRUNE_RECORDS: Final = 1000


def open(  # noqa: A001 - read as `store.open`
    path: str | Path,
    *,
    read_only: bool = False,
    sweep_seconds: float | None = 60.0,
    clock: Clock | None = None,
    shards: ShardLimits | None = None,
) -> "Store":
    """Open the store at `path`, a folder; make it if it is not there. `Store` is a context manager.

    Every `sweep_seconds` a thread removes what has expired and what retention does not keep; None
    leaves that to `sweep`. With `read_only`, another process may be the writer. `shards` says when
    a stream's shard is sealed, which matters to readers over DynamoDB's protocol alone.

    Raises StoreLockedError when another process writes it, and ConfigError on a network file
    system.
    """
    return Store(
        Path(path), read_only=read_only, sweep_seconds=sweep_seconds, clock=clock, shards=shards
    )


class Store(Engine):
    """An open store. Made by `open`."""

    def __init__(
        self,
        path: Path,
        *,
        read_only: bool,
        sweep_seconds: float | None,
        clock: Clock | None,
        shards: ShardLimits | None = None,
    ) -> None:
        super().__init__(path, read_only=read_only, clock=clock, shards=shards)
        self._sweeper: threading.Thread | None = None
        if sweep_seconds is not None and not read_only:
            self._sweeper = threading.Thread(
                target=self._sweep_on, args=(sweep_seconds,), name="store-sweeper", daemon=True
            )
            self._sweeper.start()

    def close(self) -> None:
        """Wait for what is under way, and close. A second time does nothing."""
        self._closing.set()
        if self._sweeper is not None and self._sweeper is not threading.current_thread():
            self._sweeper.join()
        super().close()

    # --- tables ----------------------------------------------------------------------------------

    def create_table(self, name: str) -> CreateTable:
        """Describe a table, and make it with `execute`."""
        return CreateTable(self._create_table, name)

    def _create_table(self, described: CreateTable) -> None:
        assert described.partition is not None
        with self._writing() as txn:
            if self._layout.table(txn, described.name) is not None:
                raise TableAlreadyExistsError(described.name)
            state = self._state(txn)
            state = msgspec.structs.replace(state, tables=state.tables + 1)
            self._layout.put_state(txn, state)
            table = Table(
                id=state.tables,
                name=described.name,
                partition_key=described.partition,
                sort_key=described.sort,
                ttl_attribute=described.ttl_attribute,
                created_ms=self._clock.wall_ms(),
            )
            self._layout.note(txn, "createTable", table, now_ms=table.created_ms)
            if described.view is not None:
                table = self._enable(
                    txn, table, described.view, described.stream_retention, described.unchanged
                )
            self._layout.put_table(txn, table)

    def drop_table(self, name: str) -> None:
        """Remove a table. Its stream is closed, and stays readable for its retention (F19).

        Its items are out of sight at once, and leave the disk a few at a time. Raises
        TableNotFoundError.
        """
        with self._writing() as txn:
            table = self._table(txn, name)
            admin.drop_table(self._layout, txn, table, now_ms=self._clock.wall_ms())

    def list_tables(self) -> list[str]:
        """The names of all tables, sorted."""
        with self._reading() as txn:
            return [table.name for table in self._layout.tables(txn)]

    def describe_table(self, name: str) -> Table:
        """A table's schema. Raises TableNotFoundError."""
        with self._reading() as txn:
            return self._table(txn, name)

    # --- items -----------------------------------------------------------------------------------

    def put(
        self,
        table: str,
        item: Item,
        *,
        condition: Condition | None = None,
        expected_version: int | None = None,
    ) -> Item | None:
        """Write an item, whole; returns the one that it replaces. See `Transaction.put`."""
        with self.transact() as transaction:
            return transaction.put(
                table, item, condition=condition, expected_version=expected_version
            )

    def update(self, table: str, key: Item) -> UpdateItem:
        """Describe changes of an item, and make them with `execute`."""
        return UpdateItem(self._update, table, key)

    def _update(self, described: UpdateItem) -> Updated:
        with self.transact() as transaction:
            return transaction.update(
                described.table,
                described.key,
                described.update,
                condition=described.only_if,
                expected_version=described.version,
            )

    def delete(
        self,
        table: str,
        key: Item,
        *,
        condition: Condition | None = None,
        expected_version: int | None = None,
    ) -> Item | None:
        """Remove an item; returns it, or None when there was none. See `Transaction.delete`."""
        with self.transact() as transaction:
            return transaction.delete(
                table, key, condition=condition, expected_version=expected_version
            )

    def write_batch(
        self, *, puts: Iterable[tuple[str, Item]] = (), deletes: Iterable[tuple[str, Item]] = ()
    ) -> None:
        """Write and remove items, of any tables, all or none. Puts come first."""
        with self.transact() as transaction:
            for table, item in puts:
                transaction.put(table, item)
            for table, key in deletes:
                transaction.delete(table, key)

    def get(self, table: str, key: Item) -> Item | None:
        """The item of that key; None when there is none. Raises as for any key."""
        return self.batch_get(table, [key])[0]

    def get_versioned(self, table: str, key: Item) -> tuple[Item, int] | None:
        """The item of that key and its version, for `expected_version`; None when there is none."""
        with self._reading() as txn:
            value = self._layout.items.get(txn, self._table(txn, table).key(key))
            current = None if value is None else unpack_item(value)
            if current is None or not current.visible(self._clock.wall_ms()):
                return None
            return decode_item(current.data), current.version

    def batch_get(
        self, table: str, keys: Sequence[Item], *, bytes_max: int | None = None
    ) -> list[Item | None]:
        """The items of those keys as of one moment, by their places; None for one not there.

        Raises ResponseTooLargeError for more than `bytes_max` of items.
        """
        with self._reading() as txn:
            return queries.get_all(
                self._layout,
                txn,
                self._table(txn, table),
                keys,
                now_ms=self._clock.wall_ms(),
                bytes_max=bytes_max,
            )

    def count(self, table: str) -> int:
        """How many items a table has, as of one moment. Looks at every one."""
        with self._reading() as txn:
            schema = self._table(txn, table)
            return queries.count(self._layout, txn, schema, now_ms=self._clock.wall_ms())

    def query(self, table: str) -> Query:
        """Describe items of one partition, and read them with `execute`, by sort key."""
        return Query(self._query, table)

    def _query(self, query: Query) -> ItemPage:
        with self._reading() as txn:
            table = self._table(txn, query.table)
            return queries.read_page(
                self._layout,
                txn,
                table,
                queries.partition_range(table, query.key(table), query.bound),
                now_ms=self._clock.wall_ms(),
                limit=query.limit_,
                start=query.start,
                reverse=query.reversed,
                condition=query.condition,
                projection=query.projection,
            )

    def scan(self, table: str) -> Scan:
        """Describe items of a table, and read them with `execute`, partition by partition."""
        return Scan(self._scan, table)

    def _scan(self, scan: Scan) -> ItemPage:
        with self._reading() as txn:
            table = self._table(txn, scan.table)
            return queries.read_page(
                self._layout,
                txn,
                table,
                queries.table_range(table),
                now_ms=self._clock.wall_ms(),
                limit=scan.limit_,
                start=scan.start,
                condition=scan.condition,
                projection=scan.projection,
            )

    # --- time to live ----------------------------------------------------------------------------

    def set_ttl(self, table: str, attribute: str | None) -> None:
        """Let items expire at the second that `attribute` says; None: never.

        A number that is not integral or not above 0, anything else, and no attribute mean never.
        Looks at every item, in one transaction.
        """
        with self._writing() as txn:
            schema = self._table(txn, table)
            now_ms = self._clock.wall_ms()
            schema = admin.set_ttl(self._layout, txn, schema, attribute, now_ms=now_ms)
            self._layout.put_table(txn, schema)

    def sweep(self) -> int:
        """Remove a bounded step of what expired, of what retention does not keep, and of dropped
        tables; returns how much there was. 0: nothing is left to remove.

        A clock that was set removes nothing until it is to be believed (`penstock.clocks.Trust`).
        """
        now_ms = self._clock.wall_ms() if self._trust.trusted() else None
        with self._reading() as txn:
            expired = (
                []
                if now_ms is None
                else [
                    (table, key)
                    for table in self._layout.tables(txn)
                    if table.ttl_attribute is not None
                    for key in self._layout.expired(
                        txn, table.prefix, second=now_ms // 1000, limit=_SWEEP_ITEMS
                    )
                ]
            )
            idle = not (
                self._layout.dropped(txn)
                or self._layout.streams(txn)
                or self._layout.has_tokens(txn)
            )
        removed = 0
        if expired:
            with self.transact() as transaction:
                # What was seen may have been written since: it is looked at again (F9).
                removed += sum(transaction.expire(table.name, key) for table, key in expired)
        if not idle:
            with self._writing() as txn:
                removed += admin.prune_streams(self._layout, txn, now_ms=now_ms)
                removed += admin.remove_dropped(self._layout, txn, limit=_SWEEP_ITEMS)
                if now_ms is not None:
                    removed += self._layout.forget_tokens(txn, now_ms=now_ms, limit=_PRUNE_RECORDS)
        return removed

    def _sweep_on(self, seconds: float) -> None:
        while not self._closing.wait(seconds):
            with suppress(StoreClosedError):
                while self.sweep() and not self._closing.is_set():
                    pass

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
        with self._reading() as txn:
            yield View(self._layout, txn, self._state(txn), now_ms=self._clock.wall_ms())

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
            return streams.read(
                self._layout,
                txn,
                state,
                stream,
                after=position,
                limit=wanted.limit_,
                bytes_max=wanted.bytes_max,
            )

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
