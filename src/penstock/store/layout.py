"""Where everything of a store lies in its LMDB environment.

    meta     "store" → State; "table:" name → Table; "stream:" number → Stream; "drop:" number → b""
             "life:" sequence → whose writing begins there;
             "consumer:" table, name → Consumer
             "shard:" stream, number → SealedShard
             "beside:" table → what a server keeps with the table
             "token:" token → what it was used for; "spent:" millisecond, token → b""
             "trusted" → a millisecond, of a clock that was believed; "doubted" → of one that was
             not, since
    items    table ‖ partition key ‖ sort key → version, size, expiry, item    (LongKeys)
             index ‖ partition key ‖ sort key ‖ the item's key → where that begins
    expiry   table ‖ second ‖ digest of the item's key → the item's key
    records  stream ‖ sequence → record; stream 0 is the catalog's: what happened to tables

Numbers are big-endian. Tables and indexes are numbered by one counter. A table that has no stream
never touches `records`, nor the state (F18); one without a TTL never touches `expiry`.
"""

import struct
from collections.abc import Iterator
from itertools import islice, pairwise
from typing import Final, Literal, NamedTuple

import msgspec
import xxhash
from msgspec import Struct

from penstock.kv import Env, Transaction
from penstock.store.longkeys import LongKeys
from penstock.store.schema import Consumer, Stream, Table

META: Final = b"meta"
ITEMS: Final = b"items"
EXPIRY: Final = b"expiry"
RECORDS: Final = b"records"
DATABASES: Final = (META, ITEMS, EXPIRY, RECORDS)
FORMAT: Final = 2
"""The newest that is read here. 2: a table has an index, which a Penstock that knows only 1 would
leave as it is while it writes the table's items; a store is of format 1 until then."""

_STATE: Final = b"store"
_TABLE: Final = b"table:"
_STREAM: Final = b"stream:"
_DROP: Final = b"drop:"
_LIFE: Final = b"life:"
_CONSUMER: Final = b"consumer:"
_SHARD: Final = b"shard:"
_BESIDE: Final = b"beside:"
_TOKEN: Final = b"token:"
_SPENT: Final = b"spent:"
_BELIEVED: Final = b"trusted"
_DOUBTED: Final = b"doubted"
_HEADER: Final = struct.Struct(">QIQ")
_U64: Final = struct.Struct(">Q")
_RECORD: Final = struct.Struct(">IQ")
_NUMBERED: Final = struct.Struct(">II")

CATALOG: Final = 0
"""The number under which the catalog's own records lie."""


class CatalogRecord(Struct, frozen=True, kw_only=True):
    """What happened to a table or its stream, in its place among the changes of items (F19)."""

    operation: Literal["createTable", "dropTable", "enableStream", "disableStream", "setTtl"]
    table: Table
    """As it is afterwards; of one that was dropped, as it was."""
    stream: int | None
    """The stream that began, or ended: with a table that is dropped its stream ends too."""
    empty: bool = False
    """Whether the table held no item when its stream began."""
    commit: int
    time_ms: int


class SealedShard(Struct, frozen=True, array_like=True):
    """A shard of a stream that takes no more records (`penstock.store.shards`)."""

    first: int
    last: int
    begun_ms: int
    life: str = ""


class State(Struct, frozen=True, kw_only=True):
    """What a store counts."""

    format: int = 1
    id: str
    version_base: int = 0
    """Added to the transaction's number in an item's version: a compacted copy counts anew."""
    sequence: int = 0
    """The newest record's, of all streams: dense, from 1. The store's position as a source."""
    commit: int = 0
    """The newest transaction that recorded anything: dense, from 1."""
    tables: int = 0
    streams: int = 0
    nodes: int = 0
    forgotten: int = 0
    """The newest sequence of any stream that was disabled, emptied by retention, and forgotten."""
    copied: bool = False
    """Whether this is a copy that nobody has opened for writing yet (`Engine.backup`)."""


class Current(NamedTuple):
    """An item as it is stored."""

    version: int
    size: int
    expires: int
    """The second from which it is no longer there; 0: never."""
    data: bytes

    def visible(self, now_ms: int) -> bool:
        """Whether it has not expired (F8)."""
        return not self.expires or self.expires * 1000 > now_ms


class Layout:
    """The store's bytes, typed. It holds no state: every call says in which transaction."""

    def __init__(self, env: Env) -> None:
        self._meta = env[META]
        self._expiry = env[EXPIRY]
        self._records = env[RECORDS]
        self.items = LongKeys(env[ITEMS])

    # --- what the store counts, and its catalog --------------------------------------------------

    def state(self, txn: Transaction) -> State | None:
        """What the store counts; None in a new environment."""
        data = txn.get(_STATE, db=self._meta)
        return None if data is None else _states.decode(data)

    def put_state(self, txn: Transaction, state: State) -> None:
        """Write what the store counts."""
        txn.put(_STATE, _encoder.encode(state), db=self._meta)

    def table(self, txn: Transaction, name: str) -> Table | None:
        """A table's schema; None when there is no such table."""
        data = txn.get(_TABLE + name.encode(), db=self._meta)
        return None if data is None else _tables.decode(data)

    def put_table(self, txn: Transaction, table: Table) -> None:
        """Write a table's schema."""
        txn.put(_TABLE + table.name.encode(), _encoder.encode(table), db=self._meta)

    def delete_table(self, txn: Transaction, table: Table) -> None:
        """Forget a table, and remember that its items are to be removed."""
        txn.delete(_TABLE + table.name.encode(), db=self._meta)
        for prefix in (table.prefix, *(index.prefix for index in table.indexes)):
            self.drop(txn, prefix)
        txn.delete(_BESIDE + table.prefix, db=self._meta)

    def drop(self, txn: Transaction, prefix: bytes) -> None:
        """Remember that all that begins with `prefix` is to be removed: a table's, an index's."""
        txn.put(_DROP + prefix, b"\x00", db=self._meta)

    def tables(self, txn: Transaction) -> list[Table]:
        """All tables, by name."""
        return [_tables.decode(value) for _, value in self._prefixed(txn, _TABLE)]

    def stream(self, txn: Transaction, number: int) -> Stream | None:
        """A stream; None once nothing is left of it."""
        data = txn.get(_STREAM + number.to_bytes(4, "big"), db=self._meta)
        return None if data is None else _streams.decode(data)

    def put_stream(self, txn: Transaction, stream: Stream) -> None:
        """Write a stream's head."""
        txn.put(_STREAM + stream.id.to_bytes(4, "big"), _encoder.encode(stream), db=self._meta)

    def delete_stream(self, txn: Transaction, stream: Stream) -> None:
        """Forget a stream, of which no record is left, but for how far it went."""
        txn.delete(_STREAM + stream.id.to_bytes(4, "big"), db=self._meta)
        for number, _ in list(self.shards(txn, stream.id)):
            self.delete_shard(txn, stream.id, number)
        state = self.state(txn)
        assert state is not None, "written when the store was made"
        if stream.trimmed > state.forgotten:
            self.put_state(txn, msgspec.structs.replace(state, forgotten=stream.trimmed))

    def streams(self, txn: Transaction) -> list[Stream]:
        """All streams, in the order in which they were enabled."""
        return [_streams.decode(value) for _, value in self._prefixed(txn, _STREAM)]

    def dropped(self, txn: Transaction) -> list[bytes]:
        """The prefixes of tables and indexes that were dropped and are not all removed yet."""
        return [key[len(_DROP) :] for key, _ in self._prefixed(txn, _DROP)]

    def forget_dropped(self, txn: Transaction, prefix: bytes) -> None:
        """Nothing is left of a dropped table or index."""
        txn.delete(_DROP + prefix, db=self._meta)

    def _prefixed(self, txn: Transaction, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        with txn.cursor(self._meta) as cursor:
            more = cursor.set_range(prefix)
            while more and cursor.key().startswith(prefix):
                yield cursor.key(), cursor.value()
                more = cursor.next()

    # --- shards ----------------------------------------------------------------------------------

    def put_shard(self, txn: Transaction, stream: int, number: int, shard: SealedShard) -> None:
        """Keep a shard that is sealed."""
        txn.put(_SHARD + _NUMBERED.pack(stream, number), _encoder.encode(shard), db=self._meta)

    def delete_shard(self, txn: Transaction, stream: int, number: int) -> None:
        """Forget a sealed shard."""
        txn.delete(_SHARD + _NUMBERED.pack(stream, number), db=self._meta)

    def shards(
        self, txn: Transaction, stream: int, *, limit: int | None = None
    ) -> list[tuple[int, SealedShard]]:
        """A stream's sealed shards that are kept, each with its number, oldest first."""
        found = self._prefixed(txn, _SHARD + stream.to_bytes(4, "big"))
        return [
            (_NUMBERED.unpack_from(key, len(_SHARD))[1], _shards.decode(value))
            for key, value in islice(found, limit)
        ]

    # --- what servers keep -----------------------------------------------------------------------

    def beside(self, txn: Transaction, table: Table) -> bytes | None:
        """What a server keeps with a table; None when it keeps nothing."""
        return txn.get(_BESIDE + table.prefix, db=self._meta)

    def put_beside(self, txn: Transaction, table: Table, data: bytes) -> None:
        """Keep something with a table, of no meaning to the store, until it is dropped."""
        txn.put(_BESIDE + table.prefix, data, db=self._meta)

    def token(self, txn: Transaction, token: bytes) -> bytes | None:
        """What was kept with a token; None once it was forgotten."""
        return txn.get(_TOKEN + token, db=self._meta)

    def put_token(self, txn: Transaction, token: bytes, data: bytes, *, until_ms: int) -> None:
        """Remember a token until a time, with which `data` begins."""
        txn.put(_TOKEN + token, data, db=self._meta)
        txn.put(_SPENT + _U64.pack(until_ms) + token, b"\x00", db=self._meta)

    def has_tokens(self, txn: Transaction) -> bool:
        """Whether any token is remembered."""
        return next(self._prefixed(txn, _SPENT), None) is not None

    def forget_tokens(self, txn: Transaction, *, now_ms: int, limit: int) -> int:
        """Forget at most `limit` tokens whose time is over; returns how many there were."""
        over = list[bytes]()
        for key, _ in self._prefixed(txn, _SPENT):
            if len(over) == limit or _U64.unpack_from(key, len(_SPENT))[0] > now_ms:
                break
            over.append(key)
        for key in over:
            txn.delete(key, db=self._meta)
            token = key[len(_SPENT) + _U64.size :]
            kept = self.token(txn, token)
            # It may have been used anew since.
            if kept is not None and kept[: _U64.size] <= _U64.pack(now_ms):
                txn.delete(_TOKEN + token, db=self._meta)
        return len(over)

    # --- when it was written ---------------------------------------------------------------------

    def believed_ms(self, txn: Transaction) -> int | None:
        """The newest time of a clock that was believed; None in a store that was never told one."""
        return self._time(txn, _BELIEVED)

    def doubted_ms(self, txn: Transaction) -> int | None:
        """Where a clock stood first that was not believed since; None if none was."""
        return self._time(txn, _DOUBTED)

    def put_believed_ms(self, txn: Transaction, time_ms: int) -> None:
        """Remember the time of a clock that is believed, and that there is no doubt."""
        txn.put(_BELIEVED, _U64.pack(time_ms), db=self._meta)
        txn.delete(_DOUBTED, db=self._meta)

    def put_doubted_ms(self, txn: Transaction, time_ms: int) -> None:
        """Remember the time of a clock that is not believed."""
        txn.put(_DOUBTED, _U64.pack(time_ms), db=self._meta)

    def _time(self, txn: Transaction, key: bytes) -> int | None:
        data = txn.get(key, db=self._meta)
        return None if data is None else _U64.unpack(data)[0]

    # --- who wrote it ----------------------------------------------------------------------------

    def begin_life(self, txn: Transaction, life: str) -> None:
        """From the next record on, the store is written by `life`: a process, since it opened it.

        No two stores that were one once, as one and its restored backup, have the same lives: so
        who knows a sequence and its life knows whether what stands there is what he read.
        """
        state = self.state(txn)
        assert state is not None, "written when the store was made"
        txn.put(_LIFE + _U64.pack(state.sequence + 1), life.encode(), db=self._meta)

    def life(self, txn: Transaction, sequence: int) -> str:
        """Who wrote the record of that sequence; empty when it is not known any more, or none."""
        with txn.cursor(self._meta) as cursor:
            more = cursor.set_range(_LIFE + _U64.pack(sequence + 1))
            found = cursor.prev() if more else cursor.last()
            return cursor.value().decode() if found and cursor.key().startswith(_LIFE) else ""

    def lives(self, txn: Transaction) -> list[tuple[int, str]]:
        """All lives that are known, each with the sequence from which on it wrote."""
        return [
            (_U64.unpack_from(key, len(_LIFE))[0], value.decode())
            for key, value in self._prefixed(txn, _LIFE)
        ]

    def forget_lives(self, txn: Transaction, *, until: int, limit: int) -> None:
        """Forget at most `limit` lives that wrote nothing at `until` or behind it."""
        lives = self.lives(txn)[: limit + 1]
        for (first, _), (following, _) in pairwise(lives):
            if following <= until:
                txn.delete(_LIFE + _U64.pack(first), db=self._meta)

    # --- consumers -------------------------------------------------------------------------------

    def consumer(self, txn: Transaction, table: str, name: str) -> Consumer | None:
        """A table's consumer; None when there is none of that name."""
        data = txn.get(_consumer_key(table, name), db=self._meta)
        return None if data is None else _consumers.decode(data)

    def put_consumer(self, txn: Transaction, consumer: Consumer) -> None:
        """Write where a consumer stands."""
        key = _consumer_key(consumer.table, consumer.name)
        txn.put(key, _encoder.encode(consumer), db=self._meta)

    def delete_consumer(self, txn: Transaction, consumer: Consumer) -> None:
        """Forget a consumer."""
        txn.delete(_consumer_key(consumer.table, consumer.name), db=self._meta)

    def consumers(self, txn: Transaction, table: str | None) -> list[Consumer]:
        """A table's consumers by name; those of all tables without one."""
        prefix = _CONSUMER if table is None else _consumer_key(table, "")
        return [_consumers.decode(value) for _, value in self._prefixed(txn, prefix)]

    # --- expiry ----------------------------------------------------------------------------------

    def put_expiry(self, txn: Transaction, key: bytes, second: int) -> None:
        """Remember when the item under `key` expires."""
        txn.put(_expiry_key(key, second), key, db=self._expiry)

    def delete_expiry(self, txn: Transaction, key: bytes, second: int) -> None:
        """Forget when the item under `key` expires."""
        txn.delete(_expiry_key(key, second), db=self._expiry)

    def expired(self, txn: Transaction, prefix: bytes, *, second: int, limit: int) -> list[bytes]:
        """The keys of at most `limit` items of a table that expired by `second`, oldest first."""
        found = list[bytes]()
        with txn.cursor(self._expiry) as cursor:
            more = cursor.set_range(prefix)
            while more and len(found) < limit:
                key = cursor.key()
                if not key.startswith(prefix) or _U64.unpack_from(key, 4)[0] > second:
                    break
                found.append(cursor.value())
                more = cursor.next()
        return found

    def clear_expiry(self, txn: Transaction, prefix: bytes, *, limit: int) -> int:
        """Forget at most `limit` expiries of a table; returns how many there were."""
        removed = 0
        with txn.cursor(self._expiry) as cursor:
            more = cursor.set_range(prefix)
            while more and removed < limit and cursor.key().startswith(prefix):
                more = cursor.delete()
                removed += 1
        return removed

    # --- records ---------------------------------------------------------------------------------

    def put_record(self, txn: Transaction, stream: int, sequence: int, data: bytes) -> None:
        """Append a record to a stream."""
        txn.put(_RECORD.pack(stream, sequence), data, db=self._records)

    def delete_record(self, txn: Transaction, stream: int, sequence: int) -> None:
        """Remove a record from a stream."""
        txn.delete(_RECORD.pack(stream, sequence), db=self._records)

    def note(
        self,
        txn: Transaction,
        operation: Literal["createTable", "dropTable", "enableStream", "disableStream", "setTtl"],
        table: Table,
        *,
        stream: int | None = None,
        empty: bool = False,
        now_ms: int,
    ) -> None:
        """Tell of a table in the catalog's stream, as a commit of its own."""
        state = self.state(txn)
        assert state is not None, "written when the store was made"
        state = msgspec.structs.replace(state, sequence=state.sequence + 1, commit=state.commit + 1)
        record = CatalogRecord(
            operation=operation,
            table=table,
            stream=stream,
            empty=empty,
            commit=state.commit,
            time_ms=now_ms,
        )
        self.put_record(txn, CATALOG, state.sequence, _encoder.encode(record))
        self.put_state(txn, state)

    def record(self, txn: Transaction, stream: int, sequence: int) -> bytes | None:
        """A stream's record of exactly that sequence."""
        return txn.get(_RECORD.pack(stream, sequence), db=self._records)

    def records(self, txn: Transaction, stream: int, *, after: int) -> Iterator[tuple[int, bytes]]:
        """A stream's records behind a sequence, in order. The stream must not change meanwhile."""
        with txn.cursor(self._records) as cursor:
            more = cursor.set_range(_RECORD.pack(stream, after + 1))
            while more:
                number, sequence = _RECORD.unpack(cursor.key())
                if number != stream:
                    return
                yield sequence, cursor.value()
                more = cursor.next()


def pack_item(version: int, size: int, expires: int, data: bytes) -> bytes:
    """An item's value in `items`."""
    return _HEADER.pack(version, size, expires) + data


def unpack_item(value: bytes) -> Current:
    """What `pack_item` packed."""
    version, size, expires = _HEADER.unpack_from(value)
    return Current(version, size, expires, value[_HEADER.size :])


def decode_note(data: bytes) -> CatalogRecord:
    """A record of the catalog."""
    return _notes.decode(data)


def record_check(data: bytes) -> int:
    """32 bits by which a position knows the record that it stands on."""
    return xxhash.xxh3_64_intdigest(data) & 0xFFFF_FFFF


RECORD_OVERHEAD_BYTES: Final = _RECORD.size


def _consumer_key(table: str, name: str) -> bytes:
    text = table.encode()
    # The length, since a table's name may have any character.
    return _CONSUMER + len(text).to_bytes(1, "big") + text + name.encode()


def _expiry_key(key: bytes, second: int) -> bytes:
    return key[:4] + _U64.pack(second) + xxhash.xxh3_128_digest(key)


_encoder: Final = msgspec.msgpack.Encoder()
_states: Final = msgspec.msgpack.Decoder(State)
_notes: Final = msgspec.msgpack.Decoder(CatalogRecord)
_tables: Final = msgspec.msgpack.Decoder(Table)
_streams: Final = msgspec.msgpack.Decoder(Stream)
_consumers: Final = msgspec.msgpack.Decoder(Consumer)
_shards: Final = msgspec.msgpack.Decoder(SealedShard)
