"""Rows that are there do not go through steps that were changed since, and a run says so."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from structlog.testing import capture_logs

from penstock.ports import Bounds
from penstock.progress import Progress
from penstock.spark.config import LakePipelineConfig, TablePipelineConfig
from penstock.spark.destinations import config_class
from penstock.spark.plan import begins
from penstock.spark.table.standing import StandingTable
from penstock.spark.transform.digests import changed_in, digests_of
from tests.spark.changelogs import add, bounds, started
from tests.spark.tables import LOG_ID, Entries, apply, pipeline, put

Steps = list[dict[str, Any]]

SALT = "0123456789abcdef"
TOLD = "steps were changed, and rows that are there stay as the steps before made them"
AT_FIRST: Steps = [{"drop": ["card"]}, {"hash": ["email"], "salt": SALT}]


def with_steps(path: Path, steps: Steps, *collections: str, to: str = "table") -> Any:
    said = {"to": to, "source": "shop", "collections": collections, "path": str(path)}
    return config_class(to).model_validate({**said, "transform": steps})


def told(config: LakePipelineConfig, at: Bounds | None = None) -> list[str] | None:
    """The collections that a start of the pipeline warns of."""
    with capture_logs() as logs:
        row = StandingTable(config, "p")
        row.start(at or bounds(9))
    found = [one["collections"] for one in logs if one["event"] == TOLD]
    assert [name or "all" for name in row.restepped] == [one for each in found for one in each]
    return found[0] if found else None


def applied(config: TablePipelineConfig, entries: Entries) -> None:
    row = StandingTable(config, "p")
    row.start(bounds(9))
    result = apply(entries.table(), config)
    row.advance(Progress(LOG_ID, entries.head, 1), result.tables, batch_id=0)


@pytest.fixture
def entries() -> Entries:
    entries = Entries()
    entries.commit(put(1, n=1, email="a@example.com"))
    return entries


def test_changed_steps_are_told_until_a_batch_went_through_them(
    tmp_path: Path, entries: Entries
) -> None:
    before = with_steps(tmp_path / "t", AT_FIRST, "orders")
    assert told(before) is None
    applied(before, entries)
    assert told(before) is None
    now = with_steps(tmp_path / "t", [*AT_FIRST, {"mask": ["name"]}], "orders")
    for _ in range(2):
        assert told(now) == ["orders"]
    assert begins("p", now, bounds(9))[1].endswith(
        "; the steps of orders were changed, and rows that are there stay as they are"
    )
    assert not begins("p", before, bounds(9))[1].endswith("stay as they are")
    entries.commit(put(2, n=2))
    applied(now, entries)
    assert told(now) is None
    assert told(before) == ["orders"]


def test_a_table_that_is_made_anew_goes_through_the_steps_of_now(
    tmp_path: Path, entries: Entries
) -> None:
    """The way that is documented: its table is removed, and the pipeline reset."""
    applied(with_steps(tmp_path / "t", AT_FIRST, "orders"), entries)
    now = with_steps(tmp_path / "t", [], "orders")
    shutil.rmtree(tmp_path / "t" / "_delta_log")
    StandingTable(now, "p").reset(Progress(LOG_ID, 0, 0), bounds(9))
    assert told(now) is None


def test_what_a_row_from_before_does_not_say_is_not_guessed(
    tmp_path: Path, entries: Entries
) -> None:
    before = with_steps(tmp_path / "t", [], "orders")
    applied(before, entries)
    row = DeltaTable(before.standing_path)
    row.update({"steps": "NULL"})
    assert told(with_steps(tmp_path / "t", AT_FIRST, "orders")) is None


def test_where_a_pipeline_stands_does_not_tell_its_salt(tmp_path: Path, entries: Entries) -> None:
    config = with_steps(tmp_path / "t", AT_FIRST, "orders")
    applied(config, entries)
    (said,) = DeltaTable(config.standing_path).to_pyarrow_table().to_pylist()
    assert len(said["steps"]) > 50
    assert SALT not in str(said)
    assert "email" not in said["steps"]


def test_a_changelog_of_everything_has_the_steps_of_all(tmp_path: Path, entries: Entries) -> None:
    add(started(with_steps(tmp_path / "c", AT_FIRST, to="changelog")), entries.table())
    of_one: Steps = [*AT_FIRST, {"drop": ["x"], "collections": ["lines"]}]
    assert told(with_steps(tmp_path / "c", of_one, to="changelog")) == ["all"]


@pytest.mark.parametrize(
    ("steps", "changed"),
    [
        (AT_FIRST, []),
        ([{"drop": ("card",)}, AT_FIRST[1]], []),
        (AT_FIRST[::-1], ["lines", "orders"]),
        (AT_FIRST[:1], ["lines", "orders"]),
        ([AT_FIRST[0], {"hash": ["email"], "salt": SALT[::-1]}], ["lines", "orders"]),
        ([AT_FIRST[0], {"mask": ["email"]}], ["lines", "orders"]),
        ([*AT_FIRST, {"drop": ["x"], "collections": ["orders"]}], ["orders"]),
        ([*AT_FIRST, {"drop": ["x"], "collections": ["refunds"]}], []),
    ],
)
def test_steps_are_the_same_if_they_make_the_same_of_a_collection(
    steps: Steps, changed: list[str]
) -> None:
    before, now = (digests_of(with_steps(Path("t"), each)) for each in (AT_FIRST, steps))
    assert changed_in(["orders", "lines"], before, now) == changed


def test_a_hash_of_before_is_another_step() -> None:
    """It was of a value's JSON, with the quotes of a text: rows of then have other hashes."""
    (hashed,) = digests_of(with_steps(Path("t"), AT_FIRST[1:]))
    assert hashed.digest != "b31a4662c8f5a2b6bd3b3a1173ebd366"


@pytest.mark.parametrize(("action", "decides"), [("warn", False), ("drop", True), ("stop", True)])
def test_an_expectation_is_a_step_if_it_keeps_rows_out(action: str, decides: bool) -> None:
    one = {"name": "n", "condition": "n > 0", "document_schema": "n INT", "action": action}
    assert bool(digests_of(pipeline(Path("t"), expect=[one]))) is decides
    renamed = {**one, "name": "another"}
    assert digests_of(pipeline(Path("t"), expect=[one])) == digests_of(
        pipeline(Path("t"), expect=[renamed])
    )
