"""Whether everything in a store's file agrees with everything else, to the last row."""

from pathlib import Path
from typing import Any

from penstock import kv
from penstock.kv import Transaction
from penstock.store import EventType, Item, StreamRecord, StreamViewType, Table, View
from penstock.store.keys import after
from penstock.store.layout import (
    CATALOG,
    DATABASES,
    EXPIRY,
    ITEMS,
    RECORD_OVERHEAD_BYTES,
    Layout,
    decode_note,
    unpack_item,
)
from penstock.store.records import decode_stored
from penstock.store.schema import Stream
from penstock.store.values import decode_item
from tests.store.support import NOW_MS


def audit(path: Path) -> None:
    """Raise AssertionError where data, streams and what is kept about them do not agree."""
    with kv.open_env(path, create=False) as env:
        assert env.databases(DATABASES, create=False)
        layout = Layout(env)
        with env.read() as txn:
            _expiries(layout, txn, _rows(txn, env[EXPIRY]))
            _nodes(_rows(txn, env[ITEMS]))
            _owned(layout, txn)
            for stream in layout.streams(txn):
                _stream(layout, txn, stream)
            _sequences(layout, txn)


def _rows(txn: Transaction, database: Any) -> list[tuple[bytes, bytes]]:
    with txn.cursor(database) as cursor:
        return list(cursor)


def _expiries(layout: Layout, txn: Transaction, expiries: list[tuple[bytes, bytes]]) -> None:
    """One row for each item that expires, and none beside."""
    found = set[tuple[bytes, int]]()
    for table in layout.tables(txn):
        for key, value in layout.items.items(txn, first=table.prefix, before=after(table.prefix)):
            current = unpack_item(value)
            item = decode_item(current.data)
            assert (table.expires_at(item, now_ms=NOW_MS) or 0) == current.expires
            assert table.key(item) == key
            if current.expires:
                found.add((key, current.expires))
    dropped = tuple(layout.dropped(txn))
    kept = {
        (value, int.from_bytes(key[4:12], "big"))
        for key, value in expiries
        if not key.startswith(dropped)
    }
    assert kept == found


def _nodes(items: list[tuple[bytes, bytes]]) -> None:
    """Every node of long keys is led to, once, and holds something."""
    nodes = {key[1:9] for key, _ in items if key[:1] == b"\x01"}
    pointers = [value[1:] for _, value in items if value[:1] == b"\x01"]
    assert len(pointers) == len(set(pointers))
    assert set(pointers) == nodes


def _owned(layout: Layout, txn: Transaction) -> None:
    """Every item is of a table, or of one whose items are being removed."""
    known = {table.prefix for table in layout.tables(txn)} | set(layout.dropped(txn))
    assert {key[:4] for key, _ in layout.items.items(txn)} <= known


def _stream(layout: Layout, txn: Transaction, stream: Stream) -> None:
    """The head says what the stream holds; the records follow each other, and lead to the items."""
    found = list(layout.records(txn, stream.id, after=0))
    assert len(found) == stream.records
    assert sum(len(data) + RECORD_OVERHEAD_BYTES for _, data in found) == stream.bytes
    assert all(stream.trimmed < sequence for sequence, _ in found)
    if found:
        assert found[-1][0] == stream.latest
    else:
        assert stream.latest is None or stream.latest == stream.trimmed
    state = layout.state(txn)
    assert state is not None
    view = View(layout, txn, state)
    records = view.read(
        stream, after=view.horizon(stream), until=None, limit=10**6, bytes_max=1 << 40
    ).records
    assert [record.sequence_number for record in records] == [sequence for sequence, _ in found]
    last = _followed(records)
    table = layout.table(txn, stream.table)
    if table is not None and table.stream == stream.id:
        _leads_to(layout, txn, table, stream, last)


def _followed(records: list[StreamRecord]) -> dict[str, StreamRecord]:
    """The last record of each item; each fits the one before it."""
    last = dict[str, StreamRecord]()
    for record in records:
        key = _named(record.keys)
        before = last.get(key)
        if before is not None:
            there = before.event_type is not EventType.REMOVE
            assert there == (record.event_type is not EventType.INSERT)
            if record.view is StreamViewType.NEW_AND_OLD_IMAGES:
                assert before.new_image == record.old_image
        last[key] = record
    return last


def _named(keys: Item) -> str:
    return repr(sorted(keys.items()))


def _leads_to(
    layout: Layout, txn: Transaction, table: Table, stream: Stream, last: dict[str, StreamRecord]
) -> None:
    items = {
        _named(table.keys_of(item)): item
        for _, value in layout.items.items(txn, first=table.prefix, before=after(table.prefix))
        for item in [decode_item(unpack_item(value).data)]
    }
    for key, record in last.items():
        assert (key in items) == (record.event_type is not EventType.REMOVE)
        if record.view.has_new:
            assert items.get(key) == record.new_image
    if not stream.trimmed and stream.id in _begun_empty(layout, txn):
        assert set(items) <= set(last)


def _begun_empty(layout: Layout, txn: Transaction) -> set[int | None]:
    """The streams that were enabled before their table held anything."""
    notes = [decode_note(data) for _, data in layout.records(txn, CATALOG, after=0)]
    return {note.stream for note in notes if note.operation == "enableStream" and note.empty}


def _sequences(layout: Layout, txn: Transaction) -> None:
    """No sequence is given twice or beyond what is counted; commits are whole and in order."""
    state = layout.state(txn)
    assert state is not None
    notes = [
        (sequence, decode_note(data)) for sequence, data in layout.records(txn, CATALOG, after=0)
    ]
    found = {sequence: (note.commit, 0, 1) for sequence, note in notes}
    trimmed = max((stream.trimmed for stream in layout.streams(txn)), default=0)
    for stream in layout.streams(txn):
        for sequence, data in layout.records(txn, stream.id, after=0):
            assert sequence not in found
            stored = decode_stored(data)
            found[sequence] = (stored.commit, stored.ordinal, stored.commit_records)
    known = set(range(1, state.sequence + 1))
    assert set(found) <= known
    begins = {
        sequence - ordinal: (commit, count) for sequence, (commit, ordinal, count) in found.items()
    }
    commits = [commit for _, (commit, _) in sorted(begins.items())]
    assert commits == sorted(set(commits))
    assert not commits or commits[-1] <= state.commit
    for begin, (commit, count) in begins.items():
        whole = range(begin, begin + count)
        for sequence in whole:
            if sequence in found:
                assert found[sequence] == (commit, sequence - begin, count)
            else:
                assert sequence <= max(trimmed, state.forgotten)
