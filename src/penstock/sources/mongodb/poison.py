"""What can be told of a raw event that cannot be decoded as a whole. Pure."""

from typing import Any

from bson import Binary
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.errors import BSONError
from bson.raw_bson import RawBSONDocument
from msgspec import Raw

from penstock.capture.deadletter import COLLECTION, Poison
from penstock.capture.tenant import Tenant, TenantRule, TenantUnknownError, control_tenant
from penstock.errors import UndecodableError
from penstock.event import AnyEvent, ClusterTime
from penstock.sources.mongodb.documents import BsonEncoder, decode
from penstock.sources.mongodb.normalise import Change, tenant_text, times, transaction_name
from penstock.sources.mongodb.positions import Token
from penstock.sources.mongodb.snapshot import key_of

_SHALLOW: CodecOptions[RawBSONDocument] = CodecOptions(
    document_class=RawBSONDocument, datetime_conversion=DatetimeConversion.DATETIME_MS
)
"""Nested documents stay bytes: a fault inside of one does not hide the others."""


class DeadLetters:
    """Turns what cannot be decoded into letters, for one source."""

    def __init__(self, source: str, *, database: str | None, tenant: Tenant) -> None:
        self._source = source
        self._database = database or ""
        self._tenant = tenant
        self._encoder = BsonEncoder()

    def change(self, parts: list[bytes], error: UndecodableError, *, sent: bool = True) -> Change:
        """The letter and the gap of an event that came as `parts`; not `sent`: only its envelope.

        Raises `error` where not even its place can be told: then nothing can go on after it.
        """
        # The driver gives a large document out as a view of its reply.
        parts = [bytes(part) for part in parts]
        try:
            top: dict[str, Any] = {}
            for part in parts:
                top |= _shallow(part)
            token = Token.of(decode(top["_id"].raw))
            time, timestamp = times(top)
            transaction = None
            if "txnNumber" in top:
                lsid = decode(top["lsid"].raw)
                transaction = transaction_name({"lsid": lsid, "txnNumber": top["txnNumber"]})
        except (BSONError, KeyError, ValueError, TypeError, AttributeError):
            raise error from None
        namespace = _decoded(top.get("ns")) or {}
        database = str(namespace.get("db", self._database))
        key_raw = _raw(top.get("documentKey"))
        uuid = top.get("collectionUUID")
        poison = Poison(
            source=self._source,
            database=database,
            collection=str(namespace.get("coll", "")),
            tenant=self._tenant_of(top, database),
            operation=str(top.get("operationType", "")),
            position=token.data,
            cluster_time=time,
            timestamp=timestamp,
            transaction=transaction,
            reason=error.what,
            raw=tuple(parts) if sent else (),
            key=self._key(key_raw),
            key_raw=key_raw,
            generation=uuid.hex() if isinstance(uuid, Binary) else "",
        )
        letter, gap = poison.events()
        return Change(letter, token, sum(map(len, parts)), (gap,))

    def reserved(self, event: AnyEvent) -> UndecodableError:
        """Why an event of a collection that has our name is not taken."""
        return UndecodableError(
            source=self._source,
            what=f"{event.operation} of {event.database}.{event.collection}: the name is reserved",
            position=event.position,
        )

    def row(
        self, raw: bytes, error: UndecodableError, *, namespace: tuple[str, str], at: ClusterTime
    ) -> Poison:
        """A document that was to be copied. Raises `error` where it has no key to tell it by."""
        database, collection = namespace
        try:
            key_raw = key_of(raw)
        except (ValueError, IndexError):
            raise error from None
        return Poison(
            source=self._source,
            database=database,
            collection=collection,
            tenant=control_tenant(self._tenant, database=database, source=self._source),
            operation="insert",
            position=f"{error.position}:{key_raw.hex()}",
            cluster_time=at,
            timestamp=at.t * 1000,
            transaction=None,
            reason=error.what,
            raw=(bytes(raw),),
            is_row=True,
            key=self._key(key_raw),
            key_raw=key_raw,
        )

    def _key(self, raw: bytes | None) -> Raw | None:
        """The key as it would be stored; None where it cannot be decoded, or is no key of ours."""
        if raw is None:
            return None
        try:
            return self._encoder.encode(decode(raw))
        except (TypeError, ValueError):
            return None

    def _tenant_of(self, top: dict[str, Any], database: str) -> str:
        """Whose the event is where that can be told, else that of an event about no document."""
        if isinstance(self._tenant, TenantRule):
            documents = {
                name: _decoded(top.get(name))
                for name in ("documentKey", "fullDocument", "fullDocumentBeforeChange")
            }
            try:
                return self._tenant.of(
                    (documents["documentKey"] or {}).get("_id"),
                    after=documents["fullDocument"],
                    before=documents["fullDocumentBeforeChange"],
                    text=tenant_text,
                )
            except TenantUnknownError:
                pass  # the letter must be somebody's, and the gap everybody's who reads the source
        return control_tenant(self._tenant, database=database, source=self._source)


def is_reserved(collection: str) -> bool:
    """Whether a captured collection would be taken for ours."""
    return collection == COLLECTION


def _shallow(raw: bytes) -> dict[str, Any]:
    """The fields of a document; those that are documents as raw bytes. Raises BSONError."""
    return dict(RawBSONDocument(raw, _SHALLOW).items())


def _raw(value: object) -> bytes | None:
    return bytes(value.raw) if isinstance(value, RawBSONDocument) else None


def _decoded(value: object) -> dict[str, Any] | None:
    raw = _raw(value)
    try:
        return None if raw is None else decode(raw)
    except ValueError:
        return None
