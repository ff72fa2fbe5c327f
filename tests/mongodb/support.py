"""What the tests of the MongoDB source share: a source on a real server, and its reader."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from bson import json_util
from bson.codec_options import DatetimeConversion
from pymongo import MongoClient

from penstock.errors import PenstockError
from penstock.event import AnyEvent, ChangeEvent, Commit, Fragment, Operation, SchemaEvent
from penstock.sources.mongodb import MongoSource, MongoSourceConfig, cursor, session, snapshot

Item = Commit | Fragment
JSON_OPTIONS = json_util.JSONOptions(
    json_mode=json_util.JSONMode.CANONICAL,
    datetime_conversion=DatetimeConversion.DATETIME_MS,
    uuid_representation=0,
    tz_aware=False,
)


def config(uri: str, **options: Any) -> MongoSourceConfig:
    options = {"uri": uri, "heartbeat_seconds": 0.5, **options}
    # A slow machine is not taken for a broken connection.
    options.setdefault("heartbeat_deadline_seconds", max(20, 2 * options["heartbeat_seconds"]))
    return MongoSourceConfig.model_validate(options)


@asynccontextmanager
async def source(uri: str, *, name: str = "shop", **options: Any) -> AsyncGenerator[MongoSource]:
    """A source that is closed at the end."""
    opened = MongoSource(name, config(uri, **options))
    try:
        yield opened
    finally:
        await opened.close()


class Reading:
    """Reads a source as capture does: keeps the last position, and starts again from there."""

    def __init__(self, opened: MongoSource, *, position: str | None = None) -> None:
        self._source = opened
        self._items: AsyncIterator[Item] | None = None
        self.position = position
        self.commits: list[Commit] = []
        self.failures: list[PenstockError] = []
        self.heartbeats = 0
        self._staged: list[AnyEvent] = []

    @property
    def events(self) -> list[AnyEvent]:
        return [event for commit in self.commits for event in commit.events]

    @property
    def changes(self) -> list[ChangeEvent]:
        return [event for event in self.events if isinstance(event, ChangeEvent)]

    async def next(self) -> Commit:
        """The next commit, whole; a transient failure is retried from the last position."""
        while True:
            if self._items is None:
                self._staged = []
                self._items = self._source.changes(position=self.position)
            try:
                item = await anext(self._items)
            except PenstockError as error:
                self._items = None
                if not error.transient:
                    raise
                self.failures.append(error)
                continue
            self._staged += item.events
            if isinstance(item, Commit):
                commit = Commit(
                    source=item.source, position=item.position, events=tuple(self._staged)
                )
                self._staged = []
                self.position = item.position
                if commit.events:
                    self.commits.append(commit)
                else:
                    self.heartbeats += 1
                return commit

    async def until(self, reached: Callable[["Reading"], bool]) -> "Reading":
        """Read commits until `reached` is true of what was read."""
        while not reached(self):
            await self.next()
        return self

    async def until_events(self, count: int) -> "Reading":
        return await self.until(lambda reading: len(reading.events) >= count)

    async def stop(self) -> None:
        """As a crash: what was not read is gone."""
        items, self._items = self._items, None
        if items is not None:
            await items.aclose()  # type: ignore[attr-defined]


@asynccontextmanager
async def reading(
    uri: str, *, position: str | None = None, name: str = "shop", **options: Any
) -> AsyncGenerator[Reading]:
    """A source that is being read, at its starting position."""
    async with source(uri, name=name, **options) as opened:
        read = Reading(opened, position=position)
        try:
            if position is None:
                await read.next()
            yield read
        finally:
            await read.stop()


def loaded(stored: Any) -> Any:
    """The document of stored JSON, in BSON's types."""
    return None if stored is None else json_util.loads(bytes(stored), json_options=JSON_OPTIONS)


def folded(events: list[AnyEvent]) -> dict[str, Any]:
    """The rows that applying `events` in their order ends with, by collection and key.

    A rename takes its rows away, as a drop does, and those that had the new name: what it brings to
    that must be copied.
    """
    rows: dict[str, Any] = {}
    for event in events:
        if isinstance(event, SchemaEvent) and event.operation in {"drop", "rename"}:
            replaced = json.loads(bytes(event.description)).get("to", {}).get("coll")
            gone = tuple(f"{name}/" for name in (event.collection, replaced) if name)
            rows = {key: row for key, row in rows.items() if not key.startswith(gone)}
        if not isinstance(event, ChangeEvent):
            continue
        key = f"{event.collection}/{bytes(event.key).decode()}"
        if event.operation is Operation.DELETE:
            rows.pop(key, None)
        elif event.full_document is not None:
            rows[key] = json.loads(bytes(event.full_document))
    return rows


def stored_rows(database: Any, collections: list[str]) -> dict[str, Any]:
    """What the collections hold, as `folded` says it."""
    return {
        f"{name}/{json.dumps({'_id': row['_id']}, separators=(',', ':'))}": row
        for name in collections
        for row in database[name].find()
    }


def failing(
    client: MongoClient[dict[str, Any]], command: str, code: int, *, times: int = 1
) -> None:
    """Let the next commands of that name that a source sends fail with an error code."""
    data = {"failCommands": [command], "appName": "penstock", "errorCode": code}
    client.admin.command(
        {"configureFailPoint": "failCommand", "mode": {"times": times}, "data": data}
    )


def before_chunk(monkeypatch: pytest.MonkeyPatch, act: Callable[[int], Any]) -> None:
    """Call `act` with 0, 1, ... before each read of a chunk, once the stream has nothing to answer.

    So the reply that capture looks at after the chunk was given before `act` did anything.
    """
    count = under_way = 0
    answered = asyncio.Event()
    answered.set()
    more = cursor.ChangeCursor.more

    async def counted(*arguments: Any, **options: Any) -> cursor.Reply:
        nonlocal under_way
        under_way += 1
        answered.clear()
        try:
            return await more(*arguments, **options)
        finally:
            under_way -= 1
            if under_way == 0:
                answered.set()

    async def acted(*arguments: Any, **options: Any) -> snapshot.Chunk:
        nonlocal count
        number, count = count, count + 1
        # A task that was only just made has not begun.
        await asyncio.sleep(0)
        await answered.wait()
        await asyncio.to_thread(act, number)
        return await snapshot.read_chunk(*arguments, **options)

    monkeypatch.setattr(cursor.ChangeCursor, "more", counted)
    monkeypatch.setattr(session, "read_chunk", acted)
