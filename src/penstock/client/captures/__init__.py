"""Capture subscriptions from Python: exactly the changes that are asked for, in order.

    async with captures.connect("127.0.0.1:50051") as client:
        wanted = where.data("orders").keys(5, 6).operations("update").body()
        async with await client.subscribe(wanted.since_beginning()) as changes:
            async for change in changes:
                apply(change.key, change.body.document)

docs/how-to/captures.md has the rest.
"""

from penstock.client.captures.events import Body, Boundary, Capture, Confirmed, Event
from penstock.client.captures.keeping import Request
from penstock.client.captures.subscription import CaptureClient, Subscription, connect
from penstock.client.captures.wanted import Wanted, where

__all__ = [
    "Body",
    "Boundary",
    "Capture",
    "CaptureClient",
    "Confirmed",
    "Event",
    "Request",
    "Subscription",
    "Wanted",
    "connect",
    "where",
]
