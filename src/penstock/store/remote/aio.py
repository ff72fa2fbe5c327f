"""A store's client that is awaited: every operation of `penstock.store.Store`, over its server.

    async with AsyncClient("shop.sock") as db:
        await db.put("orders", {"id": "o1", "total": 30})
        page = await db.query("orders").partition_key("o1").execute()
        async for record in db.follow("orders"):
            ...

It belongs to one event loop. What is awaited at once goes over connections of their own, of which
there are so many at most: the others wait for their turn. A call that is cancelled gives its
connection up; a write that was cancelled may have been done.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final, Self, TypeVar

from penstock.errors import PenstockError
from penstock.store.builders import (
    CreateTableWith,
    QueryWith,
    ReadRecordsWith,
    ScanWith,
    UpdateItemWith,
)
from penstock.store.conditions import Condition
from penstock.store.consume import AsyncConsumer
from penstock.store.consumers import Checkpoint, Start
from penstock.store.errors import StoreClosedError, StreamError, TransactionError
from penstock.store.indexbuilders import CreateIndexWith, QueryIndexWith
from penstock.store.queries import ItemPage
from penstock.store.records import StreamRecord
from penstock.store.remote import calls
from penstock.store.remote.calls import IDLE_MAX, SHARES, Answer, Call, Turn, answered
from penstock.store.remote.errors import ServerStoppingError, ServerUnavailableError
from penstock.store.remote.links import AsyncLink, Lost, gone, undone, unknown
from penstock.store.remote.requests import (
    AbortTransaction,
    BeginTransaction,
    CommitTransaction,
    Request,
    encode_line,
)
from penstock.store.remote.transactions import AsyncTransaction
from penstock.store.remote.turns import busy
from penstock.store.schema import Retention, StreamViewType, Table
from penstock.store.streams import Page, StreamInfo
from penstock.store.updates import Updated
from penstock.store.values import Item

_PAUSE_SECONDS: Final = 0.2
Result = TypeVar("Result")


class AsyncClient:
    """A store behind its server's socket."""

    def __init__(self, address: str | Path, *, timeout_seconds: float = 30.0) -> None:
        """As `Client`. Connects when first used."""
        self.address = Path(address)
        self._timeout = timeout_seconds
        self._idle = list[AsyncLink]()
        self._busy = set[AsyncLink]()
        self._closed = False
        self._turns = {turn: asyncio.Semaphore(most) for turn, most in SHARES.items()}
        self._in_transaction = set[asyncio.Task[object]]()

    async def close(self) -> None:
        """Let go of the connections. A second time does nothing."""
        self._closed = True
        for link in [*self._idle, *self._busy]:
            link.close()  # whoever waits on it is told
        self._idle.clear()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- asking ----------------------------------------------------------------------------------

    async def _run(self, call: Call[Result]) -> Result:
        if call.writes:
            self._refuse_nesting()
        async with self._turn(call.turn, self._timeout + call.wait_seconds):
            return await self._answer(call)

    @asynccontextmanager
    async def _turn(self, turn: Turn, seconds: float) -> AsyncGenerator[None]:
        """As `Turns.one`: those of asyncio are fair."""
        places = self._turns[turn]
        try:
            async with asyncio.timeout(seconds):
                await places.acquire()
        except TimeoutError:
            raise busy(SHARES[turn], seconds) from None
        try:
            yield
        finally:
            places.release()

    async def _answer(self, call: Call[Result]) -> Result:
        line = encode_line(call.request)
        for last in (False, True):
            link = await self._link(new=last)
            try:
                said = await self._ask(link, line, self._timeout + call.wait_seconds)
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

    async def _ask(self, link: AsyncLink, line: bytes, seconds: float) -> Answer:
        """Ask over a connection, and keep it unless it broke."""
        kept = False
        try:
            await link.send(line)
            reply = await link.receive(seconds)
            kept = True
        finally:
            if kept:
                self._keep(link)
            else:
                self._drop(link)
        return answered(reply)

    async def _link(self, *, new: bool) -> AsyncLink:
        """A connection that is this task's until it is kept or dropped."""
        self._check_open()
        while self._idle and not new:
            link = self._idle.pop()
            if link.usable():
                self._busy.add(link)
                return link
            link.close()
        link = await AsyncLink.open(self.address, self._timeout)
        if self._closed:
            link.close()
            self._check_open()
        self._busy.add(link)
        return link

    def _keep(self, link: AsyncLink) -> None:
        self._busy.discard(link)
        if self._closed or len(self._idle) >= IDLE_MAX:
            link.close()
        else:
            self._idle.append(link)

    def _drop(self, link: AsyncLink) -> None:
        self._busy.discard(link)
        link.close()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosedError(f"the client of {self.address} is closed")

    def _refuse_nesting(self) -> None:
        if asyncio.current_task() in self._in_transaction:
            raise TransactionError(
                "a transaction of this task is open, and a store has one at a time. Nothing was "
                "changed. Use that one's own put, update and delete."
            )

    # --- transactions ----------------------------------------------------------------------------

    @asynccontextmanager
    async def transact(self) -> AsyncGenerator[AsyncTransaction]:
        """A write transaction; see `Client.transact`."""
        self._refuse_nesting()
        async with (
            self._turn(Turn.TRANSACTION, self._timeout),
            self._transaction() as transaction,
        ):
            yield transaction

    @asynccontextmanager
    async def _transaction(self) -> AsyncGenerator[AsyncTransaction]:
        task = asyncio.current_task()
        assert task is not None
        link, ended = await self._begin(), False
        self._in_transaction.add(task)
        try:
            yield AsyncTransaction(link, self.address, self._timeout)
            await self._end(link, CommitTransaction(), writes=True)
            ended = True
        except BaseException:
            with suppress(PenstockError):
                await self._end(link, AbortTransaction(), writes=False)
                ended = True
            raise
        finally:
            self._in_transaction.discard(task)
            if ended:
                self._keep(link)
            else:
                self._drop(link)

    async def _begin(self) -> AsyncLink:
        """A connection with a transaction open on it."""
        for last in (False, True):
            link = await self._link(new=last)
            try:
                await link.send(encode_line(BeginTransaction()))
                answered(await link.receive(self._timeout))
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

    async def _end(self, link: AsyncLink, request: Request, *, writes: bool) -> None:
        try:
            await link.send(encode_line(request))
            reply = await link.receive(self._timeout)
        except Lost as lost:
            if writes and lost.sent:
                raise unknown(self.address, lost) from lost
            raise undone(self.address, lost) from lost
        answered(reply)

    # --- items -----------------------------------------------------------------------------------

    async def put(
        self,
        table: str,
        item: Item,
        *,
        condition: Condition | None = None,
        expected_version: int | None = None,
    ) -> Item | None:
        """Write an item, whole; returns the one that it replaces. See `Transaction.put`."""
        return await self._run(calls.put(table, item, condition, expected_version))

    def update(self, table: str, key: Item) -> UpdateItemWith[Awaitable[Updated]]:
        """Describe changes of an item, and make them with `await ....execute()`."""
        return UpdateItemWith(lambda it: self._run(calls.described_update(it)), table, key)

    async def delete(
        self,
        table: str,
        key: Item,
        *,
        condition: Condition | None = None,
        expected_version: int | None = None,
    ) -> Item | None:
        """Remove an item; returns it, or None when there was none. See `Transaction.delete`."""
        return await self._run(calls.delete(table, key, condition, expected_version))

    async def write_batch(
        self, *, puts: Iterable[tuple[str, Item]] = (), deletes: Iterable[tuple[str, Item]] = ()
    ) -> None:
        """Write and remove at most 25 items, of any tables, all or none. Puts come first."""
        await self._run(calls.write_batch(puts, deletes))

    async def get(self, table: str, key: Item) -> Item | None:
        """The item of that key; None when there is none."""
        return await self._run(calls.get(table, key))

    async def get_versioned(self, table: str, key: Item) -> tuple[Item, int] | None:
        """The item of that key and its version, for `expected_version`; None when there is none."""
        return await self._run(calls.get_versioned(table, key))

    async def batch_get(self, table: str, keys: Sequence[Item]) -> list[Item | None]:
        """The items of at most 1000 keys as of one moment, by their places; None for one not there.

        Raises ResponseTooLargeError for more than 16 MiB of items.
        """
        return await self._run(calls.batch_get(table, keys))

    def query(self, table: str) -> QueryWith[Awaitable[ItemPage]]:
        """Describe items of one partition, and read them with `await ....execute()`."""
        return QueryWith(lambda it: self._run(calls.query(it)), table)

    def query_index(self, table: str, index: str) -> QueryIndexWith[Awaitable[ItemPage]]:
        """Describe items found by an index, and read them with `await ....execute()`."""
        return QueryIndexWith(lambda it: self._run(calls.query_index(it)), table, index)

    def scan(self, table: str) -> ScanWith[Awaitable[ItemPage]]:
        """Describe items of a table, and read them with `await ....execute()`."""
        return ScanWith(lambda it: self._run(calls.scan(it)), table)

    async def count(self, table: str) -> int:
        """How many items a table has, as of one moment. Looks at every one."""
        return await self._run(calls.count(table))

    # --- tables ----------------------------------------------------------------------------------

    def create_table(self, name: str) -> CreateTableWith[Awaitable[None]]:
        """Describe a table, and make it with `await ....execute()`."""
        return CreateTableWith(lambda it: self._run(calls.create_table(it)), name)

    async def drop_table(self, name: str) -> None:
        """Remove a table. Its stream is closed, and stays readable for its retention (F19)."""
        await self._run(calls.drop_table(name))

    async def list_tables(self) -> list[str]:
        """The names of all tables, sorted."""
        return await self._run(calls.list_tables())

    async def describe_table(self, name: str) -> Table:
        """A table's schema. Raises TableNotFoundError."""
        return await self._run(calls.describe_table(name))

    def create_index(self, table: str, name: str) -> CreateIndexWith[Awaitable[None]]:
        """Describe an index of a table, and make it with `await ....execute()`."""
        return CreateIndexWith(lambda it: self._run(calls.create_index(it)), table, name)

    async def drop_index(self, table: str, name: str) -> None:
        """Remove an index. Its entries leave the disk a few at a time."""
        await self._run(calls.drop_index(table, name))

    async def set_ttl(self, table: str, attribute: str | None) -> None:
        """Let items expire at the second that `attribute` says; None: never."""
        await self._run(calls.set_ttl(table, attribute))

    async def sweep(self) -> int:
        """Have the server remove a step of what `Store.sweep` removes; returns how much."""
        return await self._run(calls.sweep())

    async def sync(self) -> None:
        """Have all that was written before on the disk, where writes do not wait for that."""
        await self._run(calls.sync())

    # --- streams ---------------------------------------------------------------------------------

    async def enable_stream(
        self,
        table: str,
        view: StreamViewType,
        *,
        retention: Retention | None = None,
        unchanged: bool = False,
    ) -> None:
        """Begin a stream of a table: it holds what is written from now on."""
        await self._run(calls.enable_stream(table, view, retention, unchanged))

    async def disable_stream(self, table: str) -> None:
        """End a table's stream. What it holds stays readable, and its readers are told."""
        await self._run(calls.disable_stream(table))

    async def alter_table_stream_retention(self, table: str, retention: Retention) -> None:
        """Keep more or less of a table's stream from now on."""
        await self._run(calls.alter_retention(table, retention))

    async def prune_stream(self, table: str, *, until_sequence: int) -> int:
        """Remove a table's records up to a sequence, with it; returns how many there were."""
        return await self._run(calls.prune_stream(table, until_sequence))

    async def get_stream_info(self, table: str) -> StreamInfo:
        """A table's stream, or its last one. Raises StreamNotEnabledError if it never had one."""
        return await self._run(calls.get_stream_info(table))

    def get_stream_records(self, table: str) -> ReadRecordsWith[Awaitable[Page]]:
        """Describe a part of a table's stream, and read it with `await ....execute()`."""
        return ReadRecordsWith(self._read_records, table)

    async def _read_records(self, wanted: ReadRecordsWith[Awaitable[Page]]) -> Page:
        loop = asyncio.get_running_loop()
        deadline, begin = loop.time() + wanted.wait_seconds, wanted.begin
        while True:
            left = max(0.0, deadline - loop.time())
            page = await self._run(calls.get_stream_records(wanted, begin, wait_seconds=left))
            if page.records or page.closed or loop.time() >= deadline:
                return page
            begin = page.position

    async def follow(
        self,
        table: str,
        *,
        after: str | None = None,
        start: Start = "trim_horizon",
        idle_seconds: float | None = None,
    ) -> AsyncGenerator[StreamRecord]:
        """Records as they commit, pushed by the server; see `Client.follow`."""
        position, lost_at = after or start, None
        link: AsyncLink | None = None
        try:
            while True:
                try:
                    if link is None:
                        link, page = await self._subscribed(table, position)
                    else:
                        page = await _pushed(link, idle_seconds)
                except (Lost, ServerUnavailableError) as lost:
                    if link is None and lost_at is None:
                        raise
                    lost_at = await self._wait(link, lost, lost_at)
                    link = None
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

    async def _subscribed(self, table: str, position: str) -> tuple[AsyncLink, Page | None]:
        """A subscription, and what was there already."""
        link = await self._link(new=True)
        try:
            await link.send(encode_line(calls.subscribe(table, position)))
            return link, calls.read_page(answered(await link.receive(self._timeout)))
        except BaseException:
            self._drop(link)
            raise

    async def _wait(self, link: AsyncLink | None, cause: Exception, since: float | None) -> float:
        """Wait a little before the next try; since when nobody answers."""
        if link is not None:
            self._drop(link)
        now = asyncio.get_running_loop().time()
        since = now if since is None else since
        if now - since > self._timeout:
            raise ServerUnavailableError(
                f"no store's server has answered at {self.address} for {self._timeout:g} s "
                f"({cause}). What was read is good. Go on after its last position."
            ) from cause
        await asyncio.sleep(_PAUSE_SECONDS)
        return since

    # --- consumers -------------------------------------------------------------------------------

    def consume(
        self,
        table: str,
        name: str,
        *,
        start: Start = "trim_horizon",
        resync: Callable[[StreamError], Awaitable[None]] | None = None,
        limit: int = 100,
        hold_bytes_max: int | None = None,
    ) -> AsyncConsumer:
        """A consumer whose checkpoint the store keeps; see `Store.consume`."""
        return AsyncConsumer(
            self,
            table,
            name,
            start=start,
            resync=resync,
            limit=limit,
            hold_bytes_max=hold_bytes_max,
        )

    async def register_consumer(
        self,
        table: str,
        name: str,
        *,
        start: Start = "trim_horizon",
        hold_bytes_max: int | None = None,
    ) -> Checkpoint:
        """A consumer's checkpoint, made where `start` says if it has none."""
        return await self._run(calls.register_consumer(table, name, start, hold_bytes_max))

    async def save_checkpoint(
        self, table: str, name: str, position: str, *, expected: str | None
    ) -> None:
        """Move a consumer's checkpoint from `expected` to `position`."""
        await self._run(calls.save_checkpoint(table, name, position, expected))

    async def forget_consumer(self, table: str, name: str) -> bool:
        """Forget a consumer and what is held for it; False when there was none."""
        return await self._run(calls.forget_consumer(table, name))


async def _pushed(link: AsyncLink, idle_seconds: float | None) -> Page | None:
    """What is pushed next; None when nothing was for so long."""
    line = await link.receive_within(idle_seconds)
    return None if line is None else calls.read_page(answered(line))
