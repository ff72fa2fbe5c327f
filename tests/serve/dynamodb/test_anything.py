"""Whatever is asked is answered, and never as an error of ours."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import store
from penstock.serve.dynamodb.config import DynamoConfig
from penstock.serve.dynamodb.endpoint import Endpoint
from penstock.serve.dynamodb.operations import OPERATIONS
from penstock.serve.dynamodb.requests import answer
from tests.seeds import cases
from tests.serve.dynamodb.test_indexes import index, keys, typed

ARN = "arn:aws:dynamodb:us-east-1:000000000000:table/table"
KEY: Any = {"id": {"S": "k"}, "n": {"N": "1"}}
UNITS: Any = {"ReadCapacityUnits": 1, "WriteCapacityUnits": 1}
EXPRESSED: Any = {
    "ExpressionAttributeNames": {"#v": "v"},
    "ExpressionAttributeValues": {":v": {"M": {"a": {"L": [{"NS": ["1", "2"]}]}}}},
}
WRITING: Any = {
    "ConditionExpression": "#v <> :v OR attribute_not_exists(id)",
    **EXPRESSED,
    "ReturnValues": "ALL_OLD",
    "ReturnConsumedCapacity": "INDEXES",
    "ReturnItemCollectionMetrics": "SIZE",
    "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
}
ONE: Any = {"TableName": "table", "Key": KEY}
REQUESTS: dict[str, Any] = {
    "ListStreams": {"TableName": "table", "Limit": 5, "ExclusiveStartStreamArn": f"{ARN}/stream/2"},
    "DescribeStream": {
        "StreamArn": "STREAM",
        "Limit": 5,
        "ShardFilter": {"Type": "CHILD_SHARDS", "ShardId": "SHARD"},
    },
    "GetShardIterator": {
        "StreamArn": "STREAM",
        "ShardId": "SHARD",
        "ShardIteratorType": "AT_TIMESTAMP",
        "Timestamp": 1.5,
    },
    "GetRecords": {"ShardIterator": "ITERATOR", "Limit": 5},
    "CreateTable": {
        "TableName": "other",
        "KeySchema": keys("id", "n"),
        "AttributeDefinitions": typed(id="S", n="N", v="S"),
        "ProvisionedThroughput": UNITS,
        "LocalSecondaryIndexes": [index("local", "id", "v", projection="KEYS_ONLY")],
        "GlobalSecondaryIndexes": [
            {
                **index("global", "v", projection="INCLUDE", include=["w"]),
                "ProvisionedThroughput": UNITS,
            }
        ],
        "StreamSpecification": {"StreamEnabled": True, "StreamViewType": "KEYS_ONLY"},
        "Tags": [{"Key": "a", "Value": "b"}],
        "WarmThroughput": {"ReadUnitsPerSecond": 5},
    },
    "UpdateTable": {
        "TableName": "table",
        "BillingMode": "PROVISIONED",
        "ProvisionedThroughput": UNITS,
        "AttributeDefinitions": typed(v="S"),
        "GlobalSecondaryIndexUpdates": [
            {"Create": {**index("new", "v"), "ProvisionedThroughput": UNITS}},
            {"Update": {"IndexName": "global", "ProvisionedThroughput": UNITS}},
        ],
    },
    "DescribeTable": {"TableName": ARN},
    "DeleteTable": {"TableName": "other"},
    "ListTables": {"Limit": 5, "ExclusiveStartTableName": "aaa"},
    "TagResource": {"ResourceArn": ARN, "Tags": [{"Key": "a", "Value": "b"}]},
    "UntagResource": {"ResourceArn": ARN, "TagKeys": ["a"]},
    "ListTagsOfResource": {"ResourceArn": ARN},
    "UpdateTimeToLive": {
        "TableName": "table",
        "TimeToLiveSpecification": {"Enabled": True, "AttributeName": "until"},
    },
    "DescribeTimeToLive": {"TableName": "table"},
    "DescribeContinuousBackups": {"TableName": "table"},
    "DescribeLimits": {"Unknown": 1},
    "PutItem": {"TableName": "table", "Item": {**KEY, "v": {"SS": ["a"]}}, **WRITING},
    "DeleteItem": {**ONE, **WRITING},
    "UpdateItem": {**ONE, **WRITING, "UpdateExpression": "SET #v = :v, w[0] = list_append(a, b)"},
    "GetItem": {**ONE, "ProjectionExpression": "#v.a[1]", "ExpressionAttributeNames": {"#v": "v"}},
    "BatchGetItem": {"RequestItems": {"table": {"Keys": [KEY], "ConsistentRead": True}}},
    "BatchWriteItem": {
        "RequestItems": {"table": [{"PutRequest": {"Item": KEY}}]},
        "ReturnConsumedCapacity": "TOTAL",
    },
    "TransactWriteItems": {
        "ClientRequestToken": "token",
        "TransactItems": [
            {"Put": {"TableName": "table", "Item": KEY}},
            {"Update": {**ONE, "Key": {**KEY, "n": {"N": "2"}}, "UpdateExpression": "REMOVE a"}},
        ],
    },
    "TransactGetItems": {"TransactItems": [{"Get": ONE}]},
    "Query": {
        "TableName": "table",
        "ReturnConsumedCapacity": "INDEXES",
        "KeyConditionExpression": "id = :id AND n BETWEEN :a AND :b",
        "ExpressionAttributeValues": {":id": {"S": "k"}, ":a": {"N": "1"}, ":b": {"N": "3"}},
        "ExclusiveStartKey": KEY,
        "IndexName": "global",
        "ScanIndexForward": False,
        "Limit": 3,
    },
    "Scan": {
        "TableName": "table",
        "FilterExpression": "size(#v) > :v",
        **EXPRESSED,
        "Segment": 0,
        "TotalSegments": 2,
        "Select": "COUNT",
    },
}
ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
    | st.sampled_from(["table", "k", "S", "ALL_NEW", "#v", ":v", ARN, "1", "1e999", "é𝄞"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.text(max_size=3) | st.sampled_from(["S", "N", "B", "M", "L", "id", "n", ":v", "#v"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    path: Path = tmp_path_factory.mktemp("anything") / "store"
    with store.open(path, sweep_seconds=None) as db:
        made = Endpoint(db, DynamoConfig(address="127.0.0.1:0"))
        assert ask(made, "CreateTable", {**REQUESTS["CreateTable"], "TableName": "table"})[0] == 200
        db.put("table", {"id": "k", "n": 1, "v": {"a"}})
        yield made
        made.close()


def ask(endpoint: Endpoint, operation: str, request: Any) -> tuple[int, Any]:
    target = next(one for one in OPERATIONS if one.endswith(f".{operation}"))
    found = answer(endpoint, OPERATIONS[target], msgspec.json.encode(request))
    return found.status, msgspec.json.decode(found.body)


def named(endpoint: Endpoint, request: Any) -> Any:
    """The request, with the names of what is there."""
    _, listed = ask(endpoint, "ListStreams", {"TableName": "table"})
    stream = listed["Streams"][0]["StreamArn"]
    _, told = ask(endpoint, "DescribeStream", {"StreamArn": stream})
    shard = told["StreamDescription"]["Shards"][0]["ShardId"]
    place = {"StreamArn": stream, "ShardId": shard, "ShardIteratorType": "TRIM_HORIZON"}
    _, made = ask(endpoint, "GetShardIterator", place)
    text = msgspec.json.encode(request).decode()
    for word, name in (("STREAM", stream), ("SHARD", shard), ("ITERATOR", made["ShardIterator"])):
        text = text.replace(f'"{word}"', f'"{name}"')
    return msgspec.json.decode(text)


def places(json: object, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a request."""
    if path:
        yield path
    inside = cast("Any", json)
    names: list[Any] = []
    if isinstance(json, dict | list):
        names = list(range(len(inside)) if isinstance(json, list) else inside)
    for name in names:
        yield from places(inside[name], (*path, name))


def test_every_operation_is_among_these(endpoint: Endpoint) -> None:
    assert set(REQUESTS) == {target.partition(".")[2] for target in OPERATIONS}
    for operation, request in REQUESTS.items():
        status, told = ask(endpoint, operation, named(endpoint, request))
        assert status == 200 or told["message"], operation


def test_members_that_a_write_does_not_have_are_passed_over(endpoint: Endpoint) -> None:
    for write in ({"PutRequest": {"Item": KEY}, "Other": 1}, {"Other": {"Item": KEY}}, {}):
        status, _ = ask(endpoint, "BatchWriteItem", {"RequestItems": {"table": [write]}})
        assert status == (200 if "PutRequest" in write else 400)


def test_a_member_that_is_null_is_as_good_as_absent_wherever_it_stands(endpoint: Endpoint) -> None:
    """Not only at the top: a stream without a view is refused in words."""
    request = copy.deepcopy(named(endpoint, REQUESTS["CreateTable"]))
    request["StreamSpecification"]["StreamViewType"] = None
    status, told = ask(endpoint, "CreateTable", request)
    assert status == 400
    assert "UpdateViewType is required" in told["message"]


@settings(max_examples=cases(150))
@given(data=st.data())
def test_no_request_makes_the_endpoint_fail(endpoint: Endpoint, data: st.DataObject) -> None:
    operation = data.draw(st.sampled_from(sorted(REQUESTS)))
    request = copy.deepcopy(named(endpoint, REQUESTS[operation]))
    for _ in range(data.draw(st.integers(1, 3))):
        *way, last = data.draw(st.sampled_from(list(places(request))))
        parent = request
        for name in way:
            parent = parent[name]
        if data.draw(st.booleans()) and isinstance(parent, dict):
            del parent[last]
        else:
            parent[last] = data.draw(ANYTHING)
        if not request:
            break
    status, told = ask(endpoint, operation, request)
    assert status == 200 or (
        status == 400 and (told.get("message") or told.get("Message") is not None)
    )
