"""Documents as type-preserving Extended JSON: the stored and `penstock.v1` form of a document.

It is MongoDB's relaxed Extended JSON with every ambiguity that relaxed has taken out:

| value                      | written as                                   |
|----------------------------|----------------------------------------------|
| int32                      | `5`                                          |
| int64 outside int32        | `5000000000`                                 |
| int64 inside int32         | `{"$numberLong":"5"}`                        |
| double                     | `3.0`, always with a point or an exponent    |
| NaN, ±Infinity             | `{"$numberDouble":"NaN"}`                    |
| decimal                    | `{"$numberDecimal":"1.10"}`                  |
| instant                    | `{"$date":"2026-01-01T00:00:00.000Z"}`       |
| bytes                      | `{"$binary":{"base64":"...","subType":"00"}}`|
| ObjectId, Timestamp, ...   | `{"$oid":"..."}`, as the Extended JSON v2 spec |

`relaxed` turns it into plain relaxed Extended JSON, which seed clients expect; it differs only
where a document has a small int64. Nothing else is ever rewritten.
Source: the MongoDB Extended JSON (v2) specification.
"""

import base64
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from math import isfinite, isnan
from typing import Any
from uuid import UUID

import msgspec
from msgspec import Raw

_LONG = re.compile(rb'(?<!"\$date":)\{"\$numberLong":"(-?\d+)"\}')
_WRAPPER_KEYS = frozenset(
    {
        "$oid",
        "$numberInt",
        "$numberLong",
        "$numberDouble",
        "$numberDecimal",
        "$date",
        "$binary",
        "$uuid",
        "$timestamp",
        "$regularExpression",
        "$code",
        "$dbPointer",
        "$symbol",
        "$minKey",
        "$maxKey",
        "$undefined",
    }
)


class AmbiguousDocumentError(ValueError):
    """A plain document that looks exactly like an Extended JSON wrapper; writing it would lie."""


class DocumentEncoder:
    """Encodes documents; `hook` writes the values of a source's own types as wrappers.

    `hook(value)` returns a wrapper (a dict whose first key starts with `$`), a plain int, or
    raises TypeError. Not thread-safe: one encoder a thread.
    """

    def __init__(self, hook: Callable[[Any], Any]) -> None:
        self._hook = hook
        self._wrapped = 0
        self._encoder = msgspec.json.Encoder(enc_hook=self._enc_hook)

    def encode(self, document: Mapping[str, Any]) -> Raw:
        """The document's bytes.

        Raises AmbiguousDocumentError, TypeError (a type without a mapping) or ValueError (a
        number without one).
        """
        self._wrapped = 0
        try:
            encoded = self._encoder.encode(document)
        except OverflowError as error:
            raise ValueError("an integer beyond 64 bits has no exact mapping") from error
        # msgspec writes NaN and infinities as null, so a null is looked at twice. A brace and a
        # dollar beyond the wrappers that we wrote ourselves is a document's own key.
        if b"null" in encoded or encoded.count(b'{"$') != self._wrapped:
            encoded = self._encoder.encode(exact(document))
        return Raw(encoded)

    def _enc_hook(self, value: Any) -> Any:
        written = self._hook(value)
        if isinstance(written, dict):
            self._wrapped += 1
        return written


def exact(value: Any, path: tuple[str, ...] = ()) -> Any:
    """`value` with its non-finite doubles wrapped; for what a hook returns beside a wrapper too.

    Raises AmbiguousDocumentError if it mimics a wrapper; `path` is where it stands.
    """
    if isinstance(value, float):
        return value if isfinite(value) else _non_finite(value)
    if isinstance(value, Mapping) and not isinstance(value, str):
        first = next(iter(value), "")
        if first in _WRAPPER_KEYS:
            raise AmbiguousDocumentError(
                f"the field {'.'.join(path) or '(root)'} holds a plain document with the key "
                f"{first!r}, which Extended JSON reserves"
            )
        return {key: exact(item, (*path, key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [exact(item, (*path, str(index))) for index, item in enumerate(value)]
    return value


def _non_finite(value: float) -> dict[str, str]:
    if isnan(value):
        return {"$numberDouble": "NaN"}
    return {"$numberDouble": "Infinity" if value > 0 else "-Infinity"}


def date(milliseconds: int) -> dict[str, Any]:
    """An instant, in milliseconds since the epoch: ISO text for years 1970 to 9999."""
    if 0 <= milliseconds < 253_402_300_800_000:
        seconds, millis = divmod(milliseconds, 1000)
        moment = datetime.fromtimestamp(seconds, UTC)
        return {"$date": f"{moment:%Y-%m-%dT%H:%M:%S}.{millis:03d}Z"}
    return {"$date": {"$numberLong": str(milliseconds)}}


def long(value: int) -> Any:
    """An int64: wrapped where the plain number would read as an int32."""
    return {"$numberLong": str(value)} if -(1 << 31) <= value < 1 << 31 else int(value)


def binary(value: bytes, subtype: int = 0) -> dict[str, Any]:
    """Bytes, as `$binary`."""
    text = base64.b64encode(value).decode()
    return {"$binary": {"base64": text, "subType": f"{subtype:02x}"}}


def python_hook(value: Any) -> Any:
    """The mapping of Python's own types: datetime, Decimal, bytes, UUID."""
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise TypeError("a datetime without a time zone names no instant")
        if value.microsecond % 1000:
            moment = value.astimezone(UTC)
            return {"$date": f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond:06d}Z"}
        return date(round(value.timestamp() * 1000))
    if isinstance(value, Decimal):
        return {"$numberDecimal": str(value)}
    if isinstance(value, bytes | bytearray | memoryview):
        return binary(bytes(value))
    if isinstance(value, UUID):
        return binary(value.bytes, 4)
    raise TypeError(f"a {type(value).__name__} has no mapping to a document")


def encode(document: Mapping[str, Any]) -> Raw:
    """Encode a document of Python's own types. For a hot path keep a `DocumentEncoder`."""
    return DocumentEncoder(python_hook).encode(document)


def relaxed(encoded: bytes) -> bytes:
    """Relaxed Extended JSON, as the seed's protocol sends it: int64 as plain numbers.

    Quotes inside a JSON string are escaped, so the pattern occurs only where we wrote it. A date
    outside 1970 to 9999 keeps its wrapped milliseconds, as the specification says.
    """
    if b"$numberLong" not in encoded:
        return encoded
    return _LONG.sub(rb"\1", encoded)
