"""The messages of `rest-transport-ws`, as a client sends them, and as it gets them. Pure.

It is `graphql-transport-ws` with a capture request where that has a query: connection_init and its
ack, ping and pong, subscribe, next, error, complete. Ours beside it, announced in the ack: a
`subscribe` whose payload has `requests`, a list, is one subscription with many; `extend`, `change`,
`limit` and `request` change it; `credit` says how much may be sent at first, and `envelope` how
captures are written.
"""

from enum import IntEnum
from typing import Any, Final, cast

import msgspec
from msgspec import Struct

SUBPROTOCOL: Final = "rest-transport-ws"
_TEXT_MAX: Final = 256
_CREDIT_MAX: Final = 1 << 53


class Close(IntEnum):
    """Why a socket was closed."""

    GOING_AWAY = 1012
    """The service stops: connect again."""
    BUSY = 1013
    """As many sockets are open as there may be: try again later."""
    BAD_MESSAGE = 4400
    UNAUTHORIZED = 4401
    """Something else before connection_init was acknowledged."""
    FORBIDDEN = 4403
    SUBPROTOCOL = 4406
    INIT_TIMEOUT = 4408
    DUPLICATE = 4409
    """A subscription with that id is there."""
    SECOND_INIT = 4429


class ClosingError(Exception):
    """The socket is to be closed."""

    def __init__(self, code: Close, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


class Init(Struct, frozen=True):
    payload: dict[str, Any]
    """Perhaps with a token. Nothing of it is kept, logged or sent."""


class Ping(Struct, frozen=True):
    payload: Any = None


class Pong(Struct, frozen=True):
    pass


class Subscribe(Struct, frozen=True):
    """A subscription of one request, or of many."""

    id: str
    requests: tuple[Any, ...]
    many: bool
    credit: int | None
    envelope: Any = None
    """As it was said; None: nothing was."""


class Extend(Struct, frozen=True):
    id: str
    requests: tuple[Any, ...]


class Change(Struct, frozen=True):
    id: str
    request: Any


class Limit(Struct, frozen=True):
    """Remove these requests, or all of them (None)."""

    id: str
    requests: tuple[str, ...] | None


class Credit(Struct, frozen=True):
    id: str
    count: int


class Complete(Struct, frozen=True):
    id: str


ClientMessage = Init | Ping | Pong | Subscribe | Extend | Change | Limit | Credit | Complete


def parse_message(text: str | bytes) -> ClientMessage:
    """What a client says. Raises ClosingError, 4400, for what it cannot say."""
    try:
        given: Any = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        raise _bad("it is no JSON") from None
    if not isinstance(given, dict):
        raise _bad("it is no object")
    said = cast("dict[str, Any]", given)
    kind, payload = said.get("type"), said.get("payload")
    if kind == "connection_init":
        if not isinstance(payload, dict | None):
            raise _bad("payload must be an object")
        return Init(cast("dict[str, Any]", payload or {}))
    if kind == "ping":
        return Ping(payload)
    if kind == "pong":
        return Pong()
    name = said.get("id")
    if not isinstance(name, str) or not 0 < len(name) <= _TEXT_MAX:
        raise _bad(f"id must be a text of 1 to {_TEXT_MAX} characters")
    if kind == "complete":
        return Complete(name)
    if not isinstance(payload, dict):
        raise _bad("payload must be an object")
    return _about(name, kind, cast("dict[str, Any]", payload))


def _about(name: str, kind: object, payload: dict[str, Any]) -> ClientMessage:
    if kind == "subscribe":
        credit = _count(payload.pop("credit", None), "credit")
        envelope = payload.pop("envelope", None)
        if "requests" in payload:
            asked = _list(payload["requests"], "requests")
            return Subscribe(name, asked, True, credit, envelope)
        return Subscribe(name, (payload,), False, credit, envelope)
    if kind == "extend":
        return Extend(name, _list(payload.get("requests"), "requests"))
    if kind == "change":
        return Change(name, payload.get("request"))
    if kind == "limit":
        if payload.get("all") is True:
            return Limit(name, None)
        ids = _list(payload.get("requestIds"), "requestIds")
        if not all(isinstance(one, str) and len(one) <= _TEXT_MAX for one in ids):
            raise _bad("requestIds must be texts")
        return Limit(name, ids)
    if kind == "request":
        count = _count(payload.get("n"), "n")
        if count is None:
            raise _bad("n is missing")
        return Credit(name, count)
    raise _bad("its type is unknown")


def _list(given: Any, name: str) -> tuple[Any, ...]:
    if not isinstance(given, list):
        raise _bad(f"{name} must be a list")
    return tuple(cast("list[Any]", given))  # type: ignore[redundant-cast]


def _count(given: Any, name: str) -> int | None:
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int) or given < 0:
        raise _bad(f"{name} must be a whole number, not negative")
    return min(given, _CREDIT_MAX)


def _bad(why: str) -> ClosingError:
    return ClosingError(Close.BAD_MESSAGE, f"Invalid message: {why}")


# --- what a client gets ---------------------------------------------------------------------------


def ack(*, maintenance_ms: int) -> bytes:
    """That the connection is open, and what this server can beyond the protocol."""
    can = ["requests", "extend", "change", "limit", "request", "maintenance", "envelope"]
    payload = {"extensions": can, "maintenanceIntervalMs": maintenance_ms}
    return msgspec.json.encode({"type": "connection_ack", "payload": payload})


def pong(ping: Ping) -> bytes:
    said: dict[str, Any] = {"type": "pong"}
    if ping.payload is not None:
        said["payload"] = ping.payload
    return msgspec.json.encode(said)


def next_of(name: bytes, data: bytes, error: bytes = b"") -> bytes:
    """`name` is the id of the subscription, encoded; `data` and `error` are encoded too."""
    more = b',"error":' + error if error else b""
    return b'{"id":%b,"type":"next","payload":{"data":%b%b}}' % (name, data, more)


def error_of(name: bytes, error: bytes) -> bytes:
    """The end of a subscription, by an error."""
    return b'{"id":%b,"type":"error","payload":%b}' % (name, error)


def complete_of(name: bytes) -> bytes:
    """The end of a subscription."""
    return b'{"id":%b,"type":"complete"}' % name
