"""What is refused of items, and how a transaction says it, through requests as they are."""

import json
from typing import Any

import pytest

from tests.serve.dynamodb.support import Served
from tests.serve.dynamodb.test_indexes import INVALID, index, keys, typed

MISFIT = "The provided key element does not match the schema"
EMPTY = (
    "One or more parameter values are not valid. The AttributeValue for a key attribute cannot "
    "contain an empty string value. Key: id"
)


@pytest.fixture(scope="module")
def name(shared: Served) -> str:
    """A table with the key `id` and an index of `state`."""
    shared.resource.create_table(
        TableName="refused",
        KeySchema=keys("id"),
        AttributeDefinitions=typed(id="S", state="S"),
        BillingMode="PAY_PER_REQUEST",
        GlobalSecondaryIndexes=[index("by-state", "state")],
    )
    return "refused"


def reasons(shared: Served, operation: str, actions: list[Any]) -> list[tuple[str, str | None]]:
    """The reasons for which a transaction is cancelled."""
    target = f"DynamoDB_20120810.{operation}"
    status, told, _ = shared.post(target, {"TransactItems": actions})
    assert (status, told["__type"].partition("#")[2]) == (400, "TransactionCanceledException"), told
    return [(one["Code"], one.get("Message")) for one in told["CancellationReasons"]]


FINE: Any = {"Put": {"TableName": "refused", "Item": {"id": {"S": "fine"}}}}
WRONG: Any = {"id": {"N": "1"}}


@pytest.mark.parametrize(
    ("action", "text"),
    [
        (
            {"Put": {"Item": WRONG}},
            f"{INVALID}Type mismatch for key id expected: S actual: N",
        ),
        ({"Put": {"Item": {"a": {"N": "1"}}}}, f"{INVALID}Missing the key id in the item"),
        (
            {"Put": {"Item": {"id": {"S": "k"}, "state": {"N": "1"}}}},
            f"{INVALID}Type mismatch for Index Key state Expected: S Actual: N IndexName: by-state",
        ),
        ({"Delete": {"Key": WRONG}}, MISFIT),
        ({"Delete": {"Key": {"id": {"S": "k"}, "more": {"S": "k"}}}}, MISFIT),
        ({"ConditionCheck": {"Key": WRONG, "ConditionExpression": "attribute_exists(a)"}}, MISFIT),
        ({"Update": {"Key": WRONG, "UpdateExpression": "REMOVE a"}}, MISFIT),
    ],
)
def test_an_action_that_does_not_fit_its_table_cancels_the_transaction(
    shared: Served, name: str, action: Any, text: str
) -> None:
    ((kind, members),) = action.items()
    wrong = {kind: {"TableName": name, **members}}
    for twice in ([], [FINE]):  # keys are looked at before items that come twice
        found = reasons(shared, "TransactWriteItems", [FINE, wrong, *twice])
        assert found[:2] == [("None", None), ("ValidationError", text)]
    assert "Item" not in shared.client.get_item(TableName=name, Key={"id": {"S": "fine"}})


def test_a_get_that_does_not_fit_its_table_cancels_the_transaction(
    shared: Served, name: str
) -> None:
    gets = [
        {"Get": {"TableName": name, "Key": key}}
        for key in ({"id": {"S": "k"}}, WRONG, {"other": {"S": "k"}})
    ]
    assert reasons(shared, "TransactGetItems", gets) == [
        ("None", None),
        ("ValidationError", MISFIT),
        ("ValidationError", MISFIT),
    ]


def test_an_empty_key_and_a_table_that_is_not_there_are_refused_before_any_action(
    shared: Served, name: str
) -> None:
    empty = {"id": {"S": ""}}
    put = {"Put": {"TableName": name, "Item": empty}}
    get = {"Get": {"TableName": name, "Key": empty}}
    refused = ("ValidationException", EMPTY)
    assert shared.refused("TransactWriteItems", TransactItems=[FINE, put]) == refused
    assert shared.refused("TransactGetItems", TransactItems=[get]) == refused
    indexed = {"Put": {"TableName": name, "Item": {"id": {"S": "k"}, "state": {"S": ""}}}}
    assert shared.refused("TransactWriteItems", TransactItems=[indexed])[0] == refused[0]
    nowhere = {"Put": {"TableName": "nowhere", "Item": {"id": {"S": "k"}}}}
    assert shared.refused("TransactWriteItems", TransactItems=[FINE, nowhere])[0] == (
        "ResourceNotFoundException"
    )


def test_members_that_an_action_does_not_have_are_passed_over(shared: Served, name: str) -> None:
    others = {"ReturnValues": "ALL_NEW", "Expected": {"id": {"Value": {"S": "never"}}}}
    put = {"Put": {"TableName": name, "Item": {"id": {"S": "over"}}, **others}}
    target = "DynamoDB_20120810.TransactWriteItems"
    assert shared.post(target, {"TransactItems": [put]})[0] == 200
    get = {"Get": {"TableName": name, "Key": {"id": {"S": "over"}}, "AttributesToGet": ["none"]}}
    target = "DynamoDB_20120810.TransactGetItems"
    _, told, _ = shared.post(target, {"TransactItems": [get]})
    assert told["Responses"] == [{"Item": {"id": {"S": "over"}}}]


def test_a_batch_says_one_thing_of_every_key_that_does_not_fit(shared: Served, name: str) -> None:
    items: list[Any] = [WRONG, {"a": {"S": "no key"}}, {"id": {"L": []}}]
    for item in items:
        batch = {name: [{"PutRequest": {"Item": item}}]}
        assert shared.refused("BatchWriteItem", RequestItems=batch) == (
            "ValidationException",
            MISFIT,
        )


# --- names of attributes --------------------------------------------------------------------------

LONGEST = "é" * 32_767 + "x"
LONG = LONGEST + "x"
NAME_TOO_LONG = (
    "1 validation error detected: Attribute name is too large, must be less than 65536 bytes"
)
ID: Any = {"id": {"S": "named"}}
NESTED: Any = {"M": {"a": {"L": [{"M": {LONG: {"S": "v"}}}]}}}
SET_V: Any = {"UpdateExpression": "SET v = :v", "ExpressionAttributeValues": {":v": NESTED}}
LONG_NAME: Any = {"ExpressionAttributeNames": {"#n": LONG}}


@pytest.mark.parametrize(
    ("operation", "request_"),
    [
        ("PutItem", {"Item": {**ID, LONG: {"S": "v"}}}),
        ("PutItem", {"Item": {**ID, "v": NESTED}}),
        ("GetItem", {"Key": {LONG: {"S": "v"}}}),
        ("GetItem", {"Key": ID, "AttributesToGet": [LONG]}),
        ("GetItem", {"Key": ID, "ProjectionExpression": "#n", **LONG_NAME}),
        ("UpdateItem", {"Key": ID, **SET_V}),
        ("UpdateItem", {"Key": ID, "UpdateExpression": "REMOVE #n", **LONG_NAME}),
        ("UpdateItem", {"Key": ID, "AttributeUpdates": {LONG: {"Action": "DELETE"}}}),
        ("DeleteItem", {"Key": ID, "Expected": {LONG: {"Exists": False}}}),
        ("Scan", {"ScanFilter": {LONG: {"ComparisonOperator": "NULL"}}}),
        ("Scan", {"ExclusiveStartKey": {LONG: {"S": "v"}}}),
    ],
)
def test_a_name_of_more_than_65535_bytes_is_refused(
    shared: Served, name: str, operation: str, request_: Any
) -> None:
    found = shared.refused(operation, TableName=name, **request_)
    assert found == ("ValidationException", NAME_TOO_LONG)
    # One byte less is no longer too long, whatever else is wrong with it.
    fitting = json.loads(json.dumps(request_).replace(json.dumps(LONG), json.dumps(LONGEST)))
    target = f"DynamoDB_20120810.{operation}"
    _, told, _ = shared.post(target, {"TableName": name, **fitting})
    assert NAME_TOO_LONG not in str(told.get("message"))


# --- updates --------------------------------------------------------------------------------------


def test_what_is_only_taken_from_an_item_that_is_not_there_changes_nothing(
    shared: Served, name: str
) -> None:
    request: Any = {"TableName": name, "Key": {"id": {"S": "absent"}}}
    shared.client.update_item(UpdateExpression="REMOVE x.y, z[1]", **request)
    shared.client.update_item(
        UpdateExpression="DELETE x.y :s", ExpressionAttributeValues={":s": {"SS": ["a"]}}, **request
    )
    assert "Item" not in shared.client.get_item(**request)
    invalid = (
        "ValidationException",
        "The document path provided in the update expression is invalid for update",
    )
    set_too: Any = {
        "UpdateExpression": "SET a = :a REMOVE x.y",
        "ExpressionAttributeValues": {":a": {"N": "1"}},
    }
    assert shared.refused("UpdateItem", **set_too, **request) == invalid
    shared.client.put_item(TableName=name, Item={"id": {"S": "there"}})
    there = {**request, "Key": {"id": {"S": "there"}}}
    assert shared.refused("UpdateItem", UpdateExpression="REMOVE x.y", **there) == invalid


def test_a_list_is_not_appended_to_one_that_is_appended(shared: Served, name: str) -> None:
    for nested in ("list_append(list_append(:l, :l), :l)", "list_append(:l, list_append(a, :l))"):
        assert shared.refused(
            "UpdateItem",
            TableName=name,
            Key=ID,
            UpdateExpression=f"SET a = {nested}",
            ExpressionAttributeValues={":l": {"L": []}},
        ) == (
            "ValidationException",
            (
                "Invalid UpdateExpression: The function is not allowed to be used this way in an "
                "expression; function: list_append"
            ),
        )


def test_a_conditional_operator_combines_conditions(shared: Served, name: str) -> None:
    request: Any = {"TableName": name, "Item": ID, "ConditionalOperator": "OR"}
    without = "ConditionalOperator cannot be used without Filter or Expected"
    assert shared.refused("PutItem", **request)[1] == without
    assert shared.refused("PutItem", Expected={}, **request)[1] == without
    one = {"a": {"Exists": False}}
    assert shared.refused("PutItem", Expected=one, **request)[1] == (
        "ConditionalOperator can only be used when Filter or Expected has two or more elements"
    )
    shared.client.put_item(Expected={**one, "b": {"Exists": False}}, **request)


def test_a_query_of_one_item_is_not_gone_on_with(shared: Served, name: str) -> None:
    found = shared.refused(
        "Query",
        TableName=name,
        KeyConditionExpression="id = :v",
        ExpressionAttributeValues={":v": {"S": "a"}},
        ExclusiveStartKey={"id": {"S": "a"}},
    )
    assert found == (
        "ValidationException",
        "The query can return at most one row and cannot be restarted",
    )
