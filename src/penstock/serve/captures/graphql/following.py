"""The subscriptions: each is one request of one session, told in types of GraphQL."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Annotated, Any

import strawberry
from graphql import DocumentNode
from msgspec import Struct, structs
from strawberry.types import Info
from strawberry.types.field import StrawberryField

from penstock.serve.captures.graphql.asking import (
    Content,
    Criterion,
    EntitySite,
    Since,
    Site,
    Terms,
    criterion_json,
    site_json,
)
from penstock.serve.captures.graphql.items import (
    Change,
    Item,
    change_of,
    confirmation_of,
    maintenance_of,
    told_of,
    transaction_of,
)
from penstock.serve.captures.graphql.scalars import Long
from penstock.serve.captures.graphql.types import EntityTypes
from penstock.serve.captures.scoping import within
from penstock.serve.captures.service import CaptureService
from penstock.subscribe.captures import (
    Boundary,
    Captured,
    CaptureRequest,
    Confirmed,
    Finished,
    Maintained,
    Output,
    parse_request,
)
from penstock.subscribe.captures.requests import Area
from penstock.subscribe.scope import Scope
from penstock.telemetry import EVENTS_PUBLISHED

PROTOCOL = "graphql"
_AHEAD_MAX = 32
"""Captures that are taken of a session at once: references to blocks, until the socket has them."""


class Client(Struct, frozen=True, kw_only=True):
    """Who an operation is of: the context of its execution."""

    service: CaptureService
    scope: Scope
    writing: AbstractAsyncContextManager[Any] = nullcontext()
    """Held from when an item of a subscription is made until it was taken: of all operations of a
    socket, one waits for room, and only what it sends is made."""
    document: DocumentNode | None = None
    """What it asks, parsed."""
    asking: AbstractAsyncContextManager[Any] = nullcontext()
    """Held while a query is answered and its answer is taken: one at a time."""


class Teller:
    """Makes items of what a session says."""

    def __init__(self, service: CaptureService, types: Mapping[str, EntityTypes]) -> None:
        self._service = service
        self._types = types

    def captured(self, captured: Captured, *, typed: bool) -> Change:
        """A change, with a body of its collection's type if `typed` and there is one."""
        told = told_of(self._service.shared.without_ids(captured))
        types = self._types.get(told.entity_type or "") if typed and told.area == "data" else None
        if types is None:
            return change_of(told, captured.ids, typed=typed)
        return types.change_of(told, captured.ids)

    def item(self, output: Output, name: str, *, typed: bool) -> Item:
        """What is said, but for the end."""
        if isinstance(output, Captured):
            return self.captured(output, typed=typed)
        if isinstance(output, Boundary):
            return transaction_of(output)
        if isinstance(output, Confirmed):
            return confirmation_of(output)
        assert isinstance(output, Maintained)
        return maintenance_of(output, name)


async def follow(
    client: Client, request: CaptureRequest, teller: Teller, *, typed: bool
) -> AsyncGenerator[Item]:
    """One request, until it has all that it asked for. Raises what ends it otherwise.

    The session is asked for more only once everything that it said was taken.
    """
    with client.service.session(PROTOCOL, scope=client.scope) as session:
        await session.add(request)
        while True:
            for output in await session.next(count_max=_AHEAD_MAX):
                if isinstance(output, Finished):
                    if output.error is not None:
                        raise output.error
                    return
                async with client.writing:
                    if isinstance(output, Captured | Boundary):
                        EVENTS_PUBLISHED.labels(PROTOCOL).inc()
                    yield teller.item(output, request.id, typed=typed)


Stream = AsyncGenerator[Item, None]
_Id = Annotated[str | None, strawberry.argument(description="Of the request; else it gets one.")]
_Since = Annotated[Since | None, strawberry.argument(description="Where to begin; else now.")]
_Content = Annotated[
    Content | None,
    strawberry.argument(
        description="Else BODY if `body` is selected somewhere, and HEADER if not."
    ),
]
_Before = Annotated[
    bool | None,
    strawberry.argument(
        description="With images before the change; else if `fullDocumentBeforeChange` is selected."
    ),
]
_After = Annotated[
    Long | None, strawberry.argument(description="The operation ends after so many captures.")
]
_Edges = Annotated[
    bool, strawberry.argument(description="Also where transactions begin and end, with counts.")
]


def subscriptions(teller: Teller, types: Mapping[str, EntityTypes]) -> list[StrawberryField]:
    """All of them, typed and untyped, and two for each collection that has types."""
    found: list[StrawberryField] = []
    for typed in (True, False):
        suffix = "" if typed else "Untyped"
        how = "" if typed else " Bodies are JSON."
        found += [
            _field(f"onSystemChange{suffix}", _system(teller, typed=typed), _SYSTEM + how),
            _field(f"onCatalogChange{suffix}", _catalog(teller, typed=typed), _CATALOG + how),
            _field(f"onSchemaChange{suffix}", _area(teller, "schema", typed=typed), _SCHEMA + how),
            _field(f"onDataChange{suffix}", _area(teller, "data", typed=typed), _DATA + how),
        ]
    for name, one in types.items():
        data, shapes = _entity(teller, name, "data"), _entity(teller, name, "schema")
        said = f"of the collection {name}, in whatever catalog."
        found += [
            _field(f"on{one.name}DataChange", data, f"Changes of documents {said}"),
            _field(f"on{one.name}SchemaChange", shapes, f"Changes of the shape {said}"),
        ]
    return found


_SYSTEM = "Sources and catalogs: started, stopped, lost, copied; gaps."
_CATALOG = "Everything in a catalog, or what its criteria name."
_SCHEMA = "Changes of shape."
_DATA = "Changes of documents."


def _field(name: str, resolver: Any, description: str) -> StrawberryField:
    resolver.__name__ = name  # by which strawberry tells the fields of a type apart
    return strawberry.subscription(resolver, name=name, description=description)


def _begun(
    teller: Teller,
    info: Info[Client, None],
    asked: dict[str, Any],
    *,
    typed: bool,
    catalog: str | None = None,
    collection: str | None = None,
) -> Stream:
    client = info.context
    request = parse_request(asked, new_id=client.service.new_id)
    if collection is not None:
        request = _of_collection(request, collection)
    if catalog is not None:
        request = within(request, catalog)
    return follow(client, request, teller, typed=typed)


def _of_collection(request: CaptureRequest, name: str) -> CaptureRequest:
    """`request`, of this collection only, whatever its name would mean in a criterion."""
    criteria = tuple(
        one
        if one.area is Area.INFRASTRUCTURE
        else structs.replace(one, site=structs.replace(one.site, entity_types=frozenset({name})))
        for one in request.criteria
    )
    return structs.replace(request, criteria=criteria)


def _edged(criteria: list[dict[str, Any]], *, transactions: bool) -> list[dict[str, Any]]:
    return [*criteria, {"area": "infrastructure"}] if transactions else criteria


def _system(teller: Teller, *, typed: bool) -> Any:
    def follow_system(
        info: Info[Client, None],
        catalog: list[str] | None = None,
        operation: list[str] | None = None,
        id: _Id = None,  # noqa: A002
        since: _Since = None,
        content: _Content = None,
        complete_after: _After = None,
    ) -> Stream:
        site = {"catalog": catalog, "operation": operation}
        terms = Terms(
            info,
            id=id,
            since=since,
            content=content,
            before_images=False,
            complete_after=complete_after,
        )
        asked = terms.asking([{"area": "system", "site": site}])
        return _begun(teller, info, asked, typed=typed)

    return follow_system


def _catalog(teller: Teller, *, typed: bool) -> Any:
    def follow_catalog(
        info: Info[Client, None],
        catalog: str,
        criteria: list[Criterion] | None = None,
        id: _Id = None,  # noqa: A002
        since: _Since = None,
        content: _Content = None,
        before_images: _Before = None,
        complete_after: _After = None,
    ) -> Stream:
        terms = Terms(
            info,
            id=id,
            since=since,
            content=content,
            before_images=before_images,
            complete_after=complete_after,
        )
        asked = terms.asking([criterion_json(one) for one in criteria or ()])
        return _begun(teller, info, asked, typed=typed, catalog=catalog)

    return follow_catalog


def _at(area: str, sites: Sequence[Site | EntitySite] | None, *, transactions: bool) -> list[Any]:
    """The criteria of an area, at each of some sites; at all, where none is named."""
    places = [site_json(one) for one in sites or ()] or [{}]
    return _edged([{"area": area, "site": place} for place in places], transactions=transactions)


def _area(teller: Teller, area: str, *, typed: bool) -> Any:
    def follow_area(
        info: Info[Client, None],
        catalog: str | None = None,
        sites: list[Site] | None = None,
        transactions: _Edges = False,
        id: _Id = None,  # noqa: A002
        since: _Since = None,
        content: _Content = None,
        before_images: _Before = None,
        complete_after: _After = None,
    ) -> Stream:
        terms = Terms(
            info,
            id=id,
            since=since,
            content=content,
            before_images=before_images,
            complete_after=complete_after,
        )
        asked = terms.asking(_at(area, sites, transactions=transactions))
        return _begun(teller, info, asked, typed=typed, catalog=catalog)

    return follow_area


def _entity(teller: Teller, name: str, area: str) -> Any:
    def follow_entity(
        info: Info[Client, None],
        catalog: str | None = None,
        sites: list[EntitySite] | None = None,
        transactions: _Edges = False,
        id: _Id = None,  # noqa: A002
        since: _Since = None,
        content: _Content = None,
        before_images: _Before = None,
        complete_after: _After = None,
    ) -> Stream:
        terms = Terms(
            info,
            id=id,
            since=since,
            content=content,
            before_images=before_images,
            complete_after=complete_after,
        )
        asked = terms.asking(_at(area, sites, transactions=transactions))
        return _begun(teller, info, asked, typed=True, catalog=catalog, collection=name)

    return follow_entity
