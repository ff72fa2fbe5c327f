"""A raw change event of MongoDB to an event of ours. Pure.

`timestamp` is the event's `wallTime`, which the server keeps in its oplog (6.0 and later), else the
second of its `clusterTime`: the same on every capture (P26). `event_id` is made of the event's own
resume token, which no other event has, not even of the same transaction and document (P2).
Source: MongoDB manual, Change Events.
"""

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any
from uuid import UUID

import bson
from bson import Binary, Int64, ObjectId
from bson.binary import UUID_SUBTYPE
from bson.errors import BSONError
from bson.raw_bson import RawBSONDocument
from msgspec import Raw, Struct

from penstock.capture.tenant import (
    Tenant,
    TenantRule,
    TenantUnknownError,
    control_tenant,
    of_two_tenants,
)
from penstock.errors import UndecodableError
from penstock.event import (
    AnyEvent,
    ChangeEvent,
    ClusterTime,
    Operation,
    SchemaEvent,
    event_id,
)
from penstock.flatten import flatten, respelled, spelled
from penstock.sources.mongodb.diffs import described
from penstock.sources.mongodb.documents import OPTIONS, BsonEncoder, decode
from penstock.sources.mongodb.faithful import InexactError
from penstock.sources.mongodb.positions import Token
from penstock.sources.mongodb.retyped import told

SCHEMA_OPERATIONS = frozenset(
    {
        "create",
        "createIndexes",
        "drop",
        "dropDatabase",
        "dropIndexes",
        "invalidate",
        "modify",
        "rename",
    }
)
_OPERATIONS = {operation.value: operation for operation in Operation}
_SAID_ELSEWHERE = frozenset(
    {"_id", "operationType", "clusterTime", "wallTime", "lsid", "txnNumber", "splitEvent"}
)


class Change(Struct, frozen=True):
    """One event, with what tells where its transaction ends."""

    event: AnyEvent
    token: Token
    bytes: int
    """About what it holds in memory."""
    also: tuple[AnyEvent, ...] = ()
    """What is said right after the event, in its commit."""

    @property
    def invalidates(self) -> bool:
        """Whether the stream ends with it."""
        return isinstance(self.event, SchemaEvent) and self.event.operation == "invalidate"


class Normaliser:
    """Turns raw events of one stream into ours, in order. Joins the fragments of a split event."""

    def __init__(
        self,
        source: str,
        *,
        database: str | None,
        tenant: Tenant,
        post_images: bool,
        flat: bool = False,
    ) -> None:
        self._source = source
        self._database = database or ""
        self._control_tenant = tenant
        self._tenant = tenant if isinstance(tenant, str) else None
        self._rule = tenant if isinstance(tenant, TenantRule) else None
        self._post_images = post_images
        self._encoder = BsonEncoder()
        self._image = self._flattened if flat else self._encoder.encode
        self._flat = flat
        self._fragments: dict[str, Any] = {}
        self._parts: list[bytes] = []
        self._damage: InexactError | None = None

    @property
    def mid_event(self) -> bool:
        """Whether the next raw event is a fragment of the one before."""
        return bool(self._fragments)

    def change(self, raw: bytes, document: dict[str, Any] | None = None) -> Change | None:
        """The change of one raw event; None for a fragment that is not the event's last.

        `document` is the event as decoded already, exactly.

        Raises UndecodableError, naming the type, for what cannot be represented exactly.
        """
        if document is None:
            try:
                document = decode(raw)
            except InexactError as error:
                document = self._damaged(raw, error)
        size = len(raw)
        of: bytes | None = raw
        if "splitEvent" in document or self._fragments:
            document, size = self._joined(document, raw)
            if not document:
                return None
            of = None
        token = Token.of(document["_id"])
        operation = document["operationType"]
        try:
            event: AnyEvent
            also: list[ChangeEvent] = []
            if operation in _OPERATIONS:
                event, *also = self._changes(_OPERATIONS[operation], document, token, of)
            elif operation in SCHEMA_OPERATIONS:
                event = self._schema(operation, document, token)
            else:
                raise TypeError(f"the operation {operation!r}")
        except (TypeError, ValueError, KeyError) as error:
            namespace = ".".join(document.get("ns", {}).values())
            raise UndecodableError(
                source=self._source,
                what=f"{operation} of {namespace or 'the database'}: {error}",
                position=token.data,
            ) from error
        return Change(event, token, size, tuple(also))

    def parts(self, raw: bytes) -> list[bytes]:
        """The raw parts of the event that `raw` ended; mostly itself alone."""
        return self._parts if self._parts and self._parts[-1] is raw else [raw]

    def _joined(self, document: dict[str, Any], raw: bytes) -> tuple[dict[str, Any], int]:
        """The whole event once its last fragment is here, else an empty one."""
        split = document.pop("splitEvent", {"fragment": 0, "of": 0})
        if not self._fragments:
            self._parts = []
        # The parts share no field but the token; the last part's token is the event's.
        self._fragments |= document
        self._parts.append(raw)
        if split["fragment"] < split["of"]:
            return {}, 0
        whole, self._fragments = self._fragments, {}
        damage, self._damage = self._damage, None
        if damage is not None:
            raise self._undecodable(str(damage), raw) from damage
        return whole, sum(map(len, self._parts))

    def _damaged(self, raw: bytes, damage: InexactError) -> dict[str, Any]:
        """What joins a part that cannot be decoded to the others: the event fails as a whole.

        Raises UndecodableError for an event that is no part.
        """
        try:
            shallow = RawBSONDocument(raw)
            found = {name: decode(shallow[name].raw) for name in ("_id", "splitEvent")}
        except (BSONError, KeyError, ValueError):
            raise self._undecodable(str(damage), raw) from damage
        self._damage = self._damage or damage
        return found

    def _changes(
        self, operation: Operation, document: dict[str, Any], token: Token, of: bytes | None
    ) -> list[ChangeEvent]:
        """What the event says, in order: one change, or two where it gives an _id another type, or
        the document another tenant."""
        if operation is not Operation.UPDATE and operation is not Operation.REPLACE:
            return [self._data(operation, document, token, of)]
        raw = document.pop("rawUpdateDescription", None)
        if raw is not None:
            document["updateDescription"] = described(raw)
        parts = told(operation, document, images=self._post_images, encoder=self._encoder)
        before = document.get("fullDocumentBeforeChange")
        if self._rule is not None and len(parts) == 1:
            if before is None:
                self._require_told(parts[0].document)
            event = self._data(parts[0].operation, parts[0].document, token, of)
            left = self._rule.left(event.tenant, before, text=tenant_text)
            if left is None:
                return [event]
            new_id = event_id(self._source, token.data, 1)
            return [*of_two_tenants(event, left=left, new_id=new_id)]
        return [
            self._data(part.operation, part.document, token, of, number)
            for number, part in enumerate(parts)
        ]

    def _data(
        self,
        operation: Operation,
        document: dict[str, Any],
        token: Token,
        of: bytes | None,
        ordinal: int = 0,
    ) -> ChangeEvent:
        """`of` is the event's BSON, where it came in one piece; `ordinal` its place among what
        one event is told as."""
        encode = self._encoder.encode
        namespace = document["ns"]
        database: str = namespace["db"]
        full = document.get("fullDocument")
        before = document.get("fullDocumentBeforeChange")
        update = document.get("updateDescription")
        paths = update.pop("disambiguatedPaths", None) if update else None
        tenant = self._tenant or (
            database if self._rule is None else self._told(document, operation, paths or {})
        )
        if self._flat and update:
            update, paths = respelled(update, paths), _respelled_names(paths) or None
        time, timestamp = times(document)
        number = document.get("txnNumber")
        document_id, key_json = self._identity(document["documentKey"])
        return ChangeEvent(
            event_id=event_id(self._source, token.data, ordinal),
            source=self._source,
            database=database,
            tenant=tenant,
            collection=namespace["coll"],
            cluster_time=time,
            timestamp=timestamp,
            position=token.data,
            transaction=None if number is None else transaction_name(document),
            document_id=document_id,
            key=key_json,
            operation=operation,
            # A look-up that finds nothing (P25) says nothing: the delete follows.
            full_document=None if full is None else self._image(full, of),
            full_document_before_change=None if before is None else self._image(before, of),
            update_description=None if update is None else encode(update, of),
            disambiguated_paths=None if paths is None else encode(paths),
            txn_number=None if number is None else int(number),
            full_document_as_of_event=full is not None
            and (document["operationType"] != "update" or self._post_images),
        )

    def _schema(self, operation: str, document: dict[str, Any], token: Token) -> SchemaEvent:
        namespace = document.get("ns", {})
        database: str = namespace.get("db", self._database)
        time, timestamp = times(document)
        facts = {name: value for name, value in document.items() if name not in _SAID_ELSEWHERE}
        return SchemaEvent(
            event_id=event_id(self._source, token.data, 0),
            source=self._source,
            database=database,
            tenant=control_tenant(self._control_tenant, database=database, source=self._source),
            collection=namespace.get("coll", ""),
            cluster_time=time,
            timestamp=timestamp,
            position=token.data,
            transaction=transaction_name(document) if "txnNumber" in document else None,
            operation=operation,
            description=self._encoder.encode(facts),
        )

    def copied(
        self, raw: bytes, *, namespace: tuple[str, str], copy: str, at: ClusterTime
    ) -> ChangeEvent:
        """A snapshot's row: a document that was copied, told apart from other copies by `copy`."""
        database, collection = namespace
        where = f"snapshot:{copy}:{database}.{collection}"
        raw = bytes(raw)  # the driver gives a view of a large one
        try:
            document = decode(raw)
            document_id, key = self._identity({"_id": document["_id"]})
            where = f"{where}:{bytes(key).decode()}"
            full = self._image(document, raw)
            tenant = self._tenant or (
                database
                if self._rule is None
                else self._rule.of(document["_id"], after=document, text=tenant_text)
            )
        except (TypeError, ValueError, KeyError) as error:
            raise UndecodableError(
                source=self._source,
                what=f"a document of {database}.{collection}: {error}",
                position=where,
            ) from error
        return ChangeEvent(
            event_id=event_id(self._source, where, 0),
            source=self._source,
            database=database,
            tenant=tenant,
            collection=collection,
            cluster_time=at,
            timestamp=at.t * 1000,
            position=where,
            document_id=document_id,
            key=key,
            operation=Operation.INSERT,
            full_document=full,
            snapshot=True,
            full_document_as_of_event=True,
        )

    def gone(
        self, key: bytes, *, namespace: tuple[str, str], where: str, at: ClusterTime, tenant: str
    ) -> ChangeEvent:
        """The delete of a document that was looked for by its BSON `key` and is not there.

        `tenant` is whose it is where its key does not tell. Raises UndecodableError.
        """
        database, collection = namespace
        try:
            decoded = decode(key)
            document_id, key_json = self._identity(decoded)
        except (TypeError, ValueError) as error:
            raise UndecodableError(
                source=self._source,
                what=f"a key of {database}.{collection}: {error}",
                position=where,
            ) from error
        if self._rule is not None:
            # By its document, which is gone, it would not be told.
            with suppress(TenantUnknownError):
                tenant = self._rule.of(decoded.get("_id"), text=tenant_text)
        else:
            tenant = self._tenant or database
        return ChangeEvent(
            event_id=event_id(self._source, f"gone:{where}", 0),
            source=self._source,
            database=database,
            tenant=tenant,
            collection=collection,
            cluster_time=at,
            timestamp=at.t * 1000,
            position=where,
            document_id=document_id,
            key=key_json,
            operation=Operation.DELETE,
        )

    def _identity(self, key: Mapping[str, Any]) -> tuple[str, Raw]:
        """The key as text and as JSON.

        As text: an ObjectId in hex, text and integers as they are, all else as JSON; a key without
        `_id` as 32 hex digits of the SHA-256 of its BSON. Raises TypeError for the key of a sharded
        collection: a copied row would have another one.
        """
        if len(key) > 1:
            raise TypeError("a sharded collection's key, which is not supported yet")
        if "_id" not in key:
            whole = bson.encode(key, codec_options=OPTIONS)
            return hashlib.sha256(whole).hexdigest()[:32], self._encoder.encode(key)
        value: object = key["_id"]
        kind = type(value)
        if isinstance(value, ObjectId):
            text = value.binary.hex()
            return text, Raw(f'{{"_id":{{"$oid":"{text}"}}}}'.encode())
        text = str(value) if kind is str or kind is int or kind is Int64 else self._value(value)
        return text, self._encoder.encode(key)

    def _told(
        self, document: Mapping[str, Any], operation: Operation, paths: Mapping[str, Any]
    ) -> str:
        """The tenant by the rule, where `paths` says which fields have names with dots.

        Raises TenantUnknownError.
        """
        assert self._rule is not None
        update: Mapping[str, Any] | None = document.get("updateDescription")
        updated, removed = touched(update or {}, paths)
        # Nobody knows what an update changed that does not say it.
        is_known = update is not None or operation is not Operation.UPDATE
        return self._rule.of(
            document["documentKey"].get("_id"),
            after=document.get("fullDocument"),
            updated=updated,
            removed=removed,
            before=document.get("fullDocumentBeforeChange") if is_known else None,
            text=tenant_text,
        )

    def _require_told(self, document: Mapping[str, Any]) -> None:
        """Have no update whose document may be another tenant's from here on, if it does not say
        whose it was. Raises TenantUnknownError."""
        assert self._rule is not None
        update: Mapping[str, Any] | None = document.get("updateDescription")
        changed: list[str] | None = None
        if update is not None:
            updated, removed = touched(update, update.get("disambiguatedPaths") or {})
            changed = [*updated, *removed]
        self._rule.refuse_move(
            changed,
            "the server has no image of before. Let it store them "
            "(changeStreamPreAndPostImages), and keep them for longer than capture is away",
        )

    def _flattened(self, document: Mapping[str, Any], _: bytes | None) -> Raw:
        return self._encoder.encode(flatten(document))

    def encode(self, document: Mapping[str, Any]) -> Raw:
        """A part of an event as it is stored."""
        return self._encoder.encode(document)

    def _value(self, value: Any) -> str:
        """The JSON of a single value."""
        return bytes(self._encoder.encode({"": value}))[4:-1].decode()

    def _undecodable(self, what: str, raw: bytes) -> UndecodableError:
        return UndecodableError(source=self._source, what=what, position=raw_token(raw))


def raw_token(raw: bytes) -> str:
    """The token's text in an event that cannot be decoded as a whole."""
    raw = bytes(raw)  # the driver gives a large document out as a view of its reply
    at = raw.find(b"\x02_data\0")
    start = at + 11
    end = raw.find(b"\0", start)
    return raw[start:end].decode("ascii", "replace") if at >= 0 else "(no token)"


def times(document: Mapping[str, Any]) -> tuple[ClusterTime, int]:
    """An event's cluster time, and its timestamp in Unix milliseconds."""
    time = document["clusterTime"]
    if not isinstance(time, ClusterTime):
        time = ClusterTime(time.time, time.inc)
    wall = document.get("wallTime")
    return time, time.t * 1000 if wall is None else int(wall)


def tenant_text(value: object) -> str | None:
    """A tenant's id that is an ObjectId or a UUID, as people write it."""
    if isinstance(value, ObjectId):
        return value.binary.hex()
    if isinstance(value, Binary) and value.subtype == UUID_SUBTYPE and len(value) == 16:
        return str(UUID(bytes=bytes(value)))
    return None


def touched(
    update: Mapping[str, Any], paths: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """What an updateDescription sets, by path, and the paths that it removes: those that are what
    stands between their dots, by its disambiguated `paths`."""
    updated: Mapping[str, Any] = update.get("updatedFields") or {}
    removed: Sequence[str] = update.get("removedFields") or ()
    return (
        {path: updated[path] for path in updated if _reads_plainly(path, paths)},
        [path for path in removed if _reads_plainly(path, paths)],
    )


def _reads_plainly(path: str, paths: Mapping[str, Any]) -> bool:
    """Whether the steps of an update's path are what stands between its dots."""
    return path not in paths or path.split(".") == [str(step) for step in paths[path]]


def _respelled_names(paths: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """`disambiguatedPaths` under the spelling that the update's paths have."""
    if paths is None:
        return None
    return {spelled([str(part) for part in path]): path for path in paths.values()}


def transaction_name(document: Mapping[str, Any]) -> str:
    """The name of the transaction of an event that has a txnNumber."""
    return f"{document['lsid']['id'].hex()}:{document['txnNumber']}"
