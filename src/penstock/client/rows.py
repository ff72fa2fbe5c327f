"""Rebuild from current rows, then follow.

    async with snapshot("127.0.0.1:50051", collections=["orders"]) as rows:
        async for row in rows:
            table.put(row.event.key, row.document)
        marker = rows.progress
    async with follow("127.0.0.1:50051", after=marker, ...) as changes: ...

Rows come once each, as of one place of the log, and the changes after `progress` are exactly the
later ones. A break on the way is an error, as often as more is asked for: what came is not whole,
and is to be thrown away.
"""

from collections.abc import AsyncGenerator, Generator, Iterable
from types import TracebackType
from typing import Final, Self

from penstock._generated.penstock.v1 import penstock_pb2 as pb
from penstock.client.change import Change, Received, Taken
from penstock.client.credentials import NOBODY, Credentials
from penstock.client.remote import SyncCall, receive
from penstock.errors import RequestError, ServiceUnavailableError
from penstock.subscribe.shards import Shards

METHOD: Final = "/penstock.v1.PullerService/Snapshot"


class _Arriving:
    """What both twins know: rows that came, and the marker at the end."""

    def __init__(self) -> None:
        self._came: list[bytes] = []
        self._progress = ""

    @property
    def progress(self) -> str:
        """The marker to follow from. Raises RequestError before the last row was handed out."""
        if not self._progress or self._came:
            raise RequestError(
                "the rows were not read to their end, so there is no marker that follows them. "
                "Read on until the iteration ends."
            )
        return self._progress

    def _receive(self, received: Received) -> None:
        """Take a message, its next row last."""
        self._came = received.messages[::-1]
        self._progress = received.progress

    def _broken_off(self) -> ServiceUnavailableError:
        """To be raised where a stream has ended without the marker: it failed, was cancelled or
        closed, and has nothing more to say."""
        return ServiceUnavailableError(
            "the rows broke off before their end, and what came is not whole. Nothing is lost at "
            "the service. Throw away what came, and begin anew."
        )

    def _next(self) -> Change:
        return Change(Taken(self._came.pop(), 0))


def _request(collections: Iterable[str], shards: Shards | None, consumer_id: str) -> bytes:
    return pb.SnapshotRequest(
        consumer_id=consumer_id,
        collections=list(collections),
        shard_by=shards.by if shards else (),
        shard_count=shards.count if shards else 0,
        shard_ids=sorted(shards.ids) if shards else (),
    ).SerializeToString()


class Rows(_Arriving):
    """The current rows, as an async iterator that ends; see `snapshot`."""

    def __init__(self, target: str, request: bytes, credentials: Credentials) -> None:
        super().__init__()
        self._stream: AsyncGenerator[Received] = receive(
            target, request, method=METHOD, credentials=credentials
        )

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Change:
        """The next row. Ends behind the last one only: raises what `snapshot` says until then."""
        while not self._came:
            if self._progress:
                await self._stream.aclose()
                raise StopAsyncIteration
            try:
                self._receive(await anext(self._stream))
            except StopAsyncIteration:
                raise self._broken_off() from None
        return self._next()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stream.aclose()


class SyncRows(_Arriving):
    """The current rows, as an iterator that ends; see `snapshot_sync`."""

    def __init__(self, target: str, request: bytes, credentials: Credentials) -> None:
        super().__init__()
        self._call = SyncCall(target, request, method=METHOD, credentials=credentials)
        self._stream: Generator[Received] = self._call.receive()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Change:
        """As in `Rows`."""
        while not self._came:
            if self._progress:
                self._call.close()
                raise StopIteration
            try:
                self._receive(next(self._stream))
            except StopIteration:
                raise self._broken_off() from None
        return self._next()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._call.close()


def snapshot(
    target: str,
    *,
    collections: Iterable[str] = (),
    shards: Shards | None = None,
    consumer_id: str = "",
    credentials: Credentials = NOBODY,
) -> Rows:
    """The current rows of the service at `target` ("host:port"), then where to follow from.

    `collections` and `shards` as in `follow`: none means all. Each row is
    a `Change` with the operation insert and `event.snapshot`; its `document` is None where the
    service does not know it (an update came without its document): a later change says it. Holds
    one message in memory.

    Iterating raises StateIncompleteError if rows may be missing, RequestError if the service keeps
    none, and ServiceUnavailableError if it breaks off: then begin anew. One that failed, or whose
    asking was cancelled, raises this for good, and so never ends like a whole one.
    """
    return Rows(target, _request(collections, shards, consumer_id), credentials)


def snapshot_sync(
    target: str,
    *,
    collections: Iterable[str] = (),
    shards: Shards | None = None,
    consumer_id: str = "",
    credentials: Credentials = NOBODY,
) -> SyncRows:
    """As `snapshot`, without asyncio."""
    return SyncRows(target, _request(collections, shards, consumer_id), credentials)
