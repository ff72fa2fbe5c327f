"""Under spark-submit, what it was told wins over our settings."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.spark.session import LOCAL_SETTINGS, SETTINGS
from tests.spark.cluster import ROOT, Certified

STATE = "spark.sql.streaming.stateStore.providerClass"
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
            *(STATE, ZONE, MEMORY, PARTITIONS, "spark.driver.bindAddress"),
        ],
        env=Certified(tmp_path).environment(tmp_path),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said[PARTITIONS] == "7"
    assert (said[ZONE], said[MEMORY]) == (told[ZONE], told[MEMORY])
    assert said[STATE] == SETTINGS[STATE]
    # Executors on other machines could not reach a driver on loopback.
    assert said["spark.driver.bindAddress"] != LOCAL_SETTINGS["spark.driver.bindAddress"]
    assert said["master"] == "local[1]"
    assert "local[7]" in said["refused"]
