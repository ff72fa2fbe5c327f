"""Reading a stream on and on: `follow`, and consumers that keep where they are.

    def handle(records): ...
    def copy(error): ...   # the table, anew

    db.consume("orders", "mailer", resync=copy).run(handle)

A consumer's checkpoint moves only after its handler returned, so a crash costs a repeat and never a
record. What a consumer cannot read on from (retention removed what follows, the stream ended or is
another one, the store was restored) is an error, and what to do about it is a callback: it is given
the error, and copies the table. The consumer then goes on from where the stream stood before the
copy began, so what was written meanwhile comes too, and may be in the copy already.
"""

import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from time import monotonic
from typing import Final, Protocol

from penstock.store.builders import ReadRecords, ReadRecordsWith
from penstock.store.consumers import Checkpoint, Start
from penstock.store.errors import (
    AheadOfStreamError,
    CheckpointConflictError,
    StreamChangedError,
    StreamClosedError,
    StreamError,
    TrimmedDataError,
)
from penstock.store.records import StreamRecord
from penstock.store.streams import RECORDS_MAX, Page

LOST: Final = (TrimmedDataError, StreamChangedError, AheadOfStreamError)
"""Why a position cannot be read on from."""
_LOOK_SECONDS: Final = 1.0
"""How soon a consumer that waits hears that it is to stop."""


class Consumed(Protocol):
    """What a consumer needs: a `Store`, or a `Client` of one."""

    def get_stream_records(self, table: str) -> ReadRecords: ...

    def register_consumer(
        self,
        table: str,
        name: str,
        *,
        start: Start = "trim_horizon",
        hold_bytes_max: int | None = None,
    ) -> Checkpoint: ...

    def save_checkpoint(
        self, table: str, name: str, position: str, *, expected: str | None
    ) -> None: ...


def restored(table: str, name: str) -> StreamChangedError:
    """The checkpoint is a backup's."""
    return StreamChangedError(
        f"{table}: the store was restored from a backup, and consumer {name!r} may have handled "
        f"changes that are not in it. Copy the table again, and go on from there."
    )


class Consumer:
    """One consumer of a table's stream. Made by `Store.consume` and `Client.consume`."""

    def __init__(
        self,
        db: Consumed,
        table: str,
        name: str,
        *,
        start: Start,
        resync: Callable[[StreamError], None] | None,
        limit: int,
        hold_bytes_max: int | None,
    ) -> None:
        self.table = table
        self.name = name
        self._db = db
        self._start: Start = start
        self._resync = resync
        self._limit = limit
        self._hold_bytes_max = hold_bytes_max
        self._position: str | None = None
        self._stopping = threading.Event()

    @property
    def position(self) -> str | None:
        """Where the checkpoint stands, as far as this consumer knows; None before it began."""
        return self._position

    def run(
        self,
        handle: Callable[[list[StreamRecord]], None],
        *,
        idle_seconds: float | None = None,
    ) -> None:
        """Handle records, some at a time, until `stop`, or until nothing came for so long.

        Each list is handled again after a crash, or if `handle` raises, unless it returned and the
        checkpoint was saved. Raises what `handle` and the resync callback raise, the error that a
        missing callback was to handle, StreamClosedError when the stream ended and the table has no
        other, and CheckpointConflictError when somebody consumes under the same name.
        """
        heard = monotonic()
        while not self._stopping.is_set():
            wait = _LOOK_SECONDS if idle_seconds is None else min(_LOOK_SECONDS, idle_seconds)
            before = self._position
            if self.step(handle, wait_seconds=wait) or self._position != before:
                heard = monotonic()
            elif idle_seconds is not None and monotonic() - heard >= idle_seconds:
                return

    def stop(self) -> None:
        """Have `run` return once what it does is done. From any thread."""
        self._stopping.set()

    def step(
        self, handle: Callable[[list[StreamRecord]], None], *, wait_seconds: float = 0.0
    ) -> int:
        """Handle what is there, `limit` records at the most; returns how many there were."""
        position = self._position or self._begin()
        read = self._db.get_stream_records(self.table).after(position)
        try:
            page = read.limit(self._limit).wait(wait_seconds).execute()
        except LOST as error:
            self._copy_again(error, position)
            return 0
        if page.records:
            handle(page.records)
            self._save(page.position, position)
        elif page.closed:
            raise StreamClosedError(self.table, position=page.position)
        return len(page.records)

    def _begin(self) -> str:
        checkpoint = self._db.register_consumer(
            self.table, self.name, start=self._start, hold_bytes_max=self._hold_bytes_max
        )
        if checkpoint.restored:
            error = restored(self.table, self.name)
            return self._copy_again(error, checkpoint.position)
        self._position = checkpoint.position
        return checkpoint.position

    def _copy_again(self, error: StreamError, expected: str) -> str:
        if self._resync is None:
            raise error
        position = self._db.get_stream_records(self.table).latest().execute().position
        self._resync(error)
        self._save(position, expected)
        return position

    def _save(self, position: str, expected: str) -> None:
        # Unless it is known to stand at one of the two, the next step looks: a server's answer may
        # be lost, and the checkpoint of a copy is good only once the table was copied anew.
        self._position = None
        try:
            self._db.save_checkpoint(self.table, self.name, position, expected=expected)
        except CheckpointConflictError:
            self._position = expected  # somebody else's from now on, and never taken over
            raise
        self._position = position


class AsyncConsumed(Protocol):
    """What an asynchronous consumer needs: an `AsyncClient`."""

    def get_stream_records(self, table: str) -> ReadRecordsWith[Awaitable[Page]]: ...

    async def register_consumer(
        self,
        table: str,
        name: str,
        *,
        start: Start = "trim_horizon",
        hold_bytes_max: int | None = None,
    ) -> Checkpoint: ...

    async def save_checkpoint(
        self, table: str, name: str, position: str, *, expected: str | None
    ) -> None: ...


class AsyncConsumer:
    """As `Consumer`, in an event loop: the handler and the resync callback are awaited."""

    def __init__(
        self,
        db: AsyncConsumed,
        table: str,
        name: str,
        *,
        start: Start,
        resync: Callable[[StreamError], Awaitable[None]] | None,
        limit: int,
        hold_bytes_max: int | None,
    ) -> None:
        self.table = table
        self.name = name
        self._db = db
        self._start: Start = start
        self._resync = resync
        self._limit = limit
        self._hold_bytes_max = hold_bytes_max
        self._position: str | None = None

    @property
    def position(self) -> str | None:
        """Where the checkpoint stands, as far as this consumer knows; None before it began."""
        return self._position

    async def run(
        self,
        handle: Callable[[list[StreamRecord]], Awaitable[None]],
        *,
        idle_seconds: float | None = None,
    ) -> None:
        """As `Consumer.run`; cancel it to stop."""
        heard = monotonic()
        while True:
            wait = _LOOK_SECONDS if idle_seconds is None else min(_LOOK_SECONDS, idle_seconds)
            before = self._position
            if await self.step(handle, wait_seconds=wait) or self._position != before:
                heard = monotonic()
            elif idle_seconds is not None and monotonic() - heard >= idle_seconds:
                return

    async def step(
        self,
        handle: Callable[[list[StreamRecord]], Awaitable[None]],
        *,
        wait_seconds: float = 0.0,
    ) -> int:
        """As `Consumer.step`."""
        position = self._position or await self._begin()
        read = self._db.get_stream_records(self.table).after(position)
        try:
            page = await read.limit(self._limit).wait(wait_seconds).execute()
        except LOST as error:
            await self._copy_again(error, position)
            return 0
        if page.records:
            await handle(page.records)
            await self._save(page.position, position)
        elif page.closed:
            raise StreamClosedError(self.table, position=page.position)
        return len(page.records)

    async def _begin(self) -> str:
        checkpoint = await self._db.register_consumer(
            self.table, self.name, start=self._start, hold_bytes_max=self._hold_bytes_max
        )
        if checkpoint.restored:
            error = restored(self.table, self.name)
            return await self._copy_again(error, checkpoint.position)
        self._position = checkpoint.position
        return checkpoint.position

    async def _copy_again(self, error: StreamError, expected: str) -> str:
        if self._resync is None:
            raise error
        position = (await self._db.get_stream_records(self.table).latest().execute()).position
        await self._resync(error)
        await self._save(position, expected)
        return position

    async def _save(self, position: str, expected: str) -> None:
        # Unless it is known to stand at one of the two, the next step looks: a server's answer may
        # be lost, and the checkpoint of a copy is good only once the table was copied anew.
        self._position = None
        try:
            await self._db.save_checkpoint(self.table, self.name, position, expected=expected)
        except CheckpointConflictError:
            self._position = expected  # somebody else's from now on, and never taken over
            raise
        self._position = position


# --- following without a checkpoint ---------------------------------------------------------------


class Followed(Protocol):
    """What `follow` needs of a store."""

    def get_stream_records(self, table: str) -> ReadRecords: ...


def begin(read: ReadRecords, position: str) -> ReadRecords:
    """Read from a position, "trim_horizon" or "latest"."""
    if position == "trim_horizon":
        return read.trim_horizon()
    return read.latest() if position == "latest" else read.after(position)


def follow(
    db: Followed, table: str, position: str, *, idle_seconds: float | None
) -> Generator[StreamRecord]:
    """Records as they commit; see `Store.follow`."""
    forever = 3600.0
    while True:
        read = begin(db.get_stream_records(table), position).limit(RECORDS_MAX)
        page = read.wait(forever if idle_seconds is None else idle_seconds).execute()
        yield from page.records
        position = page.position
        if page.records:
            continue
        if page.closed:
            raise StreamClosedError(table, position=position)
        if idle_seconds is not None:
            return


class Belled(Followed, Protocol):
    """What `follow_async` needs of a store."""

    async def read_async(self, wanted: ReadRecords) -> Page: ...


async def follow_async(
    db: Belled, table: str, position: str, *, idle_seconds: float | None
) -> AsyncGenerator[StreamRecord]:
    """As `follow`, in an event loop."""
    forever = 3600.0
    while True:
        read = begin(db.get_stream_records(table), position).limit(RECORDS_MAX)
        page = await db.read_async(read.wait(forever if idle_seconds is None else idle_seconds))
        for record in page.records:
            yield record
        position = page.position
        if page.records:
            continue
        if page.closed:
            raise StreamClosedError(table, position=position)
        if idle_seconds is not None:
            return
