"""What a store's clients may ask: one JSON object a line, named by `op`.

Values of items stand in one of two forms, which `values` names. "plain" is JSON as it is, numbers
with all of their digits; it has no bytes and no sets. "dynamodb" is DynamoDB's JSON ({"N": "1"}),
which has every value. A request is read in the form that it names, never guessed. An answer is in
that form too, unless plain JSON cannot say it: then it is DynamoDB's, and says so in `values`.

Every object is checked before anything is done: an unknown field or a wrong type is refused.
"""

from decimal import Decimal
from typing import Any, Final, Literal, cast

import msgspec
from msgspec import UNSET, Struct

from penstock.store.errors import RefusedError
from penstock.store.schema import Retention, StreamViewType

BATCH_GET_MAX: Final = 1000
BATCH_WRITE_MAX: Final = 25
TRANSACT_MAX: Final = 100

Form = Literal["plain", "dynamodb"]


class Request(
    Struct,
    frozen=True,
    kw_only=True,
    tag_field="op",
    forbid_unknown_fields=True,
    omit_defaults=True,
):
    """Anything that may be asked."""


class Valued(Request, frozen=True, kw_only=True):
    """A request whose values, or whose answer's, have a form."""

    values: Form = "plain"


# --- items ----------------------------------------------------------------------------------------


class GetItem(Valued, frozen=True, kw_only=True, tag="get_item"):
    """{"item": item or null}"""

    table: str
    key: Any


class GetItemVersioned(Valued, frozen=True, kw_only=True, tag="get_item_versioned"):
    """{"item": item or null, "version": 0 for none}"""

    table: str
    key: Any


class BatchGetItem(Valued, frozen=True, kw_only=True, tag="batch_get_item"):
    """{"items": [item or null]}, by the places of at most 1000 keys, as of one moment."""

    table: str
    keys: list[Any]


class PutItem(Valued, frozen=True, kw_only=True, tag="put_item"):
    """{}, or with ALL_OLD {"old": the item that was replaced, or null}"""

    table: str
    item: Any
    condition: Any = None
    expected_version: int | None = None
    return_values: Literal["NONE", "ALL_OLD"] = "NONE"


class DeleteItem(Valued, frozen=True, kw_only=True, tag="delete_item"):
    """As `put_item`."""

    table: str
    key: Any
    condition: Any = None
    expected_version: int | None = None
    return_values: Literal["NONE", "ALL_OLD"] = "NONE"


class UpdateAction(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One change of an item: `value` in the request's form, or for SET an `expression`."""

    action: Literal["SET", "REMOVE", "ADD", "DELETE"]
    path: str | list[str | int]
    value: Any = UNSET
    expression: Any = UNSET


class UpdateItem(Valued, frozen=True, kw_only=True, tag="update_item"):
    """{}, or {"old": item or null} with ALL_OLD, {"new": item} with ALL_NEW, both with BOTH."""

    table: str
    key: Any
    updates: list[UpdateAction]
    condition: Any = None
    expected_version: int | None = None
    return_values: Literal["NONE", "ALL_OLD", "ALL_NEW", "BOTH"] = "NONE"


class CheckItem(Valued, frozen=True, kw_only=True, tag="check_item"):
    """{} if the condition holds; only inside a transaction."""

    table: str
    key: Any
    condition: Any


class Put(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An item to be put."""

    table: str
    item: Any


class Delete(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An item to be removed."""

    table: str
    key: Any


class BatchWriteItem(Valued, frozen=True, kw_only=True, tag="batch_write_item"):
    """{}: at most 25 items of any tables, all or none; puts come first."""

    puts: list[Put] = []
    deletes: list[Delete] = []


class Transact(Valued, frozen=True, kw_only=True, tag="transact"):
    """{"answers": [each action's own answer]}: all or none of at most 100, in their order."""

    actions: "list[PutItem | DeleteItem | UpdateItem | CheckItem | GetItem]"


class BeginTransaction(Request, frozen=True, kw_only=True, tag="begin_transaction"):
    """{}. What follows on this connection is one transaction, until it is ended."""


class CommitTransaction(Request, frozen=True, kw_only=True, tag="commit_transaction"):
    """{}: everything since `begin_transaction` is kept, and durable."""


class AbortTransaction(Request, frozen=True, kw_only=True, tag="abort_transaction"):
    """{}: nothing since `begin_transaction` is kept."""


# --- reading many ---------------------------------------------------------------------------------


class SortKeyCondition(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the sort key must be: `value`, or for between `low` and `high`."""

    op: Literal["eq", "lt", "le", "gt", "ge", "between", "begins_with"]
    value: Any = UNSET
    low: Any = UNSET
    high: Any = UNSET


class Scan(Valued, frozen=True, kw_only=True, tag="scan"):
    """{"items": [item], "last_key": key or null, "evaluated": how many were looked at}"""

    table: str
    limit: int | None = None
    exclusive_start_key: Any = None
    filter: Any = None
    projection: list[str | list[str | int]] = []


class Query(Valued, frozen=True, kw_only=True, tag="query"):
    """As `scan`, of one partition."""

    table: str
    partition_key: Any
    sort_key_condition: SortKeyCondition | None = None
    scan_forward: bool = True
    limit: int | None = None
    exclusive_start_key: Any = None
    filter: Any = None
    projection: list[str | list[str | int]] = []


class QueryIndex(Query, frozen=True, kw_only=True, tag="query_index"):
    """As `query`, of one partition of an index; `last_key` has the index's keys too."""

    index: str


class Count(Request, frozen=True, kw_only=True, tag="count"):
    """{"count": how many items a table has}"""

    table: str


# --- tables ---------------------------------------------------------------------------------------


class Key(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A key attribute."""

    name: str
    type: Literal["S", "N", "B"]


class StreamSpecification(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A stream that is to be enabled."""

    view: StreamViewType
    unchanged: bool = False
    retention: Retention | None = None


class CreateTable(Request, frozen=True, kw_only=True, tag="create_table"):
    """{}"""

    table: str
    partition_key: Key
    sort_key: Key | None = None
    ttl_attribute: str | None = None
    stream: StreamSpecification | None = None


class DropTable(Request, frozen=True, kw_only=True, tag="drop_table"):
    """{}"""

    table: str


class ListTables(Request, frozen=True, kw_only=True, tag="list_tables"):
    """{"tables": [name]}"""


class DescribeTable(Request, frozen=True, kw_only=True, tag="describe_table"):
    """{"table": its schema}"""

    table: str


class CreateIndex(Request, frozen=True, kw_only=True, tag="create_index"):
    """{} once every item is in it that belongs there, which may take long."""

    table: str
    index: str
    partition_key: Key
    sort_key: Key | None = None
    scope: str | None = None


class DropIndex(Request, frozen=True, kw_only=True, tag="drop_index"):
    """{}"""

    table: str
    index: str


class SetTtl(Request, frozen=True, kw_only=True, tag="set_ttl"):
    """{}"""

    table: str
    attribute: str


class GetTtl(Request, frozen=True, kw_only=True, tag="get_ttl"):
    """{"attribute": name or null}"""

    table: str


class RemoveTtl(Request, frozen=True, kw_only=True, tag="remove_ttl"):
    """{}"""

    table: str


class SweepExpiredTtl(Request, frozen=True, kw_only=True, tag="sweep_expired_ttl"):
    """{"removed": how much a bounded step of the sweep removed}; 0: nothing is left."""


class Sync(Request, frozen=True, kw_only=True, tag="sync"):
    """{}, once all that was written before is on the disk."""


# --- streams --------------------------------------------------------------------------------------


class EnableStream(Request, frozen=True, kw_only=True, tag="enable_stream"):
    """{}"""

    table: str
    view: StreamViewType
    unchanged: bool = False
    retention: Retention | None = None


class DisableStream(Request, frozen=True, kw_only=True, tag="disable_stream"):
    """{}"""

    table: str


class AlterRetention(Request, frozen=True, kw_only=True, tag="alter_table_stream_retention"):
    """{}"""

    table: str
    retention: Retention


class PruneStream(Request, frozen=True, kw_only=True, tag="prune_stream"):
    """{"removed": how many records}"""

    table: str
    until_sequence: int


class GetStreamInfo(Request, frozen=True, kw_only=True, tag="get_stream_info"):
    """{"info": ...}"""

    table: str


class GetStreamRecords(Valued, frozen=True, kw_only=True, tag="get_stream_records"):
    """{"records": [...], "position": what to go on after, "closed": whether nothing follows, ever}

    One of `after` (a position), `after_sequence`, `at_sequence` and `start` says from where; with
    none it is the oldest record. With `wait_ms`, an answer without records waits for the next.
    """

    table: str
    after: str | None = None
    after_sequence: int | None = None
    at_sequence: int | None = None
    start: Literal["trim_horizon", "latest"] | None = None
    limit: int = 100
    max_bytes: int | None = None
    wait_ms: int = 0


class Subscribe(Valued, frozen=True, kw_only=True, tag="subscribe"):
    """{"position": ...}; then lines of {"records", "position"} as they commit, until the stream
    ends with an error. From then on the connection is the subscription's."""

    table: str
    after: str | None = None
    start: Literal["trim_horizon", "latest"] | None = None


# --- consumers ------------------------------------------------------------------------------------


class RegisterConsumer(Request, frozen=True, kw_only=True, tag="register_consumer"):
    """{"checkpoint": {"position", "restored"}}, made where `start` says if there was none."""

    table: str
    name: str
    start: Literal["trim_horizon", "latest"] = "trim_horizon"
    hold_bytes_max: int | None = None


class SaveCheckpoint(Request, frozen=True, kw_only=True, tag="save_checkpoint"):
    """{}: the checkpoint moved from `expected` to `position`."""

    table: str
    name: str
    position: str
    expected: str | None = None


class ForgetConsumer(Request, frozen=True, kw_only=True, tag="forget_consumer"):
    """{"forgot": whether there was one}"""

    table: str
    name: str


AnyRequest = (
    GetItem
    | GetItemVersioned
    | BatchGetItem
    | PutItem
    | DeleteItem
    | UpdateItem
    | CheckItem
    | BatchWriteItem
    | Transact
    | BeginTransaction
    | CommitTransaction
    | AbortTransaction
    | Scan
    | Query
    | QueryIndex
    | Count
    | CreateTable
    | DropTable
    | ListTables
    | DescribeTable
    | CreateIndex
    | DropIndex
    | SetTtl
    | GetTtl
    | RemoveTtl
    | SweepExpiredTtl
    | Sync
    | EnableStream
    | DisableStream
    | AlterRetention
    | PruneStream
    | GetStreamInfo
    | GetStreamRecords
    | Subscribe
    | RegisterConsumer
    | SaveCheckpoint
    | ForgetConsumer
)


def decode_request(line: bytes) -> AnyRequest:
    """The request of a line. Raises RefusedError, which says what is wrong with it and where."""
    try:
        return cast("AnyRequest", _decoder.decode(line))
    except (msgspec.MsgspecError, UnicodeDecodeError, ArithmeticError, RecursionError) as error:
        raise RefusedError(f"the request is refused: {error}. Nothing was changed.") from None


def encode_line(fact: Any) -> bytes:
    """A request or an answer as the line that is sent."""
    return _encoder.encode(fact) + b"\n"


_decoder: Final = msgspec.json.Decoder(AnyRequest, float_hook=Decimal)
_encoder: Final = msgspec.json.Encoder(decimal_format="number")
