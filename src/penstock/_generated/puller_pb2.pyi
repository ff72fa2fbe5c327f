from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SubscribeRequest(_message.Message):
    __slots__ = ("consumer_id", "after", "coalesce_on_catch_up")
    CONSUMER_ID_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    COALESCE_ON_CATCH_UP_FIELD_NUMBER: _ClassVar[int]
    consumer_id: str
    after: str
    coalesce_on_catch_up: bool
    def __init__(self, consumer_id: _Optional[str] = ..., after: _Optional[str] = ..., coalesce_on_catch_up: _Optional[bool] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("id", "tenant", "collection", "document_id", "operation_type", "full_document", "update_description", "cluster_time", "timestamp", "progress")
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
    def __init__(self, id: _Optional[str] = ..., tenant: _Optional[str] = ..., collection: _Optional[str] = ..., document_id: _Optional[str] = ..., operation_type: _Optional[str] = ..., full_document: _Optional[bytes] = ..., update_description: _Optional[bytes] = ..., cluster_time: _Optional[_Union[ClusterTime, _Mapping]] = ..., timestamp: _Optional[int] = ..., progress: _Optional[str] = ...) -> None: ...

class ClusterTime(_message.Message):
    __slots__ = ("t", "i")
    T_FIELD_NUMBER: _ClassVar[int]
    I_FIELD_NUMBER: _ClassVar[int]
    t: int
    i: int
    def __init__(self, t: _Optional[int] = ..., i: _Optional[int] = ...) -> None: ...
