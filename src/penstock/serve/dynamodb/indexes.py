"""Secondary indexes as the protocol knows them: local and global ones, and what they project.

The store's index finds items and is written with them (`penstock.store.indexes`). What it has in
the protocol beyond that is kept with it (`Index.kept`). An index that was made from Python is
described as a global one that projects everything, and refuses no write.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from penstock.serve.dynamodb.errors import EmptyKeyError, WireError, validation
from penstock.serve.dynamodb.keys import INVALID, attributes, refuse_length
from penstock.serve.dynamodb.names import is_offered
from penstock.serve.dynamodb.places import key_schema_of
from penstock.serve.dynamodb.throughput import described_throughput
from penstock.store import Item, KeyType, Table
from penstock.store.kinds import type_of
from penstock.store.projections import project
from penstock.store.schema import Index


class IndexSettings(Struct, frozen=True, omit_defaults=True):
    """What an index has in the protocol and means nothing to the store."""

    local: bool = False
    projection: Literal["ALL", "KEYS_ONLY", "INCLUDE"] = "ALL"
    included: tuple[str, ...] = ()
    """The attributes beside the keys, of an index that includes some."""
    read_units: int = 0
    write_units: int = 0
    on_demand: dict[str, int] = {}
    """The maxima of OnDemandThroughput."""
    warm: dict[str, int] = {}

    def encoded(self) -> bytes:
        """The bytes that are kept with the index."""
        return msgspec.msgpack.encode(self)


def settings_of(index: Index) -> IndexSettings:
    """What was kept with an index."""
    return _settings.decode(index.kept) if index.kept else IndexSettings()


def indexes_of(table: Table) -> list[Index]:
    """The indexes of a table that the protocol has a name for."""
    return [index for index in table.indexes if is_offered(index.name)]


def index_named(table: Table, name: str) -> Index:
    """An index of a table. Raises WireError."""
    for index in indexes_of(table):
        if index.name == name:
            return index
    raise validation(f"The table does not have the specified index: {name}")


def key_types(table: Table) -> dict[str, KeyType]:
    """The types of the key attributes of a table and its indexes, by their names."""
    types = {one.name: one.type for one in attributes(table)}
    for index in indexes_of(table):
        for one in attributes(index):
            types.setdefault(one.name, one.type)
    return types


def has_local(table: Table) -> bool:
    """Whether a table has a local index, and so has item collections."""
    return any(settings_of(index).local for index in table.indexes)


# --- projections ----------------------------------------------------------------------------------


def projected_names(table: Table, index: Index) -> frozenset[str] | None:
    """The attributes that an index has of each item; None: all of them."""
    settings = settings_of(index)
    if settings.projection == "ALL":
        return None
    return frozenset((*table.key_names, *index.key_names, *settings.included))


def shown_by(table: Table, index: Index) -> Callable[[Item], Item]:
    """What makes of an item what an index has of it."""
    names = projected_names(table, index)
    if names is None:
        return lambda item: item
    paths = [(name,) for name in sorted(names)]
    return lambda item: project(item, paths)


# --- writes ---------------------------------------------------------------------------------------


def refuse_item(table: Table, item: Item, *, changed: Collection[str] | None = None) -> None:
    """Raise WireError if an item has an attribute that cannot be a key of an index.

    `changed` are the attributes that an update changes: it need not answer for others.
    """
    for index in sorted(table.indexes, key=lambda one: one.name):
        if not index.kept:
            continue
        for attribute in attributes(index):
            if attribute.name not in item or not (changed is None or attribute.name in changed):
                continue
            value = item[attribute.name]
            actual = type_of(value).value
            if actual != attribute.type.value:
                raise validation(
                    f"{INVALID}Type mismatch for Index Key {attribute.name} Expected: "
                    f"{attribute.type.value} Actual: {actual} IndexName: {index.name}"
                )
            if isinstance(value, str | bytes) and not value:
                _refuse_empty(index, attribute.name, value, updated=changed is not None)
            try:
                refuse_length(attribute, value, sort=attribute is index.sort_key)
            except WireError:
                if changed is None:
                    raise
                # Of an update: API_TransactWriteItems, cancellation reasons.
                raise validation(
                    "The update expression attempted to update the secondary index key beyond "
                    "allowed size limits"
                ) from None


def _refuse_empty(index: Index, name: str, value: str | bytes, *, updated: bool) -> None:
    kind = "string" if isinstance(value, str) else "binary"
    invalid = f"The AttributeValue for a key attribute cannot contain an empty {kind} value."
    if updated:
        raise EmptyKeyError(
            f"One or more parameter values are not valid. The update expression attempted to "
            f"update a secondary index key to a value that is not supported. {invalid}"
        )
    raise EmptyKeyError(
        f"One or more parameter values are not valid. A value specified for a secondary index key "
        f"is not supported. {invalid} IndexName: {index.name}, IndexKey: {name}"
    )


# --- descriptions ---------------------------------------------------------------------------------


def described_indexes(
    table: Table, table_arn: str, sizes: Mapping[int, dict[str, int]]
) -> dict[str, Any]:
    """The members of a table's description that describe its indexes.

    `sizes` are what is told of how much is in them, by their numbers, where that is known.
    """
    described: dict[str, list[dict[str, Any]]] = {}
    for index in indexes_of(table):
        settings = settings_of(index)
        member = f"{'Local' if settings.local else 'Global'}SecondaryIndexes"
        described.setdefault(member, []).append(
            {**_described(index, settings, table_arn), **sizes.get(index.id, {})}
        )
    return described


def _described(index: Index, settings: IndexSettings, table_arn: str) -> dict[str, Any]:
    projection: dict[str, Any] = {"ProjectionType": settings.projection}
    if settings.included:
        projection["NonKeyAttributes"] = list(settings.included)
    described: dict[str, Any] = {
        "IndexName": index.name,
        "IndexArn": f"{table_arn}/index/{index.name}",
        "KeySchema": key_schema_of(index.key_names),
        "Projection": projection,
    }
    if not settings.local:
        described["IndexStatus"] = "ACTIVE" if index.ready else "CREATING"
        described["ProvisionedThroughput"] = {
            "NumberOfDecreasesToday": 0,
            "ReadCapacityUnits": settings.read_units,
            "WriteCapacityUnits": settings.write_units,
        }
        described |= described_throughput(settings.on_demand, settings.warm)
        if not index.ready:
            described["Backfilling"] = True
    return described


_settings: Final = msgspec.msgpack.Decoder(IndexSettings)
