"""Tables that are not what the log says are found, told, and made right."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from penstock.errors import ConfigError, HistoryTrimmedError, PipelineError
from penstock.serve.flight import FlightServer
from penstock.spark.progress import VerifyProgress
from penstock.spark.run import run_pipeline
from penstock.spark.table.plan import KEY
from penstock.spark.verifying import Verified, verify_tables
from tests.audit.terminal import terminal
from tests.cli.service import SHOP, configure, spawn
from tests.flight.blocks import BlockLog
from tests.spark.histories import history
from tests.spark.tables import change, gap, pipeline, put, rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.spark.config import TablePipelineConfig


@pytest.fixture
def log() -> BlockLog:
    log = BlockLog()
    log.append(
        [put(number % 50, n=number, x=number / 2 if number % 3 else None)] for number in range(300)
    )
    log.append([[change(7, "delete"), put(8, n=800, name="eight", _times=5)]])
    return log


@pytest.fixture
def endpoint(log: BlockLog) -> Iterator[str]:
    server = FlightServer(log)
    server.start()
    yield server.address
    server.stop()


@pytest.fixture
def config(spark: "SparkSession", endpoint: str, tmp_path: Path) -> "TablePipelineConfig":
    """A pipeline that has applied everything."""
    config = pipeline(tmp_path / "t", max_events_per_batch=120)
    run_pipeline("p", config, endpoint, spark=spark, once=True)
    return config


def verified(
    config: "TablePipelineConfig", endpoint: str, spark: "SparkSession", **more: Any
) -> Verified:
    return verify_tables("p", config, endpoint, spark=spark, ranges=16, **more)


def meddled(path: str) -> None:
    """A row more, one fewer, one with another value, and one whose null is moved a column on."""
    table = DeltaTable(path)
    table.delete(f"`{KEY}` = '{{\"_id\":3}}'")
    table.update({"n": "n + 1"}, predicate=f"`{KEY}` = '{{\"_id\":4}}'")
    table.update({"x": "NULL"}, predicate=f"`{KEY}` = '{{\"_id\":6}}'")
    rows = table.to_pyarrow_table()
    (row,) = (one for one in rows.to_pylist() if one[KEY] == '{"_id":10}')
    extra = pa.Table.from_pylist([{**row, KEY: '{"_id":999}'}], schema=rows.schema)
    write_deltalake(table, extra, mode="append")


def test_tables_that_a_first_load_has_made_are_neither_compared_nor_repaired(
    spark: "SparkSession", endpoint: str, tmp_path: Path
) -> None:
    """Repaired, they would lose what the log does not tell."""
    loaded = pipeline(tmp_path / "t", first_load="source")
    with pytest.raises(ConfigError, match="first load"):
        verified(loaded, endpoint, spark, repair=True)


def test_what_somebody_altered_is_found_and_made_right(
    spark: "SparkSession", endpoint: str, config: "TablePipelineConfig"
) -> None:
    before = rows_of(config.path)
    meddled(config.path)
    (table,) = verified(config, endpoint, spark, repair=True).tables
    assert (table.rows, table.found, table.differences, table.repaired) == (49, 49, 4, 4)
    assert [(one.key, one.what, one.columns) for one in table.listed] == [
        ('{"_id":3}', "missing", ()),
        ('{"_id":4}', "different", ("n",)),
        ('{"_id":6}', "different", ("x",)),
        ('{"_id":999}', "extra", ()),
    ]
    assert rows_of(config.path) == before
    # One that is gone is made again, and its pipeline goes on.
    shutil.rmtree(Path(config.path) / "_delta_log")
    (table,) = verified(config, endpoint, spark, listed_max=1, repair=True).tables
    assert (table.rows, table.found, table.repaired, len(table.listed)) == (49, 0, 49, 1)
    assert rows_of(config.path) == before
    run_pipeline("p", config, endpoint, spark=spark, once=True)
    assert verified(config, endpoint, spark).sound


def test_a_comparison_tells_how_far_it_is_whoever_hears_it(
    spark: "SparkSession", endpoint: str, config: "TablePipelineConfig"
) -> None:
    told: list[VerifyProgress] = []

    def hear(step: VerifyProgress) -> None:
        told.append(step)
        raise ValueError("nobody is to mind")

    found = verified(config, endpoint, spark, on_progress=hear)
    (table,) = found.tables
    assert found.sound
    assert (table.rows, table.found, table.ranges_differing) == (49, 49, 0)
    applied = [(one.done, one.total) for one in told if one.step == "applying"]
    assert applied == [(0, 302), (120, 302), (240, 302), (302, 302)]
    compared = [(one.done, one.total, one.collection) for one in told if one.step == "comparing"]
    assert compared == [(0, 1, "orders"), (1, 1, "")]


def test_a_zero_that_lost_its_sign_is_found_and_what_is_no_number_is_equal_to_itself(
    spark: "SparkSession", log: BlockLog, endpoint: str, tmp_path: Path
) -> None:
    none = {"$numberDouble": "NaN"}
    values = ["-0.0", "0.0", json.dumps(none)]
    texts = [f'{{"_id":{key},"n":{x},"x":{x}}}' for key, x in enumerate(values)]
    log.append([[change(key, "insert", text=text) for key, text in enumerate(texts)]])
    config = pipeline(tmp_path / "t", max_events_per_batch=1000)
    run_pipeline("p", config, endpoint, spark=spark, once=True)
    table = DeltaTable(config.path)
    for key, other in ((0, "0.0D"), (1, "-0.0D"), (2, "1.0D")):
        table.update({"x": other}, predicate=f"`{KEY}` = '{{\"_id\":{key}}}'")
    (found,) = verified(config, endpoint, spark, repair=True).tables
    assert [(one.key, one.columns) for one in found.listed] == [
        ('{"_id":0}', ("x",)), ('{"_id":1}', ("x",)), ('{"_id":2}', ("x",)),
    ]  # fmt: skip
    assert verified(config, endpoint, spark).sound


@pytest.mark.soak
def test_a_repaired_table_is_still_that_of_its_pipeline(
    spark: "SparkSession", log: BlockLog, endpoint: str, config: "TablePipelineConfig"
) -> None:
    """Invariant 7: it goes on where it stood, and ignores what it has."""
    meddled(config.path)
    verified(config, endpoint, spark, repair=True)
    log.append([[put(3, n=-3)]])
    seen: list[Any] = []
    run_pipeline("p", config, endpoint, spark=spark, once=True, on_progress=seen.append)
    assert [(one.entries, one.rows) for one in seen] == [(1, 1)]
    assert verified(config, endpoint, spark).sound


def test_the_table_is_compared_as_of_its_own_place_and_not_the_logs_end(
    spark: "SparkSession", log: BlockLog, endpoint: str, config: "TablePipelineConfig"
) -> None:
    log.append([[put(1, n=-1)], [change(2, "delete")]])
    assert verified(config, endpoint, spark).sound


@pytest.mark.parametrize("kept", [pipeline, history])
def test_a_gap_that_was_recorded_stops_nobody_who_compares(
    spark: "SparkSession",
    log: BlockLog,
    endpoint: str,
    tmp_path: Path,
    kept: Callable[..., Any],
) -> None:
    """Behind it the pipeline may halt at the next one."""
    log.append([[put(1, n=1000)], [gap()], [change(2, "delete")], [put(3, n=2000)]])
    config = kept(tmp_path / "t", on_gap="record", max_events_per_batch=400)
    run_pipeline("p", config, endpoint, spark=spark, once=True)
    (table,) = verified(config.model_copy(update={"on_gap": "halt"}), endpoint, spark).tables
    assert (table.differences, table.found) == (0, table.rows)


def test_what_cannot_be_compared_is_refused(
    spark: "SparkSession",
    log: BlockLog,
    endpoint: str,
    config: "TablePipelineConfig",
    tmp_path: Path,
) -> None:
    with pytest.raises(PipelineError, match="never run"):
        verified(pipeline(tmp_path / "other"), endpoint, spark)
    log.trim(10)
    with pytest.raises(HistoryTrimmedError):
        verified(config, endpoint, spark)


@pytest.mark.soak
def test_the_command_has_a_bar_on_a_terminal_and_none_in_a_pipe(
    endpoint: str, config: "TablePipelineConfig", tmp_path: Path
) -> None:
    text = SHOP.format(rate=1) + '[pipelines.p]\nsource = "shop"\ncollections = ["orders"]\n'
    written = configure(tmp_path, f'{text}path = "{config.path}"\nmax_events_per_batch = 120\n')
    command = ("pipeline", "verify", "p", "--config", str(written), "--endpoint", endpoint)
    with terminal(*command, width=120) as tty:
        assert tty.ended() == 0, tty.written
        bars, result = tty.written.rsplit("\x1b[?25h", 1)
        for word in ("applying the log anew", "120 of 302 entries", "39%", "━━━", "comparing"):
            assert word in bars
        assert "│ orders" in result
        assert "applying" not in result
        assert tty.restored()
    done = spawn(*command)
    assert done.code == 0, done.err
    assert "│ orders" in done.out
    assert "applying" not in done.out + done.err
    assert "\x1b" not in done.out + done.err
