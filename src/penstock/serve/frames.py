"""Many messages as one write: text frames of WebSocket (RFC 6455, section 5.2), one for each. Pure.

A server's frames are not masked, and these are not compressed, so a frame is a few bytes before its
message. Made many at once, away from the event loop, they cost a fraction of a send each.
"""

from collections.abc import Iterable
from typing import Final

_SHORT: Final = [bytes((0x81, length)) for length in range(126)]


def frames(messages: Iterable[bytes]) -> bytes:
    """Each of `messages`, UTF-8 text, as a frame."""
    parts: list[bytes] = []
    for message in messages:
        length = len(message)
        if length < 126:
            parts.append(_SHORT[length])
        elif length < 1 << 16:
            parts.append(b"\x81\x7e" + length.to_bytes(2, "big"))
        else:
            parts.append(b"\x81\x7f" + length.to_bytes(8, "big"))
        parts.append(message)
    return b"".join(parts)
