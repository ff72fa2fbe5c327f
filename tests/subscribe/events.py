"""Events and blocks for tests of readers."""

from collections.abc import Mapping, Sequence

from penstock.event import (
    AnyEvent,
    ChangeEvent,
    ClusterTime,
    Commit,
    Json,
    Operation,
    SchemaEvent,
    SystemEvent,
    event_id,
)
from penstock.extjson import encode
from penstock.log.assemble import Head, pack_commits
from penstock.ports import Bounds, SourceState
from penstock.wire import Block, encode_commit

LOG_ID = 0xA5A5_0000_0000_0001


def change(
    position: int,
    *,
    collection: str = "orders",
    source: str = "shop",
    key: int | None = None,
    operation: Operation = Operation.INSERT,
    ordinal: int = 0,
    document: Mapping[str, object] | Json | None = None,
    txn_number: int | None = None,
) -> ChangeEvent:
    """A change of the document `key`; all events of one position share a cluster time (P1)."""
    number = position if key is None else key
    body = {"_id": number, "at": position} if document is None else document
    encoded = body if isinstance(body, Json) else encode(body)
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
        full_document=None if operation is Operation.DELETE else encoded,
        txn_number=txn_number,
    )


def system(position: int, operation: str = "started", *, source: str = "shop") -> SystemEvent:
    """A system event about a whole source; `gap` among them."""
    return SystemEvent(
        event_id=event_id(source, f"system {position}", 0),
        source=source,
        database="",
        tenant="",
        collection="",
        cluster_time=ClusterTime(1_700_000_000 + position),
        timestamp=(1_700_000_000 + position) * 1000,
        position=str(position),
        operation=operation,
        description=encode({"source": source, "reason": "the oplog was cut"}),
    )


def schema(
    position: int,
    operation: str = "create",
    *,
    collection: str = "orders",
    source: str = "shop",
    to: str = "",
) -> SchemaEvent:
    """A change of shape; `to` is the new name of a collection."""
    return SchemaEvent(
        event_id=event_id(source, f"schema {position}", 0),
        source=source,
        database="db",
        tenant="db",
        collection=collection,
        cluster_time=ClusterTime(1_700_000_000 + position),
        timestamp=(1_700_000_000 + position) * 1000,
        position=str(position),
        operation=operation,
        description=encode({"to": {"db": "db", "coll": to}} if to else {}),
    )


def commit(*events: AnyEvent, position: int | None = None) -> Commit:
    """One transaction of the source of its first event."""
    source = events[0].source if events else "shop"
    at = events[-1].position if position is None else str(position)
    return Commit(source=source, position=at, events=events)


def one_each(
    first: int, last: int, *, collection: str = "orders", source: str = "shop"
) -> list[Commit]:
    """Commits of one change each, at the positions first to last."""
    return [
        commit(change(position, collection=collection, source=source))
        for position in range(first, last + 1)
    ]


def blocks_of(appends: Sequence[Sequence[Commit]], *, log_id: int = LOG_ID) -> list[Block]:
    """The blocks that a log has after these appends; each append ends a block."""
    head = Head(0, 0, 0)
    blocks: list[Block] = []
    for append in appends:
        encoded = [encode_commit(one.source, one.events, position=one.position) for one in append]
        packed, head = pack_commits(encoded, after=head, ingested_at=1_700_000_000_000)
        blocks.extend(
            Block(one.data, log_id=log_id, first_sequence=one.last - one.rows + 1) for one in packed
        )
    return blocks


class PartialLog:
    """The base of logs of which a test needs only a part."""

    async def bounds(self) -> Bounds:
        raise NotImplementedError

    async def check_at(self, sequence: int) -> int | None:
        raise NotImplementedError

    async def read(
        self, *, after: int, until: int | None = None, bytes_max: int = 1 << 20
    ) -> list[Block]:
        raise NotImplementedError

    async def wait(self, *, after: int, timeout_seconds: float | None = None) -> bool:
        raise NotImplementedError

    async def sources(self) -> list[SourceState]:
        raise NotImplementedError
