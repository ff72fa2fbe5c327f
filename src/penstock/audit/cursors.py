"""Where a query goes on: text that nobody needs to understand. Pure.

Inside: the order, the last place that was looked at, the head of that moment (its place, batch and
the chain's hash), and the fingerprint of the filters. 49 bytes.
"""

import base64
import binascii
import struct
from typing import Final

from msgspec import Struct

from penstock.audit.filters import Filters, Order
from penstock.errors import ConfigError

_LAYOUT: Final = struct.Struct(">BBQQQ8s8s")
_VERSION: Final = 1


class Cursor(Struct, frozen=True, kw_only=True):
    """A place between two pages."""

    order: Order
    after: int
    """Everything up to this place, in the order of the query, was looked at."""
    at: int
    """The head when it was made:"""
    batch: int
    hash: bytes
    """the first eight bytes of the chain's hash. The trail must still have been there."""
    filters: bytes
    """Filters.fingerprint."""

    def __str__(self) -> str:
        order = int(self.order == "desc")
        packed = _LAYOUT.pack(
            _VERSION, order, self.after, self.at, self.batch, self.hash[:8], self.filters
        )
        return base64.urlsafe_b64encode(packed).decode().rstrip("=")


def cursor_of(text: str, *, filters: Filters, order: Order) -> Cursor:
    """The cursor that `text` is. Raises ConfigError if it is none, or of another query."""
    try:
        packed = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        version, number, after, at, batch, chained, fingerprint = _LAYOUT.unpack(packed)
        if version != _VERSION or number not in (0, 1):
            raise ValueError
        said: Order = "desc" if number else "asc"
    except (ValueError, binascii.Error, struct.error):
        raise ConfigError(
            "--cursor is none of ours. Take the one that the page before ended with."
        ) from None
    cursor = Cursor(
        order=said,
        after=after,
        at=at,
        batch=batch,
        hash=chained,
        filters=fingerprint,
    )
    if cursor.filters != filters.fingerprint() or cursor.order != order:
        raise ConfigError(
            "--cursor is of a query with other filters, or another order. Repeat those of the "
            "page that it ended."
        )
    return cursor
