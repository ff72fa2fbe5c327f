"""Steps that cannot be, that fail, and a pipeline that dies amid them."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from penstock.errors import ConfigError, PipelineError, TransformError
from penstock.serve.flight import FlightServer
from penstock.spark.table.chunk import INPUT_COLUMNS
from penstock.spark.target import TargetStoppedError
from penstock.spark.transform import stage as stages
from penstock.spark.transform.poison import find_poison
from penstock.spark.transform.replay import signed
from penstock.spark.transform.stage import Stage
from penstock.wire import to_arrow
from tests.flight.blocks import BlockLog
from tests.spark.killed import STEPS
from tests.spark.lakes import Lake, key
from tests.spark.tables import change, pipeline, put, rejects_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

N = "n INT"
SECRET = "4111-2222-3333"


@pytest.fixture
def log() -> BlockLog:
    return BlockLog()


@pytest.fixture
def endpoint(log: BlockLog) -> Iterator[str]:
    server = FlightServer(log)
    server.start()
    yield server.address
    server.stop()


@pytest.fixture
def lake(spark: "SparkSession", log: BlockLog, tmp_path: Path) -> Lake:
    return Lake(spark, log, tmp_path / "t")


def test_a_function_makes_documents_and_what_it_fails_on_is_rejected(
    log: BlockLog, lake: Lake
) -> None:
    function = {"function": "tests.spark.steps:doubled", "document_schema": "_id INT, n INT"}
    poisoned = {"function": "tests.spark.steps:poisoned", "document_schema": "_id INT, n INT"}
    log.append([[put(number, n=number) for number in (10, 11, 13)]])
    lake.apply(transform=[function])
    assert lake.rows == {
        key(number): {"_id": number, "n": number * 2, "of": "orders"} for number in (10, 11)
    }
    log.append([[put(11, n=1), put(20, n=666)], [put(21, n=21), change(10, "delete")]])
    lake.apply(transform=[poisoned])
    assert lake.rows == {key(11): {"_id": 11, "n": 1}, key(21): {"_id": 21, "n": 21}}
    (rejected,) = rejects_of(lake.path)
    assert (rejected["sequence"], rejected["key"]) == (5, key(20))
    assert rejected["reason"].startswith("the transforms fail on it: ")
    assert "secret" not in repr(rejected)
    log.append([[put(22, n=22)]])
    for name, said in (("twice", "more than one document"), ("invented", "was not given")):
        step = {"function": f"tests.spark.steps:{name}", "document_schema": "_id INT, n INT"}
        with pytest.raises(PipelineError, match=said):
            lake.apply(transform=[step])
    assert key(22) not in lake.rows


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"filter": "m > 0", "document_schema": N}, "transform 1"),
        ({"filter": "n >", "document_schema": N}, "transform 1"),
        ({"filter": "n", "document_schema": N}, "not a condition"),
        ({"filter": "n > 0", "document_schema": "n NUMBER"}, "document_schema"),
        ({"filter": "n IS NULL", "document_schema": "n INTERVAL DAY"}, "interval day"),
        ({"sql": "SELECT m FROM documents", "document_schema": N}, "transform 1"),
        ({"sql": "SELECT n, n FROM documents", "document_schema": N}, "two of one name"),
        ({"sql": "SELECT INTERVAL 1 DAY AS n FROM documents", "document_schema": N}, "type"),
        ({"function": "tests.spark.steps:nothing", "document_schema": N}, "there is no"),
        ({"function": "tests.spark.steps:TYPE_CHECKING", "document_schema": N}, "no function"),
    ],
)
def test_a_step_that_cannot_be_is_refused_before_anything_is_read(
    spark: "SparkSession", tmp_path: Path, settings: dict[str, Any], said: str
) -> None:
    config = pipeline(tmp_path / "t", transform=[settings])
    with pytest.raises(ConfigError, match=said):
        Stage("p", config, INPUT_COLUMNS).check(spark)


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("SELECT n FROM documents LIMIT 1", "LIMIT looks beyond"),
        ("SELECT n FROM documents OFFSET 1", "OFFSET looks beyond"),
        ("SELECT n FROM documents TABLESAMPLE (1 ROWS)", "LIMIT looks beyond"),
        ("SELECT n FROM documents TABLESAMPLE (5 PERCENT)", "TABLESAMPLE looks beyond"),
        ("SELECT sum(n) OVER () AS n FROM documents", "window"),
        ("SELECT n FROM documents GROUP BY ALL", "GROUP BY"),
        ("SELECT n, (SELECT max(n) FROM documents) AS m FROM documents", "aggregate"),
        ("SELECT n FROM documents WHERE n IN (SELECT n FROM documents)", "a second time"),
        ("SELECT d.n FROM documents d LEFT SEMI JOIN documents e ON d.n = e.n", "a second time"),
        ("SELECT * FROM (SELECT * FROM documents LIMIT 5) AS documents", "LIMIT looks beyond"),
        ("SELECT * FROM (WITH d AS (SELECT * FROM documents) SELECT * FROM d LIMIT 5)", "WITH"),
        ("SELECT n FROM documents WHERE rand() < 0.1", "another one each time"),
        ("SELECT n, monotonically_increasing_id() AS m FROM documents", "another one each time"),
    ],
)
def test_sql_that_looks_beyond_its_document_is_refused(
    spark: "SparkSession", tmp_path: Path, sql: str, said: str
) -> None:
    """It would delete rows, or count them, by where a batch ends."""
    config = pipeline(tmp_path / "t", transform=[{"sql": sql, "document_schema": N}])
    with pytest.raises(ConfigError, match=said):
        Stage("p", config, INPUT_COLUMNS).check(spark)


@pytest.mark.parametrize(
    ("condition", "said"),
    [
        ("at > current_timestamp()", r"current_timestamp\(\)"),
        ("at > now() - INTERVAL 1 DAY", r"now\(\)"),
        ("at > current_date", r"current_date\(\)"),
        ("at > curdate()", r"current_date\(\)"),
        ("at > localtimestamp()", r"localtimestamp\(\)"),
        ("unix_timestamp() > n", r"current_timestamp\(\)"),
        ("n > (SELECT int(unix_timestamp(now())))", r"now\(\)"),
        ("at > TIMESTAMP 'now'", "a text that means the present"),
        ("at > timestamp_ltz/* of */ ' Today UTC'", "a text that means the present"),
        ('at > date "yesterday"', "a text that means the present"),
        ("at > CAST(' Tomorrow ' AS DATE)", "a text that means the present"),
        ("at > CAST('today CET' AS TIMESTAMP)", "a text that means the present"),
        ("at > to_date('today')", "a text that means the present"),
        ("at > to_timestamp(lower('NOW'))", "a text that means the present"),
        ("at > date_add('today', 1)", "a text that means the present"),
        ("s = current_user()", r"current_user\(\)"),
        ("s = current_database()", r"current_database\(\)"),
    ],
)
def test_the_present_time_is_refused_by_name(
    spark: "SparkSession", tmp_path: Path, condition: str, said: str
) -> None:
    schema = "n INT, s STRING, at TIMESTAMP"
    config = pipeline(tmp_path / "t", transform=[{"filter": condition, "document_schema": schema}])
    with pytest.raises(ConfigError, match=rf"transform 1 \(filter\): {said}.* is another value"):
        Stage("p", config, INPUT_COLUMNS).check(spark)


@pytest.mark.parametrize(
    "settings",
    [
        {"transform": [{"sql": "SELECT n, now() AS at FROM documents", "document_schema": N}]},
        {"expect": [{"name": "new", "condition": "n < day(now())", "document_schema": N}]},
        {"apply_as_deletes": "n < day(current_date())", "document_schema": N},
    ],
)
def test_no_step_reads_the_present_time(
    spark: "SparkSession", tmp_path: Path, settings: dict[str, Any]
) -> None:
    config = pipeline(tmp_path / "t", **settings)
    with pytest.raises(ConfigError, match="is another value each time"):
        Stage("p", config, INPUT_COLUMNS).check(spark)


def test_moments_that_are_written_out_are_not_the_present(
    spark: "SparkSession", tmp_path: Path
) -> None:
    condition = (
        "at > TIMESTAMP '2026-01-01' AND at < make_timestamp(2027, 1, 1, 1, 1, 1) AND s <> 'now' "
        "AND to_date(s) > DATE '1970-01-01' AND CAST(s AS TIMESTAMP) > TIMESTAMP 'epoch'"
    )
    schema = "s STRING, at TIMESTAMP"
    config = pipeline(tmp_path / "t", transform=[{"filter": condition, "document_schema": schema}])
    Stage("p", config, INPUT_COLUMNS).check(spark)


def test_a_condition_with_a_window_is_refused(spark: "SparkSession", tmp_path: Path) -> None:
    step = {"filter": "row_number() OVER (ORDER BY n) < 3", "document_schema": N}
    config = pipeline(
        tmp_path / "t", transform=[{"sql": "SELECT n FROM documents", "document_schema": N}, step]
    )
    with pytest.raises(ConfigError, match=r"transform 2 \(filter\): a window"):
        Stage("p", config, INPUT_COLUMNS).check(spark)


def test_sql_may_look_something_up_elsewhere(log: BlockLog, lake: Lake) -> None:
    """What it knows of other rows, counted or not, is no chance of the batch."""
    names = "(SELECT n FROM VALUES (1), (2), (2) AS documents(n))"
    sql = (
        f"SELECT d._id, d.n, c.names FROM documents d "
        f"JOIN (SELECT n, int(count(*)) AS names FROM {names} GROUP BY n) c ON c.n = d.n "
        f"WHERE d.n <= (SELECT max(n) FROM {names}) ORDER BY d.n"
    )
    schema = "names INT, n INT"
    steps = [
        {"sql": sql, "document_schema": "_id INT, n INT"},
        {"filter": f"names > 0 AND n IN {names}", "document_schema": schema},
    ]
    log.append([[put(number, n=number) for number in (1, 2, 3)]])
    lake.apply(transform=steps)
    assert lake.rows == {
        key(1): {"_id": 1, "n": 1, "names": 1},
        key(2): {"_id": 2, "n": 2, "names": 2},
    }


def test_steps_mean_the_same_whatever_the_session_is_set_to(
    spark: "SparkSession", log: BlockLog, tmp_path: Path
) -> None:
    """Without ANSI a text that is no number is null, so that the row would be deleted."""
    session = spark.newSession()
    settings = {
        "spark.sql.ansi.enabled": "false",
        "spark.sql.session.timeZone": "America/New_York",
        "spark.sql.caseSensitive": "true",
        "spark.sql.timestampType": "TIMESTAMP_NTZ",
        "spark.sql.ansi.doubleQuotedIdentifiers": "true",
    }
    for name, value in settings.items():
        session.conf.set(name, value)
    sql = (
        'SELECT _id, hour(AT) AS hour, CAST("2026-01-01 00:00:00" AS TIMESTAMP) AS t FROM documents'
    )
    steps = [
        {"filter": "CAST(code AS INT) > 0", "document_schema": "code STRING"},
        {"sql": sql, "document_schema": "_id INT, at TIMESTAMP"},
    ]
    at = datetime(2026, 1, 1, 3, tzinfo=UTC)
    log.append([[put(1, code="1", at=at), put(2, code="x", at=at), put(3, code="0", at=at)]])
    lake = Lake(session, log, tmp_path / "t")
    lake.apply(transform=steps)
    midnight = {"$date": "2026-01-01T00:00:00.000Z"}
    assert lake.rows == {key(1): {"_id": 1, "hour": 3, "t": midnight}}
    assert [row["key"] for row in rejects_of(lake.path)] == [key(2)]
    assert {name: session.conf.get(name) for name in settings} == settings


@pytest.mark.parametrize("condition", ["n", "deleted", "n >"])
def test_a_delete_that_is_no_condition_is_refused_before_anything_is_read(
    spark: "SparkSession", tmp_path: Path, condition: str
) -> None:
    config = pipeline(tmp_path / "t", apply_as_deletes=condition, document_schema=N)
    with pytest.raises(ConfigError, match="apply_as_deletes is not understood by Spark"):
        Stage("p", config, INPUT_COLUMNS).check(spark)


def test_what_only_counts_withholds_nothing_that_it_cannot_be_computed_for(
    log: BlockLog, lake: Lake
) -> None:
    """However many they are: they are counted, each by itself, and written."""
    expect = [
        {"name": "mean", "condition": "n / count > 1", "document_schema": "n INT, count INT"},
        {"name": "code", "condition": "CAST(code AS INT) > 0", "document_schema": "code STRING"},
        {"name": "both", "condition": "n / count < 9", "document_schema": "n INT, count INT"},
    ]
    zeros = [put(at, n=at, count=0, code="7") for at in range(25)]
    log.append([zeros, [put(25, n=4, count=2, code="x"), put(26, n=1, count=1, code="7")]])
    _, staged = lake.apply(expect=expect)
    assert len(lake.rows) == 27
    assert staged.unmet == {"mean": 26, "code": 1, "both": 25}
    assert (staged.rejected, lake.stale) == (0, {})
    assert not Path(f"{lake.path}_rejects").exists()


def test_what_only_counts_stops_nothing_though_it_fails_on_every_batch(
    log: BlockLog, lake: Lake
) -> None:
    """Nor is a change rejected for it, while one that a function fails on is."""
    two = "n > (SELECT n FROM VALUES (1), (2) AS other(n))"
    settings: dict[str, Any] = {
        "transform": [
            {"function": "tests.spark.steps:poisoned", "document_schema": "_id INT, n INT"}
        ],
        "expect": [
            {"name": "broken", "condition": two, "document_schema": N},
            {"name": "small", "condition": "n < 100", "document_schema": N},
        ],
    }
    log.append([[put(at, n=at) for at in range(25)], [put(25, n=200), change(26, "delete")]])
    _, staged = lake.apply(**settings)
    assert len(lake.rows) == 26
    assert (staged.unmet, staged.rejected) == ({"broken": 26, "small": 1}, 0)
    log.append([[put(30, n=30), put(31, n=666)]])
    _, staged = lake.apply(**settings)
    assert lake.rows[key(30)] == {"_id": 30, "n": 30}
    assert (staged.unmet, staged.rejected) == ({"broken": 1}, 1)
    assert [row["key"] for row in rejects_of(lake.path)] == [key(31)]


def test_code_that_fails_on_all_is_not_taken_for_poison(spark: "SparkSession") -> None:
    """Bounded: neither are all changes rejected nor is the search without an end."""
    tries: list[int] = []

    def fails(part: Any) -> None:
        tries.append(id(part))
        raise ValueError(SECRET)

    rows = [(at, 0, "insert") for at in range(1, 65)]
    batch = spark.createDataFrame(rows, "sequence LONG, kind BYTE, operation_type STRING")
    with pytest.raises(TransformError, match="more than 20") as raised:
        find_poison(batch, fails, pipeline="p")
    assert SECRET not in str(raised.value)
    assert len(tries) < 64
    with pytest.raises(TransformError, match="as a whole"):
        find_poison(batch, lambda _: None, pipeline="p")

    def fails_together(part: Any) -> None:
        if part.count() > 1:
            raise RuntimeError(SECRET)

    with pytest.raises(TransformError, match="as a whole"):
        find_poison(batch, fails_together, pipeline="p")


class Answered(threading.Event):
    """Not set; what is away is there again once it was waited for so often."""

    def __init__(self, away: Path, *, after: int) -> None:
        super().__init__()
        self._away, self._left = away, after
        self.pauses: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.pauses.append(timeout)
        self._left -= 1
        if not self._left:
            self._away.unlink()
        return self.is_set()


ASKING = {"function": "tests.spark.steps:asking", "document_schema": "_id INT, n INT"}


@pytest.fixture
def away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """While it is there, what `asking` asks is away."""
    path = tmp_path / "away"
    path.touch()
    monkeypatch.setenv("AWAY", str(path))
    monkeypatch.setattr(stages, "_PAUSES_SECONDS", (1.0, 2.0))
    return path


def test_what_a_step_asks_is_waited_for_and_no_change_is_to_blame(
    spark: "SparkSession", log: BlockLog, lake: Lake, away: Path
) -> None:
    """Of other collections, and of deletes, it is not asked. What fails still is poison."""
    log.append([[put(1, n=1), put(2, n=2)], [change(9, "delete")]])
    log.append([[change("c", "insert", {"_id": "c"}, collection="customers")]])
    step = {**ASKING, "collections": ["orders"]}
    config = pipeline(lake.path, "orders", "customers", transform=[step])
    stopping = Answered(away, after=2)
    stage = Stage("p", config, INPUT_COLUMNS, stopping=stopping)
    with stage.computed(frame_of(spark, log)) as computed:
        assert (stopping.pauses, computed.refused) == ([1.0, 2.0], {})
    log.append([[put(3, n=666)]])
    away.touch()
    stopping = Answered(away, after=2)
    stage = Stage("p", config, INPUT_COLUMNS, stopping=stopping)
    with stage.computed(frame_of(spark, log)) as computed:
        assert list(computed.refused) == [5]
        assert "ValueError" in computed.refused[5].reason


def test_a_step_that_fails_on_all_stops_the_pipeline_by_name(
    spark: "SparkSession", log: BlockLog, lake: Lake, away: Path
) -> None:
    log.append([[put(1, n=1), put(2, n=2)]])
    steps = [{"filter": "n > 0", "document_schema": N}, ASKING]
    stopping = Answered(away, after=9)
    stage = Stage("p", pipeline(lake.path, transform=steps), INPUT_COLUMNS, stopping=stopping)
    with (
        pytest.raises(TransformError, match=r"2 \(function\) fails on each of the 2 ") as no,
        stage.staged(frame_of(spark, log), 0, log_id=log.log_id),
    ):
        pass
    assert stopping.pauses == [1.0, 2.0]
    assert "nobody answers" not in str(no.value)
    assert not Path(f"{lake.path}_rejects").exists()
    # Rejects that are tried again were refused before, and are again.
    with stage.computed(frame_of(spark, log), suspect=True) as computed:
        assert set(computed.refused) == {1, 2}


def test_documents_that_a_function_is_not_made_for_stop_nothing_though_they_are_all(
    spark: "SparkSession", log: BlockLog, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ValueError is of a value: two alone in a batch would stop the pipeline till others come."""
    monkeypatch.setenv("AWAY", str(lake.path / "never"))
    log.append([[put(1, n=666), put(2, n=666)]])
    stopping = threading.Event()
    stage = Stage("p", pipeline(lake.path, transform=[ASKING]), INPUT_COLUMNS, stopping=stopping)
    with stage.computed(frame_of(spark, log)) as computed:
        assert set(computed.refused) == {1, 2}


def test_a_lone_change_is_poison_unless_the_step_fails_without_it(
    spark: "SparkSession", log: BlockLog, lake: Lake, away: Path
) -> None:
    log.append([[put(1, n=1), change(9, "delete")]])
    stopping = Answered(away, after=9)
    stage = Stage("p", pipeline(lake.path, transform=[ASKING]), INPUT_COLUMNS, stopping=stopping)
    with stage.computed(frame_of(spark, log)) as computed:
        assert list(computed.refused) == [1]
    assert stopping.pauses == []
    step = {**ASKING, "function": "tests.spark.steps:connecting"}
    stage = Stage("p", pipeline(lake.path, transform=[step]), INPUT_COLUMNS, stopping=stopping)
    with pytest.raises(TransformError), stage.computed(frame_of(spark, log)):
        pass
    assert len(stopping.pauses) == 2


def test_a_pipeline_that_is_told_to_stop_does_not_wait_for_what_its_steps_ask(
    spark: "SparkSession", log: BlockLog, lake: Lake, away: Path
) -> None:
    log.append([[put(1, n=1), put(2, n=2)]])
    stopping = Answered(away, after=9)
    stopping.set()
    stage = Stage("p", pipeline(lake.path, transform=[ASKING]), INPUT_COLUMNS, stopping=stopping)
    with pytest.raises(TargetStoppedError), stage.computed(frame_of(spark, log)):
        pass
    assert stopping.pauses == [1.0]


def test_values_that_are_to_blame_are_poison_though_all_are(
    spark: "SparkSession", log: BlockLog, lake: Lake, away: Path
) -> None:
    """By what Spark says of them, or by raise_error."""
    said = "CASE WHEN n < 3 THEN 1 / (n - n) > 0 ELSE raise_error('bad') END"
    log.append([[put(1, n=1), put(2, n=2), put(3, n=3)]])
    stopping = Answered(away, after=9)
    steps = [{"filter": said, "document_schema": N}]
    stage = Stage("p", pipeline(lake.path, transform=steps), INPUT_COLUMNS, stopping=stopping)
    with stage.computed(frame_of(spark, log)) as computed:
        assert set(computed.refused) == {1, 2, 3}
    assert stopping.pauses == []


def test_a_value_that_reads_like_a_broken_machine_is_rejected_as_any_other(
    log: BlockLog, lake: Lake
) -> None:
    word = "java.lang.OutOfMemoryError: No space left on device"
    log.append([[put(1, v=word), put(2, v="2")]])
    lake.apply(transform=[{"filter": "CAST(v AS INT) > 0", "document_schema": "v STRING"}])
    assert set(lake.rows) == {key(2)}
    (rejected,) = rejects_of(lake.path)
    assert rejected["key"] == key(1)
    assert "OutOfMemory" not in rejected["reason"]


def test_a_full_disk_is_no_fault_of_a_change(spark: "SparkSession") -> None:
    def fails(part: Any) -> None:
        raise RuntimeError("java.io.IOException: No space left on device")

    batch = spark.createDataFrame(
        [(1, 0, "insert")], "sequence LONG, kind BYTE, operation_type STRING"
    )
    with pytest.raises(PipelineError, match="no space left"):
        find_poison(batch, fails, pipeline="p")


def frame_of(spark: "SparkSession", log: BlockLog) -> "DataFrame":
    whole = pa.Table.from_batches([to_arrow((block,)) for block in log.blocks])
    return spark.createDataFrame(signed(whole))


def test_a_batch_that_ends_behind_its_rejects_is_as_if_it_had_not(
    spark: "SparkSession", log: BlockLog, lake: Lake
) -> None:
    log.append([[put(1, n=1), put(2, n="two")], [put(3, n=-3)]])
    stage = Stage("p", pipeline(lake.path, **STEPS), INPUT_COLUMNS)
    whole = pa.Table.from_batches([to_arrow((block,)) for block in log.blocks])
    with stage.staged(spark.createDataFrame(signed(whole)), 0, log_id=log.log_id) as staged:
        assert staged.rejected == 2
    before = rejects_of(lake.path)
    assert [row["sequence"] for row in before] == [2, 3]
    result, staged = lake.apply(**STEPS)
    assert (staged.rejected, result.rejected) == (0, 0)
    assert rejects_of(lake.path) == before
    assert lake.rows == {key(1): {"_id": 1, "n": 1}}


def test_the_rejects_that_steps_make_are_joined_as_other_tables_are(
    log: BlockLog, lake: Lake
) -> None:
    """The target finds them there, writes none, and so looked after none."""
    for number in range(1, 4):
        log.append([[put(number, n="two")]])
        lake.apply(**STEPS, compact_every=2)
    done = DeltaTable(f"{lake.path}_rejects").history()
    assert "OPTIMIZE" in {one["operation"] for one in done}
    assert [row["sequence"] for row in rejects_of(lake.path)] == [1, 2, 3]


@pytest.mark.soak
@pytest.mark.spark
def test_killed_between_the_rejects_and_the_table_it_ends_as_if_it_was_not(
    log: BlockLog, endpoint: str, lake: Lake
) -> None:
    """SIGKILL at the very place: the rejects are written, the table is not."""
    log.append([[put(1, n=1), put(2, n="two")], [put(3, n=-3)]])
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "tests.spark.killed", endpoint, str(lake.path)]
    killed = subprocess.run(
        command,
        cwd=root,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(root / "src"), str(root)])},
        capture_output=True,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    assert [row["sequence"] for row in rejects_of(lake.path)] == [2, 3]
    assert not DeltaTable.is_deltatable(str(lake.path))
    _, staged = lake.apply(**STEPS)
    assert staged.rejected == 0
    assert [row["sequence"] for row in rejects_of(lake.path)] == [2, 3]
    assert lake.rows == {key(1): {"_id": 1, "n": 1}}
