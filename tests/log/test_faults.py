"""The disk fails under the writer: nothing is torn, repeated or reordered, and it goes on after."""

import asyncio
import errno
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lmdb
import pytest

from penstock import kv
from penstock.errors import LogCorruptError, LogError, LogFullError
from penstock.event import Commit, Fragment
from penstock.kv import Env
from penstock.log import LmdbLog, LmdbLogReader, LogConfig
from penstock.log.layout import ENTRIES, entry_key
from penstock.log.trimming import Trimmer
from penstock.testing.contracts.entries import changes, read_all, read_seen, require_whole_commits
from tests.waiting import PATIENCE_SECONDS, patience, until


def io_error() -> lmdb.Error:
    error = lmdb.Error("the disk failed")
    vars(error)["code"] = errno.EIO
    return error


class FailingDisk:
    """LMDB on a disk whose next writes fail as told: no disk fails so on demand."""

    def __init__(self, real: lmdb.Environment) -> None:
        self._real = real
        self.failures: list[lmdb.Error] = []
        """For the next write transactions, before anything is written."""
        self.kept_failures: list[lmdb.Error] = []
        """For the next write transactions, after all was written: nobody can tell."""

    def begin(self, *, write: bool = False) -> Any:
        if not write:
            return self._real.begin()
        if self.failures:
            raise self.failures.pop(0)
        if self.kept_failures:
            return self._kept()
        return self._real.begin(write=True)

    @contextmanager
    def _kept(self) -> Generator[Any]:
        with self._real.begin(write=True) as txn:
            yield txn
        raise self.kept_failures.pop(0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


@pytest.fixture
def log_on(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[LmdbLog], FailingDisk]]:
    """Puts a failing disk under an open log."""
    envs: list[Env] = []

    def under(log: LmdbLog) -> FailingDisk:
        env = kv.open_env(log.path, create=False)
        envs.append(env)
        disk = FailingDisk(vars(env)["_lmdb"])
        monkeypatch.setattr(env, "_lmdb", disk)
        return disk

    yield under
    for env in envs:
        env.close()
    monkeypatch.undo()


LogOn = Callable[[LmdbLog], FailingDisk]


def config(path: Path) -> LogConfig:
    return LogConfig(path=path, free_bytes_min=0)


def commit(source: str, number: int) -> Commit:
    position = str(number)
    return Commit(source=source, position=position, events=changes(source, position, 2))


async def test_abandoned_fragments_never_appear_though_the_disk_refused_every_write(
    tmp_path: Path, log_on: LogOn
) -> None:
    """P5, S14: a new session must not publish what the one before it left half staged."""
    async with LmdbLog(config(tmp_path)) as log:
        disk = log_on(log)
        await log.append([Fragment(source="a", events=changes("a", "1", 50, bytes_=9_000))])
        disk.failures = [io_error() for _ in range(100)]
        await log.abandon("a")
        disk.failures.clear()
        await log.append([Commit(source="a", position="0")])
        assert (await log.bounds()).head == 0
        await log.append([commit("a", 1)])
        require_whole_commits(await read_all(log))
        assert len(await read_all(log)) == 2


async def test_abandoning_in_a_closed_log_is_an_error(tmp_path: Path) -> None:
    log = LmdbLog(config(tmp_path))
    await log.append([Fragment(source="a", events=changes("a", "1", 5))])
    await log.close()
    with pytest.raises(LogError):
        await log.abandon("a")


async def test_a_staged_commit_is_not_finished_across_a_new_start_of_lmdb(
    tmp_path: Path, log_on: LogOn
) -> None:
    """P5, S14: its source must send it again from its beginning, and is told so."""
    async with LmdbLog(config(tmp_path)) as log:
        disk = log_on(log)
        await log.append([Fragment(source="a", events=changes("a", "1", 3))])
        disk.failures = [lmdb.PanicError("the meta page")]
        with pytest.raises(LogFullError):
            await log.append([commit("b", 1)])
        await log.append([commit("b", 1)])
        end = Commit(source="a", position="1", events=changes("a", "1", 1, start=3))
        for _ in range(2):
            with pytest.raises(LogFullError, match="from its start"):
                await log.append([end])
        assert await log.position("a") is None
        await log.abandon("a")
        whole = Commit(source="a", position="1", events=changes("a", "1", 4))
        await log.append([whole])
        entries = await read_all(log)
        require_whole_commits(entries)
        assert [entry.commit_rows for entry in entries] == [2, 2, 4, 4, 4, 4]


async def test_a_write_that_failed_and_was_kept_is_not_written_again(
    tmp_path: Path, log_on: LogOn
) -> None:
    """P5, invariant 2: the meta page's write fails, LMDB wants a new start, and the page is there.

    Whoever waited is told that it failed, and finds the position moved.
    """
    async with LmdbLog(config(tmp_path)) as log:
        disk = log_on(log)
        await log.append([commit("x", 1)])
        disk.kept_failures = [io_error()]
        held = asyncio.ensure_future(log.append([commit("a", 1)]))
        with pytest.raises(LogFullError):
            await held
        disk.failures = [lmdb.PanicError("the meta page")]
        batches = [log.append([commit(source, 1)]) for source in ("a", "b", "c")]
        results = await asyncio.gather(*batches, return_exceptions=True)
        assert LogFullError in {type(result) for result in results}
        for source in ("a", "b", "c"):
            await log.abandon(source)
            if await log.position(source) is None:
                await log.append([commit(source, 1)])
        entries = await read_all(log)
        require_whole_commits(entries)
        found = sorted(entry.event.event_id for entry in entries)
        expected = [event for source in "abcx" for event in commit(source, 1).events]
        assert found == sorted(event.event_id for event in expected)


async def test_a_source_that_does_not_know_that_its_position_moved_is_told(
    tmp_path: Path, log_on: LogOn
) -> None:
    """P5: the write that failed was kept, and a reader made LMDB start anew before the source."""
    async with LmdbLog(config(tmp_path)) as log:
        disk = log_on(log)
        await log.append([commit("x", 1)])
        disk.kept_failures = [io_error()]
        with pytest.raises(LogFullError):
            await log.append([commit("a", 1)])
        with kv.open_env(log.path, create=False) as env:
            disk.failures = [lmdb.PanicError("the meta page")]
            with pytest.raises(LogFullError), env.write():
                pass
        with pytest.raises(LogFullError, match="from its start"):
            await log.append([commit("a", 1)])
        await log.abandon("a")
        assert await log.position("a") == "1"
        await log.append([commit("a", 2)])
        ids = [entry.document_id for entry in await read_seen(log)]
        assert ids == ["x/1/0", "x/1/1", "a/1/0", "a/1/1", "a/2/0", "a/2/1"]


async def test_an_entry_that_is_already_there_is_damage_and_not_a_success(tmp_path: Path) -> None:
    """P5: LMDB answers an append that is out of order with False, not with an error."""
    async with LmdbLog(config(tmp_path)) as log:
        await log.append([commit("a", 1)])
        with kv.open_env(log.path, create=False) as env, env.write() as txn:
            txn.put(entry_key(1000, 1), b"from nowhere", db=env[ENTRIES])
        batches: tuple[list[Commit | Fragment], ...] = (
            [commit("a", 2)],
            [
                Fragment(source="b", events=changes("b", "1", 2)),
                Commit(source="b", position="1"),
            ],
        )
        for batch in batches:
            with pytest.raises(LogCorruptError):
                await log.append(batch)
        assert await log.position("a") == "1"


async def test_a_log_goes_on_once_lmdb_can_be_opened_again(
    tmp_path: Path, log_on: LogOn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P5: however often it cannot."""
    async with LmdbLog(config(tmp_path)) as log:
        await log.append([commit("a", 1)])
        disk = log_on(log)
        disk.failures = [lmdb.PanicError("the meta page")]
        with monkeypatch.context() as broken:

            def cannot(_: Env) -> lmdb.Environment:
                raise LogError("the disk cannot be read")

            broken.setattr(Env, "_open", cannot)
            for _ in range(3):
                with pytest.raises(LogFullError):
                    await log.append([commit("a", 2)])
            with pytest.raises(LogError):
                await log.read(after=0)
        await log.append([commit("a", 2)])
        assert len(await read_all(log)) == 4


async def test_a_failed_look_for_dead_readers_is_an_error_of_the_log(tmp_path: Path) -> None:
    async with LmdbLog(config(tmp_path)) as log:
        env = kv.open_env(log.path, create=False)
        env.close()
    with pytest.raises(LogError):
        env.reader_check()


@pytest.mark.slow
async def test_a_writer_that_died_refuses_and_never_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P5: the thread ends on a defect; appends, and who asks how capture is, are told."""
    async with LmdbLog(config(tmp_path)) as log:
        await log.append([commit("a", 1)])

        def defect(*_: object) -> bool:
            raise ZeroDivisionError

        monkeypatch.setattr(Trimmer, "wanted", defect)

        async def dies() -> None:
            await log.sources()

        async def append_until_refused() -> None:
            for number in range(2, 1000):
                await log.append([commit("a", number)])

        async with patience():
            with pytest.raises(LogError, match="writer"):
                await until(dies)
            with pytest.raises(LogError, match="writer"):
                await append_until_refused()
        assert len(await read_all(log)) == 2


async def test_a_reader_is_woken_after_a_look_at_the_log_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P31: its thread goes on, and whoever waits hears the error from a read of its own."""
    async with LmdbLog(config(tmp_path)) as log:
        failed = asyncio.Event()
        loop = asyncio.get_running_loop()
        with monkeypatch.context() as broken:

            def refuse(_: LmdbLogReader) -> int:
                loop.call_soon_threadsafe(failed.set)
                raise LogError("a read was refused")

            broken.setattr(LmdbLogReader, "_head", refuse)
            reader = LmdbLogReader(tmp_path)
            await failed.wait()
            with pytest.raises(LogError, match="a read was refused"):
                await reader.wait(after=0, timeout_seconds=PATIENCE_SECONDS)
        waiting = asyncio.ensure_future(reader.wait(after=0, timeout_seconds=PATIENCE_SECONDS))
        await log.append([commit("a", 1)])
        assert await waiting
        await reader.close()
