"""A table's function reads what reading its columns one by one does, whatever neighbours they have.

That a column by itself is read as it is, the tests of decoding and of values say, and the oracle's.
"""

import struct
from typing import Any, NamedTuple

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from penstock.sources.mysql import rows
from penstock.sources.mysql.binlog import EventType, MalformedEventError
from penstock.sources.mysql.rows import compile_table
from penstock.sources.mysql.tables import BINARY_COLLATION, Column, ColumnType, Table
from tests.seeds import cases

UTF8, LATIN1 = 45, 8
CHARSETS = {UTF8: "utf8mb4", LATIN1: "latin1", BINARY_COLLATION: "binary"}


class Kind(NamedTuple):
    """A type of column."""

    type: ColumnType
    meta: int
    data: st.SearchStrategy[bytes]
    """Its values, as a row has them."""
    collation: int = BINARY_COLLATION
    values: tuple[bytes, ...] = ()


def number(size: int, most: int | None = None) -> st.SearchStrategy[bytes]:
    """A little-endian number of so many bytes."""
    return st.integers(0, (1 << 8 * size) - 1 if most is None else most).map(
        lambda value: value.to_bytes(size, "little")
    )


def packed(layout: str, *parts: st.SearchStrategy[Any]) -> st.SearchStrategy[bytes]:
    return st.tuples(*parts).map(lambda values: struct.pack(layout, *values))


def prefixed(size: int, values: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """Values that say their length in so many bytes."""
    return values.map(lambda value: len(value).to_bytes(size, "little") + value)


def parts_of(size: int) -> st.SearchStrategy[bytes]:
    """A fraction of a second in so many bytes."""
    return st.integers(0, 10 ** (2 * size) - 1).map(lambda value: value.to_bytes(size, "big"))


def joined(*parts: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    return st.tuples(*parts).map(b"".join)


DATETIMES = st.integers(0, 9999 * 13 * 32 << 17 | 59).map(
    lambda value: (value + (1 << 39)).to_bytes(5, "big")
)
SECONDS = st.sampled_from([0, 1]) | st.integers(0, (1 << 32) - 1)
INSTANTS = SECONDS.map(lambda value: value.to_bytes(4, "big"))
TEXTS = st.text(max_size=40).map(str.encode)
FLOATS = st.floats(width=32)
KINDS = [
    *(
        Kind(kind, 0, number(size))
        for kind, size in (
            (ColumnType.TINY, 1),
            (ColumnType.SHORT, 2),
            (ColumnType.INT24, 3),
            (ColumnType.LONG, 4),
            (ColumnType.LONGLONG, 8),
            (ColumnType.YEAR, 1),
            (ColumnType.DATE, 3),
        )
    ),
    Kind(ColumnType.FLOAT, 4, packed("<f", FLOATS)),
    Kind(ColumnType.DOUBLE, 8, packed("<d", st.floats())),
    Kind(ColumnType.BIT, 9, number(2)),
    Kind(ColumnType.NEWDECIMAL, 12 << 8 | 2, joined(number(1), number(4, 10**9 - 1), number(1))),
    Kind(ColumnType.NEWDECIMAL, 5 << 8, number(3)),
    Kind(ColumnType.NEWDECIMAL, 23 << 8 | 13, st.binary(min_size=11, max_size=11)),
    *(
        Kind(ColumnType.TIME2, digits, st.binary(min_size=3 + size, max_size=3 + size))
        for digits, size in ((0, 0), (3, 2), (6, 3))
    ),
    *(
        Kind(ColumnType.DATETIME2, digits, joined(DATETIMES, parts_of((digits + 1) // 2)))
        for digits in range(7)
    ),
    *(
        Kind(ColumnType.TIMESTAMP2, digits, joined(INSTANTS, parts_of((digits + 1) // 2)))
        for digits in range(7)
    ),
    Kind(ColumnType.ENUM, 1, number(1, 2), UTF8, (b"a", b"b")),
    Kind(ColumnType.ENUM, 2, number(2, 2), UTF8, (b"a", b"b")),
    Kind(ColumnType.SET, 1, number(1, 7), UTF8, (b"a", b"b", b"c")),
    Kind(ColumnType.VARCHAR, 200, prefixed(1, TEXTS), UTF8),
    Kind(ColumnType.VARCHAR, 800, prefixed(2, TEXTS), UTF8),
    Kind(ColumnType.VARCHAR, 20, prefixed(1, st.binary(max_size=20)), LATIN1),
    Kind(ColumnType.STRING, 20, prefixed(1, st.binary(max_size=20))),
    *(Kind(ColumnType.BLOB, size, prefixed(size, st.binary(max_size=40))) for size in range(1, 5)),
]


class Row(NamedTuple):
    """A row of some columns."""

    table: Table
    parts: list[bytes | None]
    """The values as they are in it; None is NULL."""

    @property
    def data(self) -> bytes:
        nulls = sum((part is None) << bit for bit, part in enumerate(self.parts))
        size = (len(self.parts) + 7) // 8
        return nulls.to_bytes(size, "little") + b"".join(part or b"" for part in self.parts)


def table_of(*columns: Column) -> Table:
    return Table(database="d", name="t", columns=columns, key=(), full=True)


@st.composite
def any_row(draw: st.DrawFn) -> Row:
    kinds = draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=12))
    columns = tuple(
        Column(
            name=f"c{i}",
            type=kind.type,
            meta=kind.meta,
            nullable=draw(st.booleans()),
            unsigned=draw(st.booleans()),
            collation=kind.collation,
            values=kind.values,
        )
        for i, kind in enumerate(kinds)
    )
    some_are_null = draw(st.booleans())
    parts = [
        None if column.nullable and some_are_null and draw(st.booleans()) else draw(kind.data)
        for column, kind in zip(columns, kinds, strict=True)
    ]
    return Row(table_of(*columns), parts)


def alone(column: Column, part: bytes | None) -> Any:
    """The value of a column in a row that has no other."""
    row = Row(table_of(column), [part])
    found, end = compile_table(row.table, CHARSETS).read(row.data, 0)
    assert end == len(row.data)
    return found[column.name]


@settings(max_examples=cases(400))
@given(any_row(), st.binary(max_size=5))
def test_a_column_is_read_alike_whatever_is_beside_it(row: Row, before: bytes) -> None:
    """A28: with NULLs and without, wherever the row begins."""
    read = compile_table(row.table, CHARSETS).read
    found, end = read(before + row.data + b"behind", len(before))
    columns = row.table.columns
    expected = {one.name: alone(one, part) for one, part in zip(columns, row.parts, strict=True)}
    assert list(found) == list(expected)
    # As text, for what is no number is not equal to itself.
    assert repr(found) == repr(expected)
    assert end == len(before) + len(row.data)


@settings(max_examples=cases(200))
@given(any_row(), st.data())
def test_columns_that_are_not_told_are_read_over(row: Row, data: st.DataObject) -> None:
    """A26."""
    names = [column.name for column in row.table.columns]
    hidden = frozenset(data.draw(st.lists(st.sampled_from(names))))
    whole, end = compile_table(row.table, CHARSETS).read(row.data, 0)
    found, same_end = compile_table(row.table, CHARSETS, without=hidden).read(row.data, 0)
    assert same_end == end
    assert repr(found) == repr({name: whole[name] for name in names if name not in hidden})


@settings(max_examples=cases(200))
@given(any_row(), st.data())
def test_a_row_that_is_cut_is_an_error(row: Row, data: st.DataObject) -> None:
    """S1: never a row of what is there."""
    compiled = compile_table(row.table, CHARSETS)
    count = bytes([len(row.parts)])
    head = bytes(8) + count + b"\xff" * ((len(row.parts) + 7) // 8)
    assume(len(row.data) > 1)
    cut = data.draw(st.integers(1, len(row.data) - 1))
    with pytest.raises((MalformedEventError, UnicodeDecodeError)):
        rows.changes(EventType.WRITE_ROWS_V1, head + row.data[:cut], compiled)


def event(kind: EventType, table: Table, row: bytes, *, extra: bytes, rest: int) -> bytes:
    """A ROWS event; `rest` are the bits of its images that are of no column."""
    count = len(table.columns)
    size = (count + 7) // 8
    image = ((1 << count) - 1 | rest << count) & (1 << 8 * size) - 1
    images = image.to_bytes(size, "little") * (2 if kind in rows.UPDATES else 1)
    second = b"" if kind < EventType.ROWS_QUERY else struct.pack("<H", 2 + len(extra)) + extra
    count_said = bytes([count]) if count < 0xFB else b"\xfc" + struct.pack("<H", count)
    return bytes(8) + second + count_said + images + row * (2 if kind in rows.UPDATES else 1)


@pytest.mark.parametrize("many", [1, 3, 8, 9, 250, 251, 300])
@pytest.mark.parametrize(
    "kind",
    [
        *(EventType.WRITE_ROWS_V1, EventType.UPDATE_ROWS_V1, EventType.DELETE_ROWS_V1),
        *(EventType.WRITE_ROWS, EventType.UPDATE_ROWS, EventType.DELETE_ROWS),
    ],
)
def test_rows_are_the_same_however_their_event_says_that_all_columns_are_there(
    kind: EventType, many: int
) -> None:
    """With bits for columns that there are not, or none; with something beside the rows, or not."""
    table = table_of(
        *(Column(name=f"c{i}", type=ColumnType.TINY, meta=0, nullable=False) for i in range(many))
    )
    row = bytes((many + 7) // 8) + bytes(i % 100 for i in range(many))
    compiled = compile_table(table, CHARSETS)
    written = {f"c{i}": i % 100 for i in range(many)}
    before = None if kind in rows.WRITES else written
    after = None if kind in rows.DELETES else written
    for extra, rest in ((b"", 0), (b"", 0xFF), (b"xyz", 0), (b"xyz", 0xFF)):
        body = event(kind, table, row, extra=extra, rest=rest)
        assert rows.changes(kind, body, compiled) == rows.Changes([(before, after)])
    whole = event(kind, table, row, extra=b"", rest=0xFF)
    assert whole.startswith(compiled.heads[kind], 8), "the usual form is taken apart"


@pytest.mark.parametrize("size", [0, 3, 127])
def test_an_enum_of_a_size_that_there_is_not_is_an_error(size: int) -> None:
    """S1: found by damaged events."""
    table = table_of(
        Column(name="c", type=ColumnType.ENUM, meta=size, collation=UTF8, values=(b"a",))
    )
    with pytest.raises(MalformedEventError, match="an ENUM"):
        compile_table(table, CHARSETS)


@pytest.mark.parametrize("digits", range(1, 7))
def test_a_fraction_of_a_second_or_more_is_no_instant(digits: int) -> None:
    """A28: no server writes it, and what is written of it would be another instant."""
    table = table_of(Column(name="c", type=ColumnType.TIMESTAMP2, meta=digits, nullable=False))
    size = (digits + 1) // 2
    head = bytes(8) + b"\x01\xff" + b"\0" + (86_400).to_bytes(4, "big")
    compiled = compile_table(table, CHARSETS)
    last = head + (10 ** (2 * size) - 1).to_bytes(size, "big")
    ((_, row),) = rows.changes(EventType.WRITE_ROWS_V1, last, compiled).rows
    assert row is not None
    assert row["c"]["$date"].startswith("1970-01-02T00:00:00.99")
    beyond = head + (10 ** (2 * size)).to_bytes(size, "big")
    with pytest.raises(MalformedEventError):
        rows.changes(EventType.WRITE_ROWS_V1, beyond, compiled)
