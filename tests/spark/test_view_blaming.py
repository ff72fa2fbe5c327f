"""Which of two joined rows is to blame: one bad row never takes out what it is compared with."""

from collections.abc import Iterable, Mapping

import pytest

from penstock.spark.view.blaming import blamed

_EURO = {0, 3, 4}
"""Others of the same currency as all rows of the first four."""


class Table:
    """Pairs of which some fail."""

    def __init__(self, rows: int, others: int, fails: Iterable[tuple[int, int]]) -> None:
        self.rows = rows
        self.others = others
        self._fails = set(fails)
        self.asked = 0

    def why_not(self, rows: range, others: range, without: Mapping[int, str]) -> str | None:
        self.asked += 1
        found = {
            other for row, other in self._fails if row in rows and other in others
        } - without.keys()
        return f"{min(found)}" if found else None

    def elsewhere(self, without: Iterable[int]) -> list[int]:
        return sorted({*range(self.rows)} - {*without})

    def fails_there(self, elsewhere: int, other: int) -> bool:
        self.asked += 1
        return (elsewhere, other) in self._fails


def every(rows: Iterable[int], others: Iterable[int]) -> set[tuple[int, int]]:
    kept = [*others]
    return {(row, other) for row in rows for other in kept}


@pytest.mark.parametrize(
    ("fails", "own", "bad"),
    [
        (set[tuple[int, int]](), set[int](), set[int]()),
        (every([1], _EURO), {1}, set[int]()),
        (every([1, 2], _EURO), {1, 2}, set[int]()),
        (every([0], [3]), {0}, set[int]()),
        (every([5], range(6)), {5}, set[int]()),
        (every(range(8), [2]), set[int](), {2}),
        (every(range(8), [0, 4]), set[int](), {0, 4}),
        (every(range(8), [1]) | every([3], range(6)), {3}, {1}),
        (every([0], range(6)) | every(range(8), [5]), {0}, {5}),
        # Only some of the rows are compared with it: no single one is to blame.
        (every([0, 1, 2], [3]), {0, 1, 2}, set[int]()),
    ],
)
def test_only_what_fails_with_whatever_row_is_to_blame(
    fails: set[tuple[int, int]], own: set[int], bad: set[int]
) -> None:
    rows, others = blamed(Table(8, 6, fails), most=10)
    assert ({*rows}, {*others}) == (own, bad)


def test_where_there_is_nothing_to_compare_with_the_row_is_to_blame() -> None:
    assert blamed(Table(1, 1, [(0, 0)]), most=10)[0].keys() == {0}
    assert blamed(Table(1, 2, [(0, 1)]), most=10)[0].keys() == {0}


def test_a_row_that_fails_with_all_others_costs_few_questions() -> None:
    table = Table(1000, 1000, every([500], range(1000)))
    assert blamed(table, most=100)[0].keys() == {500}
    assert table.asked < 20
    table = Table(1000, 1000, every(range(1000), [500]))
    assert blamed(table, most=100)[1].keys() == {500}
    assert table.asked < 40


def test_no_more_are_found_than_are_wanted() -> None:
    own, bad = blamed(Table(60, 10, every(range(50), range(10))), most=3)
    assert (len(own), len(bad)) == (4, 0)
    own, bad = blamed(Table(60, 60, every(range(60), range(20, 60))), most=3)
    assert (len(own), len(bad)) == (0, 4)
