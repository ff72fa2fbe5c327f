"""Every reader of statements says what is right of each, and all of them the same (A3)."""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from msgspec import structs

from penstock.audit.fold import Name
from penstock.mysql_sql.alterations import alteration
from penstock.mysql_sql.tokens import plain_comments, spaced, tokens
from penstock.sources.mysql.definitions import defined
from penstock.sources.mysql.origins import OriginRules
from penstock.sources.mysql.redaction import redacted
from penstock.sources.mysql.restoring.ddl import UnclearStatementError, recreated, restated
from penstock.sources.mysql.row_statements import written
from penstock.sources.mysql.statements import (
    Altered,
    Created,
    Dropped,
    Emptied,
    Ensured,
    Renamed,
    RowsAsStatement,
    RowsChanged,
    Said,
    effects,
    writes_in_place,
)
from tests.mysql.statement_cases import CASES, NAMES, Case


def what_becomes_of_tables(case: Case) -> None:
    statement, modes = case.statement, case.modes
    assert effects(statement, database="d", sql_mode=modes) == case.effects
    small = effects(statement, database="d", lowers=True, sql_mode=modes)
    assert small == of_others(case.effects, lambda name: (name[0].lower(), name[1].lower()))


def what_becomes_of_columns(case: Case) -> None:
    statement, modes = case.statement, case.modes
    told = alteration(statement, modes)
    assert list(told.dropped) == case.dropped
    assert [(one.old, one.new) for one in told.renamed] == case.renamed
    after = defined(statement, database="d", known=lambda _: case.known, sql_mode=modes)
    assert after == case.defined


def what_it_writes_rows_to(case: Case) -> None:
    may = written(case.statement, database="d", sql_mode=case.modes).tables
    made = {one.table for one in case.effects if isinstance(one, Created | Ensured)}
    assert {*case.written} <= {*may} <= {*case.written, *made}
    assert not writes_in_place(case.statement, ("d", "t"))


def no_part_is_lost_and_no_value_is_shown(case: Case) -> None:
    statement, modes = case.statement, case.modes
    split = tokens(statement, modes)
    assert "".join(one.text for one in split) == statement
    assert "SECRET" not in redacted(statement)
    if "\u00a0" not in statement:
        wide = [one.text.replace(" ", "\u00a0" if one.kind == "space" else " ") for one in split]
        assert spaced("".join(wide), modes) == statement


def a_comment_of_mariadb_does_nothing_on_mysql(case: Case) -> None:
    statement = plain_comments(case.statement, case.modes)
    there = effects(statement, database="d", sql_mode=case.modes)
    assert there == (case.effects if case.of_mysql is None else case.of_mysql)


def who_wrote_it_is_said_by_a_comment_and_never_by_a_text(case: Case) -> None:
    rules = OriginRules(actor=re.compile(r"by: (\w+)"))
    assert rules.who(case.statement) is None
    signed = f"{case.statement} /* by: anna */"
    assert rules.who(signed) == ("anna" if case.certain else None)


def it_is_said_again_of_tables_that_are_elsewhere_or_refused(case: Case) -> None:
    for record, done in records(case):
        if done is None:
            with pytest.raises(UnclearStatementError):
                restated(record, moved)
            continue
        again = restated(record, moved)
        assert again is not None
        assert effects(again.text, database="x", sql_mode=again.sql_mode) == of_others(done, moved)
        if "statement" in record["said"]:
            assert alteration(again.text, case.modes) == alteration(case.statement, case.modes)
            assert "TRANSACTION" not in again.text


def records(case: Case) -> Iterator[tuple[dict[str, Any], Sequence[Said] | None]]:
    """What a trail has of a statement, with what the one that does it again is to do; None: it is
    refused."""
    for effect in case.effects:
        said: dict[str, Any]
        done: Sequence[Said] | None = [effect]
        match effect:
            case Created() | Altered() | Ensured():
                operation = "create" if isinstance(effect, Created) else "modify"
                said = {"operation": operation, "statement": case.statement}
                is_own = case.makes or operation == "modify"
                done = case.effects if is_own and case.again and not case.written else None
            case Dropped():
                said = {"operation": "drop"}
            case Emptied():
                said = {"operation": "create", "truncated": "true"}
            case Renamed(_, to):
                said = {"operation": "rename", "to": {"db": to[0], "coll": to[1]}}
                done = [structs.replace(effect, if_exists=False)]
            case _:
                continue
        db, tbl = effect.table
        said |= {"sqlMode": case.modes} | ({"sessionDatabase": "d"} if db != "d" else {})
        yield {"meta": {"db": db, "tbl": tbl}, "said": said}, done


def it_makes_a_table_again_or_is_refused(case: Case) -> None:
    made = [one for one in case.effects if isinstance(one, Created | Ensured)]
    name = ("x", "y")
    if made and case.makes_one:
        again = recreated(case.statement, case.modes, made[0].table, name, moved)
        done = effects(again.text, database="z", sql_mode=again.sql_mode)
        assert done == [structs.replace(made[0], table=name)]
        return
    with pytest.raises(UnclearStatementError):
        recreated(case.statement, case.modes, made[0].table if made else ("d", "t"), name, moved)


def moved(name: Name) -> Name:
    return f"new_{name[0]}", name[1]


def of_others(effects: Sequence[Said], to: Callable[[Name], Name]) -> list[Said]:
    """The same of tables of other names."""
    found: list[Said] = []
    for one in effects:
        match one:
            case Renamed(table, other):
                found.append(structs.replace(one, table=to(table), to=to(other)))
            case Created() | Ensured() | Dropped() | Emptied() | Altered() | RowsChanged():
                found.append(structs.replace(one, table=to(one.table)))
            case _:
                found.append(one)
    return found


READERS = [
    what_becomes_of_tables,
    what_becomes_of_columns,
    what_it_writes_rows_to,
    no_part_is_lost_and_no_value_is_shown,
    a_comment_of_mariadb_does_nothing_on_mysql,
    who_wrote_it_is_said_by_a_comment_and_never_by_a_text,
    it_is_said_again_of_tables_that_are_elsewhere_or_refused,
    it_makes_a_table_again_or_is_refused,
]


@pytest.mark.parametrize("right", READERS)
def test_a_reader_says_what_is_right(right: Callable[[Case], None]) -> None:
    for case in CASES:
        try:
            right(case)
        except AssertionError as error:
            error.add_note(f"in {case}")
            raise


# --- statements that change rows ------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_one_word_to_whoever_looks_for_its_table(name: str) -> None:
    dots = ["", "d."] if name[0] in "01" else ["", "d.", "."]  # `.1` is a number
    for one in [f"{dot}{name}" for dot in dots]:
        for statement in (f"UPDATE {one} SET a = 1", f"INSERT INTO {one} (a) VALUES (1)"):
            assert writes_in_place(statement, ("d", name))
            assert written(statement, database="d").tables == (("d", name),)
            assert effects(statement, database="d") == [RowsAsStatement(statement[:6])]
    assert not writes_in_place(f"UPDATE e.{name} SET a = 1", ("d", name))
    assert redacted(f"DELETE FROM {name}") == f"DELETE FROM {'?' if name[0] in '01$' else name}"


@pytest.mark.parametrize(
    ("statement", "is_in_place"),
    [
        (r"UPDATE b SET n = '\' WHERE x = ', a SET n = '", False),
        (r"UPDATE a, `b\` SET n = '\''", True),
        ("UPDATE b /*M!100000 , a */ SET n = 1", False),
        ("INSERT INTO b /*!50000 VALUES (1) */ /* , INTO a */", False),
    ],
)
def test_what_hangs_on_a_mode_that_nobody_says_is_not_certain(
    statement: str, is_in_place: bool
) -> None:
    assert writes_in_place(statement, ("d", "a")) == is_in_place
