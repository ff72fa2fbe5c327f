"""From the log to readers: where to start, what goes out, and what to save; no socket, no thread.

Every server asks the same three things here, so that every transport answers the same:
`resume` turns a marker into a place, `deliver` decides what a reader gets, `coalesce` merges what
one far behind gets, `follow` is the loop.
"""

from penstock.subscribe.coalesce import Coalescing, InsertDelete
from penstock.subscribe.criteria import Criteria
from penstock.subscribe.deliver import Delivery, Slice, Subscription, Window, batches, deliver
from penstock.subscribe.follow import follow
from penstock.subscribe.resume import resume, start

__all__ = [
    "Coalescing",
    "Criteria",
    "Delivery",
    "InsertDelete",
    "Slice",
    "Subscription",
    "Window",
    "batches",
    "deliver",
    "follow",
    "resume",
    "start",
]
