"""The Python that Spark starts its processes with on the driver's machine."""

import os
import site
import sys
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path

WITHOUT_ARCHIVES = Path(__file__).parent / "python_home" / "python"
"""Runs the Python named by PENSTOCK_PYTHON without the archives of sources that Spark puts first on
its path."""


def python_environment(
    names: Iterable[str], environ: Mapping[str, str] = os.environ, *, running_jvm: bool = False
) -> dict[str, str]:
    """The environment in which `names`, variables that tell Spark which Python to start, name this
    one: without Spark's archives where it finds the same PySpark installed, and where the JVM that
    starts it is still to get this environment (not a `running_jvm`)."""
    if running_jvm or not _finds_pyspark(environ):
        return dict.fromkeys(names, sys.executable)
    named = dict.fromkeys(names, str(WITHOUT_ARCHIVES))
    return {**named, "PENSTOCK_PYTHON": sys.executable}


def _finds_pyspark(environ: Mapping[str, str]) -> bool:
    """Whether a new process of this Python finds the PySpark of this one without Spark's archives,
    and these are of the same PySpark."""
    if os.name != "posix" or not os.access(WITHOUT_ARCHIVES, os.X_OK):
        return False
    searched = {*site.getsitepackages(), *environ.get("PYTHONPATH", "").split(os.pathsep)}
    folders = [_folder(name) for name in ("pyspark", "py4j")]
    if any(folder is None or str(folder.parent) not in searched for folder in folders):
        return False
    home, pyspark = environ.get("SPARK_HOME"), folders[0]
    # As it is installed by pip, and as in Spark's own distribution.
    return home is None or (pyspark is not None and Path(home) in {pyspark, pyspark.parents[1]})


def _folder(package: str) -> Path | None:
    """Where a package is installed; None if it is not."""
    found = find_spec(package)
    return None if found is None or found.origin is None else Path(found.origin).parent
