"""Whether a query, taken apart and written anew, is still what Spark reads in its text.

What reads a query here is not Spark. So Spark itself is asked, with rows of the types that there
are and none of them: it must make one plan of both.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from penstock.spark.causes import of_values, why_not
from penstock.spark.view.moments import is_moment, of_moment
from penstock.spark.view.query import ViewQuery
from penstock.spark.view.sql import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_DATED: Final = frozenset({"date", "timestamp", "timestamp_ntz"})
_REPLACED: Final = "org.apache.spark.sql.catalyst.expressions.RuntimeReplaceable"
"""What Spark computes by another expression, as to_date."""


def check_meaning(
    spark: "SparkSession", query: ViewQuery, schemas: Mapping[str, "StructType"]
) -> None:
    """Refuse a query that Spark reads in another way, or at another time as another one. Raises
    ValueError that says so, and what Spark does of a query that is none.

    `spark` is a session of its own; `schemas` has the columns of each collection.
    """
    for name, schema in schemas.items():
        spark.createDataFrame([], schema).createOrReplaceTempView(quoted(name))
    written, read = spark.sql(query.written), spark.sql(query.read)
    for text in _dated(spark, read):
        if is_moment(text):
            raise ValueError(of_moment(text))
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


def _dated(spark: "SparkSession", rows: "DataFrame") -> Iterator[str]:
    """The constant texts of a query that Spark makes dates or timestamps of."""
    from py4j.java_gateway import is_instance_of

    session: Any = spark
    gateway = session.sparkContext._gateway

    def whole(node: Any) -> Iterator[Any]:
        yield node
        for child in _parts(node.children()):
            yield from whole(child)
        if is_instance_of(gateway, node, _REPLACED):
            yield from whole(node.replacement())

    frame: Any = rows
    for plan in whole(frame._jdf.queryExecution().analyzed()):
        for expression in _parts(plan.expressions()):
            for node in whole(expression):
                if node.nodeName() == "Cast" and node.dataType().typeName() in _DATED:
                    yield from _constant(node.child())


def _constant(node: Any) -> list[str]:
    """The value of a constant expression; of none that it has not."""
    found: list[str] = []
    if node.foldable():
        why_not(lambda: found.append(str(node.eval(None))))
    return found


def _parts(several: Any) -> Iterator[Any]:
    """The parts of a sequence of Scala's."""
    for at in range(several.length()):
        yield several.apply(at)
