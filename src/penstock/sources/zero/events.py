"""Rows, tables and what is said of the source, as events. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import xxhash
from msgspec import Raw, Struct, json

from penstock.capture.tenant import Tenant, TenantRule, control_tenant
from penstock.event import (
    ChangeEvent,
    ClusterTime,
    Operation,
    SchemaEvent,
    SystemEvent,
    event_id,
)
from penstock.extjson import refuse_mimic
from penstock.updates import paths_of_columns

ROW_KEY: Final = "_row"
"""The key of a row whose table has none: a digest of the whole row."""

Cells = Mapping[str, bytes]
"""The columns of a row, or some of them, as Extended JSON."""


class Place(Struct):
    """Where events are: one transaction, and how many events of it there are so far."""

    identity: str
    """Tells it from all others of the source."""
    watermark: str
    millis: int
    transaction: str | None
    """None for a copy."""
    ordinal: int = 0

    def next(self) -> tuple[str, str]:
        """What tells the next event from all others, and its position."""
        ordinal, self.ordinal = self.ordinal, self.ordinal + 1
        return f"{self.identity}:{ordinal}", f"{self.watermark}:{ordinal}"


class Row(Struct, frozen=True):
    """A row after a change: all of its columns, but for those that were not sent."""

    cells: Cells
    unchanged: tuple[str, ...] = ()


class Teller:
    """Makes the events of one source. A table is `schema.table`."""

    def __init__(self, source: str, *, tenant: Tenant) -> None:
        self._source = source
        self._tenant = tenant
        self._rule = tenant if isinstance(tenant, TenantRule) else None

    def row(
        self, operation: Operation, table: str, names: Sequence[str], row: Row, place: Place
    ) -> ChangeEvent:
        """A row that is there now, known by the columns `names`.

        Raises ValueError for what has no exact form, or a tenant that cannot be told.
        """
        refuse_mimic(row.cells)
        document = _object(row.cells)
        key_cells = {name: row.cells[name] for name in names}
        if not names:
            key_cells = {ROW_KEY: b'"%b"' % xxhash.xxh3_128_hexdigest(document).encode()}
        update = paths = None
        if operation is Operation.UPDATE:
            fields = {name: cell for name, cell in row.cells.items() if name not in names}
            update = _object(
                {"updatedFields": _object(fields), "removedFields": b"[]", "truncatedArrays": b"[]"}
            )
            paths = Raw(json.encode(paths_of_columns(fields)))
        return self._change(
            operation,
            table,
            key_cells,
            place,
            full_document=Raw(document),
            disambiguated_paths=paths,
            update_description=None if update is None else Raw(update),
            unchanged=row.unchanged,
            snapshot=place.transaction is None,
            full_document_as_of_event=True,
        )

    def gone(self, table: str, key_cells: Cells, place: Place) -> ChangeEvent:
        """The end of a row. Raises ValueError as `row`."""
        return self._change(Operation.DELETE, table, key_cells, place)

    def _change(
        self, operation: Operation, table: str, key_cells: Cells, place: Place, **more: Any
    ) -> ChangeEvent:
        database, _, collection = table.partition(".")
        refuse_mimic(key_cells)
        identity, position = place.next()
        tenant = self._tenant if isinstance(self._tenant, str) else database
        if self._rule is not None:
            full = more.get("full_document")
            key = {name: json.decode(cell) for name, cell in key_cells.items()}
            tenant = self._rule.of(
                next(iter(key.values())) if len(key) == 1 else key,
                after=None if full is None or more.get("unchanged") else json.decode(full),
                updated=None if full is None else _plain(json.decode(full)),
            )
        return ChangeEvent(
            event_id=event_id(self._source, identity, 0),
            source=self._source,
            database=database,
            tenant=tenant,
            collection=collection,
            cluster_time=ClusterTime(place.millis // 1000),
            timestamp=place.millis,
            position=position,
            transaction=place.transaction,
            document_id=_key_text(key_cells),
            key=Raw(_object(key_cells)),
            operation=operation,
            **more,
        )

    def schema(
        self, operation: str, table: str, place: Place, facts: Mapping[str, object]
    ) -> SchemaEvent:
        """What happened to a table."""
        database, _, collection = table.partition(".")
        identity, position = place.next()
        said = {"ns": {"db": database, "coll": collection}, **facts}
        return SchemaEvent(
            event_id=event_id(self._source, identity, 0),
            source=self._source,
            database=database,
            tenant=control_tenant(self._tenant, database=database, source=self._source),
            collection=collection,
            cluster_time=ClusterTime(place.millis // 1000),
            timestamp=place.millis,
            position=position,
            transaction=place.transaction,
            operation=operation,
            description=Raw(json.encode(said)),
        )

    def system(
        self,
        operation: str,
        identity: str,
        *,
        position: str,
        millis: int,
        facts: Mapping[str, object],
        table: str = "",
    ) -> SystemEvent:
        """What Penstock says of the source, or of a table; `identity` makes its id."""
        database, _, collection = table.partition(".")
        said: dict[str, object] = {"source": self._source, **facts}
        if table:
            said["collection"] = table
        return SystemEvent(
            event_id=event_id(self._source, f"{operation}:{table}:{identity}", 0),
            source=self._source,
            database=database,
            tenant=control_tenant(self._tenant, database=database, source=self._source),
            collection=collection,
            cluster_time=ClusterTime(millis // 1000),
            timestamp=millis,
            position=position,
            operation=operation,
            description=Raw(json.encode(said)),
        )


def _plain(columns: dict[str, Any]) -> dict[str, Any]:
    """Those that do not read like paths: no field that a rule names leads to them."""
    return {name: value for name, value in columns.items() if "." not in name}


_encode: Final = msgspec.json.Encoder().encode


def _object(cells: Cells) -> bytes:
    return b"{%b}" % b",".join(b"%b:%b" % (_encode(name), cell) for name, cell in cells.items())


def _key_text(cells: Cells) -> str:
    """A key as text, for people."""
    if len(cells) > 1:
        return f"[{b','.join(cells.values()).decode()}]"
    (cell,) = cells.values()
    if cell[:1] == b'"':
        return str(json.decode(cell))
    if cell.startswith(b'{"$number'):
        return cell.split(b'"')[3].decode()
    return cell.decode()
