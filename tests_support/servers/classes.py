"""JVMs of tests: what makes those that live for a minute start fast.

Half of what a driver's first minute takes is compiling for hours that it does not live, and half of
the rest is reading Spark's classes. So they compile little, and map the classes from an archive
that one run of Spark has left (class data sharing; JDK 13 and later, JEP 350).

`make servers` makes it. Run by spark-submit, this module is the program that uses what tests use.
"""

# The stubs of pyspark leave arguments open.
# pyright: reportUnknownMemberType=false

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.errors import ConfigError
from penstock.spark.java import java_environment
from tests_support.servers.packages import ServerUnavailableError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

_FEW: Final = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC "
    # A JVM that compiles little keeps 48 MiB of code, which Spark's fills: what is thrown away is
    # compiled again. And every step in which room for classes grows is a collection of all garbage.
    "-XX:ReservedCodeCacheSize=160m -XX:MetaspaceSize=160m"
)
_SECONDS_MAX: Final = 600.0
"""Fifteen are enough on a machine that does nothing else."""


def archive() -> Path:
    """Where the archive is: beside the jars whose paths it names."""
    try:
        installed = version("pyspark")
    except PackageNotFoundError:
        installed = "none"
    return Path(sys.prefix, f"spark-classes-{installed}.jsa")


def short_lived() -> str:
    """The options of a JVM that lives for a minute; without an archive, or with one that is of
    another Java or of other jars, it reads its classes itself and says nothing.

    Java does not look at TMPDIR: Spark's local folders and unpacked libraries would be in /tmp.
    """
    temporary = f'"-Djava.io.tmpdir={tempfile.gettempdir()}" -XX:-UsePerfData'
    return f'{_FEW} {temporary} "-XX:SharedArchiveFile={archive()}" -Xshare:auto -Xlog:disable'


def archive_classes() -> Path:
    """Make the archive if there is none; where it is.

    Raises ServerUnavailableError where Spark does not run, or leaves none.
    """
    whole = archive()
    if whole.exists():
        return whole
    found = find_spec("pyspark")
    if found is None or found.origin is None:
        raise ServerUnavailableError("Spark is not installed. Run pip install 'penstock[spark]'.")
    part = whole.with_suffix(".part")
    part.unlink(missing_ok=True)
    try:
        environment = {
            **os.environ,
            **java_environment(),
            "PYSPARK_PYTHON": sys.executable,
            # A program that spark-submit runs finds what is beside it alone.
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "SPARK_SUBMIT_OPTS": f'{_FEW} "-XX:ArchiveClassesAtExit={part}"',
        }
        subprocess.run(
            [Path(found.origin).parent / "bin" / "spark-submit", __file__],
            env=environment,
            check=True,
            stdout=subprocess.DEVNULL,
            timeout=_SECONDS_MAX,
        )
    except (ConfigError, OSError, subprocess.SubprocessError) as error:
        raise ServerUnavailableError(f"Spark did not leave its classes: {error}") from error
    if not part.exists():
        raise ServerUnavailableError(f"Spark did not leave its classes: no {part}.")
    part.replace(whole)
    return whole


def _same(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
    return batches


def _read(batch: "DataFrame", _: int) -> None:
    batch.collect()


def main() -> None:
    """Rows through SQL, a Python worker, files and a stream."""
    from penstock.spark.session import local_session

    with tempfile.TemporaryDirectory() as folder:
        spark = local_session(app_name="classes")
        few = [(1, '{"a": 1}', "x"), (2, '{"a": 2}', "y")]
        rows = spark.createDataFrame(few, "n int, j string, s string")
        rows.createOrReplaceTempView("rows")
        grouped = spark.sql(
            "SELECT s, sum(n) AS n, max(get_json_object(one.j, '$.a')) AS a, max_by(one.j, n) AS j "
            "FROM rows AS one LEFT JOIN rows AS other USING (n, s) GROUP BY s ORDER BY s"
        )
        grouped.collect()
        rows.mapInArrow(_same, rows.schema).write.parquet(f"{folder}/rows")
        stream = spark.readStream.schema(rows.schema).parquet(f"{folder}/rows")
        query = (
            stream.writeStream.foreachBatch(_read)
            .option("checkpointLocation", f"{folder}/checkpoint")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        spark.stop()


if __name__ == "__main__":
    main()
