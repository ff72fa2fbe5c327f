from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CaptureArea(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    AREA_ANY: _ClassVar[CaptureArea]
    AREA_SYSTEM: _ClassVar[CaptureArea]
    AREA_CATALOG_SCHEMA: _ClassVar[CaptureArea]
    AREA_ENTITY_SCHEMA: _ClassVar[CaptureArea]
    AREA_SCHEMA: _ClassVar[CaptureArea]
    AREA_DATA: _ClassVar[CaptureArea]
    AREA_INFRASTRUCTURE: _ClassVar[CaptureArea]

class CaptureContent(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CONTENT_HEADER: _ClassVar[CaptureContent]
    CONTENT_BODY: _ClassVar[CaptureContent]

class CaptureContainer(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CONTAINER_ANY: _ClassVar[CaptureContainer]
    CONTAINER_CATALOG: _ClassVar[CaptureContainer]
    CONTAINER_ENTITY: _ClassVar[CaptureContainer]
    CONTAINER_ATTRIBUTE: _ClassVar[CaptureContainer]

class CaptureMutation(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MUTATION_NONE: _ClassVar[CaptureMutation]
    MUTATION_UPSERT: _ClassVar[CaptureMutation]
    MUTATION_REMOVE: _ClassVar[CaptureMutation]
AREA_ANY: CaptureArea
AREA_SYSTEM: CaptureArea
AREA_CATALOG_SCHEMA: CaptureArea
AREA_ENTITY_SCHEMA: CaptureArea
AREA_SCHEMA: CaptureArea
AREA_DATA: CaptureArea
AREA_INFRASTRUCTURE: CaptureArea
CONTENT_HEADER: CaptureContent
CONTENT_BODY: CaptureContent
CONTAINER_ANY: CaptureContainer
CONTAINER_CATALOG: CaptureContainer
CONTAINER_ENTITY: CaptureContainer
CONTAINER_ATTRIBUTE: CaptureContainer
MUTATION_NONE: CaptureMutation
MUTATION_UPSERT: CaptureMutation
MUTATION_REMOVE: CaptureMutation

class CaptureCommand(_message.Message):
    __slots__ = ("reference", "subscribe", "extend", "change", "limit", "request", "cancel", "ping")
    REFERENCE_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIBE_FIELD_NUMBER: _ClassVar[int]
    EXTEND_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    PING_FIELD_NUMBER: _ClassVar[int]
    reference: str
    subscribe: CaptureSubscribeRequest
    extend: CaptureRequest
    change: CaptureRequest
    limit: CaptureLimit
    request: CaptureCredit
    cancel: CaptureCancel
    ping: CapturePing
    def __init__(self, reference: _Optional[str] = ..., subscribe: _Optional[_Union[CaptureSubscribeRequest, _Mapping]] = ..., extend: _Optional[_Union[CaptureRequest, _Mapping]] = ..., change: _Optional[_Union[CaptureRequest, _Mapping]] = ..., limit: _Optional[_Union[CaptureLimit, _Mapping]] = ..., request: _Optional[_Union[CaptureCredit, _Mapping]] = ..., cancel: _Optional[_Union[CaptureCancel, _Mapping]] = ..., ping: _Optional[_Union[CapturePing, _Mapping]] = ...) -> None: ...

class CaptureSubscribeRequest(_message.Message):
    __slots__ = ("requests", "credit", "envelope")
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    ENVELOPE_FIELD_NUMBER: _ClassVar[int]
    requests: _containers.RepeatedCompositeFieldContainer[CaptureRequest]
    credit: int
    envelope: str
    def __init__(self, requests: _Optional[_Iterable[_Union[CaptureRequest, _Mapping]]] = ..., credit: _Optional[int] = ..., envelope: _Optional[str] = ...) -> None: ...

class CaptureRequest(_message.Message):
    __slots__ = ("id", "criteria", "content", "before_images", "since", "complete_after")
    ID_FIELD_NUMBER: _ClassVar[int]
    CRITERIA_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    BEFORE_IMAGES_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_AFTER_FIELD_NUMBER: _ClassVar[int]
    id: str
    criteria: _containers.RepeatedCompositeFieldContainer[CaptureCriterion]
    content: CaptureContent
    before_images: bool
    since: CaptureSince
    complete_after: int
    def __init__(self, id: _Optional[str] = ..., criteria: _Optional[_Iterable[_Union[CaptureCriterion, _Mapping]]] = ..., content: _Optional[_Union[CaptureContent, str]] = ..., before_images: _Optional[bool] = ..., since: _Optional[_Union[CaptureSince, _Mapping]] = ..., complete_after: _Optional[int] = ...) -> None: ...

class CaptureCriterion(_message.Message):
    __slots__ = ("area", "site")
    AREA_FIELD_NUMBER: _ClassVar[int]
    SITE_FIELD_NUMBER: _ClassVar[int]
    area: CaptureArea
    site: CaptureSite
    def __init__(self, area: _Optional[_Union[CaptureArea, str]] = ..., site: _Optional[_Union[CaptureSite, _Mapping]] = ...) -> None: ...

class CaptureSite(_message.Message):
    __slots__ = ("catalog", "entity_type", "entity_primary_key", "operation", "container_type", "fields")
    CATALOG_FIELD_NUMBER: _ClassVar[int]
    ENTITY_TYPE_FIELD_NUMBER: _ClassVar[int]
    ENTITY_PRIMARY_KEY_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_TYPE_FIELD_NUMBER: _ClassVar[int]
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    catalog: _containers.RepeatedScalarFieldContainer[str]
    entity_type: _containers.RepeatedScalarFieldContainer[str]
    entity_primary_key: _containers.RepeatedScalarFieldContainer[str]
    operation: _containers.RepeatedScalarFieldContainer[str]
    container_type: _containers.RepeatedScalarFieldContainer[CaptureContainer]
    fields: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, catalog: _Optional[_Iterable[str]] = ..., entity_type: _Optional[_Iterable[str]] = ..., entity_primary_key: _Optional[_Iterable[str]] = ..., operation: _Optional[_Iterable[str]] = ..., container_type: _Optional[_Iterable[_Union[CaptureContainer, str]]] = ..., fields: _Optional[_Iterable[str]] = ...) -> None: ...

class CaptureSince(_message.Message):
    __slots__ = ("version", "commit", "transaction", "progress", "timestamp", "beginning")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    BEGINNING_FIELD_NUMBER: _ClassVar[int]
    version: CaptureVersion
    commit: int
    transaction: str
    progress: str
    timestamp: int
    beginning: bool
    def __init__(self, version: _Optional[_Union[CaptureVersion, _Mapping]] = ..., commit: _Optional[int] = ..., transaction: _Optional[str] = ..., progress: _Optional[str] = ..., timestamp: _Optional[int] = ..., beginning: _Optional[bool] = ...) -> None: ...

class CaptureVersion(_message.Message):
    __slots__ = ("version", "index")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    version: int
    index: int
    def __init__(self, version: _Optional[int] = ..., index: _Optional[int] = ...) -> None: ...

class CaptureLimit(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class CaptureCredit(_message.Message):
    __slots__ = ("n",)
    N_FIELD_NUMBER: _ClassVar[int]
    n: int
    def __init__(self, n: _Optional[int] = ...) -> None: ...

class CaptureCancel(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CapturePing(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CaptureMessage(_message.Message):
    __slots__ = ("outputs",)
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    outputs: _containers.RepeatedCompositeFieldContainer[CaptureOutput]
    def __init__(self, outputs: _Optional[_Iterable[_Union[CaptureOutput, _Mapping]]] = ...) -> None: ...

class CaptureOutput(_message.Message):
    __slots__ = ("confirmed", "capture", "boundary", "maintenance", "finished", "refused", "pong")
    CONFIRMED_FIELD_NUMBER: _ClassVar[int]
    CAPTURE_FIELD_NUMBER: _ClassVar[int]
    BOUNDARY_FIELD_NUMBER: _ClassVar[int]
    MAINTENANCE_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    PONG_FIELD_NUMBER: _ClassVar[int]
    confirmed: CaptureConfirmed
    capture: Capture
    boundary: CaptureBoundary
    maintenance: CaptureMaintenance
    finished: CaptureFinished
    refused: CaptureRefused
    pong: CapturePong
    def __init__(self, confirmed: _Optional[_Union[CaptureConfirmed, _Mapping]] = ..., capture: _Optional[_Union[Capture, _Mapping]] = ..., boundary: _Optional[_Union[CaptureBoundary, _Mapping]] = ..., maintenance: _Optional[_Union[CaptureMaintenance, _Mapping]] = ..., finished: _Optional[_Union[CaptureFinished, _Mapping]] = ..., refused: _Optional[_Union[CaptureRefused, _Mapping]] = ..., pong: _Optional[_Union[CapturePong, _Mapping]] = ...) -> None: ...

class CaptureConfirmed(_message.Message):
    __slots__ = ("request_id", "progress", "version", "waiting")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    progress: str
    version: int
    waiting: bool
    def __init__(self, request_id: _Optional[str] = ..., progress: _Optional[str] = ..., version: _Optional[int] = ..., waiting: _Optional[bool] = ...) -> None: ...

class Capture(_message.Message):
    __slots__ = ("request_ids", "progress", "version", "index", "id", "timestamp", "transaction", "area", "operation", "mutation", "source", "catalog", "tenant", "entity_type", "entity_primary_key", "document_id", "schema_version", "snapshot", "body", "enveloped")
    REQUEST_IDS_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_FIELD_NUMBER: _ClassVar[int]
    AREA_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    MUTATION_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    CATALOG_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    ENTITY_TYPE_FIELD_NUMBER: _ClassVar[int]
    ENTITY_PRIMARY_KEY_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_ID_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_VERSION_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    ENVELOPED_FIELD_NUMBER: _ClassVar[int]
    request_ids: _containers.RepeatedScalarFieldContainer[str]
    progress: str
    version: int
    index: int
    id: str
    timestamp: int
    transaction: str
    area: CaptureArea
    operation: str
    mutation: CaptureMutation
    source: str
    catalog: str
    tenant: str
    entity_type: str
    entity_primary_key: bytes
    document_id: str
    schema_version: int
    snapshot: bool
    body: CaptureBody
    enveloped: bytes
    def __init__(self, request_ids: _Optional[_Iterable[str]] = ..., progress: _Optional[str] = ..., version: _Optional[int] = ..., index: _Optional[int] = ..., id: _Optional[str] = ..., timestamp: _Optional[int] = ..., transaction: _Optional[str] = ..., area: _Optional[_Union[CaptureArea, str]] = ..., operation: _Optional[str] = ..., mutation: _Optional[_Union[CaptureMutation, str]] = ..., source: _Optional[str] = ..., catalog: _Optional[str] = ..., tenant: _Optional[str] = ..., entity_type: _Optional[str] = ..., entity_primary_key: _Optional[bytes] = ..., document_id: _Optional[str] = ..., schema_version: _Optional[int] = ..., snapshot: _Optional[bool] = ..., body: _Optional[_Union[CaptureBody, _Mapping]] = ..., enveloped: _Optional[bytes] = ...) -> None: ...

class CaptureBody(_message.Message):
    __slots__ = ("full_document", "update_description", "disambiguated_paths", "full_document_before_change", "unchanged", "description")
    FULL_DOCUMENT_FIELD_NUMBER: _ClassVar[int]
    UPDATE_DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    DISAMBIGUATED_PATHS_FIELD_NUMBER: _ClassVar[int]
    FULL_DOCUMENT_BEFORE_CHANGE_FIELD_NUMBER: _ClassVar[int]
    UNCHANGED_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    full_document: bytes
    update_description: bytes
    disambiguated_paths: bytes
    full_document_before_change: bytes
    unchanged: _containers.RepeatedScalarFieldContainer[str]
    description: bytes
    def __init__(self, full_document: _Optional[bytes] = ..., update_description: _Optional[bytes] = ..., disambiguated_paths: _Optional[bytes] = ..., full_document_before_change: _Optional[bytes] = ..., unchanged: _Optional[_Iterable[str]] = ..., description: _Optional[bytes] = ...) -> None: ...

class CaptureBoundary(_message.Message):
    __slots__ = ("request_ids", "begins", "progress", "version", "index", "source", "transaction", "timestamp", "mutation_count", "digest", "matched", "enveloped")
    class MatchedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    REQUEST_IDS_FIELD_NUMBER: _ClassVar[int]
    BEGINS_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    MUTATION_COUNT_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    MATCHED_FIELD_NUMBER: _ClassVar[int]
    ENVELOPED_FIELD_NUMBER: _ClassVar[int]
    request_ids: _containers.RepeatedScalarFieldContainer[str]
    begins: bool
    progress: str
    version: int
    index: int
    source: str
    transaction: str
    timestamp: int
    mutation_count: int
    digest: int
    matched: _containers.ScalarMap[str, int]
    enveloped: bytes
    def __init__(self, request_ids: _Optional[_Iterable[str]] = ..., begins: _Optional[bool] = ..., progress: _Optional[str] = ..., version: _Optional[int] = ..., index: _Optional[int] = ..., source: _Optional[str] = ..., transaction: _Optional[str] = ..., timestamp: _Optional[int] = ..., mutation_count: _Optional[int] = ..., digest: _Optional[int] = ..., matched: _Optional[_Mapping[str, int]] = ..., enveloped: _Optional[bytes] = ...) -> None: ...

class CaptureMaintenance(_message.Message):
    __slots__ = ("progress", "positions", "at", "interval_ms")
    class PositionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    progress: str
    positions: _containers.ScalarMap[str, str]
    at: int
    interval_ms: int
    def __init__(self, progress: _Optional[str] = ..., positions: _Optional[_Mapping[str, str]] = ..., at: _Optional[int] = ..., interval_ms: _Optional[int] = ...) -> None: ...

class CaptureFinished(_message.Message):
    __slots__ = ("request_id", "error")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    error: CaptureError
    def __init__(self, request_id: _Optional[str] = ..., error: _Optional[_Union[CaptureError, _Mapping]] = ...) -> None: ...

class CaptureRefused(_message.Message):
    __slots__ = ("reference", "request_id", "error")
    REFERENCE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    reference: str
    request_id: str
    error: CaptureError
    def __init__(self, reference: _Optional[str] = ..., request_id: _Optional[str] = ..., error: _Optional[_Union[CaptureError, _Mapping]] = ...) -> None: ...

class CaptureError(_message.Message):
    __slots__ = ("code", "message", "oldest", "after")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    OLDEST_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    code: str
    message: str
    oldest: str
    after: str
    def __init__(self, code: _Optional[str] = ..., message: _Optional[str] = ..., oldest: _Optional[str] = ..., after: _Optional[str] = ...) -> None: ...

class CapturePong(_message.Message):
    __slots__ = ("reference", "at")
    REFERENCE_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    reference: str
    at: int
    def __init__(self, reference: _Optional[str] = ..., at: _Optional[int] = ...) -> None: ...
