"""What a rename brought is not judged where the log, applied anew, does not tell it by now."""

from pathlib import Path
from typing import Any

import pytest

from penstock.spark.config import ReplicatePipelineConfig
from penstock.spark.replica.anew_mongodb import MongoAnew
from penstock.spark.replica.beside import rows_in
from penstock.spark.replica.place import Stream
from penstock.spark.replica.steps import DatabaseEmptied, Emptied, Moved, Step
from penstock.spark.table.unfollowed import Unfollowed
from tests.spark.histories import history
from tests.spark.tables import Entries, apply, change, pipeline, schema_event

ORDERS, GHOST, OLD = ("db", "orders"), ("db", "_orders_gho"), ("db", "_orders_del")
MASKED: dict[str, Any] = {"transform": [{"mask": ["card"], "collections": ["orders"]}]}


def migrated() -> Entries:
    """What gh-ost does: a copy takes the name of the collection."""
    made = Entries()
    made.commit(change(1, "insert", {"_id": 1}))
    made.commit(change(1, "insert", {"_id": 1, "n": 1}, collection="_orders_gho"))
    for one, to in (("orders", "_orders_del"), ("_orders_gho", "orders")):
        made.commit(schema_event("rename", collection=one, to={"db": "db", "coll": to}))
    return made


def places(unfollowed: Unfollowed) -> tuple[list[int], list[int]]:
    """Of which renames rows are in the collection, and in the one that was it before."""
    return sorted(unfollowed.into("orders")), sorted(unfollowed.into("_orders_del"))


def known(anew: MongoAnew, step: Step) -> tuple[list[int], list[int]]:
    """That, behind one more step."""
    none: Any = None
    anew.apply([step], before=none, until=none, entries_at=none)
    return places(anew.unfollowed)


@pytest.mark.parametrize("make", [pipeline, history], ids=["table", "history"])
def test_a_rename_that_was_followed_once_is_no_gap_to_whoever_compares(
    tmp_path: Path, make: Any
) -> None:
    """Whatever is done at a gap: it was handed over rightly, and nothing was lost."""
    everything = ("orders", "_orders_gho", "_orders_del")
    for number, config in enumerate(
        (
            make(tmp_path / "followed", *everything),
            make(tmp_path / "steps", *everything, **MASKED),
            make(tmp_path / "narrowed", "orders", "_orders_del"),
        )
    ):
        unfollowed = Unfollowed(keeps_versions=make is history)
        apply(migrated().table(), config, unfollowed=unfollowed)
        assert places(unfollowed) == (([4] if number else []), ([3] if number == 1 else []))
        assert not Path(f"{config.path}_rejects").exists()


def test_what_is_not_known_goes_where_its_rows_go() -> None:
    rows, versions = Unfollowed(), Unfollowed(keeps_versions=True)
    for one in (rows, versions):
        one.came(ORDERS, 4)
        one.moved(ORDERS, OLD)
    assert (places(rows), places(versions)) == (([], [4]), ([4], [4]))
    for one in (rows, versions):
        one.moved(GHOST, OLD)
    assert (places(rows), places(versions)) == (([], []), ([4], [4]))
    for one in (rows, versions):
        one.came(ORDERS, 9)
        one.came(("other", "orders"), 10)
        one.ended(("db", ""))
    assert (places(rows), places(versions)) == (([10], []), ([4, 9, 10], [4]))
    assert not rows.into("orders", database="db")


def test_a_replica_knows_of_what_is_not_known(tmp_path: Path) -> None:
    config = ReplicatePipelineConfig.model_validate(
        {"to": "replicate", "source": "shop", "uri": "mongodb://nowhere/x"}
    )
    orders, old = Stream("db", "orders"), Stream("db", "_orders_del")
    steps: list[Step] = [
        Emptied(stream=orders, sequence=4, lost=True),
        Moved(stream=orders, to=old, sequence=5),
        Emptied(stream=old, sequence=6),
        Emptied(stream=orders, sequence=7, lost=True),
        DatabaseEmptied(database="db", sequence=8),
    ]
    with rows_in(str(tmp_path), pipeline="p") as rows:
        anew = MongoAnew("p", config, rows)
        assert [known(anew, step) for step in steps] == [
            ([4], []), ([], [4]), ([], []), ([7], []), ([], []),
        ]  # fmt: skip
