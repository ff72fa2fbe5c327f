"""A change without its document is told though its collection has another name meanwhile."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from penstock.event import AnyEvent, ChangeEvent, Operation, SchemaEvent
from penstock.state import facts as facts_module
from tests.seeds import seed_of
from tests.state.histories import change, schema
from tests.waiting import patience
from tests.zero.endpoint import SHIPPED, Endpoint, Replica, connection, fold, message, served

WHOLE: dict[str, Any] = {"sources": {"shop": {}}}
NAMES = ("a", "b", "c")
Rows = dict[str, dict[int, int]]
"""The field n of each row, by collection and key."""


def row(collection: str, key: int, n: int) -> ChangeEvent:
    return change("shop", collection, key, document={"_id": key, "n": n})


def update(collection: str, key: int, n: int) -> ChangeEvent:
    """One that says what it changed, and no document."""
    said: dict[str, Any] = {"updatedFields": {"n": n}, "removedFields": []}
    return change("shop", collection, key, Operation.UPDATE, update=said)


def part(collection: str, key: int, more: int) -> ChangeEvent:
    """One of SQL whose document lacks n, which did not change."""
    document = {"_id": key, "more": more}
    partly = change("shop", collection, key, Operation.UPDATE, document)
    return structs.replace(partly, unchanged=("n",))


def delete(collection: str, key: int) -> ChangeEvent:
    return change("shop", collection, key, Operation.DELETE)


def rename(old: str, new: str, **said: Any) -> SchemaEvent:
    return schema("shop", "rename", old, {"to": {"db": "db", "coll": new}, **said})


def placed(events: list[AnyEvent], position: int) -> list[AnyEvent]:
    """As events of the commit at a position."""
    return [
        structs.replace(event, event_id=f"{position}/{ordinal}", position=str(position))
        for ordinal, event in enumerate(events)
    ]


async def commit(endpoint: Endpoint, *events: AnyEvent) -> int:
    """One commit, of which the shard is told something."""
    position = endpoint.position + 1
    marked = [*events, row("marks", position, 0)]
    return await endpoint.append(*placed(marked, position))


async def resumed(endpoint: Endpoint, replica: Replica, until: int) -> None:
    """Connect, and stay until that commit, unless it has that."""
    if replica.commit < until:
        async with connection(endpoint, **SHIPPED, **replica.resuming()) as socket:
            await fold(socket, replica, until)


async def begun(endpoint: Endpoint) -> Replica:
    """A shard that has a few rows, and went away."""
    events = [row("first", 1, 1), row("first", 2, 2), row("third", 1, 100)]
    await commit(endpoint, *events)
    await endpoint.applied()
    replica = Replica()
    async with connection(endpoint, **SHIPPED) as socket:
        await fold(socket, replica)
    return replica


def rows_of(replica: Replica) -> Rows:
    return {
        name: {key: row["n"] for (key,), row in rows.items()}
        for name, rows in replica.rows.items()
        if name != "marks" and "." not in name and rows
    }


THIRD = {"third": {1: 100}}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("commits", "rows"),
    [
        pytest.param(
            [[update("first", 1, 9)], [rename("first", "second")]],
            {"second": {1: 9, 2: 2}, **THIRD},
            id="renamed",
        ),
        pytest.param(
            [[update("first", 1, 9), rename("first", "second")]],
            {"second": {1: 9, 2: 2}, **THIRD},
            id="renamed in the same commit",
        ),
        pytest.param(
            [[update("first", 1, 9)], [rename("first", "second")], [rename("second", "fourth")]],
            {"fourth": {1: 9, 2: 2}, **THIRD},
            id="renamed twice",
        ),
        pytest.param(
            [[update("first", 1, 9)], [rename("first", "second")], [rename("second", "first")]],
            {"first": {1: 9, 2: 2}, **THIRD},
            id="renamed there and back",
        ),
        pytest.param(
            [[update("first", 1, 9)], [rename("first", "second"), rename("third", "first")]],
            {"second": {1: 9, 2: 2}, "first": {1: 100}},
            id="another has its name now, and a row of that key",
        ),
        pytest.param(
            [[update("first", 1, 9)], [rename("first", "second")], [row("first", 1, 50)]],
            {"second": {1: 9, 2: 2}, "first": {1: 50}, **THIRD},
            id="a new one has its name now, and a row of that key",
        ),
        pytest.param(
            [[update("third", 1, 9)], [rename("first", "third")]],
            {"third": {1: 1, 2: 2}},
            id="replaced by a rename",
        ),
        pytest.param(
            [[update("first", 1, 9)], [rename("first", "second")], [delete("second", 1)]],
            {"second": {2: 2}, **THIRD},
            id="renamed, and the row is gone",
        ),
        pytest.param(
            [
                [update("first", 1, 9)],
                [rename("first", "second")],
                [update("second", 1, 10), schema("shop", "drop", "second")],
            ],
            THIRD,
            id="renamed, and dropped",
        ),
        pytest.param(
            [[update("first", 1, 9)], [rename("first", "far", targetCaptured=False)]],
            THIRD,
            id="renamed to what is not captured",
        ),
        pytest.param(
            [[update("first", 1, 9)], [update("first", 1, 10)], [delete("first", 1)]],
            {"first": {2: 2}, **THIRD},
            id="the row is gone, as is usual",
        ),
    ],
)
async def test_an_update_without_its_document_is_told_before_a_rename(
    tmp_path: Path, commits: list[list[AnyEvent]], rows: Rows
) -> None:
    """The current rows are ahead of what is told: they have the row under its later name only."""
    async with served(tmp_path, **WHOLE) as endpoint:
        replica = await begun(endpoint)
        last = 0
        for events in commits:
            last = await commit(endpoint, *events)
        await endpoint.applied()
        await resumed(endpoint, replica, last)
    assert replica.resets == []
    assert rows_of(replica) == rows


@pytest.mark.slow
async def test_a_document_that_came_in_part_is_told_before_a_rename(tmp_path: Path) -> None:
    """A column of several fields needs all of the document."""
    async with served(tmp_path, sources={"shop": {"rest": "others"}}) as endpoint:
        replica = await begun(endpoint)
        await commit(endpoint, part("first", 1, 7))
        last = await commit(endpoint, rename("first", "second"))
        await endpoint.applied()
        await resumed(endpoint, replica, last)
    assert replica.rows["second"][(1,)] == {"_id": 1, "n": 1, "others": {"more": 7}}


class Dice:
    """A source that does anything, and what its rows are then."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self._dice = random.Random(seed_of("renamed"))
        self._n = 1000

    def events(self) -> list[AnyEvent]:
        """Of one commit."""
        return [self._event() for _ in range(self._dice.randrange(1, 4))]

    def happens(self, one_in: int) -> bool:
        return self._dice.randrange(one_in) == 0

    def _event(self) -> AnyEvent:
        self._n += 1
        name, key, n = self._dice.choice(NAMES), self._dice.randrange(3), self._n
        there = name in self.rows
        rows = self.rows.setdefault(name, {})
        known = key in rows
        does: Callable[[str, int, int], AnyEvent] = row
        match self._dice.randrange(8):
            case 0 | 1 if there:
                new = self._dice.choice([one for one in NAMES if one != name])
                self.rows[new] = self.rows.pop(name)
                return rename(name, new)
            case 2 if there:
                del self.rows[name]
                return schema("shop", "drop", name)
            case 3 if known:
                del rows[key]
                return delete(name, key)
            case _ if known:
                does = update
            case _:
                pass
        rows[key] = n
        return does(name, key, n)


@pytest.mark.slow
async def test_whatever_a_source_does_its_replica_comes_to_the_same_rows(tmp_path: Path) -> None:
    """Wherever the shard is cut off, and whatever happened when it comes back."""
    async with served(tmp_path, **WHOLE) as endpoint:
        replica = await begun(endpoint)
        dice = Dice({"first": {1: 1, 2: 2}, "third": {1: 100}})
        last = 0
        for _ in range(200):
            last = await commit(endpoint, *dice.events())
            if dice.happens(15):
                await endpoint.applied()
                await resumed(endpoint, replica, last - (1 if dice.happens(2) else 0))
        await resumed(endpoint, replica, last)
    assert replica.resets == []
    assert rows_of(replica) == {name: rows for name, rows in dice.rows.items() if rows}


@pytest.mark.slow
async def test_where_its_name_now_is_not_remembered_the_shard_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of more renames than are kept, none is guessed."""
    monkeypatch.setattr(facts_module, "_RENAMES_MAX", 2)
    async with served(tmp_path, **WHOLE) as endpoint:
        replica = await begun(endpoint)
        await commit(endpoint, update("first", 1, 9))
        for old, new in (("first", "second"), ("third", "a"), ("a", "b")):
            await commit(endpoint, rename(old, new))
        await endpoint.applied()
        async with connection(endpoint, **SHIPPED, **replica.resuming()) as socket, patience():
            while not replica.resets:
                replica.take(await message(socket))
    assert "first came without its document" in replica.resets[0]
