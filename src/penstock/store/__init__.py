"""Embedded tables with change streams: a document database in a folder (see `store.open`)."""

from penstock.store.conditions import Condition, attr
from penstock.store.consume import AsyncConsumer, Consumer
from penstock.store.consumers import Checkpoint
from penstock.store.documents import from_json, to_json
from penstock.store.errors import (
    AheadOfStreamError,
    ChangesMissingError,
    CheckpointConflictError,
    ConditionCheckFailedError,
    DocumentTooLargeError,
    InvalidConditionError,
    KeyAttributeUpdateError,
    KeyTooLargeError,
    KeyTypeMismatchError,
    Missing,
    MissingKeyAttributeError,
    NumberRefusedError,
    RefusedError,
    ResponseTooLargeError,
    StoreClosedError,
    StoreError,
    StoreLockedError,
    StoreSyncError,
    StoreUnsettledError,
    StreamAlreadyEnabledError,
    StreamChangedError,
    StreamClosedError,
    StreamError,
    StreamFullError,
    StreamNotEnabledError,
    TableAlreadyExistsError,
    TableNotFoundError,
    TransactionError,
    TrimmedDataError,
    UpdateTypeMismatchError,
    ValueRefusedError,
    VersionMismatchError,
)
from penstock.store.face import AnyStore, AnyTransaction
from penstock.store.keys import KeyAttribute, KeyType
from penstock.store.layout import CatalogRecord
from penstock.store.merged import Changes, Part, Recorded, View
from penstock.store.queries import ItemPage
from penstock.store.records import EventType, StreamRecord
from penstock.store.remote.aio import AsyncClient
from penstock.store.remote.client import Client
from penstock.store.remote.errors import (
    InternalServerError,
    OutcomeUnknownError,
    RequestTooLargeError,
    ServerBusyError,
    ServerStoppingError,
    ServerUnavailableError,
)
from penstock.store.schema import Retention, StreamViewType, Table
from penstock.store.store import Store, open  # noqa: A004 - read as `store.open`
from penstock.store.streams import ConsumerInfo, Page, StreamInfo
from penstock.store.syncing import SyncMode
from penstock.store.transaction import Transaction, Updated
from penstock.store.updates import Update, if_not_exists, list_append, minus, plus
from penstock.store.values import Item, Value

__all__ = [
    "AheadOfStreamError",
    "AnyStore",
    "AnyTransaction",
    "AsyncClient",
    "AsyncConsumer",
    "CatalogRecord",
    "Changes",
    "ChangesMissingError",
    "Checkpoint",
    "CheckpointConflictError",
    "Client",
    "Condition",
    "ConditionCheckFailedError",
    "Consumer",
    "ConsumerInfo",
    "DocumentTooLargeError",
    "EventType",
    "InternalServerError",
    "InvalidConditionError",
    "Item",
    "ItemPage",
    "KeyAttribute",
    "KeyAttributeUpdateError",
    "KeyTooLargeError",
    "KeyType",
    "KeyTypeMismatchError",
    "Missing",
    "MissingKeyAttributeError",
    "NumberRefusedError",
    "OutcomeUnknownError",
    "Page",
    "Part",
    "Recorded",
    "RefusedError",
    "RequestTooLargeError",
    "ResponseTooLargeError",
    "Retention",
    "ServerBusyError",
    "ServerStoppingError",
    "ServerUnavailableError",
    "Store",
    "StoreClosedError",
    "StoreError",
    "StoreLockedError",
    "StoreSyncError",
    "StoreUnsettledError",
    "StreamAlreadyEnabledError",
    "StreamChangedError",
    "StreamClosedError",
    "StreamError",
    "StreamFullError",
    "StreamInfo",
    "StreamNotEnabledError",
    "StreamRecord",
    "StreamViewType",
    "SyncMode",
    "Table",
    "TableAlreadyExistsError",
    "TableNotFoundError",
    "Transaction",
    "TransactionError",
    "TrimmedDataError",
    "Update",
    "UpdateTypeMismatchError",
    "Updated",
    "Value",
    "ValueRefusedError",
    "VersionMismatchError",
    "View",
    "attr",
    "from_json",
    "if_not_exists",
    "list_append",
    "minus",
    "open",
    "plus",
    "to_json",
]
