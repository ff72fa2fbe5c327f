"""What of a view's columns is divided as integers are, by Spark's rules."""

import pytest

from penstock.spark.view.quotients import divided, narrowed


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("_a0 / _a1", "CAST(_a0 AS DOUBLE) / CAST(_a1 AS DOUBLE)"),
        ("(_a0 + 1) / 3", "CAST((_a0 + 1) AS DOUBLE) / CAST(3 AS DOUBLE)"),
        (
            "COALESCE(_a0, 0) / NULLIF(_g0, 0)",
            "CAST(COALESCE(_a0, 0) AS DOUBLE) / CAST(NULLIF(_g0, 0) AS DOUBLE)",
        ),
        (
            "_a0 / CASE WHEN _d > 1.5 THEN 1 ELSE 2 END",
            "CAST(_a0 AS DOUBLE) / CAST(CASE WHEN _d > 1.5 THEN 1 ELSE 2 END AS DOUBLE)",
        ),
        ("_a0 / _a1 / _d", "CAST(_a0 AS DOUBLE) / CAST(_a1 AS DOUBLE) / _d"),
        ("CAST(_d AS INT) / _a0", "CAST(CAST(_d AS INT) AS DOUBLE) / CAST(_a0 AS DOUBLE)"),
        ("year(_d) / 2", "CAST(YEAR(_d) AS DOUBLE) / CAST(2 AS DOUBLE)"),
        (
            "_a0 / CASE _d WHEN 1.5 THEN 1 ELSE 2 END",
            "CAST(_a0 AS DOUBLE) / CAST(CASE _d WHEN 1.5 THEN 1 ELSE 2 END AS DOUBLE)",
        ),
        (
            "_a0 / IF(_b, 1, NULL)",
            "CAST(_a0 AS DOUBLE) / CAST(IF(_b, 1, NULL) AS DOUBLE)",
        ),
        (
            "NULLIF(_a0, _d) / 2",
            "CAST(NULLIF(_a0, _d) AS DOUBLE) / CAST(2 AS DOUBLE)",
        ),
        ("_a0 / IF(_a0 > 1, 1, _d)", "_a0 / IF(_a0 > 1, 1, _d)"),
        ("_a0 / CASE WHEN _a0 > 1 THEN 1.5 END", "_a0 / CASE WHEN _a0 > 1 THEN 1.5 END"),
        # Of decimals and doubles Spark has what it is told.
        ("_a0 / _d", "_a0 / _d"),
        ("_a0 / 2.0", "_a0 / 2.0"),
        ("CAST(_a0 AS DECIMAL(20, 2)) / _a1", "CAST(_a0 AS DECIMAL(20, 2)) / _a1"),
        ("_a0 DIV _a1", "_a0 DIV _a1"),
        ("_a0 * _d", "_a0 * _d"),
    ],
)
def test_integers_are_divided_as_doubles_and_nothing_else_is(
    expression: str, expected: str
) -> None:
    assert divided(expression, {"_a0", "_a1", "_g0"}) == expected


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("_a0", "_a0"),
        ("_a0 * 0.5", "CAST(_a0 AS DECIMAL(20, 0)) * 0.5"),
        ("COALESCE(_a1, _a0)", "COALESCE(_a1, CAST(_a0 AS DECIMAL(20, 0)))"),
        ("CAST(_a0 AS DOUBLE) / _a1", "CAST(_a0 AS DOUBLE) / _a1"),
    ],
)
def test_sums_in_expressions_have_the_type_of_spark(expression: str, expected: str) -> None:
    assert narrowed(expression, {"_a0": "DECIMAL(20, 0)"}) == expected
