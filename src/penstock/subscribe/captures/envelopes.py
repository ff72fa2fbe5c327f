"""Captures in the envelopes that existing consumers read: CloudEvents 1.0 and Debezium's. Pure.

`penstock` is our own (see `rendering`). `cloudevents` is the JSON format of CloudEvents 1.0.2, with
our body as its data. `debezium` is a change event as the relational connectors of Debezium 2 write
it without a schema, plain values in place of wrapped ones; `debezium-mongodb` is that of its
MongoDB connector, whose documents are text of Extended JSON. Facts: the CloudEvents specification
and its JSON format, and the reference of Debezium's connectors.

What an envelope cannot say is left to the fields of ours that stand beside it: `progress`, and the
ids of the requests.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple, cast

import msgspec

from penstock import __version__
from penstock.errors import RequestError
from penstock.event import ChangeEvent, Operation, SchemaEvent, SystemEvent
from penstock.subscribe.captures.outputs import Boundary, Captured
from penstock.subscribe.captures.rendering import (
    boundary_json,
    shared_json,
    with_ids,
)
from penstock.wire import decode_message

_OPS: Final = {
    Operation.INSERT: "c",
    Operation.UPDATE: "u",
    Operation.REPLACE: "u",
    Operation.DELETE: "d",
}


class Envelope(NamedTuple):
    """How a capture, and the edge of a transaction, are written."""

    shared: Callable[[Captured], bytes]
    """The same for all requests that get it."""
    with_ids: Callable[[Sequence[str], bytes], bytes]
    """`shared`, for these requests."""
    boundary: Callable[[Boundary], bytes]


# --- CloudEvents ------------------------------------------------------------------------------


def cloudevent(captured: Captured) -> bytes:
    """A CloudEvent. Its id is that of the event, so a repeat is known by source and id."""
    said = msgspec.json.decode(shared_json(captured), type=dict[str, msgspec.Raw])
    body = said.pop("body", None)
    head: dict[str, Any] = {name: msgspec.json.decode(one) for name, one in said.items()}
    path = head.get("catalog", head["source"]).replace(".", "/", 1)
    event = {
        "specversion": "1.0",
        "id": head["id"],
        "source": f"/penstock/{path}",
        "type": f"penstock.{head['area']}.{head['operation']}",
        "time": _time(head["timestamp"]),
        "progress": head["progress"],
        "version": str(head["version"]),
        "index": str(head["index"]),
    }
    subject = "/".join(
        str(head[name]) for name in ("entityType", "documentId") if head.get(name) is not None
    )
    if subject:
        event["subject"] = subject
    if "transaction" in head:
        event["transaction"] = head["transaction"]
    if body is None:
        return msgspec.json.encode(event)
    return msgspec.json.encode({**event, "datacontenttype": "application/json", "data": body})


def _cloud_ids(ids: Sequence[str], shared: bytes) -> bytes:
    """An attribute of a CloudEvent is text."""
    return b'{"requestids":' + msgspec.json.encode(" ".join(ids)) + b"," + shared[1:]


def _cloud_boundary(boundary: Boundary) -> bytes:
    word = "begin" if boundary.begins else "commit"
    return msgspec.json.encode(
        {
            "requestids": " ".join(boundary.ids),
            "specversion": "1.0",
            "id": f"{boundary.version}:{word}",
            "source": f"/penstock/{boundary.source}",
            "type": f"penstock.infrastructure.{word}",
            "time": _time(boundary.timestamp),
            "progress": boundary.progress,
            "version": str(boundary.version),
            "datacontenttype": "application/json",
            "data": {"mutationCount": boundary.rows, "matched": boundary.matched},
        }
    )


def _time(milliseconds: int) -> str:
    moment = datetime.fromtimestamp(milliseconds // 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{milliseconds % 1000:03d}Z"


# --- Debezium ---------------------------------------------------------------------------------


def debezium(captured: Captured) -> bytes:
    """A change event as a relational connector has it: documents are objects of plain values."""
    return _debezium(captured, connector="penstock", document=_plain_document)


def debezium_mongodb(captured: Captured) -> bytes:
    """A change event as the MongoDB connector has it: documents are text."""
    return _debezium(captured, connector="mongodb", document=_text_document)


def _debezium(
    captured: Captured, *, connector: str, document: Callable[[msgspec.Raw | None], Any]
) -> bytes:
    entry = decode_message(captured.message)
    event = entry.event
    place = "collection" if connector == "mongodb" else "table"
    source: dict[str, Any] = {
        "version": __version__,
        "connector": connector,
        "name": event.source,
        "ts_ms": event.timestamp,
        "snapshot": "true" if isinstance(event, ChangeEvent) and event.snapshot else "false",
        "db": event.database,
        place: event.collection,
        "sequence": entry.sequence,
        "txId": event.transaction,
    }
    said: dict[str, Any] = {"source": source, "ts_ms": entry.ingested_at}
    if isinstance(event, ChangeEvent):
        copied = event.snapshot and event.operation is Operation.INSERT
        said["op"] = "r" if copied else _OPS[event.operation]
        said["key"] = plain(msgspec.json.decode(event.key)) if event.key else {}
        if captured.body:
            before = event.full_document_before_change if captured.before else None
            said |= {"before": document(before), "after": document(event.full_document)}
            if connector == "mongodb" and event.update_description is not None:
                said["updateDescription"] = _described(event.update_description)
    else:
        said |= _told(event, body=captured.body)
    said["transaction"] = (
        None
        if entry.commit_rows == 1
        else {"id": event.transaction or str(entry.commit), "total_order": entry.ordinal + 1}
    )
    return msgspec.json.encode({**said, "progress": entry.progress, "id": event.event_id})


def _told(event: SchemaEvent | SystemEvent, *, body: bool) -> dict[str, Any]:
    """A schema change, or what is said of a source: no operation on a row."""
    said: dict[str, Any] = {"op": "m", "message": {"prefix": event.operation}}
    if body:
        said["message"]["content"] = event.description
    return said


def _debezium_boundary(boundary: Boundary) -> bytes:
    said = {
        "requestIds": boundary.ids,
        "status": "BEGIN" if boundary.begins else "END",
        "id": boundary.transaction or str(boundary.version),
        "ts_ms": boundary.timestamp,
        "event_count": None if boundary.begins else boundary.rows,
        "matched": boundary.matched,
        "progress": boundary.progress,
    }
    return msgspec.json.encode(said)


def _plain_document(document: msgspec.Raw | None) -> Any:
    return None if document is None else plain(msgspec.json.decode(document))


def _text_document(document: msgspec.Raw | None) -> str | None:
    return None if document is None else bytes(document).decode()


def _described(description: msgspec.Raw) -> dict[str, Any]:
    update = msgspec.json.decode(description, type=dict[str, msgspec.Raw])
    fields = bytes(update.get("updatedFields", msgspec.Raw(b"{}"))).decode()
    return {
        "removedFields": update.get("removedFields"),
        "updatedFields": fields,
        "truncatedArrays": update.get("truncatedArrays"),
    }


def plain(value: Any) -> Any:
    """A value of Extended JSON without its wrapping: numbers as numbers, decimals and ids as text,
    instants as Unix milliseconds, bytes as base64. What has no plain form keeps its wrapping."""
    if isinstance(value, list):
        return [plain(one) for one in cast("list[Any]", value)]  # type: ignore[redundant-cast]
    if not isinstance(value, dict):
        return value
    found = cast("dict[str, Any]", value)
    match found:
        case {"$numberLong": str(text), **rest} if not rest:
            return int(text)
        case {"$numberDecimal": str(text), **rest} if not rest:
            return text
        case {"$oid": str(text), **rest} if not rest:
            return text
        case {"$date": str(text), **rest} if not rest:
            return _milliseconds(text)
        case {"$date": {"$numberLong": str(text)}, **rest} if not rest:
            return int(text)
        case {"$binary": {"base64": str(text), "subType": "00"}, **rest} if not rest:
            return text
        case _:
            return {name: plain(one) for name, one in found.items()}


def _milliseconds(text: str) -> int:
    return (datetime.fromisoformat(text) - _EPOCH) // timedelta(milliseconds=1)


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
PENSTOCK: Final = Envelope(shared_json, with_ids, boundary_json)
ENVELOPES: Final[Mapping[str, Envelope]] = {
    "penstock": PENSTOCK,
    "cloudevents": Envelope(cloudevent, _cloud_ids, _cloud_boundary),
    "debezium": Envelope(debezium, with_ids, _debezium_boundary),
    "debezium-mongodb": Envelope(debezium_mongodb, with_ids, _debezium_boundary),
}


def envelope_of(name: object) -> Envelope:
    """The envelope of that name, or ours if none is said (None). Raises RequestError for others."""
    if name is None:
        return PENSTOCK
    found = ENVELOPES.get(name) if isinstance(name, str) else None
    if found is None:
        said = name[:64] if isinstance(name, str) else "what is no text"
        raise RequestError(
            f"envelope is {said}, which is unknown; there are {', '.join(ENVELOPES)}. Nothing was "
            f"sent."
        )
    return found
