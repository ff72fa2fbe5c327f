"""A pipeline in a driver with little memory: small_driver.py ENDPOINT CONFIG [apart].

CONFIG is JSON. With `apart` workers and driver share no folder, as on a cluster.
"""

import json
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from penstock.spark.audit import AuditTarget
from penstock.spark.destinations import config_class
from penstock.spark.run import run_pipeline
from penstock.spark.session import local_session
from penstock.spark.table import collect

HEAP_BYTES: Final = 512 << 20


@contextmanager
def no_scratch(_: object) -> Generator[None]:
    yield None


if __name__ == "__main__":
    endpoint, said, *apart = sys.argv[1:]
    if apart:
        for module in (collect, sys.modules[AuditTarget.__module__]):
            setattr(module, "shared_scratch", no_scratch)  # noqa: B010 - a name that it imports
    config = json.loads(said)
    settings = {"spark.log.level": "OFF", "spark.driver.memory": str(HEAP_BYTES)}
    run_pipeline(
        "p",
        config_class(config["to"]).model_validate(config),
        endpoint,
        spark=local_session(master="local[2]", settings=settings),
        once=True,
    )
