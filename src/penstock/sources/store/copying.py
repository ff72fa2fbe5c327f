"""Copies of tables beside the stream: what one is of, and who asked for it (`penstock snapshot`).

Why the copy and the stream end right together: a chunk of rows is read in the very transaction that
has shown the streams to end at the position before it. So each row is exactly as all changes before
it have left it, and all later ones follow it.

A request waits until a session stands at the streams' end. From there on every position says that
the copy is under way, so once one of them is durable the copy survives anything, and the request is
answered. A session that ends before leaves it for the next one.
"""

import asyncio
from collections.abc import Collection, Sequence
from uuid import uuid4

from msgspec import Struct, structs

from penstock.errors import RequestError
from penstock.event import Commit, Fragment
from penstock.sources.store.positions import Copying, Scope
from penstock.store import Table, View


class Request(Struct, eq=False):
    """A copy that somebody waits for."""

    tables: tuple[str, ...]
    """Empty: all."""
    durable: asyncio.Future[None]


class CopyDesk:
    """The requests of one source, from the handler that takes them to the session that copies."""

    def __init__(self) -> None:
        self._waiting: list[Request] = []
        self._begun: list[Request] = []
        self._positions: set[str] = set()
        """Those that were said since the copies began."""

    async def ask(self, tables: Sequence[str]) -> None:
        """Return once the copy of `tables` (none: of all) is sure to be made."""
        request = Request(tuple(tables), asyncio.get_running_loop().create_future())
        self._waiting.append(request)
        try:
            await request.durable
        finally:
            for requests in (self._waiting, self._begun):
                if request in requests:
                    requests.remove(request)

    @property
    def asked(self) -> tuple[Request, ...]:
        """What is asked for and was not begun."""
        return tuple(self._waiting)

    def begun(self, requests: Sequence[Request]) -> None:
        """A session has begun them, and says so from here on. Who gave up gets no answer."""
        taken = [request for request in self._waiting if request in requests]
        self._waiting = [request for request in self._waiting if request not in taken]
        self._begun += taken

    def saying(self, item: Commit | Fragment) -> None:
        """The session hands out `item`."""
        if self._begun and isinstance(item, Commit):
            self._positions.add(item.position)

    def acknowledged(self, position: str) -> None:
        """Everything up to `position` is durable."""
        if position in self._positions:
            begun, self._begun = self._begun, []
            self._positions.clear()
            for request in begun:
                if not request.durable.done():
                    request.durable.set_result(None)

    def session_ended(self) -> None:
        """What is not durable is begun again by the next session."""
        self._waiting = [*self._begun, *self._waiting]
        self._begun = []
        self._positions.clear()


def followed(view: View, scope: Scope) -> tuple[str, ...]:
    """The captured tables that have a stream, by name."""
    return tuple(one.name for one in _captured(view, scope) if one.stream is not None)


def unfollowed(view: View, scope: Scope) -> tuple[str, ...]:
    """The tables that would be captured, if they had a stream."""
    return tuple(one.name for one in _captured(view, scope) if one.stream is None)


def _captured(view: View, scope: Scope) -> list[Table]:
    return [table for table in view.tables() if table.name in scope]


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
