"""What storage refuses is said with its path and its kind, and without its text."""

import errno
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import bson
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from deltalake.exceptions import DeltaError
from py4j.protocol import Py4JError
from pydantic import SecretStr
from pyspark.errors import PySparkException

from penstock.audit.fold import Row
from penstock.audit.fold import Table as FoldedTable
from penstock.errors import PipelineError
from penstock.spark.config import ReplicatePipelineConfig
from penstock.spark.raised import own_error
from penstock.spark.replicate import destination_of
from penstock.spark.restored import write_state
from penstock.spark.storage import stored_at
from penstock.spark.table.delta import Table, secrets
from tests.archive.bucket import Bucket


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A table of two commits."""
    path = tmp_path / "table"
    for mode in ("error", "append"):
        write_deltalake(str(path), pa.table({"a": ["secret"]}), mode=mode)
    return path


def truncate(path: Path) -> None:
    *_, last = sorted((path / "_delta_log").glob("*.json"))
    last.write_bytes(last.read_bytes()[:-100])


def forget(path: Path) -> None:
    (path / "_delta_log" / f"{0:020}.json").unlink()


def remove(path: Path) -> None:
    for one in path.glob("*.parquet"):
        one.unlink()


def spoil(path: Path) -> None:
    for one in path.glob("*.parquet"):
        one.write_bytes(b"PAR1 secret PAR1")


def replace(path: Path) -> None:
    path.rename(path.with_name("away"))
    path.write_text("secret")


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (truncate, "damaged: "),
        (forget, "missing: "),
        (remove, "missing: "),
        (spoil, "damaged: "),
        (replace, "in the way of a folder"),
    ],
)
def test_what_is_wrong_with_a_table_is_said_with_its_path(
    path: Path, harm: Callable[[Path], None], says: str
) -> None:
    names = {one.name for one in path.glob("*.parquet")}
    harm(path)
    with pytest.raises(Exception) as raised:  # noqa: PT011 - whatever it is by its class
        list(Table(str(path)).scan())
    said = str(own_error(raised.value, pipeline="p"))
    assert says in said
    assert str(path) in said
    assert "Spark's log" not in said
    assert "secret" not in said
    assert any(name in said for name in names) == (harm in {remove, spoil})


def test_a_path_that_runs_into_a_file_is_not_taken_for_a_table_that_is_new(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert Table(str(tmp_path / "none")).version == -1
    with pytest.raises(DeltaError) as raised:
        Table(str(tmp_path / "file" / "table"))
    said = str(own_error(raised.value, pipeline="p"))
    assert "in the way of a folder" in said
    assert f"{tmp_path}/file/table" in said


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (PermissionError(errno.EACCES, "secret", "/lake/t"), "access is denied: /lake/t ("),
        (OSError(errno.ENOSPC, "secret", "/tmp/x"), "no space left: /tmp/x ("),
        (OSError("secret\n -> AccessDenied"), "access is denied (OSError)"),
        (OSError("secret"), "the storage refused it (OSError)"),
        (DeltaError("secret: tcp connect error (os error 111)"), "does not answer (DeltaError)"),
        (PySparkException("java.io.IOException: No space left on device"), "no space left ("),
    ],
)
def test_of_an_error_of_storage_only_its_kind_and_its_path_are_told(
    error: Exception, says: str
) -> None:
    said = own_error(error, pipeline="p")
    assert type(said) is PipelineError
    assert says in str(said)
    assert "secret" not in str(said)


def test_a_worker_that_cannot_write_says_where_through_spark() -> None:
    with pytest.raises(FileExistsError) as raised, stored_at("/lake/changes"):
        raise FileExistsError(errno.EEXIST, "File exists", "/lake/changes/secret")
    text = "\n".join(["Traceback", f"FileExistsError: {raised.value}", *raised.value.__notes__, ""])
    said = str(own_error(PySparkException(text), pipeline="p"))
    assert "in the way of a folder, or a folder in that of a file: /lake/changes (" in said
    assert "FileExistsError" in said
    assert "secret" not in said


def test_only_what_came_from_spark_is_looked_for_in_its_log() -> None:
    for error in (PySparkException("secret"), Py4JError("secret")):
        assert "Spark's log has its text" in str(own_error(error, pipeline="p"))
    with pytest.raises(ValueError, match="secret") as raised:
        int("secret")
    said = str(own_error(raised.value, pipeline="p"))
    assert "Spark" not in said
    assert "ValueError, which is no error of Penstock's own (test_storage.py:" in said
    assert "secret" not in said


def test_a_driver_of_a_database_that_is_not_installed_is_named_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    monkeypatch.delitem(sys.modules, "penstock.spark.replica.postgres", raising=False)
    config = ReplicatePipelineConfig.model_validate(
        {"source": "shop", "to": "replicate", "uri": "postgresql://h/d", "collections": ["a"]}
    )
    with pytest.raises(ImportError) as raised:
        destination_of("p", config)
    said = own_error(raised.value, pipeline="p")
    assert said.exit_code == 2
    assert "pip install 'penstock[postgresql]'" in str(said)


def settings_of(bucket: Bucket) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL": bucket.address,
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "any",
        "AWS_SECRET_ACCESS_KEY": "any",
        "AWS_REGION": "here",
    }


@pytest.fixture
def proxied(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment names a proxy, of which nothing answers."""
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")


@pytest.mark.usefixtures("proxied")
def test_a_bucket_on_this_machine_is_reached_without_a_proxy_of_the_environment() -> None:
    with Bucket() as bucket:
        said = {"max_retries": "0", **settings_of(bucket)}
        options = secrets({name: SecretStr(value) for name, value in said.items()})
        rows = pa.table({"a": [1]})
        write_deltalake("s3://bucket/lake/orders", rows, storage_options=options)
        assert Table("s3://bucket/lake/orders", storage_options=options).schema == rows.schema


@pytest.mark.usefixtures("proxied")
def test_rows_of_a_trail_reach_a_bucket_on_this_machine_without_it_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Bucket() as bucket:
        for name, value in settings_of(bucket).items():
            monkeypatch.setenv(name, value)
        orders = FoldedTable(name=("shop", "orders"), began="created", at=1, ts=1)
        row = bson.encode({"_id": 1})
        orders.rows[row] = Row(data=row, whole=True, shape=0)
        # delta-rs holds the interpreter while it looks whether there is a table.
        with ProcessPoolExecutor(1, get_context("spawn")) as another:
            written = another.submit(write_state, "s3://bucket/then", "s", [orders], at=1)
            assert written.result() == [("shop.orders", 1)]
        assert any(key.endswith(".parquet") for key in bucket.written)
