"""Watermarks are LexiVersions (Z3): text that sorts as the numbers do."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.zero.lexi import VERSION_MAX, lexi_version, number_of

numbers = st.integers(0, VERSION_MAX) | st.integers(0, 50_000)


@pytest.mark.parametrize(("number", "text"), [(0, "00"), (10, "0a"), (36, "110"), (1000, "1rs")])
def test_they_are_those_of_zero_z3(number: int, text: str) -> None:
    assert (lexi_version(number), number_of(text)) == (text, number)


@given(numbers, numbers)
def test_they_sort_as_their_numbers_and_say_them_z3(one: int, other: int) -> None:
    assert (lexi_version(one) < lexi_version(other)) == (one < other)
    assert number_of(lexi_version(one)) == one


@pytest.mark.parametrize("number", [-1, VERSION_MAX + 1])
def test_a_number_out_of_range_has_none(number: int) -> None:
    with pytest.raises(ValueError, match="LexiVersion"):
        lexi_version(number)


@pytest.mark.parametrize("text", ["", "0", "000", "01a", "100", "0A", "0/000003E8", "00 ", "1١0"])
def test_text_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="LexiVersion"):
        number_of(text)
