"""The state of one row after changes that build on the row before. Pure.

Two kinds of change do not say the whole row. An update whose document the source could not look up
says what it set, removed and cut (`updateDescription`); a document with `unchanged` fields leaves
out what the source did not send again. Either is applied to the row before it where that gives
exactly the state at the source; otherwise the row keeps its last known state and the change is
rejected, so that it can be seen.

Why that converges: a look-up finds nothing only when the document was gone by then, so a delete (or
a drop, or a rename) of it follows in the log (P25). Until then the row is at worst as old as its
`_rejected_sequence` says. The change after a rejected one must not build on the stale row either:
such a state never existed. Only a whole document or a delete makes the row right again.
"""

# A document's values may be anything, and isinstance says no more than "a dict".
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import Struct

from penstock.spark.table.decode import Document
from penstock.updates import InexactError, Paths, apply_update


class Change(Struct, frozen=True, kw_only=True):
    """One entry of a row's history."""

    sequence: int
    operation: str
    document: Document | None
    update: dict[str, Any] | None
    """`updateDescription`, decoded."""
    unchanged: tuple[str, ...] = ()
    paths: Paths | None = None
    """`disambiguatedPaths`, decoded."""


class State(Struct, frozen=True, kw_only=True):
    """A row: its document (None: there is none), and what was rejected since."""

    document: Document | None
    sequence: int = 0
    rejected_sequence: int | None = None
    """The last change that was rejected; None while the row is current."""
    rejected: tuple[tuple[int, str], ...] = ()
    """Sequence and reason of each change that `fold` rejected."""


def fold(state: State, changes: Iterable[Change]) -> State:
    """The row after `changes`, which are in log order."""
    for change in changes:
        try:
            document = _after(state, change)
        except InexactError as error:
            state = State(
                document=state.document,
                sequence=state.sequence,
                rejected_sequence=change.sequence,
                rejected=(*state.rejected, (change.sequence, str(error))),
            )
        else:
            state = State(document=document, sequence=change.sequence, rejected=state.rejected)
    return state


def _after(state: State, change: Change) -> Document | None:
    if change.operation == "delete":
        return None
    if change.document is not None and not change.unchanged:
        return change.document
    if state.rejected_sequence is not None:
        raise InexactError(
            f"it builds on the change at sequence {state.rejected_sequence}, which was rejected"
        )
    if state.document is None:
        raise InexactError("it builds on a row that this table does not have")
    if change.document is not None:
        kept = {name: state.document[name] for name in change.unchanged if name in state.document}
        return {**change.document, **kept}
    if change.update is None:
        raise InexactError("it says neither the document nor what changed in it")
    return apply_update(state.document, change.update, change.paths)


def builds_on_row(change: Change) -> bool:
    """Whether the row after it follows from the row before."""
    return change.operation != "delete" and (change.document is None or bool(change.unchanged))


def decode_change(
    *,
    sequence: int,
    operation: str,
    document: Document | None,
    full_document: str | None,
    update_description: str | None,
    unchanged: Iterable[str] | None,
    disambiguated_paths: str | None,
) -> Change:
    """A change from an entry's columns; `document` where it is decoded already."""
    if document is None and full_document is not None:
        document = msgspec.json.decode(full_document)
    return Change(
        sequence=sequence,
        operation=operation,
        document=document,
        update=None if update_description is None else msgspec.json.decode(update_description),
        unchanged=tuple(unchanged or ()),
        paths=None if disambiguated_paths is None else msgspec.json.decode(disambiguated_paths),
    )
