"""Sizes and durations mean one thing everywhere, and nonsense is refused with the way out."""

from typing import Any

import pytest
from pydantic import ValidationError

from penstock.config import Bytes, Config, Seconds


class Limits(Config):
    size: Bytes = 0
    wait: Seconds = 0.0


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("10G", 10 << 30),
        ("10GiB", 10 << 30),
        ("10GB", 10 * 1000**3),
        ("1TB", 1000**4),
        ("1TiB", 1 << 40),
        ("1T", 1 << 40),
        ("64K", 64 << 10),
        ("64KiB", 64 << 10),
        ("64KB", 64_000),
        ("1M", 1 << 20),
        ("1MB", 1_000_000),
        ("1MiB", 1 << 20),
        ("10gib", 10 << 30),
        ("  10 GiB ", 10 << 30),
        ("1.5GiB", 3 << 29),
        ("0.1KB", 100),
        ("9007199254740993", 9007199254740993),
        ("9007199254740993.0 B", 9007199254740993),
        ("7", 7),
        ("7B", 7),
        ("0", 0),
        (7, 7),
        ((1 << 63) - 1, (1 << 63) - 1),
    ],
)
def test_a_size_is_the_same_however_it_is_written(text: Any, size: int) -> None:
    """P23."""
    assert Limits(size=text).size == size


@pytest.mark.parametrize(
    "text",
    ["10X", "10 XiB", "10GiBs", "GiB", "", "-1", "-5GiB", "1e3", "1,5G", "0x10", "10 G B", "١G"],
)
def test_a_size_that_cannot_be_read_is_refused_with_the_units(text: Any) -> None:
    """P23: an unknown unit is an error, never bytes."""
    with pytest.raises(ValidationError, match="write a number with B, KiB"):
        Limits(size=text)


@pytest.mark.parametrize("size", [-1, "9999999999T", 1 << 63, True])
def test_a_size_out_of_range_is_refused(size: Any) -> None:
    with pytest.raises(ValidationError, match="from 0 to"):
        Limits(size=size)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("500ms", 0.5),
        ("1ms", 0.001),
        ("30s", 30.0),
        ("30", 30.0),
        ("5m", 300.0),
        ("2h", 7200.0),
        ("7d", 604800.0),
        ("1.5h", 5400.0),
        (" 7 d ", 604800.0),
        ("0", 0.0),
        (3, 3.0),
        (0.25, 0.25),
        ("36500d", 36500 * 86400.0),
    ],
)
def test_a_duration_is_the_same_however_it_is_written(text: Any, seconds: float) -> None:
    assert Limits(wait=text).wait == seconds


@pytest.mark.parametrize("text", ["5 years", "5M", "1h30m", "", "-5s", "s", "inf", "nan", "1e3"])
def test_a_duration_that_cannot_be_read_is_refused_with_the_units(text: Any) -> None:
    with pytest.raises(ValidationError, match="write a number with ms, s, m, h or d"):
        Limits(wait=text)


@pytest.mark.parametrize("wait", [-1, -0.5, float("nan"), float("inf"), "36501d", True])
def test_a_duration_out_of_range_is_refused(wait: Any) -> None:
    with pytest.raises(ValidationError, match="from 0 to 36500 days"):
        Limits(wait=wait)


@pytest.mark.parametrize("value", [None, [], {}])
def test_what_is_no_text_or_number_is_refused(value: Any) -> None:
    with pytest.raises(ValidationError):
        Limits(size=value)
    with pytest.raises(ValidationError):
        Limits(wait=value)


def test_a_typo_is_an_error_and_a_configuration_cannot_be_altered() -> None:
    with pytest.raises(ValidationError, match="siez"):
        Limits.model_validate({"siez": "1G"})
    with pytest.raises(ValidationError, match="frozen"):
        Limits().size = 1  # type: ignore[misc]
