"""Stores as sources, in tests: what a source says, and the rows that it adds up to."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from penstock.event import ChangeEvent, Commit, Operation
from penstock.sources.store import StoreSource, StoreSourceConfig
from penstock.sources.store.positions import StorePosition, parse_position
from penstock.store import Item, KeyType, Retention, Store
from tests.store.support import BOTH
from tests.telling import Told, follow

Rows = dict[str, dict[str, Any]]
"""Documents by table and by key as text."""


def source_of(path: Path, **options: Any) -> StoreSource:
    """A source over the store at `path`."""
    options = {"heartbeat_seconds": 0.05, "database": "shop", **options}
    return StoreSource("db", StoreSourceConfig.model_validate({"path": path, **options}))


def make(db: Store, *tables: str, **limits: Any) -> None:
    """Tables with a numeric key and a stream of that retention."""
    for name in tables:
        table = db.create_table(name).partition_key("id", KeyType.NUMBER)
        table.stream(BOTH).retention(Retention(**limits)).execute()


class Story(Told):
    """What a source has said, and where it stands."""

    def position_at(self, index: int) -> str:
        """The position of an item that is a commit."""
        item = self.items[index]
        assert isinstance(item, Commit)
        return item.position

    @property
    def place(self) -> StorePosition:
        assert self.position is not None
        return parse_position(self.position)

    def rows(self, rows: Rows | None = None) -> Rows:
        """`rows` with the changes applied, as a consumer would. Empty tables are left out."""
        rows = {} if rows is None else rows
        for event in self.events:
            if not isinstance(event, ChangeEvent):
                if event.operation == "drop":
                    rows.pop(event.collection, None)
                continue
            of_table = rows.setdefault(event.collection, {})
            key = bytes(event.key).decode()
            if event.operation is Operation.DELETE:
                of_table.pop(key, None)
            else:
                assert event.full_document is not None
                of_table[key] = msgspec.json.decode(event.full_document)
        return {table: found for table, found in rows.items() if found}


def standing_at(db: Store) -> Callable[[Story], bool]:
    """Holds once a source stands where the store ends, and copies nothing."""

    def reached(story: Story) -> bool:
        if story.position is None:
            return False
        with db.view() as view:
            newest = view.sequence
        return story.place.sequence == newest and story.place.copying is None

    return reached


async def caught_up(db: Store, source: StoreSource, story: Story | None = None) -> Story:
    """What the source says up to where the store ends now."""
    story = Story() if story is None else story
    try:
        return await follow(source, story, standing_at(db))
    finally:
        await source.close()


def contents(db: Store, *tables: str) -> Rows:
    """What is in those tables, in the form of `Story.rows`. Plain numbers and texts only."""
    found: Rows = {}
    for name in tables:
        page = db.scan(name).execute()
        items = list[Item](page.items)
        while page.last_key is not None:
            page = db.scan(name).exclusive_start_key(page.last_key).execute()
            items += page.items
        if items:
            keys = db.describe_table(name).key_names
            found[name] = {
                msgspec.json.encode({key: item[key] for key in keys}).decode(): item
                for item in items
            }
    return found
