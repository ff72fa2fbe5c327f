"""Where a request begins, against a plain reading of the whole log."""

import asyncio
import math
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec import structs

from penstock.errors import GapError, RequestError, TrimmedError
from penstock.event import ChangeEvent
from penstock.subscribe.captures import Since, parse_request
from penstock.subscribe.captures.keys import spellings_of
from penstock.subscribe.captures.since import resolve
from penstock.wire import Block
from tests.captures.support import (
    Reader,
    captures,
    filled,
    finished,
    rest,
    sequences,
    subscribed,
)
from tests.flight.blocks import BlockLog, insert
from tests.seeds import cases
from tests.subscribe.events import change, commit, system


def log_of(sizes: list[int], times: list[int], *, block_events: int = 3) -> BlockLog:
    """Commits of so many entries; each has a transaction's name, and its entries one time."""
    log = BlockLog(block_events=block_events)
    for number, size in enumerate(sizes, start=1):
        events: list[ChangeEvent] = [
            structs.replace(
                insert(number * 100 + at),
                transaction=f"tx{number}",
                timestamp=times[(number - 1) % len(times)],
            )
            for at in range(size)
        ]
        log.append([events])
    return log


def entries(sizes: list[int]) -> list[tuple[int, int]]:
    """Version and index of every entry."""
    return [(n, i) for n, size in enumerate(sizes, start=1) for i in range(1, size + 1)]


some_sizes = st.lists(st.integers(1, 7), min_size=1, max_size=8)


@given(some_sizes, st.integers(1, 10), st.integers(0, 8), st.integers(0, 30), st.integers(1, 7))
def test_a_version_and_index_begin_exactly_there_or_are_refused(
    sizes: list[int], version: int, index: int, trimmed: int, block_events: int
) -> None:
    """E1, E8: the first that comes is the first that is as late; what was trimmed is told."""
    log = log_of(sizes, [1], block_events=block_events)
    every = entries(sizes)
    trimmed = min(trimmed, len(every))
    if trimmed:
        log.trim(trimmed)
    wanted = [place for place in every if place >= (version, index)]
    lost = [place for place in every[:trimmed] if place >= (version, index)]
    since = Since(version=version, index=index)
    nothing_kept = 0 < trimmed == len(every) and version <= len(sizes)
    if lost or nothing_kept:
        with pytest.raises(TrimmedError):
            asyncio.run(resolve(Reader(log), since))
        return
    beyond = trimmed and version <= len(sizes) and index > sizes[version - 1]
    try:
        begins = asyncio.run(resolve(Reader(log), since))
    except TrimmedError:
        # Nobody can know any more that the transaction was not longer.
        assert beyond
        return
    found = every[begins.after.sequence :]
    if begins.gate is not None:
        found = [place for place in found if place >= (begins.gate.version, begins.gate.index)]
    assert found == wanted
    assert begins.waiting == (version > len(sizes) + 1)


@given(some_sizes, st.lists(st.integers(0, 9), min_size=1, max_size=8), st.integers(0, 12))
def test_a_time_begins_before_the_first_change_that_is_as_late(
    sizes: list[int], times: list[int], wanted: int
) -> None:
    """E8: whatever order the clocks say, none that is as late lies before."""
    log = log_of(sizes, [1_000 * time for time in times])
    begins = asyncio.run(resolve(Reader(log), Since(timestamp=1_000 * wanted)))
    late = [
        at
        for at, (version, _) in enumerate(entries(sizes), start=1)
        if times[(version - 1) % len(times)] >= wanted
    ]
    if late:
        assert begins.after.sequence == late[0] - 1
        assert not begins.waiting
    else:
        assert begins.waiting
        assert begins.after.sequence == len(entries(sizes))


@given(some_sizes, st.integers(1, 10), st.integers(0, 30))
def test_a_transaction_begins_behind_its_last_entry(
    sizes: list[int], number: int, trimmed: int
) -> None:
    """By the source's own name and by ours alike."""
    log = log_of(sizes, [1])
    every = entries(sizes)
    trimmed = min(trimmed, len(every))
    if trimmed:
        log.trim(trimmed)
    ends = [at for at, (version, _) in enumerate(every, start=1) if version == number]
    named = Since(transaction=f"tx{number}")
    if not ends or ends[-1] <= trimmed:
        with pytest.raises(TrimmedError if trimmed else RequestError):
            asyncio.run(resolve(Reader(log), named))
        return
    assert asyncio.run(resolve(Reader(log), named)).after.sequence == ends[-1]
    ours = asyncio.run(resolve(Reader(log), Since(transaction=number)))
    assert ours.after.sequence == ends[-1]


def test_a_time_in_a_log_that_was_trimmed_to_its_end_is_not_said_to_be_ahead() -> None:
    log = log_of([2], [5_000])
    log.trim(2)
    with pytest.raises(TrimmedError):
        asyncio.run(resolve(Reader(log), Since(timestamp=4_000)))


@pytest.mark.parametrize(
    "since",
    [
        {"version": 1, "transactionId": 2},
        {"index": 3},
        {"version": 0},
        {"version": -1},
        {"version": True},
        {"progress": 5},
        {"timestamp": "yesterday"},
        {"timestamp": "2026-01-01T00:00:00"},
        {"when": 1},
        7,
    ],
)
def test_what_cannot_be_meant_is_refused_by_the_name_of_its_field(since: Any) -> None:
    """E8."""
    with pytest.raises(RequestError, match="since"):
        parse_request({"since": since}, new_id=str)


@pytest.mark.parametrize(
    "key",
    [
        math.inf,
        -math.inf,
        math.nan,
        pytest.param(10**400, id="400 digits"),
        {"_id": math.inf},
        {"_id": [math.nan]},
        pytest.param("\ud800", id="half a pair"),
        {"_id": "\ud800"},
    ],
)
def test_a_key_that_no_log_can_have_is_refused(key: Any) -> None:
    """E8: by name, and before anybody looks for it."""
    criteria = [{"area": "data", "site": {"entityPrimaryKey": [1, key]}}]
    with pytest.raises(RequestError, match="entityPrimaryKey"):
        parse_request({"criteria": criteria}, new_id=str)
    assert spellings_of(10**400).texts  # GET of one document asks for it without a request


def test_a_key_may_be_any_number_that_a_log_can_have() -> None:
    keys = [2**63, 2**70, -1.5, 1e308, -0.0, {"_id": {"a": [1, None, 2.5]}}]
    criteria = [{"area": "data", "site": {"entityPrimaryKey": keys}}]
    (found,) = parse_request({"criteria": criteria}, new_id=str).criteria
    assert list(found.site.keys) == keys
    for key in keys:
        assert all(spellings_of(key).texts)


async def test_a_header_comes_for_index_0_and_not_behind_it() -> None:
    log = log_of([3, 3], [1])
    for index, expected in ((0, "begin"), (1, "insert"), (2, "insert")):
        asked = {"id": "a", "since": {"version": 2, "index": index}}
        async with subscribed(Reader(log), asked) as session:
            found: list[Any] = []
            while not found:
                found = captures(await session.next())
        assert found[0][2] == expected


class Growing(Reader):
    """The log grows between a read that finds its end and the next question."""

    def __init__(self, log: BlockLog) -> None:
        super().__init__(log)
        self._blocks = log

    async def read(
        self, *, after: int, until: int | None = None, bytes_max: int = 1 << 20
    ) -> list[Block]:
        found = await super().read(after=after, until=until, bytes_max=bytes_max)
        if not found and after == 2:
            self._blocks.append([[insert(100)]])
        return found


async def test_what_comes_while_a_time_is_sought_is_not_skipped() -> None:
    """E9."""
    log = BlockLog()
    log.append([[structs.replace(insert(n), timestamp=0)] for n in (1, 2)])
    since = Since(timestamp=5)
    assert (await resolve(Growing(log), since)).after.sequence == 2


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.integers(0, 9), st.booleans()), min_size=1, max_size=20),
    st.integers(0, 9),
    st.lists(st.integers(1, 4), min_size=20, max_size=20),
    st.booleans(),
)
@settings(max_examples=cases(60))
def test_a_time_begins_at_the_same_change_however_the_log_is_cut(
    changes: list[tuple[int, bool]], wanted: int, cuts: list[int], is_live: bool
) -> None:
    """E8: the first that is as late opens it, whatever the request matches; all behind it comes,
    however old."""
    late = [at for at, (time, _) in enumerate(changes) if time >= wanted]
    assume(late)
    log = BlockLog(block_events=3)
    log.append([[structs.replace(insert(1), timestamp=-1)]])
    asked = {
        "id": "a",
        "since": {"timestamp": 1_000 * wanted},
        "criteria": [{"area": "data", "site": {"entityType": "orders"}}],
    }

    def append() -> None:
        left = [
            structs.replace(
                insert(at, collection="orders" if is_ours else "lines"), timestamp=1_000 * time
            )
            for at, (time, is_ours) in enumerate(changes)
        ]
        for cut in cuts:
            part, left = left[:cut], left[cut:]
            if part:
                log.append([[one] for one in part])

    async def run() -> list[int]:
        if not is_live:
            append()
        async with subscribed(Reader(log), asked) as session:
            if is_live:
                append()
            return sequences(await rest(session))

    expected = [at + 2 for at, (_, is_ours) in enumerate(changes) if at >= late[0] and is_ours]
    assert asyncio.run(run()) == expected


@pytest.mark.parametrize("is_live", [False, True])
@pytest.mark.parametrize(
    ("between", "told"),
    [
        ([], True),
        ([change(1, source="erp")], True),
        ([change(1, collection="lines")], False),
        ([change(11), system(12, "gap")], True),
    ],
)
async def test_a_gap_before_the_first_change_of_a_time_is_told(
    between: list[Any], told: bool, is_live: bool
) -> None:
    """E1: what was lost may be as late; unless an older change of the source came behind it.

    Who waits for the time is told at once, since nobody knows yet what comes behind it.
    """
    log = await filled(commit(change(1)))
    comes = [commit(one) for one in (system(2, "gap"), *between, change(10))]
    if not is_live:
        await log.append(comes)
    since = {"timestamp": 1_700_000_010_000}
    data = {"id": "data", "since": since, "criteria": [{"area": "data"}]}
    both = {"id": "both", "since": since, "criteria": [{"area": "data"}, {"area": "system"}]}
    async with subscribed(log, data, both) as session:
        if is_live:
            await log.append(comes)
        found = await rest(session)
    is_told = told or is_live
    errors = {one.id: one.error for one in finished(found)}
    assert set(errors) == ({"data"} if is_told else set())
    assert all(isinstance(error, GapError) for error in errors.values())
    got = [kind for ids, _, kind in captures(found) if "both" in ids]
    assert got[0] == ("gap" if is_told else "insert")
    assert got[-1] == "insert"


async def test_a_gap_long_before_the_time_that_is_waited_for_is_not_told() -> None:
    """No clock of a source is so far ahead that what was lost could be as late."""
    log = await filled(commit(change(1)))
    asked = {"id": "a", "since": {"timestamp": 1 << 50}, "criteria": [{"area": "data"}]}
    async with subscribed(log, asked) as session:
        await log.append([commit(system(2, "gap")), commit(change(3))])
        assert finished(await rest(session)) == []
