"""Where an answer begins is found in an archive as in its log, and not sought there for ever."""

import random
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from penstock.archive import writing
from penstock.errors import HistoryUnknownError
from penstock.event import Commit
from penstock.log import LmdbLog
from penstock.log.tiered import TieredLog
from penstock.serve.captures.service import CaptureService
from penstock.subscribe.captures import Since
from penstock.subscribe.captures.rationed import Rationed
from penstock.subscribe.captures.since import resolve
from penstock.testing.contracts.capturing import changed, committed, told
from penstock.wire import Block
from tests.archive.logs import archiver, fill, log_config
from tests.captures import graphql
from tests.captures.sockets import captured_by, configured, get

pytestmark = pytest.mark.slow

LEAST = 1 << 20
"""Of scan_bytes_max."""


class Counting(TieredLog):
    """Counts what is read of the archive, as blocks and of its files."""

    def __init__(self, log: LmdbLog, path: str) -> None:
        super().__init__(log, path, folder=log.path)
        self._live = log
        self.blocks = self.files = 0

    async def read(
        self, *, after: int, until: int | None = None, bytes_max: int = 1 << 20
    ) -> list[Block]:
        found = await super().read(after=after, until=until, bytes_max=bytes_max)
        if after < self._live.bounds_now().trimmed:
            self.blocks += sum(block.nbytes for block in found)
        return found

    async def calm(self, *, after: int, timestamp: int, bytes_max: int) -> tuple[int, int]:
        found = await super().calm(after=after, timestamp=timestamp, bytes_max=bytes_max)
        self.files += found[1]
        return found


@pytest.fixture
async def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[LmdbLog]:
    monkeypatch.setattr(writing, "_GROUP_BYTES", 40_000)
    async with LmdbLog(log_config(tmp_path)) as opened:
        yield opened


@pytest.fixture
async def past(log: LmdbLog, tmp_path: Path) -> AsyncGenerator[Counting]:
    made = Counting(log, str(tmp_path / "archive"))
    yield made
    await made.close()


def large(count: int, *, first: Commit | None = None) -> list[Commit]:
    """Commits of 20 KB, which no compression makes less."""
    of = random.Random(1)
    texts = (of.randbytes(10_000).hex() for _ in range(count))
    found = [
        committed(changed(at, document={"_id": at, "text": text}))
        for at, text in enumerate(texts, start=1)
    ]
    return found if first is None else [first, *found]


async def asked_of(address: str, path: str) -> tuple[int, dict[str, Any]]:
    async with get(address, path) as answer:
        return answer.status, (await answer.body())["error"]


async def test_no_more_of_an_archive_is_sought_through_than_may_be(
    log: LmdbLog, past: Counting, tmp_path: Path
) -> None:
    """By name or by time, in pages and for documents, over REST and GraphQL."""
    for commit in large(300):
        await log.append([commit])
    work = archiver(log, tmp_path, range_bytes=LEAST)
    work.step()
    await log.trim(290)
    archived = work.archived
    assert archived is not None
    assert archived.bytes > 2 * LEAST
    config = configured(scan_bytes_max=LEAST)
    asked = CaptureService(log, lambda: config, past=past)
    late = "2024-01-01T00:00:00Z"
    async with captured_by(asked) as address, graphql.graphql_server(asked) as queries:
        for path in (
            "changes?sinceTransaction=nosuch",
            f"changes?sinceTimestamp={late}",
            f"entities/orders/3?asOf={late}",
        ):
            past.blocks = past.files = 0
            status, said = await asked_of(address, f"/rest/shop.db/{path}")
            assert (status, said["code"]) == (410, "history.unknown")
            assert "scan_bytes_max" in said["message"]
            assert LEAST <= past.blocks + past.files < LEAST + 100_000
        query = 'query { history(catalog: "shop", since: %s) { pageInfo { endCursor } } }'
        for since in ('{transactionId: "nosuch"}', f'{{timestamp: "{late}"}}'):
            (error,) = (await graphql.asked(queries, query % since))["errors"]
            assert error["extensions"]["code"] == "history.unknown"


async def test_what_is_read_as_it_is_after_a_gap_is_counted_too(
    log: LmdbLog, past: Counting, tmp_path: Path
) -> None:
    """Behind a gap every entry is looked at: it is told only if nothing older follows."""
    gap = committed(structs.replace(told(1, "gap"), source="crm", event_id="crm"))
    for commit in large(200, first=gap):
        await log.append([commit])
    archiver(log, tmp_path, range_bytes=LEAST).step()
    await log.trim(190)
    seeking = Rationed(past, trimmed=log.bounds_now().trimmed, bytes_max=LEAST)
    with pytest.raises(HistoryUnknownError, match="of the archive"):
        await resolve(seeking, Since(timestamp=1_704_067_200_000))
    assert LEAST <= past.blocks + past.files < LEAST + 100_000
    assert past.blocks > 10 * past.files


@pytest.mark.parametrize("seed", range(2))
async def test_a_time_is_found_in_an_archive_where_it_was_found_in_the_log(
    log: LmdbLog, past: Counting, tmp_path: Path, seed: int
) -> None:
    """Whatever gaps there are, wherever retention stands."""
    await fill(log, seed=seed, commits=25)
    head = log.bounds_now().head
    times = [1_700_000_000_000 + seed * 100_000 + more for more in range(-1, head + 60, 7)]
    times += [0, 1_700_000_000_000, 1_700_000_000_001]
    expected = [await resolve(log, Since(timestamp=time)) for time in times]
    archiver(log, tmp_path, range_bytes=120_000).step()
    for trimmed in (head // 3, head - 20):
        await log.trim(trimmed)
        bounds = log.bounds_now()
        assert bounds.trimmed
        for time, begins in zip(times, expected, strict=True):
            seeking = Rationed(past, trimmed=bounds.trimmed, bytes_max=1 << 30)
            assert await resolve(seeking, Since(timestamp=time)) == begins
    assert past.files
