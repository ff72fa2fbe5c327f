"""How many items tables and their indexes have, and how large these and item collections are.

A small table is counted when it is described, a small collection when it is written. Of a larger
one the last count is given, which is at most six hours old, as the service's own; it is counted in
a thread of its own.
"""

from collections.abc import Iterable
from functools import partial
from typing import Final

from msgspec import Struct

from penstock.serve.dynamodb.capacity import item_size
from penstock.serve.dynamodb.counts import Counts
from penstock.serve.dynamodb.indexes import shown_by
from penstock.store import Item, Store, Table, View
from penstock.store.indexes import place_in
from penstock.store.queries import Range, partition_range

_AT_ONCE_ITEMS: Final = 1000
_STEP_BYTES: Final = 1 << 20
_COLLECTION_AT_ONCE_ITEMS: Final = 100
_GIGABYTE: Final = 1 << 30


class Amount(Struct):
    """Items, and DynamoDB's bytes of them."""

    items: int = 0
    bytes: int = 0

    def add(self, size: int) -> None:
        """Count an item more."""
        self.items += 1
        self.bytes += size


class Amounts(Struct):
    """What a table holds, and its indexes by their numbers."""

    table: Amount
    indexes: dict[int, Amount]

    @classmethod
    def none_of(cls, table: Table) -> "Amounts":
        """Nothing yet."""
        return cls(Amount(), {index.id: Amount() for index in table.indexes})

    def add(self, table: Table, items: Iterable[Item]) -> None:
        """Count these items too."""
        shown = [(index, self.indexes[index.id], shown_by(table, index)) for index in table.indexes]
        for item in items:
            self.table.add(item_size(item))
            for index, amount, show in shown:
                if place_in(table, index, item) is not None:
                    amount.add(item_size(show(item)))


class Counter:
    """Counts the items of a store's tables."""

    def __init__(self, store: Store, counts: Counts) -> None:
        self._store = store
        self._counts = counts

    def of(self, view: View, table: Table) -> Amounts | None:
        """What a table holds; None while a large one is being counted for the first time."""
        amounts = Amounts.none_of(table)
        step = view.items(table, after=None, limit=_AT_ONCE_ITEMS, bytes_max=_STEP_BYTES)
        if step.last:
            amounts.add(table, step.items)
            return amounts
        last = self._counts.last(table.id, Amounts)
        indexed = last is not None and amounts.indexes.keys() <= last.indexes.keys()
        count = partial(self._amounts, table)
        self._counts.renew(table.id, count, table=table.name, at_once=not indexed)
        return last if indexed else None

    def collection_gigabytes(self, view: View, table: Table, key: Item) -> int:
        """How many whole gigabytes the item collection of a key has.

        Of a large one that is being counted for the first time it is 0, which may be too few.
        """
        keys = partition_range(table, key, None)
        size, rest = view.size(keys, items_max=_COLLECTION_AT_ONCE_ITEMS)
        if rest is not None:
            place = table.partition(key)
            size = self._counts.last(place, int) or 0
            self._counts.renew(place, partial(self._size, keys), table=table.name)
        return size // _GIGABYTE

    def _amounts(self, table: Table) -> Amounts | None:
        amounts, after = Amounts.none_of(table), None
        while not self._counts.stopping:
            # A view of its own for each step: a long one would keep the file from being used again.
            with self._store.view() as view:
                step = view.items(table, after=after, limit=_AT_ONCE_ITEMS, bytes_max=_STEP_BYTES)
                there = {one.id for one in view.tables()}
            amounts.add(table, step.items)
            if step.last:
                return amounts if table.id in there else None
            after = step.after
        return None

    def _size(self, keys: Range) -> int | None:
        total, rest = 0, keys
        while not self._counts.stopping:
            with self._store.view() as view:
                size, left = view.size(rest, items_max=_AT_ONCE_ITEMS)
            total += size
            if left is None:
                return total
            rest = left
        return None
