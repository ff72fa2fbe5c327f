"""What a client of capture subscriptions hears, whatever the transport; and a log to hear of."""

import tempfile
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Literal, Protocol

from msgspec import Raw, Struct

from penstock.event import (
    AnyEvent,
    ChangeEvent,
    ClusterTime,
    Commit,
    Operation,
    SchemaEvent,
    SystemEvent,
    event_id,
)
from penstock.extjson import encode
from penstock.log.config import LogConfig
from penstock.log.lmdb import LmdbLog
from penstock.progress import parse_progress

Asked = Mapping[str, Any]
"""A request, as the object of JSON that it is on every transport."""


class Heard(Struct, frozen=True, kw_only=True):
    """One thing that a client was told."""

    kind: Literal["confirmed", "capture", "maintenance", "finished", "refused"]
    """`refused`: a request that never began, or a change of one; `finished`: one that was there."""
    ids: tuple[str, ...] = ()
    """The requests that it is about."""
    progress: str = ""
    """Where the request begins, or behind the capture, or what is safe; as it came."""
    version: int = 0
    index: int = 0
    waiting: bool = False
    """Of a confirmation: what it begins with is ahead."""
    area: str = ""
    operation: str = ""
    """Of the edges of a transaction, which are captures too: `begin` and `commit`."""
    entity_type: str = ""
    body: Mapping[str, Any] | None = None
    """With `fullDocument` where there is one; None of a header."""
    mutation_count: int = 0
    matched: Mapping[str, int] = {}
    """Of an edge of a transaction: entries for each request."""
    positions: Mapping[str, str] = {}
    """Of maintenance: each request's own."""
    said: Mapping[str, Any] = {}
    """Of a capture in an envelope that was asked for: all of it, as it came; then nothing else of
    it is told here but its kind."""
    code: str = ""
    """Of the error, if it is one: as in penstock.errors."""
    message: str = ""
    oldest: str = ""
    """Of TRIMMED: the oldest marker; of GAP: the one behind it."""

    @property
    def sequence(self) -> int:
        """Of its marker."""
        return parse_progress(self.progress).sequence


class StreamEndedError(Exception):
    """The whole subscription is over; `code` is empty if that was asked for, or in order."""

    def __init__(self, code: str = "") -> None:
        super().__init__(code)
        self.code = code


class CaptureClient(Protocol):
    """One subscription. Reads from its connection only when it is asked for more, but for what the
    system holds."""

    async def next(self) -> Heard:
        """What comes next. Raises StreamEndedError at the end."""
        ...

    async def extend(self, *requests: Asked) -> None: ...

    async def change(self, request: Asked) -> None: ...

    async def limit(self, *ids: str) -> None:
        """Remove these requests."""
        ...

    async def cancel_all(self) -> None:
        """Remove every request; the subscription stays."""
        ...

    async def request(self, count: int) -> None:
        """Give credit."""
        ...

    async def abort(self) -> None:
        """Vanish, without a word."""
        ...


class CaptureEndpoint(Protocol):
    """A server that listens."""

    def connect(
        self, *requests: Asked, credit: int | None = None, envelope: str = ""
    ) -> AbstractAsyncContextManager[CaptureClient]:
        """A subscription with these requests, and credit if there is a limit at first; captures
        are written in the envelope, if one is named."""
        ...


# --- a log ----------------------------------------------------------------------------------------


@asynccontextmanager
async def opened_log(**settings: object) -> AsyncGenerator[LmdbLog]:
    """An empty log of this test's own, on disk."""
    with tempfile.TemporaryDirectory() as folder:
        options = {"path": Path(folder) / "log", "free_bytes_min": 0, **settings}
        async with LmdbLog(LogConfig.model_validate(options)) as log:
            yield log


def changed(
    position: int,
    *,
    collection: str = "orders",
    key: int | str | None = None,
    ordinal: int = 0,
    operation: Operation = Operation.INSERT,
    source: str = "shop",
    document: Mapping[str, object] | None = None,
    before: Mapping[str, object] | None = None,
    update: bytes | None = None,
) -> ChangeEvent:
    """A change of the document `key` of shop.db; its second is `position`."""
    number = position if key is None else key
    body = None if operation is Operation.DELETE else document or {"_id": number, "at": position}
    return ChangeEvent(
        event_id=event_id(source, str(position), ordinal),
        source=source,
        database="db",
        tenant="db",
        collection=collection,
        cluster_time=ClusterTime(1_700_000_000 + position, 1),
        timestamp=(1_700_000_000 + position) * 1000,
        position=str(position),
        document_id=str(number),
        key=encode({"_id": number}),
        operation=operation,
        full_document=None if body is None or update is not None else encode(body),
        full_document_before_change=None if before is None else encode(before),
        update_description=None if update is None else Raw(update),
        disambiguated_paths=None if update is None else Raw(b"{}"),
    )


def reshaped(position: int, operation: str, *, collection: str = "orders", to: str) -> SchemaEvent:
    """A change of shape of a collection; `to` is its new name."""
    return SchemaEvent(
        event_id=event_id("shop", f"schema {position}", 0),
        source="shop",
        database="db",
        tenant="db",
        collection=collection,
        cluster_time=ClusterTime(1_700_000_000 + position),
        timestamp=(1_700_000_000 + position) * 1000,
        position=str(position),
        operation=operation,
        description=encode({"to": {"db": "db", "coll": to}} if to else {}),
    )


def told(position: int, operation: str) -> SystemEvent:
    """What is said about the whole source; `gap` among it."""
    return SystemEvent(
        event_id=event_id("shop", f"system {position}", 0),
        source="shop",
        database="",
        tenant="",
        collection="",
        cluster_time=ClusterTime(1_700_000_000 + position),
        timestamp=(1_700_000_000 + position) * 1000,
        position=str(position),
        operation=operation,
        description=encode({"source": "shop", "reason": "the oplog was cut"}),
    )


def committed(*events: AnyEvent) -> Commit:
    """One transaction."""
    return Commit(source=events[0].source, position=events[-1].position, events=events)


def singles(first: int, last: int, *, collection: str = "orders") -> list[Commit]:
    """Commits of one insert each, at the positions first to last."""
    return [committed(changed(at, collection=collection)) for at in range(first, last + 1)]
