"""How many items tables and their indexes have, and how large these are.

A small table is counted when it is described. Of a larger one the last count is given, which is at
most six hours old, as the service's own; it is counted in a thread of its own.
"""

import threading
import traceback
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import structlog
from msgspec import Struct

from penstock.clocks import Clock
from penstock.errors import PenstockError
from penstock.serve.dynamodb.capacity import item_size
from penstock.serve.dynamodb.indexes import shown_by
from penstock.store import Item, Store, Table, View
from penstock.store.indexes import place_in

_log = structlog.get_logger()

_AT_ONCE_ITEMS: Final = 1000
_STEP_BYTES: Final = 1 << 20
_KEPT_SECONDS: Final = 6 * 3600


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

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._stopping = threading.Event()
        self._thread = ThreadPoolExecutor(1, "dynamodb-counts")
        self._lock = threading.Lock()
        self._counted = dict[int, tuple[Amounts, float]]()
        """By the table's number: the last count, and when it ended."""
        self._counting = set[int]()

    def of(self, view: View, table: Table) -> Amounts | None:
        """What a table holds; None while a large one is being counted for the first time."""
        amounts = Amounts.none_of(table)
        step = view.items(table, after=None, limit=_AT_ONCE_ITEMS, bytes_max=_STEP_BYTES)
        if step.last:
            amounts.add(table, step.items)
            return amounts
        with self._lock:
            last = self._counted.get(table.id)
            now = self._clock.steady_seconds()
            old = last is None or now - last[1] > _KEPT_SECONDS
            indexed = last is not None and amounts.indexes.keys() <= last[0].indexes.keys()
            if (old or not indexed) and table.id not in self._counting:
                self._counting.add(table.id)
                self._thread.submit(self._count, table)
        return last[0] if last is not None and indexed else None

    def close(self) -> None:
        """Stop after the step that is under way."""
        self._stopping.set()
        self._thread.shutdown(cancel_futures=True)

    def _count(self, table: Table) -> None:
        amounts = None
        try:
            amounts = self._amounts(table)
        except PenstockError as error:
            _log.warning("a DynamoDB table was not counted", table=table.name, error=str(error))
        except Exception as error:  # a defect here must not go unseen; its text may quote an item
            kind, where = type(error).__name__, traceback.format_tb(error.__traceback__)
            _log.error(
                "a DynamoDB table was not counted", table=table.name, error=kind, where=where
            )
        finally:
            with self._lock:
                self._counting.discard(table.id)
                if amounts is not None:
                    self._counted[table.id] = amounts, self._clock.steady_seconds()

    def _amounts(self, table: Table) -> Amounts | None:
        amounts, after = Amounts.none_of(table), None
        while not self._stopping.is_set():
            # A view of its own for each step: a long one would keep the file from being used again.
            with self._store.view() as view:
                step = view.items(table, after=after, limit=_AT_ONCE_ITEMS, bytes_max=_STEP_BYTES)
                there = {one.id for one in view.tables()}
            amounts.add(table, step.items)
            if step.last:
                with self._lock:
                    for number in self._counted.keys() - there:
                        del self._counted[number]
                return amounts if table.id in there else None
            after = step.after
        return None
