"""Captures as JSON, in our own envelope. Pure.

Documents are spliced in as they were encoded at capture; a capture's bytes are the same for every
reader that asks for as much of it and may see as much, but for the ids of its requests, which come
first. What a reader may not see is left out as `wire.shown` says.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec

from penstock._generated.penstock.v1 import penstock_pb2 as pb
from penstock.event import Kind, Operation
from penstock.subscribe.captures.outputs import Boundary, Captured
from penstock.subscribe.captures.requests import Area
from penstock.wire import Block, Stream, decode_message
from penstock.wire.layout import FLAG_SNAPSHOT, OPERATIONS

_AREAS: Final = {
    Kind.DATA: Area.DATA,
    Kind.SCHEMA: Area.SCHEMA,
    Kind.SYSTEM: Area.SYSTEM,
    Kind.GAP: Area.SYSTEM,
}
_MUTATIONS: Final = [b""] + [
    b'"operation":"%b","mutation":"%b"'
    % (operation.encode(), b"REMOVE" if operation == Operation.DELETE else b"UPSERT")
    for operation in OPERATIONS[1:]
]


def capture_json(captured: Captured) -> bytes:
    """The whole capture as an object: with the ids of its requests, then `shared_json`."""
    return with_ids(captured.ids, shared_json(captured))


def with_ids(ids: Sequence[str], shared: bytes) -> bytes:
    """`shared`, an object, for these requests."""
    return b'{"requestIds":' + _ids(tuple(ids)) + b"," + shared[1:]


def shared_json(captured: Captured) -> bytes:
    """What is the same for every request: the header, and the body if it is asked for."""
    block, i = captured.block, captured.i
    if block.kind(i) is not Kind.DATA:
        return _control(captured)
    index = block.index[i]
    cell = _cells(captured)
    parts = [
        _place(block, i, cell("id")),
        b'"area":"data"',
        _MUTATIONS[int(index["operation"])],
        _stream(block.stream(i)),
        b'"entityPrimaryKey":' + (cell("key") or b"{}"),
        b'"documentId":' + msgspec.json.encode(cell("document_id").decode()),
    ]
    if index["schema_version"]:
        parts.append(b'"schemaVersion":%d' % index["schema_version"])
    if index["flags"] & FLAG_SNAPSHOT:
        parts.append(b'"snapshot":true')
    if captured.body:
        parts.append(b'"body":{%b}' % b",".join(_body(captured, cell)))
    return b"{" + b",".join(parts) + b"}"


def boundary_json(boundary: Boundary) -> bytes:
    """The beginning of a transaction, or its end, as an object."""
    said: dict[str, Any] = {
        "requestIds": boundary.ids,
        "progress": boundary.progress,
        "version": boundary.version,
        "index": 0 if boundary.begins else boundary.rows + 1,
        "area": Area.INFRASTRUCTURE,
        "operation": "begin" if boundary.begins else "commit",
        "mutation": "TRANSACTION",
        "source": boundary.source,
        "timestamp": boundary.timestamp,
        "transaction": boundary.transaction,
        "mutationCount": boundary.rows,
        "matched": boundary.matched,
    }
    if boundary.digest is not None:
        said["digest"] = f"{boundary.digest:016x}"
    return msgspec.json.encode({name: one for name, one in said.items() if one is not None})


def _place(block: Block, i: int, shown_id: bytes) -> bytes:
    """Where an entry stands, by which id its reader knows it, when it was committed, and in which
    transaction."""
    transaction = block.cell(i, "transaction")
    named = b',"transaction":' + msgspec.json.encode(transaction.decode()) if transaction else b""
    return b'"progress":"%b","version":%d,"index":%d,"id":"%b","timestamp":%d%b' % (
        block.progress(i).encode(),
        block.commit(i),
        block.ordinal(i) + 1,
        shown_id,
        block.timestamp(i),
        named,
    )


Cells = Callable[[str], bytes]
"""The cells of one entry, by name."""


def _cells(captured: Captured) -> Cells:
    """The cells that its reader sees."""
    block, i = captured.block, captured.i
    if captured.mask is None:
        return lambda name: block.cell(i, "event_id" if name == "id" else name)
    event = pb.Event.FromString(captured.message)

    def cell(name: str) -> bytes:
        found: bytes | str = getattr(event, name)
        return found.encode() if isinstance(found, str) else found

    return cell


def _body(captured: Captured, cell: Cells) -> list[bytes]:
    """What there is now; of what was, only the image that was asked for (E12)."""
    parts = [key + found for name, key in _BODY if (found := cell(name))]
    image = cell("full_document_before_change") if captured.before else b""
    if image:
        parts.append(b'"fullDocumentBeforeChange":' + image)
    if captured.block.index[captured.i]["unchanged"]:
        unchanged = decode_message(captured.message).event.unchanged  # type: ignore[union-attr]
        if unchanged:
            parts.append(b'"unchanged":' + msgspec.json.encode(unchanged))
    return parts


_BODY: Final = (
    ("full_document", b'"fullDocument":'),
    ("update_description", b'"updateDescription":'),
    ("disambiguated_paths", b'"disambiguatedPaths":'),
)


def _control(captured: Captured) -> bytes:
    block, i = captured.block, captured.i
    event: Any = decode_message(captured.message).event
    parts = [
        _place(block, i, block.cell(i, "event_id")),
        b'"area":"%b"' % _AREAS[block.kind(i)].encode(),
        b'"operation":' + msgspec.json.encode(event.operation),
        _stream(block.stream(i)),
    ]
    if event.schema_version:
        parts.append(b'"schemaVersion":%d' % event.schema_version)
    if captured.body:
        parts.append(b'"body":' + (bytes(event.description) or b"{}"))
    return b"{" + b",".join(parts) + b"}"


@lru_cache(maxsize=4096)
def _stream(stream: Stream) -> bytes:
    said = {
        "source": stream.source,
        "catalog": f"{stream.source}.{stream.database}" if stream.database else stream.source,
        "tenant": stream.tenant,
        "entityType": stream.collection,
    }
    return msgspec.json.encode({name: one for name, one in said.items() if one})[1:-1]


@lru_cache(maxsize=4096)
def _ids(ids: tuple[str, ...]) -> bytes:
    return msgspec.json.encode(ids)
