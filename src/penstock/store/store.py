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

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
import structlog

from penstock.clocks import Clock
from penstock.errors import PenstockError
from penstock.store import admin, indexes, queries
from penstock.store.builders import CreateTable, Query, Scan, UpdateItem
from penstock.store.conditions import Condition
from penstock.store.engine import FREE_BYTES_MIN
from penstock.store.errors import (
    StoreClosedError,
    StorePointError,
    StoreSyncError,
    StreamFullError,
    TableAlreadyExistsError,
)
from penstock.store.indexing import Indexes
from penstock.store.layout import unpack_item
from penstock.store.queries import ItemPage
from penstock.store.schema import Table
from penstock.store.shards import ShardLimits, seal_idle
from penstock.store.syncing import SyncMode
from penstock.store.updates import Updated
from penstock.store.values import Item, decode_item

_log = structlog.get_logger()

_SWEEP_ITEMS: Final = 100
_SWEEP_TOKENS: Final = 1000


def open(  # noqa: A001 - read as `store.open`
    path: str | Path,
    *,
    read_only: bool = False,
    sweep_seconds: float | None = 60.0,
    clock: Clock | None = None,
    shards: ShardLimits | None = None,
    sync: SyncMode = "full",
    sync_seconds: float | None = 1.0,
    free_bytes_min: int = FREE_BYTES_MIN,
) -> "Store":
    """Open the store at `path`, a folder; make it if it is not there. `Store` is a context manager.

    Every `sweep_seconds` a thread removes what has expired and what retention does not keep; None
    leaves that to `sweep`. With `read_only`, another process may be the writer. `shards` says when
    a stream's shard is sealed, which matters to readers over DynamoDB's protocol alone.

    With `sync="none"` writes do not wait for the disk. All of them survive the death of the
    process. After a power cut or the kernel's death the store is what it was at its last sync,
    whole: those come every `sync_seconds` (None: not by time), after 1000 transactions or 64 MiB of
    items and records, by `sync` and by `close`. What came later is lost, though readers may have
    seen it; their positions and consumers are told as if the store had been restored from a backup.
    Linux only.

    While the disk has less than `free_bytes_min` free, what adds is refused with LogFullError; what
    makes room (`prune_stream`, `drop_table`, `delete`, sweeps) is done down to an eighth of it.

    Raises StoreLockedError when another process writes it, StoreUnsettledError for reading what
    such a loss has left before a writer has opened it, and ConfigError on a network file system.
    """
    return Store(
        Path(path),
        read_only=read_only,
        sweep_seconds=sweep_seconds,
        clock=clock,
        shards=shards,
        sync=sync,
        sync_seconds=sync_seconds,
        free_bytes_min=free_bytes_min,
    )


class Store(Indexes):
    """An open store. Made by `open`."""

    def __init__(
        self,
        path: Path,
        *,
        read_only: bool,
        sweep_seconds: float | None,
        clock: Clock | None,
        shards: ShardLimits | None = None,
        sync: SyncMode = "full",
        sync_seconds: float | None = 1.0,
        free_bytes_min: int = FREE_BYTES_MIN,
    ) -> None:
        super().__init__(
            path,
            read_only=read_only,
            clock=clock,
            shards=shards,
            sync=sync,
            free_bytes_min=free_bytes_min,
        )
        self._full = set[str]()
        """Tables whose stream had no room for the removal of what expired."""
        self._threads = list[threading.Thread]()
        if sweep_seconds is not None and not read_only:
            self._begin_thread("store-sweeper", self._sweep_on, sweep_seconds)
        if sync_seconds is not None and not read_only and sync == "none":
            self._begin_thread("store-syncer", self._sync_on, sync_seconds)

    def _begin_thread(self, name: str, run: Callable[[float], None], seconds: float) -> None:
        thread = threading.Thread(target=run, args=(seconds,), name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def close(self) -> None:
        """Wait for what is under way, have all of it on the disk, and close. A second time does
        nothing.

        Raises TransactionError inside a transaction or view of the same thread, StoreSyncError, and
        StorePointError, after which nothing is lost but to a power cut.
        """
        self._refuse_to_wait_for_oneself()
        self._closing.set()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()
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
            now_ms = self._clock.wall_ms()
            table = Table(
                id=indexes.new_number(self._layout, txn),
                name=described.name,
                partition_key=described.partition,
                sort_key=described.sort,
                ttl_attribute=described.ttl_attribute,
                created_ms=now_ms,
            )
            for index in described.indexes:
                # The table holds nothing yet, so every index of it is complete.
                ready = msgspec.structs.replace(index, created_ms=now_ms, ready=True)
                table, _ = indexes.added(self._layout, txn, table, ready)
            self._layout.note(txn, "createTable", table, now_ms=table.created_ms)
            if described.view is not None:
                table = self._enable(
                    txn, table, described.view, described.stream_retention, described.unchanged
                )
            self._layout.put_table(txn, table)
            if described.kept is not None:
                self._layout.put_beside(txn, table, described.kept)

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
        return self.write(
            lambda transaction: transaction.put(
                table, item, condition=condition, expected_version=expected_version
            )
        )

    def update(self, table: str, key: Item) -> UpdateItem:
        """Describe changes of an item, and make them with `execute`."""
        return UpdateItem(self._update, table, key)

    def _update(self, described: UpdateItem) -> Updated:
        return self.write(
            lambda transaction: transaction.update(
                described.table,
                described.key,
                described.update,
                condition=described.only_if,
                expected_version=described.version,
            )
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
        return self.write(
            lambda transaction: transaction.delete(
                table, key, condition=condition, expected_version=expected_version
            )
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

        A part of a second counts as a whole one. A number that is not above 0, one more than five
        years before the item is written (or this is called), anything else, and no attribute mean
        never. Looks at every item, in one transaction.
        """
        with self._writing() as txn:
            schema = self._table(txn, table)
            times = self._time.now(believed_ms=self._believed_ms)
            schema = admin.set_ttl(self._layout, txn, schema, attribute, times)
            self._layout.put_table(txn, schema)

    def sweep(self) -> int:
        """Remove a bounded step of what expired, of what retention does not keep, and of dropped
        tables; returns how much there was. 0: nothing is left that can be removed.

        A clock that was set, or that is far from when the store was left, removes nothing until it
        is to be believed (`penstock.store.times`).
        What expired in a table whose stream is full (`Retention.by_hand`) stays, unseen, until
        `prune_stream` has made room for its removal.
        """
        now_ms = self._time.now(believed_ms=self._believed_ms).aged_ms
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
            expires = any(table.ttl_attribute is not None for table in self._layout.tables(txn))
            idle = not (
                self._layout.dropped(txn)
                or self._layout.streams(txn)
                or self._layout.has_tokens(txn)
                or (expires and self._is_time_due())
            )
        removed = 0
        if expired:
            removed += self._expire(expired)
        if not idle:
            with self._writing() as txn:
                removed += admin.prune_streams(self._layout, txn, now_ms=now_ms)
                removed += admin.remove_dropped(self._layout, txn, limit=_SWEEP_ITEMS)
                if now_ms is not None:
                    seal_idle(self._layout, txn, self._shards, time_ms=now_ms)
                    removed += self._layout.forget_tokens(txn, now_ms=now_ms, limit=_SWEEP_TOKENS)
        return removed

    def _expire(self, expired: list[tuple[Table, bytes]]) -> int:
        """Remove items that were seen to have expired; returns how many there were."""
        removed, full = 0, set[str]()
        with self.transact() as transaction:
            for table, key in expired:
                if table.name in full:
                    continue
                try:
                    # What was seen may have been written since: it is looked at again (F9).
                    removed += transaction.expire(table, key)
                except StreamFullError:
                    full.add(table.name)
        for name in sorted(full - self._full):
            _log.warning(
                "a stream is full, so what expires in its table is hidden and cannot be removed; "
                "prune_stream makes room",
                table=name,
            )
        self._full = full
        return removed

    def _sweep_on(self, seconds: float) -> None:
        while not self._closing.wait(seconds):
            try:
                while self.sweep() and not self._closing.is_set():
                    pass
            except StoreClosedError:
                return
            except Exception as error:
                # Nothing is lost by sweeping later. A full disk is emptied some day.
                failed = error.code if isinstance(error, PenstockError) else type(error).__name__
                _log.warning(
                    "a sweep of a store failed, and is tried again",
                    path=str(self.path),
                    error=failed,
                    wait_seconds=seconds,
                )

    def _sync_on(self, seconds: float) -> None:
        while not self._closing.wait(seconds):
            # A failure is kept: every later write raises it, or tries again.
            with suppress(StoreClosedError, StoreSyncError, StorePointError):
                self.sync()
