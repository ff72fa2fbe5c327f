"""The operations: the four of the streams, and those by which clients find a table's stream."""

from typing import Any, Final

from penstock.serve.dynamodb.captured.endpoint import CapturedEndpoint
from penstock.serve.dynamodb.captured.facts import Shard, Stream, label_of
from penstock.serve.dynamodb.captured.index import Shown
from penstock.serve.dynamodb.captured.names import (
    FIRST_OF_TWO,
    PARTS,
    place_of,
    read_before,
    read_sequence_number,
    table_name,
)
from penstock.serve.dynamodb.captured.reading import has_lost, key_types, read_page
from penstock.serve.dynamodb.errors import not_found, table_exists, trimmed, validation
from penstock.serve.dynamodb.iterators import Iterator
from penstock.serve.dynamodb.model import DATA, STREAMS
from penstock.serve.dynamodb.names import id_of_shard, is_stream_arn
from penstock.serve.dynamodb.numbers import begins_with, ends_with
from penstock.serve.dynamodb.places import NO_BACKUPS, first_second, key_schema_of, refuse_place
from penstock.serve.dynamodb.requests import DATA_TARGET, STREAMS_TARGET, Operation, reading

PAGE_MAX: Final = 100


def list_streams(endpoint: CapturedEndpoint, request: dict[str, Any]) -> dict[str, Any]:
    """Streams by their ARNs, of one table or of all; also those that ended."""
    start = request.get("ExclusiveStartStreamArn", "")
    if start and not is_stream_arn(start):
        raise validation("Invalid StreamArn")
    wanted = endpoint.names.table_name(request["TableName"]) if "TableName" in request else None
    prefix = endpoint.names.table_arn("")
    limit: int = request.get("Limit", PAGE_MAX)
    streams, more = list[dict[str, str]](), False
    for tail, stream in endpoint.shown().by_tail.items():
        # By text, so that a page goes on though its last stream has left meanwhile.
        table = tail.partition("/")[0]
        if prefix + tail <= start or wanted not in {None, table}:
            continue
        if len(streams) == limit:
            more = True
            break
        streams.append(
            {"StreamArn": prefix + tail, "TableName": table, "StreamLabel": label_of(stream)}
        )
    found: dict[str, Any] = {"Streams": streams}
    if more:
        found["LastEvaluatedStreamArn"] = streams[-1]["StreamArn"]
    return found


def describe_stream(endpoint: CapturedEndpoint, request: dict[str, Any]) -> dict[str, Any]:
    """A stream and its shards, oldest first; with ShardFilter, the children of one of them."""
    start = request.get("ExclusiveStartShardId", "")
    stream = endpoint.stream(endpoint.shown(), request["StreamArn"])
    chosen = [shard for shard in stream.shards if shard_id(stream, shard) > start]
    if "ShardFilter" in request:
        of_shard = request["ShardFilter"]["ShardId"]
        chosen = [one for one in chosen if _parent_id(stream, one) == of_shard]
    limit: int = request.get("Limit", PAGE_MAX)
    described: dict[str, Any] = {
        "StreamArn": request["StreamArn"],
        "StreamLabel": label_of(stream),
        "StreamStatus": "ENABLED" if stream.last is None else "DISABLED",
        "StreamViewType": stream.view,
        "CreationRequestDateTime": stream.label_ms / 1000,
        "TableName": table_name(stream.name),
        "KeySchema": key_schema_of(stream.keys),
        "Shards": [_described(stream, shard) for shard in chosen[:limit]],
    }
    if len(chosen) > limit:
        described["LastEvaluatedShardId"] = shard_id(stream, chosen[limit - 1])
    return {"StreamDescription": described}


def get_shard_iterator(endpoint: CapturedEndpoint, request: dict[str, Any]) -> dict[str, Any]:
    """A place in a shard, to begin reading at."""
    kind = request["ShardIteratorType"]
    refuse_place(kind, request)
    if kind == "LATEST":
        endpoint.catch_up()
    now_ms, shown = endpoint.now_ms, endpoint.shown()
    stream = endpoint.stream(shown, request["StreamArn"])
    shard = next(
        (one for one in stream.shards if shard_id(stream, one) == request["ShardId"]), None
    )
    if shard is None:
        raise not_found("Shard does not exist")
    after = since = None
    match kind:
        case "LATEST":
            after = place_of(shown.sequence if shard.last is None else shard.last)
        case "AT_TIMESTAMP":
            if request["Timestamp"] * 1000 > now_ms:
                raise validation("Timestamp must not be in the future")
            since = first_second(request["Timestamp"])
        case "AT_SEQUENCE_NUMBER" | "AFTER_SEQUENCE_NUMBER":
            at, check = read_sequence_number(request["SequenceNumber"])
            newest = place_of(shown.sequence if shard.last is None else shard.last)
            first = place_of(shard.first, FIRST_OF_TWO)
            is_proven = check is None or _is_of_this_history(endpoint, shard, at, check)
            if at >= first and not is_proven:
                raise trimmed()
            if not first <= at <= max(newest, first):
                raise validation(
                    "Invalid SequenceNumber: it is not in the shard's range of sequence numbers"
                )
            after = at if kind.startswith("AFTER") else at - 1
            bounds = endpoint.log.bounds_now()
            if has_lost(shard, after=read_before(after), trimmed=bounds.trimmed):
                raise trimmed()
        case _:
            pass
    iterator = Iterator(
        *(_id(shown, stream), shard.number, now_ms, after),
        None if after is None else endpoint.log.check_at_now(read_before(after)),
        since,
        shard_id=shard_id(stream, shard),
    )
    return {"ShardIterator": endpoint.minter.mint(request["StreamArn"], iterator)}


def get_records(endpoint: CapturedEndpoint, request: dict[str, Any]) -> dict[str, Any]:
    """What follows in a shard: at most 1000 records and 1 MiB, but for the first.

    Without NextShardIterator the shard has ended, and all of it was read. A page may be empty
    though more follows: so much of the log had none.
    """
    now_ms = endpoint.now_ms
    arn, iterator = endpoint.minter.read(request["ShardIterator"], now_ms=now_ms)
    shown = endpoint.shown()
    stream = endpoint.stream(shown, arn)
    shard = next((one for one in stream.shards if one.number == iterator.shard), None)
    if shard is None or _id(shown, stream) != iterator.stream:
        # Retention has emptied the one behind it too, or the log was replaced.
        raise trimmed()
    of_shard = shard_id(stream, shard)
    if iterator.shard_id not in {"", of_shard} or not _has_what_was_read(endpoint, iterator):
        raise trimmed()
    page = read_page(
        endpoint.log,
        shown,
        stream,
        shard,
        iterator,
        limit=request.get("Limit", 1000),
        scan_bytes=endpoint.config.scan_bytes,
    )
    told: dict[str, Any] = {
        "Records": [one.write(region=endpoint.config.region) for one in page.records]
    }
    if not page.ended:
        check = iterator.check
        if page.after != iterator.after:
            check = endpoint.log.check_at_now(read_before(page.after))
        going_on = Iterator(
            *(iterator.stream, shard.number, now_ms, page.after, check, page.since),
            shard_id=of_shard,
        )
        told["NextShardIterator"] = endpoint.minter.mint(arn, going_on)
    return told


def list_tables(endpoint: CapturedEndpoint, request: dict[str, Any]) -> dict[str, Any]:
    """The tables that have a stream, by their names."""
    start = request.get("ExclusiveStartTableName", "")
    limit: int = request.get("Limit", PAGE_MAX)
    names = [table for table in endpoint.shown().by_table if table > start]
    found: dict[str, Any] = {"TableNames": names[:limit]}
    if len(names) > limit:
        found["LastEvaluatedTableName"] = names[limit - 1]
    return found


def describe_table(endpoint: CapturedEndpoint, request: dict[str, Any]) -> dict[str, Any]:
    """What tells a client of a table's newest stream. Of its items nothing is known here."""
    table, stream = _table(endpoint, request)
    described: dict[str, Any] = {
        "TableName": table,
        "TableArn": endpoint.names.table_arn(table),
        "TableStatus": "ACTIVE",
        "CreationDateTime": stream.label_ms / 1000,
        "KeySchema": key_schema_of(stream.keys),
        "LatestStreamArn": endpoint.arn(stream),
        "LatestStreamLabel": label_of(stream),
    }
    types = key_types(endpoint.log, endpoint.shown(), stream)
    if types:
        described["AttributeDefinitions"] = [
            {"AttributeName": name, "AttributeType": type_} for name, type_ in types.items()
        ]
    if stream.last is None:
        described["StreamSpecification"] = {"StreamEnabled": True, "StreamViewType": stream.view}
    return {"Table": described}


def describe_time_to_live(endpoint: CapturedEndpoint, request: dict[str, Any]) -> dict[str, Any]:
    """That nothing expires here: clients ask before they use a table."""
    _table(endpoint, request)
    return {"TimeToLiveDescription": {"TimeToLiveStatus": "DISABLED"}}


def describe_continuous_backups(
    endpoint: CapturedEndpoint, request: dict[str, Any]
) -> dict[str, Any]:
    """That there are none: clients ask before they use a table."""
    _table(endpoint, request)
    return NO_BACKUPS


def _table(endpoint: CapturedEndpoint, request: dict[str, Any]) -> tuple[str, Stream]:
    """A table's name, and its newest stream. Raises WireError."""
    table = endpoint.names.table_name(request["TableName"])
    stream = endpoint.shown().by_table.get(table)
    if stream is None:
        raise not_found(f"Table: {table} not found")
    return table, stream


def create_table(endpoint: CapturedEndpoint, request: dict[str, Any]) -> dict[str, Any]:
    """Nothing is made here. That a captured table exists lets clients go on that always create."""
    table = endpoint.names.table_name(request["TableName"])
    if table in endpoint.shown().by_table:
        raise table_exists(table)
    raise validation(f"This endpoint serves what is captured, and makes no table: {table}")


def shard_id(stream: Stream, shard: Shard) -> str:
    """A shard's id; in the order of text, an older shard's comes first."""
    name = f"{stream.number}.{stream.label_ms}.{shard.number}"
    return id_of_shard(shard.first, name, "" if shard.check is None else f"{shard.check:x}")


def _parent_id(stream: Stream, shard: Shard) -> str | None:
    """The id of a shard's parent; None for the first, and once the parent is forgotten."""
    # A chain: the numbers follow each other, and only the first ones are ever forgotten.
    before = shard.number - 1 - stream.shards[0].number
    return shard_id(stream, stream.shards[before]) if before >= 0 else None


def _described(stream: Stream, shard: Shard) -> dict[str, Any]:
    first = place_of(shard.first, FIRST_OF_TWO)
    between = {"StartingSequenceNumber": begins_with(first)}
    if shard.last is not None:
        last = max(first, place_of(shard.last))
        between["EndingSequenceNumber"] = ends_with(last)
    described: dict[str, Any] = {
        "ShardId": shard_id(stream, shard),
        "SequenceNumberRange": between,
    }
    parent = _parent_id(stream, shard)
    if parent is not None:
        described["ParentShardId"] = parent
    return described


def _is_of_this_history(endpoint: CapturedEndpoint, shard: Shard, place: int, check: int) -> bool:
    """Whether the log told what a record's sequence number was written for."""
    sequence = place // PARTS
    found = endpoint.log.check_at_now(sequence)
    if found is None and sequence == shard.newest:
        found = shard.newest_check  # trimmed, and nothing of the shard follows
        return found is None or found == check
    return found == check


def _has_what_was_read(endpoint: CapturedEndpoint, iterator: Iterator) -> bool:
    """Whether the log told what was read when the iterator was made. Where that is trimmed nobody
    knows; but iterators are good for minutes only."""
    if iterator.after is None or iterator.check is None:
        return True
    sequence = read_before(iterator.after)
    found = endpoint.log.check_at_now(sequence)
    if found is None:
        return sequence <= endpoint.log.bounds_now().trimmed
    return found == iterator.check


def _id(shown: Shown, stream: Stream) -> str:
    return f"{shown.log_id:x}.{stream.number}.{stream.label_ms}"


CAPTURED_OPERATIONS: Final[dict[str, Operation]] = {
    f"{STREAMS_TARGET}.ListStreams": reading(STREAMS["ListStreams"], list_streams),
    f"{STREAMS_TARGET}.DescribeStream": reading(STREAMS["DescribeStream"], describe_stream),
    f"{STREAMS_TARGET}.GetShardIterator": reading(STREAMS["GetShardIterator"], get_shard_iterator),
    f"{STREAMS_TARGET}.GetRecords": reading(STREAMS["GetRecords"], get_records),
    f"{DATA_TARGET}.ListTables": reading(DATA["ListTables"], list_tables),
    f"{DATA_TARGET}.DescribeTable": reading(DATA["DescribeTable"], describe_table),
    f"{DATA_TARGET}.DescribeTimeToLive": reading(DATA["DescribeTimeToLive"], describe_time_to_live),
    f"{DATA_TARGET}.DescribeContinuousBackups": reading(
        DATA["DescribeContinuousBackups"], describe_continuous_backups
    ),
    f"{DATA_TARGET}.CreateTable": reading(DATA["CreateTable"], create_table),
}
"""By the X-Amz-Target header of a request."""
