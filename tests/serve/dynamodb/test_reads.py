"""Query and Scan through boto3."""

from typing import Any

import pytest
from boto3.dynamodb import conditions

from tests.serve.dynamodb.support import Served

Attr: Any = conditions.Attr
Key: Any = conditions.Key


@pytest.fixture(scope="module")
def table(shared: Served) -> Any:
    """Three partitions of ten items."""
    made = shared.table(view=None, sort="n", kind="N")
    with made.batch_writer() as batch:
        for partition in "abc":
            for number in range(10):
                batch.put_item(Item={"id": partition, "n": number, "even": number % 2 == 0})
    return made


def numbers(told: Any) -> list[int]:
    return [int(item["n"]) for item in told["Items"]]


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (Key("n").eq(3), [3]),
        (Key("n").lt(3), [0, 1, 2]),
        (Key("n").lte(3), [0, 1, 2, 3]),
        (Key("n").gt(7), [8, 9]),
        (Key("n").gte(7), [7, 8, 9]),
        (Key("n").between(2, 4), [2, 3, 4]),
    ],
)
def test_a_query_reads_what_its_key_condition_says(
    table: Any, condition: Any, expected: list[int]
) -> None:
    both = Key("id").eq("b") & condition
    assert numbers(table.query(KeyConditionExpression=both)) == expected
    backward = table.query(KeyConditionExpression=both, ScanIndexForward=False)
    assert numbers(backward) == expected[::-1]


def test_a_query_begins_with(shared: Served) -> None:
    table = shared.table(view=None, sort="s")
    for text in ("a", "ab", "abc", "b"):
        table.put_item(Item={"id": "k", "s": text})
    told = table.query(KeyConditionExpression=Key("id").eq("k") & Key("s").begins_with("ab"))
    assert [item["s"] for item in told["Items"]] == ["ab", "abc"]


def test_a_limit_counts_what_was_looked_at_before_the_filter(table: Any) -> None:
    told = table.query(
        KeyConditionExpression=Key("id").eq("a"), FilterExpression=Attr("even").eq(True), Limit=5
    )
    assert (told["Count"], told["ScannedCount"]) == (3, 5)
    assert told["LastEvaluatedKey"] == {"id": "a", "n": 4}
    count = table.query(KeyConditionExpression=Key("id").eq("a"), Select="COUNT")
    assert count["Count"] == 10
    assert "Items" not in count


@pytest.mark.parametrize("forward", [True, False])
def test_pages_put_together_are_the_whole(table: Any, forward: bool) -> None:
    found, start = list[int](), dict[str, Any]()
    while True:
        told = table.query(
            KeyConditionExpression=Key("id").eq("b"), Limit=3, ScanIndexForward=forward, **start
        )
        found += numbers(told)
        if "LastEvaluatedKey" not in told:
            break
        start = {"ExclusiveStartKey": told["LastEvaluatedKey"]}
    assert found == (list(range(10)) if forward else list(range(10))[::-1])


@pytest.mark.parametrize("segments", [1, 2, 3, 7, 100_000])
def test_segments_together_are_the_table(table: Any, segments: int) -> None:
    found = list[tuple[str, int]]()
    for segment in sorted({*range(min(segments, 7)), segments * 0x61 // 256, segments - 1}):
        start = dict[str, Any]()
        while True:
            told = table.scan(Segment=segment, TotalSegments=segments, Limit=4, **start)
            found += [(item["id"], int(item["n"])) for item in told["Items"]]
            if "LastEvaluatedKey" not in told:
                break
            start = {"ExclusiveStartKey": told["LastEvaluatedKey"]}
    assert len(found) == len(set(found))
    if segments <= 7:
        assert sorted(found) == [(key, number) for key in "abc" for number in range(10)]


def test_a_projection_of_a_page_leaves_the_keys_out(table: Any) -> None:
    told = table.scan(ProjectionExpression="even", Limit=1)
    assert told["Items"] == [{"even": True}]
    assert set(told["LastEvaluatedKey"]) == {"id", "n"}


def test_the_older_parameters_say_the_same(shared: Served, table: Any) -> None:
    told = shared.client.query(
        TableName=table.name,
        KeyConditions={
            "id": {"ComparisonOperator": "EQ", "AttributeValueList": [{"S": "a"}]},
            "n": {"ComparisonOperator": "GT", "AttributeValueList": [{"N": "6"}]},
        },
        QueryFilter={"even": {"ComparisonOperator": "EQ", "AttributeValueList": [{"BOOL": True}]}},
        AttributesToGet=["n"],
    )
    assert told["Items"] == [{"n": {"N": "8"}}]


def test_a_page_ends_with_the_item_that_reaches_a_mebibyte(shared: Served) -> None:
    table = shared.table(view=None)
    for number in range(4):
        table.put_item(Item={"id": f"k{number}", "v": "x" * 390_000})
    told = table.scan(ReturnConsumedCapacity="TOTAL")
    assert told["Count"] == 3
    assert told["ConsumedCapacity"]["CapacityUnits"] == 143.0
    rest = table.scan(ExclusiveStartKey=told["LastEvaluatedKey"])
    assert rest["Count"] == 1
    assert "LastEvaluatedKey" not in rest
    # It says so though nothing follows, as a page that ends at its Limit does.
    table.delete_item(Key={"id": rest["Items"][0]["id"]})
    assert table.scan()["LastEvaluatedKey"] == told["LastEvaluatedKey"]


def test_a_page_that_ends_at_its_limit_says_so_though_nothing_follows(shared: Served) -> None:
    sorted_ = shared.table(view=None, sort="at", kind="N")
    single = shared.table(view=None)
    for number in range(3):
        sorted_.put_item(Item={"id": "k", "at": number})
    single.put_item(Item={"id": "k"})
    of_key: Any = {"KeyConditionExpression": Key("id").eq("k")}
    for told, last in (
        (sorted_.query(**of_key, Limit=3), 2),
        (sorted_.query(**of_key, Limit=3, ScanIndexForward=False), 0),
        (sorted_.query(**of_key, Limit=1, FilterExpression=Attr("no").exists()), 0),
        (sorted_.scan(Limit=3), 2),
    ):
        after = {"id": "k", "at": last}
        assert told["LastEvaluatedKey"] == after
    empty = sorted_.query(**of_key, Limit=3, ExclusiveStartKey={"id": "k", "at": 2})
    assert (empty["Count"], "LastEvaluatedKey" in empty) == (0, False)
    assert "LastEvaluatedKey" not in sorted_.query(**of_key, Limit=4)
    # A Query for one item cannot be gone on with.
    assert "LastEvaluatedKey" not in single.query(**of_key, Limit=1)
    assert single.scan(Limit=1)["LastEvaluatedKey"] == {"id": "k"}


@pytest.mark.parametrize(
    ("operation", "request_", "text"),
    [
        (
            "Query",
            {},
            (
                "Either the KeyConditions or KeyConditionExpression parameter must be "
                "specified in the request."
            ),
        ),
        (
            "Query",
            {"KeyConditionExpression": "n = :v", "ExpressionAttributeValues": {":v": {"N": "1"}}},
            "Query condition missed key schema element: id",
        ),
        ("Scan", {"IndexName": "other"}, "The table does not have the specified index: other"),
        (
            "Scan",
            {"Segment": 2, "TotalSegments": 2},
            (
                "The Segment parameter is zero-based and must be less than parameter "
                "TotalSegments: "
                "Segment: 2 is not less than TotalSegments: 2"
            ),
        ),
        (
            "Scan",
            {"Segment": 0},
            (
                "The TotalSegments parameter is required but was not present in the request when "
                "Segment parameter is present"
            ),
        ),
        (
            "Scan",
            {"ExclusiveStartKey": {"id": {"S": "a"}}},
            (
                "The provided starting key is invalid: The provided key element does not match the "
                "schema"
            ),
        ),
        (
            "Query",
            {
                "KeyConditionExpression": "id = :v",
                "ExpressionAttributeValues": {":v": {"S": "a"}},
                "ExclusiveStartKey": {"id": {"S": "b"}, "n": {"N": "1"}},
            },
            "The provided starting key is outside query boundaries based on provided conditions",
        ),
        (
            "Query",
            {
                "KeyConditionExpression": "id = :v AND n > :n",
                "ExpressionAttributeValues": {":v": {"S": "a"}, ":n": {"N": "5"}},
                "ExclusiveStartKey": {"id": {"S": "a"}, "n": {"N": "5"}},
            },
            "The provided starting key does not match the range key predicate",
        ),
        (
            "Scan",
            {
                "ExclusiveStartKey": {"id": {"S": "a"}, "n": {"N": "5"}},
                "Segment": 9,
                "TotalSegments": 10,
            },
            (
                "The provided starting key is invalid: Invalid ExclusiveStartKey. Please use "
                "ExclusiveStartKey with correct Segment. TotalSegments: 10 Segment: 9"
            ),
        ),
        (
            "Scan",
            {"ConditionalOperator": "OR"},
            "ConditionalOperator cannot be used without Filter or Expected",
        ),
        (
            "Scan",
            {"ConditionalOperator": "OR", "ScanFilter": {"a": {"ComparisonOperator": "NULL"}}},
            "ConditionalOperator can only be used when Filter or Expected has two or more elements",
        ),
        (
            "Scan",
            {"Select": "COUNT", "ProjectionExpression": "a"},
            "Cannot specify the ProjectionExpression when choosing to get only the Count",
        ),
        (
            "Scan",
            {"Limit": 0},
            (
                "1 validation error detected: Value '0' at 'limit' failed to satisfy constraint: "
                "Member "
                "must have value greater than or equal to 1"
            ),
        ),
    ],
)
def test_what_no_query_or_scan_may_ask_is_refused(
    shared: Served, table: Any, operation: str, request_: dict[str, Any], text: str
) -> None:
    assert shared.refused(operation, TableName=table.name, **request_) == (
        "ValidationException",
        text,
    )
