"""Tables in a catalog, in a Spark that has Delta's jars: run by test_lake_contract.py, in a process
of its own, for one process has one Spark."""

# Spark's stubs leave types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import json
import random
import signal
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from penstock.errors import (
    ConfigError,
    PipelineChangedError,
    PipelineError,
    StreamChangedError,
)
from penstock.serve.flight import FlightServer
from penstock.spark.config import TablePipelineConfig
from penstock.spark.raised import is_overtaken, own_error
from penstock.spark.run import run_pipeline
from penstock.spark.table import catalog_table, sparks
from penstock.spark.table.apply import table_states
from penstock.spark.table.arrow import compute
from penstock.spark.table.catalog import Catalog
from penstock.spark.table.catalog_table import CatalogTable
from penstock.spark.table.plan import OPERATION, OWN_COLUMNS
from penstock.spark.table.reduce import DELETE, PUT
from penstock.spark.table.rejects import REJECTS_SCHEMA
from penstock.spark.table.sparks import frame_of
from penstock.spark.table.stamp import Stamp
from penstock.wire import to_arrow
from tests.children import MODULE, Child
from tests.flight.blocks import BlockLog
from tests.seeds import seed_of
from tests.spark.catalog_place import CatalogPlace, session_of
from tests.spark.cluster import ROOT
from tests.spark.lake_commands import LakeCommands, LongLakeCommands
from tests.spark.lake_contract import LakeContract, LongLakeContract, Place, World
from tests.spark.tables import LOG_ID, apply, change, fold, put, schema_event
from tests.spark.test_tables_kill import history
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator["SparkSession"]:
    yield from session_of(tmp_path_factory)


@pytest.fixture
def place(spark: "SparkSession") -> Place:
    return CatalogPlace(spark)


class TestCatalog(LakeContract, LakeCommands):
    @pytest.fixture
    def place(self, spark: "SparkSession") -> Place:
        return CatalogPlace(spark)


@pytest.mark.soak
class TestCatalogAtLength(LongLakeContract, LongLakeCommands):
    @pytest.fixture
    def place(self, spark: "SparkSession") -> Place:
        return CatalogPlace(spark)


def files_of(place: Place, config: TablePipelineConfig, table: str) -> list[str]:
    """The files of a table as it is."""
    return DeltaTable(place.path(config, table)).file_uris()


def stamp(until: int) -> Stamp:
    return Stamp(pipeline="p", log_id=LOG_ID, after=0, until=until, batch=0)


def changes(*rows: tuple[str, int, int, int]) -> pa.Table:
    """Of (key, sequence, operation, n)."""
    schema = pa.schema([*OWN_COLUMNS, pa.field("n", pa.int32()), pa.field(OPERATION, pa.int8())])
    return pa.Table.from_pylist(
        [
            {
                "_key": key,
                "_source": "shop",
                "_database": "db",
                "_sequence": sequence,
                "_rejected_sequence": None,
                "n": n,
                OPERATION: operation,
            }
            for key, sequence, operation, n in rows
        ],
        schema=schema,
    )


def test_an_older_change_never_wins_and_a_place_is_passed_once(place: Place) -> None:
    world = World(place)
    table = world.table()
    table.merge(changes(("a", 5, PUT, 5), ("b", 5, PUT, 5), ("c", 5, PUT, 5)), stamp(5))
    table.merge(changes(("a", 4, PUT, 4), ("b", 4, DELETE, 4), ("c", 6, DELETE, 0)), stamp(6))
    # Delta passes over what the table has, whatever is in it.
    version = table.version
    table.merge(changes(("a", 9, PUT, 9)), stamp(6))
    assert table.version == version
    rows = {row["_key"]: row["n"] for row in world.stored().to_pylist()}
    assert rows == {"a": 5, "b": 5}
    # What was opened goes on seeing the rows of the place that it says.
    world.table().merge(changes(("a", 7, PUT, 7)), stamp(7))
    assert table.applied("p", log_id=LOG_ID) == 6
    assert table.rows(["a"])["n"].to_pylist() == [5]
    said = DeltaTable(place.path(world.config, "orders")).history(1)[0]
    assert json.loads(said["userMetadata"])["penstock.until"] == "7"


def test_rows_without_their_place_stop_the_pipeline(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Delta that does not know the setting would write each batch as often as it comes."""
    world = World(place)
    world.entries.commit(put(1, n=1))
    monkeypatch.setattr(catalog_table, "APP", "spark.penstock.unknown")
    monkeypatch.setattr(catalog_table, "VERSION", "spark.penstock.unknown.too")
    with pytest.raises(PipelineError, match="did not say in it how far"):
        world.apply()


def test_a_crash_between_wider_columns_and_their_rows_changes_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(place)
    world.entries.commit(put(1, n=1))
    world.apply()
    world.entries.commit(put(2, n=1.5, more="x"))

    def power_cut(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(catalog_table.CatalogTable, "_commit", power_cut)
        with pytest.raises(KeyboardInterrupt):
            world.apply(1)
    assert world.rows() == {("db", '{"_id":1}'): {"_id": 1, "n": 1.0}}
    assert world.table().applied("p", log_id=LOG_ID) == 1
    world.apply(1)
    assert world.rows()["db", '{"_id":2}'] == {"_id": 2, "n": 1.5, "more": "x"}
    # The properties that say whose it is are still there.
    assert world.table().applied("p", log_id=LOG_ID) == 2


@pytest.mark.soak
def test_what_another_commits_while_columns_become_wider_is_not_lost(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark.sql.classic.dataframe import DataFrame

    world = World(place)
    world.table().merge(changes(("a", 1, PUT, 1)), stamp(1))
    meanwhile = [changes(("b", 2, PUT, 2))]
    real: Any = DataFrame.writeTo

    def write_to(frame: DataFrame, name: str) -> Any:
        while meanwhile:
            place.lake(world.config).table("orders").merge(meanwhile.pop(), stamp(2))
        return real(frame, name)

    monkeypatch.setattr(DataFrame, "writeTo", write_to)
    wider = changes(("c", 3, PUT, 3))
    at = wider.schema.get_field_index("n")
    world.table().merge(wider.set_column(at, "n", wider["n"].cast(pa.float64())), stamp(3))
    rows = {row["_key"]: row["n"] for row in world.stored().to_pylist()}
    assert rows == {"a": 1.0, "b": 2.0, "c": 3.0}


@pytest.mark.soak
def test_files_joined_while_columns_become_wider_leave_no_row_twice(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Delta refuses the rows that were read before, and all is written anew."""
    from pyspark.sql.classic.dataframe import DataFrame

    assert isinstance(place, CatalogPlace)
    world, spark, orders = World(place), place.spark, f"{place.schema}.orders"
    world.table().merge(changes(("a", 1, PUT, 1)), stamp(1))
    world.table().merge(changes(("b", 2, PUT, 2)), stamp(2))
    reads, joined = tmp_path / "reads", tmp_path / "joined"

    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        reads.touch()
        while not joined.exists():
            time.sleep(0.05)
        yield from batches

    def join() -> None:
        wait_until(reads.exists)
        spark.sql(f"OPTIMIZE {orders}").collect()
        joined.touch()

    real: Any = DataFrame.writeTo
    written: list[str] = []

    def write_to(frame: DataFrame, name: str) -> Any:
        written.append(name)
        return real(frame.coalesce(1).mapInArrow(wait, frame.schema), name)

    monkeypatch.setattr(DataFrame, "writeTo", write_to)
    wider = changes(("c", 3, PUT, 3))
    at = wider.schema.get_field_index("n")
    thread = threading.Thread(target=join)
    thread.start()
    world.table().merge(wider.set_column(at, "n", wider["n"].cast(pa.float64())), stamp(3))
    thread.join()
    rows = {row["_key"]: row["n"] for row in world.stored().to_pylist()}
    assert rows == {"a": 1.0, "b": 2.0, "c": 3.0}
    assert world.stored().num_rows == 3
    assert len(written) == 2


def test_a_driver_that_was_overtaken_deletes_nothing_of_who_is_further(place: Place) -> None:
    """A DELETE of Spark's is of the table as it is now, whatever the driver has seen."""
    world = World(place, "orders", "archive")
    archived = change(2, "insert", {"_id": 2, "n": 2}, collection="archive")
    world.entries.commit(put(1, n=1), archived)
    world.entries.commit(schema_event("rename", to={"db": "db", "coll": "archive"}))
    world.entries.commit(change(5, "insert", {"_id": 5, "n": 5}, collection="archive"))
    world.apply(0, 2)
    seen = {name: world.table(name) for name in ("orders", "archive")}
    world.apply(2)
    rows = world.rows("archive")
    assert len(rows) == 2

    class AsSeen(Catalog):
        def table(self, collection: str) -> CatalogTable:
            table = seen[collection]
            assert isinstance(table, CatalogTable)
            return table

    assert isinstance(place, CatalogPlace)
    apply(world.entries.table(2, 3), world.config, lake=AsSeen(place.spark, place.schema, "p"))
    assert world.rows("archive") == rows


@pytest.mark.soak
def test_who_writes_while_rows_are_mended_is_found_afterwards(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is mended has no app transaction for which Delta would refuse one of the two."""
    world = World(place)
    world.table().merge(changes(("a", 1, PUT, 1), ("b", 1, PUT, 1)), stamp(1))
    meanwhile, real = [changes(("c", 2, PUT, 2))], sparks.given

    @contextmanager
    def given(session: "SparkSession", rows: pa.Table) -> Generator[None]:
        while meanwhile:
            place.lake(world.config).table("orders").merge(meanwhile.pop(), stamp(2))
        with real(session, rows):
            yield

    monkeypatch.setattr(catalog_table, "given", given)
    still = Stamp(pipeline="p", log_id=LOG_ID, after=1, until=1, batch=-1)
    with pytest.raises(PipelineError, match=r"another process wrote .* while rows were mended"):
        world.table().merge(changes(("a", 1, PUT, 5)), still)
    rows = {row["_key"]: row["n"] for row in world.stored().to_pylist()}
    assert rows == {"a": 5, "b": 1, "c": 2}
    # And whoever is alone mends a row whatever its sequence is.
    still = Stamp(pipeline="p", log_id=LOG_ID, after=2, until=2, batch=-1)
    world.table().merge(changes(("a", 1, PUT, 6), ("b", 1, DELETE, 0)), still)
    rows = {row["_key"]: row["n"] for row in world.stored().to_pylist()}
    assert rows == {"a": 6, "c": 2}
    assert world.table().applied("p", log_id=LOG_ID) == 2


@pytest.mark.soak
def test_rows_are_mended_though_files_are_joined_meanwhile(place: Place) -> None:
    """That changes none of them, so nobody wrote."""
    world = World(place)
    world.table().merge(changes(("a", 1, PUT, 1)), stamp(1))
    world.table().merge(changes(("b", 2, PUT, 2)), stamp(2))
    seen = world.table()
    assert world.table().compact() == (2, 1)
    still = Stamp(pipeline="p", log_id=LOG_ID, after=2, until=2, batch=-1)
    seen.merge(changes(("a", 1, PUT, 5)), still)
    rows = {row["_key"]: row["n"] for row in world.stored().to_pylist()}
    assert rows == {"a": 5, "b": 2}
    world.table().merge(changes(("b", 3, PUT, 3)), stamp(3))
    with pytest.raises(PipelineError, match="has moved on while it was looked at"):
        seen.merge(changes(("b", 2, PUT, 2)), still)


@pytest.mark.soak
def test_columns_that_another_driver_made_are_not_undone(place: Place) -> None:
    world = World(place)
    world.table().merge(changes(("a", 1, PUT, 1)), stamp(1))
    overtaken = world.table()
    new = changes(("b", 2, PUT, 2)).append_column("more", pa.array(["x"]))
    world.table().merge(new, stamp(2))
    wider = changes(("c", 2, PUT, 3))
    at = wider.schema.get_field_index("n")
    with pytest.raises(PipelineError, match="another process"):
        overtaken.merge(wider.set_column(at, "n", wider["n"].cast(pa.float64())), stamp(2))
    rows = {row["_key"]: row["more"] for row in world.stored().to_pylist()}
    assert rows == {"a": None, "b": "x"}


@pytest.mark.soak
def test_what_two_drivers_reject_is_there_once(place: Place) -> None:
    world = World(place)
    one, other = world.lake.rejects(), world.lake.rejects()
    reject: dict[str, Any] = {"pipeline": "p", "sequence": 1, "reason": "it fits no column"}
    rows = pa.Table.from_pylist([reject], schema=REJECTS_SCHEMA)
    one.append(rows, stamp(1))
    with pytest.raises(PipelineError, match="another process"):
        other.append(rows, stamp(1))
    assert world.stored("rejects").num_rows == 1
    one.append(rows, stamp(2))
    assert world.stored("rejects").num_rows == 2


def raise_in_jvm(spark: "SparkSession", name: str) -> None:
    """Have Delta's own error raised, as what a call came from."""
    session: Any = spark
    jvm = session._jvm
    words = session._sc._gateway.new_array(jvm.java.lang.String, 8)
    for place in range(8):
        words[place] = "t"
    error = getattr(jvm.io.delta.exceptions, name)(words)
    jvm.java.util.concurrent.CompletableFuture.failedFuture(error).join()


@pytest.mark.parametrize(
    "name",
    ["ConcurrentAppendException", "ConcurrentDeleteReadException", "MetadataChangedException"],
)
def test_a_commit_that_another_made_impossible_is_known_by_deltas_name_for_it(
    spark: "SparkSession", name: str
) -> None:
    with pytest.raises(Exception, match="DELTA") as raised:
        raise_in_jvm(spark, name)
    assert is_overtaken(raised.value)
    assert "another process committed" in str(own_error(raised.value, pipeline="p"))


@pytest.mark.soak
def test_a_commit_that_joins_files_meanwhile_is_no_end(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Delta refuses the later of the two; the same place is written again, and once."""
    from pyspark.sql import SparkSession as Session

    world = World(place)
    world.table().merge(changes(("a", 1, PUT, 1)), stamp(1))
    refused = ["ConcurrentDeleteReadException"]
    real: Any = Session.sql

    def sql(session: Session, statement: str, *more: Any) -> Any:
        if statement.startswith("MERGE") and refused:
            raise_in_jvm(session, refused.pop())
        return real(session, statement, *more)

    monkeypatch.setattr(Session, "sql", sql)
    table = world.table()
    table.merge(changes(("b", 2, PUT, 2)), stamp(2))
    assert not refused
    assert table.applied("p", log_id=LOG_ID) == 2
    assert world.stored().num_rows == 2


def test_a_table_that_names_no_log_is_refused(place: Place) -> None:
    """What another log has put there would hide changes of this one."""
    assert isinstance(place, CatalogPlace)
    world = World(place)
    world.table().merge(changes(("a", 1, PUT, 1)), stamp(1))
    place.spark.sql(f"ALTER TABLE {place.schema}.orders UNSET TBLPROPERTIES ('penstock.log')")
    with pytest.raises(StreamChangedError, match="no log that it names"):
        world.table().applied("p", log_id=LOG_ID)


def test_large_rows_reach_tasks_in_pieces(spark: "SparkSession") -> None:
    """Spark sends no task that is more than 128 MiB; locally it would not be seen."""
    own = spark.newSession()
    frame = frame_of(own, pa.table({"text": ["x" * 1_000_000] * 60}))
    assert frame.rdd.getNumPartitions() >= 4
    assert frame.count() == 60


def test_a_table_that_is_not_the_pipelines_own_is_left_alone(place: Place) -> None:
    assert isinstance(place, CatalogPlace)
    world = World(place, "orders", "lines", "customers", "Orders2", "orders2x")
    world.entries.commit(put(1, n=1))
    world.apply()
    config = place.config("orders", "lines", "customers")
    other = place.lake(config, "q")
    with pytest.raises(PipelineChangedError, match="is of pipeline p, collection orders"):
        apply(world.entries.table(), config, name="q", lake=other)
    place.spark.sql(f"CREATE TABLE {place.schema}.lines (x INT) USING delta")
    with pytest.raises(PipelineChangedError, match="no table of Penstock's"):
        other.table("lines")
    place.spark.sql(f"CREATE TABLE {place.schema}.customers (x INT) USING parquet")
    with pytest.raises(ConfigError, match="is no Delta table"):
        other.table("customers")
    for schema in ("nowhere", "nocatalog.sales"):
        with pytest.raises(ConfigError, match="no place for Delta tables"):
            Catalog(place.spark, schema, "p").check()


@pytest.mark.soak
def test_drivers_killed_at_any_moment_neither_lose_nor_repeat(tmp_path: Path) -> None:
    """The first between the rows and the row that says how far they are, two at random."""
    seed = seed_of("catalog-cases")
    dice = random.Random(seed)
    log = BlockLog(block_events=11)
    log.append(history(dice))
    server = FlightServer(log)
    server.start()
    command = (*MODULE, "tests.spark.catalogs", server.address, tmp_path, "sales")
    codes: list[int] = []
    try:
        for kill in ("advance", "random", "random", ""):
            with Child(*command, kill, cwd=ROOT, whole=True) as driver:
                if kill == "random":
                    # Once a batch has said that it is done, so in the midst of the next.
                    driver.line()
                    driver.kill_after(dice.uniform(0.0, 2.0))
                codes.append(driver.wait())
    finally:
        server.stop()
    assert codes[0] == -signal.SIGKILL
    assert codes[-1] == 0
    whole = pa.Table.from_batches([to_arrow((block,)) for block in log.blocks])
    for collection in ("orders", "lines"):
        table = DeltaTable(str(tmp_path / "warehouse" / "sales.db" / collection))
        entries = whole.filter(compute.equal(whole["collection"], collection))
        rows = {
            (database, key): state.document or {}
            for (key, _, database), state in table_states(table.to_pyarrow_table()).items()
        }
        assert rows == fold(entries)
        place = table.transaction_version("penstock/p") or 0
        assert entries["sequence"][-1].as_py() <= place <= whole.num_rows


@pytest.mark.soak
def test_pipelines_of_one_driver_keep_apart_and_others_can_read_them(place: Place) -> None:
    """Each has settings of its own while it writes, and they run at the same time."""
    assert isinstance(place, CatalogPlace)
    commits = [
        [put(at % 5, n=at), change(at, "insert", {"_id": at, "n": at}, collection="lines")]
        for at in range(20)
    ]
    log = BlockLog(block_events=7)
    log.append(commits)
    failed: list[BaseException] = []

    def run(name: str, collection: str, events: int) -> None:
        config = place.config(collection, max_events_per_batch=events)
        try:
            run_pipeline(
                name, config, server.address, spark=place.spark, once=True, stop=threading.Event()
            )
        except Exception as error:
            failed.append(error)

    server = FlightServer(log)
    server.start()
    try:
        threads = [
            threading.Thread(target=run, args=("a", "orders", 40)),
            threading.Thread(target=run, args=("b", "lines", 14)),
        ]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
    finally:
        server.stop()
    assert failed == []
    config = place.config("orders", "lines")
    for name, other, collection, last in (("a", "b", "orders", 39), ("b", "a", "lines", 40)):
        table = DeltaTable(place.path(config, collection))
        assert table.transaction_version(f"penstock/{name}") == last
        assert table.transaction_version(f"penstock/{other}") is None
        (row,) = place.spark.table(f"{place.schema}.penstock_standing_{name}").collect()
        assert (row["pipeline"], row["sequence"]) == (name, 40)
    with duckdb.connect() as connection:
        connection.register("rows", connection.read_parquet(files_of(place, config, "orders")))
        found = connection.execute("SELECT count(*), sum(n) FROM rows").fetchone()
    assert found == (5, sum(range(15, 20)))
    settings = place.spark.conf.getAll
    assert not any("txn" in name or "userMetadata" in name for name in settings)
