"""Rows whose fields want more columns than a table can have."""

# The stubs of pyarrow leave element types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.spark.history.columns import VERSION_NAMING
from penstock.spark.table.decode import decode_documents, parse_documents
from penstock.spark.table.kinds import Kind, kind_of_column
from penstock.spark.table.placing import place
from penstock.spark.table.plan import COLUMNS_MAX, Naming, Placement
from penstock.spark.table.room import Room

DOCS = Path(__file__).parents[2] / "docs" / "how-to"
WIDTHS = dict.fromkeys(Kind, 1) | {Kind.STRING: 5, Kind.DOUBLE: 4}
SMALL = Naming(own=("_own",), room=Room(8, WIDTHS, 17))
documents = st.lists(
    st.dictionaries(st.sampled_from("abcdefghij"), st.sampled_from([1, True, "x"]), max_size=4),
    max_size=12,
)


def placed(existing: pa.Schema, rows: list[dict[str, Any]], naming: Naming) -> Placement:
    cells = decode_documents(parse_documents([json.dumps(row) for row in rows]))
    return place(existing, cells, np.arange(len(rows)), naming=naming)


@given(documents, st.data())
def test_rows_have_their_columns_first_come_first_served(
    rows: list[dict[str, Any]], data: st.DataObject
) -> None:
    """Within the room, wherever batches end; a rejected row takes no room."""
    rows = [
        {f"{name}_{type(value).__name__}": value for name, value in row.items()} for row in rows
    ]
    columns: set[str] = set()
    rejected: list[int] = []
    for at, row in enumerate(rows):
        more = columns | row.keys()
        width = sum(5 if name.endswith("str") else 1 for name in more)
        if 1 + len(more) <= 8 and width <= 17:
            columns = more
        else:
            rejected.append(at)
    schema, found, start = pa.schema([]), list[int](), 0
    while start < len(rows):
        stop = data.draw(st.integers(start + 1, len(rows)), "end of the batch")
        placement = placed(schema, rows[start:stop], SMALL)
        found += [start + at for at in sorted(placement.misfits)]
        schema, start = placement.schema, stop
    assert found == rejected
    assert set(schema.names) == columns


def test_a_column_does_not_grow_beyond_the_room_and_one_that_has_room_does() -> None:
    schema = placed(pa.schema([]), [{"a": 1, "b": 1, "c": "x", "d": "x", "e": 1}], SMALL).schema
    placement = placed(schema, [{"a": 0.5}, {"b": 0.5}, {"b": 2}], SMALL)
    assert {at: why.field for at, why in placement.misfits.items()} == {1: "b"}
    kinds = [kind_of_column(placement.schema.field(name)) for name in "ab"]
    assert kinds == [Kind.DOUBLE, Kind.INT32]


def test_one_document_of_very_many_fields_takes_no_column_from_others() -> None:
    """A Delta table that nothing can read would be made of it; it is rejected, alone."""
    many = {f"f{n}": n for n in range(COLUMNS_MAX)}
    placement = placed(pa.schema([]), [{"a": 1}, many, {"b": 1}], Naming())
    assert list(placement.misfits) == [1]
    assert "no room" in placement.misfits[1].reason
    assert placement.schema.names == ["a", "b"]


@pytest.mark.parametrize(
    ("naming", "page", "also"),
    [(Naming(), "tables.md", "mongodb.md"), (VERSION_NAMING, "history.md", "mysql.md")],
)
def test_a_field_called_as_one_of_our_own_columns_is_rejected_and_the_pages_say_so(
    naming: Naming, page: str, also: str
) -> None:
    for own in naming.own:
        for name in (own, own.upper()):
            placement = placed(pa.schema([]), [{"a": 1}, {name: 1}, {"b": 1}], naming)
            assert list(placement.misfits) == [1]
            assert "another column that is called" in placement.misfits[1].reason
        assert f"`{own}`" in (DOCS / page).read_text()
    assert "(tables.md#what-a-table-does-not-take)" in (DOCS / also).read_text()
