"""Embedded tables with change streams: a document database in a folder (see `store.open`)."""

from penstock.store.conditions import Condition, attr
from penstock.store.errors import (
    AheadOfStreamError,
    ChangesMissingError,
    ConditionCheckFailedError,
    DocumentTooLargeError,
    KeyTooLargeError,
    KeyTypeMismatchError,
    Missing,
    MissingKeyAttributeError,
    RefusedError,
    StoreClosedError,
    StoreError,
    StoreLockedError,
    StreamAlreadyEnabledError,
    StreamChangedError,
    StreamError,
    StreamFullError,
    StreamNotEnabledError,
    TableAlreadyExistsError,
    TableNotFoundError,
    TransactionError,
    TrimmedDataError,
    ValueRefusedError,
    VersionMismatchError,
)
from penstock.store.keys import KeyAttribute, KeyType
from penstock.store.layout import CatalogRecord
from penstock.store.merged import Changes, Part, Recorded, View
from penstock.store.queries import ItemPage
from penstock.store.records import EventType, StreamRecord
from penstock.store.schema import Retention, StreamViewType, Table
from penstock.store.store import Store, open  # noqa: A004 - read as `store.open`
from penstock.store.streams import Page, StreamInfo
from penstock.store.transaction import Transaction, Updated
from penstock.store.values import Item, Value

__all__ = [
    "AheadOfStreamError",
    "CatalogRecord",
    "Changes",
    "ChangesMissingError",
    "Condition",
    "ConditionCheckFailedError",
    "DocumentTooLargeError",
    "EventType",
    "Item",
    "ItemPage",
    "KeyAttribute",
    "KeyTooLargeError",
    "KeyType",
    "KeyTypeMismatchError",
    "Missing",
    "MissingKeyAttributeError",
    "Page",
    "Part",
    "Recorded",
    "RefusedError",
    "Retention",
    "Store",
    "StoreClosedError",
    "StoreError",
    "StoreLockedError",
    "StreamAlreadyEnabledError",
    "StreamChangedError",
    "StreamError",
    "StreamFullError",
    "StreamInfo",
    "StreamNotEnabledError",
    "StreamRecord",
    "StreamViewType",
    "Table",
    "TableAlreadyExistsError",
    "TableNotFoundError",
    "Transaction",
    "TransactionError",
    "TrimmedDataError",
    "Updated",
    "Value",
    "ValueRefusedError",
    "VersionMismatchError",
    "View",
    "attr",
    "open",
]
