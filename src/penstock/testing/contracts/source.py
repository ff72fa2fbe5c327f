"""What every ChangeSource promises. A test class of a source inherits this and opens its upstream.

class TestMine(SourceContract):
    def open_source(self): return MySource(...)
    async def write(self, rows): ...
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import cast

import pytest

from penstock.event import ChangeEvent, Commit, Fragment
from penstock.ports import ChangeSource

PATIENCE_SECONDS = 60.0
Items = list[Commit | Fragment]


class SourceContract(ABC):
    """Sources that begin at the next change; whole commits are small enough to be one item."""

    @abstractmethod
    def open_source(self) -> ChangeSource:
        """A source over this test's upstream: always the same one, under the same name."""

    @abstractmethod
    async def write(self, rows: int) -> None:
        """Commit one transaction that adds `rows` rows to what is captured."""

    # --- the promises ----------------------------------------------------------------------------

    async def test_where_it_stands_is_said_before_any_change(self) -> None:
        """P21: so that a crash before the first change loses none."""
        source = self.open_source()
        items = await told(source, None, has_items)
        (first,) = items
        assert isinstance(first, Commit)
        assert not first.events
        await self.write(1)
        rest = await told(source, first.position, has_changes(1))
        assert len(changes(rest)) == 1

    async def test_a_transaction_is_one_commit_and_they_come_in_order(self) -> None:
        source = self.open_source()
        begun = await position_of(source)
        for rows in (1, 3, 2):
            await self.write(rows)
        items = await told(source, begun, has_changes(6))
        commits = [item for item in items if item.events]
        assert [len(item.events) for item in commits] == [1, 3, 2]
        assert all(isinstance(item, Commit) for item in commits)
        events = changes(items)
        assert len({event.event_id for event in events}) == 6
        assert {event.source for event in events} == {source.name}
        assert all(event.tenant for event in events), "P24"

    async def test_from_any_position_exactly_the_rest_comes_the_same_as_before(self) -> None:
        """Invariant 2."""
        source = self.open_source()
        begun = await position_of(source)
        for _ in range(4):
            await self.write(2)
        items = await told(source, begun, has_changes(8))
        events = changes(items)
        for item in items:
            assert isinstance(item, Commit)
            before = changes(items[: items.index(item) + 1])
            rest = events[len(before) :]
            if rest:
                again = await told(self.open_source(), item.position, has_changes(len(rest)))
                assert changes(again) == rest

    async def test_a_quiet_source_says_that_it_is(self) -> None:
        """Invariant 5."""
        source = self.open_source()
        items = await told(source, None, lambda items: len(items) >= 3)
        assert all(isinstance(item, Commit) and not item.events for item in items)

    async def test_it_ends_when_it_is_cancelled_and_begins_again(self) -> None:
        source = self.open_source()
        begun = await position_of(source)
        waiting = asyncio.ensure_future(told(source, begun, has_changes(1)))
        done, _ = await asyncio.wait({waiting}, timeout=0.2)
        assert not done
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await source.close()
        await source.close()
        await self.write(1)
        assert len(changes(await told(source, begun, has_changes(1)))) == 1
        await source.close()

    async def test_a_change_is_told_while_it_is_waited_for(self) -> None:
        source = self.open_source()
        begun = await position_of(source)
        waiting = asyncio.ensure_future(told(source, begun, has_changes(2)))
        await self.write(1)
        await self.write(1)
        assert len(changes(await waiting)) == 2


def changes(items: Items) -> list[ChangeEvent]:
    """The changes among what was said."""
    return [event for item in items for event in item.events if isinstance(event, ChangeEvent)]


def has_items(items: Items) -> bool:
    """Holds once anything was said."""
    return len(items) > 0


def has_changes(count: int) -> Callable[[Items], bool]:
    """Holds once so many changes were said, and the commit of the last is whole."""
    return lambda items: len(changes(items)) >= count and isinstance(items[-1], Commit)


async def position_of(source: ChangeSource) -> str:
    """Where a source begins."""
    (first,) = await told(source, None, has_items)
    assert isinstance(first, Commit)
    return first.position


async def told(source: ChangeSource, position: str | None, until: Callable[[Items], bool]) -> Items:
    """What `source` says from `position` on, until `until` holds of it."""
    found: Items = []
    items = cast("AsyncGenerator[Commit | Fragment]", source.changes(position=position))
    async with asyncio.timeout(PATIENCE_SECONDS), aclosing(items):
        async for item in items:
            found.append(item)
            if isinstance(item, Commit):
                await source.acknowledge(item.position)
            if until(found):
                break
    return found
