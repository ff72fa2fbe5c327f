"""Capture subscriptions as protobuf: requests as the objects that the core reads, and what it says
as messages. Pure.

A capture's bytes are the same for every reader that asks for as much of it and may see as much, but
for the ids of its requests; documents are the bytes that were encoded at capture.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from penstock._generated.penstock.v1 import captures_pb2 as pb
from penstock._generated.penstock.v1.penstock_pb2 import Event
from penstock.errors import GapError, PenstockError, RenamedError, RequestError, TrimmedError
from penstock.event import Kind, Operation
from penstock.serve.captures.shared import SharedCaptures
from penstock.subscribe.captures import (
    Boundary,
    Captured,
    Confirmed,
    Finished,
    Maintained,
    Output,
)
from penstock.subscribe.captures.envelopes import Envelope
from penstock.subscribe.captures.requests import CRITERIA_MAX, VALUES_MAX
from penstock.wire.layout import tag, varint

KEY_TEXT_MAX: Final = 1_024
"""Characters of one key of a request, as JSON: deeper nesting than anybody's key has."""
MESSAGE_BYTES: Final = 1 << 20
"""Of one message; a larger capture is a message of its own. Clients refuse 4 MiB by default."""

_AREAS: Final = {
    Kind.DATA: pb.AREA_DATA,
    Kind.SCHEMA: pb.AREA_SCHEMA,
    Kind.SYSTEM: pb.AREA_SYSTEM,
    Kind.GAP: pb.AREA_SYSTEM,
}
_OUTPUTS: Final = tag(pb.CaptureMessage.OUTPUTS_FIELD_NUMBER, 2)
_CAPTURE: Final = tag(pb.CaptureOutput.CAPTURE_FIELD_NUMBER, 2)
_ID: Final = tag(pb.Capture.REQUEST_IDS_FIELD_NUMBER, 2)


# --- what clients ask ----------------------------------------------------------------------------


def request_object(asked: pb.CaptureRequest) -> dict[str, Any]:
    """The request as the object that `parse_request` reads, which says what is wrong with it.

    Raises RequestError for a key that is no JSON. No more is taken from a list than is enough to
    see that it is too long.
    """
    given: dict[str, Any] = {
        "criteria": [_criterion(one) for one in asked.criteria[: CRITERIA_MAX + 1]],
        "content": _word(pb.CaptureContent, asked.content),
        "beforeImages": asked.before_images,
        "completeAfter": asked.complete_after,
    }
    if asked.id:
        given["id"] = asked.id
    if asked.HasField("since"):
        given["since"] = _since(asked.since)
    return given


def _criterion(asked: pb.CaptureCriterion) -> dict[str, Any]:
    site = asked.site
    named: dict[str, Any] = {
        "catalog": list(site.catalog[: VALUES_MAX + 1]),
        "entityType": list(site.entity_type[: VALUES_MAX + 1]),
        "entityPrimaryKey": [_key(one) for one in site.entity_primary_key[: VALUES_MAX + 1]],
        "operation": list(site.operation[: VALUES_MAX + 1]),
        "containerType": [
            _word(pb.CaptureContainer, one) for one in site.container_type[: VALUES_MAX + 1]
        ],
        "fields": list(site.fields[: VALUES_MAX + 1]),
    }
    said = {name: values for name, values in named.items() if values}
    return {"area": _word(pb.CaptureArea, asked.area), "site": said or None}


def _word(kind: Any, number: int) -> str:
    """The word of an enum's value; of a number that has none, the number."""
    if number not in kind.values():
        return str(number)
    name: str = kind.Name(number)
    return name.partition("_")[2].lower()


def _key(given: str) -> object:
    if len(given) <= KEY_TEXT_MAX:
        try:
            return msgspec.json.decode(given)
        except (msgspec.MsgspecError, RecursionError):
            pass
    raise RequestError(
        f"entity_primary_key must be JSON of at most {KEY_TEXT_MAX} characters. Nothing was sent, "
        f"and other requests go on."
    )


def _since(asked: pb.CaptureSince) -> object:
    which = asked.WhichOneof("since")
    if which is None:
        return None
    if which == "version":
        return {"version": asked.version.version, "index": asked.version.index}
    if which == "beginning":
        return "beginning" if asked.beginning else None
    return {_SINCE.get(which, which): getattr(asked, which)}


_SINCE: Final = {"commit": "transactionId", "transaction": "transactionId"}


# --- what they get -------------------------------------------------------------------------------


def output_message(
    output: Output, shared: SharedCaptures, envelope: Envelope | None = None
) -> bytes:
    """An output as the bytes of a `CaptureOutput`; captures and edges in an envelope, if there is
    one."""
    if isinstance(output, Captured) and envelope is not None:
        said = pb.CaptureOutput(capture=_enveloped(output, shared, envelope))
    elif isinstance(output, Captured):
        body = shared.without_ids(output, shared_message)
        ids = [one.encode() for one in output.ids]
        capture = b"".join(_ID + varint(len(one)) + one for one in ids) + body
        return _CAPTURE + varint(len(capture)) + capture
    elif isinstance(output, Boundary):
        edge = _boundary(output)
        edge.enveloped = b"" if envelope is None else envelope.boundary(output)
        said = pb.CaptureOutput(boundary=edge)
    elif isinstance(output, Confirmed):
        said = pb.CaptureOutput(
            confirmed=pb.CaptureConfirmed(
                request_id=output.id,
                progress=str(output.after),
                version=output.version,
                waiting=output.waiting,
            )
        )
    elif isinstance(output, Maintained):
        said = pb.CaptureOutput(maintenance=_maintenance(output))
    else:
        said = pb.CaptureOutput(finished=_finished(output))
    return said.SerializeToString()


def refused(reference: str, request_id: str, error: PenstockError) -> bytes:
    """That a command was not carried out."""
    return pb.CaptureOutput(
        refused=pb.CaptureRefused(
            reference=reference, request_id=request_id, error=error_message(error)
        )
    ).SerializeToString()


def pong(reference: str, at: int) -> bytes:
    """The answer to a ping."""
    return pb.CaptureOutput(pong=pb.CapturePong(reference=reference, at=at)).SerializeToString()


def messages(outputs: Sequence[bytes], *, bytes_max: int = MESSAGE_BYTES) -> list[bytes]:
    """Outputs as `CaptureMessage`s of about `bytes_max`, in order."""
    found: list[bytes] = []
    parts: list[bytes] = []
    size = 0
    for output in outputs:
        if size and size + len(output) > bytes_max:
            found.append(b"".join(parts))
            parts, size = [], 0
        parts += (_OUTPUTS, varint(len(output)), output)
        size += len(output)
    if parts:
        found.append(b"".join(parts))
    return found


def _enveloped(output: Captured, shared: SharedCaptures, envelope: Envelope) -> pb.Capture:
    """A capture with what says where it stands, and all of it in an envelope."""
    block, i = output.block, output.i
    own = block.cell(i, "event_id").decode()
    return pb.Capture(
        request_ids=output.ids,
        progress=output.progress,
        version=block.commit(i),
        index=block.ordinal(i) + 1,
        id=own if output.mask is None else Event.FromString(output.message).id,
        enveloped=shared.enveloped(output, envelope),
    )


def shared_message(captured: Captured) -> bytes:
    """What is the same of a capture for every request: a `Capture` without their ids."""
    event = Event.FromString(captured.message)
    kind = Kind(event.kind)
    said = pb.Capture(
        progress=event.progress,
        version=event.commit,
        index=event.ordinal + 1,
        id=event.id,
        timestamp=event.timestamp,
        transaction=event.transaction,
        area=_AREAS[kind],
        operation=event.operation_type,
        source=event.source,
        catalog=f"{event.source}.{event.database}" if event.database else event.source,
        tenant=event.tenant,
        entity_type=event.collection,
        schema_version=event.schema_version,
    )
    if kind is Kind.DATA:
        removes = event.operation_type == Operation.DELETE
        said.mutation = pb.MUTATION_REMOVE if removes else pb.MUTATION_UPSERT
        said.entity_primary_key = event.key
        said.document_id = event.document_id
        said.snapshot = event.snapshot
    if captured.body:
        said.body.SetInParent()
        _tell_body(said.body, event, kind, before=captured.before)
    return said.SerializeToString()


def _tell_body(body: pb.CaptureBody, event: Event, kind: Kind, *, before: bool) -> None:
    if kind is not Kind.DATA:
        body.description = event.full_document or b"{}"
        return
    body.full_document = event.full_document
    body.update_description = event.update_description
    body.disambiguated_paths = event.disambiguated_paths
    body.unchanged.extend(event.unchanged)
    if before:
        body.full_document_before_change = event.full_document_before_change


def error_message(error: PenstockError) -> pb.CaptureError:
    """An error by its code, with the markers that it brings."""
    return pb.CaptureError(
        code=error.code,
        message=str(error),
        oldest=error.oldest if isinstance(error, TrimmedError) else "",
        after=error.after if isinstance(error, GapError | RenamedError) else "",
    )


def _boundary(output: Boundary) -> pb.CaptureBoundary:
    return pb.CaptureBoundary(
        request_ids=output.ids,
        begins=output.begins,
        progress=output.progress,
        version=output.version,
        index=0 if output.begins else output.rows + 1,
        source=output.source,
        transaction=output.transaction or "",
        timestamp=output.timestamp,
        mutation_count=output.rows,
        digest=output.digest,
        matched=output.matched,
    )


def _maintenance(output: Maintained) -> pb.CaptureMaintenance:
    return pb.CaptureMaintenance(
        progress="" if output.progress is None else str(output.progress),
        positions={name: str(place) for name, place in output.positions.items()},
        at=output.at,
        interval_ms=output.interval_ms,
    )


def _finished(output: Finished) -> pb.CaptureFinished:
    error = None if output.error is None else error_message(output.error)
    return pb.CaptureFinished(request_id=output.id, error=error)
