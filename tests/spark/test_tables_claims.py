"""A row that is rejected leaves nothing behind: no column, no kind, and no name that is taken."""

# The stubs of pyarrow leave element types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import json
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from penstock.spark.table.decode import decode_documents, parse_documents
from penstock.spark.table.kinds import Kind, document_field, kind_of_column
from penstock.spark.table.placing import place
from penstock.spark.table.plan import Misfit, Naming, Placement, present
from penstock.spark.table.room import Room
from tests.spark.tables import Entries, apply, change, pipeline, put, rejects_of, rows_of

REJECTED: dict[str, Any] = {"_id": 1, "Total": 1, "total": 2, "x": "text"}
GOOD: list[dict[str, Any]] = [{"_id": 2, "total": 5}, {"_id": 3, "x": 7}, {"_id": 4, "n": 1}]
FLAT = pa.schema([("_id", pa.int32()), ("total", pa.int32()), ("x", pa.int32()), ("n", pa.int32())])


def placed(
    existing: pa.Schema,
    rows: list[dict[str, Any]],
    sequences: Sequence[int] | None = None,
    **more: Any,
) -> Placement:
    cells = decode_documents(parse_documents([json.dumps(row) for row in rows]))
    order = np.arange(len(rows)) if sequences is None else np.array(sequences, np.int64)
    return place(existing, cells, order, **more)


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
    assert len(rounds) == 2
    rounds.clear()
    rows = [{"N": 1, "x": "text", f"f{at % 9}": at} for at in range(count)]
    assert len(placed(pa.schema([]), [{"n": 1}, *rows, {"x": 2}], others=others).misfits) == count
    assert len(rounds) == 2
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


@pytest.mark.parametrize("count", [20, 300, 1000])
def test_rows_that_make_new_columns_are_stored_behind_rejected_ones_that_would(count: int) -> None:
    """As many as there are: what is rejected with them would be so again in every replay."""
    bad = [{"Total": 1, "total": 1, f"f{at % 9}": 1} for at in range(count)]
    good = [{"total": at, f"g{at % 7}": 1} for at in range(count)]
    assert sorted(placed(pa.schema([]), bad + good).misfits) == list(range(count))


def test_a_row_that_is_rejected_for_a_stored_one_decides_nothing_for_those_behind_it() -> None:
    bad: list[dict[str, Any]] = [{"A": 1, "x": "text", f"f{at}": at} for at in range(20)]
    rows: list[dict[str, Any]] = [{"a": 1}, *bad, {"x": 7}, {"x": "text"}, {"a": 2, "y": 1}]
    placement = placed(pa.schema([]), rows)
    assert sorted(placement.misfits) == [*range(1, 21), 22]
    assert placement.schema.names == ["a", "x", "y"]


def test_a_name_goes_to_the_first_by_sequence_wherever_its_row_is_in_the_batch() -> None:
    placement = placed(pa.schema([]), [{"_id": 2, "total": 5}, {"_id": 1, "Total": 7}], [8, 3])
    assert list(placement.misfits) == [0]
    assert placement.schema.names == ["_id", "Total"]


def test_a_row_that_there_is_no_room_for_takes_no_name_from_others() -> None:
    wide = {"Total": 1} | {f"f{n}": n for n in range(5)}
    rows = [{"_id": 1}, *[wide] * 9, {"total": 5}]
    placement = placed(pa.schema([]), rows, naming=Naming(own=(), room=Room(5)))
    assert sorted(placement.misfits) == list(range(1, 10))
    assert placement.schema.names == ["_id", "total"]


def test_what_is_stored_stays_where_its_column_grows_for_rows_behind_a_rejected_one() -> None:
    existing = placed(pa.schema([]), [{"n": 1}]).schema
    half = {"$numberDecimal": "0.5"}
    placement = placed(existing, [{"n": 2.0, "a": 1}, {"A": 1, "b": 1}, {"n": half}, {"n": 2.0}])
    assert sorted(placement.misfits) == [1, 3]
    assert placement.widened
    column = placement.columns[placement.schema.names.index("n")]
    assert column.to_pylist()[:3] == [Decimal(2), None, Decimal("0.5")]


def test_many_rows_that_are_rejected_for_other_reasons_take_none_with_them() -> None:
    rounds: list[Placement] = []

    def others(placement: Placement) -> Mapping[int, Misfit]:
        rounds.append(placement)
        return dict.fromkeys(range(1, 1001), Misfit("y", "it is so"))

    bad: list[dict[str, Any]] = [{"y": 1, "x": "text", f"f{at % 9}": at} for at in range(1000)]
    placement = placed(pa.schema([]), [{"n": 1}, *bad, {"x": 2}], others=others)
    assert sorted(placement.misfits) == list(range(1, 1001))
    assert placement.schema.names == ["n", "x"]
    assert len(rounds) == 2


def test_no_row_is_rejected_for_one_that_fits_only_beside_it() -> None:
    """What fits no column but one of JSON is held by that of a later row, if this is stored."""
    beyond = {"$numberDecimal": "1E+99"}
    rows: list[dict[str, Any]] = [{"a": beyond, "d": 2**40}, {"a": [1], "d": "x"}]
    assert list(placed(pa.schema([]), rows).misfits) == [0]


def test_many_contests_for_names_take_few_rounds() -> None:
    rounds: list[Placement] = []

    def others(placement: Placement) -> Mapping[int, Misfit]:
        rounds.append(placement)
        return {}

    rows: list[dict[str, Any]] = []
    for at in range(200):
        rows += [{f"f{at}": 1, f"g{at}": 1}, {f"F{at}": 1, f"h{at}": 1}]
    placement = placed(pa.schema([]), rows, others=others)
    assert sorted(placement.misfits) == list(range(1, 400, 2))
    assert len(rounds) == 2


values = st.sampled_from([1, 2**40, 0.5, "x", True, [1]])
documents = st.lists(st.dictionaries(st.sampled_from("aAbBcd"), values, max_size=4), max_size=12)
rooms = st.sampled_from([Naming(), Naming(own=(), room=Room(3))])


def none_is_true(placement: Placement) -> Mapping[int, Misfit]:
    """A server that does not hold some of a column's values."""
    return {
        row: Misfit(field.name, "it is true")
        for field, column in zip(placement.schema, placement.columns, strict=True)
        if kind_of_column(field) is Kind.BOOL
        for row in np.flatnonzero(present(column)).tolist()
    }


@pytest.mark.slow
@given(documents, documents, rooms, st.booleans(), st.randoms(use_true_random=False))
def test_rows_are_stored_as_if_each_came_in_a_batch_of_its_own(
    before: list[dict[str, Any]],
    rows: list[dict[str, Any]],
    naming: Naming,
    holds_all: bool,
    random: Random,
) -> None:
    """So every column has a value of a row that is stored, none of these is rejected without the
    others, and no other would fit beside them."""
    how: dict[str, Any] = {"naming": naming} | ({} if holds_all else {"others": none_is_true})
    existing = placed(pa.schema([]), before, **how).schema
    sequences = random.sample(range(100), len(rows))
    placement = placed(existing, rows, sequences, **how)
    alone, rejected = existing, set[int]()
    for at in sorted(range(len(rows)), key=sequences.__getitem__):
        one = placed(alone, [rows[at]], **how)
        rejected |= {at} if one.misfits else set()
        alone = one.schema
    assert placement.misfits.keys() == rejected
    assert sorted(map(str, placement.schema)) == sorted(map(str, alone))
    stored = [at for at in range(len(rows)) if at not in rejected]
    held = {
        document_field(field): (kind_of_column(field), column)
        for field, column in zip(placement.schema, placement.columns, strict=True)
    }
    for field, (_, column) in held.items():
        if field not in existing.names:
            assert present(column)[stored].any()
    for at in stored:
        for field, value in rows[at].items():
            kind, column = held[field]
            found = column[at].as_py()
            assert (json.loads(found) if kind is Kind.JSON else found) == value
    again = placed(existing, [rows[at] for at in stored], [sequences[at] for at in stored], **how)
    assert again.misfits == {}
    # What a server refuses it may hold in a column of JSON, which a later row makes.
    for at in rejected if holds_all else ():
        assert placed(placement.schema, [rows[at]], **how).misfits, "it would fit"


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
