"""From the log to readers: where to start, what goes out, and what to save; no socket, no thread.

Every server asks the same three things here, so that every transport answers the same:
`resume` turns a marker into a place, `deliver` decides what a reader gets, `follow` is the loop.
"""

from penstock.subscribe.criteria import Criteria
from penstock.subscribe.deliver import Delivery, Slice, Subscription, batches, deliver
from penstock.subscribe.follow import follow
from penstock.subscribe.resume import resume, start

__all__ = [
    "Criteria",
    "Delivery",
    "Slice",
    "Subscription",
    "batches",
    "deliver",
    "follow",
    "resume",
    "start",
]
