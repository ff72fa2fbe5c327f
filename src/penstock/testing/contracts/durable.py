"""What a durable `ChangeLog` promises beyond `ChangeLogContract`: it survives kill -9.

A child process appends a history that is known in advance and says on a pipe what was
acknowledged; it is killed somewhere, the log is opened again, and everything is compared.
The child is `crash_child.py`.
"""

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import ClassVar

import pytest

from penstock.event import Commit, Entry, Fragment
from penstock.log.config import LogConfig
from penstock.ports import ChangeLog
from penstock.testing.contracts.entries import (
    changes,
    read_all,
    require_whole_commits,
    seen,
)

SOURCES = ("a", "b", "c")


def _rows(source: str, number: int) -> tuple[int, int]:
    """How many rows a commit has, and of how many bytes: known before it is appended."""
    known = random.Random(f"{source}{number}")
    return known.choice([0, 1, 1, 2, 7, 40, 150]), known.choice([50, 900, 9_000])


def steps_of(source: str, number: int) -> list[Commit | Fragment]:
    """The commit, in fragments when it is large."""
    rows, bytes_ = _rows(source, number)
    position = str(number)
    events = changes(source, position, rows, bytes_=bytes_)
    if rows < 40:
        return [Commit(source=source, position=position, events=events)]
    return [
        *(Fragment(source=source, events=events[at : at + 30]) for at in range(0, rows, 30)),
        Commit(source=source, position=position),
    ]


class DurableLogContract:
    """Inherit beside `ChangeLogContract`, in a module that a child process can import."""

    kills: ClassVar[int] = 3
    """How often the child is killed; a soak test raises it."""

    def reopen_log(self, config: LogConfig) -> ChangeLog:
        """The log at `config.path`, new or as it was left."""
        raise NotImplementedError

    @asynccontextmanager
    async def reopened(self, folder: Path) -> AsyncGenerator[ChangeLog]:
        """The log in `folder`, open here."""
        config = LogConfig(path=folder / "log", free_bytes_min=0)
        log = self.reopen_log(config)
        try:
            yield log
        finally:
            await log.close()

    @pytest.mark.slow
    async def test_what_was_acknowledged_survives_kill_9_and_nothing_is_torn(
        self, tmp_path: Path
    ) -> None:
        """P4, invariants 1 and 2: after every kill the log is dense, its commits are whole, each
        source stands at its last durable commit, and nothing acknowledged is missing."""
        seed = random.randrange(1 << 32)
        sys.stdout.write(f"seed {seed}\n")
        random_ = random.Random(seed)
        for kill in range(self.kills):
            acknowledged = self._run_and_kill(tmp_path, seed + kill, random_)
            async with self.reopened(tmp_path) as log:
                entries = await read_all(log)
                require_whole_commits(entries)
                for source in SOURCES:
                    position = int(await log.position(source) or 0)
                    assert position >= acknowledged[source], "acknowledged, and lost"
                    assert _own(entries, source) == _expected(source, position)

    async def test_what_was_being_staged_is_dropped_and_sent_again(self, tmp_path: Path) -> None:
        """S14: an unfinished commit leaves nothing behind, and takes nothing with it."""
        rows = changes("a", "1", 300, bytes_=9_000)
        async with self.reopened(tmp_path) as log:
            await log.append([Fragment(source="b", events=changes("b", "1", 9, bytes_=9_000))])
            await log.append([Fragment(source="a", events=rows)])
            await log.append([Commit(source="b", position="1")])
        async with self.reopened(tmp_path) as log:
            for start in range(0, 300, 100):
                await log.append([Fragment(source="a", events=rows[start : start + 100])])
            await log.append([Commit(source="a", position="1")])
            for beat in range(30):
                await log.append([Commit(source="b", position=f"1.{beat}")])
            entries = await read_all(log)
            require_whole_commits(entries)
            ids = [seen(entry).document_id for entry in entries]
            assert ids == [f"b/1/{n}" for n in range(9)] + [f"a/1/{n}" for n in range(300)]

    async def test_a_log_closed_and_opened_again_is_the_same_log(self, tmp_path: Path) -> None:
        async with self.reopened(tmp_path) as log:
            for number in range(1, 30):
                await log.append(steps_of("a", number))
            bounds, sources = await log.bounds(), await log.sources()
            entries = await read_all(log)
        async with self.reopened(tmp_path) as log:
            assert await log.bounds() == bounds
            assert await log.sources() == sources
            assert await read_all(log) == entries

    def _run_and_kill(self, folder: Path, seed: int, random_: random.Random) -> Counter[str]:
        """What the child had acknowledged when it was killed, by source."""
        contract = type(self)
        child = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "penstock.testing.contracts.crash_child",
                f"{contract.__module__}:{contract.__qualname__}",
                str(folder),
                str(seed),
            ],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert child.stdout is not None
        acknowledged: Counter[str] = Counter()
        with child.stdout:
            try:
                for _ in range(random_.randrange(1, 60)):
                    self._note(child.stdout.readline(), acknowledged)
            finally:
                child.send_signal(signal.SIGKILL)
            # What was said before the kill counts too.
            for line in child.stdout:
                self._note(line, acknowledged)
        child.wait()
        return acknowledged

    def _note(self, line: bytes, acknowledged: Counter[str]) -> None:
        assert line.endswith(b"\n"), "the child died by itself"
        source, number = line.decode().split()
        acknowledged[source] = max(acknowledged[source], int(number))


def _own(entries: Sequence[Entry], source: str) -> list[str]:
    return [entry.event.event_id for entry in entries if entry.event.source == source]


def _expected(source: str, position: int) -> list[str]:
    """The event ids of a source's first `position` commits."""
    return [
        event.event_id
        for number in range(1, position + 1)
        for event in changes(source, str(number), _rows(source, number)[0])
    ]
