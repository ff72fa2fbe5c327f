"""What every source that can be read by ranges promises (`ReadsRanges`), beside its stream.

class TestMine(RangeContract):
    def open_source(self): return MySource(...)
    async def write(self, rows): ...
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import cast

from penstock.event import ChangeEvent, Commit
from penstock.ports import ChangeSource, KeyRange, ReadsRanges
from penstock.testing.contracts.source import Items, changes, has_changes, position_of, told

_ROWS = 60


class RangeContract(ABC):
    """Sources whose upstream has one collection, which `write` adds rows to; of a range, they read
    fewer rows at once than there are."""

    @abstractmethod
    def open_source(self) -> ChangeSource:
        """A source over this test's upstream: always the same one, under the same name."""

    @abstractmethod
    async def write(self, rows: int) -> None:
        """Commit one transaction that adds `rows` rows to what is captured."""

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[ReadsRanges]:
        """The source, closed at the end."""
        source = self.open_source()
        assert isinstance(source, ReadsRanges)
        source.require_readable()
        try:
            yield source
        finally:
            await source.close()

    # --- the promises ----------------------------------------------------------------------------

    async def test_ranges_hold_each_row_once_as_the_stream_tells_it(self) -> None:
        """Invariant 9, byte by byte; each range is read apart from the others."""
        events, position = await self.streamed(_ROWS)
        async with self.opened() as source:
            listing = await source.ranges("", "", rows=10, position=position)
        assert len(listing.ranges) > 2
        rows: list[ChangeEvent] = []
        for part in reversed(listing.ranges):
            async with self.opened() as source:
                rows += await rows_of(source, part, position)
        assert len(rows) == _ROWS
        assert documents(rows) == documents(events)
        assert {(row.source, row.database, row.collection, row.snapshot) for row in rows} == {
            (event.source, event.database, event.collection, True) for event in events
        }

    async def test_what_is_committed_behind_the_position_may_be_read_and_what_is_before_is(
        self,
    ) -> None:
        async with self.opened() as source:
            begun = await position_of(told_by(source))
            events, position = await self.streamed(5)
            for known in (begun, position):
                (part,) = (await source.ranges("", "", rows=100, position=known)).ranges
                assert documents(await rows_of(source, part, known)) == documents(events)

    async def test_ranges_are_of_what_is_named_and_captured(self) -> None:
        events, position = await self.streamed(3)
        database, collection = events[0].database, events[0].collection
        async with self.opened() as source:

            async def listed(*named: str) -> set[tuple[str, str]]:
                found = await source.ranges(*named, rows=10, position=position)
                assert found.read_at
                return {(one.database, one.collection) for one in found.ranges}

            for named in (("", ""), (database, ""), ("", collection), (database, collection)):
                assert await listed(*named) == {(database, collection)}
            for named in (("", "none"), ("none", ""), ("none", collection), (database, "none")):
                assert await listed(*named) == set()

    async def test_a_collection_that_is_gone_has_no_rows(self) -> None:
        events, position = await self.streamed(1)
        part = KeyRange(database=events[0].database, collection="gone")
        async with self.opened() as source:
            read = await source.read_range(part, position=position)
        assert not read.events
        assert read.rest is None
        assert read.read_at

    async def test_all_that_was_committed_before_a_read_is_told_once_the_source_says_so(
        self,
    ) -> None:
        """And not before: a change that is read may still be ahead in the stream."""
        _, position = await self.streamed(1)
        await self.write(1)
        async with self.opened() as source:
            (part,) = (await source.ranges("", "", rows=100, position=position)).ranges
            read = await source.read_range(part, position=position)
            assert len(read.events) == 2
            assert not source.has_told(position, read.read_at)
            await self.write(1)

            def passed(items: Items) -> bool:
                last = items[-1]
                return isinstance(last, Commit) and source.has_told(last.position, read.read_at)

            items = await told(told_by(source), position, passed)
        assert {bytes(one.key) for one in changes(items)} & {bytes(one.key) for one in read.events}

    async def streamed(self, rows: int) -> tuple[list[ChangeEvent], str]:
        """Add rows: what the stream tells of them, and where it stands then."""
        async with self.opened() as source:
            begun = await position_of(told_by(source))
            await self.write(rows)
            items = await told(told_by(source), begun, has_changes(rows))
        assert isinstance(items[-1], Commit)
        return changes(items), items[-1].position


def told_by(source: ReadsRanges) -> ChangeSource:
    """The same source, which tells its changes too."""
    return cast("ChangeSource", source)


async def rows_of(source: ReadsRanges, part: KeyRange, position: str) -> list[ChangeEvent]:
    """All rows of a range."""
    rows: list[ChangeEvent] = []
    rest: KeyRange | None = part
    while rest is not None:
        read = await source.read_range(rest, position=position)
        rows += read.events
        rest = read.rest
    return rows


def documents(events: list[ChangeEvent]) -> dict[bytes, bytes]:
    """The documents, by their keys."""
    return {bytes(event.key): bytes(event.full_document or b"") for event in events}
