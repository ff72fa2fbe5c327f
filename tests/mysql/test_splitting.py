"""Where a table is divided: each row in one range, about as many in each, whatever its keys are."""

import itertools
import random
import uuid
from bisect import bisect_left
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.sources.mysql.chunks import ChunkReader
from penstock.sources.mysql.connection import ask
from penstock.sources.mysql.selecting import ColumnFacts, Key, Span
from penstock.sources.mysql.splitting import Splitter, between, expected_rows
from tests.mysql.conftest import on
from tests.mysql.support import config_of, numbers, run
from tests_support.servers import SqlServer

INTS = (ColumnFacts("a", "int", "int(11)", None, None),) * 2
TEXT = (ColumnFacts("a", "varchar", "varchar(99)", "utf8mb4", "utf8mb4_general_ci"),)
BYTES = (ColumnFacts("a", "varbinary", "varbinary(99)", None, None),)


class Table:
    """Keys of whole numbers, in their order, and a server that answers of them."""

    def __init__(self, keys: Sequence[tuple[int, ...]]) -> None:
        self.keys = sorted(set(keys))
        self.asked = 0

    def within(self, span: Span) -> list[tuple[int, ...]]:
        def at(key: Sequence[str]) -> tuple[int, ...]:
            return tuple(map(int, key))

        found = self.keys
        if span.after is not None:
            after = at(span.after)
            found = [key for key in found if key > after]
        if span.start is not None:
            start = at(span.start)
            found = [key for key in found if key[: len(start)] >= start]
        if span.stop is not None:
            found = found[: bisect_left(found, at(span.stop))]
        return found

    def first_row(self, statement: Any) -> tuple[int, ...] | None:
        span, last, skip = cast("tuple[Span, bool, int]", statement)
        self.asked += 1
        found = self.within(span)
        if last:
            return found[-1] if found else None
        return found[skip] if len(found) > skip else None

    def splitter(self, expected: Callable[[int], int] = lambda count: count) -> Splitter:
        def key_in(span: Span, *, last: bool = False, skip: int = 0) -> tuple[Span, bool, int]:
            return span, last, skip

        def counted(span: Span) -> Span:
            return span

        selection: Any = SimpleNamespace(key=INTS, key_in=key_in, counted=counted)

        def expects(span: Any) -> int:
            return expected(len(self.within(span)))

        return Splitter(selection, first_row=self.first_row, expected=expects)

    def sizes(self, edges: Sequence[Key]) -> list[int]:
        """How many keys each range has."""
        places = [self.keys.index(tuple(map(int, edge))) for edge in edges]
        assert places == sorted(set(places))
        return [b - a for a, b in zip([0, *places], [*places, len(self.keys)], strict=True)]


KEYS = st.lists(st.tuples(st.integers(-9, 9), st.integers(-(1 << 63), 1 << 63)), max_size=60)


@given(KEYS, st.integers(1, 20))
def test_no_range_has_more_rows_than_are_wanted_and_few_have_much_less(
    keys: list[tuple[int, int]], rows: int
) -> None:
    table = Table(keys)
    sizes = table.sizes(table.splitter().edges(rows=rows))
    assert sum(sizes) == len(table.keys)
    assert all(size <= rows for size in sizes)
    assert all(a + b > rows // 2 for a, b in itertools.pairwise(sizes))


@given(KEYS, st.integers(1, 20), st.randoms())
def test_edges_are_keys_in_order_however_wrong_the_servers_estimates_are(
    keys: list[tuple[int, int]], rows: int, dice: random.Random
) -> None:
    table = Table(keys)
    edges = table.splitter(lambda count: int(count * dice.choice([0, 0.3, 3, 100]))).edges(
        rows=rows
    )
    assert sum(table.sizes(edges)) == len(table.keys)


def test_a_gap_in_the_numbers_costs_a_few_questions() -> None:
    table = Table([(1, 0), *((1 << 62, n) for n in range(5000))])
    sizes = table.sizes(table.splitter().edges(rows=500))
    assert max(sizes) <= 500
    assert len(sizes) < 25
    assert table.asked < 200


def hexed(*texts: str) -> list[Key]:
    return [(text.encode().hex().upper(),) for text in texts]


@pytest.mark.parametrize(
    ("low", "high"),
    [
        ("a", "z"),
        ("", "a"),
        ("A01", "A99"),
        ("01H0000000", "01HZZZZZZZ"),
        ("user-1@x", "user-9@x"),
        ("žluť-a", "žluť-z"),
        ("aa", "ab"),
    ],
)
def test_a_place_between_two_texts_is_between_them(low: str, high: str) -> None:
    one, other = hexed(low, high)
    (place,) = between(one, other, TEXT) or ("",)
    assert low <= bytes.fromhex(place).decode() <= high
    assert place not in {one[0], other[0]}


@given(st.binary(max_size=12), st.binary(max_size=12))
def test_a_place_between_two_bytes_is_between_them(one: bytes, other: bytes) -> None:
    low, high = sorted([one, other])
    place = between((low.hex(),), (high.hex(),), BYTES)
    if low == high:
        assert place is None
    else:
        assert place is not None
        assert low <= bytes.fromhex(place[0])
        assert bytes.fromhex(place[0])[:8] <= high.ljust(8, b"\0")


def test_there_is_no_guess_where_nobody_can_tell() -> None:
    low, high = hexed("ž", "ť")
    assert between(low, high, TEXT) is None
    kind = (ColumnFacts("a", "datetime", "datetime", None, None),)
    assert between(("2026-01-01",), ("2027-01-01",), kind) is None
    exact = (ColumnFacts("a", "decimal", "decimal(9,2)", None, None),)
    assert between(("1.00",), ("2.00",), exact) == ("1.50",)


# --- real servers ---------------------------------------------------------------------------------

TABLES: dict[str, tuple[str, Callable[[int], tuple[object, ...]]]] = {
    "numbers": ("a BIGINT", lambda n: (n,)),
    "gaps": ("a BIGINT UNSIGNED", lambda n: ((n // 500) << 61 | n,)),
    "tenants": ("a INT, b BIGINT", lambda n: (0 if n % 10 else n % 7 + 1, n)),
    "uuids": ("a CHAR(36) CHARACTER SET ascii", lambda n: (str(uuid.UUID(int=(n * 7919) << 100)),)),
    "binary": ("a BINARY(16)", lambda n: (uuid.uuid5(uuid.NAMESPACE_URL, str(n)).bytes,)),
    "names": (
        "a VARCHAR(60) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci",
        lambda n: (f"{'AbcxYzž'[n % 7]}-{n * 7919 % 10007}",),
    ),
    "moments": (
        "a DATETIME, b INT",
        lambda n: (f"2026-01-{n % 28 + 1:02} 10:{n % 60:02}:00", n),
    ),
}


@on("mariadb", soak=("mysql",))
@pytest.mark.parametrize("made", TABLES)
def test_ranges_of_a_real_table_are_about_as_large_as_is_wanted(
    server: SqlServer, database: str, made: str
) -> None:
    """A12: in the server's own order; by its estimates, which are only that."""
    columns, key = TABLES[made]
    names = ", ".join(one.split()[0] for one in columns.split(", "))
    places = ", ".join(["%s"] * len(key(0)))
    with server.connect(database=database) as db:
        run(db, f"CREATE TABLE t ({columns}, x CHAR(50) DEFAULT 'x', PRIMARY KEY ({names}))")
        with db.cursor() as cursor:
            cursor.executemany(
                f"INSERT INTO t ({names}) VALUES ({places})", [key(n) for n in range(4000)]
            )
        run(db, "ANALYZE TABLE t")
        reader = ChunkReader("db", config_of(server, include=[f"{database}.*"]))
        try:
            selection = reader.described((database, "t"))
            assert selection is not None

            def first_row(statement: str) -> Any:
                return next(iter(reader.asked(lambda by: ask(by, statement))), None)

            splitter = Splitter(
                selection,
                first_row=first_row,
                expected=lambda said: reader.asked(lambda by: expected_rows(by, said)),
            )
            edges = splitter.edges(rows=200)
            bounds = [None, *edges, None]
            sizes = [
                int(
                    first_row(f"SELECT COUNT(*) FROM ({selection.counted(Span(None, a, b))}) AS c")[
                        0
                    ]
                )
                for a, b in itertools.pairwise(bounds)
            ]
        finally:
            reader.discard()
    assert sum(sizes) == 4000
    assert max(sizes) <= 800, sizes
    assert len(sizes) < 80, sizes


@on("mariadb", "mysql")
def test_a_table_of_one_row_or_none_is_one_range(server: SqlServer, database: str) -> None:
    with server.connect(database=database) as db:
        run(db, "CREATE TABLE t (a INT PRIMARY KEY)", "CREATE TABLE u (a INT PRIMARY KEY)")
        run(db, f"INSERT INTO u SELECT seq FROM {numbers(1, 1)}")
    reader = ChunkReader("db", config_of(server, include=[f"{database}.*"]))
    try:
        for name in ("t", "u"):
            selection = reader.described((database, name))
            assert selection is not None
            splitter = Splitter(
                selection,
                first_row=lambda said: next(iter(reader.asked(lambda by: ask(by, said))), None),
                expected=lambda said: reader.asked(lambda by: expected_rows(by, said)),
            )
            assert splitter.edges(rows=1) == []
    finally:
        reader.discard()
