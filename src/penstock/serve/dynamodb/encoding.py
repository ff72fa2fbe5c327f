"""Bodies that come compressed, as Content-Encoding says, or go so, as Accept-Encoding asks."""

import gzip
import re
import zlib
from typing import Final

from penstock.serve.dynamodb.errors import WireError, serialization

_COMPRESSED: Final = frozenset({"gzip", "deflate"})
_EITHER: Final = zlib.MAX_WBITS + 32
"""For zlib: with the header of gzip or its own, whichever comes."""
_PACKED_BYTES_MIN: Final = 1024
"""A shorter answer gains nothing."""
_PACKED_LEVEL: Final = 1
_GZIP: Final = re.compile(r"\s*gzip\s*(;\s*q=(?!0(\.0*)?\s*$).*)?", re.IGNORECASE)
"""Of Accept-Encoding: not with q=0, which refuses it."""


def packed(body: bytes, accepted: str) -> bytes | None:
    """An answer's body as gzip, if its request accepts that and it is long enough; else None."""
    if len(body) < _PACKED_BYTES_MIN or not any(map(_GZIP.fullmatch, accepted.split(","))):
        return None
    return gzip.compress(body, _PACKED_LEVEL, mtime=0)


def too_large(limit: int) -> WireError:
    """A body of more than so many bytes."""
    return WireError(
        "RequestEntityTooLargeException",
        f"Request body is larger than {limit} bytes",
        status=413,
    )


def unpacked(body: bytes, encoding: str, *, bytes_max: int) -> bytes:
    """A body as it was before it was compressed; one that is not, as it is.

    Raises WireError for more than `bytes_max`, of which no more are made, and for what is not of
    its encoding.
    """
    if encoding.strip().lower() not in _COMPRESSED:
        return body
    found = bytearray()
    while body:
        unpacker = zlib.decompressobj(_EITHER)
        try:
            found += unpacker.decompress(body, bytes_max + 1 - len(found))
        except zlib.error:
            raise _malformed(encoding) from None
        if len(found) > bytes_max:
            raise too_large(bytes_max)
        if not unpacker.eof:
            raise _malformed(encoding)
        body = unpacker.unused_data
    return bytes(found)


def _malformed(encoding: str) -> WireError:
    return serialization(f"The request's body is no {encoding}, as its Content-Encoding says")
