"""What commands do with tables in a catalog alone; run by test_lake_contract.py."""

# Spark's stubs leave types open.
# pyright: reportUnknownMemberType=false

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from msgspec import structs

from penstock.client.flight import LogClient
from penstock.client.pipelines import PipelineTold
from penstock.errors import ConfigError, PipelineError
from penstock.serve.flight import FlightServer
from penstock.serve.pipelines import PipelineBook
from penstock.spark.replaying import replay_rejects
from penstock.spark.run import run_pipeline
from penstock.spark.table.lake import seen_lake
from penstock.spark.table.standing import StandingTable
from penstock.spark.verifying import verify_tables
from penstock.wire import to_arrow
from tests.cli.service import SHOP, Done, configure, penstock, spawn
from tests.flight.blocks import BlockLog
from tests.spark.catalog_place import CatalogPlace, session_of
from tests.spark.catalogs import in_catalog
from tests.spark.tables import apply, put
from tests_support.servers import DELTA

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator["SparkSession"]:
    yield from session_of(tmp_path_factory)


@pytest.fixture
def place(spark: "SparkSession") -> CatalogPlace:
    return CatalogPlace(spark)


@pytest.fixture
def log() -> BlockLog:
    log = BlockLog(block_events=50)
    log.append(
        [put(number, n=number, x=number / 2) for number in range(one, one + 4)] for one in (0, 2)
    )
    return log


@pytest.fixture
def endpoint(log: BlockLog, tmp_path: Path) -> Iterator[str]:
    book = PipelineBook(tmp_path / "consumers", log, hold_seconds=3600, hold_bytes=1 << 30)
    server = FlightServer(log, book=book)
    server.start()
    yield server.address
    server.stop()
    book.close()


def ran(place: CatalogPlace, log: BlockLog) -> None:
    """A pipeline has applied everything."""
    config = place.config()
    lake = place.lake(config)
    standing = StandingTable(config, "p", lake)
    standing.start(log.bounds_now())
    entries = pa.Table.from_batches([to_arrow((block,)) for block in log.blocks])
    result = apply(entries, config, lake=lake, log_id=log.log_id)
    standing.advance(log.marker(log.head), result.tables, batch_id=0)


def run(place: CatalogPlace, endpoint: str, **more: Any) -> None:
    """The pipeline applies what there is."""
    config, stop = place.config(**more), threading.Event()
    run_pipeline("p", config, endpoint, spark=place.spark, once=True, stop=stop)


def meddled(place: CatalogPlace) -> None:
    """A row more, one fewer, and one with another value."""
    table, where = f"{place.schema}.orders", "WHERE _key = '{\"_id\":%s}'"
    place.spark.sql(f"DELETE FROM {table} {where % 1}")
    place.spark.sql(f"UPDATE {table} SET n = n + 1 {where % 2}")
    columns = place.spark.table(table).columns
    chosen = ", ".join("'{\"_id\":99}'" if name == "_key" else name for name in columns)
    place.spark.sql(f"INSERT INTO {table} SELECT {chosen} FROM {table} {where % 3}")


@pytest.mark.soak
def test_what_somebody_altered_is_found_listed_and_made_right(
    place: CatalogPlace, log: BlockLog, endpoint: str
) -> None:
    ran(place, log)
    meddled(place)
    config = place.config()
    version = place.lake(config).table("orders").version
    (found,) = verify_tables("p", config, endpoint, spark=place.spark, ranges=8).tables
    assert (found.rows, found.found, found.differences, found.repaired) == (6, 6, 3, 0)
    assert [(one.key, one.what, one.columns) for one in found.listed] == [
        ('{"_id":1}', "missing", ()),
        ('{"_id":2}', "different", ("n",)),
        ('{"_id":99}', "extra", ()),
    ]
    assert place.lake(config).table("orders").version == version
    told = PipelineTold(
        pipeline="p", run="1", source="shop", to="table", place=log.marker(log.head)
    )
    with LogClient(endpoint) as client:
        client.tell(told)
    with pytest.raises(PipelineError, match="p is running"):
        verify_tables("p", config, endpoint, spark=place.spark, repair=True)
    with pytest.raises(PipelineError, match="p is running"):
        replay_rejects("p", config, endpoint, spark=place.spark)
    with LogClient(endpoint) as client:
        client.tell(structs.replace(told, state="ended"))
    (mended,) = verify_tables(
        "p", config, endpoint, spark=place.spark, ranges=8, repair=True
    ).tables
    assert (mended.differences, mended.repaired) == (3, 3)
    (sound,) = verify_tables("p", config, endpoint, spark=place.spark, ranges=8).tables
    assert (sound.found, sound.differences) == (6, 0)
    assert place.lake(config).table("orders").applied("p", log_id=log.log_id) == log.head
    place.spark.sql(f"DROP TABLE {place.schema}.orders")
    (made,) = verify_tables("p", config, endpoint, spark=place.spark, repair=True).tables
    assert (made.found, made.repaired) == (0, 6)
    # Of this log, or the pipeline could not go on in it.
    assert place.lake(config).table("orders").applied("p", log_id=log.log_id) == log.head


def test_a_schema_that_is_not_there_is_said_and_nothing_is_made(place: CatalogPlace) -> None:
    lake = seen_lake(place.config(), "p", place.spark)
    assert lake.standing().version == -1
    with pytest.raises(ConfigError, match=r"no place for Delta tables in spark_catalog\.nowhere"):
        seen_lake(in_catalog("nowhere"), "p", place.spark)


def test_any_thread_sees_the_tables(place: CatalogPlace) -> None:
    """Each pipeline of a driver has one of its own, and so has a comparison beside it."""
    place.lake(place.config())
    seen: list[int] = []

    def look() -> None:
        seen.append(seen_lake(place.config(), "p", place.spark).standing().version)

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [0]


@pytest.mark.soak
def test_a_pipeline_compares_its_own_tables_and_says_when_that_was(
    place: CatalogPlace, endpoint: str
) -> None:
    for differences in (0, 3):
        run(place, endpoint, verify_every=1.0)
        (known,) = place.spark.table(f"{place.schema}.penstock_verified_p").collect()
        assert (known["pipeline"], known["differences"]) == ("p", differences)
        if not differences:
            meddled(place)


def settings(folder: Path, schema: str, more: str = "") -> Path:
    """A configuration whose pipeline goes into a schema."""
    folder.mkdir()
    written = f'[pipelines.p]\nsource = "shop"\ncollections = ["orders"]\ncatalog = "{schema}"\n'
    return configure(folder, SHOP.format(rate=0) + written + more)


@pytest.mark.soak
def test_commands_reach_the_tables_and_say_what_they_did(
    place: CatalogPlace,
    log: BlockLog,
    endpoint: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In a session that is there, which they leave running."""
    ran(place, log)
    log.append([[put(7, n="x"), put(8, n=8)]])
    config = settings(tmp_path / "conf", place.schema)

    def ask(*words: str, code: int = 0) -> list[dict[str, Any]]:
        done: Done = penstock(capsys, "pipeline", *words, "--json", "--config", str(config))
        assert done.code == code, done.err
        return [json.loads(line) for line in done.out.splitlines() if line.startswith("{")]

    at = ("--endpoint", endpoint)
    (plan,) = ask("plan", "p", *at)
    assert (plan["sequence"], plan["entries"]) == (8, 2)
    assert plan["collections"][0]["table"] == f"spark_catalog.{place.schema}.orders"
    run_pipeline(
        "p", place.config(), endpoint, spark=place.spark, once=True, stop=threading.Event()
    )
    assert [one["sequence"] for one in ask("rejects", "p")] == [9]
    assert [(one["sequence"], one["state"]) for one in ask("replay", "p", *at)] == [(9, "left")]
    assert [one["sound"] for one in ask("verify", "p", *at)] == [True]
    meddled(place)
    ask("verify", "p", *at, code=7)
    ask("verify", "p", "--against", "source", *at, code=2)
    assert [one["sound"] for one in ask("verify", "p", "--repair", *at)] == [False]
    assert [one["sound"] for one in ask("verify", "p", *at)] == [True]
    assert {one["failed"] for one in ask("tidy", "p")} == {""}
    assert ask("reset", "p", "--to", "beginning", "--yes", *at)[0]["after"] == 0
    run_pipeline(
        "p", place.config(), endpoint, spark=place.spark, once=True, stop=threading.Event()
    )
    assert [one["sound"] for one in ask("verify", "p", *at)] == [True]


@pytest.mark.soak
def test_a_command_starts_a_spark_as_the_configuration_says(
    log: BlockLog, endpoint: str, tmp_path: Path
) -> None:
    """And says so where Delta's jars are missing."""
    jars = ",".join(map(str, DELTA.paths()))
    delta = {
        "spark.jars": jars,
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }
    without = "no place for Delta tables in "
    for name, given, said in (
        ("whole", delta, ""),
        ("no_jars", {one: delta[one] for one in delta if one != "spark.jars"}, without),
    ):
        lines = [f'"{one}" = "{value}"' for one, value in given.items()]
        lines.append(f'"spark.sql.warehouse.dir" = "{tmp_path / name / "warehouse"}"')
        config = settings(tmp_path / name, "default", "[spark]\n" + "\n".join(lines) + "\n")
        done = spawn(
            *("pipeline", "plan", "p", "--json", "--endpoint", endpoint, "--config", str(config))
        )
        if said:
            assert done.code == 2, done.err
            assert said in done.err, done.err
        else:
            assert done.code == 0, done.err
            assert json.loads(done.out.splitlines()[-1])["entries"] == log.head
        assert not list((tmp_path / name / "warehouse").glob("*"))
