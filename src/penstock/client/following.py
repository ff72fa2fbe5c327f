"""Follow changes from asyncio: from a service or from a log in this process, the same way."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterable
from types import TracebackType
from typing import Self

import structlog

from penstock.client.change import Change, Cursor, Received, Taken
from penstock.client.credentials import NOBODY, Credentials
from penstock.client.remote import receive, request_bytes
from penstock.client.retry import Backoff, Retry
from penstock.client.store import MemoryProgress, ProgressStore
from penstock.errors import PenstockError
from penstock.ports import LogReader
from penstock.subscribe import Coalescing, Criteria, Subscription, batches, start
from penstock.subscribe import follow as follow_blocks
from penstock.subscribe.shards import Shards

log = structlog.get_logger(__name__)

Connect = Callable[[str], AsyncGenerator[Received]]
"""Opens the stream after a marker. It ends only by raising a PenstockError."""

SAVE_INTERVAL_SECONDS = 1.0
RETRY = Retry()
COALESCING = Coalescing()


class Keeper:
    """Saves what is processed, when it is due. Changes hold it, so it holds no stream."""

    def __init__(self, cursor: Cursor, store: ProgressStore, interval_seconds: float) -> None:
        self.cursor = cursor
        self._store = store
        self._interval_seconds = interval_seconds
        self._save_at = 0.0
        self._saving: asyncio.Task[None] | None = None

    def due_seconds(self) -> float | None:
        """Seconds until the next save is due; None if there is nothing to save."""
        if not self.cursor.unsaved:
            return None
        return max(0.0, self._save_at - time.monotonic())

    async def save(self) -> None:
        """Save what is processed now, if it is not saved yet.

        Saves never overlap, so the marker never moves back. Whoever waits for one may be cancelled:
        the save goes on, and the next one follows it.
        """
        # The save under way may be of an earlier marker; one that begins after it is not.
        for _ in range(2):
            if not self.cursor.unsaved:
                return
            if self._saving is None:
                self._saving = asyncio.create_task(self._save())
                self._saving.add_done_callback(self._ended)
            saving = self._saving
            await asyncio.wait({saving})
            saving.result()

    async def _save(self) -> None:
        await asyncio.to_thread(self._store.save, self.cursor.to_save())
        self.cursor.saved()
        self._save_at = time.monotonic() + self._interval_seconds

    def _ended(self, saving: "asyncio.Task[None]") -> None:
        self._saving = None
        if not saving.cancelled():
            # If nobody waits for it any more: its marker is still unsaved, so it is tried again,
            # and that attempt says what is wrong.
            saving.exception()


class AsyncChange(Change):
    """A change that can be confirmed without asking for the next."""

    def __init__(self, taken: Taken, keeper: Keeper) -> None:
        super().__init__(taken)
        self._keeper = keeper

    def processed(self) -> None:
        """This change and all before it are processed; saved when the next save is due."""
        self._keeper.cursor.confirm(self.taken)

    async def done(self) -> None:
        """This change and all before it are processed; saved when this returns."""
        self.processed()
        await self._keeper.save()


class Following:
    """An endless async iterator of changes, and the progress of who reads it.

    It reconnects by itself after a transient error, with no change skipped, and none repeated but
    those of a coalesced window that had not come to its end. It raises the other errors:
    ProgressError says where the reader stands, RequestError what it asked. Holds at most two
    messages of the service (or two reads of the log) in memory.
    """

    def __init__(
        self,
        connect: Connect,
        *,
        after: str,
        store: ProgressStore,
        save_interval_seconds: float,
        retry: Retry,
        whole: bool,
        connect_uncoalesced: Connect | None = None,
    ) -> None:
        self._connect = connect
        self._connect_uncoalesced = connect_uncoalesced or connect
        self._after = after
        self._store = store
        self._save_interval_seconds = save_interval_seconds
        self._backoff = Backoff(retry)
        self._keeper: Keeper | None = None
        self._loading: asyncio.Task[str] | None = None
        self._confirm_on_ask = True
        self._stream: AsyncGenerator[Received] | None = None
        self._receiving: asyncio.Task[Received] | None = None
        self._is_begun = False
        """Whether the stream has told where it starts."""
        self.whole = whole
        """Every entry of the log comes, so that commits can be put together."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AsyncChange:
        """The next change; waits for it.

        May be cancelled, as by `asyncio.wait_for`, and asked again: no change is skipped. Raises
        what the store raises; nothing was handed out then, and the next call saves again.
        """
        keeper = self._keeper or await self._load()
        while True:
            keeper.cursor.asked()
            if keeper.due_seconds() == 0:
                await keeper.save()
            # From here to the return nothing waits or fails: what is taken is handed out.
            taken = keeper.cursor.take()
            if taken is not None:
                return AsyncChange(taken, keeper)
            await self._receive(keeper)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    def __del__(self) -> None:
        # Someone broke out of the loop and let go. The task ends the call in its own loop.
        if self._receiving is not None and not self._receiving.done():
            self._receiving.cancel()

    async def aclose(self) -> None:
        """Save what is processed and end the stream. The change in hand counts as unprocessed."""
        await self._disconnect()
        if self._keeper is not None:
            await self._keeper.save()

    def confirm_explicitly(self) -> None:
        """From here on only `done()` says that a change is processed; asking for more does not."""
        self._confirm_on_ask = False
        if self._keeper is not None:
            self._keeper.cursor.confirm_on_ask = False

    def ask_for_every_change(self) -> None:
        """Do not ask for coalescing, from the next connection on."""
        self._connect = self._connect_uncoalesced

    async def _load(self) -> Keeper:
        loading = self._loading or asyncio.create_task(asyncio.to_thread(self._store.load))
        self._loading = loading  # if we are cancelled: the thread goes on, and the next call waits
        await asyncio.wait({loading})
        self._loading = None
        cursor = Cursor(loading.result() or self._after)
        cursor.confirm_on_ask = self._confirm_on_ask
        self._keeper = Keeper(cursor, self._store, self._save_interval_seconds)
        return self._keeper

    async def _receive(self, keeper: Keeper) -> None:
        """Wait for more, or until a save is due; after a transient error, for the next attempt."""
        receiving = self._receiving or self._ask(keeper.cursor.received)
        done, _ = await asyncio.wait({receiving}, timeout=keeper.due_seconds())
        if not done:
            return
        self._receiving = None
        try:
            received = receiving.result()
        except PenstockError as error:
            await self._disconnect()
            await keeper.save()
            wait_seconds = self._backoff.next_wait() if error.transient else None
            if wait_seconds is None:
                raise
            log.warning(
                "service unavailable, connecting again",
                code=error.code,
                attempt=self._backoff.failures,
                wait_seconds=round(wait_seconds, 3),
            )
            await asyncio.sleep(wait_seconds)
            return
        if received.messages or self._is_begun:
            # Its start alone proves nothing: a service may end each time it begins to read.
            self._backoff.reset()
        self._is_begun = True
        keeper.cursor.receive(received)
        # Ask for the next message now: it arrives while the consumer works on this one.
        self._ask(keeper.cursor.received)

    def _ask(self, after: str) -> "asyncio.Task[Received]":
        """Start to receive the next message. The task holds the stream and nothing of ours."""
        if self._stream is None:
            self._stream = self._connect(after)
            self._is_begun = False
        self._receiving = asyncio.create_task(_next(self._stream))
        return self._receiving

    async def _disconnect(self) -> None:
        receiving, self._receiving = self._receiving, None
        stream, self._stream = self._stream, None
        if receiving is not None:
            receiving.cancel()
            await asyncio.wait({receiving})
            if not receiving.cancelled():
                receiving.exception()  # whatever it was, nobody asks for it any more
        if stream is not None:
            await stream.aclose()


async def _next(stream: AsyncGenerator[Received]) -> Received:
    return await anext(stream)


def follow(
    target: str,
    *,
    after: str = "",
    collections: Iterable[str] = (),
    control_events: bool = False,
    consumer_id: str = "",
    store: ProgressStore | None = None,
    save_interval_seconds: float = SAVE_INTERVAL_SECONDS,
    retry: Retry = RETRY,
    coalesce_on_catch_up: bool = True,
    shards: Shards | None = None,
    credentials: Credentials = NOBODY,
) -> Following:
    """Follow the service at `target` ("host:port").

    Starts after the marker in `store`; if that has none yet, after `after`; if that is empty, at
    the head. `collections` are names as "collection" or "source/collection", empty = all. Schema,
    gap and system events come with `control_events`; without, a gap raises GapError.

    A change is processed once the next one is asked for, or once its `done()` returned. Saves are
    made by `done()`, on closing, before reconnecting, and at most every `save_interval_seconds`
    (0 = for each change). Raises the ProgressErrors and RequestError; ServiceUnavailableError only
    after `retry.max_retries`.

    While far behind (the service's `catch_up_threshold`), the changes of a document may come as
    one that says how many it stands for (`Change.coalesced`): the latest state sooner, but not
    every state. `coalesce_on_catch_up=False` gets every change, always.

    With `shards`, only the documents of these come: several consumers share the stream. Of shards
    by a field a gap raises GapError, control events or not: rebuild with `snapshot`.

    `credentials` say who follows, and whom to trust; a service that does not know them raises
    UnauthenticatedError, at the beginning or, once they are revoked or over, later.
    """
    wanted = list(collections)

    def connection(coalesce: bool) -> Connect:
        request = request_bytes(
            consumer_id=consumer_id,
            collections=wanted,
            control_events=control_events,
            coalesce_on_catch_up=coalesce,
            shards=shards,
        )
        return lambda marker: receive(target, request(marker), credentials=credentials)

    return Following(
        connection(coalesce_on_catch_up),
        connect_uncoalesced=connection(False),
        after=after,
        store=store or MemoryProgress(),
        save_interval_seconds=save_interval_seconds,
        retry=retry,
        whole=control_events and not wanted and shards is None,
    )


def follow_log(
    source: LogReader,
    *,
    after: str = "",
    collections: Iterable[str] = (),
    control_events: bool = False,
    store: ProgressStore | None = None,
    save_interval_seconds: float = SAVE_INTERVAL_SECONDS,
    heartbeat_seconds: float = 1.0,
    bytes_max: int = 1 << 20,
    coalescing: Coalescing | None = COALESCING,
    shards: Shards | None = None,
) -> Following:
    """Follow a log in this process; the same semantics as `follow` (P17).

    A filter that matches nothing moves the marker every `heartbeat_seconds`. Reads about
    `bytes_max` bytes of the log at once, or a window of `coalescing` while far behind; None gets
    every change, always.
    """
    wanted = frozenset(collections)
    criteria = Criteria(collections=wanted, control_events=control_events, shards=shards)

    def connection(coalescing: Coalescing | None) -> Connect:
        async def connect(marker: str) -> AsyncGenerator[Received]:
            progress = await start(source, marker)
            yield Received([], str(progress))
            async for delivery in follow_blocks(
                source,
                Subscription(criteria=criteria, progress=progress),
                bytes_max=bytes_max,
                heartbeat_seconds=heartbeat_seconds,
                clock=time.monotonic,
                coalescing=coalescing,
            ):
                for batch in batches(delivery, events_max=1000, bytes_max=bytes_max):
                    yield Received(*batch)
                if delivery.gap is not None:
                    raise delivery.gap
                if not delivery.slices:
                    yield Received([], str(delivery.progress))

        return connect

    return Following(
        connection(coalescing),
        connect_uncoalesced=connection(None),
        after=after,
        store=store or MemoryProgress(),
        save_interval_seconds=save_interval_seconds,
        retry=RETRY,
        whole=control_events and not wanted and shards is None,
    )
