"""What a request defines: a table's keys, its indexes, and the types of their attributes."""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from penstock.serve.dynamodb.errors import validation
from penstock.serve.dynamodb.indexes import IndexSettings, settings_of
from penstock.serve.dynamodb.keys import INVALID
from penstock.serve.dynamodb.throughput import on_demand, refuse_units, warm
from penstock.store.keys import KeyAttribute, KeyType
from penstock.store.schema import Index

LOCAL_MAX: Final = 5
GLOBAL_MAX: Final = 20
PROJECTED_MAX: Final = 100
"""Names in the NonKeyAttributes of all indexes of a table (developer guide: Quotas)."""
Types = dict[str, KeyType]


class Keys(NamedTuple):
    """The key attributes of a table or an index."""

    partition: KeyAttribute
    sort: KeyAttribute | None

    @property
    def names(self) -> list[str]:
        """Their names, the partition key's first."""
        return [one.name for one in self if one is not None]


def attribute_types(definitions: list[dict[str, str]]) -> Types:
    """The types that AttributeDefinitions gives. Raises WireError for one given twice."""
    types = Types()
    for one in definitions:
        name = one["AttributeName"]
        if name in types:
            raise validation(f"Attribute Name is duplicated: {name}")
        types[name] = KeyType(one["AttributeType"])
    return types


def table_schema(request: dict[str, Any], billing: str) -> tuple[Keys, tuple[Index, ...]]:
    """The keys and indexes of a table that is to be made. Raises WireError."""
    types = attribute_types(request["AttributeDefinitions"])
    keys = read_keys(request["KeySchema"], types)
    local = _listed(request, "LocalSecondaryIndexes")
    global_ = _listed(request, "GlobalSecondaryIndexes")
    if local and keys.sort is None:
        raise validation(
            f"{INVALID}Table KeySchema does not have a range key, which is required when "
            f"specifying a LocalSecondaryIndex"
        )
    made = [_local(one, types, keys) for one in local]
    if len(local) > LOCAL_MAX:
        raise validation(
            f"{INVALID}Number of LocalSecondaryIndexes exceeds per-table limit of {LOCAL_MAX}"
        )
    made += [global_index(one, types, billing) for one in global_]
    if len(global_) > GLOBAL_MAX:
        raise validation(
            f"{INVALID}GlobalSecondaryIndex count exceeds the per-table limit of {GLOBAL_MAX}"
        )
    refuse_indexes(made)
    refuse_projected(made)
    used = dict.fromkeys((*keys.names, *(name for index in made for name in index.key_names)))
    if made:
        refuse_unused(types, list(used))
    elif len(types) > len(used):
        raise validation(
            f"{INVALID}Number of attributes in KeySchema does not exactly match number of "
            f"attributes defined in AttributeDefinitions"
        )
    return keys, tuple(made)


def read_keys(schema: list[dict[str, str]], types: Types) -> Keys:
    """The attributes of a KeySchema. Raises WireError."""
    first, *rest = schema
    if first["KeyType"] != "HASH":
        raise validation("Invalid KeySchema: The first KeySchemaElement is not a HASH key type")
    if rest and rest[0]["KeyType"] != "RANGE":
        raise validation("Invalid KeySchema: The second KeySchemaElement is not a RANGE key type")
    names = [one["AttributeName"] for one in schema]
    if len(set(names)) < len(names):
        raise validation(
            "Both the Hash Key and the Range Key element in the KeySchema have the same name"
        )
    if any(name not in types for name in names):
        raise validation(
            f"{INVALID}Some index key attributes are not defined in AttributeDefinitions. Keys: "
            f"[{', '.join(names)}], AttributeDefinitions: [{', '.join(types)}]"
        )
    partition, *sort = (KeyAttribute(name, types[name]) for name in names)
    return Keys(partition, sort[0] if sort else None)


def global_index(definition: dict[str, Any], types: Types, billing: str) -> Index:
    """A global index that is to be made. Raises WireError."""
    keys = read_keys(definition["KeySchema"], types)
    units: dict[str, int] = definition.get("ProvisionedThroughput", {})
    name = definition["IndexName"]
    if billing == "PROVISIONED" and not units:
        raise validation(f"{INVALID}ProvisionedThroughput is not specified for index: {name}")
    if billing == "PAY_PER_REQUEST" and units:
        raise validation(
            f"{INVALID}ProvisionedThroughput should not be specified for index: {name} when "
            f"BillingMode is PAY_PER_REQUEST"
        )
    refuse_units(units, index=name)
    projection, included = _projection(definition)
    settings = IndexSettings(
        projection=projection,
        included=included,
        read_units=units.get("ReadCapacityUnits", 0),
        write_units=units.get("WriteCapacityUnits", 0),
        on_demand=on_demand(definition, {}, billing),
        warm=warm(definition, {}),
    )
    return _index(name, keys, settings)


def refuse_indexes(indexes: list[Index]) -> None:
    """Refuse two indexes of one name."""
    seen = set[str]()
    for index in indexes:
        if index.name in seen:
            raise validation(f"{INVALID}Duplicate index name: {index.name}")
        seen.add(index.name)


def refuse_projected(indexes: Sequence[Index]) -> None:
    """Refuse more attributes that are named to be projected than a table may have."""
    count = sum(len(settings_of(index).included) for index in indexes)
    if count > PROJECTED_MAX:
        raise validation(
            f"{INVALID}Number of NonKeyAttributes of all indexes exceeds per-table limit of "
            f"{PROJECTED_MAX}: {count}"
        )


def refuse_unused(types: Types, used: list[str]) -> None:
    """Refuse definitions of attributes that are no key."""
    if any(name not in used for name in types):
        raise validation(
            f"{INVALID}Some AttributeDefinitions are not used. AttributeDefinitions: "
            f"[{', '.join(types)}], keys used: [{', '.join(used)}]"
        )


def _local(definition: dict[str, Any], types: Types, table: Keys) -> Index:
    keys = read_keys(definition["KeySchema"], types)
    name = definition["IndexName"]
    if keys.partition != table.partition:
        raise validation(
            f"{INVALID}Index KeySchema does not have the same leading hash key as table KeySchema "
            f"for index: {name}. index hash key: {keys.partition.name}, table hash key: "
            f"{table.partition.name}"
        )
    if keys.sort is None:
        raise validation(f"{INVALID}Index KeySchema does not have a range key for index: {name}")
    projection, included = _projection(definition)
    return _index(name, keys, IndexSettings(local=True, projection=projection, included=included))


def _index(name: str, keys: Keys, settings: IndexSettings) -> Index:
    return Index(
        id=0,
        name=name,
        partition_key=keys.partition,
        sort_key=keys.sort,
        kept=settings.encoded(),
    )


def _projection(definition: dict[str, Any]) -> tuple[Any, tuple[str, ...]]:
    kind = definition["Projection"].get("ProjectionType")
    included = definition["Projection"].get("NonKeyAttributes")
    if kind is None:
        raise validation(f"{INVALID}Unknown ProjectionType: null")
    if kind == "INCLUDE" and not included:
        raise validation(
            f"{INVALID}ProjectionType is INCLUDE, but NonKeyAttributes is not specified"
        )
    if kind != "INCLUDE" and included is not None:
        raise validation(f"{INVALID}ProjectionType is {kind}, but NonKeyAttributes is specified")
    return kind, tuple(dict.fromkeys(included or ()))


def _listed(request: dict[str, Any], member: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] | None = request.get(member)
    if found is None:
        return []
    if not found:
        raise validation(f"{INVALID}List of {member} is empty")
    return found
