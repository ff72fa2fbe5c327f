"""Captures rendered once for all who get them at about the same time, and see as much of them."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from penstock.subscribe.captures import Captured
from penstock.subscribe.captures.envelopes import Envelope
from penstock.subscribe.captures.rendering import shared_json, with_ids

SHARED_BYTES_MAX: Final = 16 << 20

Render = Callable[[Captured], bytes]
"""A capture as an object of JSON, without the ids of its requests; a function of the module, since
what it makes is kept under it."""


class SharedCaptures:
    """The captures sent last, for the subscriptions of one event loop."""

    def __init__(self, bytes_max: int = SHARED_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self.kept_bytes = 0
        self._kept: OrderedDict[tuple[object, ...], bytes] = OrderedDict()

    def json(self, captured: Captured, render: Render = shared_json) -> bytes:
        """The capture as an object, with the ids of its requests first."""
        return with_ids(captured.ids, self.without_ids(captured, render))

    def enveloped(self, captured: Captured, envelope: Envelope) -> bytes:
        """The capture in an envelope, with the ids of its requests."""
        return envelope.with_ids(captured.ids, self.without_ids(captured, envelope.shared))

    def without_ids(self, captured: Captured, render: Render = shared_json) -> bytes:
        """What is the same for all its requests, perhaps made before."""
        block = captured.block
        sequence = block.first_sequence + captured.i
        asked = (captured.body, captured.before)
        key = (render, block.log_id, sequence, asked, captured.mask)
        found = self._kept.get(key)
        if found is None:
            found = self._kept[key] = render(captured)
            self.kept_bytes += len(found)
            while self.kept_bytes > self._bytes_max:
                _, dropped = self._kept.popitem(last=False)
                self.kept_bytes -= len(dropped)
        return found
