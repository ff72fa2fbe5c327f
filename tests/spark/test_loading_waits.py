"""A first load that has to wait, or is let go, or finds its tables older than they were."""

import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from penstock.errors import SourceUnavailableError
from penstock.ports import Listing
from penstock.spark.loading import load
from penstock.spark.loading.parts import OPEN, READ, UNSPLIT, Part, Plan
from penstock.spark.loading.reading import PartRows
from tests.flight.blocks import BlockLog
from tests.spark.tables import put, schema_event
from tests.spark.test_loading_steps import World, key


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = World(tmp_path / "lake", {1: 10, 2: 20, 3: 30}, monkeypatch)
    yield made
    made.load.close()
    made.server.stop()


def test_that_nothing_was_there_is_read_as_any_row_is() -> None:
    plan = Plan(parts=(Part(database="db", collection="orders"),)).with_collections(["lines"])
    for one in plan.of(UNSPLIT):
        plan = plan.split(one, Listing(ranges=(), read_at="7"))
    assert not plan.complete, "the log may not have told what was before the listings"
    assert {one.read_at for one in plan.of(READ)} == {"7"}
    assert len(plan.of(READ)) == 2
    assert plan.passed().complete


def test_a_collection_that_gets_another_name_between_two_listings_is_not_lost(
    world: World,
) -> None:
    """S10: it was in none of them, and the log has not told of the rename yet."""
    world.source.missing = {"orders"}
    world.until(lambda: not world.parts(UNSPLIT))
    world.source.missing = {"lines"}  # at the source: db.lines -> db.orders
    world.until(lambda: not world.parts(UNSPLIT, "lines"))
    for _ in range(6):
        world.step()
    assert not world.is_complete()
    world.stream(schema_event("rename", collection="lines", to={"db": "db", "coll": "orders"}))
    world.told(position=1000)
    world.until(world.is_complete)
    assert world.table() == {key(1): 10, key(2): 20, key(3): 30}


def test_once_a_load_does_not_wait_for_ever_for_a_source_that_is_not_captured(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "_STILL_SECONDS", 0.0)
    world.log.sources = []
    with pytest.raises(SourceUnavailableError, match=r"is not captured.*start the pipeline again"):
        world.until(lambda: False, once=True)


@pytest.mark.slow
def test_once_a_load_does_not_wait_for_ever_for_a_capture_that_has_halted(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.until(lambda: not world.parts(UNSPLIT) and not world.parts(UNSPLIT, "lines"))
    world.until(lambda: not world.parts(OPEN) and not world.parts(OPEN, "lines"))
    for _ in range(6):
        world.step(once=True)
    monkeypatch.setattr(load, "_STILL_SECONDS", 0.0)
    with pytest.raises(SourceUnavailableError, match="is captured no further"):
        world.until(lambda: False, once=True)
    world.told(position=1000)
    world.until(world.is_complete, once=True)


def test_a_source_that_is_away_for_hours_is_waited_for(world: World) -> None:
    away = SourceUnavailableError("it is away")
    begun = time.monotonic()
    for _ in range(1100):
        world.load._failed(away, once=False)  # pyright: ignore[reportPrivateUsage]
    again = world.load._not_before  # pyright: ignore[reportPrivateUsage]
    assert begun + 5 <= again <= time.monotonic() + 10


def test_a_load_that_waits_for_capture_says_so(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "_STILL_SECONDS", 0.0)
    world.log.sources = []
    with capture_logs() as logs:
        for _ in range(4):
            world.step()
    assert "first load waits for capture" in {one["event"] for one in logs}


@pytest.mark.slow
def test_a_table_that_was_restored_from_before_is_known_where_waves_share_a_place(
    world: World,
) -> None:
    world.until(lambda: world.parts(READ))
    world.load.close()
    shutil.copytree(world.path / "orders", world.path / "backup")
    world.start()
    world.until(lambda: not world.parts(OPEN) and not world.parts(OPEN, "lines"))
    assert len(world.table()) == 3
    world.load.close()
    shutil.rmtree(world.path / "orders")
    shutil.move(world.path / "backup", world.path / "orders")
    assert len(world.table()) < 3
    world.start()
    assert world.parts(UNSPLIT)
    world.told(position=1000)
    world.until(world.is_complete)
    assert world.table() == {key(1): 10, key(2): 20, key(3): 30}


def test_rows_that_the_stream_had_put_are_read_where_their_table_is_gone(world: World) -> None:
    """Nothing was written for their ranges, for the log told of them; and it may be trimmed."""
    world.until(lambda: world.parts(OPEN) and not world.parts(UNSPLIT, "lines"))
    while world.parts(OPEN):
        world.reading()
        world.stream(*(put(number, n=number * 10) for number in (1, 2, 3)))
        world.step()
    assert {one.sequence for one in world.parts(READ)} == {-1}
    world.load.close()
    shutil.rmtree(world.path / "orders")
    world.config = world.config.model_copy(update={"start": "oldest"})
    world.start()
    assert world.parts(UNSPLIT)


def test_where_nothing_was_there_nothing_is_read_again(world: World) -> None:
    world.source.rows.clear()
    world.until(lambda: not world.parts(UNSPLIT) and not world.parts(UNSPLIT, "lines"))
    world.load.close()
    world.start()
    assert not world.parts(UNSPLIT)
    assert not world.parts(OPEN)


def test_what_is_read_is_let_go_whenever_its_job_begins(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that begins right after one word to end finds another."""
    world.until(lambda: world.parts(OPEN) and not world.parts(UNSPLIT, "lines"))
    begun, words = threading.Event(), threading.Semaphore(0)

    def reads(*_: object, **__: object) -> list[PartRows]:
        begun.set()
        for _word in range(3):
            words.acquire()
        raise SourceUnavailableError("shop: let go")

    monkeypatch.setattr(load, "read_parts", reads)
    context: Any = world.load._spark.sparkContext  # pyright: ignore[reportPrivateUsage]

    def cancel(_: str) -> None:
        words.release()

    context.cancelJobGroup = cancel
    world.step()
    begun.wait()
    world.load.close()


def test_a_load_that_is_closed_begins_no_job(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.until(lambda: world.parts(OPEN) and not world.parts(UNSPLIT, "lines"))
    asked: list[object] = []

    def reads(*given: object, **_: object) -> list[PartRows]:
        asked.append(given)
        return []

    monkeypatch.setattr(load, "read_parts", reads)
    world.load.close()
    own: Any = world.load
    own._next(own._plan, 1, world.standing.progress.log_id)
    assert not asked


def test_the_head_of_another_log_says_nothing(world: World) -> None:
    world.until(lambda: not world.parts(UNSPLIT) and not world.parts(UNSPLIT, "lines"))
    world.until(lambda: not world.parts(OPEN) and not world.parts(OPEN, "lines"))
    other = BlockLog(log_id=world.log.log_id + 1)
    world.told(position=1000)
    own: Any = world.load
    told = own._next(own._plan, 1, world.log.log_id)
    assert isinstance(told, load.Told)
    assert isinstance(own._next(own._plan, 1, other.log_id), load.Waiting)
