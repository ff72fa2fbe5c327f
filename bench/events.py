"""The events that benchmarks write into logs."""

import asyncio
from collections import deque
from collections.abc import Callable
from pathlib import Path

from msgspec import Raw

from penstock.event import ChangeEvent, ClusterTime, Commit, Operation, event_id
from penstock.log import LmdbLog, LogConfig
from penstock.subscribe.resume import oldest

_APPEND_EVENTS = 5000
_APPENDS_MAX = 2
_TEXT = b"0123456789abcdef" * 55


def change(
    number: int,
    *,
    key: int | None = None,
    operation: Operation = Operation.INSERT,
    document: bytes | None = None,
) -> ChangeEvent:
    """Change number `number` of the collection `orders`, of the document `key` (or `number`).

    The document is of about 1 KB unless given; a delete has none.
    """
    key = number if key is None else key
    if operation is Operation.DELETE:
        document = None
    elif document is None:
        document = b'{"_id":%d,"customer":%d,"text":"%s"}' % (key, number % 97, _TEXT)
    return ChangeEvent(
        event_id=event_id("shop", str(number), 0),
        source="shop",
        database="shop",
        tenant="shop",
        collection="orders",
        cluster_time=ClusterTime(1_750_000_000 + number // 1000, number % 1000),
        timestamp=1_750_000_000_000 + number,
        position=str(number),
        document_id=str(key),
        key=Raw(b'{"_id":%d}' % key),
        operation=operation,
        full_document=None if document is None else Raw(document),
    )


async def fill(
    path: Path, events: int, *, make: Callable[[int], ChangeEvent] = change, of: int = 10
) -> str:
    """A log of so many changes, numbered from 0, in commits `of` 10; the marker before them."""
    # Whatever it comes to: the default retention begins at 10 GiB, which ten million changes are.
    async with LmdbLog(LogConfig(path=path, retention_bytes=None)) as log:
        after = str(oldest(await log.bounds()))
        # One append is encoded while the one before it is written.
        under_way: deque[asyncio.Task[object]] = deque()
        for first in range(0, events, _APPEND_EVENTS):
            last = min(first + _APPEND_EVENTS, events)
            commits = [
                Commit(
                    source="shop",
                    position=str(at),
                    events=tuple(make(number) for number in range(at, min(at + of, last))),
                )
                for at in range(first, last, of)
            ]
            under_way.append(asyncio.create_task(log.append(commits)))
            await asyncio.sleep(0)
            if len(under_way) == _APPENDS_MAX:
                await under_way.popleft()
        await asyncio.gather(*under_way)
        return after
