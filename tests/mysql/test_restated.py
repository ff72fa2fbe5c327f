"""Statements of a trail for tables that are to be elsewhere: each name where it belongs (A25)."""

from typing import Any

import pytest

from penstock.audit.fold import Name
from penstock.sources.mysql.restoring.ddl import UnclearStatementError, restated


def moved(name: Name) -> Name:
    return f"new_{name[0]}", name[1]


def restate(statement: str, *, operation: str = "create", **said: Any) -> str | None:
    """A statement of the table `d.t`."""
    facts = {"operation": operation, "statement": statement, **said}
    return restated({"meta": {"db": "d", "tbl": "t"}, "said": facts}, moved)


@pytest.mark.parametrize(
    ("statement", "session", "expected"),
    [
        ("CREATE TABLE t LIKE u", None, "CREATE TABLE `new_d`.`t` LIKE `new_d`.`u`"),
        ("CREATE TABLE d.t LIKE e.u", None, "CREATE TABLE `new_d`.`t` LIKE `new_e`.`u`"),
        ("CREATE TABLE d.t LIKE u", "e", "CREATE TABLE `new_d`.`t` LIKE `new_e`.`u`"),
        ("CREATE TABLE t LIKE e.u", None, "CREATE TABLE `new_d`.`t` LIKE `new_e`.`u`"),
        ("ALTER TABLE d.t RENAME u", "e", "ALTER TABLE `new_d`.`t` RENAME `new_e`.`u`"),
        (
            "CREATE TABLE d.t (a INT REFERENCES u (a), b INT REFERENCES f.u (b))",
            "e",
            "CREATE TABLE `new_d`.`t` (a INT REFERENCES `new_d`.`u` (a), b INT REFERENCES `new_f`.`u` (b))",  # noqa: E501
        ),
    ],
)
def test_a_name_without_its_database_is_of_the_sessions(
    statement: str, session: str | None, expected: str
) -> None:
    """And what REFERENCES names is of the table's own."""
    assert restate(statement, sessionDatabase=session) == expected


@pytest.mark.parametrize("statement", ["CREATE TABLE d.t LIKE u", "ALTER TABLE d.t RENAME TO u"])
def test_a_name_of_a_session_that_is_not_known_is_refused(statement: str) -> None:
    """A trail of before does not say it."""
    with pytest.raises(UnclearStatementError, match="the session's database, which is not known"):
        restate(statement)


def test_what_mysql_logs_of_a_table_made_of_rows_begins_no_transaction() -> None:
    text = "CREATE TABLE `t` (\n  `n` int\n) ENGINE=InnoDB START TRANSACTION"
    assert restate(text) == "CREATE TABLE `new_d`.`t` (\n  `n` int\n) ENGINE=InnoDB"
