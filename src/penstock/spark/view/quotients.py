"""What a view makes of sums is what its query does, though it keeps them in wider types. Pure.

Spark divides integers as doubles. A view keeps a sum of integers as DECIMAL(38, 0), and a quotient
of that would be a decimal of six digits: 0.000000 for one in ten million.
Source: the Spark SQL reference, "Arithmetic operators", `/`; and its rules of decimals' scales.

Spark's avg of DECIMAL(p, s) is DECIMAL(p + 4, s + 4), each at most 38: it divides to 38 decimals,
then rounds to those, both half up. A quotient of a sum as a view keeps it has fewer of them.
"""

from collections.abc import Collection, Mapping
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
_COUNTING: Final = (exp.Length, exp.Hour, exp.Extract, exp.IntDiv)
"""Integers whatever they are of."""
_COUNTING_NAMES: Final = frozenset({"YEAR", "MONTH", "DAY", "DAYOFMONTH"})

_DIGITS_MAX: Final = 38
_MORE: Final = 4
"""Digits that an average has more than its argument."""
_PART_DECIMALS: Final = 20
"""Of a quotient of DECIMAL(18, 0) by DECIMAL(20, 0)."""


def mean(total: str, count: str, *, precision: int, scale: int) -> str:
    """What avg is of `count` values of DECIMAL(precision, scale) whose sum is `total`.

    They are divided as integers of the argument's last digit, for what is whole in the quotient,
    and the rest for the digits behind it; of fewer than 10**12 values. In ANSI mode, where one that
    has no room is an error, as in Spark's.
    """
    digits = min(precision + _MORE, _DIGITS_MAX)
    decimals = min(scale + _MORE, _DIGITS_MAX)
    more = decimals - scale
    by = f"CAST({count} AS DECIMAL(20, 0))"
    units = _shifted(total, scale, "DECIMAL(38, 0)")
    rest = f"({units} % {by})"
    # A quotient of 38 digits has six decimals at least: its integer is written in them, too.
    whole = f"({_shifted(f'({units} - {rest})', -6, 'DECIMAL(38, 6)')} / {by})"
    part = f"CAST({rest} AS DECIMAL(12, 0)) * CAST({10**more} AS DECIMAL(5, 0)) / {by}"
    if decimals + _PART_DECIMALS > _DIGITS_MAX:
        # Where the 38 decimals of the quotient end.
        part = f"round({part}, {_DIGITS_MAX - decimals})"
    value = f"({_shifted(whole, 6 + more, 'DECIMAL(38, 0)')} + round({part}))"
    return _shifted(value, -decimals, f"DECIMAL({digits}, {decimals})")


def _shifted(number: str, places: int, type_: str) -> str:
    """A decimal with its point so many places to the right: as text, which rounds nothing."""
    return f"CAST(concat(CAST({number} AS STRING), 'E{places}') AS {type_})"


def divided(expression: str, integers: Collection[str]) -> str:
    """The expression with quotients of integers as doubles; `integers` are the columns whose values
    are integers."""
    whole = exp.Paren(this=sqlglot.parse_one(expression, dialect=DIALECT))
    for one in list(whole.find_all(exp.Div)):
        if _is_integer(one.left, integers) and _is_integer(one.right, integers):
            for side in (one.left, one.right):
                side.replace(exp.cast(side.copy(), exp.DataType.Type.DOUBLE))
    return str(whole.this.sql(dialect=DIALECT, comments=False))


def narrowed(expression: str, sums: Mapping[str, str]) -> str:
    """The expression with each of `sums`, columns by name, in the type that Spark's own sum has.

    Products and quotients of wider ones have fewer decimals. What is a sum and nothing else, or is
    cast in the query, is as wide as it is kept; and one that has no room is an error.
    """
    whole = exp.Paren(this=sqlglot.parse_one(expression, dialect=DIALECT))
    for one in list(whole.find_all(exp.Column)):
        if one.name in sums and one is not whole.this and not isinstance(one.parent, exp.Cast):
            one.replace(exp.cast(one.copy(), sums[one.name], dialect=DIALECT))
    return str(whole.this.sql(dialect=DIALECT, comments=False))


def _is_integer(node: Any, integers: Collection[str]) -> bool:
    """Whether the query, without a view, has an integer there."""
    if isinstance(node, exp.Column):
        return node.name in integers
    if isinstance(node, exp.Literal):
        return not node.is_string and node.is_int
    if isinstance(node, exp.Cast):  # or TryCast
        return node.to.this in _INTEGERS
    if isinstance(node, exp.Anonymous):
        return node.name in _COUNTING_NAMES
    if isinstance(node, (exp.Null, *_COUNTING)):
        return True
    values = _values(node)
    return (
        not isinstance(node, exp.Div)
        and bool(values)
        and all(_is_integer(value, integers) for value in values)
    )


def _values(node: Any) -> list[Any]:
    """Of what an expression's value is made: what it is compared with has no say in its type."""
    if isinstance(node, exp.Case):
        found = [one.args["true"] for one in node.args["ifs"]]
        return found + [one for one in (node.args.get("default"),) if one is not None]
    if isinstance(node, exp.If):
        return [one for one in (node.args["true"], node.args.get("false")) if one is not None]
    return [node.this] if isinstance(node, exp.Nullif) else list(node.iter_expressions())
