"""Copies of tables beside the stream: what one is of, and who asked for it (`penstock snapshot`).

Why the copy and the stream end right together: a chunk of rows is read in the very transaction that
has shown the streams to end at the position before it. So each row is exactly as all changes before
it have left it, and all later ones follow it.

A session begins what is asked for (`penstock.capture.copies`) at the streams' end.
"""

from collections.abc import Collection, Sequence
from uuid import uuid4

from msgspec import structs

from penstock import checks
from penstock.errors import RequestError
from penstock.sources.store.positions import Copying, Scope
from penstock.store import Table, View


def followed(view: View, scope: Scope) -> tuple[str, ...]:
    """The captured tables that have a stream, by name."""
    return tuple(one.name for one in _captured(view, scope) if one.stream is not None)


def unfollowed(view: View, scope: Scope) -> tuple[str, ...]:
    """The tables that would be captured, if they had a stream."""
    return tuple(one.name for one in _captured(view, scope) if one.stream is None)


def _captured(view: View, scope: Scope) -> list[Table]:
    return [table for table in view.tables() if table.name in scope]


def unmatched(view: View, scope: Scope) -> list[str]:
    """As `NamesThings.unmatched`."""
    there = [table.name for table in view.tables()]

    def matches(pattern: str) -> bool:
        one = Scope(scope.database, (pattern,))
        return any(name in one for name in there)

    settings = [("include", one) for one in scope.include]
    settings += [("exclude", one) for one in scope.exclude]
    return checks.unmatched(settings, there, matches)


def whole_copy(view: View, scope: Scope) -> Copying:
    """A copy of all that is captured. It is not of everything where a table has no stream."""
    pending = followed(view, scope)
    return Copying(
        snapshot=_name(view),
        pending=pending,
        begun_ms=view.time_ms,
        covers=pending,
        whole=not unfollowed(view, scope),
    )


def with_tables(copying: Copying | None, asked: Sequence[str], view: View) -> Copying:
    """The copy under way, or a new one, with `asked` in it. What it has already is not repeated."""
    if copying is None:
        copying = Copying(snapshot=_name(view), pending=(), begun_ms=view.time_ms)
    added = tuple(one for one in dict.fromkeys(asked) if one not in copying.covers)
    if not added and copying.announced:
        return copying
    return structs.replace(
        copying,
        pending=(*copying.pending, *added),
        covers=(*copying.covers, *added),
        announced=False,
    )


def begun_anew(
    copying: Copying, view: View, *, added: Sequence[str] = (), without: Collection[str] = ()
) -> Copying | None:
    """Another copy in place of the one under way, of which a table lost changes.

    What was read before is no proof of what is there now. None where nothing is left to copy.
    """
    covers = tuple(one for one in dict.fromkeys((*copying.covers, *added)) if one not in without)
    if not covers:
        return None
    return Copying(
        snapshot=_name(view),
        pending=covers,
        begun_ms=view.time_ms,
        covers=covers,
        whole=copying.whole and not without,
    )


def _name(view: View) -> str:
    return f"{view.store_id}:{view.sequence}:{uuid4().hex[:8]}"


def named(
    source: str,
    names: Sequence[str],
    *,
    scope: Scope,
    there: Collection[str],
    known: Collection[tuple[str, str]],
) -> list[str]:
    """The tables that an operator names, as `orders` or `shop.orders`.

    Those that have a stream (`there`), or that the log is `known` to have told of: one that was
    dropped is copied too, so that its rows are told as deleted. Raises RequestError for others.
    """
    heard = {table for database, table in known if database == scope.database}
    found: list[str] = []
    for name in names:
        candidates = [name, name.removeprefix(f"{scope.database}.")]
        one = next((one for one in candidates if one in there), None)
        one = one or next((one for one in candidates if one in heard and one in scope), None)
        if one is None:
            raise RequestError(
                f"{source} captures no table {name!r}. Nothing was copied. See that the table has "
                f"a stream (enable_stream), and that include and exclude let it in."
            )
        found.append(one)
    return found
