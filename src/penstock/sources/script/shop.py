"""The story of the simulated shop: transaction n as a function of the seed and n alone.

Nothing is remembered between transactions. An update sets all fields of its document that ever
change, so a document is a function of its number and of the transaction that last touched it. The
life of a document is laid out in cycles of 100 transactions: what one cycle creates, the next few
change, and whether it will be deleted is the last digit of its number.

Two promises that a reader can check after every commit: the lines of an order add up to its total,
and no line is without its order.
"""

import random
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

from msgspec import Raw

from penstock.event import (
    AnyEvent,
    ChangeEvent,
    ClusterTime,
    Commit,
    Operation,
    SchemaEvent,
    event_id,
)

CYCLE: Final = 100
"""Transactions in a cycle. Each takes 10 ms of the shop's time, so that a cycle is a second."""
COLLECTIONS: Final = ("customers", "orders", "order_lines")

_CUSTOMERS = 10  # created in a cycle
_ORDERS = 40
_FATES = 10  # the last digit of a number decides how its document ends
_CUSTOMER_LEAVES = 3
_ORDER_CANCELLED = 7
_LINES_MAX = 4
_SCHEMA_CYCLES = 50  # an index is created every so many cycles

_FIRST = ("Ada", "Bořek", "Chloé", "Dmitri", "Emi", "Fatima", "Goran", "Hana", "Ivo", "Jürgen")
_LAST = ("Novák", "Okafor", "Park", "Quist", "Rossi", "Santos", "Tanaka", "Urban", "Vega", "Weiß")
_CITIES = ("Brno", "Lagos", "Lima", "Osaka", "Porto", "Split", "Turku", "Utrecht")
_STATUSES = ("placed", "paid", "packed", "shipped", "delivered")
_HUNDREDTHS = tuple(f"{place:02d}" for place in range(CYCLE))
_PRODUCTS = ("lamp", "kettle", "chair", "desk", "globe", "clock", "shelf", "stool")

_MASK = (1 << 64) - 1

# An enum's member costs 0.2 us to look up, and every event needs one.
_INSERT, _UPDATE, _REPLACE, _DELETE = (
    Operation.INSERT,
    Operation.UPDATE,
    Operation.REPLACE,
    Operation.DELETE,
)


def _mix(value: int) -> int:
    """64 well-mixed bits (the finalizer of SplitMix64, Steele et al. 2014, one round short)."""
    value = (value * 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ value >> 30) * 0xBF58476D1CE4E5B9) & _MASK
    return value ^ value >> 31


@lru_cache(maxsize=4096)
def _instant(second: int) -> str:
    return f"{datetime.fromtimestamp(second, UTC):%Y-%m-%dT%H:%M:%S}"


class Shop:
    """One seed's story. Not thread-safe: it keeps the plan of the cycle it is in."""

    def __init__(
        self, *, source: str, database: str, seed: int, starts_at: datetime, note_bytes: int = 0
    ) -> None:
        self.seed = seed
        self.source = source
        self.database = database
        self.salt = _mix(seed + 1)
        self.starts_at = int(starts_at.timestamp())
        self.note = f'"note":"{"." * note_bytes}",' if note_bytes else ""
        self._plan: list[tuple[_Step, int, bool]] = []
        self._plan_cycle = -1
        self.second = 0
        """Unix seconds of the cycle that is told."""
        self.now = ""
        """How an instant of that second begins."""

    def position(self, n: int) -> str:
        """Where transaction `n` (the first is 1) leaves the source; 0 is before the first."""
        return f"{self.seed}:{n}"

    def transaction(self, n: int) -> Commit:
        """Transaction `n`, whole."""
        cycle, place = divmod(n - 1, CYCLE)
        if cycle != self._plan_cycle:
            self._plan, self._plan_cycle = self._plan_of(cycle), cycle
            self.second = self.starts_at + cycle
            self.now = f'{{"$date":"{_instant(self.second)}.'
        step, k, many = self._plan[place]
        telling = _Transaction(self, n, cycle, place, many)
        step(telling, k)
        return Commit(source=self.source, position=telling.position, events=tuple(telling.events))

    def state_at(self, n: int) -> dict[str, dict[str, bytes]]:
        """The tables once transaction `n` is over: collection → document id → document (JSON)."""
        tables: dict[str, dict[str, bytes]] = {name: {} for name in COLLECTIONS}
        for number in range(1, n + 1):
            for event in self.transaction(number).events:
                if isinstance(event, ChangeEvent):
                    if event.full_document is None:
                        del tables[event.collection][event.document_id]
                    else:
                        tables[event.collection][event.document_id] = bytes(event.full_document)
        return tables

    def _plan_of(self, cycle: int) -> list[tuple["_Step", int, bool]]:
        """What each transaction of a cycle does: always the same steps, in an order of its own."""
        steps = [(step, k, step in _MANY) for step, count in _STEPS for k in range(count)]
        if cycle == 0:
            # In its steps' own order, so that everything a step touches is there.
            return steps
        first, *others = steps
        random.Random(self.salt + cycle).shuffle(others)
        return [first, *others]


class _Transaction:
    """One transaction being told: the events so far, and what they share."""

    def __init__(self, shop: Shop, n: int, cycle: int, place: int, many: bool) -> None:
        self._shop = shop
        self._cycle = cycle
        self._h = _mix(n ^ shop.salt)
        self._now = f'{shop.now}{_HUNDREDTHS[place]}0Z"}}'
        self._timestamp = shop.second * 1000 + place * 10
        self._cluster_time = ClusterTime(shop.second, place + 1)
        self.position = position = f"{shop.seed}:{n}"
        self._name = position if many else None
        self._number = n if many else None
        self.events: list[AnyEvent] = []

    # --- what can happen ----------------------------------------------------------------------

    def season(self, _: int) -> None:
        """Opens a cycle: the shop is built, an index is made, or a customer comes by."""
        if self._cycle == 0:
            for name in COLLECTIONS:
                self._schema("create", name, b"{}")
        elif self._cycle % _SCHEMA_CYCLES == 0:
            made = f'{{"indexes":[{{"key":{{"status":1}},"name":"status_{self._cycle}"}}]}}'
            self._schema("createIndexes", "orders", made.encode())
        else:
            self.customer_returns(0)

    def customer_arrives(self, k: int) -> None:
        self._customer(_INSERT, self._cycle * _CUSTOMERS + k)

    def customer_returns(self, _: int) -> None:
        self._customer(_UPDATE, self._loyal_customer())

    def customer_moves(self, _: int) -> None:
        self._customer(_REPLACE, self._loyal_customer())

    def customer_leaves(self, _: int) -> None:
        if self._cycle < 2:
            self.customer_returns(0)
            return
        number = (self._cycle - 2) * _CUSTOMERS + _CUSTOMER_LEAVES
        self._change(_DELETE, "customers", str(number), f'{{"_id":{number}}}')

    def order_placed(self, k: int) -> None:
        order = self._cycle * _ORDERS + k
        self._order(_INSERT, order, status="placed")
        self._lines(_INSERT, order)

    def order_moves(self, _: int) -> None:
        self._order(_UPDATE, self._open_order(), status=_STATUSES[self._h % 5])

    def order_repriced(self, _: int) -> None:
        self._lines(_UPDATE, self._open_order())

    def order_cancelled(self, k: int) -> None:
        if self._cycle == 0:
            self.customer_returns(0)
            return
        order = (self._cycle - 1) * _ORDERS + k * _FATES + _ORDER_CANCELLED
        # Updated, then deleted: two changes to one document in one transaction (P2).
        self._order(_UPDATE, order, status="cancelled")
        oid = _order_id(order)
        for line in range(1, _line_count(self._shop, order) + 1):
            self._change(_DELETE, "order_lines", *_line_key(oid, line))
        self._change(_DELETE, "orders", oid, f'{{"_id":{{"$oid":"{oid}"}}}}')

    def order_restored(self, _: int) -> None:
        if self._cycle < 2:
            self.customer_returns(0)
            return
        order = (self._cycle - 2) * _ORDERS + _ORDER_CANCELLED
        self._order(_INSERT, order, status="restored")
        self._lines(_INSERT, order)

    # --- whom it happens to -------------------------------------------------------------------

    def _loyal_customer(self) -> int:
        """A customer of an earlier cycle who will not leave; the newest come most often."""
        loyal = max(1, self._cycle) * (_FATES - 1)
        chance = (self._h >> 8 & 0xFFFFFFFF) / (1 << 32)
        return _skip(loyal - 1 - int(loyal * chance * chance), _CUSTOMER_LEAVES)

    def _open_order(self) -> int:
        """An order of the last three cycles that will not be cancelled."""
        lowest = max(0, self._cycle - 3)
        span = (max(1, self._cycle) - lowest) * _ORDERS // _FATES * (_FATES - 1)
        return lowest * _ORDERS + _skip((self._h >> 8) % span, _ORDER_CANCELLED)

    # --- documents ----------------------------------------------------------------------------

    def _customer(self, operation: Operation, number: int) -> None:
        h, base = self._h, _mix(number * 2 ^ self._shop.salt)
        since = _instant(self._shop.starts_at + number // _CUSTOMERS)
        first, last = _FIRST[base % 10], _LAST[base // 16 % 10]
        city, points = _CITIES[h >> 40 & 7], h >> 16 & 0xFFFF
        cents, rating = h >> 32 & 0xFFFF, (h >> 3 & 7) / 2
        document = (
            f'{{"_id":{number},"name":"{first} {last}","email":"customer{number}@example.org",'
            f'"address":{{"city":"{city}","zip":"{base % 90000 + 10000}"}},'
            f'"tags":["{_PRODUCTS[base >> 20 & 7]}","{_PRODUCTS[base >> 24 & 7]}"],'
            f'"since":{{"$date":"{since}.000Z"}},{self._shop.note}'
            f'"points":{points},"balance":{{"$numberDecimal":"{cents // 100}.{cents % 100:02d}"}},'
            f'"rating":{rating},"updatedAt":{self._now}}}'
        )
        update = (
            f'{{"address.city":"{city}","points":{points},'
            f'"balance":{{"$numberDecimal":"{cents // 100}.{cents % 100:02d}"}},'
            f'"rating":{rating},"updatedAt":{self._now}}}'
            if operation is _UPDATE
            else None
        )
        self._change(operation, "customers", str(number), f'{{"_id":{number}}}', document, update)

    def _order(self, operation: Operation, order: int, *, status: str) -> None:
        base = _mix(order * 2 + 1 ^ self._shop.salt)
        oid, cycle = _order_id(order), order // _ORDERS
        customer = _skip((base >> 8) % (max(1, cycle) * (_FATES - 1)), _CUSTOMER_LEAVES)
        placed = _instant(self._shop.starts_at + cycle)
        document = (
            f'{{"_id":{{"$oid":"{oid}"}},"customer":{customer},"total":{_total(base)},'
            f'"lines":{base % _LINES_MAX + 1},"placedAt":{{"$date":"{placed}.000Z"}},'
            f'"gift":{"true" if base & 32 else "false"},{self._shop.note}'
            f'"status":"{status}","updatedAt":{self._now}}}'
        )
        update = (
            f'{{"status":"{status}","updatedAt":{self._now}}}' if operation is _UPDATE else None
        )
        self._change(operation, "orders", oid, f'{{"_id":{{"$oid":"{oid}"}}}}', document, update)

    def _lines(self, operation: Operation, order: int) -> None:
        """All lines of an order. Their amounts, in cents, add up to the order's total."""
        shop, h, now = self._shop, self._h, self._now
        base = _mix(order * 2 + 1 ^ shop.salt)
        oid, count, left = _order_id(order), base % _LINES_MAX + 1, _total(base)
        for line in range(1, count + 1):
            share = left if line == count else (h >> 9 * line & 0xFF) * left // 512
            left -= share
            document_id, key = _line_key(oid, line)
            product = _PRODUCTS[base >> 3 * line & 7]
            self._change(
                operation,
                "order_lines",
                document_id,
                key,
                f'{key[:-1]},"product":"{product}",{shop.note}"amount":{share},"pricedAt":{now}}}',
                f'{{"amount":{share},"pricedAt":{now}}}' if operation is _UPDATE else None,
            )

    # --- events -------------------------------------------------------------------------------

    def _change(
        self,
        operation: Operation,
        collection: str,
        document_id: str,
        key: str,
        document: str | None = None,
        updated: str | None = None,
    ) -> None:
        shop, position, events = self._shop, self.position, self.events
        source, database = shop.source, shop.database
        events.append(
            ChangeEvent(
                event_id=event_id(source, position, len(events)),
                source=source,
                database=database,
                tenant=database,
                collection=collection,
                cluster_time=self._cluster_time,
                timestamp=self._timestamp,
                position=position,
                transaction=self._name,
                document_id=document_id,
                key=Raw(key.encode()),
                operation=operation,
                full_document=None if document is None else Raw(document.encode()),
                update_description=None if updated is None else _update(updated),
                txn_number=self._number,
                full_document_as_of_event=document is not None,
            )
        )

    def _schema(self, operation: str, collection: str, description: bytes) -> None:
        shop, ordinal = self._shop, len(self.events)
        self.events.append(
            SchemaEvent(
                event_id=event_id(shop.source, self.position, ordinal),
                source=shop.source,
                database=shop.database,
                tenant=shop.database,
                collection=collection,
                cluster_time=self._cluster_time,
                timestamp=self._timestamp,
                position=self.position,
                operation=operation,
                description=Raw(description),
            )
        )


def _update(updated: str) -> Raw:
    return Raw(f'{{"updatedFields":{updated},"removedFields":[],"truncatedArrays":[]}}'.encode())


def _skip(index: int, fate: int) -> int:
    """The `index`-th number whose last digit is not `fate`."""
    tens, digit = divmod(index, _FATES - 1)
    return tens * _FATES + digit + (digit >= fate)


def _order_id(order: int) -> str:
    return f"{order:024x}"


def _line_key(oid: str, line: int) -> tuple[str, str]:
    """A line's key as text and as an object: composite, of an order and a number."""
    return f'["{oid}",{line}]', f'{{"order":{{"$oid":"{oid}"}},"line":{line}}}'


def _line_count(shop: Shop, order: int) -> int:
    return _mix(order * 2 + 1 ^ shop.salt) % _LINES_MAX + 1


def _total(base: int) -> int:
    """An order's total, in cents."""
    return base >> 40 & 0xFFFF


_Step = Callable[[_Transaction, int], None]

# The first step opens every cycle; each makes as many transactions of it as its number says.
_STEPS: tuple[tuple[_Step, int], ...] = (
    (_Transaction.season, 1),
    (_Transaction.customer_arrives, _CUSTOMERS),
    (_Transaction.order_placed, _ORDERS),
    (_Transaction.order_moves, 25),
    (_Transaction.order_repriced, 6),
    (_Transaction.customer_returns, 8),
    (_Transaction.customer_moves, 4),
    (_Transaction.order_cancelled, _ORDERS // _FATES),
    (_Transaction.order_restored, 1),
    (_Transaction.customer_leaves, 1),
)
_MANY = frozenset(
    {
        _Transaction.order_placed,
        _Transaction.order_repriced,
        _Transaction.order_cancelled,
        _Transaction.order_restored,
    }
)
assert sum(count for _, count in _STEPS) == CYCLE
