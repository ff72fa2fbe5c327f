"""LexiVersions: numbers as text that sorts as they do.

`base36(n)` behind the count of its digits less one, itself a digit: 0 is "00", 35 "0z", 36 "110".
Source: @rocicorp/zero 1.9.0 compares watermarks as plain text, and reads them as these (Z3).
"""

import re
from typing import Final

VERSION_MAX: Final = 36**36 - 1
_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
_VERSION: Final = re.compile("([0-9a-z])(0|[1-9a-z][0-9a-z]*)")


def lexi_version(number: int) -> str:
    """`number` as text. Raises ValueError for one below 0 or above VERSION_MAX."""
    if not 0 <= number <= VERSION_MAX:
        raise ValueError(f"{number} has no LexiVersion")
    digits = ""
    rest = number
    while True:
        rest, digit = divmod(rest, 36)
        digits = _DIGITS[digit] + digits
        if not rest:
            return _DIGITS[len(digits) - 1] + digits


def number_of(version: str) -> int:
    """The number that `version` says. Raises ValueError for text that is no LexiVersion."""
    found = _VERSION.fullmatch(version)
    if found is None or _DIGITS.index(found[1]) != len(found[2]) - 1:
        raise ValueError("it is no LexiVersion")
    return int(found[2], 36)
