"""What an event says around its documents, read without decoding it. Pure.

The server writes the fields of a change event in an order of its own, so that most events can be
told apart by one pattern, byte for byte. What does not look exactly like that (a change of shape, a
part of a split event, a field of a later server) is no envelope to us, and is decoded as a whole.
Source: MongoDB manual, Change Events; the order is that of replies of 6.0.
"""

import re
import struct
from functools import lru_cache
from typing import Any, NamedTuple

from bson import ObjectId

from penstock.event import ClusterTime
from penstock.sources.mongodb.faithful import InexactError, read_document

_HEAD = re.compile(
    rb".{4}"
    rb"(?:\x12txnNumber\0(.{8})\x03lsid\0.{4}\x05id\0\x10\0\0\0\x04(.{16})\x05uid\0\x20\0\0\0\0.{32}\0)?"
    rb"\x03_id\0.{4}\x02_data\0.{4}([0-9A-F]+)\0\0"
    rb"\x02operationType\0.{4}(insert|update|replace|delete)\0"
    rb"\x11clusterTime\0(.{8})"
    rb"(?:\x05collectionUUID\0\x10\0\0\0\x04.{16})?"
    rb"(?:\x09wallTime\0(.{8}))?",
    re.DOTALL,
)
_TAIL = re.compile(
    rb"\x03ns\0(.{4}\x02db\0.{4}[^\0]+\0\x02coll\0.{4}[^\0]+\0\0)"
    rb"\x03documentKey\0(?:\x16\0\0\0\x07_id\0(.{12})\0)?",
    re.DOTALL,
)
_FULL, _KEY = b"\x03fullDocument\0", b"\x03documentKey\0"
_OTHERS = {
    b"updateDescription": "updateDescription",
    b"rawUpdateDescription": "rawUpdateDescription",
    b"fullDocumentBeforeChange": "fullDocumentBeforeChange",
}
DOCUMENTS_MAX = 4
"""How many documents an event has at most."""
_match_head, _match_tail = _HEAD.match, _TAIL.match
_time = struct.Struct("<II").unpack
_length = struct.Struct("<i").unpack_from


class Envelope(NamedTuple):
    """An event without its documents."""

    facts: dict[str, Any]
    """The fields around them, as `decode` gives them, but `clusterTime` a ClusterTime."""
    documents: dict[str, bytes]
    """The BSON of each of its documents, by the field that holds it."""


def opened(raw: bytes) -> Envelope | None:
    """The envelope of a raw event; None if it must be decoded as a whole."""
    head = _match_head(raw)
    try:
        return head and _read(raw, head)
    except (IndexError, ValueError, struct.error):
        return None  # cut short


def _read(raw: bytes, head: re.Match[bytes]) -> Envelope | None:
    number, session, token, operation, stamp, wall = head.groups()
    documents: dict[str, bytes] = {}
    at = head.end()
    if raw.startswith(_FULL, at):
        begin = at + 14
        at = begin + _length(raw, begin)[0]
        documents["fullDocument"] = raw[begin:at]
    tail = _match_tail(raw, at)
    namespace = tail and _namespace(tail[1])
    if tail is None or namespace is None:
        return None
    at = tail.end()
    increment, seconds = _time(stamp)
    facts: dict[str, Any] = {
        "_id": {"_data": token.decode()},
        "operationType": operation.decode(),
        "clusterTime": ClusterTime(seconds, increment),
        "ns": namespace,
    }
    if wall is not None:
        facts["wallTime"] = int.from_bytes(wall, "little", signed=True)
    if number is not None:
        facts["txnNumber"] = int.from_bytes(number, "little", signed=True)
        facts["lsid"] = {"id": session}
    object_id = tail[2]
    if object_id is not None:
        facts["documentKey"] = {"_id": ObjectId(object_id)}
    else:
        begin, at = at, at + _length(raw, at)[0]
        documents["documentKey"] = raw[begin:at]
    while raw[at] == 0x03:
        begin = raw.index(0, at) + 1
        field = _OTHERS.get(raw[at + 1 : begin - 1])
        if field is None or field in documents:
            return None
        at = begin + _length(raw, begin)[0]
        documents[field] = raw[begin:at]
    return Envelope(facts, documents) if raw[at:] == b"\0" else None


@lru_cache(maxsize=4096)
def _namespace(raw: bytes) -> dict[str, str] | None:
    """The name of a collection, which all of its events share; None if it has no exact form."""
    try:
        return read_document(raw)
    except InexactError:
        return None
