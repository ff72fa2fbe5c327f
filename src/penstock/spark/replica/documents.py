"""Documents as MongoDB keeps them: BSON, exactly, or a reason why not. Pure; workers run it.

A document of a MongoDB source is the same BSON again. Of other sources a row is a document whose
`_id` is its key: the value, if the key has one field, else an object of all of them.
"""

# The stubs of pyarrow leave element types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import re
from collections.abc import Sequence
from typing import Any, Final, cast

import bson
import msgspec
import pyarrow as pa
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.errors import BSONError
from bson.regex import Regex
from bson.timestamp import Timestamp

from penstock.audit.config import DOCUMENT_BYTES_MAX
from penstock.audit.values import value_of
from penstock.spark.table.arrow import arrow
from penstock.spark.table.decode import Cells
from penstock.spark.table.kinds import Kind

ID: Final = "id"
"""The cell with `{"_id": ...}` of every row that has a key, as BSON."""
DOCUMENT: Final = "document"
"""The cell with the document, as BSON, with its `_id`."""
REASON: Final = "reason"
"""The cell that says why there is no document."""

CODEC: Final[CodecOptions[dict[str, Any]]] = CodecOptions(
    datetime_conversion=DatetimeConversion.DATETIME_MS
)

_EMPTY: Final = Timestamp(0, 0)
_UNKNOWN: Final = re.compile(r'"\$(symbol|dbPointer|undefined)":')
_INSTANT: Final = re.compile(r'"\$date":"[^"]*\.\d{4,}Z?"')
_DECIMAL: Final = re.compile(r'"\$numberDecimal":"([^"]*)"')
_LONG: Final = re.compile(r"[:\[,]-?\d{19}")
"""A text without it says no integer beyond 64 bits."""
_INT64: Final = range(-(1 << 63), 1 << 63)


class InexactBsonError(ValueError):
    """A value that BSON, or MongoDB, does not keep; the message says which and not its text."""


def decode_bson(documents: Sequence[str | None], keys: Sequence[str | None]) -> Cells:
    """Documents and keys as cells of BSON."""
    ids: list[bytes | None] = []
    made: list[bytes | None] = []
    reasons: list[str | None] = []
    for text, key in zip(documents, keys, strict=True):
        own = document = reason = None
        if key is not None:
            try:
                own = bson.encode({"_id": id_of(key)})
                document = None if text is None else encoded(text, key)
            except (InexactBsonError, BSONError, OverflowError) as error:
                known = isinstance(error, InexactBsonError)
                reason = str(error) if known else f"BSON does not hold it ({type(error).__name__})"
        ids.append(own)
        made.append(document)
        reasons.append(reason)
    return {
        ID: {Kind.BINARY: arrow.array(ids, pa.binary())},
        DOCUMENT: {Kind.BINARY: arrow.array(made, pa.binary())},
        REASON: {Kind.STRING: arrow.array(reasons, pa.string())},
    }


def id_of(key: str) -> Any:
    """The `_id` of a row with this key. Raises InexactBsonError."""
    fields = value_of(exact(key))
    own = next(iter(fields.values())) if len(fields) == 1 else fields
    if isinstance(own, list | Regex):
        raise InexactBsonError("its key is an array or a regular expression")
    return own


def encoded(text: str, key: str) -> bytes:
    """A document, with its `_id`. Raises InexactBsonError, BSONError, OverflowError."""
    return with_id(value_of(exact(text)), key)


def with_id(document: dict[str, Any], key: str) -> bytes:
    """A document's BSON, with the `_id` that its key is. Raises as `encoded`."""
    own = id_of(key)
    if "_id" in document and not (
        _is_same(document["_id"], own) and "_id" in msgspec.json.decode(key)
    ):
        raise InexactBsonError("it has a field _id that is not its key")
    for name, value in document.items():
        if name.startswith("$"):
            raise InexactBsonError("the name of a field begins with $")
        if value == _EMPTY and name != "_id":
            raise InexactBsonError("a timestamp is 0, for which MongoDB writes the time")
    data = bson.encode({"_id": own, **document})
    if len(data) > DOCUMENT_BYTES_MAX:
        raise InexactBsonError("it is larger than 16 MiB as BSON")
    return data


def _is_same(one: Any, other: Any) -> bool:
    """Whether two values are equal, or NaN in the same places, which equals nothing."""
    return one == other or bson.encode({"_id": one}) == bson.encode({"_id": other})


def exact(text: str) -> Any:
    """What `text`, Extended JSON, says, if BSON holds all of it. Raises InexactBsonError."""
    if "$" in text:
        if found := _UNKNOWN.search(text):
            raise InexactBsonError(f"a value has MongoDB's old type {found[1]}")
        if _INSTANT.search(text):
            raise InexactBsonError("an instant is between two milliseconds")
        for number in _DECIMAL.findall(text):
            if isinstance(value_of({"$numberDecimal": number}), str):
                raise InexactBsonError("a decimal has more than 34 digits")
    said = msgspec.json.decode(text)
    if _LONG.search(text) and _is_beyond(said):
        raise InexactBsonError("an integer is beyond 64 bits with a sign")
    return said


def _is_beyond(said: Any) -> bool:
    """Whether an integer in it is none of 64 bits with a sign; digits in a text are none."""
    if isinstance(said, dict):
        return any(map(_is_beyond, cast("dict[str, Any]", said).values()))
    if isinstance(said, list):
        return any(map(_is_beyond, cast("Sequence[Any]", said)))
    return isinstance(said, int) and said not in _INT64
