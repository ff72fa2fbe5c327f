"""PutItem, GetItem, UpdateItem, DeleteItem, and their batches and transactions, through boto3."""

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from penstock.store.attributevalue import encode_attributes
from tests.serve.dynamodb.support import Served, name_of, response_of, served
from tests.store.support import SetClock


@pytest.fixture
def table(shared: Served) -> Any:
    return shared.table()


def test_every_type_of_value_comes_back_as_it_was(shared: Served, table: Any) -> None:
    item = {
        "id": "k",
        "s": "é𝄞",
        "n": Decimal("-1.5"),
        "big": Decimal(12345678901234567890123456789012345678),
        "b": b"\x00\xff",
        "yes": True,
        "null": None,
        "list": ["a", Decimal(1), [None]],
        "map": {"a": {"b": {"c"}}},
        "ss": {"a", "b"},
        "ns": {Decimal(1), Decimal("2.5")},
        "bs": {b"a", b"b"},
    }
    table.put_item(Item=item)
    found = table.get_item(Key={"id": "k"})["Item"]
    assert found == item


def test_a_key_that_is_not_there_has_no_item(table: Any) -> None:
    assert "Item" not in table.get_item(Key={"id": "none"})


def test_returned_values_are_those_that_were_asked_for(table: Any) -> None:
    assert "Attributes" not in table.put_item(Item={"id": "k", "n": 1}, ReturnValues="ALL_OLD")
    old = table.put_item(Item={"id": "k", "n": 2, "m": {"a": 1, "b": 1}}, ReturnValues="ALL_OLD")
    assert old["Attributes"] == {"id": "k", "n": 1}

    def add(returned: str) -> Any:
        return table.update_item(
            Key={"id": "k"},
            UpdateExpression="ADD n :one, m.a :one",
            ExpressionAttributeValues={":one": 1},
            ReturnValues=returned,
        ).get("Attributes")

    assert add("NONE") is None
    assert add("ALL_OLD") == {"id": "k", "n": 3, "m": {"a": 2, "b": 1}}
    assert add("ALL_NEW") == {"id": "k", "n": 5, "m": {"a": 4, "b": 1}}
    assert add("UPDATED_OLD") == {"n": 5, "m": {"a": 4}}
    assert add("UPDATED_NEW") == {"n": 7, "m": {"a": 6}}
    gone = table.delete_item(Key={"id": "k"}, ReturnValues="ALL_OLD")
    assert gone["Attributes"] == {"id": "k", "n": 7, "m": {"a": 6, "b": 1}}
    assert "Attributes" not in table.delete_item(Key={"id": "k"}, ReturnValues="ALL_OLD")


def test_an_update_makes_an_item_but_one_that_only_removes_does_not(table: Any) -> None:
    table.update_item(Key={"id": "none"}, UpdateExpression="REMOVE a")
    assert "Item" not in table.get_item(Key={"id": "none"})
    told = table.update_item(
        Key={"id": "none"}, UpdateExpression="REMOVE a", ReturnValues="ALL_NEW"
    )
    assert "Attributes" not in told
    table.update_item(Key={"id": "bare"})
    assert table.get_item(Key={"id": "bare"})["Item"] == {"id": "bare"}
    table.update_item(Key={"id": "old"}, AttributeUpdates={"n": {"Action": "ADD", "Value": 5}})
    assert table.get_item(Key={"id": "old"})["Item"] == {"id": "old", "n": 5}


def test_a_false_condition_changes_nothing_and_gives_the_item_if_it_is_asked_for(
    table: Any,
) -> None:
    table.put_item(Item={"id": "k", "n": 1})
    with pytest.raises(ClientError) as caught:
        table.put_item(Item={"id": "k"}, ConditionExpression="attribute_not_exists(id)")
    assert name_of(caught.value) == "ConditionalCheckFailedException"
    assert str(caught.value).endswith("The conditional request failed")
    assert "Item" not in response_of(caught.value)
    with pytest.raises(ClientError) as caught:
        table.delete_item(
            Key={"id": "k"},
            ConditionExpression="n > :n",
            ExpressionAttributeValues={":n": 1},
            ReturnValuesOnConditionCheckFailure="ALL_OLD",
        )
    response = response_of(caught.value)
    assert response["Item"] == {"id": {"S": "k"}, "n": {"N": "1"}}
    assert table.get_item(Key={"id": "k"})["Item"] == {"id": "k", "n": 1}


def test_a_projection_gives_what_is_at_its_paths_and_no_key_of_itself(table: Any) -> None:
    table.put_item(Item={"id": "k", "a": {"b": [1, 2]}, "c": 3})
    told = table.get_item(
        Key={"id": "k"}, ProjectionExpression="a.b[1], #c", ExpressionAttributeNames={"#c": "c"}
    )
    assert told["Item"] == {"a": {"b": [2]}, "c": 3}


def test_capacity_is_told_by_the_published_rules(table: Any) -> None:
    put = table.put_item(Item={"id": "k", "v": "x" * 2000}, ReturnConsumedCapacity="TOTAL")
    assert put["ConsumedCapacity"] == {"TableName": table.name, "CapacityUnits": 2.0}
    read = table.get_item(Key={"id": "k"}, ReturnConsumedCapacity="INDEXES")
    assert read["ConsumedCapacity"] == {
        "TableName": table.name,
        "CapacityUnits": 0.5,
        "Table": {"CapacityUnits": 0.5},
    }
    read = table.get_item(Key={"id": "k"}, ConsistentRead=True, ReturnConsumedCapacity="TOTAL")
    assert read["ConsumedCapacity"]["CapacityUnits"] == 1.0


@pytest.mark.parametrize(
    ("operation", "request_", "text"),
    [
        (
            "PutItem",
            {"Item": {}},
            "One or more parameter values were invalid: Missing the key id in the item",
        ),
        (
            "PutItem",
            {"Item": {"id": {"N": "1"}}},
            (
                "One or more parameter values were invalid: Type "
                "mismatch for key id expected: S actual: N"
            ),
        ),
        (
            "PutItem",
            {"Item": {"id": {"S": ""}}},
            (
                "One or more parameter values are not valid. The AttributeValue for a key "
                "attribute "
                "cannot contain an empty string value. Key: id"
            ),
        ),
        (
            "PutItem",
            {"Item": {"id": {"S": "x" * 2049}}},
            (
                "One or more parameter values were invalid: Size of hashkey has exceeded the "
                "maximum "
                "size limit of2048 bytes"
            ),
        ),
        (
            "PutItem",
            {"Item": {"id": {"S": "k"}, "v": {"S": "x" * 410_000}}},
            "Item size has exceeded the maximum allowed size",
        ),
        (
            "PutItem",
            {"Item": {"id": {"S": "k"}, "v": {}}},
            "Supplied AttributeValue is empty, must contain exactly one of the supported datatypes",
        ),
        (
            "PutItem",
            {"Item": {"id": {"S": "k"}}, "ReturnValues": "ALL_NEW"},
            "ReturnValues can only be ALL_OLD or NONE",
        ),
        ("GetItem", {"Key": {}}, "The provided key element does not match the schema"),
        (
            "GetItem",
            {"Key": {"id": {"N": "1"}}},
            "The provided key element does not match the schema",
        ),
        (
            "GetItem",
            {"Key": {"id": {"S": "k"}, "x": {"S": "k"}}},
            "The provided key element does not match the schema",
        ),
        (
            "UpdateItem",
            {
                "Key": {"id": {"S": "k"}},
                "UpdateExpression": "SET id = :v",
                "ExpressionAttributeValues": {":v": {"S": "x"}},
            },
            (
                "One or more parameter values were invalid: Cannot update attribute id. This "
                "attribute is "
                "part of the key"
            ),
        ),
    ],
)
def test_what_is_no_item_or_key_of_the_table_is_refused(
    shared: Served, table: Any, operation: str, request_: dict[str, Any], text: str
) -> None:
    assert shared.refused(operation, TableName=table.name, **request_) == (
        "ValidationException",
        text,
    )


def test_what_a_request_says_is_checked_before_whether_its_table_is_there(shared: Served) -> None:
    def refused(operation: str, **request: Any) -> str:
        name, text = shared.refused(operation, **request)
        assert name == "ValidationException"
        return text

    failed = "failed to satisfy constraint: Member must"
    assert refused("PutItem", TableName="none") == (
        f"1 validation error detected: Value null at 'item' {failed} not be null"
    )
    assert refused("GetItem", TableName="a") == (
        f"2 validation errors detected: Value 'a' at 'tableName' {failed} have length greater than "
        f"or equal to 3; Value null at 'key' {failed} not be null"
    )
    assert refused("GetItem", TableName="a b c", Key={}) == (
        f"1 validation error detected: Value 'a b c' at 'tableName' {failed} satisfy regular "
        f"expression pattern: [a-zA-Z0-9_.-]+"
    )
    assert refused("PutItem", TableName="none", Item={}, ReturnValues="SOME") == (
        f"1 validation error detected: Value 'SOME' at 'returnValues' {failed} satisfy enum value "
        f"set: [ALL_NEW, UPDATED_OLD, ALL_OLD, NONE, UPDATED_NEW]"
    )
    assert "Invalid ConditionExpression: Syntax error" in refused(
        "PutItem", TableName="none", Item={"id": {"S": "k"}}, ConditionExpression="a b c"
    )
    assert shared.refused("PutItem", TableName="none", Item={"id": {"S": "k"}}) == (
        "ResourceNotFoundException",
        "Requested resource not found",
    )


# --- batches --------------------------------------------------------------------------------------


def test_a_batch_reads_and_writes_several_tables(shared: Served) -> None:
    one, two = shared.table(), shared.table()
    put = {"PutRequest": {"Item": {"id": {"S": "k"}, "n": {"N": "1"}}}}
    told = shared.client.batch_write_item(
        RequestItems={one.name: [put], two.name: [put]}, ReturnConsumedCapacity="TOTAL"
    )
    assert told["UnprocessedItems"] == {}
    assert [unit["CapacityUnits"] for unit in told["ConsumedCapacity"]] == [1.0, 1.0]
    keys = [{"id": {"S": "none"}}, {"id": {"S": "k"}}]
    found = shared.client.batch_get_item(
        RequestItems={
            one.name: {"Keys": keys, "ProjectionExpression": "n"},
            two.name: {"Keys": keys},
        }
    )
    assert found["Responses"] == {
        one.name: [{"n": {"N": "1"}}],
        two.name: [{"id": {"S": "k"}, "n": {"N": "1"}}],
    }
    assert found["UnprocessedKeys"] == {}


@pytest.mark.slow
def test_a_table_that_is_named_by_its_arn_is_answered_by_it(shared: Served) -> None:
    sorted_ = shared.table(sort="at").name
    arn = shared.client.describe_table(TableName=sorted_)["Table"]["TableArn"]
    key: Any = {"id": {"S": "k"}, "at": {"S": "1"}}
    put: Any = {"Put": {"TableName": arn, "Item": key}}
    get: Any = {"Get": {"TableName": arn, "Key": key}}
    of_key: Any = {"id": {"ComparisonOperator": "EQ", "AttributeValueList": [{"S": "k"}]}}
    requests: list[tuple[str, Any]] = [
        ("put_item", {"TableName": arn, "Item": key}),
        ("get_item", {"TableName": arn, "Key": key}),
        ("query", {"TableName": arn, "KeyConditions": of_key}),
        ("scan", {"TableName": arn}),
        ("batch_write_item", {"RequestItems": {arn: [{"PutRequest": {"Item": key}}]}}),
        ("batch_get_item", {"RequestItems": {arn: {"Keys": [key]}}}),
        ("transact_write_items", {"TransactItems": [put], "ClientRequestToken": "arn"}),
        ("transact_write_items", {"TransactItems": [put], "ClientRequestToken": "arn"}),
        ("transact_get_items", {"TransactItems": [get]}),
    ]
    for operation, request in requests:
        told = getattr(shared.client, operation)(**request, ReturnConsumedCapacity="TOTAL")
        one_table = operation in {"put_item", "get_item", "query", "scan"}
        consumed: Any = told["ConsumedCapacity"] if one_table else told["ConsumedCapacity"][0]
        assert consumed["TableName"] == arn
        if operation == "batch_get_item":
            assert told["Responses"] == {arn: [key]}


def test_a_batch_of_reads_gives_back_what_does_not_fit(shared: Served, table: Any) -> None:
    with table.batch_writer() as batch:
        for number in range(45):
            batch.put_item(Item={"id": f"k{number}", "v": "x" * 400_000})
    wanted: Any = {table.name: {"Keys": [{"id": {"S": f"k{number}"}} for number in range(45)]}}
    found, rounds = set[str](), 0
    while wanted:
        told = shared.client.batch_get_item(RequestItems=wanted)
        found |= {one["id"]["S"] for one in told["Responses"][table.name]}
        wanted, rounds = told["UnprocessedKeys"], rounds + 1
    assert found == {f"k{number}" for number in range(45)}
    assert rounds == 2


def test_batches_have_limits_and_no_item_twice(shared: Served, table: Any) -> None:
    def put(number: int) -> Any:
        return {"PutRequest": {"Item": {"id": {"S": f"k{number}"}}}}

    name = table.name
    assert shared.refused("BatchWriteItem", RequestItems={name: [put(1), put(1)]}) == (
        "ValidationException",
        "Provided list of item keys contains duplicates",
    )
    too_many = [put(number) for number in range(26)]
    kind, text = shared.refused("BatchWriteItem", RequestItems={name: too_many})
    assert kind == "ValidationException"
    assert text.endswith(
        "at 'requestItems' failed to satisfy constraint: Map value must satisfy constraint: "
        "[Member must have length less than or equal to 25, Member must have length greater than "
        "or equal to 1]"
    )
    other = shared.table().name
    assert shared.refused(
        "BatchWriteItem", RequestItems={name: too_many[:13], other: too_many[:13]}
    ) == ("ValidationException", "Too many items requested for the BatchWriteItem call")
    keys = [{"id": {"S": "k"}}, {"id": {"S": "k"}}]
    assert shared.refused("BatchGetItem", RequestItems={name: {"Keys": keys}}) == (
        "ValidationException",
        "Provided list of item keys contains duplicates",
    )
    assert shared.refused("BatchWriteItem", RequestItems={})[0] == "ValidationException"
    assert not table.scan()["Items"]


# --- transactions ---------------------------------------------------------------------------------


def put_(table: Any, key: str, **more: Any) -> dict[str, Any]:
    return {"Put": {"TableName": table.name, "Item": {"id": {"S": key}}, **more}}


def test_a_transaction_is_done_whole_or_not_at_all_and_says_why(shared: Served, table: Any) -> None:
    table.put_item(Item={"id": "there", "n": 1})
    with pytest.raises(ClientError) as caught:
        shared.client.transact_write_items(
            TransactItems=[
                put_(table, "new"),
                put_(
                    table,
                    "there",
                    ConditionExpression="attribute_not_exists(id)",
                    ReturnValuesOnConditionCheckFailure="ALL_OLD",
                ),
                {
                    "Update": {
                        "TableName": table.name,
                        "Key": {"id": {"S": "other"}},
                        "UpdateExpression": "SET a = b",
                    }
                },
                {
                    "ConditionCheck": {
                        "TableName": table.name,
                        "Key": {"id": {"S": "more"}},
                        "ConditionExpression": "attribute_not_exists(id)",
                    }
                },
            ]
        )
    response = response_of(caught.value)
    assert name_of(caught.value) == "TransactionCanceledException"
    assert response["Error"]["Message"] == (
        "Transaction cancelled, please refer cancellation reasons for specific reasons [None, "
        "ConditionalCheckFailed, ValidationError, None]"
    )
    reasons = response["CancellationReasons"]
    assert [one["Code"] for one in reasons] == [
        "None",
        "ConditionalCheckFailed",
        "ValidationError",
        "None",
    ]
    assert reasons[1]["Message"] == "The conditional request failed"
    assert reasons[1]["Item"] == {"id": {"S": "there"}, "n": {"N": "1"}}
    assert table.scan()["Count"] == 1


def test_a_transaction_reads_items_by_their_places(shared: Served, table: Any) -> None:
    table.put_item(Item={"id": "k", "n": 1})
    gets = [{"Get": {"TableName": table.name, "Key": {"id": {"S": key}}}} for key in ("none", "k")]
    told = shared.client.transact_get_items(TransactItems=gets, ReturnConsumedCapacity="TOTAL")
    assert told["Responses"] == [{}, {"Item": {"id": {"S": "k"}, "n": {"N": "1"}}}]
    assert told["ConsumedCapacity"][0]["ReadCapacityUnits"] == 4.0


def test_a_transaction_has_no_item_twice_and_at_most_100(shared: Served, table: Any) -> None:
    twice = [put_(table, "k"), {"Delete": {"TableName": table.name, "Key": {"id": {"S": "k"}}}}]
    assert shared.refused("TransactWriteItems", TransactItems=twice) == (
        "ValidationException",
        "Transaction request cannot include multiple operations on one item",
    )
    both = [{**put_(table, "k"), **twice[1]}]
    assert shared.refused("TransactWriteItems", TransactItems=both) == (
        "ValidationException",
        "TransactItems can only contain one of Check, Put, Update or Delete",
    )
    many = [put_(table, f"k{number}") for number in range(101)]
    name, text = shared.refused("TransactWriteItems", TransactItems=many)
    assert name == "ValidationException"
    assert "less than or equal to 100" in text
    shared.client.transact_write_items(TransactItems=many[:100])
    assert table.scan()["Count"] == 100


TOO_LARGE = (
    "ValidationException",
    "The aggregate size of the items in the transaction cannot exceed 4 MB",
)


def of_size(key: str, size: int) -> dict[str, Any]:
    """An item of so many bytes, as DynamoDB counts them."""
    return {"id": key, "b": b"x" * (size - len("id") - len(key) - len("b"))}


@pytest.mark.slow
def test_a_transaction_writes_at_most_4_mib_of_items(shared: Served, table: Any) -> None:
    def written(sizes: list[int]) -> list[Any]:
        items = [of_size(f"k{at:02}", size) for at, size in enumerate(sizes)]
        return [{"Put": {"TableName": table.name, "Item": encode_attributes(one)}} for one in items]

    quarter = 256 << 10
    assert shared.refused("TransactWriteItems", TransactItems=written([quarter] * 16 + [8])) == (
        TOO_LARGE
    )
    assert table.scan()["Count"] == 0
    status, told, _ = shared.post(
        "DynamoDB_20120810.TransactWriteItems", {"TransactItems": written([quarter] * 16)}
    )
    assert status == 200, told
    # What is written over or removed counts as it was, where that is more.
    fewer = [
        {"Delete": {"TableName": table.name, "Key": {"id": {"S": f"k{at:02}"}}}} for at in range(8)
    ]
    over = [put_(table, f"k{at:02}") for at in range(8, 16)]
    assert shared.refused(
        "TransactWriteItems", TransactItems=[*fewer, *over, put_(table, "more")]
    ) == (TOO_LARGE)
    shared.client.transact_write_items(TransactItems=[*fewer, *over])
    assert table.scan()["Count"] == 8


@pytest.mark.slow
def test_a_transaction_reads_at_most_4_mib_of_items(shared: Served, table: Any) -> None:
    for at in range(16):
        shared.db.put(table.name, of_size(f"k{at:02}", 256 << 10))
    shared.db.put(table.name, {"id": "more"})
    keys = [*(f"k{at:02}" for at in range(16)), "none"]
    gets = [{"Get": {"TableName": table.name, "Key": {"id": {"S": key}}}} for key in keys]
    told = shared.client.transact_get_items(TransactItems=gets, ReturnConsumedCapacity="TOTAL")
    assert [bool(one) for one in told["Responses"]] == [True] * 16 + [False]
    gets[-1]["Get"]["Key"] = {"id": {"S": "more"}}
    assert shared.refused("TransactGetItems", TransactItems=gets) == TOO_LARGE


@pytest.mark.slow
def test_a_transaction_is_not_done_twice_under_one_token_even_after_a_restart(
    tmp_path: Path,
) -> None:
    clock = SetClock()

    def add(everything: Served, table: str, by: str) -> None:
        everything.client.transact_write_items(
            ClientRequestToken="token",
            TransactItems=[
                {
                    "Update": {
                        "TableName": table,
                        "Key": {"id": {"S": "k"}},
                        "UpdateExpression": "ADD n :n",
                        "ExpressionAttributeValues": {":n": {"N": by}},
                    }
                }
            ],
        )

    def value(everything: Served, table: str) -> Any:
        return everything.resource.Table(table).get_item(Key={"id": "k"})["Item"]["n"]

    with served(tmp_path, clock=clock) as everything:
        name = everything.table(view=None).name
        add(everything, name, "1")
        add(everything, name, "1")
        assert value(everything, name) == 1
    with served(tmp_path, clock=clock) as everything:
        clock.pass_(599)
        add(everything, name, "1")
        assert value(everything, name) == 1
        with pytest.raises(ClientError) as caught:
            add(everything, name, "2")
        assert name_of(caught.value) == "IdempotentParameterMismatchException"
        clock.pass_(1)
        add(everything, name, "2")
        assert value(everything, name) == 3
        assert everything.db.sweep() == 1  # the token's first use
        clock.pass_(600)
        assert everything.db.sweep() == 1
        assert everything.db.sweep() == 0


def test_a_transaction_that_was_done_before_consumes_reads(shared: Served, table: Any) -> None:
    request: Any = {
        "ClientRequestToken": "read",
        "ReturnConsumedCapacity": "TOTAL",
        "TransactItems": [put_(table, "read"), put_(table, "too")],
    }
    for kind in ("Write", "Read", "Read"):
        told = shared.client.transact_write_items(**request)
        assert told["ConsumedCapacity"] == [
            {"TableName": table.name, "CapacityUnits": 4.0, f"{kind}CapacityUnits": 4.0}
        ]


def test_a_cancelled_transaction_leaves_its_token_free(shared: Served, table: Any) -> None:
    check = {
        "ConditionCheck": {
            "TableName": table.name,
            "Key": {"id": {"S": "there"}},
            "ConditionExpression": "attribute_exists(id)",
        }
    }
    request: Any = {"ClientRequestToken": "cancelled", "TransactItems": [put_(table, "k"), check]}
    with pytest.raises(ClientError):
        shared.client.transact_write_items(**request)
    table.put_item(Item={"id": "there"})
    shared.client.transact_write_items(**request)
    assert table.scan()["Count"] == 2
