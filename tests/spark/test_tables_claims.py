"""A row that is rejected leaves nothing behind: no column, no kind, and no name that is taken."""

# The stubs of pyarrow leave element types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from penstock.spark.table.decode import decode_documents, parse_documents
from penstock.spark.table.kinds import Kind, kind_of_column
from penstock.spark.table.placing import place
from penstock.spark.table.plan import Misfit, Placement, present
from tests.spark.tables import Entries, apply, change, pipeline, put, rejects_of, rows_of

REJECTED: dict[str, Any] = {"_id": 1, "Total": 1, "total": 2, "x": "text"}
GOOD: list[dict[str, Any]] = [{"_id": 2, "total": 5}, {"_id": 3, "x": 7}, {"_id": 4, "n": 1}]
FLAT = pa.schema([("_id", pa.int32()), ("total", pa.int32()), ("x", pa.int32()), ("n", pa.int32())])


def placed(existing: pa.Schema, rows: list[dict[str, Any]], **more: Any) -> Placement:
    cells = decode_documents(parse_documents([json.dumps(row) for row in rows]))
    return place(existing, cells, np.arange(len(rows)), **more)


@pytest.mark.parametrize("ends", [[4], [1, 4], [2, 4], [1, 2, 3, 4]])
def test_a_rejected_row_takes_no_column_from_those_behind_it(ends: list[int]) -> None:
    schema, start = pa.schema([]), 0
    rejected: list[int] = []
    for end in ends:
        placement = placed(schema, [REJECTED, *GOOD][start:end])
        rejected += [start + at for at in placement.misfits]
        schema, start = placement.schema, end
    assert rejected == [0]
    assert schema.equals(FLAT)


def test_a_rejected_row_widens_no_column() -> None:
    schema = placed(pa.schema([]), [{"n": 1}]).schema
    placement = placed(schema, [{"n": 0.5, "A": 1, "a": 2}, {"n": 2}])
    assert list(placement.misfits) == [0]
    assert not placement.widened
    assert placement.schema.equals(schema)


def test_rows_that_are_stored_together_decide_nothing_if_one_of_them_is_rejected() -> None:
    rows: list[dict[str, Any]] = [{"x": "text"}, {"A": 1, "a": 2}, {"x": 7}]
    placement = placed(pa.schema([]), rows, parents=np.array([0, 0, 1]))
    assert list(placement.misfits) == [1]
    assert [kind_of_column(column) for column in placement.schema] == [Kind.INT32]


def test_rows_that_are_rejected_for_other_reasons_decide_nothing() -> None:
    def others(_: Placement) -> Mapping[int, Misfit]:
        return {0: Misfit("y", "it is so")}

    placement = placed(pa.schema([]), [{"x": "text", "y": 1}, {"x": 7}], others=others)
    assert placement.misfits == {0: Misfit("y", "it is so")}
    assert placement.schema.equals(pa.schema([("x", pa.int32())]))


@pytest.mark.parametrize("count", [1, 7, 1000])
def test_many_rejected_rows_take_few_rounds(count: int) -> None:
    rounds: list[Placement] = []

    def others(placement: Placement) -> Mapping[int, Misfit]:
        rounds.append(placement)
        return {}

    rows = [{"Total": 1, "total": 2, "x": "text"}] * count
    placement = placed(pa.schema([]), [{"n": 1}, *rows, {"n": 2}], others=others)
    assert sorted(placement.misfits) == list(range(1, 1 + count))
    assert placement.schema.names == ["n"]
    assert len(rounds) <= 2 + count.bit_length()
    rounds.clear()
    placed(placement.schema, [{"x": 7}, {"x": "text"}] * count, others=others)
    placed(pa.schema([]), [{"x": 7}] * count, others=others)
    assert len(rounds) == 2


@pytest.mark.parametrize("count", [1, 2, 3, 4, 10, 50, 100])
def test_rows_that_fit_but_for_rejected_ones_are_stored_however_many_these_are(count: int) -> None:
    bad: list[dict[str, Any]] = [{"Total": at, "total": at} for at in range(count)]
    good: list[dict[str, Any]] = [{"total": at} for at in range(200)]
    placement = placed(pa.schema([]), bad + good)
    assert sorted(placement.misfits) == list(range(count))
    assert placement.schema.names == ["total"]


def test_a_rejected_row_decides_not_who_has_a_name_that_two_fields_want() -> None:
    rows: list[dict[str, Any]] = [
        {"Total": 1, "total": 2},
        {"total": 5},
        {"total": 6},
        {"Total": 7},
    ]
    assert sorted(placed(pa.schema([]), rows).misfits) == [0, 3]


def test_rows_that_fit_again_are_stored_with_those_that_go_with_them() -> None:
    rows: list[dict[str, Any]] = [{"A": 1, "a": 2}, {"B": 1, "b": 1}, {"a": 3}, {"b": 3}, {"a": 4}]
    parents = np.array([0, 1, 2, 2, 3])
    assert sorted(placed(pa.schema([]), rows, parents=parents).misfits) == [0, 1]


values = st.sampled_from([1, 2**40, 0.5, "x", True])
documents = st.lists(st.dictionaries(st.sampled_from("aAbBc"), values, max_size=4), max_size=12)


@pytest.mark.slow
@given(documents, documents)
def test_every_column_has_a_value_of_a_row_that_is_stored(
    before: list[dict[str, Any]], rows: list[dict[str, Any]]
) -> None:
    """And without the others, none of those that are stored is rejected."""
    schema = placed(pa.schema([]), before).schema
    placement = placed(schema, rows)
    stored = [at for at in range(len(rows)) if at not in placement.misfits]
    for field, column in zip(placement.schema, placement.columns, strict=True):
        if field.name not in schema.names:
            assert present(column)[stored].any()
    assert placed(schema, [rows[at] for at in stored]).misfits == {}
    for at in placement.misfits:
        assert placed(placement.schema, [rows[at]]).misfits, "it would fit"


def test_a_table_has_the_rows_behind_one_that_is_rejected(tmp_path: Path) -> None:
    config, entries = pipeline(tmp_path / "t"), Entries()
    for document in (REJECTED, *GOOD):
        entries.commit(change(document["_id"], "insert", document))
        apply(entries.table(entries.head - 1), config)
    assert sorted(rows_of(tmp_path / "t").values(), key=lambda row: row["_id"]) == GOOD
    assert [row["sequence"] for row in rejects_of(tmp_path / "t")] == [1]
    names = DeltaTable(str(tmp_path / "t")).to_pyarrow_table().schema.names
    assert "Total" not in names


def test_elements_of_a_rejected_document_make_no_column(tmp_path: Path) -> None:
    config, entries = pipeline(tmp_path / "t", transform=[{"explode": "items"}]), Entries()
    entries.commit(put(1, items=[{"a": 1}, 5], Total=1, total=2), put(2, items=[7]))
    apply(entries.table(), config)
    assert [row["items"] for row in rows_of(tmp_path / "t").values()] == [7]
    assert [row["sequence"] for row in rejects_of(tmp_path / "t")] == [1]


@pytest.mark.parametrize("bad", [1, 2, 5])
def test_elements_of_several_kinds_are_stored_behind_rejected_ones(
    tmp_path: Path, bad: int
) -> None:
    """The first array that is stored decides that its column has JSON."""
    config, entries = pipeline(tmp_path / "t", transform=[{"explode": "items"}]), Entries()
    entries.commit(*(put(key, items=[1, "a"], Total=1, total=2) for key in range(bad)))
    entries.commit(put(10, items=[1, "a"]), put(11, items=["b", 2]))
    apply(entries.table(), config)
    items = DeltaTable(str(tmp_path / "t")).to_pyarrow_table()["items"]
    assert sorted(map(str, items.to_pylist())) == ['"a"', '"b"', "1", "2"]
    assert len(rejects_of(tmp_path / "t")) == bad
