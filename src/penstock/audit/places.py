"""Sets of places of a trail, small enough to lie in a record. Pure.

The differences between the places, in ascending order from 0, each as an unsigned LEB128, and all
of them deflated (RFC 1950): a million places in a row take a kilobyte, scattered ones one or two
bytes each.
"""

import zlib
from collections.abc import Iterable, Iterator
from typing import Final

_PIECE: Final = 1 << 14


def packed(places: Iterable[int]) -> bytes:
    """Places as bytes. Raises ValueError unless they ascend, from 1."""
    said = bytearray()
    before = 0
    for place in places:
        step = place - before
        if step < 1:
            raise ValueError("places must ascend")
        while step > 0x7F:
            said.append(step & 0x7F | 0x80)
            step >>= 7
        said.append(step)
        before = place
    return zlib.compress(bytes(said))


def unpacked(data: bytes) -> Iterator[int]:
    """The places, ascending, in bounded memory. Raises ValueError for what is none."""
    inflate = zlib.decompressobj()
    place = step = shift = 0
    rest = data
    try:
        while True:
            piece = inflate.decompress(rest, _PIECE)
            rest = inflate.unconsumed_tail
            for byte in piece:
                step |= (byte & 0x7F) << shift
                shift += 7
                if shift > 70:
                    raise ValueError("a place of more than 64 bits")
                if not byte & 0x80:
                    if step == 0:
                        raise ValueError("places must ascend")
                    place += step
                    yield place
                    step = shift = 0
            if inflate.eof:
                break
            if not piece and not rest:
                raise ValueError("places are cut off")
    except zlib.error as error:
        raise ValueError("not places") from error
    if shift or inflate.unused_data:
        raise ValueError("places are cut off")
