"""Whatever happens to tables: what a reader of the log takes for complete, is."""

import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.event import ChangeEvent, Operation
from penstock.sources.store import StoreSource
from penstock.store import (
    KeyType,
    Store,
    StreamAlreadyEnabledError,
    StreamNotEnabledError,
)
from tests.sources_store.support import Story, caught_up, contents, source_of
from tests.store.support import BOTH, opened
from tests.telling import follow

TABLES = ("a", "b", "c")


class Believed:
    """What is known of a table from the log alone."""

    def __init__(self, *, whole: bool) -> None:
        self.rows = dict[str, Any]()
        self.whole = whole
        """Whether what was not told is not there."""
        self.copied: set[str] | None = None
        """The keys that were told since a copy of it began, if nothing was lost since."""


def believed(story: Story) -> dict[str, Believed]:
    """What a reader believes of each table that was told of."""
    tables = dict[str, Believed]()
    everything = False

    def of(name: str) -> Believed:
        return tables.setdefault(name, Believed(whole=everything))

    for event in story.events:
        if isinstance(event, ChangeEvent):
            table, key = of(event.collection), bytes(event.key).decode()
            if event.operation is Operation.DELETE:
                table.rows.pop(key, None)
            else:
                assert event.full_document is not None
                table.rows[key] = msgspec.json.decode(event.full_document)
            if table.copied is not None:
                table.copied.add(key)
            continue
        said = msgspec.json.decode(event.description)
        match event.operation:
            case "drop":
                tables[event.collection] = Believed(whole=True)
            case "create":
                of(event.collection).whole |= not of(event.collection).rows
            case "gap":
                of(event.collection).whole, of(event.collection).copied = False, None
            case "snapshot_started" | "snapshot_completed":
                for name in said["collections"]:
                    table = of(name.removeprefix("shop."))
                    if event.operation == "snapshot_started":
                        if not said.get("again") or table.copied is None:
                            table.copied = set()
                    elif table.copied is not None:
                        rows = {key: table.rows[key] for key in table.copied & set(table.rows)}
                        table.rows, table.whole, table.copied = rows, True, None
                everything |= event.operation == "snapshot_completed" and said["whole"]
            case _:
                pass
    if everything:
        for name in TABLES:
            of(name)
    return tables


def something(db: Store, chance: random.Random) -> None:
    """One thing that may happen to a table."""
    name = chance.choice(TABLES)
    if name not in db.list_tables():
        table = db.create_table(name).partition_key("id", KeyType.NUMBER)
        if chance.random() < 0.6:
            table.stream(BOTH)
        table.execute()
        return
    what = chance.random()
    with suppress(StreamNotEnabledError, StreamAlreadyEnabledError):
        if what < 0.1:
            db.drop_table(name)
        elif what < 0.2:
            db.disable_stream(name)
        elif what < 0.35:
            db.enable_stream(name, BOTH)
        elif what < 0.42:
            db.prune_stream(name, until_sequence=chance.randrange(60))
        else:
            with db.transact() as transaction:
                for _ in range(chance.randint(1, 4)):
                    key = {"id": chance.randrange(5)}
                    if chance.random() < 0.3:
                        transaction.delete(name, key)
                    else:
                        transaction.put(name, {**key, "v": chance.randrange(3)})


def _longer(story: Story, *, by: int) -> Callable[[Story], bool]:
    items = len(story.items) + by
    return lambda story: len(story.items) >= items


@pytest.mark.slow
@pytest.mark.parametrize("seed", [*range(15), 234, 299])
async def test_what_is_taken_for_complete_is_what_the_store_holds(
    tmp_path: Path, seed: int
) -> None:
    """F10, F19: tables made, dropped, pruned, with streams that come and go, while capture stops
    and goes on anywhere, also inside a copy."""
    chance = random.Random(seed)
    start = chance.choice(["now", "snapshot", "beginning"])
    lost = chance.choice(["gap", "snapshot"])

    def source() -> StoreSource:
        return source_of(
            tmp_path,
            start=start,
            on_position_lost=lost,
            snapshot_chunk_documents=chance.randint(1, 3),
            batch_events_max=chance.randint(1, 4),
        )

    with opened(tmp_path) as db:
        story = await caught_up(db, source())
        for _ in range(40):
            if chance.random() < 0.1:
                some, enough = source(), _longer(story, by=chance.randint(1, 3))
                await follow(some, story, enough)
                await some.close()
            else:
                something(db, chance)
        await caught_up(db, source(), story)
        for name, table in believed(story).items():
            if table.whole:
                there = contents(db, name) if name in db.list_tables() else {}
                assert table.rows == there.get(name, {}), f"table {name} of seed {seed}"
