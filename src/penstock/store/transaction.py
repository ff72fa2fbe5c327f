"""A write transaction: items and the records of their changes, kept together or not at all (F17).

Operations see what the ones before them left. One that raises has changed nothing, and the
transaction may go on. Records are numbered and written when the transaction ends, so that each says
how many it shares its commit with.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec
from msgspec import Raw

from penstock.kv import Transaction as Txn
from penstock.store import indexes
from penstock.store.conditions import Condition, holds
from penstock.store.errors import (
    ConditionCheckFailedError,
    StreamFullError,
    TableNotFoundError,
    TransactionError,
    VersionMismatchError,
)
from penstock.store.indexbuilders import QueryIndex
from penstock.store.layout import (
    RECORD_OVERHEAD_BYTES,
    Current,
    Layout,
    State,
    pack_item,
    record_check,
    unpack_item,
)
from penstock.store.queries import ItemPage
from penstock.store.records import EventType, Stored, encode_record, event_number, raw_image
from penstock.store.retention import prune
from penstock.store.schema import Stream, Table
from penstock.store.shards import ShardLimits, is_due, seal
from penstock.store.times import Times
from penstock.store.updates import Update, Updated, apply, refuse_key_updates
from penstock.store.values import Encoded, Item, decode_item, encode_item

_PRUNE_STEP: Final = 16
"""Records removed with each transaction, and twice as many as it adds."""


class _Pending(NamedTuple):
    """A change of this transaction, before it has a number."""

    event: EventType
    expired: bool
    size: int
    keys: bytes
    old: bytes | None
    new: bytes | None

    @property
    def bytes(self) -> int:
        """Not less than what it takes in the stream."""
        return len(self.keys) + len(self.old or b"") + len(self.new or b"") + _RECORD_BYTES


_RECORD_BYTES: Final = 64


class Transaction:
    """One write transaction. Made by `Store.transact`, and of use only inside its block: behind it
    everything raises TransactionError."""

    def __init__(
        self,
        layout: Layout,
        txn: Txn,
        *,
        state: State,
        times: Times,
        shards: ShardLimits,
        require_room: Callable[[], None],
    ) -> None:
        """`require_room` refuses what would add an item while the disk is full."""
        self._require_room: Callable[[], None] | None = require_room
        self._layout = layout
        self._inside: Txn | None = txn
        """None behind the block."""
        self._state = state
        self._times = times
        self._now_ms = times.now_ms
        self._written_ms = max(times.now_ms, times.likely_ms)
        """The time of records: not that of a clock that is behind what is known."""
        self._expired_ms = times.expired_ms
        self._shards = shards
        self._version = state.version_base + txn.id()
        self._nodes = state.nodes
        self._tables = dict[str, Table]()
        self._streams = dict[int, Stream]()
        self._pending = list[tuple[int, _Pending]]()
        self._pending_bytes = dict[int, int]()
        self.bytes = 0
        """Of the items and records that it wrote."""
        self.touched = False
        """Whether anything was changed, or is to be."""

    @property
    def _txn(self) -> Txn:
        if self._inside is None:
            raise TransactionError(
                "the transaction is over: it is of use only inside its block. Nothing was changed "
                "by this call. Begin another one with transact()."
            )
        return self._inside

    def end(self) -> None:
        """Its block ends: whatever is asked of it from now on raises TransactionError."""
        self._inside = None

    # --- reading ---------------------------------------------------------------------------------

    def get(self, table: str, key: Item) -> Item | None:
        """The item of that key, as this transaction has left it; None when there is none."""
        found = self._visible(self.table(table).key(key))
        return None if found is None else decode_item(found.data)

    def query_index(self, table: str, index: str) -> QueryIndex:
        """Describe items found by an index, as this transaction has left them: `execute` it."""
        return QueryIndex(self._query_index, table, index)

    def _query_index(self, query: QueryIndex) -> ItemPage:
        table = self.table(query.table)
        return indexes.read_page(self._layout, self._txn, table, query, now_ms=self._expired_ms)

    def table(self, name: str) -> Table:
        """A table's schema. Raises TableNotFoundError."""
        found = self._tables.get(name)
        if found is None:
            found = self._layout.table(self._txn, name)
            if found is None:
                raise TableNotFoundError(name)
            self._tables[name] = found
        return found

    def _current(self, key: bytes) -> Current | None:
        value = self._layout.items.get(self._txn, key)
        return None if value is None else unpack_item(value)

    def _visible(self, key: bytes) -> Current | None:
        current = self._current(key)
        return current if current is not None and current.visible(self._expired_ms) else None

    # --- writing ---------------------------------------------------------------------------------

    def put(
        self,
        table: str,
        item: Item,
        *,
        condition: Condition | None = None,
        expected_version: int | None = None,
    ) -> Item | None:
        """Write an item, whole; returns the one that it replaces.

        `expected_version` is what `get_versioned` said, 0 for no item. Raises
        ConditionCheckFailedError, VersionMismatchError, StreamFullError, and what the item's values
        and key are refused with.
        """
        schema = self.table(table)
        key, encoded = schema.key(item), encode_item(item)
        current = self._current(key)
        old = self._checked(schema, current, condition, expected_version)
        self._replace(schema, key, current, item, encoded)
        return old

    def update(
        self,
        table: str,
        key: Item,
        update: Update,
        *,
        condition: Condition | None = None,
        expected_version: int | None = None,
    ) -> Updated:
        """Change an item in part, or make it of its key; returns what it was and is.

        Raises as `put`, KeyAttributeUpdateError and UpdateTypeMismatchError.
        """
        schema = self.table(table)
        place = schema.key(key)
        current = self._current(place)
        old = self._checked(schema, current, condition, expected_version)
        base = schema.keys_of(key) if old is None else old
        if old is None and not update.creates:
            refuse_key_updates(update, schema.key_names)
            return Updated(None, base)
        new = apply(update, base, keys=schema.key_names)
        self._replace(schema, place, current, new, encode_item(new))
        return Updated(old, new)

    def delete(
        self,
        table: str,
        key: Item,
        *,
        condition: Condition | None = None,
        expected_version: int | None = None,
    ) -> Item | None:
        """Remove an item; returns it, or None when there was none, which is no change."""
        schema = self.table(table)
        place = schema.key(key)
        current = self._current(place)
        old = self._checked(schema, current, condition, expected_version)
        if current is not None:
            expired = not current.visible(self._expired_ms)
            self._record(schema, [self._removal(schema, current, expired=expired)])
            self._remove(schema, place, current)
        return old

    def check(self, table: str, key: Item, condition: Condition) -> None:
        """Raise ConditionCheckFailedError unless the condition holds for the item of that key."""
        schema = self.table(table)
        self._checked(schema, self._current(schema.key(key)), condition, None)

    def beside(self, table: str) -> bytes | None:
        """What a server keeps with a table; None when it keeps nothing."""
        return self._layout.beside(self._txn, self.table(table))

    def put_beside(self, table: str, data: bytes) -> None:
        """Keep something with a table until it is dropped. It means nothing to the store."""
        schema = self.table(table)
        self.touched = True
        self._layout.put_beside(self._txn, schema, data)

    def put_beside_index(self, table: str, index: str, data: bytes) -> None:
        """Keep something else with an index that something is kept with (`Index.kept`)."""
        schema = self.table(table)
        indexes_ = tuple(
            msgspec.structs.replace(one, kept=data) if one.name == index else one
            for one in schema.indexes
        )
        schema = self._tables[table] = msgspec.structs.replace(schema, indexes=indexes_)
        self.touched = True
        self._layout.put_table(self._txn, schema)

    def use_token(self, token: bytes, data: bytes, *, seconds: float) -> bytes | None:
        """Remember what a token, of at most 400 bytes, was used for; kept with this transaction.

        Returns what it was used for before, if that is not longer ago than `seconds`, and then
        changes nothing.
        """
        found = self._layout.token(self._txn, token)
        if found is not None and int.from_bytes(found[:8], "big") > self._now_ms:
            return found[8:]
        self.touched = True
        until_ms = self._now_ms + round(seconds * 1000)
        value = until_ms.to_bytes(8, "big") + data
        self._layout.put_token(self._txn, token, value, until_ms=until_ms)
        return None

    def expire(self, seen: Table, key: bytes) -> bool:
        """Remove the item under `key` if it has expired by now (F9); returns whether it had.

        `seen` is its table as it was when the key was found; nothing of one that was dropped since.
        Raises StreamFullError.
        """
        schema = self._tables.get(seen.name) or self._layout.table(self._txn, seen.name)
        if schema is None or schema.id != seen.id:
            return False
        current = self._current(key)
        if current is None or current.visible(self._expired_ms):
            return False
        self._record(schema, [self._removal(schema, current, expired=True)])
        self._remove(schema, key, current)
        return True

    def _checked(
        self,
        schema: Table,
        current: Current | None,
        condition: Condition | None,
        expected_version: int | None,
    ) -> Item | None:
        """The item that operations see, which fulfils what was asked of it."""
        if current is not None and not current.visible(self._expired_ms):
            current = None
        actual = 0 if current is None else current.version
        if expected_version is not None and expected_version != actual:
            raise VersionMismatchError(schema.name, expected=expected_version, actual=actual)
        old = None if current is None else decode_item(current.data)
        if condition is not None and not holds(condition, old):
            raise ConditionCheckFailedError(schema.name, old)
        return old

    def _replace(
        self, schema: Table, key: bytes, current: Current | None, item: Item, encoded: Encoded
    ) -> None:
        if self._require_room is not None:
            self._require_room()
            self._require_room = None  # once will do
        changes = list[_Pending]()
        replaced = current
        if current is not None and not current.visible(self._expired_ms):
            changes.append(self._removal(schema, current, expired=True))
            replaced = None
        if replaced is not None and replaced.data == encoded.data:
            if schema.stream is not None and self._stream(schema.stream).unchanged:
                self._record(schema, [self._change(schema, replaced, item, encoded)])
            return
        changes.append(self._change(schema, replaced, item, encoded))
        self._record(schema, changes)
        self.touched = True
        expires = schema.expires_at(item, now_ms=self._times.likely_ms) or 0
        if current is not None and current.expires and current.expires != expires:
            self._layout.delete_expiry(self._txn, key, current.expires)
        if expires and (current is None or current.expires != expires):
            self._layout.put_expiry(self._txn, key, expires)
        value = pack_item(self._version, encoded.size, expires, encoded.data)
        self._layout.items.put(self._txn, key, value, new_node=self._new_node)
        self.bytes += len(value)
        if schema.indexes:
            self._reindex(schema, key, current, item)

    def _remove(self, schema: Table, key: bytes, current: Current) -> None:
        self.touched = True
        if current.expires:
            self._layout.delete_expiry(self._txn, key, current.expires)
        self._layout.items.delete(self._txn, key)
        if schema.indexes:
            self._reindex(schema, key, current, None)

    def _reindex(self, schema: Table, key: bytes, old: Current | None, new: Item | None) -> None:
        before = None if old is None else decode_item(old.data)
        indexes.maintain(
            self._layout, self._txn, schema, key, old=before, new=new, new_node=self._new_node
        )

    def _new_node(self) -> int:
        self._nodes += 1
        return self._nodes

    # --- the stream ------------------------------------------------------------------------------

    def _stream(self, number: int) -> Stream:
        found = self._streams.get(number)
        if found is None:
            found = self._layout.stream(self._txn, number)
            assert found is not None, "a table's stream is kept as long as it is enabled"
            self._streams[number] = found
        return found

    def _change(self, schema: Table, old: Current | None, item: Item, encoded: Encoded) -> _Pending:
        event = EventType.INSERT if old is None else EventType.MODIFY
        return self._pended(schema, event, schema.keys_of(item), old, encoded, expired=False)

    def _removal(self, schema: Table, old: Current, *, expired: bool) -> _Pending:
        keys = schema.keys_of(decode_item(old.data)) if schema.stream is not None else {}
        return self._pended(schema, EventType.REMOVE, keys, old, None, expired=expired)

    def _pended(
        self,
        schema: Table,
        event: EventType,
        keys: Item,
        old: Current | None,
        new: Encoded | None,
        *,
        expired: bool,
    ) -> _Pending:
        if schema.stream is None:
            return _NOTHING
        view = self._stream(schema.stream).view
        encoded = encode_item(keys)
        before = old if view.has_old else None
        after = new if view.has_new else None
        size = encoded.size + (before.size if before else 0) + (after.size if after else 0)
        return _Pending(
            event,
            expired,
            size,
            encoded.data,
            before.data if before else None,
            after.data if after else None,
        )

    def _record(self, schema: Table, changes: list[_Pending]) -> None:
        """Take changes for the table's stream. Raises StreamFullError, and then takes none."""
        number = schema.stream
        if number is None:
            return
        stream = self._stream(number)
        pending = self._pending_bytes.get(number, 0) + sum(change.bytes for change in changes)
        limit = stream.retention.bytes_max
        if stream.retention.manual and limit is not None and stream.bytes + pending > limit:
            raise StreamFullError(schema.name, bytes_max=limit)
        self.touched = True
        self._pending_bytes[number] = pending
        self._pending += [(number, change) for change in changes]

    # --- the end ---------------------------------------------------------------------------------

    def finish(self) -> None:
        """Write the records and what the store counts."""
        state = self._state
        if self._pending:
            commit, total = state.commit + 1, len(self._pending)
            due = self._shards_due()
            for ordinal, (number, change) in enumerate(self._pending):
                sequence = state.sequence + 1 + ordinal
                if number in due:
                    due.remove(number)
                    self._seal_shard(number, first=sequence)
                self._write_record(number, change, sequence, (commit, ordinal, total))
            state = msgspec.structs.replace(
                state, sequence=state.sequence + total, commit=commit, nodes=self._nodes
            )
            self._layout.put_state(self._txn, state)
            for stream in self._streams.values():
                left = prune(
                    self._layout,
                    self._txn,
                    stream,
                    now_ms=self._times.aged_ms,
                    limit=_PRUNE_STEP + 2 * total,
                )
                self._layout.put_stream(self._txn, left)
        elif self._nodes != state.nodes:
            state = msgspec.structs.replace(state, nodes=self._nodes)
            self._layout.put_state(self._txn, state)

    def _shards_due(self) -> set[int]:
        """The streams whose records of this transaction begin a new shard."""
        return {
            number
            for number in {number for number, _ in self._pending}
            if is_due(self._streams[number], self._shards, time_ms=self._now_ms)
        }

    def _seal_shard(self, number: int, *, first: int) -> None:
        stream = self._streams[number]
        time_ms = max(stream.newest_ms, self._written_ms)
        sealed = seal(self._layout, self._txn, stream, first=first, time_ms=time_ms)
        self._streams[number] = sealed

    def _write_record(
        self, number: int, change: _Pending, sequence: int, place: tuple[int, int, int]
    ) -> None:
        stream = self._streams[number]
        time_ms = max(stream.newest_ms, self._written_ms)
        data = encode_record(
            Stored(
                event_number(change.event),
                *place,
                time_ms,
                change.expired,
                change.size,
                Raw(change.keys),
                raw_image(change.old),
                raw_image(change.new),
            )
        )
        self._layout.put_record(self._txn, number, sequence, data)
        self.bytes += len(data)
        self._streams[number] = msgspec.structs.replace(
            stream,
            latest=sequence,
            latest_check=record_check(data),
            newest_ms=time_ms,
            records=stream.records + 1,
            bytes=stream.bytes + len(data) + RECORD_OVERHEAD_BYTES,
            shard_bytes=stream.shard_bytes + len(data) + RECORD_OVERHEAD_BYTES,
        )


_NOTHING: Final = _Pending(EventType.REMOVE, expired=False, size=0, keys=b"", old=None, new=None)
