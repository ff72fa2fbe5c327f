"""What every source that copies promises (`Copies`), beside what every source does.

class TestMine(CopyContract):
    def open_source(self): return MySource(...)
    async def write(self, rows): ...
"""

import asyncio
from typing import Any

import msgspec

from penstock.errors import RequestError
from penstock.event import Commit, Fragment, SystemEvent
from penstock.ports import ChangeSource, Copies
from penstock.testing.contracts.source import (
    Items,
    SourceContract,
    changes,
    position_of,
    told,
)


def completed(items: Items) -> bool:
    """Holds where a copy was said last to be complete."""
    return any(event.operation == "snapshot_completed" for event in items[-1].events)


class CopyContract(SourceContract):
    """Sources whose upstream has one collection, which `write` adds rows to."""

    async def copied(self, source: ChangeSource, position: str) -> tuple[list[str], Items]:
        """Have everything copied while the source is followed from `position`."""
        assert isinstance(source, Copies)
        following = asyncio.ensure_future(told(source, position, completed))
        while True:
            try:
                names = await source.copy([], known=())
            except RequestError:
                # It is asked before the source has begun.
                await asyncio.wait({following}, timeout=0.01)
                if following.done():
                    raise
            else:
                return names, await following

    async def test_a_copy_comes_between_its_announcements_with_each_row_once(self) -> None:
        await self.write(3)
        source = self.open_source()
        names, items = await self.copied(source, await position_of(source))
        events = [event for item in items for event in item.events]
        assert [e.operation for e in events if isinstance(e, SystemEvent)] == [
            "snapshot_started",
            "snapshot_completed",
        ]
        assert events[0].operation == "snapshot_started"
        started, ended = said(events[0]), said(events[-1])
        assert started["snapshot"] == ended["snapshot"]
        assert started["collections"] == ended["collections"] == names
        rows = changes(items)
        assert len({bytes(event.key) for event in rows}) == len(rows) == ended["documents"] == 3
        assert all(event.snapshot and event.full_document is not None for event in rows)
        assert all(event.full_document_as_of_event for event in rows)

    async def test_what_follows_a_copy_is_told_behind_it(self) -> None:
        await self.write(2)
        source = self.open_source()
        _, items = await self.copied(source, await position_of(source))
        assert isinstance(items[-1], Commit)
        await self.write(1)
        rest = await told(source, items[-1].position, lambda items: bool(changes(items)))
        assert [event.snapshot for event in changes(rest)] == [False]
        assert not {bytes(e.key) for e in changes(rest)} & {bytes(e.key) for e in changes(items)}

    async def test_a_copy_goes_on_from_any_position_of_it_the_same_as_before(self) -> None:
        """Invariant 2, P26."""
        await self.write(3)
        source = self.open_source()
        _, items = await self.copied(source, await position_of(source))
        begun = next(n for n, item in enumerate(items) if item.events)
        for number in range(begun, len(items) - 1):
            item = items[number]
            assert isinstance(item, Commit)
            again = await told(self.open_source(), item.position, completed)
            assert events_of(again) == events_of(items[number + 1 :])


def events_of(items: list[Commit | Fragment]) -> list[Any]:
    """What was said."""
    return [event for item in items for event in item.events]


def said(event: object) -> dict[str, Any]:
    """The facts of a system event."""
    assert isinstance(event, SystemEvent)
    found: dict[str, Any] = msgspec.json.decode(event.description)
    return found
