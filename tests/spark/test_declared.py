"""A column is what its source declares where values differ in shape, whichever comes first."""

import itertools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import psycopg
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from msgspec import structs

from penstock.client.flight import LogClient
from penstock.serve.flight import FlightServer
from penstock.spark import run as run_module
from penstock.spark.config import PipelineConfig, ReplicatePipelineConfig, ViewPipelineConfig
from penstock.spark.run import run_pipeline
from penstock.spark.table.chunk import control_of
from penstock.spark.table.declared import Declarations, behind, declared_by, kinds_of
from penstock.spark.table.kinds import Kind, kind_of_column
from penstock.spark.transform.config import TransformConfig
from penstock.state import keeper as keeper_module
from penstock.state.config import StateConfig
from penstock.state.keeper import StateKeeper
from tests.flight.blocks import BlockLog
from tests.spark.histories import history
from tests.spark.replica.support import database
from tests.spark.tables import Entries, apply, change, gap, pipeline, put, schema_event
from tests_support.servers import PostgresServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NONE: set[str] = set()
VALUES = ["red", {"a": 1}, [1, 2], 5, 1.5, True, 2**40]
"""What a JSON column may have, each of another kind."""


def columns_of(*, database: str = "db", **varying: str) -> Any:
    """What a source says of the columns of a table with its first rows."""
    return schema_event("modify", database=database, columns=[], varying=varying)


def kind(path: Path, column: str) -> str:
    """The kind that a table's column says it has."""
    schema: Any = pa.schema(cast("Any", DeltaTable(str(path)).schema().to_arrow()))
    return str(kind_of_column(schema.field(column)))


@pytest.mark.parametrize("first", range(len(VALUES)))
@pytest.mark.parametrize("to", ["table", "history"])
def test_a_declared_json_column_holds_every_value_whichever_is_the_first(
    first: int, to: str, tmp_path: Path
) -> None:
    values = [*VALUES[first:], *VALUES[:first]]
    config = (history if to == "history" else pipeline)(tmp_path / "t")
    entries = Entries()
    entries.commit(put(0, j=values[0]), columns_of(j="json"))
    results = [apply(entries.table(), config)]
    for number, value in enumerate(values[1:], 1):
        entries.commit(put(number, j=value))
        results.append(apply(entries.table(entries.head - 1), config, batch_id=number))
    assert [one.rejected for one in results] == [0] * len(values)
    rows: Any = DeltaTable(str(tmp_path / "t")).to_pyarrow_table()
    rows = rows.sort_by("_sequence")
    texts: list[Any] = rows["j"].to_pylist()
    assert [json.loads(text) for text in texts] == values


def test_what_was_declared_before_the_first_value_is_known_when_it_comes(tmp_path: Path) -> None:
    entries, config = Entries(), pipeline(tmp_path / "t")
    entries.commit(put(1, j=None), columns_of(j="json"))
    apply(entries.table(), config)
    entries.commit(put(2, j="red"))
    entries.commit(put(3, j={"a": 1}))
    assert apply(entries.table(2), config, batch_id=1).rejected == 0
    assert kind(tmp_path / "t", "j") == "json"


@pytest.mark.parametrize("word", ["create", "modify"])
@pytest.mark.parametrize("to", ["table", "history", "elements"])
def test_what_was_declared_in_a_batch_without_rows_is_known_when_one_comes(
    to: str, word: str, tmp_path: Path
) -> None:
    """As Zero's sources tell a table that is made, in a commit of its own. Twice equals once."""
    make: Any = history if to == "history" else pipeline
    explode = {"transform": [{"explode": "lines"}]} if to == "elements" else {}
    config, entries = make(tmp_path / "t", **explode), Entries()
    if word == "modify":  # a column is added
        entries.commit(put(1, n=1, lines=[1]))
        apply(entries.table(), config)
    entries.commit(schema_event(word, columns={"j": "json"}, varying={"j": "json"}))
    before = entries.head - 1
    versions: list[int] = []
    for number in (1, 2):
        assert apply(entries.table(before), config, batch_id=number).rejected == 0
        versions.append(DeltaTable(str(tmp_path / "t")).version())
    assert versions[0] == versions[1]
    assert kind(tmp_path / "t", "j") == "json"
    entries.commit(put(2, j="red", lines=[2]), put(3, j={"a": 1}, lines=[3]))
    after = entries.head - 2
    assert apply(entries.table(after), config, batch_id=3).rejected == 0
    assert kind(tmp_path / "t", "j") == "json"


@pytest.mark.parametrize("to", ["table", "history", "view", "replicate"])
def test_what_was_declared_behind_the_first_entry_is_asked_for(
    to: str, spark: "SparkSession", postgres: PostgresServer, tmp_path: Path
) -> None:
    log = KeptLog()
    log.append([[columns_of(j="json"), put(0, j=None)], [put(1, j=None)]])
    (tmp_path / "log").mkdir()
    keeper = StateKeeper(log, tmp_path / "log", StateConfig(free_bytes_min=0))
    server = FlightServer(log, current=keeper)
    server.start()
    try:
        while keeper.step():
            pass
        log.trim(2)
        log.append([[put(2, j="red")], [put(3, j={"a": 1})]])
        path, uri = tmp_path / "t", ""
        said = {"source": "shop", "start": "oldest", "max_events_per_batch": 1}
        config: PipelineConfig
        match to:
            case "view":
                query = "SELECT j, count(*) AS n FROM orders GROUP BY j"
                config = ViewPipelineConfig.model_validate(
                    {"to": to, "path": str(path), "query": query, **said}
                )
                path = Path(config.state_path)
            case "replicate":
                uri = postgres.create(database())
                config = ReplicatePipelineConfig.model_validate({"to": to, "uri": uri, **said})
            case _:
                make: Any = history if to == "history" else pipeline
                config = make(path, start="oldest", max_events_per_batch=1)
        run_pipeline("p", config, server.address, spark=spark, once=True)
    finally:
        server.stop()
        keeper.close()
    if to == "replicate":
        with psycopg.connect(uri) as connection:
            found = connection.execute("SELECT count(*) FROM orders WHERE j IS NOT NULL")
            assert found.fetchone() == (2,)
        return
    assert kind(path, "j") == "json"
    rows: Any = DeltaTable(str(path)).to_pyarrow_table()
    assert rows.num_rows == 3


@pytest.mark.parametrize(
    ("events", "declared"),
    [
        pytest.param([], {"j": Kind.JSON}, id="before"),
        pytest.param([columns_of()], {}, id="none varies any more"),
        pytest.param([schema_event("drop")], {}, id="dropped"),
        pytest.param([schema_event("dropDatabase", collection="")], {}, id="its database dropped"),
        pytest.param(
            [structs.replace(gap(), database="db", collection="orders")], {}, id="changes were lost"
        ),
        pytest.param(
            [structs.replace(gap(), database="db", collection="lines")],
            {"j": Kind.JSON},
            id="others were lost",
        ),
        pytest.param([schema_event("drop", truncated="true")], {"j": Kind.JSON}, id="emptied"),
        pytest.param([schema_event("rename", to={"db": "db", "coll": "x"})], {}, id="renamed"),
        pytest.param(
            [
                schema_event("rename", to={"db": "db", "coll": "x"}),
                schema_event("rename", collection="x", to={"db": "db", "coll": "orders"}),
            ],
            {"j": Kind.JSON},
            id="renamed, and back",
        ),
    ],
)
def test_what_batches_before_declared_is_that_of_the_last(
    events: list[Any], declared: dict[str, Kind]
) -> None:
    declarations, entries = Declarations(), Entries()
    entries.commit(columns_of(j="json"), *events)
    rows: list[Any] = entries.table().to_pylist()
    declarations.note(map(control_of, rows))
    assert declared_by(declarations.before([]), "orders") == declared


def test_a_batch_puts_an_end_to_what_was_declared_before_it() -> None:
    """It was made anew: what it was declared then says nothing of it."""
    declarations, entries = Declarations(), Entries()
    entries.commit(columns_of(j="timestamp"))
    entries.commit(schema_event("drop"), schema_event("create", columns=[], varying={"k": "json"}))
    said, *batch = map(control_of, cast("Any", entries.table().to_pylist()))
    declarations.note([said])
    assert declared_by(declarations.before([]), "orders") == {"j": Kind.TIMESTAMP}
    assert declared_by(declarations.before(batch), "orders") == {"k": Kind.JSON}
    assert declared_by(declarations.before([]), "orders") == {"j": Kind.TIMESTAMP}, "not yet"
    declarations.note(batch)
    assert declared_by(declarations.before([]), "orders") == {"k": Kind.JSON}


def test_rows_that_stay_behind_stop_no_pipeline(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A column is what its first value is then, as without current rows."""
    monkeypatch.setattr(run_module, "_DECLARED_SECONDS_MAX", 0.0)
    log = KeptLog()
    log.append([[columns_of(j="json"), put(0, j=None)]])
    (tmp_path / "log").mkdir()
    monkeypatch.setattr(keeper_module, "_OPEN_SECONDS", 0.0)
    keeper = StateKeeper(log, tmp_path / "log", StateConfig(free_bytes_min=0))  # never a step
    server = FlightServer(log, current=keeper)
    server.start()
    try:
        log.trim(1)
        log.append([[put(1, j={"a": 1})]])
        config = pipeline(tmp_path / "t", start="oldest")
        run_pipeline("p", config, server.address, spark=spark, once=True)
    finally:
        server.stop()
        keeper.close()
    rows: Any = DeltaTable(str(tmp_path / "t")).to_pyarrow_table()
    assert rows.num_rows == 2


def test_a_service_without_current_rows_declares_nothing() -> None:
    log = KeptLog()
    log.append([[columns_of(j="json")]])
    server = FlightServer(log)
    server.start()
    try:
        with LogClient(server.address) as client:
            assert client.declared("shop", at=1) == []
    finally:
        server.stop()


class KeptLog(BlockLog):
    """One of which a test keeps the current rows, step by step."""

    def wait_now(self, *, after: int, timeout_seconds: float | None = None) -> bool:
        raise NotImplementedError


def test_what_is_declared_of_collections_that_are_not_followed_makes_no_table(
    tmp_path: Path,
) -> None:
    config, entries = pipeline(tmp_path / "t"), Entries()
    entries.commit(
        columns_of(n="decimal"), schema_event("modify", collection="lines", varying={"j": "json"})
    )
    apply(entries.table(), config)
    assert not list(tmp_path.iterdir()), "nor does what declares nothing"


def test_a_zero_timestamp_does_not_make_the_column_a_text(tmp_path: Path) -> None:
    """It is rejected, by name, and no instant behind it is."""
    entries, config = Entries(), pipeline(tmp_path / "t")
    zero, instant = "0000-00-00 00:00:00", '{"_id": 2, "at": {"$date": "2026-01-31T23:59:59Z"}}'
    entries.commit(put(1, at=zero), columns_of(at="timestamp"))
    entries.commit(change(2, "insert", text=instant))
    assert apply(entries.table(), config).rejected == 1
    assert kind(tmp_path / "t", "at") == "timestamp"


def test_a_column_that_is_there_keeps_its_kind(tmp_path: Path) -> None:
    entries, config = Entries(), pipeline(tmp_path / "t")
    entries.commit(put(1, j="red"))
    apply(entries.table(), config)
    entries.commit(put(2, j="blue"), columns_of(j="json"))
    assert apply(entries.table(1), config, batch_id=1).rejected == 0
    assert kind(tmp_path / "t", "j") == "string"


def test_rows_of_elements_have_declared_columns_beside_them(tmp_path: Path) -> None:
    entries = Entries()
    config = pipeline(tmp_path / "t", transform=[{"explode": "lines"}])
    entries.commit(put(1, j="red", lines=[1, 2]), columns_of(j="json", lines="json"))
    entries.commit(put(2, j=[5], lines=[3]))
    assert apply(entries.table(), config).rejected == 0
    assert kind(tmp_path / "t", "j") == "json"
    assert kind(tmp_path / "t", "lines") == "int32", "the elements' own kind"


def declared(*events: Any, steps: tuple[TransformConfig, ...] = ()) -> dict[str, Kind]:
    """What `declared_by` makes of events about `orders`."""
    entries = Entries()
    entries.commit(*events)
    rows: list[Any] = entries.table().to_pylist()
    return declared_by(map(control_of, rows), "orders", steps)


def test_two_declarations_of_one_field_are_json_which_holds_both() -> None:
    assert declared(columns_of(v="timestamp")) == {"v": Kind.TIMESTAMP}
    both = columns_of(v="timestamp"), columns_of(v="json", database="other")
    for order in itertools.permutations(both):
        assert declared(*order) == {"v": Kind.JSON}


def test_types_that_are_not_known_here_and_other_events_declare_nothing() -> None:
    assert kinds_of({"a": "xml", "b": "json"}) == {"b": Kind.JSON}
    assert declared(schema_event("create"), schema_event("modify", columns=[])) == {}
    assert declared(schema_event("create", columns="?"), schema_event("modify", columns=[1])) == {}
    assert declared(schema_event("modify", collection="lines", varying={"v": "json"})) == {}


LISTED = [
    {"name": "id", "type": "int"},
    {"name": "j", "type": "json", "nullable": True},
    {"name": "t", "type": "timestamp(6)"},
    {"name": "u", "type": "timestamp"},
    {"name": "d", "type": "datetime(6)"},
]
MAPPED = {"id": "int4", "j": "jsonb", "k": "JSON", "t": "timestamp", "l": "json[]"}


def test_columns_declare_where_nothing_is_said_of_varying_ones() -> None:
    """As earlier versions told them, by list (MySQL) and by name (Zero's sources)."""
    instants = {"t": Kind.TIMESTAMP, "u": Kind.TIMESTAMP}
    for word in ("create", "modify"):
        assert declared(schema_event(word, columns=LISTED)) == {"j": Kind.JSON, **instants}
        assert declared(schema_event(word, columns=MAPPED)) == {"j": Kind.JSON, "k": Kind.JSON}
    nothing: dict[str, str] = {}
    assert declared(schema_event("modify", columns=LISTED, varying=nothing)) == {}, "masked"


@pytest.mark.parametrize("to", ["table", "history"])
def test_a_log_of_an_earlier_version_declares_by_its_columns(to: str, tmp_path: Path) -> None:
    config = (history if to == "history" else pipeline)(tmp_path / "t")
    entries = Entries()
    entries.commit(put(1, j="red"), schema_event("modify", columns=LISTED))
    entries.commit(put(2, j={"a": 1}))
    assert apply(entries.table(), config).rejected == 0
    assert kind(tmp_path / "t", "j") == "json"


def test_flattening_all_leaves_declared_what_has_no_fields_of_its_own() -> None:
    steps = (TransformConfig.model_validate({"flatten": True}),)
    said = columns_of(j="json", t="timestamp")
    assert declared(said, steps=steps) == {"t": Kind.TIMESTAMP}


@pytest.mark.parametrize(
    ("step", "left"),
    [
        ({"rename": {"a": "c"}}, {"c", "b"}),
        ({"select": ["a"]}, {"a"}),
        ({"drop": ["a"]}, {"b"}),
        ({"drop": ["a.x"]}, {"a", "b"}),
        ({"cast": {"a": "string"}}, {"b"}),
        ({"mask": ["a"]}, {"b"}),
        ({"hash": ["a"], "salt": "0123456789abcdef"}, {"b"}),
        ({"flatten": ["a"]}, {"b"}),
        ({"flatten": True}, NONE),
        ({"explode": "a"}, {"b"}),
        ({"filter": "x", "document_schema": "x BOOLEAN"}, {"a", "b"}),
        ({"sql": "SELECT a FROM documents", "document_schema": "a STRING"}, NONE),
        ({"function": "m:f", "document_schema": "a STRING"}, NONE),
    ],
)
def test_steps_leave_declared_what_they_leave_as_it_is(
    step: dict[str, Any], left: set[str]
) -> None:
    steps = [TransformConfig.model_validate(step)]
    assert set(behind(steps, {"a": Kind.JSON, "b": Kind.JSON})) == left
