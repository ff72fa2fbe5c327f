"""Retention by bytes counts what can be read, not what is being staged or was dropped."""

from pathlib import Path

import pytest

from penstock import kv
from penstock.event import Commit, Fragment
from penstock.log import LmdbLog, LogConfig
from penstock.log.layout import DATABASES, ENTRIES
from penstock.testing.contracts.entries import changes, read_all

_LIMIT = 8 << 20
_ROWS = 5_000


async def fill(log: LmdbLog) -> None:
    """About 6.5 MB, well under the limit."""
    for number in range(_ROWS // 100):
        position = str(number)
        await log.append(
            [Commit(source="b", position=position, events=changes("b", position, 100, bytes_=1000))]
        )


async def stage(log: LmdbLog, *, rows: int = 6_000, bytes_: int = 1_000) -> None:
    """About 7 MB, which together with the entries is over the limit."""
    for start in range(0, rows, 100):
        events = changes("a", "1", 100, start=start, bytes_=bytes_)
        await log.append([Fragment(source="a", events=events)])


async def settle(log: LmdbLog) -> None:
    """Give retention more steps than there are blocks."""
    for beat in range(100):
        await log.append([Commit(source="beat", position=str(beat))])


def pages_bytes(path: Path) -> int:
    """What the entries of a log take up in its file."""
    with kv.open_env(path, create=False) as env:
        env.databases(DATABASES, create=False)
        with env.read() as txn:
            stat = txn.stat(env[ENTRIES])
    return stat["psize"] * (stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"])


def config(path: Path) -> LogConfig:
    return LogConfig(path=path, free_bytes_min=0, retention=None, retention_bytes=_LIMIT)


@pytest.mark.slow
async def test_an_abandoned_commit_pushes_nothing_out_of_the_log(tmp_path: Path) -> None:
    """P23, S14: its pages are still in the file for a while, and are not the log's."""
    async with LmdbLog(config(tmp_path)) as log:
        await fill(log)
        await stage(log)
        await log.abandon("a")
        await settle(log)
        assert (await log.bounds()).trimmed == 0
        assert len(await read_all(log)) == _ROWS


@pytest.mark.slow
async def test_what_a_dead_writer_left_unfinished_pushes_nothing_out_of_the_log(
    tmp_path: Path,
) -> None:
    """P23, S14: as after kill -9, when the unfinished commit's pages wait to be removed."""
    async with LmdbLog(config(tmp_path)) as log:
        await fill(log)
        await stage(log)
        assert (await log.bounds()).trimmed == 0
    async with LmdbLog(config(tmp_path)) as log:
        await settle(log)
        assert (await log.bounds()).trimmed == 0
        assert len(await read_all(log)) == _ROWS


@pytest.mark.slow
async def test_pages_that_staged_blocks_only_half_fill_push_nothing_out(tmp_path: Path) -> None:
    """P23, S14: the last page of a staged block is mostly empty, and a page all the same."""
    free = config(tmp_path).model_copy(update={"retention_bytes": None})
    async with LmdbLog(free) as log:
        await fill(log)
    tight = free.model_copy(update={"retention_bytes": pages_bytes(tmp_path) + (128 << 10)})
    async with LmdbLog(tight) as log:
        await stage(log, rows=10_000, bytes_=2_000)
        await settle(log)
        assert (await log.bounds()).trimmed == 0


@pytest.mark.slow
async def test_retention_by_bytes_goes_on_once_the_dropped_pages_are_gone(tmp_path: Path) -> None:
    """P23: they only delay it."""
    async with LmdbLog(config(tmp_path)) as log:
        await stage(log)
        await log.abandon("a")
        await fill(log)
        for number in range(_ROWS // 100, _ROWS // 50):
            events = changes("b", str(number), 100, bytes_=1000)
            await log.append([Commit(source="b", position=str(number), events=events)])
        await settle(log)
        assert 0 < (await log.bounds()).trimmed < _ROWS
