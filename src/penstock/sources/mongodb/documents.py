"""BSON to stored documents, exactly: nothing is decoded that does not encode to the same bytes.

`bson`'s C decoder is fast but not faithful: of a key that occurs twice it keeps the last, symbols
become strings, undefined becomes null, and the order of a DBRef's fields is lost. So each decoded
document is encoded again and compared with what came. Where they differ, a slow reader of our own
decodes the same bytes faithfully, or raises InexactError with the path of what has no mapping.

Equal values in another encoding are not told apart: NaN is one value whatever its payload, a
Decimal128 is its canonical number, and the keys of an array are its order.
"""

import datetime as dt
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import bson
import msgspec
from bson import (
    Binary,
    Code,
    DatetimeMS,
    DBRef,
    Decimal128,
    Int64,
    MaxKey,
    MinKey,
    ObjectId,
    Regex,
    Timestamp,
)
from bson.codec_options import CodecOptions, DatetimeConversion, TypeDecoder, TypeRegistry
from bson.errors import BSONError
from msgspec import Raw, Struct, field

from penstock.extjson import DocumentEncoder, binary, date, exact, long
from penstock.sources.mongodb.envelope import DOCUMENTS_MAX, opened
from penstock.sources.mongodb.faithful import (
    DBPointer,
    Expression,
    Symbol,
    Undefined,
    read_document,
)


class _Bytes(TypeDecoder):
    """Binary of subtype 0 as Binary too: the JSON encoder would take plain bytes for its own."""

    @property
    def bson_type(self) -> Any:
        return bytes

    def transform_bson(self, value: Any) -> Binary:
        return Binary(value)


OPTIONS: CodecOptions[dict[str, Any]] = CodecOptions(
    datetime_conversion=DatetimeConversion.DATETIME_MS, type_registry=TypeRegistry([_Bytes()])
)
"""Dates as milliseconds, so that years before 1 and after 9999 are dates too."""


def decode(raw: bytes) -> dict[str, Any]:
    """The document of BSON bytes. Raises InexactError for what has no exact mapping."""
    try:
        document = bson.decode(raw, OPTIONS)  # pyright: ignore[reportUnknownMemberType]
        # Nested, because the encoder moves the `_id` of an outermost document to its front.
        if bson.encode({"": document}, codec_options=OPTIONS)[6:-1] == raw:
            return document
    except (BSONError, ValueError):
        pass  # the exact reader says which value it is, and where
    return read_document(raw)


TOGETHER_MAX = 64
"""So many events are decoded with one call of the decoder: about half a millisecond of work."""


def decode_together(raws: Sequence[bytes]) -> Sequence[dict[str, Any] | None]:
    """The events of raw ones, in order: for up to TOGETHER_MAX of them.

    All None if something in one of them is not decoded exactly: then each needs a look of its own,
    by `decode`. Where the envelope can be read without decoding, it holds what `opened` says.
    """
    envelopes = [opened(raw) for raw in raws]
    pieces: list[bytes] = []
    for raw, envelope in zip(raws, envelopes, strict=True):
        if envelope is None:
            pieces.append(raw)
        else:
            pieces += envelope.documents.values()
    documents = _exactly(pieces)
    if documents is None:
        return [None] * len(raws)
    following = iter(documents)
    events: list[dict[str, Any] | None] = []
    for envelope in envelopes:
        if envelope is None:
            events.append(next(following))
        else:
            facts = envelope.facts
            for field in envelope.documents:
                facts[field] = next(following)
            events.append(facts)
    return events


_HEADS = tuple(b"\x03%d\0" % number for number in range(TOGETHER_MAX * DOCUMENTS_MAX))


def _exactly(raws: Sequence[bytes]) -> list[dict[str, Any]] | None:
    """The documents of BSON bytes, in order; None if one of them is not decoded exactly."""
    body = b"".join([part for pair in zip(_HEADS, raws, strict=False) for part in pair])
    # One array of them all, in a document: its keys are not looked at, and nothing is moved.
    size = len(body) + 5
    whole = b"%b\x04\0%b%b\0\0" % (_length(size + 7), _length(size), body)
    try:
        decoded = bson.decode(whole, OPTIONS)  # pyright: ignore[reportUnknownMemberType]
        if bson.encode(decoded, codec_options=OPTIONS) == whole:
            documents: list[dict[str, Any]] = decoded[""]
            return documents
    except (BSONError, ValueError):
        pass  # looked at one by one, the culprit is found
    return None


_length = struct.Struct("<i").pack


class BsonEncoder:
    """Writes decoded BSON as stored documents. Not thread-safe.

    `decode` yields no type that JSON would flatten, and text keys only. So two things alone need a
    closer look: a null, for that is what JSON makes of NaN and the infinities, and an opening brace
    and dollar that no wrapper of ours wrote, for that is a document's own key.
    """

    def __init__(self) -> None:
        self._wrapped = 0
        self._encode = msgspec.json.Encoder(enc_hook=self._hook).encode
        self._careful = DocumentEncoder(hook)

    def encode(self, document: Mapping[str, Any], of: bytes | None = None) -> Raw:
        """The document's bytes, keys in their order.

        `of` is BSON that holds all of the document, if there is such: most of it has no byte that
        a dollar or the exponent of such a double is made of, which is found out at once.

        Raises AmbiguousDocumentError or TypeError for what has no exact mapping.
        """
        self._wrapped = 0
        encoded = self._encode(document)
        if (of is None or b"$" in of) and encoded.count(b'{"$') != self._wrapped:
            return self._careful.encode(document)
        if (of is None or b"\x7f" in of or b"\xff" in of) and b"null" in encoded:
            return self._careful.encode(document)
        return Raw(encoded)

    def _hook(self, value: object) -> Any:
        self._wrapped += 1
        kind = type(value)
        if kind is ObjectId:
            return _ObjectIdJson(value.binary.hex())  # type: ignore[attr-defined]
        if kind is DatetimeMS:
            return _date_json(int(value))  # type: ignore[call-overload]
        written = hook(value)
        if kind is Int64 and type(written) is int:
            self._wrapped -= 1
        return written


class _ObjectIdJson(Struct, gc=False):
    """An ObjectId's wrapper: what the JSON library writes quickest of what a hook may return."""

    text: str = field(name="$oid")


class _DateJson(Struct, gc=False):
    """A date's wrapper."""

    text: str = field(name="$date")


_DAY, _MINUTE = 86_400_000, 60_000
_MINUTES = tuple(f"{minute // 60:02d}:{minute % 60:02d}:" for minute in range(1440))


def _date_json(milliseconds: int) -> Any:
    """A date's wrapper: what `penstock.extjson.date` says, faster."""
    if not 0 <= milliseconds < 253_402_300_800_000:
        return date(milliseconds)
    day, rest = divmod(milliseconds, _DAY)
    minute, rest = divmod(rest, _MINUTE)
    seconds, rest = divmod(rest, 1000)
    return _DateJson(f"{_day(day)}{_MINUTES[minute]}{seconds:02d}.{rest:03d}Z")


@lru_cache(maxsize=4096)
def _day(day: int) -> str:
    return f"{(dt.date(1970, 1, 1) + dt.timedelta(day)).isoformat()}T"


def hook(value: object) -> Any:
    """The Extended JSON wrapper of a BSON value. Source: the Extended JSON (v2) specification."""
    write = _WRITERS.get(type(value))
    if write is None:
        raise TypeError(f"a {type(value).__name__} has no mapping to a document")
    return write(value)


def _object_id(value: ObjectId) -> Any:
    return {"$oid": str(value)}


def _date(value: DatetimeMS) -> Any:
    return date(int(value))


def _decimal(value: Decimal128) -> Any:
    return {"$numberDecimal": str(value)}


def _timestamp(value: Timestamp) -> Any:
    return {"$timestamp": {"t": value.time, "i": value.inc}}


def _binary(value: Binary) -> Any:
    return binary(bytes(value), value.subtype)


def _regex(value: Regex[Any]) -> Any:
    pattern = value.pattern
    text = pattern.decode() if isinstance(pattern, bytes) else pattern
    options = "".join(letter for flag, letter in _REGEX_FLAGS if value.flags & flag)
    return {"$regularExpression": {"pattern": text, "options": options}}


def _expression(value: Expression) -> Any:
    return {"$regularExpression": {"pattern": value.pattern, "options": value.options}}


def _code(value: Code) -> Any:
    if value.scope is None:
        return {"$code": str(value)}
    return {"$code": str(value), "$scope": exact(value.scope)}


def _reference(value: DBRef) -> Any:
    return exact(value.as_doc())


def _pointer(value: DBPointer) -> Any:
    return {"$dbPointer": {"$ref": value.namespace, "$id": value.id}}


def _symbol(value: Symbol) -> Any:
    return {"$symbol": value.text}


def _constant(wrapper: dict[str, Any]) -> Callable[[Any], Any]:
    def write(_: Any) -> Any:
        return wrapper

    return write


_REGEX_FLAGS = ((2, "i"), (4, "l"), (8, "m"), (16, "s"), (32, "u"), (64, "x"))
_WRITERS: dict[type, Callable[[Any], Any]] = {
    ObjectId: _object_id,
    Int64: long,
    DatetimeMS: _date,
    Decimal128: _decimal,
    Binary: _binary,
    Timestamp: _timestamp,
    Regex: _regex,
    Expression: _expression,
    Code: _code,
    DBRef: _reference,
    MinKey: _constant({"$minKey": 1}),
    MaxKey: _constant({"$maxKey": 1}),
    Symbol: _symbol,
    Undefined: _constant({"$undefined": True}),
    DBPointer: _pointer,
}
