"""Flight over the logs that are really served: the durable one, and the one in memory."""

import random
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path

import pytest

from penstock.client.flight import LogClient, ReadRequest
from penstock.errors import TrimmedError
from penstock.event import AnyEvent, Commit, Fragment
from penstock.log import LmdbLog, LogConfig, MemoryLog
from penstock.progress import Progress, parse_progress
from penstock.serve.flight import FlightServer
from tests.flight.blocks import insert

Log = LmdbLog | MemoryLog


@pytest.fixture(params=["lmdb", "memory"])
async def log(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Log]:
    log: Log = MemoryLog() if request.param == "memory" else LmdbLog(LogConfig(path=tmp_path))
    yield log
    await log.close()


def events(count: int) -> tuple[AnyEvent, ...]:
    """Of several KB each, so that a few make a block."""
    return tuple(insert(n, document={"_id": n, "text": "x" * 5000}) for n in range(count))


async def filled(log: Log, seed: int) -> list[int]:
    """Append commits of all sizes, one of them staged; the sequences at which commits end."""
    print(f"seed {seed}")
    choose = random.Random(seed)
    sizes = [choose.choice((1, 2, 5, 30)) for _ in range(25)]
    ends: list[int] = []
    for number, size in enumerate(sizes):
        staged = 120 if number == 12 else 0
        if staged:
            await log.append([Fragment(source="shop", events=events(40)) for _ in range(3)])
        await log.append([Commit(source="shop", position=str(number), events=events(size))])
        ends.append(staged + size + (ends[-1] if ends else 0))
    return ends


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_planned_and_split_reads_make_up_the_log_and_end_at_commits(
    log: Log, seed: int
) -> None:
    ends = await filled(log, seed)
    server = FlightServer(log)
    server.start()
    got: list[int | None] = []
    with LogClient(server.address) as client:
        bounds = client.bounds()
        assert bounds.head == ends[-1]
        at = Progress(bounds.log_id, 0, 0)
        while at.sequence < bounds.head:
            plan = client.plan(after=at, events_max=20, partitions_max=4)
            fitting = [end for end in ends if at.sequence < end <= at.sequence + 20]
            assert plan.to.sequence == (
                fitting[-1] if fitting else next(end for end in ends if end > at.sequence)
            )
            edges = [at.sequence, *plan.splits, plan.to.sequence]
            for low, high in pairwise(edges):
                request = ReadRequest(log_id=bounds.log_id, after=low, until=high)
                for batch in client.read(request):
                    got += batch.column("sequence").to_pylist()
            at = plan.to
    server.stop()
    assert got == list(range(1, ends[-1] + 1))


async def test_p7_the_trim_watermark_still_resumes_and_one_before_it_does_not(log: Log) -> None:
    ends = await filled(log, 7)
    server = FlightServer(log)
    server.start()
    with LogClient(server.address) as client:
        log_id = client.bounds().log_id
        before = client.marker(log_id=log_id, sequence=ends[3] - 1)
        at = client.marker(log_id=log_id, sequence=ends[3])
        await log.trim(ends[3])
        with pytest.raises(TrimmedError) as raised:
            client.plan(after=before)
        assert parse_progress(raised.value.oldest) == at
        assert client.plan(after=at).to.sequence == ends[-1]
    server.stop()
