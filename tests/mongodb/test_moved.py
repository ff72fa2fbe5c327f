"""A position that is set while a copy is under way: the copy begins anew, and proves what is there.

What it told before the gap is no proof of what is there after it; going on with it would end with a
`snapshot_completed` that nobody may believe, and the copy would have to be asked for again.
"""

from pathlib import Path
from typing import Any

import pytest
from msgspec import json

from penstock.capture.lineage import above
from penstock.capture.moving import in_another_log, move
from penstock.errors import RequestError
from penstock.event import AnyEvent, ChangeEvent, SystemEvent
from penstock.log.memory import MemoryLog
from penstock.ports import Checkpoint
from penstock.sources.mongodb.positions import parse_position
from tests.mongodb.support import config, folded, stored_rows
from tests.mongodb.support import source as mongo_source
from tests.mongodb.test_again import Capturing, Client, capturing, told_deletes
from tests_support.servers import MongoReplicaSet

COPIED_IN_PART: dict[str, Any] = {"start": "snapshot", "snapshot_chunk_documents": 2}
DOCUMENTS = 300


async def positions_within_a_copy(running: Capturing) -> tuple[str, str]:
    """An earlier and a later position of a copy under way; capture is stopped then."""
    found: list[str] = []
    for rows in (4, 12):
        await running.until(
            lambda events: sum(isinstance(event, ChangeEvent) for event in events) >= rows  # noqa: B023
        )
        position = await running.log.position("shop")
        assert position is not None
        found.append(position)
    await running.stop()
    return found[0], found[1]


def snapshots(events: list[AnyEvent], operation: str) -> list[str]:
    return [
        json.decode(event.description)["snapshot"]
        for event in events
        if isinstance(event, SystemEvent) and event.operation == operation
    ]


async def test_a_copy_whose_position_was_set_by_hand_begins_anew_and_is_believed(
    mongo: MongoReplicaSet, mongo_client: Client, mongo_database: str, tmp_path: Path
) -> None:
    """P19: with deletes of what went meanwhile, and without being asked for once more."""
    database = mongo_client[mongo_database]
    database["orders"].insert_many({"_id": n} for n in range(DOCUMENTS))
    options = {"database": mongo_database, **COPIED_IN_PART}
    log = MemoryLog()
    running = Capturing(log, tmp_path, mongo.uri, **options)
    earlier, later = await positions_within_a_copy(running)
    for position in (earlier, later):
        assert parse_position(position).copying is not None
    database["orders"].delete_many({"_id": {"$lt": 3}})
    database["more"].insert_one({"_id": "made behind the copy's beginning"})
    done = await move(log, "shop", earlier, now_ms=1, adapter=running.source)
    assert done.copy == "anew"
    async with capturing(log, tmp_path, mongo.uri, **options) as again:
        events = await again.until_said("gap_closed")
        assert folded(events) == stored_rows(database, ["orders", "more"])
        assert await again.rows() == {
            "orders": {str(n) for n in range(3, DOCUMENTS)},
            "more": {"made behind the copy's beginning"},
        }
    first, second = snapshots(events, "snapshot_started")
    assert first != second
    assert snapshots(events, "snapshot_completed") == [second]
    assert {event.document_id for event in told_deletes(events)} <= {"0", "1", "2"}


async def test_a_log_above_a_published_copy_copies_anew_what_was_being_copied(
    mongo: MongoReplicaSet, mongo_client: Client, mongo_database: str, tmp_path: Path
) -> None:
    """The rows that were copied before are in the log that is gone."""
    database = mongo_client[mongo_database]
    database["orders"].insert_many({"_id": n} for n in range(DOCUMENTS))
    options = {"database": mongo_database, **COPIED_IN_PART}
    lost = MemoryLog()
    running = Capturing(lost, tmp_path / "lost", mongo.uri, **options)
    await positions_within_a_copy(running)
    bounds = lost.bounds_now()
    published = Checkpoint(
        instance="one",
        log_id=bounds.log_id,
        writer="w",
        sequence=bounds.head,
        commit=bounds.head_commit,
        check=bounds.head_check,
        sources=in_another_log(lost.sources_now(), [running.source]),
        published_at=1,
    )
    log = MemoryLog(above=above(published, configured=["shop"]))
    async with capturing(log, tmp_path / "new", mongo.uri, **options) as again:
        await again.until_said("gap_closed")
        assert await again.rows() == {"orders": {str(n) for n in range(DOCUMENTS)}}


async def test_a_copy_that_was_under_way_is_not_forgotten_by_a_position_without_one(
    mongo: MongoReplicaSet, mongo_client: Client, mongo_database: str, tmp_path: Path
) -> None:
    """`penstock snapshot` promised it. Cleared, it is given up, and that is said."""
    database = mongo_client[mongo_database]
    database["orders"].insert_many({"_id": n} for n in range(DOCUMENTS))
    options = {"database": mongo_database, **COPIED_IN_PART, "start": "now"}
    log = MemoryLog()
    running = Capturing(log, tmp_path, mongo.uri, **options)
    await running.until(lambda _: bool(log.sources_now()))
    begun = await log.position("shop")
    assert begun is not None
    assert parse_position(begun).copying is None
    await running.source.copy(["orders"], known=set())
    await positions_within_a_copy(running)
    cleared = await move(log, "shop", None, now_ms=1, adapter=running.source)
    assert cleared.copy == "dropped"
    assert cleared.before is not None
    await log.set_position("shop", cleared.before)
    done = await move(log, "shop", begun, now_ms=2, adapter=running.source)
    assert done.copy == "anew"
    async with capturing(log, tmp_path, mongo.uri, **options) as again:
        events = await again.until_said("snapshot_completed")
        assert folded(events) == stored_rows(database, ["orders"])


async def test_what_is_no_position_of_the_source_is_refused_before_anything_is_changed() -> None:
    async with mongo_source("mongodb://127.0.0.1:1") as opened:
        assert opened.config == config("mongodb://127.0.0.1:1")
        log = MemoryLog()
        with pytest.raises(RequestError, match="no position of a MongoDB source"):
            await move(log, "shop", "1:7", now_ms=1, adapter=opened)
        assert await log.position("shop") is None
        assert not opened.is_copying("1:7")
