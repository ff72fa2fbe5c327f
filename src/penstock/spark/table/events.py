"""What an event about whole collections does to the rows of its source. Pure.

One decision for all that keep rows: tables, histories, and the functions on DataFrames.
"""

from collections.abc import Callable
from typing import Any, Final

from msgspec import Struct

from penstock.event import Kind
from penstock.spark.table.chunk import Control

Place = tuple[str, str]
"""(database, collection): where rows of a source are."""

Follows = Callable[[str], bool]
"""Whether the rows of a collection are kept."""

_OTHER_STEPS: Final = "which has other steps here"
_NOT_FOLLOWED: Final = "which this pipeline does not follow"


class Effect(Struct, frozen=True, kw_only=True):
    """What is so behind the event."""

    ends: tuple[Place, ...] = ()
    """All rows there are gone; an empty collection stands for the whole database."""
    moves: tuple[Place, Place] | None = None
    """The rows of the first are rows of the second, in place of those that it had."""
    lost: str = ""
    """What nobody knows any more; it comes before `ends`."""
    brings: Place | None = None
    """Where a rename has brought rows that are lost."""
    known: bool = True
    """False for an event of which it is not known here what it does."""


def always_same(before: str, after: str) -> bool:  # noqa: ARG001
    """That documents of both collections come to their rows in the same way."""
    return True


def effect_of(
    control: Control, *, follows: Follows, same_steps: Callable[[str, str], bool] = always_same
) -> Effect:
    """The effect of an event that is not harmless (`penstock.spark.table.writing`)."""
    own = (control.database, control.collection)
    gone = Effect(ends=(own,) if control.collection else ())
    if control.kind is Kind.GAP:
        return Effect(lost=str(control.description or "gap"))
    if control.operation == "drop":
        return gone
    if control.operation == "dropDatabase":
        return Effect(ends=((control.database, ""),))
    if control.operation != "rename":
        return Effect(known=False)
    named: dict[str, Any] = control.description.get("to") or {}
    to = (str(named.get("db", "")), str(named.get("coll", "")))
    captured = control.description.get("targetCaptured") is not False
    if not captured or not follows(to[1]):
        return gone
    if rows_follow(control):
        return Effect(ends=(to, own))
    if not follows(control.collection):
        return Effect(lost=renamed(control, to, _NOT_FOLLOWED), ends=(to,), brings=to)
    if not same_steps(control.collection, to[1]):
        # Its rows are not what the steps of the new name make: what is hidden there is in them.
        return Effect(lost=renamed(control, to, _OTHER_STEPS), ends=(to, own), brings=to)
    return Effect(moves=(own, to))


def rows_follow(control: Control) -> bool:
    """Whether the rows behind a rename are copied next, whatever the pipeline knows of them."""
    return bool(control.description.get("rowsFollow"))


def renamed(control: Control, to: Place, why: str) -> str:
    """What is lost where the rows of `to` are not known, by a rename."""
    return f"{control.database}.{control.collection}, {why}, was renamed to {to[0]}.{to[1]}"
