"""Penstock captures from Penstock, by Zero's protocol: the endpoint of one log into another."""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from penstock.event import ChangeEvent, Commit, Fragment, Operation
from penstock.testing.contracts.source import changes, has_changes, told
from tests.children import MODULE, Child
from tests.seeds import seed_of
from tests.sources_zero.support import document, source, words
from tests.state.histories import change
from tests.telling import Told, read_log
from tests.zero.endpoint import Endpoint, served

KEYS = 50
PROGRAM = "tests.sources_zero.programs"


def url_of(endpoint: Endpoint) -> str:
    """Where it is."""
    return f"ws://{endpoint.address}/changes/v0/stream"


def rows(items: list[Commit | Fragment]) -> dict[str, Any]:
    """What the table holds in the end."""
    found: dict[str, Any] = {}
    for event in changes(items):
        if event.operation is Operation.DELETE:
            found.pop(event.document_id, None)
        else:
            assert not event.unchanged
            found[event.document_id] = document(event)
    return found


def delete(key: int, ordinal: int, position: int) -> ChangeEvent:
    """The end of a document."""
    return change("shop", "items", key, Operation.DELETE, position=position, ordinal=ordinal)


@pytest.mark.slow
async def test_a_copy_and_what_follows_arrive_whole(tmp_path: Path) -> None:
    """Z2, Z5, Z10: and from any position exactly the rest."""
    async with served(tmp_path / "log") as endpoint:
        for key in range(3):
            await endpoint.put(key, name=f"n{key}")
        await endpoint.applied()
        mine = source(url_of(endpoint))
        items = await told(mine, None, has_changes(3))
        assert words(items)[0] == "snapshot_started"
        assert {event.snapshot for event in changes(items)} == {True}
        begun = items[-1]
        assert isinstance(begun, Commit)
        two = [
            change(
                "shop", "items", key, document={"_id": key, "name": "x"}, position=50, ordinal=key
            )
            for key in (7, 8)
        ]
        await endpoint.append(*two)
        await endpoint.append(delete(0, 0, 60))
        rest = await told(source(url_of(endpoint)), begun.position, has_changes(3))
        assert [len(one.events) for one in rest if one.events] == [2, 1]
        assert rows([*items, *rest]) == {
            str(key): {"id": {"$numberLong": str(key)}, "name": name}
            for key, name in ((1, "n1"), (2, "n2"), (7, "x"), (8, "x"))
        }


@pytest.mark.slow
@pytest.mark.parametrize("lives", [2, pytest.param(6, marks=pytest.mark.soak)])
async def test_killed_at_random_capture_leaves_a_log_that_adds_up(
    tmp_path: Path, lives: int
) -> None:
    """Z4, invariants 1 to 3: under writers, and none of it twice."""
    rng = random.Random(seed_of("zero-source-crash"))
    expected: dict[str, Any] = {}

    async def write(endpoint: Endpoint) -> None:
        while True:
            events: list[ChangeEvent] = []
            position = endpoint.position + 100
            for ordinal in range(rng.choice([1, 1, 2, 30])):
                key, name = rng.randrange(KEYS), str(rng.random())
                if rng.random() < 0.3:
                    events.append(delete(key, ordinal, position))
                    expected.pop(str(key), None)
                else:
                    body = {"_id": key, "name": name}
                    events.append(
                        change(
                            *("shop", "items", key),
                            document=body,
                            position=position,
                            ordinal=ordinal,
                        )
                    )
                    expected[str(key)] = {"id": {"$numberLong": str(key)}, "name": name}
            await endpoint.append(*events)
            await asyncio.sleep(0.002)

    async with served(tmp_path / "log") as endpoint:
        await endpoint.put(0, name="first")
        expected["0"] = {"id": {"$numberLong": "0"}, "name": "first"}
        await endpoint.applied()
        arguments = (url_of(endpoint), tmp_path / "captured")
        writing = asyncio.ensure_future(write(endpoint))
        for wanted in (*(rng.randrange(1, 15) for _ in range(lives)), 5):
            with Child(*MODULE, PROGRAM, *arguments) as capture:
                await asyncio.to_thread(capture.says, wanted)
        writing.cancel()
        await asyncio.wait({writing})
        story = await read_log(tmp_path / "captured", Told(), source="z")
        mark = len(changes(story.items))
        await endpoint.put(10_000, name="last")
        expected["10000"] = {"id": {"$numberLong": "10000"}, "name": "last"}
        last = source(url_of(endpoint))
        rest = await told(
            last,
            story.position,
            lambda items: any(one.document_id == "10000" for one in changes(items)),
        )
    everything = [*story.items, *rest]
    assert rows(everything) == expected
    ids = [event.event_id for item in everything for event in item.events]
    assert len(ids) == len(set(ids)), "no event is in the log twice"
    assert mark > 20
