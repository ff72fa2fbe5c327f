"""An open store's files: the lock of its writer, its transactions, and the bell of its readers.

`Store` is this and the operations. Whatever changes a store goes through `_writing`, which rings
the bell: readers in this process hear it, and those in others over the socket beside the files.
"""

import os
import threading
import uuid
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final, Self, TypeVar

from penstock import kv
from penstock.clocks import Clock, SystemClock
from penstock.errors import LogFullError
from penstock.kv import Transaction as Txn
from penstock.locks import hold
from penstock.store import backups, indexes
from penstock.store.errors import (
    StoreClosedError,
    StoreError,
    StoreLockedError,
    StorePointError,
    StoreSyncError,
    TableNotFoundError,
    TransactionError,
)
from penstock.store.layout import DATABASES, FORMAT, Layout, State
from penstock.store.schema import Table
from penstock.store.shards import ShardLimits
from penstock.store.syncing import Syncing, SyncMode, put_back, require_mode, require_settled
from penstock.store.times import Known, StoreTime
from penstock.store.together import Together
from penstock.store.transaction import Transaction
from penstock.wake import Bell, WakeClient, WakeServer

Result = TypeVar("Result")
LOCK_NAME: Final = "store.lock"
FREE_BYTES_MIN: Final = 64 << 20
_BELIEVED_STEP_MS: Final = 600_000
"""How old the time may be that is kept: far less than what `StoreTime` allows at the start."""


class Engine:
    """What every operation of a store stands on."""

    def __init__(
        self,
        path: Path,
        *,
        read_only: bool,
        clock: Clock | None,
        shards: ShardLimits | None = None,
        sync: SyncMode = "full",
        free_bytes_min: int = FREE_BYTES_MIN,
    ) -> None:
        require_mode(sync)
        self._free_bytes_min = free_bytes_min
        self.path = path
        self._shards = shards or ShardLimits()
        self.bell = Bell()
        """Rings after every write, of this process or, for a reader that waits, of another."""
        self._read_only = read_only
        self._clock = clock or SystemClock()
        self._turn = threading.Lock()
        self._together = Together(self._writing, self._transaction)
        self._in_commit = 0
        """Bytes of items and records that the commit under way has so far."""
        self._writer: int | None = None
        """The thread whose transaction is open."""
        self._life: int | None = None
        """By how many starts of LMDB a life of ours was begun: after another one the last write
        may be there or not, so what follows is another life's (`Layout.begin_life`)."""
        self._mine = threading.local()
        """`views`: how many this thread is inside of."""
        self._closing = threading.Event()
        self._wake: WakeServer | None = None
        self._woken: WakeClient | None = None
        self._woken_turn = threading.Lock()
        self._syncing: Syncing | None = None
        lost = False
        with ExitStack() as stack:
            if read_only:
                require_settled(path)
            else:
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
                stack.callback(os.close, _lock(path))
                lost = put_back(path)
            self._env = stack.enter_context(kv.open_env(path, create=not read_only, kind=kv.STORE))
            self._refuse_fork()
            if not read_only:
                self._syncing = Syncing(self._env, sync, lost=lost)
                stack.callback(self._syncing.close)
            self._laid = (self._env.openings, self._begin(lost=lost))
            known = self._known()
            self._believed_ms = known.believed_ms
            self._time = StoreTime(self._clock, known)
            if self._syncing is not None:
                self._doubt(self._time.doubted_ms)
                self._syncing.settle()
                self._wake = WakeServer(path)
                stack.callback(self._wake.close)
            self._open = stack.pop_all()

    @property
    def _layout(self) -> Layout:
        """The layout, whose handles LMDB gives anew at each of its starts (`Env.openings`)."""
        openings, layout = self._laid
        if openings != self._env.openings:
            openings, layout = self._laid = (self._env.openings, Layout(self._env))
        return layout

    def _begin(self, *, lost: bool) -> Layout:
        if not self._env.databases(DATABASES, create=not self._read_only):
            raise StoreError(f"there is no store at {self.path}")
        layout = Layout(self._env)
        with self._env.read() as txn:
            state = layout.state(txn)
        if state is None:
            state = State(id=uuid.uuid4().hex[:16])
            with self._env.write() as txn:
                layout.put_state(txn, state)
        if state.format > FORMAT:
            raise StoreError(
                f"the store at {self.path} is of format {state.format}, and this Penstock reads up "
                f"to {FORMAT}. Nothing was changed. Use the Penstock that wrote it, or a newer one."
            )
        if (state.copied or lost) and not self._read_only:
            # What was lost may have been seen, as what the store that was copied wrote later.
            with self._env.write() as txn:
                backups.begin_copy(layout, txn, now_ms=self._clock.wall_ms())
        if not self._read_only:
            self._forget_unfinished(layout)
        return layout

    def _forget_unfinished(self, layout: Layout) -> None:
        """Drop what a writer that ended left of an index that it was making."""
        with self._env.read() as txn:
            if not indexes.unfinished(layout, txn):
                return
        with self._env.write() as txn:
            indexes.forget_unfinished(layout, txn)

    def _known(self) -> Known:
        with self._env.read() as txn:
            times = [one.newest_ms for one in self._layout.streams(txn)]
            return Known(
                believed_ms=self._layout.believed_ms(txn),
                doubted_ms=self._layout.doubted_ms(txn),
                recorded_ms=max(times, default=None),
            )

    def _doubt(self, time_ms: int | None) -> None:
        """Remember where the clock stands, if it is not believed. A full disk is no reason not to
        open a store: it is only doubted for longer."""
        if time_ms is None:
            return
        with suppress(LogFullError):
            self._env.require_last_space(self._free_bytes_min)
            with self._env.write() as txn:
                self._layout.put_doubted_ms(txn, time_ms)

    def _is_time_due(self) -> bool:
        """Whether the time is to be kept with the next write: it is believed, and another one."""
        kept_ms, now_ms = self._believed_ms, self._clock.wall_ms()
        if kept_ms is not None and abs(now_ms - kept_ms) < _BELIEVED_STEP_MS:
            return False
        return self._time.ages()

    def _keep_time(self, txn: Txn) -> int | None:
        """Keep the time if it is due; returns the one that is kept once this is committed."""
        if not self._is_time_due():
            return self._believed_ms
        now_ms = self._clock.wall_ms()
        self._layout.put_believed_ms(txn, now_ms)
        return now_ms

    def backup(self, target: str | Path, *, compact: bool = True) -> None:
        """Copy the store as of one moment to the new folder `target`, while it is written.

        The folder appears whole or not at all. The copy is a store: versions of items that it
        writes were never given before, positions of what the other store wrote later are refused
        in it (StreamChangedError, AheadOfStreamError), and so are checkpoints of consumers, which
        may have handled what is not in the copy. Raises ConfigError when `target` holds something,
        and LogFullError when it does not fit.
        """
        self._check_open()
        backups.backup(self._env, Path(target), compact=compact)

    def sync(self) -> None:
        """Have everything that was written before on the disk, where writes do not wait for that.

        Raises TransactionError inside a transaction of the same thread, StoreSyncError, and
        StorePointError.
        """
        self._check_open()
        self._writable().sync(self._writer_turn())

    def close(self) -> None:
        """Wait for what is under way, have all of it on the disk, and close. A second time does
        nothing.

        Raises TransactionError inside a transaction or view of the same thread, StoreSyncError, and
        StorePointError, after which nothing is lost but to a power cut.
        """
        self._refuse_to_wait_for_oneself()
        self._closing.set()
        if os.getpid() != self._env.process:
            return  # the files, their lock and the socket are the parent's, who writes on
        self.bell.ring()
        with self._woken_turn:
            woken, self._woken = self._woken, None
        if woken is not None:
            woken.close()
        with self._turn:
            self._open.close()

    def _refuse_to_wait_for_oneself(self) -> None:
        if self._writer == threading.get_ident() or getattr(self._mine, "views", 0) > 0:
            raise TransactionError(
                "a transaction or view of this thread is open, and closing would wait for it. The "
                "store is open. Close it behind the block."
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- transactions ----------------------------------------------------------------------------

    @contextmanager
    def transact(self) -> Generator[Transaction]:
        """A write transaction: kept when the block ends, durably unless the store was opened with
        `sync="none"`; undone if it raises.

        Other writers wait meanwhile, so let nothing slow happen inside. Raises TransactionError
        inside another transaction of the same thread, LogFullError when the disk is full,
        StoreSyncError once a sync has failed, and StorePointError while none can be kept.
        """
        with self._writing() as txn, self._transaction(txn) as transaction:
            yield transaction

    def write(self, call: Callable[[Transaction], Result]) -> Result:
        """Call with a transaction, as in a block of `transact`, and return what it returns.

        Writes of several threads at once are kept together, so that they wait for the disk once;
        those of the main thread, and of a store with `sync="none"`, are not. `call` may be called
        in another thread, and more than once: it does nothing but with its transaction.
        """
        syncing = self._writable()
        if not syncing.waits or threading.current_thread() is threading.main_thread():
            with self.transact() as transaction:
                return call(transaction)
        self._check_turn()
        return self._together.do(call)

    @contextmanager
    def _transaction(self, txn: Txn) -> Generator[Transaction]:
        transaction = Transaction(
            self._layout,
            txn,
            state=self._state(txn),
            times=self._time.now(believed_ms=self._believed_ms),
            shards=self._shards,
            require_room=self._require_room,
        )
        try:
            yield transaction
            transaction.finish()
            self._writable().wrote(transaction.bytes)
            self._in_commit += transaction.bytes
        finally:
            transaction.end()

    def _state(self, txn: Txn) -> State:
        state = self._layout.state(txn)
        assert state is not None, "written when the store was made"
        return state

    def _writable(self) -> Syncing:
        if self._syncing is None:
            raise TransactionError(
                f"the store at {self.path} was opened for reading. Nothing was changed."
            )
        return self._syncing

    @contextmanager
    def _writer_turn(self) -> Generator[None]:
        """Nobody else writes inside."""
        self._check_turn()
        with self._turn:
            self._check_open()
            self._writer = threading.get_ident()
            try:
                yield
            finally:
                self._writer = None

    def _check_turn(self) -> None:
        """Raise what a write of this thread would wait for, for ever."""
        self._check_open()  # first: a fork may have copied the turn as somebody had it
        if self._writer == threading.get_ident():
            raise TransactionError(
                "a transaction of this thread is open, and a store has one at a time. Nothing was "
                "changed. Use that one's own put, update and delete."
            )

    @contextmanager
    def _writing(self, *, adds: bool = False) -> Generator[Txn]:
        """A write; `adds` says that it takes room, which needs the disk above its floor. Others are
        what makes room again."""
        syncing = self._writable()
        with self._writer_turn():
            self._in_commit = 0
            if adds:
                self._require_room()
            else:
                self._env.require_last_space(self._free_bytes_min)
            with self._env.write() as txn:
                syncing.before_write()
                life = self._env.openings
                if self._life != life:
                    self._layout.begin_life(txn, uuid.uuid4().hex[:8])
                yield txn
                believed_ms = self._keep_time(txn)
            self._life, self._believed_ms = life, believed_ms
        self.bell.ring()
        if self._wake is not None:
            self._wake.ring()
        if syncing.due:
            # This write is kept. Who writes next is told if the disk failed; closing syncs too.
            with suppress(StoreSyncError, StorePointError, StoreClosedError):
                syncing.sync(self._writer_turn())

    def _require_room(self) -> None:
        """Raise LogFullError unless there is room for a write, behind those of the same commit."""
        self._env.require_space(self._free_bytes_min, bytes_needed=self._in_commit + (1 << 20))

    @contextmanager
    def _reading(self) -> Generator[Txn]:
        self._check_open()
        with self._env.read() as txn:
            yield txn

    @property
    def stale(self) -> bool:
        """Whether other files stand at the path now, as after a restore: open it anew."""
        return self._env.stale()

    def _check_open(self) -> None:
        if self._closing.is_set():
            raise StoreClosedError(f"the store at {self.path} is closed")
        self._refuse_fork()

    def _refuse_fork(self) -> None:
        if os.getpid() != self._env.process:
            raise TransactionError(
                f"the store at {self.path} was open when this process was forked, and LMDB does "
                f"not survive that. Nothing was read or changed. Start processes by spawn, or fork "
                f"before it is opened."
            )

    def _table(self, txn: Txn, name: str) -> Table:
        table = self._layout.table(txn, name)
        if table is None:
            raise TableNotFoundError(name)
        return table

    # --- waiting ---------------------------------------------------------------------------------

    def wait(self, rings: int, seconds: float | None) -> None:
        """Wait until the bell was rung more often than `rings`, the store closed, or the time up.

        A ring says that there may be something new, never what.
        """
        self.listen()
        self.bell.wait_now(lambda: self.bell.rings != rings or self._closing.is_set(), seconds)

    async def wait_async(self, rings: int, seconds: float | None) -> None:
        """As `wait`, in an event loop."""
        self.listen()
        await self.bell.wait(lambda: self.bell.rings != rings or self._closing.is_set(), seconds)

    def listen(self) -> None:
        """Have the bell ring for the writes of another process too; the writer need not."""
        if not self._read_only:
            return
        with self._woken_turn:
            if self._woken is None and not self._closing.is_set():
                self._woken = WakeClient(self.path, self.bell.ring)


def _lock(path: Path) -> int:
    """The exclusive lock of a store's writer: a descriptor that holds it until it is closed."""
    return hold(
        path / LOCK_NAME,
        refused=lambda owner: StoreLockedError(
            f"process {owner} writes the store at {path}, and a store has one writer. Nothing was "
            f"changed. Stop that process, open with read_only=True, or use its server."
        ),
    )
