"""A pipeline as a project of Spark Declarative Pipelines, which Spark itself accepts."""

import ast
import inspect
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from penstock.client.credentials import CA_VARIABLE
from penstock.errors import ConfigError, TrimmedError
from penstock.serve.flight import FlightServer
from penstock.spark.config import (
    AuditPipelineConfig,
    HistoryPipelineConfig,
    TablePipelineConfig,
)
from penstock.spark.datasource import PenstockStreamReader
from penstock.spark.destinations import config_class
from penstock.spark.exporting import columns_of, project
from penstock.spark.history.columns import VERSION_COLUMNS
from penstock.spark.java import java_environment
from penstock.spark.options import parse_options
from penstock.spark.rows import ENTRY_SCHEMA
from penstock.spark.table.kinds import Kind, column_field
from penstock.spark.table.writing import HARMLESS
from tests.cli.service import configure, penstock
from tests.flight.blocks import BlockLog, insert

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PIPELINE = r"""
[pipelines.orders]
source = "shop"
collections = ["orders", "it's \"odd\""]
path = "lake"
"""


def exported(config: Any, archive: str = "", **schemas: str) -> dict[str, str]:
    return project(
        "orders",
        config,
        endpoint="127.0.0.1:50052",
        storage="file:///tmp/s",
        schemas=schemas,
        harmless=HARMLESS,
        archive=archive,
    )


def table(*collections: str) -> TablePipelineConfig:
    return TablePipelineConfig.model_validate(
        {"source": "shop", "collections": collections, "path": "lake"}
    )


def history(**settings: Any) -> HistoryPipelineConfig:
    return HistoryPipelineConfig.model_validate(
        {"to": "history", "source": "shop", "collections": ["t"], "path": "lake", **settings}
    )


class Project(SimpleNamespace):
    """What an exported module declares, run without an engine."""

    views: dict[str, Callable[[], "DataFrame"]]
    flows: list[dict[str, Any]]
    stream: "Changes"


class Changes:
    """A stream that is these rows, whatever its options."""

    def __init__(self, rows: "DataFrame | None") -> None:
        self.rows = rows
        self.said: dict[str, str] = {}

    def format(self, _: str) -> "Changes":
        return self

    def options(self, **said: object) -> "Changes":
        self.said = {name: str(one) for name, one in said.items()}
        return self

    def load(self) -> Any:
        return self.rows


def declared(
    files: dict[str, str], monkeypatch: pytest.MonkeyPatch, rows: "DataFrame | None" = None
) -> Project:
    """What the module of a project says to the engine, with `rows` as what it reads."""
    from pyspark import pipelines
    from pyspark.sql import SparkSession

    from penstock import spark as adapter

    project = Project(views={}, flows=[], stream=Changes(rows))

    def view(*, name: str) -> Callable[[Callable[[], "DataFrame"]], None]:
        return lambda function: project.views.update({name: function})

    def flow(
        *,
        track_history_column_list: Sequence[str] | None = None,
        track_history_except_column_list: Sequence[str] | None = None,
        **said: object,
    ) -> None:
        """As in PySpark 4.3: that of 4.2 has no such lists, and takes no type but 1."""
        tracked = {
            "track_history_column_list": track_history_column_list,
            "track_history_except_column_list": track_history_except_column_list,
        }
        project.flows.append(said | {name: one for name, one in tracked.items() if one})

    def nothing(_: object) -> None:
        pass

    monkeypatch.setattr(pipelines, "temporary_view", view)
    monkeypatch.setattr(pipelines, "create_streaming_table", nothing)
    monkeypatch.setattr(pipelines, "create_auto_cdc_flow", flow)
    monkeypatch.setattr(adapter, "register", nothing)
    session = SimpleNamespace(readStream=project.stream)
    monkeypatch.setattr(SparkSession, "active", lambda: session)
    (module,) = (text for path, text in files.items() if path.endswith(".py"))
    exec(compile(module, "exported", "exec"), {})
    return project


ENTRIES = (
    "sequence BIGINT, kind INT, operation_type STRING, source STRING, database STRING, key STRING, "
    "full_document STRUCT<_id: INT, a: INT, b: STRING>, unchanged ARRAY<STRING>"
)


def test_what_is_no_flow_is_refused() -> None:
    with pytest.raises(ConfigError, match="'audit'"):
        exported(
            AuditPipelineConfig.model_validate({"to": "audit", "source": "s", "uri": "mongodb://x"})
        )
    masked = TablePipelineConfig.model_validate(
        {"source": "shop", "collections": ["t"], "path": "lake", "transform": [{"mask": ["a"]}]}
    )
    loaded = table("t").model_copy(update={"first_load": "source"})
    with pytest.raises(ConfigError, match="first load"):
        exported(loaded)
    with pytest.raises(ConfigError, match="steps or expectations"):
        exported(masked, t="a STRING")
    with pytest.raises(ConfigError, match="names its tables"):
        exported(table())
    with pytest.raises(ConfigError, match="those of other are not known"):
        exported(table("orders", "other"), orders="_id INT")
    with pytest.raises(ConfigError, match="one table's name"):
        exported(table("a-b", "a_b"), **{"a-b": "_id INT", "a_b": "_id INT"})


def test_a_project_is_told_whom_to_trust_as_every_client_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = exported(table("orders"), orders="_id STRING")
    (module,) = (text for path, text in files.items() if path.endswith(".py"))
    (secrets,) = (
        line.value
        for line in ast.parse(module).body
        if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == "SECRETS"
    )
    monkeypatch.setenv(CA_VARIABLE, "ca.crt")
    monkeypatch.setenv("PENSTOCK_TOKEN_FILE", "token")
    found = eval(ast.unparse(secrets), {"os": os})
    assert found == {"tokenFile": "token", "tlsCa": "ca.crt"}
    assert CA_VARIABLE in (ast.get_docstring(ast.parse(module)) or "")
    page = Path("docs/how-to/tables.md").read_text()
    assert f"`PENSTOCK_TOKEN_FILE` and `{CA_VARIABLE}` open a service" in page


def test_what_a_flow_has_no_word_for_stops_it() -> None:
    """A drop, a rename, a gap, and an update without its document are not passed over."""
    (text,) = (one for path, one in exported(table("t"), t="a INT").items() if "transf" in path)
    assert "raise_error" in text
    assert "'drop'" not in text
    assert 'failOnDataLoss="true"' in text
    for event in HARMLESS:
        assert f"'{event}'" in text


def test_rows_of_two_databases_are_two_rows(
    spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keys of the flow are what tells rows apart in a pipeline's table."""
    changes: list[tuple[Any, ...]] = [
        (1, 0, "insert", "shop", "north", '{"_id":1}', (1, 10, "x"), None),
        (2, 0, "insert", "shop", "south", '{"_id":1}', (1, 20, "y"), []),
        (3, 0, "update", "shop", "north", '{"_id":1}', (1, 11, None), None),
        (4, 0, "delete", "shop", "south", '{"_id":1}', None, None),
        (5, 4, "started", "shop", "", None, None, None),
        (6, 3, "createIndexes", "shop", "north", None, None, None),
    ]
    rows = spark.createDataFrame(changes, ENTRIES)
    told = declared(exported(table("t"), t="_id INT, a INT, b STRING"), monkeypatch, rows)
    (flow,) = told.flows
    view = told.views[flow["source"]]()
    # What an engine does with it: the last change of each key, but for deletes.
    last: dict[tuple[Any, ...], Any] = {}
    for row in view.orderBy(flow["sequence_by"]).collect():
        last[tuple(row[name] for name in flow["keys"])] = row
    assert [(one["_database"], one["a"], one["b"], one["_deleted"]) for one in last.values()] == [
        ("north", 11, None, False),
        ("south", None, None, True),
    ]
    assert flow["apply_as_deletes"] == "_deleted"


@pytest.mark.parametrize(
    "entry",
    [
        (7, 0, "update", "shop", "north", '{"_id":1}', (1, 11, None), ["b"]),
        (7, 0, "update", "shop", "north", '{"_id":1}', None, None),
        (7, 3, "drop", "shop", "north", None, None, None),
        (7, 2, "gap", "shop", "", None, None, None),
    ],
)
def test_a_change_that_does_not_say_the_whole_row_stops_a_flow(
    entry: tuple[Any, ...], spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its unchanged fields would become null; so would all of those that a source left out."""
    from pyspark.errors import PySparkException

    rows = spark.createDataFrame([entry], ENTRIES)
    told = declared(exported(table("t"), t="_id INT, a INT, b STRING"), monkeypatch, rows)
    (view,) = told.views.values()
    whole = ", which comes without its whole document" if entry[1] == 0 else ""
    with pytest.raises(PySparkException, match=f"cannot apply {entry[2]} at sequence 7{whole}; "):
        view().collect()


COLUMNS = "_id INT, s STRUCT<views: INT, x: DECIMAL(3, 1)>, views INT COMMENT 'a, b', `a b` INT"


@pytest.mark.parametrize(
    ("settings", "tracked"),
    [
        ({}, {"track_history_except_column_list": ["_sequence"]}),
        (
            {"track_history_except_column_list": ["views", "a b", "x", "of another collection"]},
            {"track_history_except_column_list": ["_sequence", "views", "`a b`"]},
        ),
        (
            {"track_history_column_list": ["a b", "x", "views"]},
            {"track_history_column_list": ["`a b`", "views"]},
        ),
    ],
)
def test_a_history_is_a_flow_that_keeps_versions(
    settings: dict[str, Any], tracked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the columns that the collection has; and a new sequence alone makes no version."""
    (flow,) = declared(exported(history(**settings), t=COLUMNS), monkeypatch).flows
    assert flow == {
        "target": "t",
        "source": "t_changes",
        "keys": ["_key", "_source", "_database"],
        "sequence_by": "_sequence",
        "apply_as_deletes": "_deleted",
        "except_column_list": ["_deleted"],
        "stored_as_scd_type": 2,
        **tracked,
    }


def test_a_schema_may_be_json(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = '{"type":"struct","fields":[{"name":"a","type":"integer"}]}'
    config = history(track_history_column_list=["a", "b"])
    (flow,) = declared(exported(config, t=schema), monkeypatch).flows
    assert flow["track_history_column_list"] == ["a"]


def test_a_history_that_tracks_nothing_of_a_collection_is_refused() -> None:
    with pytest.raises(ConfigError, match="tracks status, and of t there is no such column"):
        exported(history(track_history_column_list=["status"]), t="_id INT")


def test_a_history_says_what_pyspark_it_needs() -> None:
    """That of 4.2 would say nothing but that 2 is of another type than 1."""
    files = exported(history(), t="_id INT")
    (module,) = (text for path, text in files.items() if path.endswith(".py"))

    def flow_of_spark_42(**_: object) -> None:
        raise AssertionError

    older = SimpleNamespace(create_auto_cdc_flow=flow_of_spark_42)
    (check,) = (one for one in ast.parse(module).body if isinstance(one, ast.If))
    code = compile(ast.Module([check], []), "exported", "exec")
    with pytest.raises(RuntimeError, match=r"PySpark 4\.3 or newer"):
        exec(code, {"inspect": inspect, "dp": older})
    assert "__START_AT" in module
    assert "__START_AT" in Path("docs/how-to/history.md").read_text()


@pytest.mark.parametrize("to", ["table", "history"])
def test_what_is_marked_as_deleted_is_a_delete_of_the_flow(
    to: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = {"apply_as_deletes": 'state = "gone"', "document_schema": "state STRING"}
    config = config_class(to).model_validate(
        {"to": to, "source": "shop", "collections": ["t"], "path": "lake", **said}
    )
    files = exported(config, t="_id INT, state STRING")
    (flow,) = declared(files, monkeypatch).flows
    assert flow["apply_as_deletes"] == (
        '_deleted OR CASE WHEN (state = "gone") THEN true ELSE false END'
    )
    with pytest.raises(ConfigError, match="reads state, and of t there is no such column"):
        exported(config, t="_id INT")


def test_columns_are_those_of_the_table_that_the_pipeline_made() -> None:
    fields = [
        column_field("_id", Kind.OBJECT_ID, field="_id"),
        column_field("a_b", Kind.DECIMAL, field="a b"),
    ]
    assert columns_of(pa.schema(fields)) == "`_id` STRING, `a b` DECIMAL(38,18)"
    assert columns_of(pa.schema([*fields, column_field("x", Kind.JSON, field="x")])) == ""


def test_of_a_history_that_was_made_the_columns_are_those_of_documents(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And not those that say from when until when a version was so."""
    config = configure(
        tmp_path,
        '[sources.shop]\ntype = "script"\n'
        '[pipelines.h]\nsource = "shop"\ncollections = ["t"]\nto = "history"\npath = "lake"\n',
    )
    made = pa.schema([*VERSION_COLUMNS, column_field("a", Kind.INT32, field="a")])
    DeltaTable.create(str(tmp_path / "lake"), made, partition_by=["_current"])
    folder = tmp_path / "project"
    arguments = ["pipeline", "export", "h", "--to", str(folder), "--config", str(config)]
    assert penstock(capsys, *arguments).code == 0
    assert "documentSchema='`a` INT'" in (folder / "transformations" / "h.py").read_text()


def options_of(files: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """With which options the one flow of a project reads the log."""
    told = declared(files, monkeypatch)
    (view,) = told.views.values()
    with suppress(AttributeError):  # there are no rows behind them
        view()
    return told.stream.said


@pytest.mark.slow
def test_a_flow_begins_with_the_first_change_there_was_or_not_at_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As the pipeline does: rows of which retention took the last change would not be there."""
    log = BlockLog()
    log.append([[insert(number)] for number in range(10)])
    server = FlightServer(log)
    server.start()
    monkeypatch.setenv("PENSTOCK_ENDPOINT", server.address)

    def begins(config: Any, **more: str) -> int:
        # What documents are read as has no part in where, and only Spark reads a schema of theirs.
        as_text = {"documents": "json", "documentSchema": ""}
        options = options_of(exported(config, t="_id INT"), monkeypatch) | as_text | more
        asked = parse_options(options, starting_default="latest")
        reader = PenstockStreamReader(asked, ENTRY_SCHEMA)
        try:
            return int(reader.initialOffset()["sequence"])
        finally:
            reader.stop()

    try:
        assert begins(table("t")) == 0
        log.trim(8)
        for config in (table("t"), history()):
            with pytest.raises(TrimmedError):
                begins(config)
        assert begins(table("t"), failOnDataLoss="false") == 0
        assert begins(table("t").model_copy(update={"start": "oldest"})) == 8
    finally:
        server.stop()


def test_columns_of_a_table_in_a_catalog_are_to_be_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = configure(
        tmp_path,
        '[sources.shop]\ntype = "script"\n'
        '[pipelines.p]\nsource = "shop"\ncollections = ["orders"]\ncatalog = "main.sales"\n',
    )
    folder = tmp_path / "project"
    arguments = ["pipeline", "export", "p", "--to", str(folder), "--config", str(config)]
    refused = penstock(capsys, *arguments)
    assert refused.code == 2
    assert "tell the columns of orders with --schema" in refused.err
    assert not folder.exists()
    told = penstock(capsys, *arguments, "--schema", "orders=_id INT, n INT")
    assert told.code == 0, told.err


def test_a_flow_reads_the_archive_of_its_service(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A URL that holds a secret is not written: whoever runs the project gives it."""
    assert options_of(exported(table("t"), t="_id INT"), monkeypatch)["archive"] == ""
    files = exported(table("t"), archive="s3://bucket/a", t="_id INT")
    assert options_of(files, monkeypatch)["archive"] == "s3://bucket/a"
    config = configure(
        tmp_path,
        '[sources.shop]\ntype = "script"\n[archive]\npath = "s3://key:hidden@bucket/a"\n'
        '[pipelines.p]\nsource = "shop"\ncollections = ["t"]\npath = "lake"\n',
    )
    folder = tmp_path / "project"
    arguments = ["pipeline", "export", "p", "--to", str(folder), "--config", str(config)]
    assert penstock(capsys, *arguments, "--schema", "t=_id INT").code == 0
    written = {"p.py": (folder / "transformations" / "p.py").read_text()}
    assert "hidden" not in written["p.py"]
    with pytest.raises(KeyError, match="PENSTOCK_ARCHIVE"):
        declared(written, monkeypatch)
    monkeypatch.setenv("PENSTOCK_ARCHIVE", "s3://other/a")
    assert options_of(written, monkeypatch)["archive"] == "s3://other/a"


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param("", marks=pytest.mark.soak),
        'to = "history"\ntrack_history_except_column_list = ["total"]\n',
    ],
)
def test_spark_accepts_the_project(
    settings: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever a collection is called: `spark-pipelines dry-run` resolves every flow.

    Versions of rows are for PySpark 4.3; an older one says so.
    """
    from pyspark import pipelines

    config = configure(tmp_path, '[sources.shop]\ntype = "script"\n' + PIPELINE + settings)
    folder = tmp_path / "project"
    arguments = ["pipeline", "export", "orders", "--to", str(folder), "--config", str(config)]
    assert penstock(capsys, *arguments).code == 2
    assert not folder.exists()
    schemas = ["orders=_id STRING, total DECIMAL(38,18)", 'it\'s "odd"=_id STRING']
    for one in schemas:
        arguments += ["--schema", one]
    assert penstock(capsys, *arguments).code == 0
    said = penstock(capsys, *arguments)
    assert said.code == 2
    assert "is there already" in said.err
    command = [str(Path(sys.executable).with_name("spark-pipelines")), "dry-run"]
    environment = {
        **os.environ,
        **java_environment(),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    known = inspect.signature(pipelines.create_auto_cdc_flow).parameters
    if settings and "track_history_column_list" not in known:
        assert "Run it with PySpark 4.3 or newer" in done.stdout + done.stderr
        assert done.returncode
        return
    assert "Run is COMPLETED" in done.stdout + done.stderr, done.stderr
    assert done.returncode == 0
