"""Writer and capture in processes of their own, killed with -9 at any moment."""

import random
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from penstock import store
from penstock.event import AnyEvent, Commit, Fragment
from tests.children import MODULE, Child
from tests.seeds import seed_of
from tests.sources_store import programs
from tests.sources_store.support import Story, caught_up, contents, source_of
from tests.telling import read_log

LIVES = 8
PROGRAMS = "tests.sources_store.programs"


@pytest.mark.slow
async def test_killed_at_random_writer_and_capture_leave_a_log_that_adds_up_to_the_store(
    tmp_path: Path,
) -> None:
    """F17, invariants 2 and 3: the store is written in one process and captured in another."""
    rng = random.Random(seed_of("store-source-crash"))
    path, log_path = tmp_path / "store", tmp_path / "log"
    with store.open(path, sweep_seconds=None) as db:
        programs.prepare(db)

    def started(name: str) -> Child:
        given = (path, rng.getrandbits(32)) if name == "write" else (path, log_path)
        return processes.enter_context(Child(*MODULE, PROGRAMS, name, *given))

    with ExitStack() as processes:
        running = {name: started(name) for name in ("write", "capture")}
        for _ in range(LIVES):
            name = rng.choice(list(running))
            running[name].says(rng.randrange(1, 12))
            running[name].kill()
            running[name] = started(name)
        running["write"].says(5)
        running["capture"].says(2)
    story = await read_log(log_path, Story(), source="db")
    captured = len(story.events)
    with store.open(path, sweep_seconds=None) as db:
        await caught_up(db, source_of(path, **programs.OPTIONS), story)
        assert story.rows() == contents(db, *programs.TABLES)
    ids = [event.event_id for event in story.events]
    assert len(ids) == len(set(ids)), "no event is in the log twice"
    named = set[str]()
    for item in whole(story.items):
        names = {event.transaction for event in item if event.transaction is not None}
        assert len(names) <= 1
        assert not names & named, "a transaction is one commit of the log"
        named |= names
    assert captured > 100
    assert len(named) > 10


def whole(items: list[Commit | Fragment]) -> Iterator[list[AnyEvent]]:
    """The commits of a story, fragments joined to what ends them."""
    held = list[AnyEvent]()
    for item in items:
        held += item.events
        if isinstance(item, Commit):
            yield held
            held = []
