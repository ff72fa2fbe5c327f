"""What a source tells, one item after the other, and what a log holds of it."""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import TypeVar, cast

from penstock.event import AnyEvent, ChangeEvent, Commit, Entry, Fragment
from penstock.log import LmdbLog
from penstock.log.config import LogConfig
from penstock.ports import ChangeSource
from tests.waiting import patience


class Told:
    """What a source has said, and where it stands."""

    def __init__(self, position: str | None = None) -> None:
        self.items: list[Commit | Fragment] = []
        self.position = position

    @property
    def events(self) -> list[AnyEvent]:
        return [event for item in self.items for event in item.events]

    @property
    def changes(self) -> list[ChangeEvent]:
        return [event for event in self.events if isinstance(event, ChangeEvent)]

    @property
    def said(self) -> list[tuple[str, str]]:
        """What was said beside changes: the operation, and the table that it is of."""
        return [
            (event.operation, event.collection)
            for event in self.events
            if not isinstance(event, ChangeEvent)
        ]

    def take(self, item: Commit | Fragment) -> None:
        self.items.append(item)
        if isinstance(item, Commit):
            self.position = item.position


Story = TypeVar("Story", bound=Told)


async def follow(
    source: ChangeSource,
    story: Story,
    until: Callable[[Story], bool],
    *,
    on_item: Callable[[Commit | Fragment], object] = lambda _: None,
) -> Story:
    """Have the source tell from where `story` stands, until `until` holds of it."""
    changes = cast("AsyncGenerator[Commit | Fragment]", source.changes(position=story.position))
    async with patience(), aclosing(changes) as items:
        async for item in items:
            story.take(item)
            if isinstance(item, Commit):
                await source.acknowledge(item.position)
            on_item(item)
            if until(story):
                break
    return story


async def read_log(path: Path, story: Story, *, source: str) -> Story:
    """`story` of what a log holds of its only source; the log proves that commits are whole."""
    log = LmdbLog(LogConfig(path=path, free_bytes_min=0))
    try:
        await log.abandon(source)
        head, after = (await log.bounds()).head, 0
        entries = list[Entry]()
        while after < head:
            blocks = await log.read(after=after, until=head)
            entries += [entry for block in blocks for entry in block.entries()]
            after = entries[-1].sequence
        assert [entry.sequence for entry in entries] == list(range(1, head + 1))
        held = list[AnyEvent]()
        for entry in entries:
            held.append(entry.event)
            if entry.ends_commit:
                assert len(held) == entry.commit_rows
                story.items.append(Commit(source=source, position="", events=tuple(held)))
                held = []
        assert not held
        story.position = await log.position(source)
    finally:
        await log.close()
    return story
