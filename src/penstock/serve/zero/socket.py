"""A WebSocket whose sender waits for room, many messages at a time."""

from typing import Any, Final

from starlette.types import Receive, Send

INTERNAL_ERROR: Final = 1011
PROTOCOL_ERROR: Final = 1002
GOING_AWAY: Final = 1001
NORMAL: Final = 1000
REASON_BYTES_MAX: Final = 123
"""RFC 6455, section 5.5: a control frame is 125 bytes, and the code is two of them."""


class DisconnectedError(Exception):
    """The client is gone."""


class ClosingError(Exception):
    """The connection is to be closed, with a code and a reason that are told."""

    def __init__(self, code: int, reason: str) -> None:
        self.code = code
        super().__init__(reason)


def superseded() -> ClosingError:
    """What a connection is told that is not the newest of its shard."""
    return ClosingError(NORMAL, "another connection of this shard took its place")


class ZeroSocket:
    """One connection, over ASGI of our own server (serve/connections.py)."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send

    async def accept(self, *, liveness_seconds: float) -> None:
        """Complete the handshake. Who takes nothing for so long is disconnected."""
        await self._receive()
        await self._say({"type": "websocket.accept", "liveness_seconds": liveness_seconds})

    async def send(self, frames: bytes) -> None:
        """Send ready frames, once what was sent before has nearly all been taken."""
        await self._say({"type": "websocket.send", "frames": frames})

    async def heard(self) -> str:
        """The next message; binary ones are empty."""
        message = await self._receive()
        if message["type"] == "websocket.disconnect":
            raise DisconnectedError
        return message.get("text") or ""

    async def close(self, code: int, reason: str) -> None:
        """Say goodbye, if anybody listens."""
        told = reason.encode()[:REASON_BYTES_MAX].decode(errors="ignore")
        try:
            await self._say({"type": "websocket.close", "code": code, "reason": told})
        except DisconnectedError:
            return

    async def _say(self, message: dict[str, Any]) -> None:
        try:
            await self._send(message)
        except (OSError, RuntimeError):
            # Of ASGI: OSError is of a client that is gone, RuntimeError of a socket that was closed
            # from this side already.
            raise DisconnectedError from None
