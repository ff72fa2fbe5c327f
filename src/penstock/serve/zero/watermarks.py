"""Watermarks: which commit, and what the log told up to its end (record 0040). Pure.

A watermark is the LexiVersion of a commit's number times 10^10 and a proof: one more than the check
of the place behind the commit, or 0 where that is not known yet when the transaction begins. So a
replica that was told of a history which the log no longer has is found out. One that an earlier
Penstock wrote is the commit's number alone: it proves nothing, and comes before all others.
"""

from typing import Final, NamedTuple

from penstock.zero.lexi import lexi_version, number_of

_PROOFS: Final = 10**10


class Watermark(NamedTuple):
    """What a watermark says."""

    commit: int
    check: int | None
    """None: it has no proof."""


def watermark_of(commit: int, check: int | None) -> str:
    """The watermark of a commit, behind which the log has `check`."""
    return lexi_version(commit * _PROOFS + (0 if check is None else check + 1))


def read_watermark(text: str) -> Watermark:
    """What `watermark_of`, or an earlier Penstock, wrote. Raises ValueError for no LexiVersion."""
    number = number_of(text)
    if number < _PROOFS:
        return Watermark(number, None)
    commit, proof = divmod(number, _PROOFS)
    return Watermark(commit, proof - 1 if proof else None)
