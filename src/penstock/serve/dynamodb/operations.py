"""Which operation a request is of, and its answer. Blocks: it belongs in a thread."""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec
import structlog

from penstock.errors import PenstockError
from penstock.serve.dynamodb import batches, items, reads, streams, tables, transactions
from penstock.serve.dynamodb.endpoint import Endpoint
from penstock.serve.dynamodb.errors import WireError, internal, serialization, wire_error
from penstock.serve.dynamodb.model import DATA, STREAMS
from penstock.serve.dynamodb.shapes import Shape

_log = structlog.get_logger()

_STREAMS: Final = "DynamoDBStreams_20120810"
_DATA: Final = "DynamoDB_20120810"

Call = Callable[[Endpoint, dict[str, Any]], dict[str, Any]]


class Operation(NamedTuple):
    """What the endpoint can be asked."""

    shape: Shape
    call: Call
    writes: bool


def _reading(shape: Shape, call: Call) -> Operation:
    return Operation(shape, call, writes=False)


def _writing(shape: Shape, call: Call) -> Operation:
    return Operation(shape, call, writes=True)


OPERATIONS: Final = {
    f"{_STREAMS}.ListStreams": _reading(STREAMS["ListStreams"], streams.list_streams),
    f"{_STREAMS}.DescribeStream": _reading(STREAMS["DescribeStream"], streams.describe_stream),
    f"{_STREAMS}.GetShardIterator": _reading(
        STREAMS["GetShardIterator"], streams.get_shard_iterator
    ),
    f"{_STREAMS}.GetRecords": _reading(STREAMS["GetRecords"], streams.get_records),
    f"{_DATA}.CreateTable": _writing(DATA["CreateTable"], tables.create_table),
    f"{_DATA}.UpdateTable": _writing(DATA["UpdateTable"], tables.update_table),
    f"{_DATA}.DescribeTable": _reading(DATA["DescribeTable"], tables.describe_table),
    f"{_DATA}.DeleteTable": _writing(DATA["DeleteTable"], tables.delete_table),
    f"{_DATA}.ListTables": _reading(DATA["ListTables"], tables.list_tables),
    f"{_DATA}.TagResource": _writing(DATA["TagResource"], tables.tag_resource),
    f"{_DATA}.UntagResource": _writing(DATA["UntagResource"], tables.untag_resource),
    f"{_DATA}.ListTagsOfResource": _reading(
        DATA["ListTagsOfResource"], tables.list_tags_of_resource
    ),
    f"{_DATA}.UpdateTimeToLive": _writing(DATA["UpdateTimeToLive"], tables.update_time_to_live),
    f"{_DATA}.DescribeTimeToLive": _reading(
        DATA["DescribeTimeToLive"], tables.describe_time_to_live
    ),
    f"{_DATA}.DescribeContinuousBackups": _reading(
        DATA["DescribeContinuousBackups"], tables.describe_continuous_backups
    ),
    f"{_DATA}.PutItem": _writing(DATA["PutItem"], items.put_item),
    f"{_DATA}.DeleteItem": _writing(DATA["DeleteItem"], items.delete_item),
    f"{_DATA}.UpdateItem": _writing(DATA["UpdateItem"], items.update_item),
    f"{_DATA}.GetItem": _reading(DATA["GetItem"], items.get_item),
    f"{_DATA}.BatchGetItem": _reading(DATA["BatchGetItem"], batches.batch_get_item),
    f"{_DATA}.BatchWriteItem": _writing(DATA["BatchWriteItem"], batches.batch_write_item),
    f"{_DATA}.TransactWriteItems": _writing(
        DATA["TransactWriteItems"], transactions.transact_write_items
    ),
    f"{_DATA}.TransactGetItems": _reading(
        DATA["TransactGetItems"], transactions.transact_get_items
    ),
    f"{_DATA}.Query": _reading(DATA["Query"], reads.query),
    f"{_DATA}.Scan": _reading(DATA["Scan"], reads.scan),
}
"""By the X-Amz-Target header of a request."""


class Answer(NamedTuple):
    """What is sent back."""

    status: int
    body: bytes


def answer(endpoint: Endpoint, operation: Operation, body: bytes) -> Answer:
    """Do what a request asks; whatever goes wrong is an answer too."""
    try:
        request = operation.shape.read(_decoded(body))
        return Answer(200, msgspec.json.encode(operation.call(endpoint, request)))
    except PenstockError as error:
        told = wire_error(error)
    except Exception as error:
        # Only where and what kind: a message may hold what somebody stored.
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        _log.error(
            "a DynamoDB request failed unexpectedly",
            operation=operation.call.__name__,
            error=type(error).__name__,
            file=None if trace is None else trace.tb_frame.f_code.co_filename,
            line=None if trace is None else trace.tb_lineno,
        )
        told = internal()
    return refused(told)


def refused(error: WireError) -> Answer:
    """The answer that says an error."""
    return Answer(error.status, msgspec.json.encode(error.body()))


def _decoded(body: bytes) -> object:
    try:
        return _decoder.decode(body or b"{}")
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        raise serialization("The request's body is no JSON") from None


_decoder: Final = msgspec.json.Decoder()
