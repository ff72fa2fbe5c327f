"""What a store offers, wherever it is: an open `Store`, or a `Client` of its server."""

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from penstock.store.builders import CreateTable, Query, ReadRecords, Scan, UpdateItem
from penstock.store.conditions import Condition
from penstock.store.consume import Consumer
from penstock.store.consumers import Checkpoint, Start
from penstock.store.errors import StreamError
from penstock.store.indexbuilders import CreateIndex, QueryIndex
from penstock.store.records import StreamRecord
from penstock.store.schema import Retention, StreamViewType, Table
from penstock.store.streams import StreamInfo
from penstock.store.updates import Update, Updated
from penstock.store.values import Item


class AnyTransaction(Protocol):
    """A write transaction; `Transaction` says what each does."""

    def get(self, table: str, key: Item) -> Item | None: ...

    def put(
        self,
        table: str,
        item: Item,
        *,
        condition: Condition | None = None,
        expected_version: int | None = None,
    ) -> Item | None: ...

    def update(
        self,
        table: str,
        key: Item,
        update: Update,
        *,
        condition: Condition | None = None,
        expected_version: int | None = None,
    ) -> Updated: ...

    def delete(
        self,
        table: str,
        key: Item,
        *,
        condition: Condition | None = None,
        expected_version: int | None = None,
    ) -> Item | None: ...

    def check(self, table: str, key: Item, condition: Condition) -> None: ...

    def query_index(self, table: str, index: str) -> QueryIndex: ...


class AnyStore(Protocol):
    """A store, here or behind a socket; `Store` says what each operation does."""

    def close(self) -> None: ...

    def transact(self) -> AbstractContextManager[AnyTransaction]: ...

    def create_table(self, name: str) -> CreateTable: ...

    def drop_table(self, name: str) -> None: ...

    def list_tables(self) -> list[str]: ...

    def describe_table(self, name: str) -> Table: ...

    def put(
        self,
        table: str,
        item: Item,
        *,
        condition: Condition | None = None,
        expected_version: int | None = None,
    ) -> Item | None: ...

    def update(self, table: str, key: Item) -> UpdateItem: ...

    def delete(
        self,
        table: str,
        key: Item,
        *,
        condition: Condition | None = None,
        expected_version: int | None = None,
    ) -> Item | None: ...

    def write_batch(
        self, *, puts: Iterable[tuple[str, Item]] = (), deletes: Iterable[tuple[str, Item]] = ()
    ) -> None: ...

    def get(self, table: str, key: Item) -> Item | None: ...

    def get_versioned(self, table: str, key: Item) -> tuple[Item, int] | None: ...

    def batch_get(self, table: str, keys: Sequence[Item]) -> list[Item | None]: ...

    def query(self, table: str) -> Query: ...

    def scan(self, table: str) -> Scan: ...

    def count(self, table: str) -> int: ...

    def create_index(self, table: str, name: str) -> CreateIndex: ...

    def drop_index(self, table: str, name: str) -> None: ...

    def query_index(self, table: str, index: str) -> QueryIndex: ...

    def set_ttl(self, table: str, attribute: str | None) -> None: ...

    def sweep(self) -> int: ...

    def sync(self) -> None: ...

    def enable_stream(
        self,
        table: str,
        view: StreamViewType,
        *,
        retention: Retention | None = None,
        unchanged: bool = False,
    ) -> None: ...

    def disable_stream(self, table: str) -> None: ...

    def alter_table_stream_retention(self, table: str, retention: Retention) -> None: ...

    def prune_stream(self, table: str, *, until_sequence: int) -> int: ...

    def get_stream_info(self, table: str) -> StreamInfo: ...

    def get_stream_records(self, table: str) -> ReadRecords: ...

    def follow(
        self,
        table: str,
        *,
        after: str | None = None,
        start: Start = "trim_horizon",
        idle_seconds: float | None = None,
    ) -> Generator[StreamRecord]: ...

    def consume(
        self,
        table: str,
        name: str,
        *,
        start: Start = "trim_horizon",
        resync: Callable[[StreamError], None] | None = None,
        limit: int = 100,
        hold_bytes_max: int | None = None,
    ) -> Consumer: ...

    def register_consumer(
        self,
        table: str,
        name: str,
        *,
        start: Start = "trim_horizon",
        hold_bytes_max: int | None = None,
    ) -> Checkpoint: ...

    def save_checkpoint(
        self, table: str, name: str, position: str, *, expected: str | None
    ) -> None: ...

    def forget_consumer(self, table: str, name: str) -> bool: ...
