"""Writer and capture in processes of their own, killed with -9 at any moment."""

import random
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock import store
from penstock.event import AnyEvent, Commit, Entry, Fragment
from penstock.log import LmdbLog
from penstock.log.config import LogConfig
from tests.seeds import seed_of
from tests.sources_store import programs
from tests.sources_store.support import Story, caught_up, contents, source_of

LIVES = 8


class Child:
    """A program that says numbers, until it is killed."""

    def __init__(self, *arguments: object) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.sources_store.programs", *map(str, arguments)],
            stdout=subprocess.PIPE,
            text=True,
        )
        self._said = 0
        self._turn = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for _ in lines:
                with self._turn:
                    self._said += 1
                    self._turn.notify_all()

    def says(self, more: int) -> None:
        """Wait until it has said so much more."""
        with self._turn:
            wanted = self._said + more
            assert self._turn.wait_for(
                lambda: self._said >= wanted or self._process.poll() is not None, timeout=120
            )
        assert self._process.poll() is None, "it ended by itself"

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()


@contextmanager
def running(*arguments: object) -> Generator[list[Child]]:
    """One of it at a time, to be replaced by another."""
    children = [Child(*arguments)]
    try:
        yield children
    finally:
        for child in children:
            child.kill()


async def story_of(log_path: Path) -> Story:
    """What the log holds, as its source said it; its commits are proven whole by the log."""
    story = Story()
    log = LmdbLog(LogConfig(path=log_path, free_bytes_min=0))
    try:
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
                story.items.append(Commit(source="db", position="", events=tuple(held)))
                held = []
        assert not held
        story.position = await log.position("db")
    finally:
        await log.close()
    return story


@pytest.mark.slow
async def test_killed_at_random_writer_and_capture_leave_a_log_that_adds_up_to_the_store(
    tmp_path: Path,
) -> None:
    """F17, invariants 2 and 3: the store is written in one process and captured in another."""
    rng = random.Random(seed_of("store-source-crash"))
    path, log_path = tmp_path / "store", tmp_path / "log"
    with store.open(path, sweep_seconds=None) as db:
        programs.prepare(db)
    with (
        running("write", path, rng.getrandbits(32)) as writers,
        running("capture", path, log_path) as captures,
    ):
        for _ in range(LIVES):
            which, arguments = rng.choice(
                [
                    (writers, ("write", path, rng.getrandbits(32))),
                    (captures, ("capture", path, log_path)),
                ]
            )
            which[-1].says(rng.randrange(1, 12))
            which[-1].kill()
            which.append(Child(*arguments))
        writers[-1].says(5)
        captures[-1].says(2)
    story = await story_of(log_path)
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
