"""Processes that Spark starts load PySpark as it is installed, not from an archive of its sources,
which would be compiled anew by each."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import py4j
import pyarrow as pa
import pyspark
import pytest
from pyspark.sql.datasource import DataSource

from penstock.spark.interpreter import WITHOUT_ARCHIVES, python_environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOME = Path(pyspark.__file__).parent
NAMES = ("PYSPARK_DRIVER_PYTHON", "PYSPARK_PYTHON")
OWN = dict.fromkeys(NAMES, sys.executable)


def _place() -> str:
    archives = [one for one in sys.path if one.startswith(str(HOME)) and Path(one).is_file()]
    return f"{pyspark.__file__} {archives}"


class Told(DataSource):
    """Has a column named after where the process that plans found PySpark."""

    @classmethod
    def name(cls) -> str:
        return "told"

    def schema(self) -> str:
        return f"`{_place()}` STRING"


def _worker(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        yield pa.RecordBatch.from_pydict({"place": [_place()]})


@pytest.mark.slow
def test_what_spark_starts_finds_pyspark_where_it_is_installed(spark: "SparkSession") -> None:
    """Those that plan, also a stream's; and those that do tasks."""
    assert spark.sparkContext.pythonExec == str(WITHOUT_ARCHIVES)
    spark.dataSource.register(Told)
    found: Any = spark.range(1).mapInArrow(_worker, "place STRING").toArrow()
    assert found["place"].to_pylist() == [f"{pyspark.__file__} []"]
    planned: Any = spark.read.format("told").load()
    assert planned.columns == [f"{pyspark.__file__} []"]


@pytest.mark.parametrize("home", [None, HOME, HOME.parents[1]])
def test_it_is_that_of_the_driver(home: Path | None) -> None:
    environ = {} if home is None else {"SPARK_HOME": str(home)}
    found = python_environment(NAMES, environ)
    named = dict.fromkeys(NAMES, str(WITHOUT_ARCHIVES))
    assert found == {**named, "PENSTOCK_PYTHON": sys.executable}
    assert python_environment(NAMES, {"SPARK_HOME": "/opt/spark"}) == OWN
    # A JVM that runs already does not learn of PENSTOCK_PYTHON any more.
    assert python_environment(NAMES, environ, running_jvm=True) == OWN


def test_where_it_would_not_be_found_archives_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the program has put its folder on its own path."""
    monkeypatch.setattr("site.getsitepackages", lambda: ["/elsewhere"])
    assert python_environment(NAMES, {}) == OWN
    searched = os.pathsep.join({str(Path(str(one.__file__)).parents[1]) for one in (pyspark, py4j)})
    found = python_environment(NAMES, {"PYTHONPATH": searched})
    assert found["PYSPARK_PYTHON"] == str(WITHOUT_ARCHIVES)


def test_only_sparks_own_archives_are_left_out(tmp_path: Path) -> None:
    own = [f"{HOME}/python/lib/pyspark.zip", f"{HOME}/jars/spark-core_2.13-4.2.1.jar"]
    users = [f"{tmp_path}/a b*.zip", f"{HOME}/python", str(tmp_path)]
    environ = {"SPARK_HOME": str(HOME), "PENSTOCK_PYTHON": sys.executable}
    for path, left in (([*own, *users], users), (own, [])):
        ran = subprocess.run(
            [WITHOUT_ARCHIVES, "-S", "-c", "import sys; print(*sys.path, sep='\\n')", "an option"],
            env={**environ, "PYTHONPATH": os.pathsep.join(path)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert ran.stdout.splitlines()[1 : len(left) + 1] == left
        assert not set(own).intersection(ran.stdout.splitlines())
