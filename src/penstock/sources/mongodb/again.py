"""Copies that are asked for while the stream is read (`penstock snapshot`).

A session begins what is asked for (`penstock.capture.copies`) between two transactions.

Collections are listed only then, at or after the position: one that is created later is wholly in
the stream behind the copy's beginning, so no row of it is ever taken for one that is gone.
"""

from collections.abc import Collection, Sequence
from uuid import uuid4

from msgspec import structs

from penstock.capture.copies import CopyDesk
from penstock.capture.deadletter import COLLECTION as DEAD_LETTERS
from penstock.errors import RequestError
from penstock.sources.mongodb.config import MongoSourceConfig
from penstock.sources.mongodb.deployment import Client
from penstock.sources.mongodb.namespaces import Namespaces
from penstock.sources.mongodb.positions import Copying, Token
from penstock.sources.mongodb.snapshot import collections

Namespace = tuple[str, str]


async def begin(
    desk: CopyDesk[Namespace],
    client: Client,
    config: MongoSourceConfig,
    copying: Copying | None,
    token: Token,
) -> Copying:
    """The copy that is under way from `token` on, with what is asked for at the desk."""
    requests = desk.asked
    desk.begun(requests)
    if all(request.names for request in requests):
        asked = [one for request in requests for one in request.names]
        return with_collections(copying, asked, token)
    if copying is not None and copying.whole:
        return copying
    return whole_copy(await collections(client, config), token)


def whole_copy(pending: Sequence[Namespace], token: Token) -> Copying:
    """A copy of everything that is captured, told apart from any other that begins at `token`."""
    snapshot = f"{token.data}:{uuid4().hex[:8]}"
    return Copying(snapshot=snapshot, pending=tuple(pending), covers=tuple(pending), whole=True)


def with_collections(copying: Copying | None, asked: Sequence[Namespace], token: Token) -> Copying:
    """The copy under way, or a new one, with `asked` in it. What it has already is not repeated."""
    if copying is None:
        snapshot = f"{token.data}:{uuid4().hex[:8]}"
        copying = Copying(snapshot=snapshot, pending=(), announced=False)
    added = tuple(one for one in dict.fromkeys(asked) if one not in copying.covers)
    if not added and copying.announced:
        return copying
    return structs.replace(
        copying,
        pending=(*copying.pending, *added),
        covers=(*copying.covers, *added),
        announced=False,
    )


def named(
    source: str,
    names: Sequence[str],
    *,
    namespaces: Namespaces,
    there: Collection[Namespace],
    known: Collection[Namespace],
) -> list[Namespace]:
    """The collections that an operator names, as `orders` or `shop.orders`.

    Those that are `there` at the source, or that the log is `known` to have told of: one that was
    dropped is copied too, so that its rows are told as deleted. Raises RequestError for others,
    and for the letters, which are Penstock's own.
    """
    found: list[Namespace] = []
    for name in names:
        database, dot, collection = name.partition(".")
        candidates: list[Namespace] = [(database, collection)] if dot else []
        if namespaces.database is not None:
            candidates.insert(0, (namespaces.database, name))
        captured = [one for one in candidates if one in namespaces]
        one = next((one for one in captured if one in there or one in known), None)
        if one is None:
            raise RequestError(
                f"{source} captures no collection {name!r}. Nothing was copied. Name it as "
                f"{'COLLECTION' if namespaces.database else 'DATABASE.COLLECTION'}, and see that "
                f"include and exclude let it in."
            )
        if one[1] == DEAD_LETTERS:
            raise RequestError(
                f"{source}: {name!r} holds Penstock's own letters, which the source has not. "
                f"Nothing was copied. `penstock deadletter list {source}` shows them."
            )
        found.append(one)
    return found
