"""What was begun and comes again in other batches is in the table or in the rejects, never lost."""

# The stubs of pyarrow leave element types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pydantic import ValidationError

from penstock.errors import ChangesLostError, PipelineError
from penstock.spark.config import TablePipelineConfig
from penstock.spark.table.arrow import arrow
from penstock.spark.table.delta import Table
from penstock.spark.table.kinds import Kind, column_field
from penstock.spark.table.placing import place
from penstock.spark.table.rejects import (
    LOADED,
    REJECTS_SCHEMA,
    REPLAYED,
    SUPERSEDED,
    VIEW_STEP,
    Reject,
    known_rejects,
)
from penstock.spark.transform.settled import mark, outcome, pending_in
from tests.spark.tables import (
    LOG_ID,
    Entries,
    apply,
    change,
    pipeline,
    put,
    rejects_of,
    rows_of,
    schema_event,
)


def _crash_before_the_table(
    entries: pa.Table, config: TablePipelineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def power_cut(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        for name in ("merge", "insert"):
            patched.setattr(Table, name, power_cut)
        with pytest.raises(KeyboardInterrupt):
            apply(entries, config)


def _accounted(path: Path, sequence: int) -> bool:
    rows = DeltaTable(str(path)).to_pyarrow_table().to_pylist()
    return sequence in {row["_sequence"] for row in rows} | {
        row["sequence"] for row in rejects_of(path)
    }


def test_a_reject_that_only_the_second_split_finds_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is rejected depends on where batches end: the rejects already there say nothing of it.

    First the column becomes text (3 does not reject 1), and only 2 is rejected; then, with a later
    value of key 1, it becomes a number, and 3 is what does not fit.
    """
    config = pipeline(tmp_path / "t")
    entries = Entries()
    entries.commit(put("a", f="x"), put("b", f=5), put("d", f="y"))
    _crash_before_the_table(entries.table(), config, monkeypatch)
    entries.commit(put("a", f=1))
    apply(entries.table(), config)
    assert _accounted(tmp_path / "t", 3)
    assert len({row["sequence"] for row in rejects_of(tmp_path / "t")}) == len(
        rejects_of(tmp_path / "t")
    )


def test_rejects_of_a_table_that_is_gone_do_not_hide_those_of_its_successor(
    tmp_path: Path,
) -> None:
    config = pipeline(tmp_path / "t")
    entries = Entries()
    entries.commit(put("a", f=1), put("b", f="x"))
    entries.commit(put("a", f="z"), put("e", f=9))
    apply(entries.table(0, 2), config)
    apply(entries.table(2), config)
    shutil.rmtree(tmp_path / "t")
    apply(entries.table(2), config)
    assert _accounted(tmp_path / "t", 4)


def test_a_reject_that_was_settled_is_told_anew_where_its_change_is_rejected_again(
    tmp_path: Path,
) -> None:
    """The table was lost behind the replay: its row is missing, and nothing else would say so."""
    config = pipeline(tmp_path / "t")
    entries = Entries()
    entries.commit(put("a", f="z"), put("e", f=9))
    entries.commit(put("b", f="y"))
    apply(entries.table(0, 2), config)
    rejects = Table(config.rejects_path)
    for state in (REPLAYED, SUPERSEDED):
        settled = [outcome(one, state) for one in pending_in("p", rejects)]
        assert [one.sequence for one in settled] == [2]
        mark(rejects, settled, pipeline="p", log_id=LOG_ID)
        assert apply(entries.table(), config).rejected == 0, "the table has it"
        shutil.rmtree(tmp_path / "t")
        assert apply(entries.table(), config).rejected == 1
        assert apply(entries.table(), config).rejected == 0
        rejects.reload()
    assert [row["state"] for row in pending_in("p", rejects)] == [None]


def test_rows_of_a_view_and_of_a_first_load_stand_for_no_change_of_the_log() -> None:
    said: dict[str, object] = {"pipeline": "p", "sequence": 7, "reason": "r"}
    rows = [{**said, "step": VIEW_STEP}, {**said, "operation_type": LOADED}]
    (batch,) = arrow.Table.from_pylist(rows, schema=REJECTS_SCHEMA).to_batches()
    assert known_rejects([batch], [Reject(sequence=7, reason="r")]) == set()
    (own,) = arrow.Table.from_pylist([said], schema=REJECTS_SCHEMA).to_batches()
    before = own.drop_columns(["state", "step"])
    assert known_rejects([before], [Reject(sequence=7, reason="r")]) == {(7, None)}


def test_the_rows_of_a_rename_that_fit_no_column_are_in_the_rejects_once_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = pipeline(tmp_path, "orders", "archive")
    entries = Entries()
    entries.commit(change(9, "insert", {"_id": 9, "n": "text"}, collection="archive"))
    entries.commit(put(1, n=1), put(2, n=2))
    apply(entries.table(), config)
    entries.commit(schema_event("rename", to={"db": "db", "coll": "archive"}))
    _crash_before_the_table(entries.table(3), config, monkeypatch)
    apply(entries.table(3), config)
    assert sorted(row["key"] for row in rejects_of(tmp_path)) == ['{"_id":1}', '{"_id":2}']


@pytest.mark.parametrize("ends", [[4], [2, 4], [3, 4], [2, 3, 4]])
def test_a_column_widens_to_what_came_first_however_batches_fall(
    tmp_path: Path, ends: list[int]
) -> None:
    config = pipeline(tmp_path / "t")
    entries = Entries()
    entries.commit(put(1, f=1))
    entries.commit(put(2, f=0.5))
    entries.commit(put(3, f=1 << 60))
    entries.commit(put(4, f=4))
    apply(entries.table(0, 1), config)
    after = 1
    for end in ends:
        apply(entries.table(after, end), config)
        after = end
    assert str(DeltaTable(str(tmp_path / "t")).to_pyarrow_table().schema.field("f").type) == (
        "double"
    )
    assert [row["sequence"] for row in rejects_of(tmp_path / "t")] == [3]


def test_a_column_widens_to_what_came_first_whatever_the_order_of_kinds() -> None:
    existing = pa.schema([column_field("f", Kind.INT32, field="f")])
    doubles: Any = pa.array([0.5, None], pa.float64())
    integers: Any = pa.array([None, 1 << 60], pa.int64())
    for values in (
        {Kind.DOUBLE: doubles, Kind.INT64: integers},
        {Kind.INT64: integers, Kind.DOUBLE: doubles},
    ):
        placement = place(existing, {"f": values}, np.array([2, 3]))
        assert placement.schema.field("f").type == pa.float64()
        assert list(placement.misfits) == [1]


ODD_NAMES = [
    "a.b",
    'q"q',
    "back`tick",
    "`",
    "da$h",
    "x'y",
    "sl/ash",
    "back\\slash",
    "UPPER",
    "ünï",
    "a[0]",
    "car\rriage",
    "new\nline",
    "ta\tb",
    "sp ace",
    "a,b;c",
    "{x}(y)=z",
    "0",
    "s.a",
    "null",
    "select",
    "*",
    "%41",
    "-",
    "🜁",
]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_field_of_any_name_can_be_written_again_and_again(tmp_path: Path, name: str) -> None:
    """Created, merged with, rewritten for a wider type, looked up, and merged with again."""
    config = pipeline(tmp_path / "t")
    entries = Entries()
    entries.commit(put(1, other=1))
    entries.commit(put(1, **{name: 1}))
    entries.commit(put(2, **{name: 2}))
    entries.commit(put(3, **{name: 1 << 40}))
    entries.commit(change(1, "update", update={"updatedFields": {"other": 5}}))
    entries.commit(put(4, other=2), change(2, "delete"))
    for after in range(entries.head - 2):
        apply(entries.table(after, after + 1), config)
    apply(entries.table(entries.head - 2), config)
    assert rows_of(tmp_path / "t") == {
        ("db", '{"_id":1}'): {"_id": 1, name: {"$numberLong": "1"}, "other": 5},
        ("db", '{"_id":3}'): {"_id": 3, name: 1 << 40},
        ("db", '{"_id":4}'): {"_id": 4, "other": 2},
    }
    assert not DeltaTable.is_deltatable(f"{tmp_path / 't'}_rejects")


@pytest.mark.parametrize("operation", ["truncate", "somethingNew", ""])
def test_an_event_that_is_not_understood_stops_the_pipeline_before_it(
    tmp_path: Path, operation: str
) -> None:
    entries = Entries()
    entries.commit(put(1, n=1))
    entries.commit(schema_event(operation))
    entries.commit(put(2, n=2), put(1, n=3))
    with pytest.raises(PipelineError, match="at sequence 2 the source says") as raised:
        apply(entries.table(), pipeline(tmp_path / "t"))
    assert not isinstance(raised.value, ChangesLostError)
    assert rows_of(tmp_path / "t") == {("db", '{"_id":1}'): {"_id": 1, "n": 1}}


@pytest.mark.parametrize(
    "operation",
    ["create", "modify", "createIndexes", "dropIndexes", "shardCollection", "invalidate"],
)
def test_an_event_that_changes_no_row_changes_no_row(tmp_path: Path, operation: str) -> None:
    entries = Entries()
    entries.commit(put(1, n=1))
    entries.commit(schema_event(operation))
    apply(entries.table(), pipeline(tmp_path / "t"))
    assert list(rows_of(tmp_path / "t")) == [("db", '{"_id":1}')]


def test_a_collection_that_is_named_with_its_source_is_the_same_collection(tmp_path: Path) -> None:
    config = pipeline(tmp_path / "t", "shop/orders")
    assert config.collections == ("orders",)
    entries = Entries()
    entries.commit(put(1, n=1))
    entries.commit(schema_event("drop"))
    apply(entries.table(), config)
    assert rows_of(tmp_path / "t") == {}


@pytest.mark.parametrize(
    "collections",
    [["orders", "shop/orders"], ["a,b"], [""], ["shop/"], [" orders"], ["crm/orders"]],
)
def test_collections_that_no_filter_can_name_are_refused(collections: list[Any]) -> None:
    with pytest.raises(ValidationError, match="collection"):
        TablePipelineConfig.model_validate(
            {"source": "shop", "collections": collections, "path": "t"}
        )
