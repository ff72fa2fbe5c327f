"""The queries: pages of history, and what there is to know of the service."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Annotated, Any, Final, cast

import strawberry
from msgspec import Struct, structs
from strawberry.tools import create_type
from strawberry.types import Info

from penstock.capture.gaps import GapWatch
from penstock.errors import RequestError
from penstock.serve.captures.graphql.asking import (
    Content,
    Criterion,
    Since,
    Terms,
    criterion_json,
)
from penstock.serve.captures.graphql.following import PROTOCOL, Client, Teller
from penstock.serve.captures.graphql.items import Capture, transaction_of
from penstock.serve.captures.graphql.scalars import Long
from penstock.serve.captures.graphql.types import EntityTypes
from penstock.serve.captures.history import place_of
from penstock.serve.captures.scoping import within
from penstock.serve.captures.service import CaptureService
from penstock.serve.health import BackendHealth, Health
from penstock.subscribe.captures import Boundary, CaptureRequest, parse_request
from penstock.subscribe.captures.pages import Page, Pages
from penstock.subscribe.captures.requests import NOW
from penstock.subscribe.resume import oldest, start
from penstock.subscribe.scope import Scope, Verb
from penstock.telemetry import EVENTS_PUBLISHED
from penstock.wire import Stream

_FIRST: Final = 100
_AT_ONCE: Final = 8
"""Captures that are made, or answered, before others have their turn."""
CAPTURES_MAX: Final = 5_000
BYTES_MAX: Final = 4 << 20
"""Of what a page holds: an answer of GraphQL is made as a whole before it is sent."""


class Facts(Struct, frozen=True, kw_only=True):
    """What is answered from."""

    service: CaptureService
    gaps: GapWatch
    reading_gaps: asyncio.Lock
    making_pages: asyncio.Semaphore
    """What is made as a whole takes memory: so many at once."""
    beside: Executor
    """One thread, for what takes long and needs no log."""
    health: Callable[[], Awaitable[Health]] | None = None


@strawberry.type
class PageInfo:
    """Where a page lies."""

    start_cursor: str = strawberry.field(description="A marker: `before` it lies the page before.")
    end_cursor: str = strawberry.field(description="A marker: `after` it lies the next page.")
    has_previous_page: bool
    has_next_page: bool = strawberry.field(
        description="False: nothing was there behind it when it was asked for."
    )


@strawberry.type
class HistoryPage:
    """Captures, oldest first; no transaction is split between pages."""

    captures: list[Capture]
    page_info: PageInfo


@strawberry.type
class SourceStatus:
    """A source, as far as the log has it and as its capture says."""

    name: str
    position: str | None = strawberry.field(
        description="Its own coordinate of what is durable here. Told to who sees all of the "
        "source: there may be keys in it."
    )
    commits: Long
    events: Long
    last_timestamp: Long = strawberry.field(description="Unix milliseconds; 0 before an event.")
    moved_at: Long = strawberry.field(description="Unix milliseconds when its position moved.")
    status: str | None = strawberry.field(description="ok, degraded or unhealthy.")
    state: str | None
    code: str | None = strawberry.field(description="Of the error that led there.")
    lag: float | None = strawberry.field(description="Seconds since its position moved.")


@strawberry.type
class Status:
    """The log, and who writes it."""

    status: str | None = strawberry.field(description="ok, degraded or unhealthy.")
    progress: str = strawberry.field(description="The marker of the newest change.")
    oldest: str = strawberry.field(description="The marker of the oldest place that resumes.")
    version: Long = strawberry.field(description="The newest commit.")
    subscriptions: int = strawberry.field(description="Over all protocols.")
    sources: list[SourceStatus]


@strawberry.type
class OpenGap:
    """Changes of a source were lost, and its data was not copied since."""

    source: str
    sequence: Long = strawberry.field(description="Where the log says so.")
    since: Long = strawberry.field(description="Unix milliseconds when the log was told.")


@strawberry.type
class EntityField:
    """A field of a collection's documents, as it was announced."""

    name: str = strawberry.field(description="In documents.")
    spelling: str = strawberry.field(description="Here.")
    type: str


@strawberry.type
class EntityType:
    """A collection whose changes have types of their own."""

    entity_type: str
    name: str = strawberry.field(description="As in on{name}DataChange and {name}Document.")
    configured: bool = strawberry.field(description="Else it was inferred.")
    fields: list[EntityField]


_AfterMarker = Annotated[str | None, strawberry.argument(description="The page behind a marker.")]
_BeforeMarker = Annotated[
    str | None, strawberry.argument(description="The page up to a marker, or `now`.")
]


def query_type(facts: Facts, teller: Teller, types: Mapping[str, EntityTypes]) -> type:
    """The type Query."""

    async def history(
        info: Info[Client, None],
        catalog: str,
        criteria: list[Criterion] | None = None,
        after: _AfterMarker = None,
        before: _BeforeMarker = None,
        since: Since | None = None,
        first: int | None = None,
        last: int | None = None,
        content: Content | None = None,
        before_images: bool | None = None,
        untyped: bool = False,
    ) -> HistoryPage:
        terms = Terms(
            info,
            id="page",
            since=since,
            content=content,
            before_images=before_images,
            complete_after=None,
        )
        asked = terms.asking([criterion_json(one) for one in criteria or ()])
        request = within(parse_request(asked, new_id=str), catalog)
        asking = _Asking(request=request, after=after, before=before, first=first, last=last)
        async with facts.making_pages:
            return await _history(info.context, asking, teller, typed=not untyped)

    async def status(info: Info[Client, None]) -> Status:
        return await _status(facts, info.context.scope)

    async def gaps(info: Info[Client, None]) -> list[OpenGap]:
        return await _gaps(facts, info.context.scope)

    def described() -> list[EntityType]:
        return [_described(one) for one in types.values()]

    return create_type(
        "Query",
        [
            strawberry.field(history, name="history", description="Changes, a page at a time."),
            strawberry.field(status, name="status", description="Sources, positions, lag."),
            strawberry.field(gaps, name="gaps", description="Open gaps, read from the log."),
            strawberry.field(described, name="types", description="Collections with types."),
        ],
    )


# --- history --------------------------------------------------------------------------------------


class _Asking(Struct, frozen=True, kw_only=True):
    request: CaptureRequest
    after: str | None
    before: str | None
    first: int | None
    last: int | None


async def _history(client: Client, asked: _Asking, teller: Teller, *, typed: bool) -> HistoryPage:
    service, request = client.service, asked.request
    backward = asked.before is not None or asked.last is not None
    if [asked.after is not None, backward, request.since != NOW].count(True) > 1 or (
        backward and asked.first is not None
    ):
        raise RequestError(
            "first with after or since is a page forward, last with before one backward: only one "
            "can be meant. Nothing was sent."
        )
    pages = Pages(
        service.past,
        structs.replace(request, since=NOW),
        scope=client.scope,
        limit=_limit(service, asked.last if backward else asked.first),
        bytes_max=service.config.scan_bytes_max,
    )
    if backward:
        before = asked.before or "now"
        page = await pages.before(await start(service.past, "" if before == "now" else before))
    else:
        page = await pages.after(await place_of(service, asked.after, request, client.scope))
    found = await _captures(service, pages, page, teller, typed=typed)
    return HistoryPage(
        # graphql-core takes either; strawberry knows of lists only.
        captures=cast("list[Capture]", _in_turn(found)),
        page_info=PageInfo(
            start_cursor=str(page.after),
            end_cursor=str(page.until),
            has_previous_page=not page.first,
            has_next_page=not page.last,
        ),
    )


def _limit(service: CaptureService, asked: int | None) -> int:
    most = service.config.page_max
    limit = _FIRST if asked is None else asked
    if not 0 < limit <= most:
        raise RequestError(
            f"first and last are from 1 to {most}. Nothing was sent. Ask for fewer, and go on "
            f"behind the page."
        )
    return min(limit, most)


async def _captures(
    service: CaptureService, pages: Pages, page: Page, teller: Teller, *, typed: bool
) -> list[Capture]:
    found: list[Capture] = []
    size = 0
    async for piece in pages.captures(page):
        for one in piece:
            if len(found) % _AT_ONCE == 0:
                await asyncio.sleep(0)
            if isinstance(one, Boundary):
                found.append(transaction_of(one))
                continue
            size += len(service.shared.without_ids(one))
            if size > BYTES_MAX or len(found) >= CAPTURES_MAX:
                raise RequestError(
                    f"this page is of more than {BYTES_MAX} bytes or {CAPTURES_MAX} captures, and "
                    f"an answer of GraphQL is made as a whole. Nothing was sent. Ask for fewer; of "
                    f"a transaction that is so large, at /rest, or subscribe."
                )
            found.append(teller.captured(one, typed=typed))
    EVENTS_PUBLISHED.labels(PROTOCOL).inc(len(found))
    return found


async def _in_turn(found: Sequence[Capture]) -> AsyncGenerator[Capture]:
    """`found`, of which a few are answered at a time, and then the others have their turn."""
    for number, one in enumerate(found):
        if number % _AT_ONCE == 0:
            await asyncio.sleep(0)
        yield one


# --- what there is to know ------------------------------------------------------------------------


async def _status(facts: Facts, scope: Scope) -> Status:
    bounds = await facts.service.log.bounds()
    health = None if facts.health is None else await facts.health()
    backends = {} if health is None else {one.name: one for one in health.backends}
    sources = [
        _source(one, backends.get(one.source), whole=scope.shows_all_of(one.source))
        for one in await facts.service.log.sources()
        if scope.allows(Verb.ADMIN, _whole(one.source))
    ]
    return Status(
        status=None if health is None else health.status,
        progress=str(await start(facts.service.log, "")),
        oldest=str(oldest(bounds)),
        version=Long(bounds.head_commit),
        subscriptions=facts.service.subscriptions,
        sources=sources,
    )


def _source(state: Any, told: BackendHealth | None, *, whole: bool) -> SourceStatus:
    return SourceStatus(
        name=state.source,
        position=state.position if whole else None,
        commits=Long(state.commits),
        events=Long(state.events),
        last_timestamp=Long(state.last_timestamp),
        moved_at=Long(state.moved_at),
        status=None if told is None else told.status,
        state=None if told is None else told.state,
        code=None if told is None else told.code or None,
        lag=None if told is None else told.lag,
    )


async def _gaps(facts: Facts, scope: Scope) -> list[OpenGap]:
    # It reads on from where it was: the first time, all that the log has.
    async with facts.reading_gaps:
        await facts.gaps.step()
        found = facts.gaps.scanned.gaps.open
        return [
            OpenGap(source=source, sequence=Long(gap.sequence), since=Long(gap.since_ms))
            for source, gaps in found.items()
            if scope.allows(Verb.SCHEMA, _whole(source))
            for gap in gaps.values()
        ]


def _whole(source: str) -> Stream:
    return Stream(source, "", "", "")


def _described(types: EntityTypes) -> EntityType:
    shape = types.shape
    return EntityType(
        entity_type=shape.entity_type,
        name=types.name,
        configured=shape.configured,
        fields=[
            EntityField(name=one.name, spelling=one.spelling, type=one.type) for one in shape.fields
        ],
    )
