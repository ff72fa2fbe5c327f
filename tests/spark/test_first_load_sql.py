"""Rows that were there before the log come from MariaDB, beside its stream (decision 0034)."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.cli.config import load
from penstock.client.flight import LogClient
from penstock.spark.against.source import verify_with_source
from penstock.spark.config import TablePipelineConfig
from penstock.spark.loading.parts import DONE, OPEN, READ
from penstock.spark.loading.reading import PartRows, read_parts
from penstock.spark.loading.stored import StoredPlan
from penstock.spark.run import run_pipeline
from tests.cli.service import Service
from tests.mysql.support import numbers, run
from tests.seeds import seed_of
from tests.spark.drivers import once, run_once
from tests.spark.loads import opens
from tests.spark.sql_loads import ORDERS, configured, documents, writing
from tests.spark.test_first_load import table_of
from tests.waiting import wait_until
from tests_support.servers import MariaDbServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ROWS = 300
_LAST = 100_000
"""The key that is written last."""


def filled(server: MariaDbServer, database: str, table: str, rows: int) -> None:
    with server.connect(database=database) as db:
        run(db, f"CREATE TABLE {table} {ORDERS}")
        run(db, f"INSERT INTO {table} SELECT seq, -1, 'before' FROM seq_0_to_{rows - 1}")


def interrupting(
    monkeypatch: pytest.MonkeyPatch, acts: dict[str, Callable[[], object]]
) -> dict[str, Callable[[], object]]:
    """The first ranges of these tables are read, and before they are written something happens.

    Returns what has not happened yet.
    """
    read, left = read_parts, dict(acts)

    def interrupted(*given: Any, **named: Any) -> list[PartRows]:
        rows = read(*given, **named)
        for part in given[1]:
            left.pop(part.collection, lambda: None)()
        return rows

    monkeypatch.setattr("penstock.spark.loading.load.read_parts", interrupted)
    return left


@pytest.mark.slow
def test_rows_from_before_the_log_and_changes_meanwhile_end_as_the_source(
    spark: "SparkSession",
    mariadb: MariaDbServer,
    mariadb_database: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """S4, invariants 2 and 9: newer changes win, what was deleted stays so, and a column that comes
    meanwhile is in every row, though no row is logged for it. Compared with the source, it is found
    that they are equal, and what the binlog did not tell."""
    seed = seed_of("first-load-sql-1")
    filled(mariadb, mariadb_database, "orders", _ROWS)

    def alter() -> None:
        with mariadb.connect(database=mariadb_database) as db:
            run(db, "ALTER TABLE orders ADD b INT NOT NULL DEFAULT 7, MODIFY n BIGINT")

    left = interrupting(monkeypatch, {"orders": alter})
    path = configured(tmp_path, mariadb, mariadb_database, collections='collections = ["orders"]')
    settings = load(path)
    config = settings.pipelines["p"]
    assert isinstance(config, TablePipelineConfig)
    lake = tmp_path / "lake"
    with Service(path) as service, LogClient(service.ready["flight"]) as client:
        wait_until(lambda: client.position("shop"), "capture to begin")
        given: dict[str, Any] = {"spark": spark, "open_source": opens(settings)}

        def go_on() -> None:
            run_pipeline("p", config, service.ready["flight"], once=True, **given)

        def verified() -> list[tuple[str, str, tuple[str, ...]]]:
            found = verify_with_source("p", config, service.ready["flight"], ranges=16, **given)
            return [(one.key, one.what, one.columns) for one in found.tables[0].listed]

        with writing(mariadb, mariadb_database, "orders", keys=_ROWS + 100, seed=seed) as writer:
            go_on()
        assert writer.writes > 100
        assert not left
        with mariadb.connect(database=mariadb_database) as db:
            run(db, f"INSERT INTO orders (id, n) VALUES ({_LAST}, 0)")
        while f'{{"id":{_LAST}}}' not in table_of(lake, mariadb_database):
            go_on()
        assert table_of(lake, mariadb_database) == documents(mariadb, mariadb_database)
        assert verified() == []
        with mariadb.connect(database=mariadb_database) as db:
            # What no binlog has, no log tells.
            run(db, "SET sql_log_bin = 0", f"UPDATE orders SET n = 5 WHERE id = {_LAST}")
        assert verified() == [(f'{{"id":{_LAST}}}', "different", ("n",))]
    assert not (tmp_path / "lake_rejects").exists()


@pytest.mark.soak
@pytest.mark.parametrize("round_", range(3))
def test_tables_that_are_altered_swapped_emptied_or_dropped_while_they_are_loaded_end_as_the_source(
    spark: "SparkSession",
    mariadb: MariaDbServer,
    mariadb_database: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    round_: int,
) -> None:
    """S10, S13: another key, another table under the name, none, or none of its rows."""
    seed = seed_of("first-load-sql-2") + round_
    tables = ("altered", "swapped", "emptied", "dropped", "renamed", "made_anew")
    for name in tables:
        filled(mariadb, mariadb_database, name, 300)

    def does(*statements: str) -> Callable[[], object]:
        def act() -> None:
            with mariadb.connect(database=mariadb_database) as db:
                run(db, *statements)

        return act

    left = interrupting(
        monkeypatch,
        {
            "altered": does("ALTER TABLE altered DROP text, ADD c CHAR(3) DEFAULT 'abc'"),
            "swapped": does(
                "CREATE TABLE _gho LIKE swapped",
                f"INSERT INTO _gho SELECT seq, 5, 'copied' FROM {numbers(1, 300)}",
                "RENAME TABLE swapped TO _del, _gho TO swapped",
            ),
            "emptied": does("TRUNCATE emptied", "INSERT INTO emptied VALUES (1, 1, 'after')"),
            "dropped": does("DROP TABLE dropped"),
            "renamed": does("RENAME TABLE renamed TO has_another_name"),
            "made_anew": does(
                "DROP TABLE made_anew",
                "CREATE TABLE made_anew (n INT, id INT, text TEXT, PRIMARY KEY (id))",
                "INSERT INTO made_anew VALUES (1, 2, 'x')",
            ),
        },
    )
    path = configured(tmp_path, mariadb, mariadb_database)
    settings = load(path)
    config = settings.pipelines["p"]
    assert isinstance(config, TablePipelineConfig)
    lake = tmp_path / "lake"
    with Service(path) as service, LogClient(service.ready["flight"]) as client:
        wait_until(lambda: client.position("shop"), "capture to begin")

        def go_on() -> None:
            run_pipeline(
                "p",
                settings.pipelines["p"],
                service.ready["flight"],
                spark=spark,
                once=True,
                open_source=opens(settings),
            )

        with writing(mariadb, mariadb_database, *tables, keys=400, seed=seed):
            go_on()
        assert not left
        with mariadb.connect(database=mariadb_database) as db:
            run(db, f"INSERT INTO emptied (id) VALUES ({_LAST})")
        while f'{{"id":{_LAST}}}' not in table_of(lake / "emptied", mariadb_database):
            go_on()
    for name in ("altered", "swapped", "emptied", "has_another_name", "made_anew", "_del"):
        rows = table_of(Path(config.table_path(name)), mariadb_database)
        assert rows == documents(mariadb, mariadb_database, name)
    for name in ("dropped", "renamed"):
        assert not (lake / name).exists() or table_of(lake / name, mariadb_database) == {}
    assert not (tmp_path / "lake_rejects").exists()


@pytest.mark.spark
@pytest.mark.soak
def test_a_driver_killed_in_the_middle_goes_on_with_the_ranges_that_are_left(
    mariadb: MariaDbServer, mariadb_database: str, tmp_path: Path
) -> None:
    """Resumable by range: what is in the table is not read again, and nothing is lost."""
    seed = seed_of("first-load-sql-3")
    filled(mariadb, mariadb_database, "orders", 8 * _ROWS)
    path = configured(tmp_path, mariadb, mariadb_database, collections='collections = ["orders"]')
    config = load(path).pipelines["p"]
    assert isinstance(config, TablePipelineConfig)
    stored = StoredPlan("p", config)
    lake = tmp_path / "lake"
    with Service(path) as service, LogClient(service.ready["flight"]) as client:
        wait_until(lambda: client.position("shop"), "capture to begin")
        with writing(mariadb, mariadb_database, "orders", keys=8 * _ROWS, seed=seed):
            with once(path, service.ready["flight"]) as first:
                first.wait_until(lambda: stored.read().of(READ), "some ranges to be read")
            assert stored.read().of(OPEN), "the driver was killed too late"
            read = stored.read().of(READ)
            run_once(path, service.ready["flight"])
        assert stored.read().complete
        assert {(one.start, one.read_at) for one in read} <= {
            (one.start, one.read_at) for one in stored.read().of(DONE)
        }
        with mariadb.connect(database=mariadb_database) as db:
            run(db, f"INSERT INTO orders (id, n) VALUES ({_LAST}, 0)")
        while f'{{"id":{_LAST}}}' not in table_of(lake, mariadb_database):
            run_once(path, service.ready["flight"])
    assert table_of(lake, mariadb_database) == documents(mariadb, mariadb_database)
    assert not (tmp_path / "lake_rejects").exists()
