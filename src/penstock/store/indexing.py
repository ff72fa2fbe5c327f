"""The secondary indexes of a store's tables: made, dropped and queried (`penstock.store.indexes`).

`Store` is this and the operations on items.
"""

from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from penstock.clocks import Clock
from penstock.errors import PenstockError
from penstock.kv import Transaction as Txn
from penstock.store import indexes
from penstock.store.engine import FREE_BYTES_MIN
from penstock.store.indexbuilders import CreateIndex, QueryIndex
from penstock.store.indexes import Filling
from penstock.store.queries import ItemPage
from penstock.store.schema import Index
from penstock.store.shards import ShardLimits
from penstock.store.streaming import Streams
from penstock.store.syncing import SyncMode

_PAUSE_SECONDS: Final = 0.001
"""Between two steps: whoever waits to write has his turn."""


class Indexes(Streams):
    """What a store does with indexes."""

    def __init__(
        self,
        path: Path,
        *,
        read_only: bool,
        clock: Clock | None,
        shards: ShardLimits | None = None,
        sync: SyncMode = "full",
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
        self._making = list[int]()
        """The indexes that threads of ours fill. A transaction that is undone gives its number to
        the next, so two of them may have the same."""

    def create_index(self, table: str, name: str) -> CreateIndex:
        """Describe an index of a table, and make it with `execute`."""
        return CreateIndex(self._create_index, table, name)

    def _create_index(self, described: CreateIndex) -> None:
        index: Index | None = None
        behind: bytes | None = None
        try:
            while True:
                if described.check is not None:
                    described.check()
                with self._writing(adds=True) as txn:
                    if index is None:
                        index = indexes.begin(
                            self._layout,
                            txn,
                            self._table(txn, described.table),
                            _described(described),
                            making=self._making,
                            now_ms=self._clock.wall_ms(),
                        )
                        self._making.append(index.id)
                    behind = indexes.fill(self._layout, txn, described.table, index, behind=behind)
                if behind is None:
                    return
                self._closing.wait(_PAUSE_SECONDS)
        except BaseException:
            if index is not None:
                self._abandon(described.table, index)
            raise
        finally:
            if index is not None:
                self._making.remove(index.id)

    def begin_index(self, table: str, index: Index) -> Filling | None:
        """Begin an index that a server keeps something with, and put a step's items into it.

        Writes maintain it from here on, and `fill_index` goes on with it; None: it is ready. It
        stays if the process ends: whoever serves the store next fills it from its beginning
        (`Filling(table, index)`). Raises IndexAlreadyExistsError and RefusedError.
        """
        assert index.kept, "any other one is dropped when the store is opened"
        with self._writing(adds=True) as txn:
            index = indexes.begin(
                self._layout,
                txn,
                self._table(txn, table),
                index,
                making=self._making,
                now_ms=self._clock.wall_ms(),
            )
            return self._filled(txn, Filling(table, index))

    def fill_index(self, filling: Filling) -> Filling | None:
        """Put a step's items more into an index; None: it is ready.

        Raises IndexNotFoundError when it was dropped meanwhile, with its table or alone.
        """
        with self._writing(adds=True) as txn:
            return self._filled(txn, filling)

    def _filled(self, txn: Txn, filling: Filling) -> Filling | None:
        behind = indexes.fill(
            self._layout, txn, filling.table, filling.index, behind=filling.behind
        )
        return None if behind is None else replace(filling, behind=behind)

    def _abandon(self, table: str, index: Index) -> None:
        # What raised is told. If the disk is full too, or the store closed, what is left of the
        # index stays out of sight, and is dropped by whoever makes another or opens the store.
        with suppress(PenstockError), self._writing() as txn:
            indexes.abandon(self._layout, txn, table, index)

    def drop_index(self, table: str, name: str) -> None:
        """Remove an index. Its entries leave the disk a few at a time.

        Raises IndexNotFoundError and TableNotFoundError.
        """
        with self._writing() as txn:
            indexes.drop(self._layout, txn, self._table(txn, table), name)

    def query_index(self, table: str, index: str) -> QueryIndex:
        """Describe items found by an index, and read them with `execute`, by its sort key."""
        return QueryIndex(self._query_index, table, index)

    def _query_index(self, query: QueryIndex) -> ItemPage:
        with self._reading() as txn:
            return indexes.read_page(
                self._layout,
                txn,
                self._table(txn, query.table),
                query,
                now_ms=self._clock.wall_ms(),
            )


def _described(described: CreateIndex) -> Index:
    assert described.partition is not None, "the builder saw to it"
    return Index(
        id=0,
        name=described.name,
        partition_key=described.partition,
        sort_key=described.sort,
        scope=described.only,
    )
