"""A store's records, and the rows of a copy, as events. Pure."""

from collections.abc import Mapping

from msgspec import Raw, json

from penstock.capture.tenant import Tenant, TenantRule, control_tenant, of_two_tenants
from penstock.errors import UndecodableError
from penstock.event import (
    ChangeEvent,
    ClusterTime,
    Operation,
    SchemaEvent,
    SystemEvent,
    event_id,
)
from penstock.sources.store.documents import document, identity
from penstock.store import EventType, Item, Recorded, StreamRecord, Table

_OPERATIONS = {
    EventType.INSERT: Operation.INSERT,
    EventType.MODIFY: Operation.REPLACE,
    EventType.REMOVE: Operation.DELETE,
}


class Teller:
    """Makes the events of one source. `position` of a change is that of its record in the store."""

    def __init__(self, source: str, *, database: str, tenant: Tenant, flat: bool = False) -> None:
        self._source = source
        self._flat = flat
        self.database = database
        self._rule = tenant if isinstance(tenant, TenantRule) else None
        self._tenant = tenant if isinstance(tenant, str) else database
        self._control_tenant = control_tenant(tenant, database=database, source=source)

    def changes(
        self, record: StreamRecord, *, store_id: str, names: tuple[str, ...]
    ) -> tuple[ChangeEvent, ...]:
        """The events of one change of an item: two of one that became another tenant's, its end
        first. Raises UndecodableError for what has no exact form."""
        after, before = record.new_image, record.old_image
        try:
            document_id, key = identity(record.keys, names)
            full = None if after is None else document(after, flat=self._flat)
            was = None if before is None else document(before, flat=self._flat)
            tenant = self._told(record.keys, names, after=after, before=before)
        except (TypeError, ValueError) as error:
            raise self._undecodable(
                f"{record.event_type} of {record.table_name}: {error}", record.position
            ) from error
        many = record.commit_records > 1
        event = ChangeEvent(
            event_id=event_id(self._source, record.position, 0),
            source=self._source,
            database=self.database,
            tenant=tenant,
            collection=record.table_name,
            cluster_time=ClusterTime(record.timestamp // 1000),
            timestamp=record.timestamp,
            position=record.position,
            transaction=f"{store_id}:{record.commit}" if many else None,
            document_id=document_id,
            key=key,
            operation=_OPERATIONS[record.event_type],
            full_document=full,
            full_document_before_change=was,
            full_document_as_of_event=full is not None,
        )
        left = None
        if self._rule is not None and after is not None:
            left = self._rule.left(tenant, before)
        if left is None:
            return (event,)
        new_id = event_id(self._source, record.position, 1)
        return of_two_tenants(event, left=left, new_id=new_id)

    def row(self, item: Item, table: Table, *, copy: str, time_ms: int) -> ChangeEvent:
        """A row of a copy, told apart from other copies' by `copy`. Raises UndecodableError."""
        names = table.key_names
        where = f"snapshot:{copy}:{self.database}.{table.name}"
        try:
            document_id, key = identity(item, names)
            where = f"{where}:{bytes(key).decode()}"
            full = document(item, flat=self._flat)
            tenant = self._told(item, names, after=item, before=None)
        except (TypeError, ValueError) as error:
            raise self._undecodable(f"an item of {table.name}: {error}", where) from error
        return ChangeEvent(
            event_id=event_id(self._source, where, 0),
            source=self._source,
            database=self.database,
            tenant=tenant,
            collection=table.name,
            cluster_time=ClusterTime(time_ms // 1000),
            timestamp=time_ms,
            position=where,
            document_id=document_id,
            key=key,
            operation=Operation.INSERT,
            full_document=full,
            snapshot=True,
            full_document_as_of_event=True,
        )

    def schema(
        self, recorded: Recorded, operation: str, table: Table, *, time_ms: int
    ) -> SchemaEvent:
        """What happened to a table."""
        facts: dict[str, object] = {
            "ns": {"db": self.database, "coll": table.name},
            "key": [
                {"name": one.name, "type": one.type.value}
                for one in (table.partition_key, table.sort_key)
                if one is not None
            ],
            "ttlAttribute": table.ttl_attribute,
        }
        return SchemaEvent(
            event_id=event_id(self._source, recorded.position, 0),
            source=self._source,
            database=self.database,
            tenant=self._control_tenant,
            collection=table.name,
            cluster_time=ClusterTime(time_ms // 1000),
            timestamp=time_ms,
            position=recorded.position,
            operation=operation,
            description=Raw(json.encode(facts)),
        )

    def system(
        self,
        operation: str,
        identity: str,
        *,
        position: str,
        time_ms: int,
        facts: Mapping[str, object],
        table: str = "",
    ) -> SystemEvent:
        """What Penstock says of the source, or of one of its tables; `identity` makes its id."""
        said: dict[str, object] = {"source": self._source, **facts}
        if table:
            said["collection"] = f"{self.database}.{table}"
        return SystemEvent(
            event_id=event_id(self._source, f"{operation}:{table}:{identity}", 0),
            source=self._source,
            database=self.database,
            tenant=self._control_tenant,
            collection=table,
            cluster_time=ClusterTime(time_ms // 1000),
            timestamp=time_ms,
            position=position,
            operation=operation,
            description=Raw(json.encode(said)),
        )

    def _told(
        self, key: Item, names: tuple[str, ...], *, after: Item | None, before: Item | None
    ) -> str:
        if self._rule is None:
            return self._tenant
        alone = len(names) == 1
        of = key[names[0]] if alone else {name: key[name] for name in names}
        return self._rule.of(of, after=after, before=before)

    def _undecodable(self, what: str, position: str) -> UndecodableError:
        return UndecodableError(
            source=self._source,
            what=what,
            position=position,
            remedy="Leave the table out (`exclude`), which records a gap of it alone; the item "
            "itself is safe in the store.",
        )
