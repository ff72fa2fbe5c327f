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
from penstock.sources.mysql.origins import Origin, masked, moved
from penstock.sources.mysql.row_readers import Document
from penstock.sources.mysql.rows import Changes, CompiledTable
from penstock.updates import paths_of_columns

ROW_KEY: Final = "_row"
"""The key of a row whose table has no primary key: a digest of the whole row (A11)."""

_MOLDS_MAX: Final = 4096
_digest: Final = xxhash.xxh3_128_hexdigest
_encode: Final = msgspec.json.Encoder().encode


Key = tuple[str, Raw, Any]
"""A row's key as text, as JSON, and as what a tenant's rule reads."""


class Place:
    """Where events are: one transaction, and how many events of it there are so far."""

    __slots__ = ("_of_tables", "gtid", "millis", "ordinal", "origin", "seconds", "time")

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
        head, number = self.rows(table, 1)
        return f"{head}{number}"

    def rows(self, table: tuple[str, str], many: int) -> tuple[str, int]:
        """As `row`, of the next so many: how they all begin, and the first one's number."""
        number = self._of_tables.get(table, 0)
        self._of_tables[table] = number + many
        # The length keeps apart names that meet at another point.
        return f"{self.gtid}:{len(table[0])}:{table[0]}.{table[1]}:", number

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
        self._id_head = f"{len(source)}:{source}"
        self._rule = tenant if isinstance(tenant, TenantRule) else None
        self._molds: dict[tuple[Any, ...], ChangeEvent] = {}

    def changes(self, found: Changes, compiled: CompiledTable, place: Place) -> list[ChangeEvent]:
        """The events of these rows: two of one that got another key (A13) or tenant, the old one's
        end first.

        Raises ValueError for what has no exact form, or a tenant that cannot be told.
        """
        events: list[ChangeEvent] = []
        if not found.rows:
            return events
        head, first = place.rows(compiled.name, len(found.rows))
        mold = self._mold(compiled, _operation(found), found.absent)
        for number, (before, after) in enumerate(found.rows, first):
            name = f"{head}{number}"
            # An image that lacks columns is none of the row before.
            was = None if before is None or found.before_lacks else Raw(_encode(before))
            full = None if after is None else Raw(_encode(after))
            if after is None:
                assert before is not None
                key = _key(compiled, before, was)
            else:
                key = _key(compiled, after, full)
                if before is not None:
                    old = _key(compiled, before, was)
                    if old[1] != key[1] or self._leaves(compiled, key, before, after):
                        gone, come = (old, before, was), (key, after, full)
                        events += self._moved(gone, come, name, compiled, place, found.absent)
                        continue
            owned = self._owned(mold, compiled, key, before, after)
            event = self._event(owned, place, name, key, was, full)
            if found.masked and found.masked[number - first]:
                assert event.origin is not None
                names = found.masked[number - first]
                event = structs.replace(event, origin=masked(event.origin, names))
            if found.absent and before is not None and after is not None:
                event = _with_update(event, _updated(after, found.sent or (), compiled.key))
            events.append(event)
        return events

    def _moved(
        self,
        gone: tuple[Key, Document, Raw | None],
        come: tuple[Key, Document, Raw | None],
        name: str,
        compiled: CompiledTable,
        place: Place,
        absent: tuple[str, ...],
    ) -> list[ChangeEvent]:
        """The two events of a row whose key or tenant changed: of each half its key, the row and
        its JSON."""
        (old, before, was), (new, after, full) = gone, come
        mold = self._mold(compiled, Operation.DELETE, ())
        owned = self._owned(mold, compiled, old, before, None)
        ends = self._event(owned, place, name, old, was, None)
        mold = self._mold(compiled, Operation.INSERT, absent)
        owned = self._owned(mold, compiled, new, None, after)
        begins = self._event(owned, place, f"{name}:new", new, None, full)
        assert ends.origin is not None
        assert begins.origin is not None
        return [
            structs.replace(ends, origin=moved(ends.origin, to=new[1])),
            structs.replace(begins, origin=moved(begins.origin, source=old[1])),
        ]

    def row(
        self, row: Document, compiled: CompiledTable, *, copy: str, number: int, seconds: int
    ) -> ChangeEvent:
        """A row of a copy, told apart from other copies' by `copy`.

        `number` tells equal rows of a table without a key apart. Raises ValueError as `changes`.
        """
        table = compiled.table
        full = Raw(_encode(row))
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

    def _mold(
        self, compiled: CompiledTable, operation: Operation, absent: tuple[str, ...]
    ) -> ChangeEvent:
        """What events of a table have in common. A copy with the rest costs a third of an event."""
        database, collection = compiled.name
        known = (compiled.name, compiled.version, operation, absent)
        mold = self._molds.get(known)
        if mold is None:
            if len(self._molds) >= _MOLDS_MAX:
                self._molds.clear()
            mold = self._molds[known] = ChangeEvent(
                event_id="",
                source=self._source,
                database=database,
                tenant=self._constant or database,
                collection=collection,
                cluster_time=ClusterTime(0),
                timestamp=0,
                position="",
                schema_version=compiled.version,
                document_id="",
                key=Raw(b"{}"),
                operation=operation,
                full_document_as_of_event=operation is not Operation.DELETE,
                unchanged=absent,
            )
        return mold

    def _owned(
        self,
        mold: ChangeEvent,
        compiled: CompiledTable,
        key: Key,
        before: Document | None,
        after: Document | None,
    ) -> ChangeEvent:
        """The mold of a change, with whose it is."""
        if self._rule is None:
            return mold
        return structs.replace(mold, tenant=_told(self._rule, compiled, key, before, after))

    def _event(
        self,
        mold: ChangeEvent,
        place: Place,
        name: str,
        key: Key,
        was: Raw | None,
        full: Raw | None,
    ) -> ChangeEvent:
        ordinal = place.ordinal
        place.ordinal = ordinal + 1
        return structs.replace(
            mold,
            # As `event_id` of the row's name.
            event_id=_digest(f"{self._id_head}{name}:0".encode()),
            cluster_time=place.time,
            timestamp=place.millis,
            position=f"{place.gtid}:{ordinal}",
            transaction=place.gtid,
            origin=place.origin.of(ordinal),
            document_id=key[0],
            key=key[1],
            full_document=full,
            full_document_before_change=was,
        )

    def _leaves(self, compiled: CompiledTable, key: Key, before: Document, after: Document) -> bool:
        """Whether an update of a row gave it another tenant. Raises TenantUnknownError where the
        images do not say."""
        rule = self._rule
        if rule is None:
            return False
        tenant = _told(rule, compiled, key, before, after)
        is_said = _names_tenant(rule, compiled, before)
        if not is_said:
            rule.refuse_move(
                after,
                f"its row image of before lacks the column {rule.column}, because "
                f"binlog_row_image is not FULL. Set it to FULL",
            )
        return rule.left(tenant, before if is_said else None) is not None

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

    def copied_shape(
        self, compiled: CompiledTable, *, copy: str, position: str, seconds: int
    ) -> SystemEvent:
        """Which columns of a copied table have values that differ in shape."""
        database, name = compiled.name
        facts = {"snapshot": copy, "varying": compiled.varying}
        identity = f"{copy}:{position}"
        return self.system(
            "columns",
            identity,
            position=position,
            seconds=seconds,
            facts=facts,
            table=(database, name),
        )

    def rekeyed(
        self,
        compiled: CompiledTable,
        identity: str,
        *,
        position: str,
        seconds: int,
        between: tuple[str, str],
        origin: Raw | None = None,
    ) -> SystemEvent:
        """That the rows of a table which were told so far have another key than what is told of it
        from here on, so that nothing ends them. `between` are the transactions of the gap."""
        begin, end = between
        return self.system(
            "gap",
            f"rekeyed:{identity}",
            position=position,
            seconds=seconds,
            facts={"from": begin, "to": end, "reason": "rekeyed", "key": compiled.key},
            table=compiled.name,
            origin=origin,
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


def _told(
    rule: TenantRule,
    compiled: CompiledTable,
    key: Key,
    before: Document | None,
    after: Document | None,
) -> str:
    """The tenant of a change, by its image of after before that of before. A column that both
    lack is not known, and not `otherwise`. Raises TenantUnknownError."""
    known: Document = {**(before or {}), **(after or {})}
    return rule.of(key[2], after=known if _names_tenant(rule, compiled, known) else None)


def _names_tenant(rule: TenantRule, compiled: CompiledTable, image: Document) -> bool:
    """Whether the image of a row says all that the rule reads of it: it has the column, or no row
    of its table has it."""
    return rule.column in image or rule.column not in compiled.told.values()


def _operation(found: Changes) -> Operation:
    """What happened to rows of which no key changed."""
    before, after = found.rows[0]
    if before is None:
        return Operation.INSERT
    if after is None:
        return Operation.DELETE
    return Operation.UPDATE if found.absent else Operation.REPLACE


def _with_update(event: ChangeEvent, fields: Document) -> ChangeEvent:
    said = Raw(_encode(_update(fields)))
    paths = Raw(_encode(paths_of_columns(fields)))
    return structs.replace(event, update_description=said, disambiguated_paths=paths)


def _updated(after: Document, sent: Sequence[str], key: Sequence[str]) -> Document:
    """What of a row was sent with an update; its key is as it was."""
    return {name: after[name] for name in sent if name not in key}


def _update(fields: Document) -> dict[str, object]:
    return {"updatedFields": fields, "removedFields": [], "truncatedArrays": []}


@lru_cache(maxsize=4096)
def _key_head(name: str) -> bytes:
    """How a key of one column begins."""
    return b"{%b:" % _encode(name)


def _key(compiled: CompiledTable, row: Document, encoded: Raw | None) -> Key:
    names = compiled.key
    if len(names) == 1:
        one = row[names[0]]
        if type(one) is int:
            # As the encoder would write it, and most keys are one number.
            return str(one), Raw(b"%b%d}" % (_key_head(names[0]), one)), one
    if not names:
        assert encoded is not None
        digest = xxhash.xxh3_128_hexdigest(bytes(encoded))
        return digest, Raw(_encode({ROW_KEY: digest})), digest
    ordered = {name: row[name] for name in names}
    key = Raw(_encode(ordered))
    first = row[names[0]]
    if len(names) > 1:
        return _encode(list(ordered.values())).decode(), key, ordered
    if isinstance(first, str | int):
        return str(first), key, first
    return _encode(first).decode(), key, first
