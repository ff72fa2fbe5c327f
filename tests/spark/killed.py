"""A pipeline in a process of its own that dies where its table would be written: ENDPOINT PATH."""

import os
import signal
import sys
from pathlib import Path
from typing import Any

from penstock.spark.run import run_pipeline
from penstock.spark.session import local_session
from penstock.spark.table.delta import Table
from tests.spark.tables import pipeline

STEPS: dict[str, Any] = {
    "transform": [{"cast": {"n": "int"}}],
    "expect": [
        {"name": "positive", "condition": "n > 0", "document_schema": "n INT", "action": "drop"}
    ],
}


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    setattr(Table, "merge", die)  # noqa: B010 - it is no such method
    run_pipeline(
        "p",
        pipeline(Path(sys.argv[2]), **STEPS),
        sys.argv[1],
        spark=local_session(
            master="local[2]", settings={"spark.log.level": "OFF", "spark.driver.memory": "512m"}
        ),
        once=True,
    )
