"""The messages of `graphql-transport-ws`, as a client sends them, and as it gets them. Pure.

https://github.com/enisdenjo/graphql-ws/blob/master/PROTOCOL.md
"""

from typing import Any, Final, cast

import msgspec
from msgspec import Struct

from penstock.errors import RequestError
from penstock.serve.captures.protocol import Close, ClosingError, Complete, Init, Ping, Pong

SUBPROTOCOL: Final = "graphql-transport-ws"
_TEXT_MAX: Final = 256


class Operation(Struct, frozen=True, rename="camel"):
    """What is to be executed."""

    query: str
    variables: dict[str, Any] | None = None
    operation_name: str | None = None


class Subscribe(Struct, frozen=True):
    id: str
    operation: Operation


ClientMessage = Init | Ping | Pong | Subscribe | Complete


def parse_message(text: str) -> ClientMessage:
    """What a client says. Raises ClosingError, 4400, for what it cannot say."""
    try:
        given: Any = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        raise _bad("it is no JSON") from None
    if not isinstance(given, dict):
        raise _bad("it is no object")
    said = cast("dict[str, Any]", given)
    kind, payload = said.get("type"), said.get("payload")
    if kind in ("connection_init", "ping", "pong") and not isinstance(payload, dict | None):
        raise _bad("payload must be an object")
    if kind == "connection_init":
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
    if kind != "subscribe":
        raise _bad("its type is unknown")
    try:
        return Subscribe(name, operation_of(cast("object", payload)))
    except RequestError:
        raise _bad("payload must have a query, and may have variables") from None


def operation_of(given: object) -> Operation:
    """What an object of JSON asks to execute; `extensions` are ignored. Raises RequestError."""
    try:
        return msgspec.convert(given, Operation)
    except msgspec.ValidationError:
        raise RequestError(
            "an operation is an object with query, a text, and perhaps variables, an object, and "
            "operationName. Nothing was sent. Send one at a time."
        ) from None


def _bad(why: str) -> ClosingError:
    return ClosingError(Close.BAD_MESSAGE, f"Invalid message: {why}")


def ack() -> bytes:
    return b'{"type":"connection_ack"}'


def pong(ping: Ping) -> bytes:
    said: dict[str, Any] = {"type": "pong"}
    if ping.payload is not None:
        said["payload"] = ping.payload
    return msgspec.json.encode(said)


def next_of(name: str, payload: dict[str, Any]) -> bytes:
    """A result: `data`, and perhaps `errors`."""
    return msgspec.json.encode({"id": name, "type": "next", "payload": payload})


def error_of(name: str, errors: list[dict[str, Any]]) -> bytes:
    """The end of an operation, by errors."""
    return msgspec.json.encode({"id": name, "type": "error", "payload": errors})


def complete_of(name: str) -> bytes:
    """The end of an operation."""
    return msgspec.json.encode({"id": name, "type": "complete"})
