"""One Spark for all tests that need one; `from pyspark...` happens only where it is used."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.errors import ConfigError
from tests.spark.few_rows import FEW_ROWS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPARK_FIXTURES = frozenset({"spark"})


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark whoever uses Spark, so that the fast loop cannot start it by mistake."""
    for item in items:
        if SPARK_FIXTURES.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.spark)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator["SparkSession"]:
    """A local session on two cores. Shared: stop your queries, and set no option for good."""
    from penstock.spark.session import local_session

    scratch: Path = tmp_path_factory.mktemp("spark")
    try:
        session = local_session(
            app_name="tests",
            master="local[2]",
            settings={
                **FEW_ROWS,
                "spark.sql.shuffle.partitions": "2",
                "spark.sql.warehouse.dir": str(scratch / "warehouse"),
                "spark.local.dir": str(scratch),
                "spark.driver.memory": "1500m",
                "spark.log.level": "ERROR",
            },
        )
    except ConfigError as error:
        if "true" in (os.environ.get("CI"), os.environ.get("PENSTOCK_SERVERS_REQUIRED")):
            pytest.fail(str(error))
        pytest.skip(str(error))
    yield session
    session.stop()
