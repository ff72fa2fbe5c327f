"""Bodies of requests that come compressed, as Content-Encoding says."""

import zlib
from typing import Final

from penstock.serve.dynamodb.errors import WireError, serialization

_COMPRESSED: Final = frozenset({"gzip", "deflate"})
_EITHER: Final = zlib.MAX_WBITS + 32
"""For zlib: with the header of gzip or its own, whichever comes."""


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
