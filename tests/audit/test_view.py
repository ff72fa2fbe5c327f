"""`penstock audit view`: what there was, then what comes; nothing twice, nothing missing."""

import json
import queue
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.audit.filters import Filters
from penstock.audit.following import Follower
from penstock.audit.trail import Trail
from penstock.errors import AuditError
from tests.audit.commands import configured
from tests.audit.support import commit_of, marker, row, steps, trail_of, write, writer_of
from tests.children import Child
from tests.cli.service import COMMAND, penstock
from tests.waiting import PATIENCE_SECONDS
from tests_support.servers import MongoReplicaSet

pytestmark = pytest.mark.server


class Watching:
    """A follower in a thread of its own."""

    def __init__(self, trail: Trail, filters: Filters, *, history: int) -> None:
        self.stopping = threading.Event()
        self.outages: queue.Queue[bool] = queue.Queue()
        self.seen: queue.Queue[int | BaseException | None] = queue.Queue()
        self.streams = False
        self._follower = Follower(
            trail,
            filters,
            stopping=self.stopping,
            on_outage=self.outages.put,
            poll_seconds=0.05,
        )
        self._history = history
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            with self._follower as follower:
                for old in follower.history(self._history):
                    self.seen.put(old["at"])
                for new in follower.records():
                    self.streams = follower.streams
                    self.seen.put(None if new is None else new["at"])
        except BaseException as error:
            self.seen.put(error)

    def until(self, last: int) -> list[int]:
        """What is seen up to the place `last`."""
        found: list[int] = []
        while not found or found[-1] != last:
            one = self.seen.get(timeout=PATIENCE_SECONDS)
            if isinstance(one, BaseException):
                raise one
            if one is not None:
                found.append(one)
        return found

    def idle(self) -> None:
        """Wait until it has seen all, and waits."""
        while (one := self.seen.get(timeout=PATIENCE_SECONDS)) is not None:
            assert isinstance(one, int)


@contextmanager
def watching(
    trail: Trail, filters: Filters | None = None, *, history: int = 20
) -> Generator[Watching]:
    watcher = Watching(trail, filters or Filters(), history=history)
    watcher.thread.start()
    try:
        yield watcher
    finally:
        watcher.stopping.set()
        watcher.thread.join()


def test_history_and_what_comes_meet_without_a_hole(any_trail: Trail) -> None:
    """A23: all rows are of one second, and are written while the watcher begins."""
    same = {"timestamp": 1_700_000_000_000}
    write(any_trail, commit_of(1, 30, **same))
    writer = writer_of(any_trail)
    with watching(any_trail, history=5) as watcher:
        for first in range(31, 131, 5):
            writer.write(steps(commit_of(first, 5, **same)), marker=marker)
        found = watcher.until(130)
    assert found == list(range(found[0], 131))
    assert len(found) >= 5
    has_streams = any_trail.has_transactions()
    assert watcher.streams is has_streams, "a change stream where there are any"


class Overtaken:
    """The collection of heads, behind whose first answer something is written at once."""

    def __init__(self, trail: Trail, act: Callable[[], object]) -> None:
        self._heads = trail.heads
        self._act: Callable[[], object] | None = act

    def __getattr__(self, name: str) -> Any:
        return getattr(self._heads, name)

    def find_one(self, *arguments: Any, **options: Any) -> Any:
        found = self._heads.find_one(*arguments, **options)
        act, self._act = self._act, None
        if act is not None:
            act()
        return found


@pytest.mark.parametrize("history", [2, 20])
def test_what_is_added_while_the_history_is_read_is_shown_once(
    any_trail: Trail, history: int, mongo_database: str
) -> None:
    """A23: between the head that is read and the records that are."""
    write(any_trail, commit_of(1, 5))
    uri = any_trail.config.uri.get_secret_value()
    with closing(trail_of(uri, mongo_database)) as other:
        overtaken: Any = Overtaken(any_trail, lambda: write(other, commit_of(6, 5)))
        any_trail.heads = overtaken
        with watching(any_trail, history=history) as watcher:
            found = watcher.until(10)
    assert found == list(range(max(1, 6 - history), 11))


def test_no_half_of_a_commit_is_shown(any_trail: Trail) -> None:
    writer = writer_of(any_trail)
    writer.write(steps(commit_of(1, 3)), marker=marker)
    with watching(any_trail) as watcher:
        watcher.idle()
        *parts, end = steps(commit_of(4, 20), events_max=4)
        for part in parts:
            writer.write([part], marker=marker)
            watcher.idle()
        assert watcher.seen.empty() or watcher.seen.get() is None
        writer.write([end], marker=marker)
        assert watcher.until(23) == list(range(4, 24))


def test_a_filter_holds_for_what_was_and_for_what_comes(any_trail: Trail) -> None:
    write(any_trail, commit_of(1, 10))
    with watching(any_trail, Filters(operations=("d",)), history=3) as watcher:
        watcher.idle()
        write(any_trail, [row(11, after={"id": 11}), row(12, before={"id": 11}), *commit_of(13, 2)])
        assert watcher.until(12) == [12]


def test_a_trail_that_was_not_begun_is_waited_for(any_trail: Trail) -> None:
    with watching(any_trail) as watcher:
        watcher.idle()
        write(any_trail, commit_of(1, 3))
        assert watcher.until(3) == [1, 2, 3]


def test_a_trail_that_was_begun_anew_is_said_to_be(any_trail: Trail) -> None:
    write(any_trail, commit_of(1, 5))
    with watching(any_trail) as watcher:
        assert watcher.until(5) == [1, 2, 3, 4, 5]
        any_trail.heads.update_one({"_id": "shop"}, {"$set": {"at": 2}})
        with pytest.raises(AuditError, match="begun anew"):
            watcher.until(6)


@pytest.mark.slow
def test_a_server_that_was_away_costs_nothing(start_mongo: Callable[..., MongoReplicaSet]) -> None:
    """A23: the watcher outlives a kill with -9, and shows what was written meanwhile."""
    server = start_mongo()
    with closing(trail_of(server.uri, "audit", answer_seconds=2)) as trail:
        write(trail, commit_of(1, 3))
        with watching(trail) as watcher:
            assert watcher.until(3) == [1, 2, 3]
            watcher.idle()
            server.kill(0)
            assert watcher.outages.get(timeout=PATIENCE_SECONDS) is True
            server.restart(0)
            server.primary_index()
            write(trail, commit_of(4, 3))
            assert watcher.until(6) == [4, 5, 6]
            assert watcher.outages.get(timeout=PATIENCE_SECONDS) is False


# --- the command ------------------------------------------------------------------------------


@contextmanager
def viewing(*options: str) -> Generator[Iterator[str]]:
    with Child(*COMMAND, "audit", "view", "trail", *options) as process:
        yield iter(process.line, "")
        process.stop()


def test_the_command_shows_the_last_records_and_then_each_that_comes(
    tmp_path: Path, any_trail: Trail
) -> None:
    config = configured(tmp_path, any_trail)
    write(any_trail, commit_of(1, 10))
    with viewing("--config", config, "--json", "--history", "3", "--limit", "6") as lines:
        seen = [json.loads(next(lines))["at"] for _ in range(3)]
        write(any_trail, commit_of(11, 4))
        seen += [json.loads(line)["at"] for line in lines]
    assert seen == [8, 9, 10, 11, 12, 13]


def test_the_command_shows_lines_to_people(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, trail: Trail
) -> None:
    config = configured(tmp_path, trail, tz="Europe/Berlin")
    write(trail, commit_of(1, 5))
    done = penstock(capsys, "audit", "view", "trail", "--config", config, "-n", "2", "--limit", "2")
    assert done.code == 0, done.err
    header, *lines = done.out.splitlines()
    assert header.startswith("TS(Europe/Berlin)")
    assert ["id:→4" in lines[0], "id:→5" in lines[1], len(lines)] == [True, True, 2]
    wrong = penstock(capsys, "audit", "view", "trail", "--config", config, "--since", "x")
    assert (wrong.code, "--since" in wrong.err) == (2, True)
    wrong = penstock(capsys, "audit", "view", "trail", "--config", config, "--full", "--wide")
    assert (wrong.code, "--full has the whole screen" in wrong.err) == (2, True)
