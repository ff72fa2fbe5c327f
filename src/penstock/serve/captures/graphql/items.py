"""What a subscription sends, as types of GraphQL: one interface, and what implements it."""

from collections.abc import Mapping
from typing import Any, cast

import msgspec
import strawberry
from msgspec import Raw, Struct

from penstock.serve.captures.graphql.scalars import Json, Long
from penstock.subscribe.captures import Boundary, Confirmed, Maintained


@strawberry.interface
class Item:
    """Whatever a subscription sends."""

    request_ids: list[str] = strawberry.field(description="The request that it is for.")
    progress: str | None = strawberry.field(
        description="The marker to save once this is done with, and to begin behind later. Null "
        "only of maintenance, while the request waits for its start."
    )


@strawberry.type
class Confirmation(Item):
    """The request was taken: whatever follows `progress` comes after this."""

    version: Long = strawberry.field(description="The newest commit when it was taken.")
    waiting: bool = strawberry.field(description="What it begins with is ahead of the log.")


@strawberry.type
class Maintenance(Item):
    """All that the request matches up to `progress` was sent: it is safe to save."""

    timestamp: Long = strawberry.field(description="Unix milliseconds of the server's clock.")
    interval_ms: Long = strawberry.field(description="Until the next one.")


@strawberry.interface
class Capture(Item):
    """Something that happened, in its place."""

    version: Long = strawberry.field(description="The commit; dense, from 1.")
    index: Long = strawberry.field(description="The place in it, from 1; 0 is its beginning.")
    area: str = strawberry.field(description="system, schema, data or infrastructure.")
    operation: str
    mutation: str | None = strawberry.field(description="UPSERT, REMOVE or TRANSACTION.")
    catalog: str | None = strawberry.field(description="source.database, or the source.")
    source: str
    entity_type: str | None = strawberry.field(description="The collection or table.")
    entity_primary_key: Json | None = strawberry.field(description="An object, types kept.")
    timestamp: Long = strawberry.field(description="Unix milliseconds of the source's clock.")
    transaction: str | None = strawberry.field(description="The source's own name of it.")


@strawberry.type
class Transaction(Capture):
    """Where a transaction begins (index 0), or ends (index mutationCount + 1)."""

    mutation_count: Long = strawberry.field(description="Entries that it has.")
    matched: Long = strawberry.field(description="Of them, how many the request matches.")
    digest: str | None = strawberry.field(description="Of all its entries, where all may be seen.")


@strawberry.interface
class Change(Capture):
    """A change: its `body` is in the types that implement this."""

    id: str = strawberry.field(description="The event's, however often it is captured.")
    tenant: str | None
    schema_version: Long | None


@strawberry.interface
class DataChange(Change):
    """A change of one document."""

    document_id: str = strawberry.field(description="The key as text, for people.")
    snapshot: bool = strawberry.field(description="Copied from what was there, not a live change.")


@strawberry.type
class UntypedChange(DataChange):
    """A change of a document, of any shape."""

    body: Json | None = strawberry.field(
        description="An object: fullDocument, updateDescription, fullDocumentBeforeChange, "
        "disambiguatedPaths, unchanged; as far as there is one."
    )


@strawberry.type
class RenamedTo:
    """What a collection is called now."""

    db: str
    coll: str


@strawberry.type
class SchemaBody:
    """What is said of a change of shape."""

    to: RenamedTo | None = strawberry.field(description="Of a rename.")
    rest: Json = strawberry.field(description="All of it, as the source told it.")


@strawberry.type
class SchemaChange(Change):
    """A change of the shape of a collection or catalog."""

    body: SchemaBody | None


@strawberry.type
class UntypedSchemaChange(Change):
    """A change of the shape of a collection or catalog."""

    body: Json | None


@strawberry.type
class SystemBody:
    """What Penstock says of a source."""

    reason: str | None
    position: str | None
    rest: Json = strawberry.field(description="All that is said.")


@strawberry.type
class SystemChange(Change):
    """Something about a source or catalog: started, stopped, copied, lost; a gap."""

    body: SystemBody | None


@strawberry.type
class UntypedSystemChange(Change):
    """Something about a source or catalog: started, stopped, copied, lost; a gap."""

    body: Json | None


@strawberry.type
class UpdateDescription:
    """What an update did, as the source told it."""

    updated_fields: Json | None
    removed_fields: Json | None
    truncated_arrays: Json | None


# --- what is made of what a session says ----------------------------------------------------------


_ABSENT = Raw(b"")  # the decoder takes a Raw that may be None for None


class Told(Struct, frozen=True, rename="camel"):
    """A capture as all transports tell it, but for the ids (`rendering.shared_json`)."""

    progress: str
    version: int
    index: int
    id: str
    timestamp: int
    area: str
    operation: str
    source: str
    mutation: str | None = None
    catalog: str | None = None
    tenant: str | None = None
    entity_type: str | None = None
    entity_primary_key: Raw = _ABSENT
    document_id: str = ""
    transaction: str | None = None
    schema_version: int | None = None
    snapshot: bool = False
    body: Raw = _ABSENT


_TOLD = msgspec.json.Decoder(Told)
_FIELDS = msgspec.json.Decoder(dict[str, Raw])


def or_none(raw: Raw) -> Json | None:
    """What is there."""
    return cast("Json", raw) if bytes(raw) else None


def told_of(shared: bytes) -> Told:
    """A capture as it was rendered for everybody."""
    return _TOLD.decode(shared)


def heading(told: Told, ids: tuple[str, ...]) -> dict[str, Any]:
    """The fields of a `Change`."""
    return {
        "request_ids": list(ids),
        "progress": told.progress,
        "version": told.version,
        "index": told.index,
        "area": told.area,
        "operation": told.operation,
        "mutation": told.mutation,
        "catalog": told.catalog,
        "source": told.source,
        "entity_type": told.entity_type,
        "entity_primary_key": or_none(told.entity_primary_key),
        "timestamp": told.timestamp,
        "transaction": told.transaction,
        "id": told.id,
        "tenant": told.tenant,
        "schema_version": told.schema_version,
    }


def change_of(told: Told, ids: tuple[str, ...], *, typed: bool) -> Change:
    """A change of data of no known shape, or of something else than data."""
    head = heading(told, ids)
    body = or_none(told.body)
    if told.area == "data":
        return UntypedChange(
            **head, document_id=told.document_id, snapshot=told.snapshot, body=body
        )
    if told.area == "schema":
        if not typed:
            return UntypedSchemaChange(**head, body=body)
        return SchemaChange(**head, body=_schema_body(told.body))
    if not typed:
        return UntypedSystemChange(**head, body=body)
    return SystemChange(**head, body=_system_body(told.body))


def _schema_body(body: Raw) -> SchemaBody | None:
    if not bytes(body):
        return None
    said = _said(body)
    to: RenamedTo | None = None
    match said.get("to"):
        case {"db": str(database), "coll": str(collection)}:
            to = RenamedTo(db=database, coll=collection)
        case _:
            pass
    return SchemaBody(to=to, rest=cast("Json", body))


def _system_body(body: Raw) -> SystemBody | None:
    if not bytes(body):
        return None
    said = _said(body)
    reason, position = said.get("reason"), said.get("position")
    return SystemBody(
        reason=reason if isinstance(reason, str) else None,
        position=position if isinstance(position, str) else None,
        rest=cast("Json", body),
    )


def _said(body: Raw) -> Mapping[str, Any]:
    said = msgspec.json.decode(body)
    return cast("Mapping[str, Any]", said) if isinstance(said, dict) else {}


def update_of(description: Raw | None) -> UpdateDescription | None:
    """An update's description."""
    if description is None:
        return None
    said = cast("dict[str, Json]", _FIELDS.decode(description))
    return UpdateDescription(
        updated_fields=said.get("updatedFields"),
        removed_fields=said.get("removedFields"),
        truncated_arrays=said.get("truncatedArrays"),
    )


def confirmation_of(confirmed: Confirmed) -> Confirmation:
    return Confirmation(
        request_ids=[confirmed.id],
        progress=str(confirmed.after),
        version=Long(confirmed.version),
        waiting=confirmed.waiting,
    )


def maintenance_of(maintained: Maintained, name: str) -> Maintenance:
    return Maintenance(
        request_ids=[name],
        progress=None if maintained.progress is None else str(maintained.progress),
        timestamp=Long(maintained.at),
        interval_ms=Long(maintained.interval_ms),
    )


def transaction_of(boundary: Boundary) -> Transaction:
    return Transaction(
        request_ids=list(boundary.ids),
        progress=boundary.progress,
        version=Long(boundary.version),
        index=Long(0 if boundary.begins else boundary.rows + 1),
        area="infrastructure",
        operation="begin" if boundary.begins else "commit",
        mutation="TRANSACTION",
        catalog=None,
        source=boundary.source,
        entity_type=None,
        entity_primary_key=None,
        timestamp=Long(boundary.timestamp),
        transaction=boundary.transaction,
        mutation_count=Long(boundary.rows),
        matched=Long(sum(boundary.matched.values())),
        digest=None if boundary.digest is None else f"{boundary.digest:016x}",
    )
