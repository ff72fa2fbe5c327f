"""The program of the quickstart's story: a shop that keeps its data in an embedded store."""

import json
import threading
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from penstock import store
from penstock.event import ChangeEvent
from penstock.sources.script import ScriptSource, ScriptSourceConfig
from penstock.store import Item, KeyType, Store, StreamViewType, Transaction

TABLES: Final = {
    "customers": (("_id", KeyType.NUMBER),),
    "orders": (("_id", KeyType.STRING),),
    "order_lines": (("order", KeyType.STRING), ("line", KeyType.NUMBER)),
}


class Shopkeeper:
    """Writes so many transactions of the simulated shop, each as one of the store's.

    To be closed, which also ends the writing.
    """

    def __init__(
        self,
        path: Path,
        *,
        transactions: int,
        on_commit: Callable[[int], None],
        on_end: Callable[[int | Exception], None],
    ) -> None:
        """`on_commit` is told how many are written, and `on_end` how many changes of items that
        made, or why there are no more. Both from the thread that writes."""
        self._transactions = transactions
        self._on_commit = on_commit
        self._on_end = on_end
        self._shop = ScriptSource("shop", ScriptSourceConfig()).shop
        self._stop = threading.Event()
        self._db = store.open(path)
        for name, keys in TABLES.items():
            _make(self._db, name, *keys)
        self._thread = threading.Thread(target=self._write, name="quickstart-shop")

    def start(self) -> None:
        """Write, in a thread."""
        self._thread.start()

    def close(self) -> None:
        """Also while it writes: what is committed by then stays."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._db.close()

    def items(self, table: str) -> list[Item]:
        """What a table holds; no stream has a part in it."""
        items, page = list[Item](), self._db.scan(table).execute()
        items += page.items
        while page.last_key is not None:
            page = self._db.scan(table).exclusive_start_key(page.last_key).execute()
            items += page.items
        return items

    def _write(self) -> None:
        try:
            for number in range(1, self._transactions + 1):
                if self._stop.is_set():
                    return
                with self._db.transact() as transaction:
                    for event in self._shop.transaction(number).events:
                        if isinstance(event, ChangeEvent):
                            _apply(transaction, event)
                self._on_commit(number)
            # All that were ever made: no stream is old enough to have lost one.
            self._on_end(sum(self._db.get_stream_info(name).records for name in TABLES))
        except Exception as error:  # whoever waits for the end must hear of it
            self._on_end(error)


def _make(
    db: Store, name: str, partition: tuple[str, KeyType], sort: tuple[str, KeyType] | None = None
) -> None:
    table = db.create_table(name).partition_key(*partition)
    if sort is not None:
        table.sort_key(*sort)
    table.stream(StreamViewType.NEW_AND_OLD_IMAGES).execute()


def _apply(transaction: Transaction, event: ChangeEvent) -> None:
    if event.full_document is None:
        transaction.delete(event.collection, _item(event.key))
    else:
        transaction.put(event.collection, _item(event.full_document))


def _item(document: Any) -> Item:
    """A document of the shop in a store's values: instants as text, other numbers as decimals."""
    item: Item = json.loads(bytes(document), parse_float=Decimal, object_hook=_bare)
    return item


def _bare(found: dict[str, Any]) -> Any:
    match found:
        case {"$oid": str(text)} | {"$date": str(text)}:
            return text
        case {"$numberDecimal": str(number)}:
            return Decimal(number)
        case _:
            return found
