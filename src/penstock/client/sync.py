"""Follow a service without asyncio: a plain iterator, with one thread that reads ahead."""

import queue
import threading
import time
from collections.abc import Iterable
from types import TracebackType
from typing import Self

import structlog

from penstock.client.change import Change, Cursor, Received, Taken
from penstock.client.credentials import NOBODY, Credentials
from penstock.client.following import RETRY, SAVE_INTERVAL_SECONDS
from penstock.client.remote import SyncCall, request_bytes
from penstock.client.retry import Backoff, Retry
from penstock.client.store import MemoryProgress, ProgressStore
from penstock.errors import PenstockError
from penstock.subscribe.shards import Shards

log = structlog.get_logger(__name__)


class SyncKeeper:
    """Saves what is processed, when it is due."""

    def __init__(self, cursor: Cursor, store: ProgressStore, interval_seconds: float) -> None:
        self.cursor = cursor
        self._store = store
        self._interval_seconds = interval_seconds
        self._save_at = 0.0

    def due_seconds(self) -> float | None:
        """Seconds until the next save is due; None if there is nothing to save."""
        if not self.cursor.unsaved:
            return None
        return max(0.0, self._save_at - time.monotonic())

    def save(self) -> None:
        """Save what is processed now, if it is not saved yet."""
        if not self.cursor.unsaved:
            return
        self._store.save(self.cursor.to_save())
        self.cursor.saved()
        self._save_at = time.monotonic() + self._interval_seconds


class SyncChange(Change):
    """A change that can be confirmed without asking for the next."""

    def __init__(self, taken: Taken, keeper: SyncKeeper) -> None:
        super().__init__(taken)
        self._keeper = keeper

    def done(self) -> None:
        """This change and all before it are processed; saved when this returns."""
        self._keeper.cursor.confirm(self.taken)
        self._keeper.save()


class _Reader:
    """The thread that reads one call into an inbox of one message, until the call's error."""

    def __init__(self, call: SyncCall) -> None:
        self._call = call
        self._closed = False
        self.inbox: queue.Queue[Received | Exception] = queue.Queue(maxsize=1)
        self._thread = threading.Thread(target=self._run, name="penstock-follow", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for received in self._call.receive():
                self.inbox.put(received)
                if self._closed:
                    return
        except Exception as error:
            self.inbox.put(error)

    def cancel(self) -> None:
        """End the call, from any thread; its error then comes into the inbox."""
        self._call.close()

    def close(self) -> None:
        self._closed = True
        self._call.close()
        while self._thread.is_alive():
            # The thread may stand before a full inbox; nobody wants its message any more.
            try:
                self.inbox.get(timeout=0.05)
            except queue.Empty:
                continue
        self._thread.join()


class SyncFollowing:
    """The sync twin of `Following`: the same semantics, for one consumer thread."""

    def __init__(
        self,
        target: str,
        *,
        collections: Iterable[str],
        control_events: bool,
        consumer_id: str,
        after: str,
        store: ProgressStore,
        save_interval_seconds: float,
        retry: Retry,
        coalesce_on_catch_up: bool,
        shards: Shards | None,
        credentials: Credentials = NOBODY,
    ) -> None:
        self._target = target
        self._credentials = credentials
        self._request = request_bytes(
            consumer_id=consumer_id,
            collections=collections,
            control_events=control_events,
            coalesce_on_catch_up=coalesce_on_catch_up,
            shards=shards,
        )
        self._backoff = Backoff(retry)
        self._reader: _Reader | None = None
        self._is_begun = False
        """Whether the stream has told where it starts."""
        self._stopped = threading.Event()
        self._keeper = SyncKeeper(Cursor(store.load() or after), store, save_interval_seconds)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> SyncChange:
        """The next change; waits for it. Ends once `stop` was called.

        Raises what the store raises. Nothing was handed out then, and the next call saves again.
        """
        keeper = self._keeper
        while True:
            keeper.cursor.asked()
            if self._stopped.is_set():
                raise StopIteration
            if keeper.due_seconds() == 0:
                keeper.save()
            taken = keeper.cursor.take()
            if taken is not None:
                return SyncChange(taken, keeper)
            self._receive()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def stop(self) -> None:
        """End the iteration for good, from any thread: whoever waits for a change gets none.

        The thread that consumes then closes, and so saves. What it was not given comes again when
        it follows anew.
        """
        self._stopped.set()
        reader = self._reader
        if reader is not None:
            reader.cancel()

    def close(self) -> None:
        """Save what is processed and end the stream. The change in hand counts as unprocessed.

        To be called by the thread that consumes; another one calls `stop`.
        """
        self._disconnect()
        self._keeper.save()

    def _receive(self) -> None:
        """Wait for more, or until a save is due; after a transient error, for the next attempt."""
        cursor = self._keeper.cursor
        if self._reader is None:
            request = self._request(cursor.received)
            self._reader = _Reader(SyncCall(self._target, request, credentials=self._credentials))
            self._is_begun = False
        if self._stopped.is_set():
            # Looked at only now: `stop` looks for a reader after it has set this, so that one of
            # the two always sees the other.
            return
        try:
            received = self._reader.inbox.get(timeout=self._keeper.due_seconds())
        except queue.Empty:
            return
        if isinstance(received, Received):
            if received.messages or self._is_begun:
                # Its start alone proves nothing: a service may end each time it begins to read.
                self._backoff.reset()
            self._is_begun = True
            cursor.receive(received)
            return
        self._disconnect()
        if self._stopped.is_set():
            return  # the call was cancelled; any other error comes again to who follows anew
        self._keeper.save()
        if not isinstance(received, PenstockError):
            raise received
        wait_seconds = self._backoff.next_wait() if received.transient else None
        if wait_seconds is None:
            raise received
        log.warning(
            "service unavailable, connecting again",
            code=received.code,
            attempt=self._backoff.failures,
            wait_seconds=round(wait_seconds, 3),
        )
        self._stopped.wait(wait_seconds)

    def _disconnect(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()


def follow_sync(
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
) -> SyncFollowing:
    """Follow the service at `target` ("host:port") from one thread; everything else as `follow`.

    The stored marker is read at once, and connecting waits for the first change that is asked for.
    """
    return SyncFollowing(
        target,
        collections=collections,
        control_events=control_events,
        consumer_id=consumer_id,
        after=after,
        store=store or MemoryProgress(),
        save_interval_seconds=save_interval_seconds,
        retry=retry,
        coalesce_on_catch_up=coalesce_on_catch_up,
        shards=shards,
        credentials=credentials,
    )
