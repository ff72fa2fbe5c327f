"""What a client says while it is connected: up to where it has everything. Pure.

zero-cache 1.9.0 answers a commit with `["status", {"tag": "commit", ...}, {"watermark": W}]`, and a
status with `["status", {"ack": true}, {"watermark": W}]`; the first design of custom backends has
`["ack", {"watermark": W}]` for both (Z1).
"""

from typing import Any, Final

import msgspec
from msgspec import Struct

from penstock.serve.zero.watermarks import read_watermark

_decode: Final = msgspec.json.Decoder(list[Any]).decode


class Ack(Struct, frozen=True):
    """Everything up to `commit` arrived."""

    commit: int
    of_rows: bool
    """Whether its transactions are durable there. What only echoes a status does not prove that of
    the transactions before it."""


def parse_ack(text: str) -> Ack | None:
    """What a message says; None for one that says nothing of this, which is ignored.

    Raises ValueError, which says why, for what is no message at all.
    """
    try:
        message = _decode(text)
    except msgspec.DecodeError:
        raise ValueError("it is no JSON array") from None
    match message:
        case ["ack", {"watermark": str(watermark)}]:
            return Ack(_commit(watermark), of_rows=True)
        case ["status", {"tag": "commit"}, {"watermark": str(watermark)}]:
            return Ack(_commit(watermark), of_rows=True)
        case ["status", dict(), {"watermark": str(watermark)}]:
            return Ack(_commit(watermark), of_rows=False)
        case ["ack" | "status", *_]:
            raise ValueError("it has no watermark")
        case [str(), *_]:
            return None
        case _:
            raise ValueError("it begins with no name")


def _commit(watermark: str) -> int:
    try:
        return read_watermark(watermark).commit
    except ValueError:
        raise ValueError("its watermark is no LexiVersion") from None
