"""Spark's SQL as sqlglot reads and writes it for a view: what Spark reads is what was written.

sqlglot's own way with Spark takes a doubled quote for the end of one text and the begin of another,
and writes formats of dates and paths of JSON as other databases would have them.
"""

# sqlglot leaves the types of an expression's arguments open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportPrivateImportUsage=false

from collections.abc import Callable
from typing import Any, ClassVar, Final

from sqlglot import exp
from sqlglot.dialects.spark import Spark

AS_WRITTEN: Final = frozenset(
    {"TO_DATE", "GET_JSON_OBJECT", "DATE_TRUNC", "YEAR", "MONTH", "DAY", "DAYOFMONTH"}
)
"""Functions whose arguments come back as they are."""


def _as_written(name: str) -> Callable[[list[Any]], exp.Expression]:
    def build(arguments: list[Any]) -> exp.Expression:
        return exp.Anonymous(this=name, expressions=arguments)

    return build


class ViewSpark(Spark):
    """Spark's SQL."""

    class Tokenizer(Spark.Tokenizer):
        # The first is what quotes are written with.
        STRING_ESCAPES: ClassVar[list[str]] = ["\\", "'", '"']

    class Parser(Spark.Parser):  # type: ignore[valid-type, misc] # a class, by another name
        FUNCTIONS: ClassVar[dict[str, Callable[..., Any]]] = {
            **Spark.Parser.FUNCTIONS,
            **{name: _as_written(name) for name in AS_WRITTEN},
        }
