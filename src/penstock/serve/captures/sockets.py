"""What the WebSockets of all our protocols share."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from starlette.requests import HTTPConnection
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from penstock.errors import PenstockError, RateLimitedError
from penstock.serve.captures.protocol import Close, ClosingError
from penstock.serve.frames import frames
from penstock.subscribe.scope import Scope
from penstock.telemetry import PUBLISH_ERRORS

ScopeOf = Callable[[HTTPConnection, Mapping[str, Any]], Scope]
"""What whoever connects may see; of a socket, with what its connection_init brought. Raises
PenstockError for who may not connect."""


def scope_opened(
    socket: WebSocket, opening: Mapping[str, Any], scope_of: ScopeOf, protocol: str
) -> Scope:
    """What whoever sent `opening` in connection_init may see. Raises ClosingError: one reason for
    every credential that opens nothing, and for none."""
    try:
        return scope_of(socket, opening)
    except RateLimitedError as error:
        PUBLISH_ERRORS.labels(protocol, error.code).inc()
        raise ClosingError(Close.BUSY, "Try again later") from None
    except PenstockError as error:
        PUBLISH_ERRORS.labels(protocol, error.code).inc()
        raise ClosingError(Close.FORBIDDEN, "Forbidden") from None


async def send(socket: WebSocket, messages: Sequence[bytes]) -> None:
    """Send texts in one write.

    Raises WebSocketDisconnect if the client is gone, to every task that sends: the first is told
    so, and the others would be told that they do what nobody may.
    """
    if socket.application_state is WebSocketState.DISCONNECTED:
        raise WebSocketDisconnect(1006)
    await socket.send({"type": "websocket.send", "frames": frames(messages)})


class Pace:
    """At most so many messages a second, over any two seconds; whoever sends more waits."""

    def __init__(self, per_second: int) -> None:
        self._per_second = per_second
        self._free_at = 0.0

    async def wait(self) -> None:
        """Until one more may be read."""
        now = time.monotonic()
        self._free_at = max(self._free_at, now - 1.0) + 1.0 / self._per_second
        if self._free_at > now:
            await asyncio.sleep(self._free_at - now)


async def serve(
    socket: WebSocket,
    subprotocol: str,
    *,
    protocol: str,
    serving: Callable[[asyncio.TaskGroup], Awaitable[None]],
    ending: Callable[[], Awaitable[None]],
) -> None:
    """Do what `serving` does until the client goes, or breaks the protocol, or the service stops,
    which is when `ending` raises ClosingError. Everything that the connection has is dropped with
    its tasks. `protocol` is how its errors are counted."""
    offered = subprotocol in socket.scope["subprotocols"]
    await socket.accept(subprotocol if offered else None)
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(_run(ending))
            if not offered:
                raise ClosingError(Close.SUBPROTOCOL, f"Subprotocol must be {subprotocol}")
            await serving(group)
    except* ClosingError as closing:
        (why, *_) = _leaves(closing)
        PUBLISH_ERRORS.labels(protocol, str(int(why.code))).inc()
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):
            await socket.close(int(why.code), why.reason)
    except* WebSocketDisconnect:
        pass


async def _run(work: Callable[[], Awaitable[None]]) -> None:
    await work()


def _leaves(group: BaseExceptionGroup[ClosingError]) -> list[ClosingError]:
    """The errors in groups of groups."""
    found: list[ClosingError] = []
    for one in group.exceptions:
        found += _leaves(one) if isinstance(one, BaseExceptionGroup) else [one]
    return found
