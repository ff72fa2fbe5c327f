"""Consumers that crash anywhere, and servers too: nothing is lost, and repeats change nothing."""

import asyncio
import random
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.client import Change, MemoryProgress, follow_log
from penstock.event import Commit, Operation
from penstock.log.config import LogConfig
from penstock.log.lmdb import LmdbLog
from penstock.log.memory import MemoryLog
from penstock.progress import parse_progress
from penstock.subscribe.resume import oldest
from tests.children import MODULE, Child
from tests.seeds import cases, seed_of
from tests.subscribe.events import change, commit
from tests.waiting import until

SERVER, CONSUMER = "tests.client.server_process", "tests.client.consumer_process"
State = dict[str, Any]


def apply(state: State, one: Change) -> None:
    """What a consumer does with a change; doing it twice in a row changes nothing."""
    if one.operation == "delete":
        state.pop(one.document_id, None)
    else:
        state[one.document_id] = one.document


@st.composite
def appends(draw: st.DrawFn) -> list[list[Commit]]:
    """Transactions on a handful of documents: inserts, updates and deletes in any order."""
    position = 0
    made: list[list[Commit]] = []
    for _ in range(draw(st.integers(1, 4))):
        commits: list[Commit] = []
        for _ in range(draw(st.integers(1, 4))):
            position += 1
            rows = draw(
                st.lists(
                    st.tuples(st.integers(1, 3), st.sampled_from(["insert", "replace", "delete"])),
                    min_size=1,
                    max_size=4,
                )
            )
            commits.append(
                commit(
                    *(
                        change(
                            position,
                            key=key,
                            ordinal=ordinal,
                            operation=Operation(operation),
                            document={"_id": key, "at": position, "row": ordinal},
                        )
                        for ordinal, (key, operation) in enumerate(rows)
                    )
                )
            )
        made.append(commits)
    return made


crashes = st.lists(
    st.tuples(st.integers(1, 12), st.sampled_from(["asking", "done", "closed"])), max_size=6
)


@given(appends(), crashes)
@settings(max_examples=cases(60))
@pytest.mark.slow
def test_what_a_crashing_consumer_has_processed_equals_the_full_fold_p4_p30_invariant_7(
    made: list[list[Commit]], crashes: list[tuple[int, str]]
) -> None:
    """Each session processes some changes and crashes: in the midst of one, after done(), or
    after closing in order. What it saved is all that the next one has."""
    asyncio.run(_crash_and_compare(made, crashes))


async def _crash_and_compare(made: list[list[Commit]], crashes: list[tuple[int, str]]) -> None:
    async with MemoryLog() as log:
        for batch in made:
            await log.append(batch)
        bounds = await log.bounds()
        expected: State = {}
        async with follow_log(log, after=str(oldest(bounds))) as changes:
            async for one in changes:
                apply(expected, one)
                if one.sequence == bounds.head:
                    break

        store = MemoryProgress(str(oldest(bounds)))
        state: State = {}
        processed: set[int] = set()
        for until_crash, ending in [*crashes, (10**6, "closed")]:
            resumed_at = parse_progress(store.marker).sequence
            # Never past a change that was not processed.
            assert processed.issuperset(range(1, resumed_at + 1))
            if resumed_at == bounds.head:
                break
            interval = 0 if until_crash % 2 else 3600
            changes = follow_log(log, store=store, save_interval_seconds=interval, bytes_max=1)
            crash_at = resumed_at + until_crash
            async for one in changes:
                resumed_at += 1
                assert one.sequence == resumed_at
                apply(state, one)
                processed.add(one.sequence)
                if one.sequence in (crash_at, bounds.head):
                    if ending != "asking":
                        await one.done()
                    if ending == "closed":
                        await changes.aclose()
                    break
        assert processed == set(range(1, bounds.head + 1))
        assert state == expected


# --- real processes, real kills ------------------------------------------------------------------


def seen(effects: Path) -> int:
    """The newest sequence that the consumer has processed."""
    return max((sequence for sequence, _ in effects_in(effects)), default=0)


def effects_in(path: Path) -> list[tuple[int, str]]:
    """The whole lines of a consumer's file, as they were written."""
    text = path.read_text() if path.exists() else ""
    lines = text[: text.rfind("\n") + 1].splitlines()
    return [(int(sequence), event_id) for sequence, event_id in map(str.split, lines)]


async def seen_beyond(effects: Path, sequence: int) -> None:
    await until(lambda: seen(effects) >= sequence)


@pytest.mark.slow
async def test_kills_of_server_and_consumer_lose_nothing_and_skip_nothing_p4(
    tmp_path: Path,
) -> None:
    seed = seed_of("client-crash")
    chance = random.Random(seed)
    path, effects = tmp_path / "log", tmp_path / "effects"
    last = 0
    async with LmdbLog(LogConfig(path=path)) as log:
        (tmp_path / "progress").write_text(str(oldest(await log.bounds())))
        with ExitStack() as processes:
            server = processes.enter_context(Child(*MODULE, SERVER, path, "127.0.0.1:0"))
            address = await asyncio.to_thread(server.line)
            consume = (*MODULE, CONSUMER, address, tmp_path / "progress", effects)
            consumer = processes.enter_context(Child(*consume))
            for round_number in range(4):
                first, last = last + 1, last + chance.randrange(20, 300)
                await log.append([commit(change(n)) for n in range(first, last + 1)])
                await seen_beyond(effects, chance.randrange(first, last + 1))
                if round_number % 2:
                    server.kill()
                    server = processes.enter_context(Child(*MODULE, SERVER, path, address))
                else:
                    consumer.kill()
                    consumer = processes.enter_context(Child(*consume))
            await seen_beyond(effects, last)
    found = effects_in(effects)
    ids: dict[int, str] = {}
    newest = 0
    for sequence, event_id in found:
        assert sequence <= newest + 1, "a change was skipped"
        newest = max(newest, sequence)
        assert ids.setdefault(sequence, event_id) == event_id
    assert sorted(ids) == list(range(1, last + 1))
    assert len(set(ids.values())) == last
