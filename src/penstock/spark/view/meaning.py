"""Whether a query, taken apart and written anew, is still what Spark reads in its text.

What reads a query here is not Spark. So Spark itself is asked, with rows of the types that there
are and none of them: it must make one plan of both.
"""

# pyright: reportUnknownMemberType=false

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from penstock.spark.view.causes import of_values
from penstock.spark.view.query import ViewQuery
from penstock.spark.view.sql import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def check_meaning(
    spark: "SparkSession", query: ViewQuery, schemas: Mapping[str, "StructType"]
) -> None:
    """Refuse a query that Spark reads in another way. Raises ValueError that says so, and what
    Spark does of a query that is none.

    `spark` is a session of its own; `schemas` has the columns of each collection.
    """
    for name, schema in schemas.items():
        spark.createDataFrame([], schema).createOrReplaceTempView(quoted(name))
    written, read = spark.sql(query.written), spark.sql(query.read)
    one, other = _plan(written), _plan(read)
    same = one == other if isinstance(one, str) or isinstance(other, str) else one.sameResult(other)
    if not same:
        raise ValueError(
            f"what Spark reads in another way than the view would. The view would ask: {query.read}"
        )


def _plan(rows: "DataFrame") -> Any:
    """What Spark would do; a text where it finds without any row that it cannot, and why."""
    frame: Any = rows
    try:
        return frame._jdf.queryExecution().optimizedPlan()
    except Exception as error:
        why = of_values(error)
        if why is None:
            raise
        return why
