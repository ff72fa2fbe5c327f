"""What a server says that its tables are now."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from penstock import checks
from penstock.sources.mysql.columns import ColumnRules, ForbiddenRuleError
from penstock.sources.mysql.connection import (
    ColumnNow,
    Connected,
    all_tables,
    ask,
    column_now,
    tables,
)
from penstock.sources.mysql.patterns import matching
from penstock.sources.mysql.scope import Scope
from penstock.sources.mysql.shapes import Shape, Shapes


class Described(Struct):
    """A table's columns, in their order."""

    columns: dict[str, ColumnNow]
    key: list[str]
    """Those of the key by which a row is known; not in the key's own order."""

    @property
    def computed(self) -> dict[str, str]:
        """The expressions of columns that the server computes."""
        return {name: one.expression for name, one in self.columns.items() if one.expression}


def described(connection: Connected, scope: Scope) -> dict[tuple[str, str], Described]:
    """The captured tables that are there."""
    found = {table: Described({}, []) for table in tables(connection, scope)}
    rows = ask(
        connection,
        "SELECT TABLE_SCHEMA, TABLE_NAME, COLUMN_NAME, COLUMN_KEY, EXTRA, GENERATION_EXPRESSION, "
        "COLUMN_DEFAULT, ORDINAL_POSITION FROM information_schema.COLUMNS",
    )
    # Put in order here: to sort rows with expressions, MySQL reads all that it has once more.
    for database, table, column, key, *facts, _ in sorted(rows, key=_ordinal):
        one = found.get((str(database), str(table)))
        if one is not None:
            one.columns[str(column)] = column_now(*facts)
            if key == "PRI":  # so is the first unique key without NULL, where no other is primary
                one.key.append(str(column))
    return found


def _ordinal(row: Sequence[Any]) -> int:
    return int(row[-1])


def shapes_now(connection: Connected, scope: Scope) -> tuple[Shape, ...]:
    """What a position that begins now has to know of the captured tables."""
    shapes = Shapes()
    for table, one in described(connection, scope).items():
        virtual = (name for name, facts in one.columns.items() if facts.virtual)
        shapes.learned(table, frozenset(name.casefold() for name in virtual))
        if scope.columns.patterns:
            shapes.computes(table, one.computed, certain=True)
    return shapes.kept()


def forbidden(there: Mapping[tuple[str, str], Described], rules: ColumnRules) -> list[str]:
    """What is wrong with `rules` for these tables, in words."""
    wrong: list[str] = []
    for table, one in there.items():
        try:
            rules.of(table, [*one.columns], one.key, one.computed)
        except ForbiddenRuleError as error:
            wrong.append(str(error))
    return wrong


def computed_of_hidden(there: Mapping[tuple[str, str], Described], rules: ColumnRules) -> list[str]:
    """The columns, by their full names, that are left out for what they are computed of."""
    found: list[str] = []
    for table, one in there.items():
        by_rules, all_of_it = (
            rules.of(table, [*one.columns], (), computed) for computed in ({}, one.computed)
        )
        if all_of_it is not None and by_rules is not None:
            also = all_of_it.left_out - by_rules.left_out
            found += [".".join((*table, column)) for column in one.columns if column in also]
    return found


def unmatched(connection: Connected, scope: Scope) -> list[str]:
    """As `NamesThings.unmatched`, of what this user may see."""
    settings = [("include", one) for one in scope.include]
    settings += [("exclude", one) for one in scope.exclude]
    everything = Scope()
    there = [".".join(one) for one in all_tables(connection) if one in everything]
    near = {*there, *(f"{one.partition('.')[0]}.*" for one in there)}
    told = checks.unmatched(settings, near, lambda pattern: any(matching(pattern, there)))
    if rules := scope.columns.patterns:
        columns = [
            ".".join((*table, column))
            for table, one in described(connection, scope).items()
            for column in one.columns
        ]
        told += checks.unmatched(
            rules, columns, lambda pattern: any(matching(pattern, columns)), what="that is captured"
        )
    return told


def keyed_anew(
    there: Mapping[tuple[str, str], Described], before: Scope, after: Scope
) -> list[tuple[str, str]]:
    """Tables that are captured by both scopes, and whose rows have another key by the second.

    By the hashes of the key's columns alone; the rows that were told keep the keys they were told.
    """
    was, now = ColumnRules(before.columns), ColumnRules(after.columns)
    found: list[tuple[str, str]] = []
    for table, one in there.items():
        if table not in before or table not in after:
            continue
        if not one.key:
            # Its rows are known by all that is captured of them.
            columns = [*one.columns]
            if was.said(table, columns) != now.said(table, columns):
                found.append(table)
            continue
        old, new = was.hashed(table, one.key), now.hashed(table, one.key)
        if old != new or (old and before.columns.salt != after.columns.salt):
            found.append(table)
    return found
