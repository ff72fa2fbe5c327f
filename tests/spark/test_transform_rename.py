"""Rows that a rename would hand over are those that the steps of their new name made, or none."""

from pathlib import Path
from typing import Any

import pytest

from penstock.errors import ChangesLostError
from tests.spark.histories import history
from tests.spark.tables import Entries, apply, change, pipeline, rejects_of, schema_event
from tests.spark.tables import rows_of as current

SECRET = "s3cret"
MASKED = {"mask": ["mail"], "collections": ["people"]}
EXPECTED = {"condition": "n > 0", "document_schema": "n INT", "collections": ["people"]}


def entries() -> Entries:
    """A row of `people`, and a row of another collection that becomes `people`."""
    made = Entries()
    made.commit(change(1, "insert", {"_id": 1, "mail": "****"}, collection="people"))
    made.commit(change(2, "insert", {"_id": 2, "mail": SECRET}, collection="drafts"))
    to = {"db": "db", "coll": "people"}
    made.commit(schema_event("rename", collection="drafts", to=to))
    made.commit(change(3, "insert", {"_id": 3, "mail": "****"}, collection="people"))
    return made


@pytest.mark.parametrize("make", [pipeline, history], ids=["table", "history"])
@pytest.mark.parametrize(
    "steps",
    [{"transform": [MASKED]}, {"expect": [{"name": "n", "action": "drop", **EXPECTED}]}],
    ids=["mask", "expectation"],
)
def test_rows_come_to_no_name_whose_steps_they_have_not_been_through(
    tmp_path: Path, make: Any, steps: dict[str, Any]
) -> None:
    """What is masked there would be in its table; it is a gap, as from a collection unknown."""
    said, path = entries(), tmp_path / "t"
    with pytest.raises(ChangesLostError, match="at sequence 3"):
        apply(said.table(), make(path, "people", "drafts", **steps))
    apply(said.table(), make(path, "people", "drafts", on_gap="record", **steps))
    (reject,) = rejects_of(path)
    assert (reject["sequence"], reject["operation_type"]) == (3, "rename")
    if make is pipeline:
        assert current(path / "people") == {("db", '{"_id":3}'): {"_id": 3, "mail": "****"}}
        assert current(path / "drafts") == {}


@pytest.mark.parametrize(
    "steps",
    [
        {"transform": [{"mask": ["mail"], "collections": ["people", "drafts"]}]},
        {"expect": [{"name": "n", "action": "warn", **EXPECTED}]},
    ],
    ids=["the same steps", "a count"],
)
def test_rows_of_the_same_steps_are_handed_over(tmp_path: Path, steps: dict[str, Any]) -> None:
    path = tmp_path / "t"
    apply(entries().table(), pipeline(path, "people", "drafts", **steps))
    assert {key for _, key in current(path / "people")} == {'{"_id":2}', '{"_id":3}'}
