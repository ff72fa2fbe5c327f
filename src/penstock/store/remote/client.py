"""A store's client that waits: every operation of `penstock.store.Store`, over its server's socket.

    with Client("shop.sock") as db:
        db.put("orders", {"id": "o1", "total": 30})

It may be used from any thread; what threads ask at once goes over connections of their own, of
which there are so many at most: the others wait for their turn. A connection that was lost is made
anew for the next call. Reads are asked again by themselves; a write that was sent and not answered
raises OutcomeUnknownError, since it may have been done.
"""

import threading
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Self, TypeVar

from penstock.errors import PenstockError
from penstock.store.builders import CreateTable, Query, ReadRecords, Scan, UpdateItem
from penstock.store.conditions import Condition
from penstock.store.consume import Consumer
from penstock.store.consumers import Checkpoint, Start
from penstock.store.errors import StoreClosedError, StreamError, TransactionError
from penstock.store.indexbuilders import CreateIndex, QueryIndex
from penstock.store.records import StreamRecord
from penstock.store.remote import calls
from penstock.store.remote.calls import IDLE_MAX, SHARES, Answer, Call, Turn, answered
from penstock.store.remote.errors import ServerStoppingError, ServerUnavailableError
from penstock.store.remote.links import Link, Lost, gone, undone, unknown
from penstock.store.remote.requests import (
    AbortTransaction,
    BeginTransaction,
    CommitTransaction,
    Request,
    encode_line,
)
from penstock.store.remote.transactions import ClientTransaction
from penstock.store.remote.turns import Turns
from penstock.store.schema import Retention, StreamViewType, Table
from penstock.store.streams import Page, StreamInfo
from penstock.store.values import Item

_PAUSE_SECONDS: Final = 0.2
Result = TypeVar("Result")


class Client:
    """A store behind its server's socket."""

    def __init__(self, address: str | Path, *, timeout_seconds: float = 30.0) -> None:
        """A call that is not answered after so many seconds is given up. Connects when first used.

        Calls raise ServerUnavailableError when nobody answers: then nothing was done.
        """
        self.address = Path(address)
        self._timeout = timeout_seconds
        self._turn = threading.Lock()
        self._idle = list[Link]()
        self._busy = set[Link]()
        self._closing = threading.Event()
        self._turns = {turn: Turns(most) for turn, most in SHARES.items()}
        self._mine = threading.local()

    def close(self) -> None:
        """Let go of the connections. A second time does nothing."""
        with self._turn:
            self._closing.set()
            idle, self._idle = self._idle, []
            for link in self._busy:
                link.hang_up()  # whoever waits on it is told, and closes it
        for link in idle:
            link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- asking ----------------------------------------------------------------------------------

    def _run(self, call: Call[Result]) -> Result:
        if call.writes and getattr(self._mine, "open", False):
            raise TransactionError(
                "a transaction of this thread is open, and a store has one at a time. Nothing was "
                "changed. Use that one's own put, update and delete."
            )
        with self._turns[call.turn].one(self._timeout + call.wait_seconds):
            return self._answer(call)

    def _answer(self, call: Call[Result]) -> Result:
        line = encode_line(call.request)
        for last in (False, True):
            link = self._link(new=last)
            try:
                said = self._ask(link, line, call.wait_seconds)
            except ServerStoppingError:
                if last:
                    raise
                continue  # it was not done; perhaps another server has its place already
            except Lost as lost:
                if call.writes and lost.sent:
                    raise unknown(self.address, lost) from lost
                if last:
                    raise gone(self.address, lost) from lost
                continue
            return call.read(said)
        raise AssertionError("the last try returns or raises")

    def _ask(self, link: Link, line: bytes, wait_seconds: float = 0.0) -> Answer:
        """Ask over a connection, and keep it unless it broke."""
        kept = False
        try:
            link.send(line)
            reply = link.receive(self._timeout + wait_seconds)
            kept = True
        finally:
            if kept:
                self._keep(link)
            else:
                self._drop(link)
        return answered(reply)

    def _link(self, *, new: bool) -> Link:
        """A connection that is this thread's until it is kept or dropped."""
        while not new:
            with self._turn:
                self._check_open()
                link = self._idle.pop() if self._idle else None
            if link is None:
                break
            if link.usable():
                return self._taken(link)
            link.close()
        self._check_open()
        return self._taken(Link(self.address, self._timeout))

    def _taken(self, link: Link) -> Link:
        with self._turn:
            if not self._closing.is_set():
                self._busy.add(link)
                return link
        link.close()
        self._check_open()
        raise AssertionError("it is closed")

    def _keep(self, link: Link) -> None:
        with self._turn:
            self._busy.discard(link)
            if not self._closing.is_set() and len(self._idle) < IDLE_MAX:
                self._idle.append(link)
                return
        link.close()

    def _drop(self, link: Link) -> None:
        with self._turn:
            self._busy.discard(link)
        link.close()

    def _check_open(self) -> None:
        if self._closing.is_set():
            raise StoreClosedError(f"the client of {self.address} is closed")

    # --- transactions ----------------------------------------------------------------------------

    @contextmanager
    def transact(self) -> Generator[ClientTransaction]:
        """A write transaction: kept, and durable, when the block ends; undone if it raises.

        Other writers of the store wait meanwhile, and the server undoes one that takes longer than
        its transaction_seconds_max: then TransactionError is raised.
        """
        if getattr(self._mine, "open", False):
            raise TransactionError(
                "a transaction of this thread is open, and a store has one at a time. Nothing was "
                "changed. Use that one's own put, update and delete."
            )
        with (
            self._turns[Turn.TRANSACTION].one(self._timeout),
            self._transaction() as transaction,
        ):
            yield transaction

    @contextmanager
    def _transaction(self) -> Generator[ClientTransaction]:
        link = self._begin()
        self._mine.open, ended = True, False
        try:
            yield ClientTransaction(link, self.address, self._timeout)
            self._end(link, CommitTransaction(), writes=True)
            ended = True
        except BaseException:
            with suppress(PenstockError):
                self._end(link, AbortTransaction(), writes=False)
                ended = True
            raise
        finally:
            self._mine.open = False
            if ended:
                self._keep(link)
            else:
                self._drop(link)

    def _begin(self) -> Link:
        """A connection with a transaction open on it."""
        for last in (False, True):
            link = self._link(new=last)
            try:
                link.send(encode_line(BeginTransaction()))
                answered(link.receive(self._timeout))
                return link
            except Lost as lost:
                self._drop(link)
                if last:
                    raise undone(self.address, lost) from lost
            except ServerStoppingError:
                self._drop(link)
                if last:
                    raise
            except BaseException:
                self._drop(link)
                raise
        raise AssertionError("the last try returns or raises")

    def _end(self, link: Link, request: Request, *, writes: bool) -> None:
        try:
            link.send(encode_line(request))
            reply = link.receive(self._timeout)
        except Lost as lost:
            if writes and lost.sent:
                raise unknown(self.address, lost) from lost
            raise undone(self.address, lost) from lost
        answered(reply)

    # --- items -----------------------------------------------------------------------------------

    def put(
        self,
        table: str,
        item: Item,
        *,
        condition: Condition | None = None,
        expected_version: int | None = None,
    ) -> Item | None:
        """Write an item, whole; returns the one that it replaces. See `Transaction.put`."""
        return self._run(calls.put(table, item, condition, expected_version))

    def update(self, table: str, key: Item) -> UpdateItem:
        """Describe changes of an item, and make them with `execute`."""
        return UpdateItem(lambda it: self._run(calls.described_update(it)), table, key)

    def delete(
        self,
        table: str,
        key: Item,
        *,
        condition: Condition | None = None,
        expected_version: int | None = None,
    ) -> Item | None:
        """Remove an item; returns it, or None when there was none. See `Transaction.delete`."""
        return self._run(calls.delete(table, key, condition, expected_version))

    def write_batch(
        self, *, puts: Iterable[tuple[str, Item]] = (), deletes: Iterable[tuple[str, Item]] = ()
    ) -> None:
        """Write and remove at most 25 items, of any tables, all or none. Puts come first."""
        self._run(calls.write_batch(puts, deletes))

    def get(self, table: str, key: Item) -> Item | None:
        """The item of that key; None when there is none."""
        return self._run(calls.get(table, key))

    def get_versioned(self, table: str, key: Item) -> tuple[Item, int] | None:
        """The item of that key and its version, for `expected_version`; None when there is none."""
        return self._run(calls.get_versioned(table, key))

    def batch_get(self, table: str, keys: Sequence[Item]) -> list[Item | None]:
        """The items of at most 1000 keys as of one moment, by their places; None for one not there.

        Raises ResponseTooLargeError for more than 16 MiB of items.
        """
        return self._run(calls.batch_get(table, keys))

    def query(self, table: str) -> Query:
        """Describe items of one partition, and read them with `execute`, by sort key."""
        return Query(lambda it: self._run(calls.query(it)), table)

    def query_index(self, table: str, index: str) -> QueryIndex:
        """Describe items found by an index, and read them with `execute`, by its sort key."""
        return QueryIndex(lambda it: self._run(calls.query_index(it)), table, index)

    def scan(self, table: str) -> Scan:
        """Describe items of a table, and read them with `execute`, partition by partition."""
        return Scan(lambda it: self._run(calls.scan(it)), table)

    def count(self, table: str) -> int:
        """How many items a table has, as of one moment. Looks at every one."""
        return self._run(calls.count(table))

    # --- tables ----------------------------------------------------------------------------------

    def create_table(self, name: str) -> CreateTable:
        """Describe a table, and make it with `execute`."""
        return CreateTable(lambda it: self._run(calls.create_table(it)), name)

    def drop_table(self, name: str) -> None:
        """Remove a table. Its stream is closed, and stays readable for its retention (F19)."""
        self._run(calls.drop_table(name))

    def list_tables(self) -> list[str]:
        """The names of all tables, sorted."""
        return self._run(calls.list_tables())

    def describe_table(self, name: str) -> Table:
        """A table's schema. Raises TableNotFoundError."""
        return self._run(calls.describe_table(name))

    def create_index(self, table: str, name: str) -> CreateIndex:
        """Describe an index of a table, and make it with `execute`."""
        return CreateIndex(lambda it: self._run(calls.create_index(it)), table, name)

    def drop_index(self, table: str, name: str) -> None:
        """Remove an index. Its entries leave the disk a few at a time."""
        self._run(calls.drop_index(table, name))

    def set_ttl(self, table: str, attribute: str | None) -> None:
        """Let items expire at the second that `attribute` says; None: never."""
        self._run(calls.set_ttl(table, attribute))

    def sweep(self) -> int:
        """Have the server remove a step of what `Store.sweep` removes; returns how much."""
        return self._run(calls.sweep())

    def sync(self) -> None:
        """Have all that was written before on the disk, where writes do not wait for that."""
        self._run(calls.sync())

    # --- streams ---------------------------------------------------------------------------------

    def enable_stream(
        self,
        table: str,
        view: StreamViewType,
        *,
        retention: Retention | None = None,
        unchanged: bool = False,
    ) -> None:
        """Begin a stream of a table: it holds what is written from now on."""
        self._run(calls.enable_stream(table, view, retention, unchanged))

    def disable_stream(self, table: str) -> None:
        """End a table's stream. What it holds stays readable, and its readers are told."""
        self._run(calls.disable_stream(table))

    def alter_table_stream_retention(self, table: str, retention: Retention) -> None:
        """Keep more or less of a table's stream from now on."""
        self._run(calls.alter_retention(table, retention))

    def prune_stream(self, table: str, *, until_sequence: int) -> int:
        """Remove a table's records up to a sequence, with it; returns how many there were."""
        return self._run(calls.prune_stream(table, until_sequence))

    def get_stream_info(self, table: str) -> StreamInfo:
        """A table's stream, or its last one. Raises StreamNotEnabledError if it never had one."""
        return self._run(calls.get_stream_info(table))

    def get_stream_records(self, table: str) -> ReadRecords:
        """Describe a part of a table's stream, and read it with `execute`."""
        return ReadRecords(self._read_records, table)

    def _read_records(self, wanted: ReadRecords) -> Page:
        deadline, begin = time.monotonic() + wanted.wait_seconds, wanted.begin
        while True:
            left = max(0.0, deadline - time.monotonic())
            page = self._run(calls.get_stream_records(wanted, begin, wait_seconds=left))
            if page.records or page.closed or time.monotonic() >= deadline:
                return page
            begin = page.position

    def follow(
        self,
        table: str,
        *,
        after: str | None = None,
        start: Start = "trim_horizon",
        idle_seconds: float | None = None,
    ) -> Generator[StreamRecord]:
        """Records as they commit, pushed by the server; see `Store.follow`.

        A connection that was lost is made anew, and goes on behind the last record. Raises
        ServerUnavailableError once nobody has answered for `timeout_seconds`.
        """
        position, link, lost_at = after or start, None, None
        try:
            while True:
                try:
                    if link is None:
                        link, page = self._subscribed(table, position)
                    else:
                        page = _pushed(link, idle_seconds)
                except (Lost, ServerUnavailableError) as lost:
                    if link is None and lost_at is None:
                        raise
                    link, lost_at = None, self._lost(link, lost, lost_at)
                    continue
                if page is None:
                    return
                lost_at = None
                for record in page.records:
                    yield record
                    position = record.position
                position = page.position
        finally:
            if link is not None:
                self._drop(link)

    def _subscribed(self, table: str, position: str) -> tuple[Link, Page | None]:
        """A subscription, and what was there already."""
        link = self._link(new=True)
        try:
            link.send(encode_line(calls.subscribe(table, position)))
            return link, calls.read_page(answered(link.receive(self._timeout)))
        except BaseException:
            self._drop(link)
            raise

    def _lost(self, link: Link | None, cause: Exception, since: float | None) -> float:
        """Wait a little before the next try; since when nobody answers."""
        if link is not None:
            self._drop(link)
        now = time.monotonic()
        since = now if since is None else since
        if now - since > self._timeout:
            raise ServerUnavailableError(
                f"no store's server has answered at {self.address} for {self._timeout:g} s "
                f"({cause}). What was read is good. Go on after its last position."
            ) from cause
        self._closing.wait(_PAUSE_SECONDS)
        self._check_open()
        return since

    # --- consumers -------------------------------------------------------------------------------

    def consume(
        self,
        table: str,
        name: str,
        *,
        start: Start = "trim_horizon",
        resync: Callable[[StreamError], None] | None = None,
        limit: int = 100,
        hold_bytes_max: int | None = None,
    ) -> Consumer:
        """A consumer whose checkpoint the store keeps; see `Store.consume`."""
        return Consumer(
            self,
            table,
            name,
            start=start,
            resync=resync,
            limit=limit,
            hold_bytes_max=hold_bytes_max,
        )

    def register_consumer(
        self,
        table: str,
        name: str,
        *,
        start: Start = "trim_horizon",
        hold_bytes_max: int | None = None,
    ) -> Checkpoint:
        """A consumer's checkpoint, made where `start` says if it has none."""
        return self._run(calls.register_consumer(table, name, start, hold_bytes_max))

    def save_checkpoint(
        self, table: str, name: str, position: str, *, expected: str | None
    ) -> None:
        """Move a consumer's checkpoint from `expected` to `position`."""
        self._run(calls.save_checkpoint(table, name, position, expected))

    def forget_consumer(self, table: str, name: str) -> bool:
        """Forget a consumer and what is held for it; False when there was none."""
        return self._run(calls.forget_consumer(table, name))


def _pushed(link: Link, idle_seconds: float | None) -> Page | None:
    """What is pushed next; None when nothing was for so long."""
    line = link.receive_within(idle_seconds)
    return None if line is None else calls.read_page(answered(line))
