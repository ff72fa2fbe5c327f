"""A pipeline as a project of Spark Declarative Pipelines, which Spark itself accepts."""

import ast
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.client.credentials import CA_VARIABLE
from penstock.errors import ConfigError
from penstock.spark.config import AuditPipelineConfig, TablePipelineConfig
from penstock.spark.exporting import columns_of, project
from penstock.spark.java import java_environment
from penstock.spark.table.kinds import Kind, column_field
from penstock.spark.table.writing import HARMLESS
from tests.cli.service import configure, penstock

PIPELINE = r"""
[pipelines.orders]
source = "shop"
collections = ["orders", "it's \"odd\""]
path = "lake"
"""


def exported(config: Any, **schemas: str) -> dict[str, str]:
    return project(
        "orders",
        config,
        endpoint="127.0.0.1:50052",
        storage="file:///tmp/s",
        schemas=schemas,
        harmless=HARMLESS,
    )


def table(*collections: str) -> TablePipelineConfig:
    return TablePipelineConfig.model_validate(
        {"source": "shop", "collections": collections, "path": "lake"}
    )


def test_what_is_no_flow_is_refused() -> None:
    with pytest.raises(ConfigError, match="'audit'"):
        exported(AuditPipelineConfig.model_validate({"to": "audit", "source": "s", "uri": "x"}))
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


def test_columns_are_those_of_the_table_that_the_pipeline_made() -> None:
    fields = [
        column_field("_id", Kind.OBJECT_ID, field="_id"),
        column_field("a_b", Kind.DECIMAL, field="a b"),
    ]
    assert columns_of(pa.schema(fields)) == "`_id` STRING, `a b` DECIMAL(38,18)"
    assert columns_of(pa.schema([*fields, column_field("x", Kind.JSON, field="x")])) == ""


@pytest.mark.spark
@pytest.mark.slow
def test_spark_accepts_the_project(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever a collection is called: `spark-pipelines dry-run` resolves every flow."""
    config = configure(tmp_path, '[sources.shop]\ntype = "script"\n' + PIPELINE)
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
    assert "Run is COMPLETED" in done.stdout + done.stderr, done.stderr
    assert done.returncode == 0
