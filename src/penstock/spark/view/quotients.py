"""Quotients of a view are those of its query, though it keeps sums in wider types. Pure.

Spark divides integers as doubles. A view keeps a sum of integers as DECIMAL(38, 0), and a quotient
of that would be a decimal of six digits: 0.000000 for one in ten million.
Source: the Spark SQL reference, "Arithmetic operators", `/`; and its rules of decimals' scales.
"""

from collections.abc import Collection
from typing import Any, Final

import sqlglot
from sqlglot import exp

from penstock.spark.view.query import DIALECT

_INTEGERS: Final = (
    exp.DataType.Type.TINYINT,
    exp.DataType.Type.SMALLINT,
    exp.DataType.Type.INT,
    exp.DataType.Type.BIGINT,
)
_COUNTING: Final = (exp.Length, exp.Year, exp.Month, exp.Day, exp.Hour, exp.Extract, exp.IntDiv)
"""Integers whatever they are of."""


def divided(expression: str, integers: Collection[str]) -> str:
    """The expression with quotients of integers as doubles; `integers` are the columns whose values
    are integers."""
    whole = exp.Paren(this=sqlglot.parse_one(expression, dialect=DIALECT))
    for one in list(whole.find_all(exp.Div)):
        if _is_integer(one.left, integers) and _is_integer(one.right, integers):
            for side in (one.left, one.right):
                side.replace(exp.cast(side.copy(), exp.DataType.Type.DOUBLE))
    return str(whole.this.sql(dialect=DIALECT, comments=False))


def _is_integer(node: Any, integers: Collection[str]) -> bool:
    """Whether the query, without a view, has an integer there."""
    if isinstance(node, exp.Column):
        return node.name in integers
    if isinstance(node, exp.Literal):
        return not node.is_string and node.is_int
    if isinstance(node, exp.Cast):  # or TryCast
        return node.to.this in _INTEGERS
    if isinstance(node, (exp.Predicate, exp.Connector, exp.Not, exp.Null, *_COUNTING)):
        return True  # a condition has no say in what is divided
    parts = list(node.iter_expressions())
    return (
        not isinstance(node, exp.Div)
        and bool(parts)
        and all(_is_integer(part, integers) for part in parts)
    )
