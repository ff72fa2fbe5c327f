"""Seeded writers: what applications do to a database while capture, consumer and Spark are killed.

Every kind of write that MongoDB has: inserts, updates of every operator, replaces, deletes,
transactions over two collections, replaces that give an `_id` another type, and DDL: a drop and a
rename of collections that have tables. Documents hold the types that a table can hold, so that
collection and table can be compared value for value.
"""

import random
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Self

from bson import Binary, Decimal128, Int64, ObjectId
from pymongo import MongoClient
from pymongo.client_session import ClientSession
from pymongo.collection import Collection
from pymongo.database import Database
from pymongo.errors import OperationFailure

Document = dict[str, Any]
ORDERS = "orders"
ACCOUNTS = "accounts"
ITEMS = "items"
"""Its `_id`s are of many types, and change them."""
DRAFTS, FILED = "drafts", "filed"
"""Drafts are dropped, or renamed to filed."""
COLLECTIONS = (ORDERS, ACCOUNTS, ITEMS, DRAFTS, FILED)
ITEM_KEYS = 12
ORDER_KEYS = 400
ACCOUNT_KEYS = 40
_NAMESPACE_NOT_FOUND = 26
_EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


def order(rng: random.Random, key: int) -> Document:
    """A whole order; nested values, and every scalar type that a column can have."""
    document: Document = {
        "_id": key,
        "customer": f"customer-{rng.randrange(50)} é☂",
        "quantity": rng.randrange(-5, 1000),
        "views": Int64(rng.randrange(-(1 << 40), 1 << 40)),
        "weight": rng.choice([0.0, -0.0, 3.0, rng.random() * 1e6]),
        "price": Decimal128(f"{rng.randrange(100000)}.{rng.randrange(100):02d}"),
        "at": _EPOCH + timedelta(milliseconds=rng.randrange(1 << 34)),
        "paid": rng.random() < 0.5,
        "token": Binary(rng.randbytes(6)),
        "ref": ObjectId(rng.randbytes(12)),
        "lines": [{"sku": rng.randrange(99), "n": n} for n in range(rng.randrange(4))],
        "address": {"city": rng.choice(["Graz", "Pune", "Lima"]), "zip": rng.randrange(9999)},
    }
    if rng.random() < 0.3:
        document["note"] = "x" * rng.randrange(2000)
    if rng.random() < 0.1:
        document["customer"] = None
    return document


class Writers:
    """Threads that write until told to stop; their errors are raised when they are joined.

    Each rests for up to `rest_seconds_max` between two writes.
    """

    def __init__(
        self,
        uri: str,
        database: str,
        *,
        seed: int,
        threads: int = 2,
        rest_seconds_max: float = 0.02,
    ) -> None:
        self._rest_seconds_max = rest_seconds_max
        self._uri = uri
        self._database = database
        self._stop = threading.Event()
        self._errors: list[BaseException] = []
        self._lock = threading.Lock()
        self.writes = 0
        """Writes that MongoDB has acknowledged."""
        self.writes_max: int | None = None
        """They rest while there are so many. None: no bound."""
        self.transactions = 0
        self._threads = [
            threading.Thread(target=self._run, args=(random.Random(seed * 1000 + n), n))
            for n in range(threads)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        if self._errors and error is None:
            raise self._errors[0]

    def wrote(self, writes: int) -> bool:
        """Whether so many writes are acknowledged. Raises what stopped a writer."""
        if self._errors:
            raise self._errors[0]
        return self.writes >= writes

    def _run(self, rng: random.Random, number: int) -> None:
        try:
            with MongoClient[Document](self._uri, tz_aware=True) as client:
                while not self._stop.wait(rng.random() * self._rest_seconds_max):
                    if self.writes_max is not None and self.writes >= self.writes_max:
                        continue
                    written = _step(rng, client, self._database, number)
                    with self._lock:
                        self.writes += abs(written)
                        self.transactions += written < 0
        except BaseException as error:
            self._errors.append(error)


def _step(rng: random.Random, client: MongoClient[Document], name: str, number: int) -> int:
    """One thing an application does; how many documents it wrote (negative: in a transaction)."""
    database = client[name]
    orders, key = database[ORDERS], rng.randrange(ORDER_KEYS)
    dice = rng.random()
    if dice < 0.30:
        orders.replace_one({"_id": key}, order(rng, key), upsert=True)
        return 1
    if dice < 0.60:
        return orders.update_one({"_id": key}, _update(rng)).modified_count
    if dice < 0.72:
        return orders.delete_one({"_id": key}).deleted_count
    if dice < 0.80:
        keys = sorted({rng.randrange(ORDER_KEYS) for _ in range(20)})
        return orders.update_many({"_id": {"$in": keys}}, {"$inc": {"quantity": 1}}).modified_count
    if dice < 0.86:
        return _item(rng, database[ITEMS])
    if dice < 0.89:
        return _draft(rng, database)
    if dice < 0.98:
        with client.start_session() as session:
            return -session.with_transaction(_transfer(rng, client, name))
    scratch = database[f"scratch_{number}"]
    scratch.insert_one({"_id": 1})
    scratch.create_index("a")
    scratch.drop()
    return 2


def _keys(number: int) -> tuple[tuple[Any, ...], ...]:
    """The `_id`s of one number. MongoDB calls those that stand together equal: one document."""
    return (
        (number, float(number), Int64(number), Decimal128(f"{number}"), Decimal128(f"{number}.0")),
        ({"a": number, "b": "é"}, {"a": float(number), "b": "é"}),
        (f"{number}",),
        (ObjectId(f"{number:024x}"),),
    )


def _item(rng: random.Random, items: Collection[Document]) -> int:
    """A write to an item by any of its equal `_id`s, which may put another one in its place."""
    equal = rng.choice(_keys(rng.randrange(ITEM_KEYS)))
    key, new = rng.choice(equal), rng.choice(equal)
    dice = rng.random()
    if dice < 0.6:
        items.replace_one({"_id": key}, {"_id": new, "n": rng.randrange(100)}, upsert=True)
        return 1
    if dice < 0.8:
        return items.update_one({"_id": key}, {"$inc": {"n": 1}}).modified_count
    return items.delete_one({"_id": key}).deleted_count


def _draft(rng: random.Random, database: Database[Document]) -> int:
    """Whole documents only: a collection that a write creates again stores no images."""
    drafts, dice = database[DRAFTS], rng.random()
    if dice < 0.8:
        document = {"n": rng.randrange(1000)}
        drafts.replace_one({"_id": rng.randrange(20)}, document, upsert=True)
        return 1
    if dice < 0.9:
        drafts.drop()
        return 1
    try:
        drafts.rename(FILED, dropTarget=True)
    except OperationFailure as error:
        if error.code != _NAMESPACE_NOT_FOUND:
            raise
        return 0  # the other thread has dropped it
    return 1


def _update(rng: random.Random) -> Document:
    return rng.choice(
        [
            {"$inc": {"quantity": rng.randrange(1, 9)}},
            {"$set": {"address.city": rng.choice(["Oslo", "Kyiv"]), "weight": rng.random()}},
            {"$unset": {"note": 1}},
            {"$push": {"lines": {"sku": rng.randrange(99), "n": 7}}},
            {"$push": {"lines": {"$each": [], "$slice": 2}}},
            {"$set": {"paid": rng.random() < 0.5, "extra": rng.randrange(1000)}},
        ]
    )


def _transfer(
    rng: random.Random, client: MongoClient[Document], name: str
) -> Callable[[ClientSession], int]:
    """A transaction that moves money between accounts and files it; whole or not at all."""
    sender, receiver = rng.sample(range(ACCOUNT_KEYS), 2)
    amount, key = rng.randrange(1, 100), rng.randrange(ORDER_KEYS)
    document = order(rng, key)

    def body(session: ClientSession) -> int:
        accounts, orders = client[name][ACCOUNTS], client[name][ORDERS]
        accounts.update_one(
            {"_id": sender}, {"$inc": {"balance": -amount}}, upsert=True, session=session
        )
        accounts.update_one(
            {"_id": receiver}, {"$inc": {"balance": amount}}, upsert=True, session=session
        )
        orders.replace_one({"_id": key}, document, upsert=True, session=session)
        orders.update_one({"_id": key}, {"$set": {"booked": True}}, session=session)
        return 4

    return body


def prepare(
    client: MongoClient[Document], database: str, rng: random.Random, *, images: bool
) -> None:
    """Create the collections, so that no transaction has to, and orders for a snapshot to copy."""
    for name in COLLECTIONS:
        client[database].create_collection(name, changeStreamPreAndPostImages={"enabled": images})
    # A table's first `_id` decides its column's type, and only one of objects holds all types.
    client[database][ITEMS].insert_one({"_id": {"first": True}, "n": 0})
    for name in (DRAFTS, FILED):
        client[database][name].insert_one({"_id": 0, "n": 0})
    client[database][ORDERS].insert_many([order(rng, key) for key in range(0, ORDER_KEYS, 2)])
