"""A line that carries little: copies and large transactions come through it, if slowly."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pymongo import MongoClient

from penstock.sources.mongodb.pace import Pace
from penstock.testing.faults import CutProxy
from tests.mongodb.support import Reading, reading
from tests_support.servers import MongoReplicaSet

Client = MongoClient[dict[str, Any]]
BYTES, DOCUMENTS, BYTES_PER_SECOND = 50_000, 40, 1_000_000
IMPATIENT: dict[str, Any] = {"heartbeat_seconds": 0.1, "heartbeat_deadline_seconds": 0.2}
"""A fifth of a second: four documents come in it."""


@asynccontextmanager
async def slowly(
    mongo: MongoReplicaSet, database: str, **options: Any
) -> AsyncGenerator[tuple[CutProxy, Reading]]:
    host, port = mongo.addresses[0].split(":")
    async with CutProxy(host, int(port)) as proxy:
        uri = f"mongodb://127.0.0.1:{proxy.port}/?directConnection=true"
        async with reading(uri, database=database, **{**IMPATIENT, **options}) as read:
            yield proxy, read


@pytest.mark.slow
async def test_a_copy_over_a_slow_line_asks_for_what_the_line_carries(
    mongo: MongoReplicaSet, mongo_client: Client, mongo_database: str
) -> None:
    """All of it would take two seconds, and comes in no single answer."""
    rows = [{"_id": number, "v": "x" * BYTES} for number in range(DOCUMENTS)]
    mongo_client[mongo_database]["t"].insert_many(rows)
    async with slowly(mongo, mongo_database, start="snapshot") as (proxy, read):
        proxy.slow(BYTES_PER_SECOND)
        await read.until(lambda r: any(e.operation == "snapshot_completed" for e in r.events))
    assert [change.document_id for change in read.changes] == [str(n) for n in range(DOCUMENTS)]
    sizes = [len(commit.events) for commit in read.commits]
    assert max(sizes) < DOCUMENTS


@pytest.mark.slow
async def test_a_transaction_comes_over_a_line_that_is_slower_than_the_deadline(
    mongo: MongoReplicaSet, mongo_client: Client, mongo_database: str
) -> None:
    """Each of its answers takes longer, and none of them is told before the last: so patience is
    kept from one try to the next."""
    things = mongo_client[mongo_database]["t"]
    things.insert_one({"_id": "before"})
    async with slowly(mongo, mongo_database, batch_events_max=8) as (proxy, read):
        await read.next()
        proxy.slow(BYTES_PER_SECOND)
        with mongo_client.start_session() as session, session.start_transaction():
            rows = [{"_id": number, "v": "x" * BYTES} for number in range(DOCUMENTS)]
            things.insert_many(rows, session=session)
        await read.until_events(DOCUMENTS)
    (commit,) = read.commits
    assert len(commit.events) == DOCUMENTS
    assert read.failures


@given(
    st.integers(1, 5000),
    st.lists(st.tuples(st.integers(0, 5000), st.floats(0, 100)) | st.none(), max_size=30),
)
def test_a_chunk_is_never_empty_nor_larger_than_it_may_be(
    documents_max: int, chunks: list[tuple[int, float] | None]
) -> None:
    pace = Pace(documents_max=documents_max, seconds=5)
    for chunk in chunks:
        before = pace.documents
        if chunk is None:
            pace.failed()
            assert pace.documents < before or before == 1
        else:
            pace.took(chunk[0], seconds=chunk[1])
            assert pace.documents <= 2 * before
        assert 1 <= pace.documents <= documents_max


def test_a_chunk_takes_half_a_deadline_at_most_once_the_line_is_known() -> None:
    pace = Pace(documents_max=2000, seconds=5)
    pace.took(2000, seconds=20)
    assert pace.documents == 500
    pace.took(500, seconds=0.5)
    assert pace.documents == 1000
    pace.took(1000, seconds=0)
    assert pace.documents == 2000
