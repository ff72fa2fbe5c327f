"""Changes of a captured collection, as a source with images tells them."""

from collections.abc import Mapping

from penstock.event import ChangeEvent, ClusterTime, Json, Operation, SystemEvent, event_id
from penstock.extjson import encode

Document = Mapping[str, object]
NOW = 1_700_000_000


def told(
    position: int,
    after: Document | Json | None,
    before: Document | Json | None = None,
    *,
    key: Document | Json | None = None,
    source: str = "shop",
    database: str = "db",
    collection: str = "orders",
    operation: Operation | None = None,
    as_of_event: bool = True,
    unchanged: tuple[str, ...] = (),
    snapshot: bool = False,
    ordinal: int = 0,
) -> ChangeEvent:
    """The change that made `after` of `before`; the key is `_id` unless it is given."""
    found = after if after is not None else before
    if key is None:
        assert isinstance(found, Mapping)
        key = {"_id": found["_id"]}
    if operation is None:
        if after is None:
            operation = Operation.DELETE
        else:
            operation = Operation.INSERT if before is None else Operation.REPLACE
    return ChangeEvent(
        event_id=event_id(source, str(position), ordinal),
        source=source,
        database=database,
        tenant=database,
        collection=collection,
        cluster_time=ClusterTime(NOW + position),
        timestamp=(NOW + position) * 1000 + 789,
        position=str(position),
        document_id="key",
        key=_json(key),
        operation=operation,
        full_document=None if after is None else _json(after),
        full_document_before_change=None if before is None else _json(before),
        full_document_as_of_event=as_of_event and after is not None,
        unchanged=unchanged,
        snapshot=snapshot,
    )


def said(
    position: int,
    operation: str,
    *,
    source: str = "shop",
    database: str = "",
    collection: str = "",
    **facts: object,
) -> SystemEvent:
    """What Penstock says of a source, or of one collection."""
    return SystemEvent(
        event_id=event_id(source, f"said {position}", 0),
        source=source,
        database=database,
        tenant=database or source,
        collection=collection,
        cluster_time=ClusterTime(NOW + position),
        timestamp=(NOW + position) * 1000,
        position=str(position),
        operation=operation,
        description=encode({"source": source, **facts}),
    )


def _json(document: Document | Json) -> Json:
    return encode(document) if isinstance(document, Mapping) else document
