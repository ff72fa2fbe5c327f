"""The progress marker: what a consumer saves, and sends back as `after`.

Opaque to everyone else. Inside: version, log id, sequence and a 32-bit check of all that the log
tells up to there, 21 bytes in 28 characters of URL-safe base64. The check tells a restored or
rewritten log from the one that the marker was made for (F10).
"""

import base64
import binascii
import struct

from msgspec import Struct

from penstock.errors import MalformedProgressError

VERSION = 1
LAYOUT = struct.Struct(">BQQI")


class Progress(Struct, frozen=True, order=True):
    """A place in one log: everything up to and including `sequence` is processed."""

    log_id: int
    sequence: int
    check: int
    """Of all entries up to it (record 0040); 0 at sequence 0."""

    def __str__(self) -> str:
        packed = LAYOUT.pack(VERSION, self.log_id, self.sequence, self.check)
        return base64.urlsafe_b64encode(packed).decode()


def parse_progress(marker: str) -> Progress:
    """The marker's place. Raises MalformedProgressError for anything but `str` of a Progress."""
    try:
        packed = base64.b64decode(marker.encode("ascii"), altchars=b"-_", validate=True)
        version, log_id, sequence, check = LAYOUT.unpack(packed)
    except (binascii.Error, struct.error, UnicodeEncodeError):
        raise MalformedProgressError(marker) from None
    progress = Progress(log_id, sequence, check)
    # The decoder takes "+" for "-" and "/" for "_"; a marker that was altered is not ours.
    if version != VERSION or str(progress) != marker:
        raise MalformedProgressError(marker)
    return progress
