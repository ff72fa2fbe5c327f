"""The parts of a table that a parallel scan reads."""

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from penstock.store.keys import KeyAttribute, KeyType
from penstock.store.queries import segment_range, table_range
from penstock.store.schema import Table

TABLE = Table(id=7, name="t", partition_key=KeyAttribute("id", KeyType.STRING))


@given(st.integers(1, 70_000).flatmap(lambda n: st.tuples(st.integers(0, n - 1), st.just(n))))
def test_a_segment_is_what_lies_between_two_cuts_of_the_table(wanted: tuple[int, int]) -> None:
    segment, segments = wanted
    whole = table_range(TABLE)
    cuts = [(part * 0x10000 // segments).to_bytes(2, "big") for part in range(segments)]
    first = TABLE.prefix + cuts[segment] if segment else whole.first
    last = segment == segments - 1
    before = whole.before if last else TABLE.prefix + cuts[segment + 1]
    assert segment_range(TABLE, segment, segments) == (first, before)


def test_a_segment_of_a_million_costs_no_more_than_one_of_two() -> None:
    tracemalloc.start()
    try:
        segment_range(TABLE, 999_998, 1_000_000)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 10_000
