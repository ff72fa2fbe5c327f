"""History over HTTP, a page at a time: GET /rest/{catalog}/changes.

A marker is a place between entries: `after` it comes what followed, and `before` it all up to it.
Pages are told oldest first in both directions, and none splits a transaction.
"""

from collections.abc import AsyncGenerator
from typing import Any, Final
from urllib.parse import quote, urlencode

import msgspec
from msgspec import structs
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from penstock.errors import AheadError, RequestError
from penstock.progress import Progress
from penstock.serve.captures.query import asked_by, number_of, one_of
from penstock.serve.captures.scoping import parse_at
from penstock.serve.captures.service import CaptureService
from penstock.subscribe.captures import Boundary, Captured, CaptureRequest, Since
from penstock.subscribe.captures.envelopes import Envelope, envelope_of
from penstock.subscribe.captures.pages import Page, Pages
from penstock.subscribe.captures.requests import NOW
from penstock.subscribe.captures.since import resolve
from penstock.subscribe.resume import oldest, start
from penstock.subscribe.scope import Scope
from penstock.telemetry import EVENTS_PUBLISHED

PROTOCOL: Final = "rest"
PATH: Final = "/rest/{catalog}/changes"
_BESIDE: Final = frozenset({"limit", "after", "before"})
_ASKED: Final = _BESIDE | {"envelope"}
_LIMIT: Final = 100


async def changes(
    request: Request, catalog: str, service: CaptureService, scope: Scope
) -> Response:
    """The answer to a GET. Raises, before anything is sent, what refuses it."""
    query = request.query_params
    most = service.config.page_max
    limit = number_of(query, "limit") or _LIMIT
    if limit > most:
        raise RequestError(
            f"limit is {limit}, and at most {most} are told at once. Nothing was sent. Ask for "
            f"fewer, and follow `next`."
        )
    (asked, *others) = asked_by(query, beside=_ASKED)
    if others:
        raise RequestError("a page is of one request. Nothing was sent. Ask for one at a time.")
    wanted = parse_at({"id": "page", **asked}, catalog, new_id=service.new_id)
    if wanted.complete_after:
        raise RequestError(
            "completeAfter ends a subscription, and this is a page. Nothing was sent. Ask for "
            "`limit` changes."
        )
    envelope = envelope_of(one_of(query, "envelope"))
    after, before = one_of(query, "after"), one_of(query, "before")
    if [after is not None, before is not None, wanted.since != NOW].count(True) > 1:
        raise RequestError(
            "after, before and since each say where a page lies. Nothing was sent. Give one."
        )
    pages = Pages(
        service.past,
        structs.replace(wanted, since=NOW),
        scope=scope,
        limit=limit,
        bytes_max=service.config.scan_bytes_max,
    )
    if before is not None:
        page = await pages.before(await start(service.past, "" if before == "now" else before))
    else:
        page = await pages.after(await place_of(service, after, wanted, scope))
    head = _head(request, catalog, page, limit)
    parts = _parts(service, pages, page, head=head, envelope=envelope)
    # What cannot be read any more is known before the first byte.
    first = await anext(parts)
    return StreamingResponse(_all(first, parts), media_type="application/json")


async def place_of(
    service: CaptureService, after: str | None, wanted: CaptureRequest, scope: Scope
) -> Progress:
    """Behind which place a page lies: a marker, or where the request begins; else the oldest that
    is kept. Raises AheadError for what is not there yet, and HistoryUnknownError for what lies too
    deep in an archive to be sought."""
    if after is not None:
        return await start(service.past, after)
    if wanted.since == NOW:
        return oldest(await service.past.bounds())
    begins = await resolve(await service.seeking(), wanted.since, scope)
    if begins.waiting:
        raise _ahead(wanted.since)
    return begins.after


def _ahead(since: Since) -> AheadError:
    what = f"version {since.version}" if since.version is not None else "that time"
    return AheadError.saying(
        f"{what} is ahead of all that was captured. Nothing was sent. Ask again later, or "
        f"subscribe with that start: a subscription waits for it."
    )


def _head(request: Request, catalog: str, page: Page, limit: int) -> dict[str, Any]:
    kept = [
        (name, value)
        for name, value in request.query_params.multi_items()
        if name not in {*_BESIDE, "ticket", "since"} and not name.startswith("since")
    ]

    def link(name: str, place: Progress) -> str:
        more = [*kept, ("limit", str(limit)), (name, str(place))]
        return f"/rest/{quote(catalog, safe='')}/changes?{urlencode(more)}"

    return {
        "catalog": catalog,
        "after": str(page.after),
        "until": str(page.until),
        "next": link("after", page.until),
        "previous": None if page.first else link("before", page.after),
        "last": page.last,
    }


async def _parts(
    service: CaptureService,
    pages: Pages,
    page: Page,
    *,
    head: dict[str, Any],
    envelope: Envelope,
) -> AsyncGenerator[bytes]:
    said = msgspec.json.encode(head)[:-1] + b',"changes":['
    between = b""
    async for piece in pages.captures(page):
        rendered = [_rendered(service, one, envelope) for one in piece]
        EVENTS_PUBLISHED.labels(PROTOCOL).inc(len(rendered))
        if rendered:
            said += between + b",".join(rendered)
            between = b","
            yield said
            said = b""
    yield said + b"]}\n"


def _rendered(service: CaptureService, one: Captured | Boundary, envelope: Envelope) -> bytes:
    if isinstance(one, Boundary):
        return envelope.boundary(one)
    return service.shared.enveloped(one, envelope)


async def _all(first: bytes, parts: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    yield first
    async for part in parts:
        yield part
