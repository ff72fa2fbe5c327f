"""An ordered map over one LMDB database, whose keys may be longer than LMDB's 511 bytes.

Keys sort by their bytes, however long they are and however much of them they share. None may be
the beginning of another; `penstock.store.keys` sees to that.

A key that is longer than a segment is cut: the first segment leads to a *node*, in which what is
left of the key stands, cut again if need be. Where only short keys are, there are no nodes, and a
key costs one byte more than itself.

    root  00 ‖ key                          →  00 ‖ value
    root  00 ‖ first segment                →  01 ‖ node
    node  01 ‖ node ‖ rest of the key       →  00 ‖ value
"""

from collections.abc import Callable, Iterator
from typing import Any, Final

from penstock.kv import Transaction
from penstock.store.keys import after

SEGMENT_BYTES: Final = 480
_ROOT: Final = b"\x00"
_NODE: Final = b"\x01"
_VALUE: Final = b"\x00"
_POINTER: Final = b"\x01"


class LongKeys:
    """The map. It holds no state: every call says in which transaction."""

    def __init__(self, database: Any, *, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._database = database
        self._segment = segment_bytes

    def get(self, txn: Transaction, key: bytes) -> bytes | None:
        """The value of a key; None when there is none."""
        node, rest = _ROOT, key
        while len(rest) > self._segment:
            pointer = txn.get(node + rest[: self._segment], db=self._database)
            if pointer is None:
                return None
            node, rest = _NODE + pointer[1:], rest[self._segment :]
        found = txn.get(node + rest, db=self._database)
        return None if found is None else found[1:]

    def put(
        self, txn: Transaction, key: bytes, value: bytes, *, new_node: Callable[[], int]
    ) -> None:
        """Set the value of a key; `new_node` gives the number of a node that never was."""
        node, rest = _ROOT, key
        while len(rest) > self._segment:
            at = node + rest[: self._segment]
            pointer = txn.get(at, db=self._database)
            if pointer is None:
                pointer = _POINTER + new_node().to_bytes(8, "big")
                txn.put(at, pointer, db=self._database)
            node, rest = _NODE + pointer[1:], rest[self._segment :]
        txn.put(node + rest, _VALUE + value, db=self._database)

    def delete(self, txn: Transaction, key: bytes) -> bool:
        """Remove a key, and the nodes that nothing is in any more; False if it was not there."""
        node, rest = _ROOT, key
        above = list[tuple[bytes, bytes]]()
        while len(rest) > self._segment:
            at = node + rest[: self._segment]
            pointer = txn.get(at, db=self._database)
            if pointer is None:
                return False
            node, rest = _NODE + pointer[1:], rest[self._segment :]
            above.append((at, node))
        if not txn.delete(node + rest, db=self._database):
            return False
        while above and not self._any(txn, above[-1][1]):
            txn.delete(above.pop()[0], db=self._database)
        return True

    def _any(self, txn: Transaction, node: bytes) -> bool:
        with txn.cursor(self._database) as cursor:
            return cursor.set_range(node) and cursor.key().startswith(node)

    def items(
        self,
        txn: Transaction,
        *,
        first: bytes = b"",
        before: bytes | None = None,
        reverse: bool = False,
    ) -> Iterator[tuple[bytes, bytes]]:
        """The keys from `first` on that sort before `before`, with their values, in order.

        The map must not be changed while the iterator is used.
        """
        walk = self._backward if reverse else self._forward
        return walk(txn, _ROOT, b"", first, before)

    def _forward(
        self, txn: Transaction, node: bytes, path: bytes, first: bytes, before: bytes | None
    ) -> Iterator[tuple[bytes, bytes]]:
        with txn.cursor(self._database) as cursor:
            more = cursor.set_range(node + first[: self._segment])
            while more and (key := cursor.key()).startswith(node):
                rest = key[len(node) :]
                if before is not None and rest >= before:
                    return
                value = cursor.value()
                if value[:1] == _VALUE:
                    if rest >= first:
                        yield path + rest, value[1:]
                else:
                    within = self._within(rest, first, before)
                    yield from self._forward(txn, _NODE + value[1:], path + rest, *within)
                more = cursor.next()

    def _backward(
        self, txn: Transaction, node: bytes, path: bytes, first: bytes, before: bytes | None
    ) -> Iterator[tuple[bytes, bytes]]:
        with txn.cursor(self._database) as cursor:
            more = self._seek_last(cursor, node, before)
            while more and (key := cursor.key()).startswith(node):
                rest = key[len(node) :]
                if rest < first[: self._segment]:
                    return
                value = cursor.value()
                if value[:1] == _VALUE:
                    if rest >= first:
                        yield path + rest, value[1:]
                else:
                    within = self._within(rest, first, before)
                    yield from self._backward(txn, _NODE + value[1:], path + rest, *within)
                more = cursor.prev()

    def _seek_last(self, cursor: Any, node: bytes, before: bytes | None) -> bool:
        """Go to the node's last entry that can hold a key before `before`."""
        bound = after(node) if before is None else node + before[: self._segment]
        if bound is None or not cursor.set_range(bound):
            return bool(cursor.last())
        if before is not None and len(before) > self._segment and cursor.key() == bound:
            return True  # what this segment leads to is on both sides of `before`
        return bool(cursor.prev())

    def _within(
        self, segment: bytes, first: bytes, before: bytes | None
    ) -> tuple[bytes, bytes | None]:
        """The bounds, as they are for the keys that a segment leads to."""
        cut = self._segment
        return (
            first[cut:] if first[:cut] == segment else b"",
            before[cut:] if before is not None and before[:cut] == segment else None,
        )
