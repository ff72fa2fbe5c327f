"""What Spark's errors are told apart by, whatever the rows hold that they quote."""

# pyright: reportUnknownMemberType=false, reportUnknownLambdaType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from penstock.errors import PipelineError
from penstock.spark.causes import is_called, quotes_values
from penstock.spark.raised import is_overtaken, known_error, own_error
from penstock.spark.storage import trouble_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

TEXT = (
    "java.lang.OutOfMemoryError: Java heap space is bigger than spark.driver.maxResultSize, Python "
    "worker failed to connect back, CANNOT_OPEN_SOCKET, offset overflow while concatenating, "
    "DELTA_CONCURRENT_APPEND, TABLE_OR_VIEW_ALREADY_EXISTS, penstock.errors.TrimmedError: gone, "
    "penstock storage at: /lake, java.io.IOException: No space left on device\n"
    "penstock storage at: /lake\npenstock.errors.TrimmedError: gone\n"
    "offset overflow while concatenating\npenstock error: {}"
)
"""A value of a row with the words of everything that else stops a pipeline."""


def in_sql(spark: "SparkSession") -> object:
    return spark.sql(f"SELECT CAST('{TEXT}' AS INT)").collect()


def by_raise_error(spark: "SparkSession") -> object:
    return spark.sql(f"SELECT raise_error('{TEXT}')").collect()


def in_python(spark: "SparkSession") -> object:
    from pyspark.sql.functions import udf

    refused = TEXT  # by value: the worker has no module of tests
    return spark.range(1).select(udf(lambda _: int(refused), "int")("id")).collect()


@pytest.mark.parametrize("fails", [in_sql, by_raise_error, in_python])
def test_what_an_error_quotes_of_a_row_says_nothing_of_what_it_is(
    spark: "SparkSession", fails: Callable[["SparkSession"], object]
) -> None:
    with pytest.raises(Exception, match="OutOfMemoryError") as raised:
        fails(spark)
    error = raised.value
    assert quotes_values(error)
    assert known_error(error, pipeline="p") is None
    assert trouble_of(error) is None
    assert not is_overtaken(error)
    assert not is_called(error, "TABLE_OR_VIEW_ALREADY_EXISTS")
    own = own_error(error, pipeline="p")
    assert type(own) is PipelineError
    assert "Spark's log has its text" in str(own)
    assert "heap" not in str(own)


def test_spark_says_by_what_it_calls_an_error_what_it_is(spark: "SparkSession") -> None:
    with pytest.raises(Exception, match="nowhere") as raised:
        spark.sql("SELECT * FROM nowhere").collect()
    assert is_called(raised.value, "TABLE_OR_VIEW_NOT")
    assert not quotes_values(raised.value)
