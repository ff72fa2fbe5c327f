"""Sets of places are packed small, and read as they were."""

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.audit.places import packed, unpacked


@given(st.sets(st.integers(1, (1 << 63) - 1)) | st.sets(st.integers(1, 300)))
def test_places_are_read_as_they_were_packed(places: set[int]) -> None:
    assert list(unpacked(packed(sorted(places)))) == sorted(places)


def test_a_million_in_a_row_take_some_kilobytes() -> None:
    data = packed(range(5, 1_000_005))
    assert len(data) < 4096
    assert sum(1 for _ in unpacked(data)) == 1_000_000


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"nonsense",
        packed([1, 2, 3])[:-1],
        packed([1]) + b"x",
        zlib.compress(b"\x80"),
        zlib.compress(b"\x00"),
        zlib.compress(b"\xff" * 11),
    ],
)
def test_what_is_no_set_of_places_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="place"):
        list(unpacked(data))


def test_only_what_ascends_is_packed() -> None:
    for places in ([0], [2, 2], [3, 1]):
        with pytest.raises(ValueError, match="ascend"):
            packed(places)
