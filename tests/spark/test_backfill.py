"""Rows that are read from the source again come back, and newer changes win (decision 0034)."""

import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from msgspec import structs

from penstock.cli import pipeline_plan
from penstock.cli.config import load
from penstock.client.flight import LogClient
from penstock.errors import (
    BackfillRefusedError,
    ConfigError,
    PipelineChangedError,
    StreamChangedError,
)
from penstock.progress import Progress
from penstock.spark.config import TablePipelineConfig
from penstock.spark.loading.backfill import backfill
from penstock.spark.loading.parts import DONE, OPEN, READ, UNSPLIT, Plan
from penstock.spark.loading.stored import StoredPlan
from penstock.spark.run import run_pipeline
from penstock.spark.table.standing import StandingTable
from tests.cli.service import Service, penstock
from tests.seeds import seed_of
from tests.spark.drivers import once, run_once
from tests.spark.loads import Client, configured, documents, opens, writing
from tests.spark.tables import LOG_ID, change, pipeline, put, rows_of
from tests.spark.test_first_load import table_of
from tests.spark.test_loading_steps import World, key
from tests.waiting import wait_until
from tests_support.servers import MongoReplicaSet

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = {1: 10, 2: 20, 3: 30}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """All is loaded, and no driver runs."""
    made = World(tmp_path / "lake", dict(ROWS), monkeypatch)
    loaded(made)
    yield made
    made.load.close()
    made.server.stop()


def loaded(world: World) -> None:
    """A driver runs until its first load is complete."""
    world.told(position=1_000_000)
    world.until(world.is_complete)
    world.load.close()
    world.source.asked.clear()


def loaded_again(world: World) -> None:
    """The driver that was started since loads what it is to."""
    world.told(position=2_000_000)
    world.until(world.is_complete)


def again(world: World, *names: str) -> list[str]:
    return backfill("p", world.config, names, world.log.bounds_now())


def lose(world: World, collection: str, numbers: str) -> None:
    """Somebody deletes rows by hand."""
    DeltaTable(str(world.path / collection)).delete(f"_key IN ({numbers})")


@pytest.mark.slow
def test_rows_that_were_lost_come_back_and_newer_changes_win(world: World) -> None:
    lose(world, "orders", f"'{key(1)}', '{key(2)}', '{key(3)}'")
    assert again(world) == ["orders", "lines"]
    world.start()
    assert not world.is_complete()
    world.until(lambda: world.parts(OPEN) and not world.parts(UNSPLIT, "lines"))
    world.reading()
    assert {("orders", 1), ("orders", 2)} <= set(world.source.asked)
    world.stream(put(1, n=11), change(2, "delete"))
    loaded_again(world)
    assert world.table() == {key(1): 11, key(3): 30}


def test_changes_that_come_again_do_not_keep_a_lost_row_away(world: World) -> None:
    """After a crash or a reset the table has them already, and ignores them."""
    world.start()
    world.stream(put(1, n=11), change(2, "delete"), put(3, n=31))
    world.load.close()
    del world.source.rows[2]
    world.source.rows.update({1: 11, 3: 31})
    bounds = world.log.bounds_now()
    StandingTable(world.config, "p").reset(Progress(LOG_ID, 0, 0), bounds)
    lose(world, "orders", f"'{key(1)}'")
    again(world, "orders")
    world.start()
    world.until(lambda: world.parts(OPEN))
    world.reading()
    world.streamed(after=0)
    world.stream(change(3, "delete"))
    world.told(position=2_000_000)
    world.until(world.is_complete)
    assert world.table() == {key(1): 11}


@pytest.mark.slow
def test_only_the_collection_that_is_named_is_read_again(world: World) -> None:
    lose(world, "orders", f"'{key(1)}'")
    lose(world, "lines", f"'{key(1)}'")
    assert again(world, "lines") == ["lines"]
    world.start()
    loading = world.source.asked
    loaded_again(world)
    assert {name for name, _ in loading} == {"lines"}
    assert world.table("lines") == {key(number): n for number, n in ROWS.items()}
    assert set(world.table()) == {key(2), key(3)}


@pytest.mark.slow
def test_rows_that_the_source_has_no_more_stay(world: World) -> None:
    """Nobody reads that they are gone; the log said so once, and the table did not take it."""
    del world.source.rows[2]
    again(world)
    world.start()
    loaded_again(world)
    assert set(world.table()) == {key(1), key(2), key(3)}


@pytest.mark.slow
def test_a_table_that_is_gone_is_made_of_what_the_source_has(world: World) -> None:
    """The log need not reach back: only what follows the pipeline's place is read of it."""
    world.start()
    world.stream(put(1, n=11))
    world.load.close()
    world.source.rows[1] = 11
    shutil.rmtree(world.path / "orders")
    with pytest.raises(PipelineChangedError, match="orders is gone"):
        world.start()
    again(world, "orders")
    world.log.trim(1)
    world.start()
    assert world.standing.progress.sequence == 1
    loaded_again(world)
    assert world.table() == {key(1): 11, key(2): 20, key(3): 30}


@pytest.mark.slow
def test_a_collection_that_was_added_is_read_and_the_log_is_not_read_again(world: World) -> None:
    world.config = world.config.model_copy(update={"collections": ("orders", "lines", "notes")})
    with pytest.raises(PipelineChangedError, match="notes was added"):
        world.start()
    again(world, "orders")
    with pytest.raises(PipelineChangedError, match="notes was added"):
        world.start()
    assert again(world, "notes") == ["orders", "notes"]
    world.start()
    loaded_again(world)
    assert world.table("notes") == {key(number): n for number, n in ROWS.items()}


@pytest.mark.slow
def test_a_driver_that_was_there_before_cannot_undo_it(world: World) -> None:
    """It is refused what it next says of its load, and writes nothing of that."""
    again(world, "orders")
    world.start()
    world.until(lambda: world.parts(OPEN))
    again(world, "lines")
    marked = StoredPlan("p", world.config).read()
    with pytest.raises(CommitFailedError):
        world.until(world.is_complete)
    assert StoredPlan("p", world.config).read() == marked
    assert world.parts(UNSPLIT, "lines")


def test_a_driver_that_writes_at_this_moment_has_it_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, read = StoredPlan("p", world.config), StoredPlan.read
    plan = driver.read()

    def read_before_it_writes(stored: StoredPlan) -> Plan:
        found = read(stored)
        driver.write(plan, log_id=LOG_ID, sequence=0)
        return found

    with monkeypatch.context() as patched:
        patched.setattr(StoredPlan, "read", read_before_it_writes)
        with pytest.raises(BackfillRefusedError, match="wrote at the same time"):
            again(world)
    assert StoredPlan("p", world.config).read() == plan


def test_a_pipeline_that_had_no_first_load_is_given_one_by_its_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tables stay, with what the log told; what the log did not tell comes, once."""
    world = World(tmp_path / "lake", {}, monkeypatch)
    try:
        world.load.close()
        shutil.rmtree(world.path)
        config = pipeline(world.path, "orders", "lines")
        standing = StandingTable(config, "p")
        standing.start(world.log.bounds_now())
        standing.settle()
        world.source.rows |= ROWS
        world.start()
        world.stream(put(1, n=11), put(4, n=40), change(4, "delete"))
        world.source.rows[1] = 11
        loaded(world)
        assert world.table() == {key(1): 11, key(2): 20, key(3): 30}
        assert {name for name, _ in rows_of(world.path / "orders")} == {"db"}
        world.start()
        assert world.is_complete()
    finally:
        world.load.close()
        world.server.stop()


@pytest.mark.slow
def test_what_cannot_be_read_again_is_refused_and_says_why(world: World, tmp_path: Path) -> None:
    bounds = world.log.bounds_now()
    with pytest.raises(BackfillRefusedError, match=r"no collection order\..*orders, lines"):
        again(world, "order")
    everything = world.config.model_copy(update={"collections": ()})
    with pytest.raises(BackfillRefusedError, match="no collection refunds"):
        backfill("p", everything, ["refunds"], bounds)
    off = world.config.model_copy(update={"first_load": "off"})
    with pytest.raises(BackfillRefusedError, match="first_load = 'source'"):
        backfill("p", off, [], bounds)
    new = pipeline(tmp_path / "new", "orders", "lines", first_load="source")
    with pytest.raises(BackfillRefusedError, match="it is new"):
        backfill("p", new, [], bounds)
    with pytest.raises(StreamChangedError):
        backfill("p", world.config, [], structs.replace(bounds, log_id=LOG_ID - 1))
    with pytest.raises(PipelineChangedError, match="of pipeline p"):
        backfill("q", world.config, [], bounds)
    assert StoredPlan("p", world.config).read().complete


@pytest.mark.parametrize(
    ("more", "error", "said"),
    [
        ('to = "history"', BackfillRefusedError, "only tables have rows from the source"),
        ('first_load = "source"', ConfigError, "ranges of keys, which are MongoDB"),
    ],
)
def test_a_pipeline_without_rows_of_its_source_is_refused_with_what_to_do_instead(
    tmp_path: Path, more: str, error: type[Exception], said: str
) -> None:
    config = tmp_path / "penstock.toml"
    config.write_text(
        f'[sources.shop]\ntype = "script"\n[pipelines.p]\nsource = "shop"\n'
        f'collections = ["orders"]\npath = "t"\n{more}\n'
    )
    with pytest.raises(error, match=said):
        pipeline_plan.backfill("p", config=config)


_ROWS = 300
_LAST = 10_000
"""The key that is written last."""


@pytest.mark.soak
def test_what_somebody_deleted_from_a_table_is_read_from_the_source_again(
    spark: "SparkSession",
    mongo: MongoReplicaSet,
    mongo_client: Client,
    mongo_database: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Beside the stream, as a first load; and not while a driver runs."""
    database = mongo_client[mongo_database]
    for name in ("orders", "lines"):
        database[name].insert_many({"_id": key, "n": -1} for key in range(_ROWS))
    path = configured(tmp_path, mongo.uri, mongo_database)
    path.write_text(path.read_text().replace('["orders"]', '["orders", "lines"]'))
    settings = load(path)
    lake = tmp_path / "lake"
    with Service(path) as service, LogClient(service.ready["flight"]) as client:
        wait_until(lambda: client.position("shop"), "capture to begin")

        def run(stop: threading.Event | None = None) -> None:
            run_pipeline(
                "p",
                settings.pipelines["p"],
                service.ready["flight"],
                spark=spark,
                once=stop is None,
                stop=stop,
                open_source=opens(settings),
            )

        def backfill(*words: str) -> Any:
            at = ("--config", str(path), "--json", "--yes", "--endpoint", service.ready["flight"])
            return penstock(capsys, "pipeline", "backfill", "p", *words, *at)

        run()
        for name in ("orders", "lines"):
            DeltaTable(str(lake / name)).delete("n = -1")
            assert not table_of(lake / name, mongo_database)
        stop = threading.Event()
        running = threading.Thread(target=run, args=[stop])
        running.start()
        try:
            states = ("running",)
            wait_until(lambda: {one.state for one in client.pipelines()} == {*states}, "a run")
            refused = backfill()
            assert (refused.code, "it is running" in refused.err) == (7, True)
        finally:
            stop.set()
            running.join()
        done = backfill("--collection", "shop/orders")
        assert json.loads(done.out) == {"pipeline": "p", "collections": ["orders"]}
        with writing(mongo_client, mongo_database, keys=_ROWS, seed=1):
            run()
        database["orders"].insert_one({"_id": _LAST, "n": 0})
        while f'{{"_id":{_LAST}}}' not in table_of(lake / "orders", mongo_database):
            run()
    assert table_of(lake / "orders", mongo_database) == documents(mongo_client, mongo_database)
    assert not table_of(lake / "lines", mongo_database)


@pytest.mark.spark
@pytest.mark.soak
def test_a_driver_killed_while_it_reads_again_goes_on_with_the_ranges_that_are_left(
    mongo: MongoReplicaSet,
    mongo_client: Client,
    mongo_database: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    seed = seed_of("backfill")
    rows = 4 * _ROWS
    orders = mongo_client[mongo_database]["orders"]
    orders.insert_many({"_id": key, "n": -1, "text": "before"} for key in range(rows))
    path = configured(tmp_path, mongo.uri, mongo_database)
    config = load(path).pipelines["p"]
    assert isinstance(config, TablePipelineConfig)
    stored = StoredPlan("p", config)
    lake = tmp_path / "lake"
    with Service(path) as service, LogClient(service.ready["flight"]) as client:
        wait_until(lambda: client.position("shop"), "capture to begin")
        run_once(path, service.ready["flight"])
        DeltaTable(str(lake)).delete("`n` = -1")
        at = ("--config", str(path), "--json", "--yes", "--endpoint", service.ready["flight"])
        assert penstock(capsys, "pipeline", "backfill", "p", *at).code == 0
        with writing(mongo_client, mongo_database, keys=rows, seed=seed):
            with once(path, service.ready["flight"]) as first:
                first.wait_until(lambda: stored.read().of(READ), "some ranges to be read")
            assert stored.read().of(OPEN), "the driver was killed too late"
            read = stored.read().of(READ)
            run_once(path, service.ready["flight"])
        assert {(one.start, one.read_at) for one in read} <= {
            (one.start, one.read_at) for one in stored.read().of(DONE)
        }
        orders.insert_one({"_id": _LAST, "n": 0})
        while f'{{"_id":{_LAST}}}' not in table_of(lake, mongo_database):
            run_once(path, service.ready["flight"])
    assert table_of(lake, mongo_database) == documents(mongo_client, mongo_database)
