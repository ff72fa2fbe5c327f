"""CreateTable, UpdateTable, DescribeTable, DeleteTable, ListTables, tags, and time to live."""

from typing import Any, Final

import msgspec

from penstock.serve.dynamodb.endpoint import Endpoint
from penstock.serve.dynamodb.errors import WireError, not_found, validation
from penstock.serve.dynamodb.indexes import described_indexes, key_types
from penstock.serve.dynamodb.keys import INVALID
from penstock.serve.dynamodb.names import is_offered, table_id
from penstock.serve.dynamodb.places import NO_BACKUPS, key_schema_of
from penstock.serve.dynamodb.schemas import table_schema
from penstock.serve.dynamodb.settings import (
    Settings,
    created_settings,
    described_settings,
    settings_of,
    updated_settings,
)
from penstock.serve.dynamodb.throughput import UNITS_MAX
from penstock.serve.dynamodb.updating import IndexChanges, index_changes
from penstock.store import (
    Retention,
    StreamViewType,
    Table,
    Transaction,
    View,
)

PAGE_MAX: Final = 100
TAGS_MAX: Final = 50
_TAG_SIGNS: Final = "+-=._:/@"
_GLOBAL: Final = "GlobalSecondaryIndexes"
_NOT_OFFERED: Final = {
    "ReplicaUpdates": "global tables",
    "GlobalTableSourceArn": "global tables",
    "GlobalTableSettingsReplicationMode": "global tables",
    "GlobalTableWitnessUpdates": "global tables",
    "MultiRegionConsistency": "global tables",
    "VectorIndexes": "vector indexes",
    "VectorIndexUpdates": "vector indexes",
    "ResourcePolicy": "resource policies",
}


def create_table(endpoint: Endpoint, request: dict[str, Any]) -> dict[str, Any]:
    """Make a table. It can be used as soon as this is answered, though the answer says CREATING."""
    _refuse_unoffered(request)
    settings = created_settings(request, _tags(request.get("Tags", [])))
    keys, indexes = table_schema(request, settings.billing)
    view = _created_view(request.get("StreamSpecification"))
    name = endpoint.name(request)
    if not is_offered(name):
        raise validation("Invalid table name")
    made = endpoint.store.create_table(name).partition_key(*keys.partition)
    if keys.sort is not None:
        made.sort_key(*keys.sort)
    if view is not None:
        made.stream(view).retention(_retention(endpoint))
    made.indexed(*indexes).beside(settings.encoded())
    made.execute()
    with endpoint.store.view() as inside:
        described = _described(endpoint, inside, name)
    for index in described.get(_GLOBAL, []):
        index["IndexStatus"] = "CREATING"
    return {"TableDescription": {**described, "TableStatus": "CREATING"}}


def update_table(endpoint: Endpoint, request: dict[str, Any]) -> dict[str, Any]:
    """Enable or disable a table's stream, make or delete an index, or change how a table is billed
    and protected.

    An index that is made refuses to be read until DescribeTable says that it is ACTIVE. All else is
    done when this is answered, though the answer says UPDATING.
    """
    _refuse_unoffered(request)
    name = endpoint.name(request)
    stream = request.get("StreamSpecification")
    if stream is not None:
        _refuse_stream(stream, "being")
    changed = {
        "BillingMode",
        "ProvisionedThroughput",
        "StreamSpecification",
        "TableClass",
        "DeletionProtectionEnabled",
        "OnDemandThroughput",
        "WarmThroughput",
        "GlobalSecondaryIndexUpdates",
    }
    if not any(request.get(member) not in (None, []) for member in changed):
        raise validation(
            "At least one of ProvisionedThroughput, BillingMode, UpdateStreamEnabled, "
            "GlobalSecondaryIndexUpdates or SSESpecification or ReplicaUpdates is required"
        )
    with endpoint.store.transact() as transaction:
        table = endpoint.table(transaction, name, named=True)
        if stream is not None and stream["StreamEnabled"] == (table.stream is not None):
            raise validation(
                f"Table already has an enabled stream: TableName: {name}"
                if table.stream is not None
                else f"Table has no stream to disable: TableName: {name}"
            )
        before = settings_of(transaction.beside(name))
        settings = updated_settings(request, table, before, now_ms=endpoint.now_ms)
        changes = index_changes(request, table, settings.billing)
        transaction.put_beside(name, settings.encoded())
        for index, index_settings in changes.settings.items():
            transaction.put_beside_index(name, index, index_settings.encoded())
    if changes.deleted is not None:
        endpoint.store.drop_index(name, changes.deleted)
    if changes.made is not None:
        endpoint.maker.make(name, changes.made)
    if stream is not None and stream["StreamEnabled"]:
        view = StreamViewType(stream["StreamViewType"])
        endpoint.store.enable_stream(name, view, retention=_retention(endpoint))
    elif stream is not None:
        endpoint.store.disable_stream(name)
    with endpoint.store.view() as inside:
        described = _described(endpoint, inside, name)
    if changes.made is not None or changes.deleted is not None:
        before_them = described_indexes(table, described["TableArn"], {})
        described[_GLOBAL] = _under_way(described, before_them, changes)
    return {"TableDescription": {**described, "TableStatus": "UPDATING"}}


def describe_table(endpoint: Endpoint, request: dict[str, Any]) -> dict[str, Any]:
    """A table, its indexes, and how much they hold."""
    with endpoint.store.view() as inside:
        return {"Table": _described(endpoint, inside, endpoint.name(request))}


def delete_table(endpoint: Endpoint, request: dict[str, Any]) -> dict[str, Any]:
    """Remove a table. Its stream ends, and is told and read until its retention has passed."""
    name = endpoint.name(request)
    with endpoint.store.view() as inside:
        described = _described(endpoint, inside, name)
    if described["DeletionProtectionEnabled"]:
        raise validation(
            "Resource cannot be deleted as it is currently protected against deletion. Disable "
            "deletion protection first."
        )
    endpoint.store.drop_table(name)
    return {"TableDescription": {**described, "TableStatus": "DELETING"}}


def list_tables(endpoint: Endpoint, request: dict[str, Any]) -> dict[str, Any]:
    """Tables by name; those whose names the protocol does not allow are left out."""
    start, limit = request.get("ExclusiveStartTableName", ""), request.get("Limit", PAGE_MAX)
    names = [name for name in endpoint.store.list_tables() if is_offered(name) and name > start]
    told: dict[str, Any] = {"TableNames": names[:limit]}
    if len(names) > limit:
        told["LastEvaluatedTableName"] = names[limit - 1]
    return told


def describe_limits(_endpoint: Endpoint, _request: dict[str, Any]) -> dict[str, Any]:
    """The largest capacities that are taken, which nothing here is limited by."""
    return {
        f"{whose}Max{kind}CapacityUnits": UNITS_MAX
        for whose in ("Account", "Table")
        for kind in ("Read", "Write")
    }


# --- tags -----------------------------------------------------------------------------------------


def tag_resource(endpoint: Endpoint, request: dict[str, Any]) -> dict[str, Any]:
    """Add tags to a table, or change them."""
    endpoint.names.resource_name(request["ResourceArn"], "TagResource")
    if not request["Tags"]:
        raise validation("Atleast one Tag needs to be provided as Input.")
    added = _tags(request["Tags"])
    with endpoint.store.transact() as transaction:
        table, settings = _tagged(endpoint, transaction, request, "TagResource")
        tags = {**settings.tags, **added}
        if len(tags) > TAGS_MAX:
            raise validation(f"{INVALID}Too many tags: a table has at most {TAGS_MAX}")
        _put_tags(transaction, table, settings, tags)
    return {}


def untag_resource(endpoint: Endpoint, request: dict[str, Any]) -> dict[str, Any]:
    """Take tags from a table."""
    endpoint.names.resource_name(request["ResourceArn"], "UntagResource")
    if not request["TagKeys"]:
        raise validation("Atleast one Tag Key needs to be provided as Input.")
    removed = set(request["TagKeys"])
    with endpoint.store.transact() as transaction:
        table, settings = _tagged(endpoint, transaction, request, "UntagResource")
        tags = {key: value for key, value in settings.tags.items() if key not in removed}
        _put_tags(transaction, table, settings, tags)
    return {}


def list_tags_of_resource(endpoint: Endpoint, request: dict[str, Any]) -> dict[str, Any]:
    """The tags of a table. As the service: those of one that is not there are denied."""
    arn, operation = request["ResourceArn"], "ListTagsOfResource"
    name = endpoint.names.resource_name(arn, operation)
    with endpoint.store.view() as inside:
        try:
            table = endpoint.table(inside, name)
        except WireError:
            raise endpoint.names.denied(arn, operation) from None
        tags = settings_of(inside.beside(table)).tags
    return {"Tags": [{"Key": key, "Value": value} for key, value in tags.items()]}


def _tagged(
    endpoint: Endpoint, transaction: Transaction, request: dict[str, Any], operation: str
) -> tuple[Table, Settings]:
    table = _of_arn(endpoint, transaction, request, operation)
    return table, settings_of(transaction.beside(table.name))


def _put_tags(
    transaction: Transaction, table: Table, settings: Settings, tags: dict[str, str]
) -> None:
    changed = msgspec.structs.replace(settings, tags=tags)
    transaction.put_beside(table.name, changed.encoded())


def _of_arn(
    endpoint: Endpoint, inside: Transaction, request: dict[str, Any], operation: str
) -> Table:
    """The table of a ResourceArn, whose tags are to change."""
    arn = request["ResourceArn"]
    table = endpoint.names.resource_name(arn, operation)
    try:
        return endpoint.table(inside, table)
    except WireError:
        raise not_found(f"ResourceArn: {arn} not found") from None


def _tags(given: list[dict[str, str]]) -> dict[str, str]:
    for tag in given:
        for member in ("Key", "Value"):
            if not all(one.isalnum() or one.isspace() or one in _TAG_SIGNS for one in tag[member]):
                raise validation(
                    f"{INVALID}A tag's {member} has letters, digits, whitespace and "
                    f"{' '.join(_TAG_SIGNS)} only: {tag[member]}"
                )
        if tag["Key"].lower().startswith("aws:"):
            raise validation(f"{INVALID}The prefix aws: of a tag's Key is reserved: {tag['Key']}")
    tags = {tag["Key"]: tag["Value"] for tag in given}
    if len(tags) < len(given):
        raise validation(f"{INVALID}Duplicate keys are not allowed in the list of tags")
    return tags


# --- time to live ---------------------------------------------------------------------------------


def update_time_to_live(endpoint: Endpoint, request: dict[str, Any]) -> dict[str, Any]:
    """Let items expire by an attribute, or no more. They are out of sight from their second on."""
    wanted = request["TimeToLiveSpecification"]
    name, attribute = endpoint.name(request), wanted["AttributeName"]
    with endpoint.store.view() as inside:
        current = endpoint.table(inside, name, named=True).ttl_attribute
    if wanted["Enabled"] == (current is not None):
        raise validation(f"TimeToLive is already {'enabled' if current else 'disabled'}")
    if not wanted["Enabled"] and current != attribute:
        raise validation(
            f"TimeToLive is active on a different AttributeName: current AttributeName is {current}"
        )
    endpoint.store.set_ttl(name, attribute if wanted["Enabled"] else None)
    return {"TimeToLiveSpecification": wanted}


def describe_time_to_live(endpoint: Endpoint, request: dict[str, Any]) -> dict[str, Any]:
    """By which attribute a table's items expire."""
    with endpoint.store.view() as inside:
        attribute = endpoint.table(inside, endpoint.name(request), named=True).ttl_attribute
    told = {"TimeToLiveStatus": "DISABLED" if attribute is None else "ENABLED"}
    if attribute is not None:
        told["AttributeName"] = attribute
    return {"TimeToLiveDescription": told}


def describe_continuous_backups(endpoint: Endpoint, request: dict[str, Any]) -> dict[str, Any]:
    """That there are none: clients ask before they look at a table any further."""
    with endpoint.store.view() as inside:
        endpoint.table(inside, endpoint.name(request), named=True)
    return NO_BACKUPS


# --- what a request says of a table ---------------------------------------------------------------


def _described(endpoint: Endpoint, inside: View, name: str) -> dict[str, Any]:
    table = endpoint.table(inside, name, named=True)
    arn = endpoint.names.table_arn(table.name)
    amounts = endpoint.counter.of(inside, table)
    sizes = {
        number: {"ItemCount": amount.items, "IndexSizeBytes": amount.bytes}
        for number, amount in ({} if amounts is None else amounts.indexes).items()
    }
    described: dict[str, Any] = {
        "TableName": table.name,
        "TableArn": arn,
        "TableId": table_id(inside.store_id, table),
        "TableStatus": "ACTIVE",
        "CreationDateTime": table.created_ms / 1000,
        "KeySchema": key_schema_of(table.key_names),
        "AttributeDefinitions": [
            {"AttributeName": name, "AttributeType": type_.value}
            for name, type_ in key_types(table).items()
        ],
        **described_settings(settings_of(inside.beside(table)), table),
        **described_indexes(table, arn, sizes),
    }
    if amounts is not None:
        described |= {"ItemCount": amounts.table.items, "TableSizeBytes": amounts.table.bytes}
    streams = [stream for stream in inside.streams() if stream.table_id == table.id]
    if streams:
        described["LatestStreamArn"] = endpoint.names.stream_arn(streams[-1])
        described["LatestStreamLabel"] = streams[-1].label
        if table.stream is not None:
            described["StreamSpecification"] = {
                "StreamEnabled": True,
                "StreamViewType": streams[-1].view.value,
            }
    return described


def _under_way(
    described: dict[str, Any], before: dict[str, Any], changes: IndexChanges
) -> list[dict[str, Any]]:
    """The indexes in an answer to UpdateTable that makes or deletes one: that is begun."""
    indexes: list[dict[str, Any]] = described.get(_GLOBAL, [])
    if changes.made is not None:
        indexes = [
            {**one, "IndexStatus": "CREATING", "Backfilling": False}
            if one["IndexName"] == changes.made.name
            else one
            for one in indexes
        ]
    for one in before.get(_GLOBAL, []):
        if one["IndexName"] == changes.deleted:
            indexes = [*indexes, {**one, "IndexStatus": "DELETING"}]
    return indexes


def _created_view(stream: dict[str, Any] | None) -> StreamViewType | None:
    if stream is None:
        return None
    _refuse_stream(stream, "created")
    return StreamViewType(stream["StreamViewType"]) if stream["StreamEnabled"] else None


def _refuse_stream(stream: dict[str, Any], how: str) -> None:
    """Refuse a StreamSpecification with a view and no stream, or a stream and no view."""
    enabled, viewed = stream["StreamEnabled"], "StreamViewType" in stream
    if enabled == viewed:
        return
    if how == "created":
        state, ending = (
            ("enabled", "is required") if enabled else ("disabled", "should not be specified")
        )
        raise validation(
            f"{INVALID}Table is being created with a stream {state}, UpdateViewType {ending}"
        )
    raise validation(
        f"{INVALID}If stream is being enabled then UpdateViewType is required"
        if enabled
        else f"{INVALID}If stream is being disabled, then UpdateViewType must not be specified"
    )


def _refuse_unoffered(request: dict[str, Any]) -> None:
    for member, what in _NOT_OFFERED.items():
        if request.get(member):
            raise validation(f"{INVALID}{member}: this endpoint does not offer {what}")
    encryption = request.get("SSESpecification", {})
    if encryption.get("Enabled", bool(encryption)):
        raise validation(f"{INVALID}SSESpecification: this endpoint encrypts nothing")


def _retention(endpoint: Endpoint) -> Retention:
    seconds = max(round(endpoint.config.stream_retention), 1)
    return Retention(age_seconds=seconds, records_max=None)
