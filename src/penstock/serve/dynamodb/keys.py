"""Keys and items of requests, against the keys of a table, with DynamoDB's words for misfits."""

from typing import Any, Final

from penstock.serve.dynamodb.errors import EmptyKeyError, validation
from penstock.store import Item, Table
from penstock.store.keys import PARTITION_BYTES_MAX, SORT_BYTES_MAX, KeyAttribute, KeyType
from penstock.store.kinds import type_of
from penstock.store.schema import Index

MISFIT: Final = "The provided key element does not match the schema"
INVALID: Final = "One or more parameter values were invalid: "


def check_key(table: Table, key: Item, *, said: str = "") -> None:
    """Raise WireError unless these attributes are a key of the table."""
    if set(key) != set(table.key_names):
        raise validation(f"{said}{MISFIT}")
    for attribute in attributes(table):
        if type_of(key[attribute.name]).value != attribute.type.value:
            raise validation(f"{said}{MISFIT}")
        refuse_value(attribute, key[attribute.name], sort=attribute is table.sort_key)


def check_item(table: Table, item: Item, *, batched: bool = False) -> None:
    """Raise WireError unless an item has a key of the table. In a batch all misfits are one."""
    for attribute in attributes(table):
        fits = attribute.name in item and type_of(item[attribute.name]).value == attribute.type
        if batched and not fits:
            raise validation(MISFIT)
        if attribute.name not in item:
            raise validation(f"{INVALID}Missing the key {attribute.name} in the item")
        actual = type_of(item[attribute.name]).value
        if actual != attribute.type.value:
            raise validation(
                f"{INVALID}Type mismatch for key {attribute.name} expected: "
                f"{attribute.type.value} actual: {actual}"
            )
        refuse_value(attribute, item[attribute.name], sort=attribute is table.sort_key)


def attributes(keyed: Table | Index) -> list[KeyAttribute]:
    """The key attributes of a table or an index, the partition key first."""
    return [one for one in (keyed.partition_key, keyed.sort_key) if one is not None]


def refuse_value(attribute: KeyAttribute, value: Any, *, sort: bool) -> None:
    """Refuse a value of the attribute's type that is empty or too long for a key."""
    if attribute.type is KeyType.NUMBER:
        return
    if not value:
        kind = "string" if attribute.type is KeyType.STRING else "binary"
        raise EmptyKeyError(
            f"One or more parameter values are not valid. The AttributeValue for a key attribute "
            f"cannot contain an empty {kind} value. Key: {attribute.name}"
        )
    refuse_length(attribute, value, sort=sort)


def refuse_length(attribute: KeyAttribute, value: Any, *, sort: bool) -> None:
    """Refuse a value of the attribute's type that is too long for a key."""
    if attribute.type is KeyType.NUMBER:
        return
    size = len(value.encode()) if isinstance(value, str) else len(value)
    if sort and size > SORT_BYTES_MAX:
        raise validation(
            f"{INVALID}Aggregated size of all range keys has exceeded the size limit of "
            f"{SORT_BYTES_MAX} bytes"
        )
    if not sort and size > PARTITION_BYTES_MAX:
        raise validation(
            f"{INVALID}Size of hashkey has exceeded the maximum size limit of"
            f"{PARTITION_BYTES_MAX} bytes"
        )
