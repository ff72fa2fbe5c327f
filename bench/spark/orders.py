"""The changes of one collection of orders: in a log, as JSON files, and what they come to.

Key, operation and values of change `n` (from 0) follow from `n`, so what tables must hold after the
first so many changes is computed beside them, by column, and every stage is checked against it.
"""

import random
from functools import cached_property
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench.events import change, fill
from penstock.event import ChangeEvent, Operation

FILE_CHANGES: Final = 25_000
"""Changes in one JSON file."""
CUSTOMERS: Final = 1000
JSON_DOCUMENT: Final = (
    "_id BIGINT, number BIGINT, customer INT, name STRING, status STRING, quantity INT, "
    "total DECIMAL(10, 2), paid BOOLEAN, at TIMESTAMP, tags ARRAY<STRING>, "
    "address STRUCT<street: STRING, zip: STRING>, text STRING"
)
"""What the writer of the usual pipeline must know beforehand."""

_SEED: Final = 7
_DELETES: Final = 0.05
_TEXT: Final = "".join(
    random.Random(_SEED).choices("abcdefghijklmnop qrstuvwxyz", k=20_000)
).encode()
_VALUES: Final = (
    b'"customer":%d,"name":"name %d","status":"open","quantity":%d,"total":%s,"paid":true,'
    b'"at":%s,"tags":["a","b"],"address":{"street":"%s","zip":"12345"},"text":"%s"}'
)
_OPERATIONS: Final = (Operation.INSERT, Operation.REPLACE, Operation.DELETE)
_INSERT, _REPLACE, _DELETE = range(3)


class Fold(NamedTuple):
    """The rows after so many changes, ascending by key."""

    keys: NDArray[np.int64]
    last: NDArray[np.int64]
    """The number of the change that each row is of."""


class Versions(NamedTuple):
    """All versions of rows after so many changes, in the order of the changes that opened them."""

    opened: NDArray[np.int64]
    closed: NDArray[np.int64]
    """The number of the change that ended each; -1 for one that is open."""


class Orders:
    """So many changes over so many keys: one in twenty a delete, the others whole documents."""

    def __init__(self, changes: int, keys: int) -> None:
        self.changes = changes
        self.keys = keys

    @cached_property
    def key(self) -> NDArray[np.int64]:
        """The key of each change."""
        return np.random.default_rng(_SEED).integers(0, self.keys, self.changes)

    @cached_property
    def operation(self) -> NDArray[np.int8]:
        """Of each change: an insert is of a key that has no row, a replace or delete of one."""
        order = np.argsort(self.key, kind="stable")
        again = np.zeros(self.changes, bool)
        again[1:] = np.diff(self.key[order]) == 0
        chosen = np.random.default_rng(_SEED + 1).random(self.changes) < _DELETES
        ordered = chosen[order]
        deletes = ordered & again
        deletes[1:] &= ~ordered[:-1]
        behind_delete = np.zeros(self.changes, bool)
        behind_delete[1:] = deletes[:-1]
        operations = np.full(self.changes, _REPLACE, np.int8)
        operations[order[~again | behind_delete]] = _INSERT
        operations[order[deletes]] = _DELETE
        return operations

    # --- as events --------------------------------------------------------------------------------

    async def fill(self, log: Path) -> None:
        """Write them into a log, in commits of ten."""
        keys, operations = self.key.tolist(), self.operation.tolist()

        def make(number: int) -> ChangeEvent:
            return _event(number, keys[number], operations[number])

        await fill(log, self.changes, make=make)

    def write_json(self, folder: Path, changes: int) -> None:
        """Write the first `changes` as JSON lines, in the order of the files' names."""
        folder.mkdir()
        keys, operations = self.key.tolist(), self.operation.tolist()
        for first in range(0, changes, FILE_CHANGES):
            numbers = range(first, min(first + FILE_CHANGES, changes))
            lines = (_line(number, keys[number], operations[number]) for number in numbers)
            (folder / f"{first:012}.json").write_bytes(b"".join(lines))

    # --- what they come to ------------------------------------------------------------------------

    def fold(self, changes: int) -> Fold:
        """The rows after the first `changes`."""
        last = np.full(self.keys, -1, np.int64)
        last[self.key[:changes]] = np.arange(changes)  # ascending: the last assignment stays
        alive = np.flatnonzero((last >= 0) & (self.operation[last] != _DELETE))
        return Fold(alive, last[alive])

    def versions(self, changes: int) -> Versions:
        """The versions after the first `changes`."""
        keys = self.key[:changes]
        order = np.argsort(keys, kind="stable")
        following = np.full(changes, -1, np.int64)
        same = np.diff(keys[order]) == 0
        following[order[:-1][same]] = order[1:][same]
        opened = np.flatnonzero(self.operation[:changes] != _DELETE)
        return Versions(opened, following[opened])

    def counts(self, changes: int) -> tuple[int, int, int]:
        """Inserts, replaces and deletes among the first `changes`."""
        inserts, replaces, deletes = np.bincount(self.operation[:changes], minlength=3).tolist()
        return inserts, replaces, deletes


def quantity(number: NDArray[np.int64]) -> NDArray[np.int64]:
    """The field of the document that a change brings."""
    return number * 7919 % 100


def cents(number: NDArray[np.int64]) -> NDArray[np.int64]:
    """Its field `total`, in hundredths."""
    return number * 31 % 1_000_000


def customer(key: NDArray[np.int64]) -> NDArray[np.int64]:
    """Its field `customer`."""
    return key % CUSTOMERS


def _event(number: int, key: int, operation: int) -> ChangeEvent:
    document = None
    if operation != _DELETE:
        # Extended JSON, which says of a decimal and of a time what they are.
        total = b'{"$numberDecimal":"%s"}' % _total(number)
        document = _document(number, key, total, b'{"$date":"%s"}' % _at(number))
    return change(number, key=key, operation=_OPERATIONS[operation], document=document)


def _line(number: int, key: int, operation: int) -> bytes:
    document = b"null"
    if operation != _DELETE:
        document = _document(number, key, _total(number), b'"%s"' % _at(number))
    return b'{"sequence":%d,"op":"%s","id":%d,"document":%s}\n' % (
        number + 1,
        _OPERATIONS[operation].encode(),
        key,
        document,
    )


def _document(number: int, key: int, total: bytes, at: bytes) -> bytes:
    cut = number * 31 % 19_000
    return b'{"_id":%d,"number":%d,' % (key, number) + _VALUES % (
        key % CUSTOMERS,
        key,
        number * 7919 % 100,
        total,
        at,
        _TEXT[cut : cut + 40],
        _TEXT[cut : cut + 640],
    )


def _total(number: int) -> bytes:
    return b"%d.%02d" % divmod(number * 31 % 1_000_000, 100)


def _at(number: int) -> bytes:
    return b"2026-01-02T03:%02d:05.%03dZ" % (number // 1000 % 60, number % 1000)
