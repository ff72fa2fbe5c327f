"""What UpdateTable does to the indexes of a table: one is made or deleted, capacities change."""

from typing import Any, Final, NamedTuple

import msgspec

from penstock.serve.dynamodb.errors import WireError, not_found, validation
from penstock.serve.dynamodb.indexes import IndexSettings, indexes_of, key_types, settings_of
from penstock.serve.dynamodb.keys import INVALID
from penstock.serve.dynamodb.schemas import (
    GLOBAL_MAX,
    attribute_types,
    global_index,
    refuse_projected,
    refuse_unused,
)
from penstock.serve.dynamodb.throughput import on_demand, refuse_units, warm
from penstock.store import Index, Table

_ONE_AT_A_TIME: Final = (
    "Subscriber limit exceeded: Only 1 online index can be created or deleted simultaneously per "
    "table"
)


class IndexChanges(NamedTuple):
    """What is to become of a table's indexes."""

    made: Index | None
    deleted: str | None
    settings: dict[str, IndexSettings]
    """Of those whose settings change, by their names."""


def index_changes(request: dict[str, Any], table: Table, billing: str) -> IndexChanges:
    """What a request changes of a table's indexes; `billing` is what the table has after it.

    Raises WireError, and then nothing is to be changed.
    """
    updates: list[dict[str, Any]] = request.get("GlobalSecondaryIndexUpdates", [])
    made = deleted = None
    settings = dict[str, IndexSettings]()
    _refuse_updates(updates)
    if sum("Update" not in update for update in updates) > 1:
        raise WireError("LimitExceededException", _ONE_AT_A_TIME)
    for update in updates:
        if "Create" in update:
            made = _made(request, table, update["Create"], billing)
        elif "Delete" in update:
            deleted = _deleted(table, update["Delete"]["IndexName"])
        else:
            index = _updated(table, update["Update"]["IndexName"])
            if index.kept:
                settings[index.name] = _with_units(index, update["Update"], billing)
    settings |= _billed(request, table, billing, settings, deleted)
    building = [index for index in table.indexes if not index.ready]
    if made is not None and building:
        raise WireError("LimitExceededException", _ONE_AT_A_TIME)
    if building and settings:
        raise WireError(
            "ResourceInUseException",
            f"Attempt to change a resource which is still in use: Index is being updated.  Table: "
            f"{table.name} Index: {building[0].name}",
        )
    return IndexChanges(made, deleted, settings)


def _refuse_updates(updates: list[dict[str, Any]]) -> None:
    """Refuse updates that are none or several, and two of one index."""
    seen = set[str]()
    for update in updates:
        actions = [update[one] for one in ("Update", "Create", "Delete") if one in update]
        if not actions:
            raise validation(
                f"{INVALID}One of GlobalSecondaryIndexUpdate.Update, "
                f"GlobalSecondaryIndexUpdate.Create, GlobalSecondaryIndexUpdate.Delete must not be "
                f"null"
            )
        if len(actions) > 1:
            raise validation(
                f"{INVALID}Only one of Create, Update and Delete may be in each of "
                f"GlobalSecondaryIndexUpdates"
            )
        (action,) = actions
        if action["IndexName"] in seen:
            raise validation(
                f"{INVALID}Only one global secondary index update per index is allowed "
                f"simultaneously. Index: {action['IndexName']}"
            )
        seen.add(action["IndexName"])


def _made(request: dict[str, Any], table: Table, definition: dict[str, Any], billing: str) -> Index:
    if any(index.name == definition["IndexName"] for index in table.indexes):
        raise validation("Attempting to create an index which already exists")
    types = attribute_types(request.get("AttributeDefinitions", []))
    made = global_index(definition, types, billing)
    known = key_types(table)
    for name, type_ in types.items():
        if known.get(name, type_) is not type_:
            raise validation(
                f"{INVALID}AttributeDefinitions: {name} is of type {known[name].value} in the "
                f"table's keys and indexes"
            )
    refuse_projected([*table.indexes, made])
    refuse_unused(types, list(dict.fromkeys((*known, *made.key_names))))
    if sum(not settings_of(index).local for index in table.indexes) >= GLOBAL_MAX:
        raise WireError(
            "LimitExceededException",
            f"Subscriber limit exceeded: Number of global secondary indexes exceeds per-table "
            f"limit of {GLOBAL_MAX}",
        )
    return made


def _deleted(table: Table, name: str) -> str:
    for index in indexes_of(table):
        if index.name == name:
            if settings_of(index).local:
                raise validation(
                    f"Cannot delete an index that is not a GlobalSecondaryIndex: {name}"
                )
            return name
    raise not_found()


def _updated(table: Table, name: str) -> Index:
    for index in indexes_of(table):
        if index.name == name and not settings_of(index).local:
            return index
    raise not_found()


def _with_units(index: Index, update: dict[str, Any], billing: str) -> IndexSettings:
    before, units = settings_of(index), update.get("ProvisionedThroughput")
    before = msgspec.structs.replace(
        before,
        on_demand=on_demand(update, before.on_demand, billing),
        warm=warm(update, before.warm),
    )
    if units is None:
        return before
    if billing == "PAY_PER_REQUEST":
        raise validation(
            f"{INVALID}ProvisionedThroughput should not be specified for index: {index.name} when "
            f"BillingMode is PAY_PER_REQUEST"
        )
    refuse_units(units, index=index.name)
    read, write = units["ReadCapacityUnits"], units["WriteCapacityUnits"]
    current = (before.read_units, before.write_units)
    refuse_same_units("index", f"index {index.name}", current, (read, write))
    return msgspec.structs.replace(before, read_units=read, write_units=write)


def refuse_same_units(
    kind: str, named: str, current: tuple[int, int], requested: tuple[int, int]
) -> None:
    """Refuse capacities of a table or an index that are what they were."""
    if current != requested:
        return
    raise validation(
        f"The provisioned throughput for the {named} will not change. The requested value equals "
        f"the current value. Current ReadCapacityUnits provisioned for the {kind}: {current[0]}. "
        f"Requested ReadCapacityUnits: {requested[0]}. Current WriteCapacityUnits provisioned for "
        f"the {kind}: {current[1]}. Requested WriteCapacityUnits: {requested[1]}. Refer to the "
        f"Amazon DynamoDB Developer Guide for current limits and how to request higher limits."
    )


def _billed(
    request: dict[str, Any],
    table: Table,
    billing: str,
    given: dict[str, IndexSettings],
    deleted: str | None,
) -> dict[str, IndexSettings]:
    """The settings of indexes that change because of how the table is billed."""
    if "BillingMode" not in request:
        return {}
    changed = dict[str, IndexSettings]()
    for index in indexes_of(table):
        settings = given.get(index.name, settings_of(index))
        if settings.local or not index.kept or index.name == deleted:
            continue
        if billing == "PROVISIONED" and not settings.read_units:
            raise validation(
                f"{INVALID}ProvisionedThroughput must be specified for index: {index.name}"
            )
        if billing == "PROVISIONED" and settings.on_demand:
            changed[index.name] = msgspec.structs.replace(settings, on_demand={})
        if billing == "PAY_PER_REQUEST" and settings.read_units:
            changed[index.name] = msgspec.structs.replace(settings, read_units=0, write_units=0)
    return changed
