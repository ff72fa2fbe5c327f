"""What a view's query cannot compute is told once, for as long as it waits."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from penstock.spark.table.lake import Folders, KeptTable
from penstock.spark.table.rejects import REJECTS_SCHEMA, REPLAYED, VIEW_STEP
from penstock.spark.table.stamp import Stamp
from penstock.spark.transform.settled import mark, outcome, pending_in, unmoved
from penstock.spark.view.refusing import Refused, note_refused
from tests.spark.tables import pipeline


class Rejects:
    """A rejects table in memory."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def scan(self, _: str) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pylist(self.rows)

    def applied(self, _: str, *, log_id: int | None) -> int:
        return 0

    def append(self, rows: pa.Table, _: Stamp) -> None:
        self.rows += rows.to_pylist()


def refused(database: str = "db") -> Refused:
    return Refused(
        collection="orders", key="1", reason="x", sequence=4, source="shop", database=database
    )


def note(rejects: Rejects, *some: Refused) -> None:
    note_refused(cast("KeptTable", rejects), "p", some, at=9)


@pytest.mark.parametrize(("state", "times"), [(None, 1), (REPLAYED, 2)])
def test_a_row_is_told_again_only_after_it_was_settled(state: str | None, times: int) -> None:
    rejects = Rejects()
    note(rejects, refused())
    rejects.rows[0]["state"] = state
    note(rejects, refused())
    note(rejects, refused())
    assert len(rejects.rows) == times


def test_rows_of_two_databases_are_two() -> None:
    rejects = Rejects()
    note(rejects, refused())
    note(rejects, refused("other"))
    assert [row["database"] for row in rejects.rows] == ["db", "other"]


@pytest.mark.parametrize("of_view", [False, True])
def test_a_change_that_its_table_and_the_view_refused_is_settled_one_by_one(
    tmp_path: Path, of_view: bool
) -> None:
    """A replay brought it into its table, and the view cannot be computed with it."""
    rejects = Folders(pipeline(tmp_path / "v"), "p").rejects()
    note_refused(rejects, "p", [refused()], at=9)
    (of_the_view,) = pending_in("p", rejects)
    of_its_table = {**of_the_view, "step": None}
    rejects.append(
        pa.Table.from_pylist([of_its_table], schema=REJECTS_SCHEMA), unmoved("p", log_id=None, at=0)
    )
    mark(rejects, [outcome(of_the_view, REPLAYED)], pipeline="p", log_id=None, of_view=of_view)
    assert [one["step"] for one in pending_in("p", rejects)] == [None if of_view else VIEW_STEP]
