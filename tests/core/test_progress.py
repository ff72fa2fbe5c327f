"""A marker is the text of one place in one log, and nothing else is a marker."""

import base64
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import MalformedProgressError
from penstock.progress import LAYOUT, Progress, parse_progress

places = st.builds(
    Progress,
    log_id=st.integers(0, 2**64 - 1),
    sequence=st.integers(0, 2**64 - 1),
    check=st.integers(0, 2**32 - 1),
)


@pytest.mark.slow
@given(places)
def test_a_marker_comes_back_as_the_place_it_was_made_of(place: Progress) -> None:
    assert parse_progress(str(place)) == place
    assert len(str(place)) == 28
    assert str(place).replace("-", "a").replace("_", "a").isalnum()


@given(places, st.integers(0, 27), st.characters())
def test_an_altered_marker_is_malformed_or_another_place(
    place: Progress, at: int, character: str
) -> None:
    marker = str(place)
    altered = marker[:at] + character + marker[at + 1 :]
    if altered == marker:
        return
    with suppress(MalformedProgressError):
        assert parse_progress(altered) != place


@given(st.text(max_size=40))
def test_other_text_is_malformed(text: str) -> None:
    with suppress(MalformedProgressError):
        assert str(parse_progress(text)) == text


@given(st.binary(max_size=40))
def test_only_this_layout_and_version_is_a_marker(packed: bytes) -> None:
    text = base64.urlsafe_b64encode(packed).decode()
    if len(packed) == LAYOUT.size and packed[0] == 1:
        assert str(parse_progress(text)) == text
    else:
        with pytest.raises(MalformedProgressError):
            parse_progress(text)


@pytest.mark.parametrize(
    "marker",
    [
        "",
        " ",
        "AQ",
        "AQAAAAAAAAAFAAAAAAAAA-8gODM1=",
        "AQAAAAAAAAAFAAAAAAAAA-8gODM1\n",
        " AQAAAAAAAAAFAAAAAAAAA-8gODM1",
        "AQAAAAAAAAAFAAAAAAAAA+8gODM1",  # the other alphabet: as if a URL had decoded it
        "AgAAAAAAAAAFAAAAAAAAA-8gODM1",  # another version
        "AQAAAAAAAAAFAAAAAAAAA-8gODM",
        "ÄQAAAAAAAAAFAAAAAAAAA-8gODM1",
        "null",
    ],
)
def test_near_misses_are_malformed(marker: str) -> None:
    assert parse_progress("AQAAAAAAAAAFAAAAAAAAA-8gODM1").log_id == 5
    with pytest.raises(MalformedProgressError, match="Send back, unchanged"):
        parse_progress(marker)


def test_places_of_one_log_are_ordered_by_sequence() -> None:
    assert Progress(1, 9, 5) < Progress(1, 10, 0)
