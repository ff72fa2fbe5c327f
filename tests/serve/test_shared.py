"""Messages made once for many readers are the messages that each would have made."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.serve.shared import SharedMessages
from penstock.wire import Block
from tests.subscribe.events import blocks_of, one_each

BLOCKS = blocks_of([one_each(1, 9), one_each(10, 12), one_each(13, 30)])


@given(
    st.lists(st.tuples(st.sampled_from(BLOCKS), st.integers(0, 20), st.integers(0, 20))),
    st.sampled_from([0, 700, 1 << 20]),
)
def test_whoever_read_before_and_whatever_is_kept_a_reader_gets_its_own_entries(
    reads: list[tuple[Block, int, int]], bytes_max: int
) -> None:
    shared = SharedMessages(bytes_max)
    for block, after, count in reads:
        narrowed = block.narrow(after=block.first_sequence - 1 + after)
        everything = range(narrowed.start, max(narrowed.start, narrowed.stop))
        for entries in (everything, everything[:count], list(everything[::2])):
            assert shared.messages(narrowed, entries) == list(narrowed.messages(entries))
            assert shared.kept_bytes <= bytes_max
