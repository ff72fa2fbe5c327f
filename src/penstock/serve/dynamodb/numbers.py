"""Sequence numbers, which clients keep for as long as they like and compare as numbers.

A number is 2·10^31, the place of a record times 10^10, and a proof: one more than a check of 32
bits, by which the history that the record stands in is known. So whoever goes on from a number that
a restored store or log never told, or told of another history, is found out. A proof of 0 is none,
and comes before all others of its place, 9999999999 behind them: with these a shard's range begins
and ends.

Numbers that were written before had no proof, and one of 10^20 and 10^21 added. They are read as
what they say, and come before all others, as numbers and as text.
"""

from typing import Final, NamedTuple

_BASE: Final = 2 * 10**31
_PROOFS: Final = 10**10
_LAST: Final = _PROOFS - 1
_CHECKS: Final = 1 << 32


class Number(NamedTuple):
    """What a sequence number says."""

    place: int
    """Below 0 for a number that is none of ours."""
    check: int | None
    """None: it has no proof."""


def number_of(place: int, check: int | None) -> str:
    """The number of a record."""
    return str(_BASE + place * _PROOFS + (0 if check is None else check + 1))


def begins_with(place: int) -> str:
    """The number before which a range has nothing."""
    return number_of(place, None)


def ends_with(place: int) -> str:
    """The number behind which a range has nothing."""
    return str(_BASE + place * _PROOFS + _LAST)


def read_number(given: str, *, unproven: int, places: int) -> Number:
    """What one of those above wrote, or was written with `unproven` added to the place. A place is
    below `places`: no stream has so many."""
    number = int(given)
    if number < _BASE:
        return Number(number - unproven, None)
    place, proof = divmod(number - _BASE, _PROOFS)
    if place >= places or _CHECKS < proof < _LAST:
        return Number(-1, None)
    if proof == _LAST:
        return Number(place, None)
    return Number(place, proof - 1 if proof else None)
