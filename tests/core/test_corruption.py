"""A damaged block is never read as if it were whole."""

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from penstock.errors import LogCorruptError, LogError, LogFormatError
from penstock.wire import Block, CommitSummary, EncodedEvent, encode_event, verify_block
from penstock.wire.layout import LAYOUT_VERSION, UNCHAINED
from tests.core.strategies import Placed, StoredBlock, block_of, blocks, events, stored_block
from tests.core.test_wire import change


def opened(data: bytes) -> Block:
    block = Block(data, log_id=5, first_sequence=1)
    verify_block(block)
    return block


@given(blocks(), st.data())
def test_a_block_cut_anywhere_is_refused_on_opening(
    stored: StoredBlock, data: st.DataObject
) -> None:
    cut = data.draw(st.integers(0, len(stored.data) - 1))
    with pytest.raises(LogCorruptError, match="damaged"):
        Block(stored.data[:cut], log_id=5, first_sequence=1)


@given(blocks(), st.data())
def test_a_block_with_any_byte_altered_is_refused(stored: StoredBlock, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(stored.data) - 1))
    altered = bytearray(stored.data)
    altered[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(LogError):
        opened(bytes(altered))


def test_every_single_bit_of_a_small_block_matters() -> None:
    whole = stored_block([[change(unchanged=("a",))]]).data
    for at in range(len(whole)):
        for bit in range(8):
            altered = bytearray(whole)
            altered[at] ^= 1 << bit
            with pytest.raises(LogError):
                opened(bytes(altered))


def test_header_and_tables_are_checked_before_anything_is_read() -> None:
    whole = stored_block([[change()]]).open()
    for at in range(1, whole.payload):
        altered = bytearray(whole.data)
        altered[at] ^= 1
        with pytest.raises(LogCorruptError):
            Block(bytes(altered), log_id=5, first_sequence=1)


@pytest.mark.parametrize("layout", [UNCHAINED - 1, LAYOUT_VERSION + 1])
def test_another_layout_is_refused_as_such_and_not_as_damaged(layout: int) -> None:
    whole = stored_block([[change()]]).data
    with pytest.raises(LogFormatError, match="use the version that wrote it"):
        Block(bytes([layout]) + whole[1:], log_id=5, first_sequence=1)


ONE, TWO = encode_event(change()), encode_event(change(event_id="e2"))
WHOLE = CommitSummary(2, (ONE.check + TWO.check) % 2**64)


def _no_event() -> EncodedEvent:
    """An entry whose check is right, but whose bytes are no protobuf."""
    message = b"\xff" * len(ONE.message)
    check = xxhash.xxh3_64_intdigest(message)
    return EncodedEvent(ONE.stream, message, check.to_bytes(8, "little") + ONE.index[8:])


NO_EVENT = _no_event()


@pytest.mark.parametrize(
    ("placed", "summaries", "said"),
    [
        pytest.param(
            [Placed(ONE, 1, 0, False), Placed(TWO, 1, 1, True)],
            [CommitSummary(2, WHOLE.digest ^ 1)],
            "digest",
            id="a digest of other entries",
        ),
        pytest.param(
            [Placed(ONE, 1, 0, False), Placed(TWO, 1, 2, True)],
            [CommitSummary(3, WHOLE.digest)],
            "place in its commit",
            id="an entry missing inside a commit",
        ),
        pytest.param(
            [Placed(ONE, 1, 0, False), Placed(TWO, 1, 1, False)],
            [WHOLE],
            "ends at another entry",
            id="a commit without an end",
        ),
        pytest.param(
            [Placed(ONE, 1, 0, True), Placed(TWO, 1, 1, True)],
            [WHOLE],
            "ends at another entry",
            id="a commit that ends twice",
        ),
        pytest.param(
            [Placed(ONE, 1, 0, True), Placed(TWO, 3, 0, True)],
            [CommitSummary(1, ONE.check), CommitSummary(1, 0), CommitSummary(1, TWO.check)],
            "do not follow each other",
            id="a commit missing between two",
        ),
        pytest.param(
            [Placed(ONE, 1, 0, True)],
            [CommitSummary(1, ONE.check), CommitSummary(1, TWO.check)],
            "does not hold",
            id="a commit that is not there",
        ),
        pytest.param(
            [Placed(structs.replace(ONE, index=TWO.index), 1, 0, True)],
            [CommitSummary(1, TWO.check)],
            "check was taken over",
            id="another entry's index",
        ),
        pytest.param(
            [Placed(structs.replace(ONE, stream=ONE.stream._replace(tenant="x")), 1, 0, True)],
            [CommitSummary(1, ONE.check)],
            "another collection",
            id="an entry filed under another stream",
        ),
        pytest.param(
            [Placed(structs.replace(ONE, index=ONE.index[:-1] + b"\7"), 1, 0, True)],
            [CommitSummary(1, ONE.check)],
            "index does not point at its fields",
            id="an index that points elsewhere",
        ),
        pytest.param(
            [Placed(NO_EVENT, 1, 0, True)],
            [CommitSummary(1, NO_EVENT.check)],
            "no event",
            id="bytes that are no event",
        ),
    ],
)
def test_verify_names_what_is_wrong(
    placed: list[Placed], summaries: list[CommitSummary], said: str
) -> None:
    with pytest.raises(LogCorruptError, match=said):
        opened(block_of(placed, summaries, ingested_at=0))


@given(st.lists(events, min_size=1, max_size=3))
def test_verify_passes_what_was_written(commit: list[object]) -> None:
    opened(stored_block([commit]).data)  # type: ignore[list-item]
