"""Statements of a trail for tables that are to be elsewhere: each name where it belongs (A25)."""

from typing import Any

import pytest

from penstock.audit.fold import Name
from penstock.sources.mysql.restoring.ddl import UnclearStatementError, restated


def moved(name: Name) -> Name:
    return f"new_{name[0]}", name[1]


def restate(statement: str, **said: Any) -> str:
    """A statement of the table `d.t`."""
    operation = "create" if statement.startswith("CREATE TABLE") else "modify"
    facts = {"operation": operation, "statement": statement, **said}
    found = restated({"meta": {"db": "d", "tbl": "t"}, "said": facts}, moved)
    assert found is not None
    assert found.sql_mode == said.get("sqlMode", "")
    return found.text


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


@pytest.mark.parametrize(
    ("statement", "modes", "expected"),
    [
        ('CREATE TABLE "t" LIKE "u"', "ANSI_QUOTES", "CREATE TABLE `new_d`.`t` LIKE `new_d`.`u`"),
        (
            "CREATE TABLE t (a TEXT DEFAULT '\\', b TEXT DEFAULT ' REFERENCES u')",
            "NO_BACKSLASH_ESCAPES",
            "CREATE TABLE `new_d`.`t` (a TEXT DEFAULT '\\', b TEXT DEFAULT ' REFERENCES u')",
        ),
        ("CREATE TABLE t (a INT AS (1 || 0))", "", "CREATE TABLE `new_d`.`t` (a INT AS (1 || 0))"),
    ],
)  # fmt: skip
def test_a_statement_is_read_in_the_mode_in_which_it_was_written(
    statement: str, modes: str, expected: str
) -> None:
    assert restate(statement, sqlMode=modes) == expected


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("ALTER TABLE t ADD x INT", "ALTER TABLE `new_d`.`t` ADD x INT"),
        ("DROP INDEX i ON e.t", "DROP INDEX i ON `new_e`.`t`"),
    ],
)
def test_variables_that_are_set_for_a_statement_stay_before_it(
    statement: str, expected: str
) -> None:
    """MariaDB logs them with it: an ALTER TABLE that waits for its lock no longer than that."""
    given = "SET STATEMENT lock_wait_timeout=1, sql_mode=@d.for FOR "
    assert restate(given + statement) == given + expected
    with pytest.raises(UnclearStatementError, match="begins with nothing"):
        restate(given.removesuffix("FOR "))


def test_what_two_bars_were_is_refused_where_no_mode_is_said() -> None:
    """A trail of before does not say it."""
    with pytest.raises(UnclearStatementError, match="sql_mode is not known"):
        restate("CREATE TABLE t (a TEXT, b TEXT AS (a || 'x'))")
    assert restate("CREATE TABLE t (a TEXT DEFAULT '||')")
