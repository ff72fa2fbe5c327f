"""DynamoDB Streams: ListStreams, DescribeStream, GetShardIterator, GetRecords.

A stream of a table is one chain of shards (`penstock.store.shards`). A stream that was disabled, or
whose table was dropped, is told and read until its retention has passed.

API: https://docs.aws.amazon.com/amazondynamodb/latest/APIReference/API_Operations_Amazon_DynamoDB_Streams.html
"""

from typing import Any, Final

from penstock.serve.dynamodb.endpoint import Endpoint
from penstock.serve.dynamodb.errors import not_found, trimmed, validation
from penstock.serve.dynamodb.iterators import Iterator
from penstock.serve.dynamodb.names import (
    check_of,
    is_offered,
    is_stream_arn,
    parent_id,
    read_sequence_number,
    shard_id,
)
from penstock.serve.dynamodb.numbers import begins_with, ends_with
from penstock.serve.dynamodb.places import first_second, key_schema_of, refuse_place
from penstock.serve.dynamodb.records import write_record
from penstock.store import StreamRecord, View
from penstock.store.keys import KeyAttribute
from penstock.store.schema import Stream
from penstock.store.shards import Shard
from penstock.store.streams import BYTES_MAX, RECORDS_MAX, Position

PAGE_MAX: Final = 100


def list_streams(endpoint: Endpoint, request: dict[str, Any]) -> dict[str, Any]:
    """Streams by their ARNs, of one table or of all; also those that ended."""
    start = request.get("ExclusiveStartStreamArn", "")
    if start and not is_stream_arn(start):
        raise validation("Invalid StreamArn")
    wanted = endpoint.name(request) if "TableName" in request else None
    with endpoint.store.view() as view:
        streams = {
            endpoint.names.stream_arn(stream): stream
            for stream in view.streams()
            if is_offered(stream.table) and wanted in {None, stream.table}
        }
    # By text, so that a page goes on though its last stream has left meanwhile.
    arns = sorted(arn for arn in streams if arn > start)
    limit = request.get("Limit", PAGE_MAX)
    found: dict[str, Any] = {
        "Streams": [
            {
                "StreamArn": arn,
                "TableName": streams[arn].table,
                "StreamLabel": streams[arn].label,
            }
            for arn in arns[:limit]
        ]
    }
    if len(arns) > limit:
        found["LastEvaluatedStreamArn"] = arns[limit - 1]
    return found


def describe_stream(endpoint: Endpoint, request: dict[str, Any]) -> dict[str, Any]:
    """A stream and its shards, oldest first; with ShardFilter, the children of one of them."""
    start = request.get("ExclusiveStartShardId", "")
    with endpoint.store.view() as view:
        stream = _stream(endpoint, view, request["StreamArn"])
        shards = view.shards(stream)
    chosen = [shard for shard in shards if shard_id(stream, shard) > start]
    if "ShardFilter" in request:
        of_shard = request["ShardFilter"]["ShardId"]
        chosen = [one for one in chosen if parent_id(stream, shards, one) == of_shard]
    limit: int = request.get("Limit", PAGE_MAX)
    described: dict[str, Any] = {
        "StreamArn": request["StreamArn"],
        "StreamLabel": stream.label,
        "StreamStatus": "ENABLED" if stream.closed_ms is None else "DISABLED",
        "StreamViewType": stream.view.value,
        "CreationRequestDateTime": stream.created_ms / 1000,
        "TableName": stream.table,
        "KeySchema": key_schema(stream.partition_key, stream.sort_key),
        "Shards": [_described(stream, shards, shard) for shard in chosen[:limit]],
    }
    if len(chosen) > limit:
        described["LastEvaluatedShardId"] = shard_id(stream, chosen[limit - 1])
    return {"StreamDescription": described}


def get_shard_iterator(endpoint: Endpoint, request: dict[str, Any]) -> dict[str, Any]:
    """A place in a shard, to begin reading at."""
    kind = request["ShardIteratorType"]
    refuse_place(kind, request)
    now_ms = endpoint.now_ms
    with endpoint.store.view() as view:
        stream = _stream(endpoint, view, request["StreamArn"])
        shard = _shard(view, stream, request["ShardId"])
        after, check = None, None
        match kind:
            case "LATEST":
                newest = view.latest(stream)
                after, check = newest.sequence, newest.check
                if shard.last is not None and shard.last != after:
                    after, check = shard.last, None
            case "AT_TIMESTAMP":
                if request["Timestamp"] * 1000 > now_ms:
                    raise validation("Timestamp must not be in the future")
                time_ms = first_second(request["Timestamp"]) * 1000
                after = max(view.before_time(stream, time_ms), _start(stream, shard))
            case "AT_SEQUENCE_NUMBER" | "AFTER_SEQUENCE_NUMBER":
                at, proof = read_sequence_number(request["SequenceNumber"])
                is_proven = proof is None or at < shard.first or check_of(view.life(at)) == proof
                if not is_proven:
                    raise trimmed()  # the store was restored, and another wrote what stands there
                _refuse_sequence(view, shard, at)
                after = at if kind.startswith("AFTER") else at - 1
                after = max(after, stream.first)
                if after < view.horizon(stream).sequence:
                    raise trimmed()
            case _:
                pass
        iterator = _standing(view, stream, shard, now_ms, after, check)
    return {"ShardIterator": endpoint.minter.mint(request["StreamArn"], iterator)}


def get_records(endpoint: Endpoint, request: dict[str, Any]) -> dict[str, Any]:
    """What follows in a shard: at most 1000 records and 1 MiB, but for the first.

    Without NextShardIterator the shard has ended, and all of it was read.
    """
    now_ms = endpoint.now_ms
    arn, iterator = endpoint.minter.read(request["ShardIterator"], now_ms=now_ms)
    with endpoint.store.view() as view:
        stream = _stream(endpoint, view, arn)
        if _id(view, stream) != iterator.stream:
            raise not_found(f"Stream: {arn} not found")
        shard = next((one for one in view.shards(stream) if one.number == iterator.shard), None)
        if shard is None or iterator.shard_id not in {"", shard_id(stream, shard)}:
            # Retention has emptied the one behind it too, or the store was restored: whoever stands
            # here has missed something.
            raise trimmed()
        if iterator.after is not None and iterator.life not in {"", view.life(iterator.after)}:
            raise trimmed()  # the store was restored, and another wrote what stands there
        records, then = _read(view, stream, shard, iterator, request.get("Limit", RECORDS_MAX))
        region = endpoint.config.region
        told: dict[str, Any] = {
            "Records": [
                write_record(one, life=view.life(one.sequence_number), region=region)
                for one in records
            ]
        }
        if then is not None:
            after = None if not records and iterator.after is None else then.sequence
            going_on = _standing(view, stream, shard, now_ms, after, then.check)
            told["NextShardIterator"] = endpoint.minter.mint(arn, going_on)
    return told


def key_schema(partition: KeyAttribute, sort: KeyAttribute | None) -> list[dict[str, str]]:
    """The KeySchema of a table or a stream."""
    return key_schema_of([one.name for one in (partition, sort) if one is not None])


def _read(
    view: View, stream: Stream, shard: Shard, iterator: Iterator, limit: int
) -> tuple[list[StreamRecord], Position | None]:
    """Records of a shard, and where to go on; None at its end."""
    name = iterator.stream
    if iterator.after is None:
        after = Position(name, max(_start(stream, shard), view.horizon(stream).sequence))
    else:
        after = Position(name, iterator.after, iterator.check)
    if shard.last is not None and after.sequence >= shard.last:
        return [], None
    page = view.read(stream, after=after, until=shard.last, limit=limit, bytes_max=BYTES_MAX)
    then = Position.parse(page.position)
    if shard.last is not None and (not page.records or then.sequence >= shard.last):
        return page.records, None
    return page.records, then


def _standing(
    view: View, stream: Stream, shard: Shard, now_ms: int, after: int | None, check: int | None
) -> Iterator:
    """An iterator that leads to what follows `after`; None: to the oldest record there will be."""
    life = "" if after is None else view.life(after)
    of_shard = shard_id(stream, shard)
    return Iterator(
        *(_id(view, stream), shard.number, now_ms, after, check), life=life, shard_id=of_shard
    )


def _described(stream: Stream, shards: list[Shard], shard: Shard) -> dict[str, Any]:
    between = {"StartingSequenceNumber": begins_with(shard.first)}
    if shard.last is not None:
        between["EndingSequenceNumber"] = ends_with(shard.last)
    described: dict[str, Any] = {
        "ShardId": shard_id(stream, shard),
        "SequenceNumberRange": between,
    }
    parent = parent_id(stream, shards, shard)
    if parent is not None:
        described["ParentShardId"] = parent
    return described


def _stream(endpoint: Endpoint, view: View, arn: str) -> Stream:
    if not is_stream_arn(arn):
        raise validation("Invalid StreamArn")
    for stream in view.streams():
        if endpoint.names.stream_arn(stream) == arn:
            return stream
    raise not_found(f"Stream: {arn} not found")


def _shard(view: View, stream: Stream, wanted: str) -> Shard:
    for shard in view.shards(stream):
        if shard_id(stream, shard) == wanted:
            return shard
    raise not_found("Shard does not exist")


def _id(view: View, stream: Stream) -> str:
    return view.horizon(stream).stream_id


def _start(stream: Stream, shard: Shard) -> int:
    """What the shard's first record follows."""
    return max(shard.first - 1, stream.first)


def _refuse_sequence(view: View, shard: Shard, sequence: int) -> None:
    """Refuse a sequence that no record of the shard has or will have."""
    newest = view.sequence if shard.last is None else shard.last
    if not shard.first <= sequence <= max(newest, shard.first):
        raise validation(
            "Invalid SequenceNumber: it is not in the shard's range of sequence numbers"
        )
