"""Tables that pipelines write are Spark's too: read and merged into with Delta Lake's own jars."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.spark.cluster import ROOT, Certified
from tests.spark.tables import Entries, apply, change, pipeline, put, rows_of
from tests_support.servers import DELTA, ServerUnavailableError

pytestmark = [pytest.mark.spark, pytest.mark.soak]


def with_delta(table: Path, folder: Path) -> dict[str, Any]:
    """What Spark says of the table before it merges into it."""
    try:
        jars = DELTA.paths()
    except ServerUnavailableError as error:
        pytest.skip(str(error))
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.delta_spark", table, ",".join(map(str, jars))],
        cwd=ROOT,
        env=Certified(folder).environment(folder),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def test_spark_reads_a_table_and_merges_into_it_and_the_pipeline_goes_on(tmp_path: Path) -> None:
    entries, path = Entries(), tmp_path / "orders"
    config = pipeline(path)
    day = {"$date": "2026-03-29T01:30:00Z"}
    exact = {"$numberDecimal": "10.25"}
    entries.commit(
        change(1, "insert", text=json.dumps({"_id": 1, "n": 1, "name": "a", "at": day})),
        change(2, "insert", text=json.dumps({"_id": 2, "n": 2, "total": exact, "tags": ["x"]})),
        put(3, n=3),
    )
    apply(entries.table(), config)
    # The column is widened, which writes the table anew; a row goes.
    entries.commit(put(4, n=0.5), change(3, "delete"))
    apply(entries.table(3), config)

    said = with_delta(path, tmp_path)
    assert [row["_key"] for row in said["rows"]] == ['{"_id":1}', '{"_id":2}', '{"_id":4}']
    assert [row["n"] for row in said["rows"]] == [1.0, 2.0, 0.5]
    assert [row["_sequence"] for row in said["rows"]] == [1, 2, 4]
    assert said["rows"][0]["at"] == "2026-03-29T01:30:00.000Z"
    assert said["types"]["n"] == "double"

    assert DeltaTable(str(path)).history(1)[0]["operation"] == "MERGE"
    assert rows_of(path)["db", '{"_id":1}']["name"] == "merged"
    # The table still says how far the pipeline has come: what it has is not applied again.
    assert apply(entries.table(), config).rows == 0
    entries.commit(change(1, "update", update={"updatedFields": {"name": "z"}}))
    assert apply(entries.table(5), config).rows == 1
    assert rows_of(path)["db", '{"_id":1}']["name"] == "z"
