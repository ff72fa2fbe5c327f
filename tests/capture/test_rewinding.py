"""A rewind says which renames come again: behind them a fold of the log moves later rows, too."""

import json
from typing import Any

import pytest
from msgspec import Raw

from penstock.capture import rewinding
from penstock.capture.rewinding import Rename, renames_since
from penstock.capture.status import State
from penstock.cli.operate import _rebuilt  # pyright: ignore[reportPrivateUsage]
from penstock.event import ClusterTime, Commit, SchemaEvent, SystemEvent, event_id
from penstock.log import MemoryLog
from penstock.wire import Block
from tests.capture.doubles import ManualClock, commit, entries
from tests.capture.test_operate import Live, in_state, running

RENAMED = Rename("db.orders", "db.archive")


def renamed(n: int, *, before: str = "orders", after: str = "archive") -> Commit:
    """The n-th transaction of `shop`: a rename."""
    event = SchemaEvent(
        event_id=event_id("shop", str(n), 0),
        source="shop",
        database="db",
        tenant="db",
        collection=before,
        cluster_time=ClusterTime(n, 1),
        timestamp=0,
        position=str(n),
        operation="rename",
        description=Raw(json.dumps({"to": {"db": "db", "coll": after}}).encode()),
    )
    return Commit(source="shop", position=str(n), events=(event,))


async def test_a_rewind_over_a_rename_says_so_at_once_and_in_the_log() -> None:
    clock, log = ManualClock(), MemoryLog()
    source = Live([commit(1), renamed(2, after="old"), commit(3), renamed(4), commit(5)])
    async with running(log, source, clock=clock) as supervisor:
        await clock.until(lambda: source.acknowledged[-1:] == ["5"])
        await supervisor.pause("shop")
        assert in_state(supervisor, State.PAUSED)()
        assert (await supervisor.rewind("shop", to="4")).renames == (RENAMED,)
        assert (await supervisor.rewind("shop", to="3")).renames == (RENAMED,)
        back = await supervisor.rewind("shop", to="2")
        assert back.renames == (Rename("db.orders", "db.old"), RENAMED)
    events = [one.event for one in await entries(log)]
    facts: list[Any] = [
        json.loads(bytes(event.description))["renames"]
        for event in events
        if isinstance(event, SystemEvent) and event.operation == "rewound"
    ]
    assert facts[-1] == [
        {"from": "db.orders", "to": "db.old"},
        {"from": "db.orders", "to": "db.archive"},
    ]


@pytest.mark.parametrize("window", [1, 3, 1000])
async def test_renames_are_found_however_the_log_is_cut_and_each_is_said_once(
    monkeypatch: pytest.MonkeyPatch, window: int
) -> None:
    monkeypatch.setattr(rewinding, "_WINDOW_ENTRIES", window)
    log = MemoryLog()
    for n in range(1, 20):
        await log.append([renamed(n) if n in {4, 9} else commit(n)])
        await log.append([commit(n, source="other", rows=2)])
    await log.append([renamed(9), renamed(9, before="b")])
    assert await renames_since(log, "shop", 0) == (RENAMED, Rename("db.b", "db.archive"))
    assert await renames_since(log, "shop", 10_000) == ()
    assert await renames_since(log, "other", 0) == ()


async def test_what_was_not_searched_is_not_called_free_of_renames(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rewinding, "_WINDOW_ENTRIES", 2)
    log = MemoryLog()
    for n in range(1, 20):
        await log.append([commit(n)])
    await log.trim(3)
    assert await renames_since(log, "shop", 0) is None, "the log does not reach back so far"
    newest = (await log.read(after=18))[0].ingested_at
    later = newest + rewinding._CLOCKS_APART_MS_MAX + 1  # pyright: ignore[reportPrivateUsage]
    assert await renames_since(log, "shop", later) == (), "everything older came in before"
    whole = MemoryLog()
    for n in range(1, 20):
        await whole.append([commit(n)])
    monkeypatch.setattr(rewinding, "_SEARCHED_BYTES_MAX", 1)
    assert await renames_since(whole, "shop", 0) is None, "it is too long"


async def test_a_search_holds_little_of_the_log_and_ends_within_a_window_of_large_entries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is counted in entries may be of any size."""
    log, reads = MemoryLog(), 0
    for n in range(1, 20):
        await log.append([commit(n)])
    size = sum(block.nbytes for block in await log.read(after=0))
    read = log.read

    async def counted(**limits: Any) -> list[Block]:
        nonlocal reads
        reads += 1
        blocks = await read(**limits)
        assert len(blocks) == 1
        return blocks

    monkeypatch.setattr(log, "read", counted)
    monkeypatch.setattr(rewinding, "_READ_BYTES", 1)
    assert await renames_since(log, "shop", 0) == ()
    assert reads == 19
    monkeypatch.setattr(rewinding, "_SEARCHED_BYTES_MAX", size // 2)
    assert await renames_since(log, "shop", 0) is None
    assert reads < 19 + 12


def test_an_operator_is_told_what_is_wrong_until_when() -> None:
    over = _rebuilt("shop", [{"from": "db.a", "to": "db.b"}])
    assert "db.a to db.b" in over
    for said in (over, _rebuilt("shop", None), _rebuilt("shop", [])):
        assert "penstock snapshot shop" in said
    assert "not searched" in _rebuilt("shop", None)
    assert "tables stay right" in _rebuilt("shop", [])
