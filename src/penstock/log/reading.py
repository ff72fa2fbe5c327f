"""Reading the log out of LMDB: a `Snapshot` lives inside one read transaction."""

import threading
from collections import OrderedDict
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager

from penstock.errors import LogCorruptError, LogError
from penstock.kv import Env, Transaction
from penstock.log.layout import (
    ANCESTORS_KEY,
    BASE_KEY,
    ENTRIES,
    EXTENTS,
    LOG_ID_KEY,
    META,
    POSITIONS,
    STATE_KEY,
    Place,
    Pointer,
    State,
    ancestors_of,
    entry_key,
    place_of,
    pointer_of,
    row_key,
    rows_of,
    source_of,
    state_of,
    unpack_u64,
)
from penstock.log.view import Reads, View
from penstock.ports import Bounds, SourceState
from penstock.wire import Block


class BlockCache:
    """The blocks read last, so that readers at one place share one decode. Thread-safe.

    A block is named by its last sequence: what stands there never changes within one log.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._blocks: OrderedDict[int, Block] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, last: int) -> Block | None:
        with self._lock:
            block = self._blocks.get(last)
            if block is not None:
                self._blocks.move_to_end(last)
            return block

    def put(self, last: int, block: Block) -> Block:
        """Keep `block`; returns the one that is kept, which may be another reader's."""
        with self._lock:
            kept = self._blocks.setdefault(last, block)
            if kept is block:
                self._bytes += block.nbytes
                while self._bytes > self._bytes_max and len(self._blocks) > 1:
                    _, oldest = self._blocks.popitem(last=False)
                    self._bytes -= oldest.nbytes
            return kept

    def clear(self) -> None:
        with self._lock:
            self._blocks.clear()
            self._bytes = 0


class Snapshot(View):
    """The log as one read transaction sees it."""

    def __init__(self, txn: Transaction, env: Env, cache: BlockCache) -> None:
        self._txn = txn
        self._env = env
        self._cache = cache
        self.log_id = unpack_u64(self._meta(LOG_ID_KEY))
        self.state: State = state_of(self._meta(STATE_KEY))

    def _meta(self, key: bytes) -> bytes:
        value = self._txn.get(key, db=self._env[META])
        if value is None:
            raise LogError(f"the log at {self._env.path} is not complete yet")
        return value

    def bounds(self) -> Bounds:
        ancestors = self._txn.get(ANCESTORS_KEY, db=self._env[META])
        base = self._txn.get(BASE_KEY, db=self._env[META])
        return self.state.bounds(
            self.log_id, ancestors_of(ancestors), base=unpack_u64(base) if base else 0
        )

    def sources(self) -> list[SourceState]:
        with self._txn.cursor(self._env[POSITIONS]) as cursor:
            return [source_of(value) for value in cursor.iternext(keys=False, values=True)]

    def blocks(self, after: int) -> Iterator[Block]:
        """As `View.blocks`. A block of an extent is an ordinary one, but for its header."""
        expected = after + 1
        with self._txn.cursor(self._env[ENTRIES]) as cursor:
            found = cursor.set_range(entry_key(expected, 0))
            while found:
                place = place_of(cursor.key())
                if place.first > expected:
                    break
                block = self._cache.get(place.last)
                if block is not None and block.first_sequence == place.first:
                    yield block
                else:
                    value = cursor.value()
                    pointer = pointer_of(value)
                    if pointer is None:
                        yield self._decoded(value, place)
                    else:
                        yield from self._extent_blocks(place, pointer, expected)
                expected = place.last + 1
                found = cursor.next()
        if expected <= self.state.head:
            raise LogCorruptError(
                f"the log at {self._env.path} does not hold entry {expected}, though it ends at "
                f"{self.state.head}. Nothing was skipped. Run `penstock log check`, then restore "
                f"a backup."
            )

    def _extent_blocks(self, place: Place, pointer: Pointer, expected: int) -> Iterator[Block]:
        extent, before = pointer.extent, place.first - 1
        with self._txn.cursor(self._env[EXTENTS]) as cursor:
            found = cursor.set_range(row_key(extent, expected - before, 0))
            while found and expected <= place.last:
                rows = rows_of(cursor.key())
                if rows.extent != extent or before + rows.first > expected:
                    break
                at = Place(before + rows.first, before + rows.last)
                block = self._cache.get(at.last)
                if block is None or block.first_sequence != at.first:
                    block = self._decoded(cursor.value(), at, pointer)
                yield block
                expected = at.last + 1
                found = cursor.next()
        if expected <= place.last:
            raise LogCorruptError(
                f"the log at {self._env.path} does not hold entry {expected} of commit "
                f"{pointer.commit}. Nothing was skipped. Run `penstock log check`, then restore "
                f"a backup."
            )

    def _decoded(self, value: bytes, place: Place, pointer: Pointer | None = None) -> Block:
        extent = pointer.facts if pointer is not None else None
        block = Block(value, log_id=self.log_id, first_sequence=place.first, extent=extent)
        return self._cache.put(place.last, block)


class LmdbReads(Reads):
    """The synchronous face of a log in LMDB: a transaction a call, none held after it returns."""

    def __init__(self, env: Env, *, cache_bytes: int) -> None:
        self._env = env
        self._cache_bytes = cache_bytes
        self._cache = BlockCache(cache_bytes)
        self._swap = threading.Lock()

    @contextmanager
    def snapshot(self) -> Generator[Snapshot]:
        with ExitStack() as stack:
            with self._swap:
                env, cache = self._env, self._cache
                txn = stack.enter_context(env.read())
            yield Snapshot(txn, env, cache)

    def _swap_env(self, env: Env) -> None:
        """Read from `env` from now on. Whoever is still reading the old one finishes first."""
        with self._swap:
            old, self._env = self._env, env
            self._cache = BlockCache(self._cache_bytes)
        old.close()
