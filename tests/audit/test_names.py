"""Which names a table had, and where: what was called the same at other places is not of it."""

from typing import Any

import pytest

from penstock.audit.names import Called, other_names, unmatched
from penstock.audit.trail import Trail
from tests.audit.support import row, text, write

END = (1 << 63) - 1


def said(at: int, operation: str, name: str, to: str | None = None, **more: Any) -> dict[str, Any]:
    """A statement of the trail; names are of the database "d", unless they say another."""
    told: dict[str, Any] = {"operation": operation, **more}
    if to is not None:
        told["to"] = dict(zip(("db", "coll"), whole(to), strict=True))
    db, tbl = whole(name)
    return {"at": at, "meta": {"db": db, "tbl": tbl}, "said": told}


def whole(name: str) -> tuple[str, str]:
    db, dot, tbl = name.partition(".")
    return (db, tbl) if dot else ("d", name)


def found(name: str, *statements: dict[str, Any]) -> set[tuple[str, int, int]]:
    called = other_names(whole(name), statements)
    return {(one.name[1], one.first, one.last) for one in called}


def test_a_table_is_followed_back_and_forth() -> None:
    moves = said(3, "rename", "a", "b"), said(5, "rename", "b", "e.c")
    assert found("b", *moves) == {("a", 1, 3), ("c", 5, END)}
    assert next(other_names(("e", "c"), moves)) == Called(("d", "a"), 1, 3)
    assert found("x", *moves) == set()


def test_a_swap_leads_to_both_tables_that_were_called_so() -> None:
    swap = said(7, "rename", "t", "t_old"), said(8, "rename", "t_new", "t")
    assert found("t", *swap) == {("t_old", 7, END), ("t_new", 1, 8)}
    assert found("t_new", *swap) == {("t", 8, END)}


@pytest.mark.parametrize(
    "ended",
    [
        [said(4, "drop", "tmp")],
        [said(4, "dropDatabase", "d.")],
        [said(4, "rename", "other", "tmp")],
        [said(4, "rename", "tmp", "away")],
        [said(4, "create", "tmp")],
    ],
    ids=["dropped", "with its database", "replaced", "renamed", "made anew"],
)
def test_a_name_that_another_table_has_later_does_not_join_the_two(ended: list[Any]) -> None:
    """`tmp` was `a` at first; the later `tmp` was never."""
    statements = said(2, "rename", "a", "tmp"), *ended, said(6, "rename", "tmp", "b")
    assert ("b", 6, END) not in found("a", *statements)
    assert ("tmp", 2, 4) in found("a", *statements)
    assert ("a", 1, 2) not in found("b", *statements)


def test_a_table_that_was_emptied_is_the_same_one() -> None:
    emptied = said(3, "drop", "b", truncated=True), said(3, "create", "b", truncated=True)
    assert found("a", said(2, "rename", "a", "b"), *emptied) == {("b", 2, END)}


@pytest.mark.server
def test_names_that_a_trail_has_no_record_of_are_told_with_the_nearest(trail: Trail) -> None:
    """A table is known by a record, or by a statement that gave it its name."""
    renamed = text({"statement": "-", "to": {"db": "db", "coll": "orders_old"}})
    write(
        trail,
        [
            row(1, after={"id": 1}),
            row(2, after={"id": 1}, collection="clients"),
            row(3, after={"id": 1}, database="else", collection="clients"),
            row(4, kind=3, operation_type="rename", full_document=renamed),
        ],
    )
    told = [("db", "orders"), ("db", "orders_old"), ("else", None), (None, "clients"), (None, None)]
    assert unmatched(trail, told) == []
    assert unmatched(trail, [("db", "ordrs"), ("els", None), (None, "client"), ("x", "y")]) == [
        "table 'db.ordrs' matches nothing of the trail; the nearest are db.orders",
        "database 'els' matches nothing of the trail; the nearest are else",
        "table 'client' matches nothing of the trail; the nearest are clients",
        "table 'x.y' matches nothing of the trail",
    ]
