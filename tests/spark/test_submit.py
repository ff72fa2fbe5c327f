"""Under spark-submit, what it was told wins over our settings."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.spark.session import LOCAL_SETTINGS, SETTINGS
from tests.spark.cluster import ROOT, Certified
from tests.spark.submitted import CODE

ZONE = "spark.sql.session.timeZone"
MEMORY = "spark.driver.memory"
PARTITIONS = "spark.sql.shuffle.partitions"


@pytest.mark.spark
@pytest.mark.slow
def test_settings_come_from_the_code_then_from_spark_submit_and_then_from_us(
    tmp_path: Path,
) -> None:
    told = {MEMORY: "600m", ZONE: "Asia/Kolkata", PARTITIONS: "3", "spark.ui.enabled": "false"}
    command = [str(Path(sys.executable).with_name("spark-submit")), "--master", "local[1]"]
    done = subprocess.run(
        [
            *command,
            *(f"--conf={name}={value}" for name, value in told.items()),
            str(ROOT / "tests/spark/submitted.py"),
            *(*SETTINGS, MEMORY, "spark.driver.bindAddress"),
        ],
        env=Certified(tmp_path).environment(tmp_path),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert {name: said[name] for name in CODE} == CODE
    assert (said[ZONE], said[MEMORY]) == (told[ZONE], told[MEMORY])
    ours = {name: value for name, value in SETTINGS.items() if name not in told}
    assert {name: said[name] for name in ours} == ours
    # Executors on other machines could not reach a driver on loopback.
    assert said["spark.driver.bindAddress"] != LOCAL_SETTINGS["spark.driver.bindAddress"]
    assert said["master"] == "local[1]"
    master, decided, late = said["refused"]
    assert "local[7]" in master
    assert "spark.driver.memory, spark.jars.packages any more" in decided
    assert "spark.executor.memory any more" in late
