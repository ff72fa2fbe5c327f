"""What can be told of a raw event that cannot be decoded as a whole. Pure."""

from typing import Any, Final, NamedTuple

from bson import Binary, encode
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.errors import BSONError
from bson.raw_bson import RawBSONDocument
from msgspec import Raw, structs

from penstock.capture.deadletter import COLLECTION, Poison
from penstock.capture.tenant import Tenant, TenantRule, TenantUnknownError, control_tenant
from penstock.errors import UndecodableError
from penstock.event import AnyEvent, ClusterTime
from penstock.sources.mongodb.diffs import described
from penstock.sources.mongodb.documents import BsonEncoder, decode
from penstock.sources.mongodb.normalise import (
    Change,
    tenant_text,
    times,
    touched,
    transaction_name,
)
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
        Two of each, for both tenants, where its document may have become another tenant's: neither
        has the other's document, and nothing of the event is in none of them.

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
        whose = self._whose(top, database)
        poison = Poison(
            source=self._source,
            database=database,
            collection=str(namespace.get("coll", "")),
            tenant=whose[0].tenant,
            left=whose[0].left,
            operation=str(top.get("operationType", "")),
            position=token.data,
            cluster_time=time,
            timestamp=timestamp,
            transaction=transaction,
            reason=error.what,
            raw=whose[0].part_of(parts) if sent else (),
            key=self._key(key_raw),
            key_raw=key_raw,
            generation=uuid.hex() if isinstance(uuid, Binary) else "",
        )
        letter, gap = poison.events()
        also: list[AnyEvent] = [gap]
        for number, one in enumerate(whose[1:], start=1):
            other = structs.replace(
                poison,
                tenant=one.tenant,
                left=one.left,
                number=number,
                raw=one.part_of(parts) if sent else (),
            )
            also += other.events()
        return Change(letter, token, sum(map(len, parts)), tuple(also))

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

    def _whose(self, top: dict[str, Any], database: str) -> list["_Whose"]:
        """Whose the event is, and whose the document was if that may be another tenant; where it
        cannot be told, that of an event about no document: a letter must be somebody's."""
        nobody = control_tenant(self._tenant, database=database, source=self._source)
        rule = self._tenant
        if not isinstance(rule, TenantRule):
            return [_Whose(nobody)]
        key = (_decoded(top.get("documentKey")) or {}).get("_id")
        after = _decoded(top.get("fullDocument"))
        before = _decoded(top.get("fullDocumentBeforeChange"))
        if rule.field is None or top.get("operationType") not in _MOVING:
            return [_Whose(_told(rule, key, after=after, before=before) or nobody)]
        update = _update(top)
        updated, removed = ({}, []) if update is None else touched(*update)
        stays = update is not None and not rule.may_leave([*updated, *removed])
        now = _told(rule, key, after=after, updated=updated, removed=removed)
        was = _told(rule, key, before=before)
        if stays:
            now, was = now or was, was or now
        if now == was:
            return [_Whose(now or nobody)]
        halves = [
            _Whose(now or nobody, hidden=_BEFORE if now else _NOTHING),
            _Whose(was or nobody, left=was is not None, hidden=_AFTER if was else _NOTHING),
        ]
        if halves[0].tenant == halves[1].tenant:
            return [halves[1].alone()]
        return halves if now is not None else halves[::-1]


_BEFORE: Final = frozenset({"fullDocumentBeforeChange"})
_AFTER: Final = frozenset({"fullDocument", "updateDescription", "rawUpdateDescription"})
"""What an event says of a document before it, and of the same after it."""
_NOTHING: Final = frozenset[str]()


class _Whose(NamedTuple):
    """A tenant that an event concerns."""

    tenant: str
    left: bool = False
    """Whether the document was the tenant's before the event, and may not be any more."""
    hidden: frozenset[str] = _NOTHING
    """What the event says of the document of another tenant, or may."""

    def alone(self) -> "_Whose":
        """Where nobody else is told of the event."""
        return self._replace(hidden=_NOTHING)

    def part_of(self, parts: list[bytes]) -> tuple[bytes, ...]:
        """What the tenant may see of an event that came as `parts`."""
        return tuple(_without(part, self.hidden) for part in parts) if self.hidden else tuple(parts)


_MOVING: Final = ("update", "replace")
"""The operations after which a document may be another tenant's."""


def _told(rule: TenantRule, key: object, **facts: Any) -> str | None:
    """The tenant by the rule, of `facts` as of `TenantRule.of`; None if they do not tell it."""
    try:
        return rule.of(key, text=tenant_text, **facts)
    except TenantUnknownError:
        return None


def _update(top: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """What the event says of an update, and its paths that are not plain; None if that cannot be
    decoded, or it says nothing."""
    raw = _decoded(top.get("rawUpdateDescription"))
    try:
        update = _decoded(top.get("updateDescription")) if raw is None else described(raw)
    except (TypeError, ValueError, KeyError):
        return None
    return None if update is None else (update, update.get("disambiguatedPaths") or {})


def is_reserved(collection: str) -> bool:
    """Whether a captured collection would be taken for ours."""
    return collection == COLLECTION


def _shallow(raw: bytes) -> dict[str, Any]:
    """The fields of a document; those that are documents as raw bytes. Raises BSONError."""
    return dict(RawBSONDocument(raw, _SHALLOW).items())


def _without(part: bytes, names: frozenset[str]) -> bytes:
    """A part of an event without some of its fields; nested documents stay the bytes they are."""
    said = _shallow(part)
    if names.isdisjoint(said):
        return part
    return encode({name: value for name, value in said.items() if name not in names})


def _raw(value: object) -> bytes | None:
    return bytes(value.raw) if isinstance(value, RawBSONDocument) else None


def _decoded(value: object) -> dict[str, Any] | None:
    raw = _raw(value)
    try:
        return None if raw is None else decode(raw)
    except ValueError:
        return None
