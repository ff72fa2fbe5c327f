"""What a subscription hands out, and says."""

from typing import Any

import msgspec
from msgspec import Struct

from penstock._generated.penstock.v1 import captures_pb2 as pb
from penstock.extjson import relaxed


class Confirmed(Struct, frozen=True, kw_only=True):
    """A request was taken; all it gets lies behind `progress`."""

    id: str
    progress: str
    version: int
    """The newest commit then."""
    waiting: bool
    """What it begins with is ahead of the log."""


class Body(Struct, frozen=True, kw_only=True):
    """What there is now, as it was encoded at capture: type-preserving Extended JSON."""

    full_document: bytes = b""
    update_description: bytes = b""
    disambiguated_paths: bytes = b""
    full_document_before_change: bytes = b""
    unchanged: tuple[str, ...] = ()
    """Fields that the document lacks because they were not sent again."""
    description: bytes = b""
    """What an event says that is no change of data."""

    @property
    def document(self) -> dict[str, Any] | None:
        """The document as plain values, as `Change.document`; None where there is none."""
        return _plain(self.full_document or self.description)

    @property
    def document_before(self) -> dict[str, Any] | None:
        """The document before the change, if it was asked for and is kept."""
        return _plain(self.full_document_before_change)

    @property
    def update(self) -> dict[str, Any] | None:
        """{updatedFields, removedFields, truncatedArrays} of an update."""
        return _plain(self.update_description)

    def __repr__(self) -> str:
        # Documents are not for logs.
        return "Body(...)"


class Capture(Struct, frozen=True, kw_only=True):
    """A change, once for all the requests that it matches."""

    ids: tuple[str, ...]
    progress: str
    version: int
    """The commit, from 1."""
    index: int
    """The place inside, from 1, whatever was filtered out."""
    event_id: str
    """The same however often the change is captured."""
    timestamp: int
    """Unix milliseconds, source time."""
    transaction: str
    area: str
    """data, schema or system."""
    operation: str
    mutation: str
    """upsert or remove; none of what is no change of data."""
    source: str
    catalog: str
    tenant: str
    entity_type: str
    key_json: bytes
    """The key as an ordered object of Extended JSON."""
    document_id: str
    schema_version: int
    snapshot: bool
    """Copied, not seen as a change."""
    body: Body | None
    """None where no request asks for it."""
    enveloped: bytes = b""
    """In an envelope: all of it, as JSON; then only `ids`, `progress`, `version`, `index` and
    `event_id` say something here."""

    @property
    def key(self) -> dict[str, Any] | None:
        """The key as plain values; None of what is no change of data."""
        return _plain(self.key_json)

    def __repr__(self) -> str:
        return f"<Capture {self.version}.{self.index} {self.operation} {self.entity_type!r}>"


class Boundary(Struct, frozen=True, kw_only=True):
    """A transaction begins, or ends."""

    ids: tuple[str, ...]
    begins: bool
    progress: str
    version: int
    index: int
    source: str
    transaction: str
    timestamp: int
    mutation_count: int
    """Entries, whatever the requests match."""
    digest: int | None
    """None where not all of it may be seen."""
    matched: dict[str, int]
    """How many of them each of `ids` matches."""
    enveloped: bytes = b""
    """In an envelope: all of it, as JSON."""


Event = Capture | Boundary


def confirmed_of(said: pb.CaptureConfirmed) -> Confirmed:
    """A confirmation, from its message."""
    return Confirmed(
        id=said.request_id, progress=said.progress, version=said.version, waiting=said.waiting
    )


def capture_of(said: pb.Capture, ids: tuple[str, ...]) -> Capture:
    """A capture for these of its requests, from its message."""
    return Capture(
        ids=ids,
        progress=said.progress,
        version=said.version,
        index=said.index,
        event_id=said.id,
        timestamp=said.timestamp,
        transaction=said.transaction,
        area=_word(pb.CaptureArea, said.area),
        operation=said.operation,
        mutation=_word(pb.CaptureMutation, said.mutation),
        source=said.source,
        catalog=said.catalog,
        tenant=said.tenant,
        entity_type=said.entity_type,
        key_json=said.entity_primary_key,
        document_id=said.document_id,
        schema_version=said.schema_version,
        snapshot=said.snapshot,
        body=_body(said.body) if said.HasField("body") else None,
        enveloped=said.enveloped,
    )


def boundary_of(said: pb.CaptureBoundary, ids: tuple[str, ...]) -> Boundary:
    """An edge of a transaction for these of its requests, from its message."""
    return Boundary(
        ids=ids,
        begins=said.begins,
        progress=said.progress,
        version=said.version,
        index=said.index,
        source=said.source,
        transaction=said.transaction,
        timestamp=said.timestamp,
        mutation_count=said.mutation_count,
        digest=said.digest if said.HasField("digest") else None,
        matched={name: said.matched[name] for name in ids},
        enveloped=said.enveloped,
    )


def _body(said: pb.CaptureBody) -> Body:
    return Body(
        full_document=said.full_document,
        update_description=said.update_description,
        disambiguated_paths=said.disambiguated_paths,
        full_document_before_change=said.full_document_before_change,
        unchanged=tuple(said.unchanged),
        description=said.description,
    )


def _word(kind: Any, number: int) -> str:
    if number not in kind.values():
        return str(number)  # of a service that is newer
    name: str = kind.Name(number)
    return name.partition("_")[2].lower()


def _plain(encoded: bytes) -> dict[str, Any] | None:
    if not encoded:
        return None
    found: dict[str, Any] = msgspec.json.decode(relaxed(encoded))
    return found
