"""What becomes of the rejected changes of a row, by what table and log say of it. Pure."""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from penstock.spark.table.rejects import REPLAYED, SUPERSEDED

LEFT: Final = "left"
"""It stays in the rejects, for the reason that is given."""

LOST: Final = "the log no longer says what became of its row"


class Replayed(Struct, frozen=True, kw_only=True):
    """What became of a rejected change."""

    sequence: int
    database: str | None
    collection: str | None
    key: str | None
    state: str
    """replayed, superseded or left."""
    reason: str = ""
    """Why it is left."""


class Row(Struct, frozen=True, kw_only=True):
    """Where a table says that a row stands."""

    sequence: int
    rejected: int | None


def is_brought(row: Row | None, at: int) -> bool:
    """Whether a row that a first load rejected when its table was as far as `at` is in the table:
    by a later change, or read again. Pure."""
    return row is not None and (row.sequence > at or (row.sequence == at and row.rejected is None))


class Fate(Struct, frozen=True, kw_only=True):
    """What is to be done with a row's rejected changes."""

    tried: tuple[int, ...] = ()
    """To be applied together, ascending."""
    states: dict[int, str] = {}
    """By sequence: what is known without applying anything."""
    reason: str = ""
    """Why the rest is left."""


def decide(
    pending: Sequence[int],
    *,
    row: Row | None,
    applied: int,
    known_from: int,
    others: Sequence[int],
    moved: bool = False,
) -> Fate:
    """What to do with the rejected changes of one row, by their sequences, ascending. Pure.

    `row` is what the table has; `applied` how far the table is. Of the sequences from `known_from`
    on `others` are all changes of the row that are not `pending`. With `moved`, the row is `row`
    since an event took it there, and nobody knows since which change it has been so.
    """
    here = [at for at in pending if at <= applied]
    if not here:
        return Fate(reason="its batch is not in the table yet")
    if row is not None:
        last = 0 if moved and row.rejected is not None else row.sequence
        # Of another row, if this one's name was another's since.
        unknown = [at for at in here if at < last and at + 1 < known_from]
        states = {at: SUPERSEDED for at in here if at < last and at not in unknown}
        if last in here:
            states[last] = REPLAYED
        why = LOST if unknown else ""
        tried = tuple(at for at in here if at > last)
        if tried and row.rejected != tried[-1]:
            return Fate(states=states, reason="the table has it neither applied nor rejected")
        if tried and known_from > tried[0]:
            return Fate(states=states, reason="the log no longer has it")
        return Fate(tried=tried, states=states, reason=why)
    if known_from > here[0]:
        return Fate(reason="the log no longer has it")
    last = max((at for at in others if at <= applied), default=0)
    states = {at: SUPERSEDED for at in here if at < last}
    return Fate(tried=tuple(at for at in here if at > last), states=states)
