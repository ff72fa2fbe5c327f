"""Capture subscriptions, without a socket: what was asked, what is sent, what is safe to save.

A server makes one `Hub` for its log, a `Session` for each connection, and turns what `Session.next`
says into its protocol's messages. Record 0024 has the promises.
"""

from penstock.subscribe.captures.hub import Hub
from penstock.subscribe.captures.outputs import (
    Boundary,
    Captured,
    Confirmed,
    Finished,
    Maintained,
    Output,
)
from penstock.subscribe.captures.requests import (
    NOW,
    Area,
    CaptureRequest,
    Container,
    Content,
    Criterion,
    Since,
    Site,
    parse_request,
)
from penstock.subscribe.captures.session import Limits, Session

__all__ = [
    "NOW",
    "Area",
    "Boundary",
    "CaptureRequest",
    "Captured",
    "Confirmed",
    "Container",
    "Content",
    "Criterion",
    "Finished",
    "Hub",
    "Limits",
    "Maintained",
    "Output",
    "Session",
    "Since",
    "Site",
    "parse_request",
]
