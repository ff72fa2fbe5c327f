"""What a copy of tables is of, how far it is, and what happens to it. Pure.

Why the copy and the stream end right together. The log gets, in this order: the transactions up to
a place P of the binlog; a chunk of rows; the transactions after P; and so on. Each chunk is exactly
what its table held at P (`penstock.sources.mysql.chunks` says how that is known). So no row is
older than what was told before it, and all that happens to it later follows. A row that is in no
chunk was not there when its chunk was read, or came to its key later, which the stream tells.

A table is copied in the order of its key, chunk by chunk, under the name that it has then: a rename
takes what is left of it along. Where rows changed and the stream does not say how (a gap of the
table), it is copied again; where that is so of any table, another copy begins. An XA transaction
that was prepared before the beginning is such: its rows were in no snapshot, and come with its
commit unsaid.
"""

from collections.abc import Collection, Sequence
from typing import Final
from uuid import uuid4

from msgspec import Struct, structs

from penstock.errors import RequestError
from penstock.sources.mysql import statements
from penstock.sources.mysql.scope import Scope

Name = tuple[str, str]
"""A database and a table."""
_RANDOM: Final = 8


class Copying(Struct, frozen=True, omit_defaults=True):
    """How far a copy is."""

    snapshot: str
    """Tells this copy's rows from another's."""
    pending: tuple[Name, ...]
    """The tables to copy, the one under way first."""
    begun: int
    """The time of the rows in Unix seconds, the same whenever a row is told again (P26)."""
    announced: bool = False
    """Whether snapshot_started was said."""
    after: tuple[str, ...] | None = None
    """The last key copied of the first pending table: a text for each of its columns."""
    key: str = ""
    """Tells the key that `after` is of from what it is once it was altered."""
    copies: int = 0
    """How many readings ended before: of tables, or of parts of one that begins anew on a crash."""
    documents: int = 0
    covers: tuple[Name, ...] = ()
    """Every table that it copies, those that are finished too."""
    whole: bool = False
    """Whether it is of everything that is captured."""
    announcements: int = 0
    """How often snapshot_started was said: again when tables were added."""
    anew: bool = False
    """Whether it is to begin as another one, for something was lost since it began; what there is
    to copy is looked up by the session that begins it."""


def whole_copy(tables: Sequence[Name], *, seconds: int) -> Copying:
    """A copy of everything that is captured: `tables`, all that are there."""
    pending = tuple(tables)
    return Copying(
        snapshot=_drawn(seconds), pending=pending, begun=seconds, covers=pending, whole=True
    )


def everything(*, seconds: int) -> Copying:
    """A copy of everything that is captured, still to be looked up."""
    return Copying(snapshot="", pending=(), begun=seconds, whole=True, anew=True)


def with_tables(
    copying: Copying | None, asked: Sequence[Name], *, seconds: int, snapshot: str = ""
) -> Copying:
    """The copy under way, or a new one, with `asked` in it. What it has already is not repeated."""
    if copying is None:
        copying = Copying(snapshot=snapshot or _drawn(seconds), pending=(), begun=seconds)
    added = tuple(one for one in dict.fromkeys(asked) if one not in copying.covers)
    if not added and copying.announced:
        return copying
    return structs.replace(
        copying,
        pending=(*copying.pending, *added),
        covers=(*copying.covers, *added),
        announced=False,
    )


def begun_anew(*copies: Copying | None) -> Copying | None:
    """A copy, still to begin, of all that `copies` were to copy; None if there are none.

    What they have told proves nothing of what is there once something was lost.
    """
    found = [copying for copying in copies if copying is not None]
    if not found:
        return None
    covers = tuple(dict.fromkeys(one for copying in found for one in copying.covers))
    return Copying(
        snapshot=found[0].snapshot,
        pending=covers,
        begun=found[0].begun,
        covers=covers,
        whole=any(copying.whole for copying in found),
        anew=True,
    )


def looked_up(copying: Copying, there: Sequence[Name], *, seconds: int) -> Copying:
    """The copy that begins in place of one that was to begin anew; `there` is what is captured."""
    if copying.whole:
        return whole_copy(there, seconds=seconds)
    return with_tables(None, copying.covers, seconds=seconds)


def without(copying: Copying | None, scope: Scope) -> Copying | None:
    """The copy without the tables that `scope` does not have."""
    if copying is None:
        return None
    left = tuple(one for one in copying.pending if one in scope)
    if left[:1] != copying.pending[:1]:
        copying = _to_next(copying)
    covers = tuple(one for one in copying.covers if one in scope)
    return structs.replace(copying, pending=left, covers=covers)


# --- what is read ---------------------------------------------------------------------------------


def announced(copying: Copying) -> Copying:
    """That it has begun is said."""
    return structs.replace(copying, announced=True, announcements=copying.announcements + 1)


def read(
    copying: Copying, rows: int, *, after: tuple[str, ...] | None, key: str, last: bool
) -> Copying:
    """Rows of the first pending table are told, up to the key `after`; the `last` ones end it.

    Without `after`, the table's next reading begins at its beginning again, and its rows are told
    apart from these.
    """
    told = structs.replace(copying, documents=copying.documents + rows)
    if last or after is None:
        left = copying.pending[1:] if last else copying.pending
        return structs.replace(_to_next(told), pending=left)
    return structs.replace(told, after=after, key=key)


def restarted(copying: Copying) -> Copying:
    """The first pending table from its beginning: its key is not what it was."""
    return _to_next(copying)


def _to_next(copying: Copying) -> Copying:
    return structs.replace(copying, after=None, key="", copies=copying.copies + 1)


def again(copying: Copying, name: Name) -> Copying:
    """The copy with a table of it from its beginning, and said so: what was told of it since the
    copy began is as old as what was told before."""
    return with_tables(_left_out(copying, name), [name], seconds=copying.begun)


# --- what happens meanwhile -----------------------------------------------------------------------


class Policy(Struct, frozen=True):
    """What is copied by itself, while there is no copy."""

    new: bool = False
    """Rows that were never told, and come into what is captured: of tables that are renamed into
    it, and of XA transactions that were prepared before the beginning."""
    lost: bool = False
    """Tables whose rows changed without a word."""


NOTHING: Final = Policy()


class RowsUnknown(Struct, frozen=True):
    """What was committed are rows of any tables that were never told, and nobody can read now."""


Effect = statements.Effect | RowsUnknown


class Effects:
    """What the statements of one transaction did to tables, in their order."""

    def __init__(self, policy: Policy, scope: Scope) -> None:
        self._policy = policy
        self._scope = scope
        self._told: list[Effect] = []

    def add(self, *effects: Effect) -> None:
        """One did this."""
        self._told += effects

    def forget(self) -> None:
        """The transaction is over."""
        self._told.clear()

    def behind(self, copying: Copying | None, snapshot: str, seconds: int) -> Copying | None:
        """The copy behind the transaction: as `after_statement`."""
        if not self._told and copying is None:
            return None
        return after_statement(
            copying,
            self._told,
            scope=self._scope,
            policy=self._policy,
            snapshot=snapshot,
            seconds=seconds,
        )


def after_statement(
    copying: Copying | None,
    effects: Sequence[Effect],
    *,
    scope: Scope,
    policy: Policy,
    snapshot: str,
    seconds: int,
) -> Copying | None:
    """The copy behind a transaction that did this to tables, in this order.

    A copy that begins here has the name `snapshot`, so that it has the same one whenever the
    statement is read again.
    """
    for effect in effects:
        if isinstance(effect, statements.Unclear | RowsUnknown):
            copying = begun_anew(copying)
            never_told = isinstance(effect, RowsUnknown)
            if policy.lost or (policy.new and never_told):
                copying = everything(seconds=seconds)
            continue
        again: Name | None = None
        if isinstance(effect, statements.Renamed):
            copying = _renamed(copying, effect)
            if effect.table not in scope and effect.to in scope and _copies(copying, policy):
                again = effect.to
        elif isinstance(effect, statements.RowsChanged) and effect.table in scope:
            covered = copying is not None and effect.table in copying.covers
            again = effect.table if covered or policy.lost else None
        if again is not None:
            left = None if copying is None else _left_out(copying, again)
            copying = with_tables(left, [again], seconds=seconds, snapshot=snapshot)
    # What was renamed out of what is captured is not copied, under whatever name it is there.
    return without(copying, scope)


def _copies(copying: Copying | None, policy: Policy) -> bool:
    whole = copying is not None and copying.whole
    return whole or policy.new or policy.lost


def _renamed(copying: Copying | None, effect: statements.Renamed) -> Copying | None:
    """What is left of a table is under its new name now, in place of any that had it."""
    if copying is None or effect.table not in copying.covers:
        return copying
    copying = _left_out(copying, effect.to)

    def moved(names: tuple[Name, ...]) -> tuple[Name, ...]:
        return tuple(effect.to if one == effect.table else one for one in names)

    return structs.replace(copying, pending=moved(copying.pending), covers=moved(copying.covers))


def _left_out(copying: Copying, name: Name) -> Copying:
    if copying.pending[:1] == (name,):
        copying = _to_next(copying)
    return structs.replace(
        copying,
        pending=tuple(one for one in copying.pending if one != name),
        covers=tuple(one for one in copying.covers if one != name),
    )


# --- what is asked for ----------------------------------------------------------------------------


def named(
    source: str,
    names: Sequence[str],
    *,
    scope: Scope,
    there: Collection[Name],
    known: Collection[Name],
) -> list[Name]:
    """The tables that an operator names, as `shop.orders`.

    Those that are `there`, or that the log is `known` to have told of: one that was dropped is
    copied too, so that its rows are told as deleted. Raises RequestError for others.
    """
    found: list[Name] = []
    for name in names:
        one = _split(name, {*there, *known})
        if one is None or one not in scope:
            raise RequestError(
                f"{source} captures no table {name!r}. Nothing was copied. Name it as "
                f"DATABASE.TABLE, and see that include and exclude let it in."
            )
        found.append(one)
    return found


def _split(name: str, tables: Collection[Name]) -> Name | None:
    """The table of this name, in which either part may have a point."""
    return next((one for one in tables if ".".join(one) == name), None)


def _drawn(seconds: int) -> str:
    return f"{seconds}:{uuid4().hex[:_RANDOM]}"
