"""Capture subscriptions as server-sent events: one direction, for browsers and curl.

The request is in the URL. Each event has its kind, and the `id` that a browser sends back as
Last-Event-ID when it connects again (resuming.py); that goes before any other start.
https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Send
from starlette.types import Scope as Asgi

from penstock.errors import PenstockError
from penstock.serve.captures.query import asked_by, one_of
from penstock.serve.captures.resuming import Ids, resumed
from penstock.serve.captures.said import (
    confirmed_json,
    error_json,
    error_said,
    finished_json,
    maintained_json,
)
from penstock.serve.captures.scoping import parse_at
from penstock.serve.captures.service import CaptureService
from penstock.subscribe.captures import (
    Boundary,
    Captured,
    CaptureRequest,
    Confirmed,
    Maintained,
    Output,
    Session,
)
from penstock.subscribe.captures.envelopes import Envelope, envelope_of
from penstock.subscribe.scope import Scope
from penstock.telemetry import EVENTS_PUBLISHED, PUBLISH_ERRORS

PROTOCOL: Final = "sse"
TYPE: Final = "text/event-stream"
_KEEPALIVE_SECONDS: Final = 15.0
"""Proxies close what is silent for longer than some 30 seconds."""
_BESIDE: Final = frozenset({"envelope"})
_WRITE_BYTES: Final = 64 << 10
"""Of events that are sent at once."""
_HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


def requests_of(
    request: Request, catalog: str, service: CaptureService
) -> list[CaptureRequest | None]:
    """What a GET asks for, behind its Last-Event-ID if it has one: None of what is over by then.

    Raises what `asked_by`, `parse_at` and `resumed` do.
    """
    asked = [
        parse_at(given, catalog, new_id=service.new_id)
        for given in asked_by(request.query_params, beside=_BESIDE)
    ]
    last = request.headers.get("last-event-id")
    return resumed(asked, last) if last else [*asked]


class EventStream(Response):
    """An answer that goes on until its requests are over, or its client goes."""

    def __init__(
        self,
        service: CaptureService,
        session: Session,
        *,
        requests: Sequence[CaptureRequest | None],
        envelope: Envelope,
        after: ExitStack,
    ) -> None:
        """`requests`: as `Ids`; those that there are, the session has. `after` is closed at the
        end."""
        super().__init__(media_type=TYPE)
        self._service = service
        self._session = session
        self._left = sum(one is not None for one in requests)
        self._ids = Ids(requests)
        self._envelope = envelope
        self._after = after
        self._published = EVENTS_PUBLISHED.labels(PROTOCOL)

    async def __call__(self, scope: Asgi, receive: Receive, send: Send) -> None:
        """As an ASGI application."""
        del scope
        with self._after:
            sending = asyncio.create_task(self._send_all(send))
            leaving = asyncio.create_task(_gone(receive))
            try:
                await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                leaving.cancel()
                sending.cancel()
                await asyncio.wait({sending, leaving})
            if not sending.cancelled():
                sending.result()

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        written = [b": follows\n\n"]
        try:
            while self._left:
                await _write(send, written)
                written = list[bytes]()
                for output in await self._outputs():
                    written.append(self._event(output))
                    if sum(map(len, written)) > _WRITE_BYTES:
                        await _write(send, written)
                        written = list[bytes]()
        except PenstockError as error:
            PUBLISH_ERRORS.labels(PROTOCOL, error.code).inc()
            written.append(_event(b"error", error_json(error)))
        await _write(send, written, more=False)

    async def _outputs(self) -> Sequence[Output | None]:
        """What comes next; None for nothing, which is said too."""
        return await self._session.next(quiet_seconds=_KEEPALIVE_SECONDS) or [None]

    def _event(self, output: Output | None) -> bytes:
        if output is None:
            return b":\n\n"
        ids = self._ids
        if isinstance(output, Captured):
            self._published.inc()
            marker = ids.captured(output)
            said = self._service.shared.enveloped(output, self._envelope)
            return _event(b"capture", said, marker)
        if isinstance(output, Boundary):
            self._published.inc()
            return _event(b"transaction", self._envelope.boundary(output), ids.edge(output))
        if isinstance(output, Confirmed):
            return _event(b"confirmed", confirmed_json(output), ids.confirmed(output))
        if isinstance(output, Maintained):
            return _event(b"maintenance", maintained_json(output), ids.maintained(output))
        self._left -= 1
        marker = ids.finished(output)
        if output.error is None:
            return _event(b"finished", finished_json(output), marker)
        PUBLISH_ERRORS.labels(PROTOCOL, output.error.code).inc()
        error = {"id": output.id, **error_said(output.error)}
        return _event(b"error", msgspec.json.encode(error), marker)


def _event(kind: bytes, data: bytes, marker: str = "") -> bytes:
    if b"\n" in data or b"\r" in data:
        # Space between tokens of JSON, as a source may have written it: a line ends the field.
        data = data.replace(b"\r", b" ").replace(b"\n", b" ")
    place = b"id: %b\n" % marker.encode() if marker else b""
    return b"event: %b\n%bdata: %b\n\n" % (kind, place, data)


async def _write(send: Send, parts: list[bytes], *, more: bool = True) -> None:
    """Send, and wait for room: nothing is asked of the log meanwhile."""
    await send({"type": "http.response.body", "body": b"".join(parts), "more_body": more})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def events(request: Request, catalog: str, service: CaptureService, scope: Scope) -> Response:
    """The answer to a GET. Raises, before anything is sent, what refuses one of its requests."""
    asked = requests_of(request, catalog, service)
    envelope = envelope_of(one_of(request.query_params, "envelope"))
    if request.method == "HEAD":
        return Response(media_type=TYPE)
    begun = [one for one in asked if one is not None]
    if not begun:
        # The one answer after which a browser does not connect again.
        return Response(status_code=204)
    with ExitStack() as stack:
        session = stack.enter_context(service.session(PROTOCOL, scope=scope))
        for one in begun:
            await session.add(one)
        return EventStream(
            service, session, requests=asked, envelope=envelope, after=stack.pop_all()
        )
    raise AssertionError  # the block returns or raises
