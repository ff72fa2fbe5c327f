"""What goes out of the archive is what would go out of the log."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from penstock.archive.selecting import choose
from penstock.subscribe.criteria import Criteria, select
from penstock.wire import Block, build_block, encode, places_of, summaries_of, to_arrow
from tests.archive.logs import event

NAMES = ["orders", "lines", "a/orders", "b/lines", "c/x", ""]


@given(
    numbers=st.lists(st.integers(0, 400), min_size=1, max_size=25),
    of=st.data(),
    collections=st.frozensets(st.sampled_from(NAMES), max_size=3),
    sources=st.frozensets(st.sampled_from(["a", "b"]), max_size=1),
    control_events=st.booleans(),
)
def test_rows_are_chosen_as_the_log_chooses_entries(
    numbers: list[int],
    of: st.DataObject,
    collections: frozenset[str],
    sources: frozenset[str],
    control_events: bool,
) -> None:
    events = encode(
        [
            event(
                number,
                source=of.draw(st.sampled_from(["a", "b"])),
                collection=of.draw(st.sampled_from(["orders", "lines", ""])),
            )
            for number in numbers
        ]
    )
    rows = [len(events)]
    data = build_block(
        events, places_of(rows), summaries_of(events, rows), first_commit=1, ingested_at=1, before=0
    )
    block = Block(data, log_id=1, first_sequence=1)
    criteria = Criteria(collections=collections, sources=sources, control_events=control_events)
    expected = select(criteria, block)
    batch: pa.RecordBatch = to_arrow((block,))
    found = choose(criteria, batch)
    assert (found.rows.tolist(), found.gap) == (list(expected.entries), expected.gap)
