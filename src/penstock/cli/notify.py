"""Telling a service manager that we are ready: systemd's notification protocol, without a library.

Source: https://www.freedesktop.org/software/systemd/man/latest/sd_notify.html
"""

import os
import socket
from collections.abc import Callable
from typing import Any, Final

import structlog

log = structlog.get_logger(__name__)

SOCKET_VARIABLE: Final = "NOTIFY_SOCKET"


def notifying(tell: Callable[[dict[str, Any]], None]) -> Callable[[dict[str, Any]], None]:
    """`tell`, which also tells the service manager that started us, if one asks for it."""
    address = os.environ.get(SOCKET_VARIABLE)
    if not address:
        return tell

    def tell_both(fact: dict[str, Any]) -> None:
        tell(fact)
        _send(address, _state(fact))

    return tell_both


def _state(fact: dict[str, Any]) -> str:
    if fact["event"] == "ready":
        return f"READY=1\nSTATUS=gRPC {fact['grpc']}, Flight {fact['flight']}, HTTP {fact['http']}"
    return f"STATUS={fact.get('role', 'penstock')} {fact['event']}"


def _send(address: str, state: str) -> None:
    # "@" is how the protocol spells the NUL of an abstract socket.
    path = "\0" + address[1:] if address.startswith("@") else address
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as line:
            line.sendto(state.encode(), path)
    except OSError as error:
        # The manager will give up on us by its own timeout; capture has nothing to gain by ending.
        log.warning("the service manager cannot be told", error=type(error).__name__)
