"""Rows and statements of a server as events. Pure."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec
import xxhash
from msgspec import Raw, json, structs

from penstock.capture.tenant import Tenant, TenantRule, control_tenant
from penstock.event import (
    ChangeEvent,
    ClusterTime,
    Operation,
    SchemaEvent,
    SystemEvent,
    event_id,
)
from penstock.sources.mysql.origins import Origin, moved
from penstock.sources.mysql.rows import Change, CompiledTable, Document

ROW_KEY: Final = "_row"
"""The key of a row whose table has no primary key: a digest of the whole row (A11)."""

_digest: Final = xxhash.xxh3_128_hexdigest
_encoder = msgspec.json.Encoder()


class Place:
    """Where events are: one transaction, and how many events of it there are so far."""

    def __init__(self, gtid: str, millis: int, origin: Origin) -> None:
        self.gtid = gtid
        self.millis = millis
        """When it was committed, since the epoch."""
        self.seconds = millis // 1000
        self.time = ClusterTime(self.seconds)
        self.origin = origin
        self.ordinal = 0
        self._of_tables: dict[tuple[str, str], int] = {}

    def row(self, table: tuple[str, str]) -> str:
        """Tells the next row, or fate, of this table from all others, whatever else is captured:
        by its number among those of its table in the transaction."""
        number = self._of_tables.get(table, 0)
        self._of_tables[table] = number + 1
        # The length keeps apart names that meet at another point.
        return f"{self.gtid}:{len(table[0])}:{table[0]}.{table[1]}:{number}"

    def next(self) -> tuple[str, int]:
        """The position of the next event, which is its place in the transaction, and its number."""
        ordinal = self.ordinal
        self.ordinal += 1
        return f"{self.gtid}:{ordinal}", ordinal


class Teller:
    """Makes the events of one source."""

    def __init__(self, source: str, *, tenant: Tenant) -> None:
        self._source = source
        self._tenant = tenant
        self._constant = tenant if isinstance(tenant, str) else None
        self._id_head = f"{len(source)}:{source}".encode()
        self._rule = tenant if isinstance(tenant, TenantRule) else None

    def change(self, change: Change, compiled: CompiledTable, place: Place) -> list[ChangeEvent]:
        """The events of one row: two where its key changed (A13), the old one's end first.

        Raises ValueError for what has no exact form, or a tenant that cannot be told.
        """
        before, after, sent, absent, before_lacks = change
        name = place.row((compiled.table.database, compiled.table.name))
        # An image that lacks columns is none of the row before.
        was = None if before is None or before_lacks else Raw(_encoder.encode(before))
        full = None if after is None else Raw(_encoder.encode(after))
        if before is None:
            assert after is not None
            key = _key(compiled, after, full)
            event = self._event(
                *(Operation.INSERT, compiled, place, key, name),
                after=after,
                full=full,
                absent=absent,
            )
            return [event]
        old = _key(compiled, before, was)
        if after is None:
            return [
                self._event(Operation.DELETE, compiled, place, old, name, before=before, was=was)
            ]
        new = _key(compiled, after, full)
        if new[1] == old[1]:
            event = self._event(
                *(Operation.UPDATE if absent else Operation.REPLACE, compiled, place, new, name),
                before=before,
                was=was,
                after=after,
                full=full,
                absent=absent,
                updated=_updated(after, sent or (), compiled.key) if absent else None,
            )
            return [event]
        gone = self._event(Operation.DELETE, compiled, place, old, name, before=before, was=was)
        come = self._event(
            *(Operation.INSERT, compiled, place, new, f"{name}:new"),
            after=after,
            full=full,
            absent=absent,
        )
        assert gone.origin is not None
        assert come.origin is not None
        return [
            structs.replace(gone, origin=moved(gone.origin, to=new[1])),
            structs.replace(come, origin=moved(come.origin, source=old[1])),
        ]

    def row(
        self, row: Document, compiled: CompiledTable, *, copy: str, number: int, seconds: int
    ) -> ChangeEvent:
        """A row of a copy, told apart from other copies' by `copy`.

        `number` tells equal rows of a table without a key apart. Raises ValueError as `change`.
        """
        table = compiled.table
        full = Raw(_encoder.encode(row))
        document_id, key, of = _key(compiled, row, full)
        where = f"snapshot:{copy}:{table.database}.{table.name}:{bytes(key).decode()}"
        if not compiled.key:
            where = f"{where}:{number}"
        if self._rule is None:
            tenant = self._tenant if isinstance(self._tenant, str) else table.database
        else:
            tenant = self._rule.of(of, after=row, before=None)
        return ChangeEvent(
            event_id=event_id(self._source, where, 0),
            source=self._source,
            database=table.database,
            tenant=tenant,
            collection=table.name,
            cluster_time=ClusterTime(seconds),
            timestamp=seconds * 1000,
            position=where,
            document_id=document_id,
            key=key,
            operation=Operation.INSERT,
            full_document=full,
            snapshot=True,
            full_document_as_of_event=True,
        )

    def _event(
        self,
        operation: Operation,
        compiled: CompiledTable,
        place: Place,
        key: tuple[str, Raw, Any],
        name: str,
        *,
        before: Document | None = None,
        was: Raw | None = None,
        after: Document | None = None,
        full: Raw | None = None,
        absent: tuple[str, ...] = (),
        updated: Document | None = None,
    ) -> ChangeEvent:
        table = compiled.table
        position, ordinal = place.next()
        database = table.database
        if self._rule is None:
            tenant = self._constant or database
        else:
            tenant = self._rule.of(key[2], after=after, before=before)
        return ChangeEvent(
            # As `event_id` of the row's name.
            event_id=_digest(b"%b%b:0" % (self._id_head, name.encode())),
            source=self._source,
            database=database,
            tenant=tenant,
            collection=table.name,
            cluster_time=place.time,
            timestamp=place.millis,
            position=position,
            transaction=place.gtid,
            origin=place.origin.of(ordinal),
            schema_version=compiled.version,
            document_id=key[0],
            key=key[1],
            operation=operation,
            full_document=full,
            full_document_before_change=was,
            full_document_as_of_event=full is not None,
            unchanged=absent,
            update_description=None if updated is None else Raw(_encoder.encode(_update(updated))),
            disambiguated_paths=None if updated is None else _paths(updated),
        )

    def schema(
        self, operation: str, table: tuple[str, str], place: Place, facts: Mapping[str, object]
    ) -> SchemaEvent:
        """What a statement did to a table, or to a whole database (an empty table)."""
        database, name = table
        position, ordinal = place.next()
        said = {"ns": {"db": database, "coll": name}, **facts}
        return SchemaEvent(
            event_id=event_id(self._source, place.row(table), 0),
            source=self._source,
            database=database,
            tenant=control_tenant(self._tenant, database=database, source=self._source),
            collection=name,
            cluster_time=ClusterTime(place.seconds),
            timestamp=place.millis,
            position=position,
            transaction=place.gtid,
            origin=place.origin.of(ordinal),
            operation=operation,
            description=Raw(json.encode(said)),
        )

    def shape(self, compiled: CompiledTable, place: Place) -> SchemaEvent:
        """What the columns of a table are, behind the first transaction that has rows of them."""
        database, name = compiled.table.database, compiled.table.name
        said = {"ns": {"db": database, "coll": name}, **compiled.shape}
        identity = f"{place.gtid}:shape:{database}.{name}:{compiled.version}"
        return SchemaEvent(
            event_id=event_id(self._source, identity, 0),
            source=self._source,
            database=database,
            tenant=control_tenant(self._tenant, database=database, source=self._source),
            collection=name,
            cluster_time=ClusterTime(place.seconds),
            timestamp=place.millis,
            position=f"{place.gtid}:{place.ordinal}",
            schema_version=compiled.version,
            transaction=place.gtid,
            origin=place.origin.here(),
            operation="modify",
            description=Raw(json.encode(said)),
        )

    def system(
        self,
        operation: str,
        identity: str,
        *,
        position: str,
        seconds: int,
        facts: Mapping[str, object],
        table: tuple[str, str] = ("", ""),
        origin: Raw | None = None,
    ) -> SystemEvent:
        """What Penstock says of the source, or of a table; `identity` makes its id."""
        database, name = table
        said: dict[str, object] = {"source": self._source, **facts}
        if name:
            said["collection"] = f"{database}.{name}"
        return SystemEvent(
            event_id=event_id(self._source, f"{operation}:{database}.{name}:{identity}", 0),
            source=self._source,
            database=database,
            tenant=control_tenant(self._tenant, database=database, source=self._source),
            collection=name,
            cluster_time=ClusterTime(seconds),
            timestamp=seconds * 1000,
            position=position,
            origin=origin,
            operation=operation,
            description=Raw(json.encode(said)),
        )


def _updated(after: Document, sent: Sequence[str], key: Sequence[str]) -> Document:
    """What of a row was sent with an update; its key is as it was."""
    return {name: after[name] for name in sent if name not in key}


def _update(fields: Document) -> dict[str, object]:
    return {"updatedFields": fields, "removedFields": [], "truncatedArrays": []}


def _paths(fields: Document) -> Raw | None:
    """The fields whose names read like paths, each with its one step; None without any."""
    found = {name: [name] for name in fields if "." in name or name.isdecimal()}
    return Raw(_encoder.encode(found)) if found else None


@lru_cache(maxsize=4096)
def _key_head(name: str) -> bytes:
    """How a key of one column begins."""
    return b"{%b:" % _encoder.encode(name)


def _key(compiled: CompiledTable, row: Document, encoded: Raw | None) -> tuple[str, Raw, Any]:
    """A row's key as text, as JSON, and as what a tenant's rule reads."""
    names = compiled.key
    if len(names) == 1:
        one = row[names[0]]
        if type(one) is int:
            # As the encoder would write it, and most keys are one number.
            return str(one), Raw(b"%b%d}" % (_key_head(names[0]), one)), one
    if not names:
        assert encoded is not None
        digest = xxhash.xxh3_128_hexdigest(bytes(encoded))
        return digest, Raw(_encoder.encode({ROW_KEY: digest})), digest
    ordered = {name: row[name] for name in names}
    key = Raw(_encoder.encode(ordered))
    first = row[names[0]]
    if len(names) > 1:
        return _encoder.encode(list(ordered.values())).decode(), key, ordered
    if isinstance(first, str | int):
        return str(first), key, first
    return _encoder.encode(first).decode(), key, first
