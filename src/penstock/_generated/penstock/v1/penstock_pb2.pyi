from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DATA: _ClassVar[Kind]
    HEARTBEAT: _ClassVar[Kind]
    GAP: _ClassVar[Kind]
    SCHEMA: _ClassVar[Kind]
    SYSTEM: _ClassVar[Kind]
DATA: Kind
HEARTBEAT: Kind
GAP: Kind
SCHEMA: Kind
SYSTEM: Kind

class SubscribeRequest(_message.Message):
    __slots__ = ("consumer_id", "after", "coalesce_on_catch_up", "control_events", "shard_by", "shard_count", "shard_ids", "collections")
    CONSUMER_ID_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    COALESCE_ON_CATCH_UP_FIELD_NUMBER: _ClassVar[int]
    CONTROL_EVENTS_FIELD_NUMBER: _ClassVar[int]
    SHARD_BY_FIELD_NUMBER: _ClassVar[int]
    SHARD_COUNT_FIELD_NUMBER: _ClassVar[int]
    SHARD_IDS_FIELD_NUMBER: _ClassVar[int]
    COLLECTIONS_FIELD_NUMBER: _ClassVar[int]
    consumer_id: str
    after: str
    coalesce_on_catch_up: bool
    control_events: bool
    shard_by: _containers.RepeatedScalarFieldContainer[str]
    shard_count: int
    shard_ids: _containers.RepeatedScalarFieldContainer[int]
    collections: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, consumer_id: _Optional[str] = ..., after: _Optional[str] = ..., coalesce_on_catch_up: _Optional[bool] = ..., control_events: _Optional[bool] = ..., shard_by: _Optional[_Iterable[str]] = ..., shard_count: _Optional[int] = ..., shard_ids: _Optional[_Iterable[int]] = ..., collections: _Optional[_Iterable[str]] = ...) -> None: ...

class SnapshotRequest(_message.Message):
    __slots__ = ("consumer_id", "shard_by", "shard_count", "shard_ids", "collections")
    CONSUMER_ID_FIELD_NUMBER: _ClassVar[int]
    SHARD_BY_FIELD_NUMBER: _ClassVar[int]
    SHARD_COUNT_FIELD_NUMBER: _ClassVar[int]
    SHARD_IDS_FIELD_NUMBER: _ClassVar[int]
    COLLECTIONS_FIELD_NUMBER: _ClassVar[int]
    consumer_id: str
    shard_by: _containers.RepeatedScalarFieldContainer[str]
    shard_count: int
    shard_ids: _containers.RepeatedScalarFieldContainer[int]
    collections: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, consumer_id: _Optional[str] = ..., shard_by: _Optional[_Iterable[str]] = ..., shard_count: _Optional[int] = ..., shard_ids: _Optional[_Iterable[int]] = ..., collections: _Optional[_Iterable[str]] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("id", "tenant", "collection", "document_id", "operation_type", "full_document", "update_description", "cluster_time", "timestamp", "progress", "txn_number", "source", "commit", "ordinal", "commit_rows", "full_document_before_change", "schema_version", "snapshot", "unchanged", "position", "ingested_at", "kind", "full_document_as_of_event", "disambiguated_paths", "database", "key", "transaction", "commit_digest", "ends_commit", "sequence", "coalesced", "origin")
    ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    COLLECTION_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_ID_FIELD_NUMBER: _ClassVar[int]
    OPERATION_TYPE_FIELD_NUMBER: _ClassVar[int]
    FULL_DOCUMENT_FIELD_NUMBER: _ClassVar[int]
    UPDATE_DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_TIME_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    TXN_NUMBER_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    ORDINAL_FIELD_NUMBER: _ClassVar[int]
    COMMIT_ROWS_FIELD_NUMBER: _ClassVar[int]
    FULL_DOCUMENT_BEFORE_CHANGE_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_VERSION_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    UNCHANGED_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    INGESTED_AT_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    FULL_DOCUMENT_AS_OF_EVENT_FIELD_NUMBER: _ClassVar[int]
    DISAMBIGUATED_PATHS_FIELD_NUMBER: _ClassVar[int]
    DATABASE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_FIELD_NUMBER: _ClassVar[int]
    COMMIT_DIGEST_FIELD_NUMBER: _ClassVar[int]
    ENDS_COMMIT_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    COALESCED_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    id: str
    tenant: str
    collection: str
    document_id: str
    operation_type: str
    full_document: bytes
    update_description: bytes
    cluster_time: ClusterTime
    timestamp: int
    progress: str
    txn_number: int
    source: str
    commit: int
    ordinal: int
    commit_rows: int
    full_document_before_change: bytes
    schema_version: int
    snapshot: bool
    unchanged: _containers.RepeatedScalarFieldContainer[str]
    position: str
    ingested_at: int
    kind: Kind
    full_document_as_of_event: bool
    disambiguated_paths: bytes
    database: str
    key: bytes
    transaction: str
    commit_digest: int
    ends_commit: bool
    sequence: int
    coalesced: int
    origin: bytes
    def __init__(self, id: _Optional[str] = ..., tenant: _Optional[str] = ..., collection: _Optional[str] = ..., document_id: _Optional[str] = ..., operation_type: _Optional[str] = ..., full_document: _Optional[bytes] = ..., update_description: _Optional[bytes] = ..., cluster_time: _Optional[_Union[ClusterTime, _Mapping]] = ..., timestamp: _Optional[int] = ..., progress: _Optional[str] = ..., txn_number: _Optional[int] = ..., source: _Optional[str] = ..., commit: _Optional[int] = ..., ordinal: _Optional[int] = ..., commit_rows: _Optional[int] = ..., full_document_before_change: _Optional[bytes] = ..., schema_version: _Optional[int] = ..., snapshot: _Optional[bool] = ..., unchanged: _Optional[_Iterable[str]] = ..., position: _Optional[str] = ..., ingested_at: _Optional[int] = ..., kind: _Optional[_Union[Kind, str]] = ..., full_document_as_of_event: _Optional[bool] = ..., disambiguated_paths: _Optional[bytes] = ..., database: _Optional[str] = ..., key: _Optional[bytes] = ..., transaction: _Optional[str] = ..., commit_digest: _Optional[int] = ..., ends_commit: _Optional[bool] = ..., sequence: _Optional[int] = ..., coalesced: _Optional[int] = ..., origin: _Optional[bytes] = ...) -> None: ...

class ClusterTime(_message.Message):
    __slots__ = ("t", "i")
    T_FIELD_NUMBER: _ClassVar[int]
    I_FIELD_NUMBER: _ClassVar[int]
    t: int
    i: int
    def __init__(self, t: _Optional[int] = ..., i: _Optional[int] = ...) -> None: ...

class EventBatch(_message.Message):
    __slots__ = ("events", "progress")
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[Event]
    progress: str
    def __init__(self, events: _Optional[_Iterable[_Union[Event, _Mapping]]] = ..., progress: _Optional[str] = ...) -> None: ...
