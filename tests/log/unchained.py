"""A log as it was written before markers proved more than their entry."""

from pathlib import Path

import lmdb

from penstock.log.layout import (
    ENTRIES,
    EXTENTS,
    META,
    STATE_KEY,
    Pointer,
    place_of,
    pointer_of,
    row_key,
    state_of,
)
from penstock.wire import Block
from penstock.wire.layout import BEFORE, HEADER, HEADER_CHECKED, UNCHAINED, tables_check


def unchain(path: Path) -> None:
    """Make the log at `path`, which nobody has open, one of the older layout."""
    with lmdb.open(str(path), max_dbs=16, map_size=1 << 30) as env:
        meta, entries, extents = (env.open_db(name) for name in (META, ENTRIES, EXTENTS))
        with env.begin(write=True) as txn:
            last = 0
            for key, value in list(txn.cursor(db=entries)):
                pointer = pointer_of(value)
                if pointer is None:
                    txn.put(key, _block(value), db=entries)
                    last = _last_check(value)
                else:
                    txn.put(key, _pointer(pointer), db=entries)
                    cursor = txn.cursor(db=extents)
                    assert cursor.set_range(row_key(pointer.extent, pointer.rows, 0))
                    last = _last_check(bytes(cursor.value()))
            for key, value in list(txn.cursor(db=extents)):
                if value:
                    txn.put(key, _block(value), db=extents)
            state = state_of(txn.get(STATE_KEY, db=meta) or b"")
            assert state.trimmed == 0
            assert place_of(list(txn.cursor(db=entries))[-1][0]).last == state.head
            txn.put(STATE_KEY, state._replace(head_check=last).pack(), db=meta)


def _block(data: bytes) -> bytes:
    block = Block(data, log_id=0, first_sequence=1)
    head = bytes([UNCHAINED]) + data[1:HEADER_CHECKED]
    tables = data[HEADER.size + BEFORE.size : block.payload]
    check = tables_check(head, tables).to_bytes(8, "little")
    return b"".join((head, check, tables, data[block.payload :]))


def _last_check(data: bytes) -> int:
    block = Block(data, log_id=0, first_sequence=1)
    return block.check(block.stop - 1) & 0xFFFFFFFF


def _pointer(pointer: Pointer) -> bytes:
    return bytes([0xFF]) + pointer._replace(before=0).pack()[1:]
