"""Requests and the exact errors that answer them, as the service writes them."""

from typing import Any

import pytest

from tests.serve.dynamodb.support import Served
from tests.serve.dynamodb.test_indexes import index, keys, typed

VALIDATION = "ValidationException"
SERIALIZATION = "SerializationException"
INVALID = "One or more parameter values were invalid: "
NOT_MET = "failed to satisfy constraint: Member must"
NO_MAP = "Expected map or null"
NO_STRING = "NUMBER_VALUE cannot be converted to String"
NAME_BOUNDS = (
    "[Member must have length less than or equal to 255, Member must have length greater than or "
    "equal to 3, Member must satisfy regular expression pattern: [a-zA-Z0-9_.-]+]"
)
OPERATORS = (
    "[IN, NULL, BETWEEN, LT, NOT_CONTAINS, EQ, GT, NOT_NULL, NE, LE, BEGINS_WITH, GE, CONTAINS]"
)


@pytest.fixture(scope="module")
def name(shared: Served) -> str:
    """A table with the keys `pk` and `sk`, and an index of each kind."""
    shared.resource.create_table(
        TableName="answers",
        KeySchema=keys("pk", "sk"),
        AttributeDefinitions=typed(pk="S", sk="N", state="S", at="S"),
        BillingMode="PAY_PER_REQUEST",
        DeletionProtectionEnabled=True,
        LocalSecondaryIndexes=[index("local", "pk", "at", projection="KEYS_ONLY")],
        GlobalSecondaryIndexes=[index("global", "state", projection="KEYS_ONLY")],
    )
    return "answers"


def problems(*told: str) -> str:
    """The text of constraints that were not met."""
    plural = "s" if len(told) > 1 else ""
    return f"{len(told)} validation error{plural} detected: {'; '.join(told)}"


ARN = "arn:aws:dynamodb:us-east-1:000000000000:table/answers"
NO_ARN = "Invalid TableArn: Invalid ResourceArn provided as input "
ONE_TAG = "Atleast one {} needs to be provided as Input."
KEY: Any = {"pk": {"S": "k"}, "sk": {"N": "1"}}
ITEM: Any = {"Item": KEY}
ASKED: list[tuple[str, Any, str]] = [
    ("BatchGetItem", {"Keys": [{}]}, "{Keys=[{}]}"),
    ("BatchWriteItem", [{}], "[{}]"),
]
OF_KEY: Any = {"pk": {"ComparisonOperator": "EQ", "AttributeValueList": [{"S": "k"}]}}
SCHEMA: Any = {
    "KeySchema": keys("pk"),
    "AttributeDefinitions": typed(pk="S"),
    "BillingMode": "PAY_PER_REQUEST",
}

UNITS: Any = {"ReadCapacityUnits": 1, "WriteCapacityUnits": 1}
LARGEST: Any = {**UNITS, "WriteCapacityUnits": 10**12 + 1}
PROVISIONED: Any = {**SCHEMA, "BillingMode": "PROVISIONED", "ProvisionedThroughput": UNITS}
OF_PK: Any = index("other", "pk")
OF_GLOBAL: Any = {"IndexName": "global", "ProvisionedThroughput": UNITS}


def refusals(name: str, wanted: str, *cases: tuple[str, dict[str, Any], str]) -> list[Any]:
    """Cases of one kind: the operation, its request, and the text of the error `wanted`."""
    return [
        pytest.param(operation, request, wanted, text, id=f"{name}-{number}-{operation}")
        for number, (operation, request, text) in enumerate(cases)
    ]


WRONG_TYPES = refusals(
    "types",
    SERIALIZATION,
    # Before constraints of any other member, and before what expressions say.
    ("PutItem", {"TableName": "", "Item": {"a": {"S": 5}}}, NO_STRING),
    ("PutItem", {"Item": {"a": {"N": 5}}}, NO_STRING),
    ("PutItem", {"Item": {"a": {"N": 0.5}}}, "DECIMAL_VALUE cannot be converted to String"),
    ("PutItem", {"Item": {"a": {"S": ""}, "b": {"SS": ["x", 5]}}, "ReturnValues": "x"}, NO_STRING),
    (
        "PutItem",
        {"Item": {"": {}, "a": {"M": {"b": {"L": [{"S": False}]}}}}},
        "FALSE_VALUE cannot be converted to String",
    ),
    ("PutItem", {"Item": {"a": {"NS": []}, "b": {"NS": "x"}}}, "Expected list or null"),
    (
        "PutItem",
        {"Item": {"a": {}, "b": {"B": 5}}},
        "only base-64-encoded strings are convertible to bytes",
    ),
    ("GetItem", {"Key": {"a": {"BOOL": 5}}}, "NUMBER_VALUE cannot be converted to Boolean"),
    (
        "GetItem",
        {"Key": KEY, "ProjectionExpression": "", "ConsistentRead": "x"},
        "STRING_VALUE cannot be converted to Boolean",
    ),
    (
        "UpdateItem",
        {"Key": KEY, "UpdateExpression": "!", "ExpressionAttributeNames": {"#a": 5}},
        NO_STRING,
    ),
    (
        "UpdateItem",
        {"Key": KEY, "UpdateExpression": "!", "ExpressionAttributeValues": {":a": {"S": 5}}},
        NO_STRING,
    ),
    ("UpdateItem", {"AttributeUpdates": {"a": {"Action": 5}}}, NO_STRING),
    (
        "DeleteItem",
        {"Expected": {"a": {"Exists": 5}}},
        "NUMBER_VALUE cannot be converted to Boolean",
    ),
    ("Query", {"KeyConditions": {"a": {"ComparisonOperator": 5}}}, NO_STRING),
    (
        "Query",
        {"Limit": 0, "QueryFilter": {"a": {"AttributeValueList": "x"}}},
        "Expected list or null",
    ),
    ("Scan", {"ScanFilter": []}, "Start of list found where not expected"),
    ("Scan", {"Limit": {}}, "Start of structure or map found where not expected"),
    ("BatchGetItem", {"RequestItems": {"": {"Keys": [{"a": {"S": 5}}]}}}, NO_STRING),
    (
        "BatchWriteItem",
        {"RequestItems": {"": [{"PutRequest": {"Item": {"a": {"S": 5}}}}]}},
        NO_STRING,
    ),
    (
        "BatchWriteItem",
        {"RequestItems": {"none": [], "some": [{"PutRequest": {"Item": {"a": {"S": 5}}}}]}},
        NO_STRING,
    ),
    ("TransactWriteItems", {"TransactItems": [{}] * 100 + [{"Put": {"Item": 5}}]}, NO_MAP),
    (
        "TransactWriteItems",
        {"TransactItems": [{}, {"Delete": {"Key": {"a": {"S": 5}}}}]},
        NO_STRING,
    ),
    ("CreateTable", {"KeySchema": [{"KeyType": 5}]}, NO_STRING),
    ("DescribeTable", {"TableName": 5}, NO_STRING),
    ("ListTables", {"Limit": "1"}, "STRING_VALUE cannot be converted to Integer"),
    ("ListTables", {"Limit": True}, "TRUE_VALUE cannot be converted to Integer"),
)

CONSTRAINTS = refusals(
    "constraints",
    VALIDATION,
    (
        "GetItem",
        {"TableName": "", "Key": {}},
        problems(f"Value '' at 'tableName' {NOT_MET} have length greater than or equal to 1"),
    ),
    (
        "PutItem",
        {**ITEM, "ReturnValues": "x"},
        problems(
            f"Value 'x' at 'returnValues' {NOT_MET} satisfy enum value set: "
            "[ALL_NEW, UPDATED_OLD, ALL_OLD, NONE, UPDATED_NEW]"
        ),
    ),
    (
        "DeleteItem",
        {"Key": KEY, "ConditionalOperator": "x"},
        problems(f"Value 'x' at 'conditionalOperator' {NOT_MET} satisfy enum value set: [OR, AND]"),
    ),
    (
        "Query",
        {"KeyConditions": {"a": {}, "b": {"ComparisonOperator": "x"}}},
        problems(
            f"Value null at 'keyConditions.a.member.comparisonOperator' {NOT_MET} not be null",
            f"Value 'x' at 'keyConditions.b.member.comparisonOperator' {NOT_MET} satisfy enum "
            f"value set: {OPERATORS}",
        ),
    ),
    (
        "Scan",
        {"ScanFilter": {"a": {"ComparisonOperator": "x"}}, "Limit": 0},
        problems(
            f"Value '0' at 'limit' {NOT_MET} have value greater than or equal to 1",
            f"Value 'x' at 'scanFilter.a.member.comparisonOperator' {NOT_MET} satisfy enum value "
            f"set: {OPERATORS}",
        ),
    ),
    (
        "UpdateItem",
        {"Key": KEY, "AttributeUpdates": {"a": {"Action": "x"}}},
        problems(
            f"Value 'x' at 'attributeUpdates.a.member.action' {NOT_MET} satisfy enum value set: "
            "[ADD, PUT, DELETE]"
        ),
    ),
    *(
        (
            operation,
            {"RequestItems": {given: items}},
            problems(
                f"Value '{{{given}={shown}}}' at 'requestItems' failed to satisfy constraint: Map "
                f"keys must satisfy constraint: {NAME_BOUNDS}"
            ),
        )
        for given in ("", "ab", "a;c")
        for operation, items, shown in ASKED
    ),
    *(
        (
            operation,
            {"TableName": given},
            "TableName must be at least 3 characters long and at most 255 characters long",
        )
        for operation in ("CreateTable", "UpdateTable", "DescribeTable", "DeleteTable")
        for given in ("", "ab", "a" * 256)
    ),
    (
        "DescribeTable",
        {"TableName": "a;c"},
        problems(
            f"Value 'a;c' at 'tableName' {NOT_MET} satisfy regular expression pattern: "
            "[a-zA-Z0-9_.-]+"
        ),
    ),
)

PARAMETERS = refusals(
    "parameters",
    VALIDATION,
    *(
        (operation, {**request, "ReturnValues": given}, "ReturnValues can only be ALL_OLD or NONE")
        for operation, request in (("PutItem", ITEM), ("DeleteItem", {"Key": KEY}))
        for given in ("ALL_NEW", "UPDATED_OLD", "UPDATED_NEW")
    ),
    *(
        (
            operation,
            {**request, "Select": "SPECIFIC_ATTRIBUTES"},
            (
                "Must specify the AttributesToGet or ProjectionExpression when choosing to get "
                "SPECIFIC_ATTRIBUTES"
            ),
        )
        for operation, request in (("Scan", {}), ("Query", {"KeyConditions": OF_KEY}))
    ),
    (
        "CreateTable",
        {**SCHEMA, "StreamSpecification": {"StreamEnabled": True, "StreamViewType": "x"}},
        problems(
            f"Value 'x' at 'streamSpecification.streamViewType' {NOT_MET} satisfy enum value "
            "set: [NEW_IMAGE, OLD_IMAGE, NEW_AND_OLD_IMAGES, KEYS_ONLY]"
        ),
    ),
    (
        "CreateTable",
        {**PROVISIONED, "GlobalSecondaryIndexes": [{**OF_PK, "ProvisionedThroughput": LARGEST}]},
        "Given value 1000000000001 for WriteCapacityUnits is out of bounds for index other",
    ),
    (
        "UpdateTable",
        {"GlobalSecondaryIndexUpdates": [{}]},
        (
            f"{INVALID}One of GlobalSecondaryIndexUpdate.Update, GlobalSecondaryIndexUpdate.Create,"
            f" GlobalSecondaryIndexUpdate.Delete must not be null"
        ),
    ),
    (
        "UpdateTable",
        {"GlobalSecondaryIndexUpdates": [{"Update": OF_GLOBAL}, {"Update": OF_GLOBAL}]},
        (
            f"{INVALID}Only one global secondary index update per index is allowed simultaneously."
            f" Index: global"
        ),
    ),
    ("TagResource", {"ResourceArn": ARN, "Tags": []}, ONE_TAG.format("Tag")),
    ("UntagResource", {"ResourceArn": ARN, "TagKeys": []}, ONE_TAG.format("Tag Key")),
    ("TagResource", {"ResourceArn": "x", "Tags": []}, f"{NO_ARN}x"),
    (
        "DeleteTable",
        {},
        (
            "Resource cannot be deleted as it is currently protected against deletion. Disable "
            "deletion protection first."
        ),
    ),
)

EMPTY = "Supplied AttributeValue is empty, must contain exactly one of the supported datatypes"
TOO_LARGE = "Item size has exceeded the maximum allowed size"
LARGE: Any = {"Item": {**KEY, "v": {"S": "x" * 409_600}}}
NOWHERE: Any = {"TableName": "nowhere"}
WRONG: Any = {"a": {}}
BOTH = (
    "Can not use both expression and non-expression parameters in the same request: "
    "Non-expression parameters: {Expected} Expression parameters: {ConditionExpression}"
)
# Which of two errors is told: mixed parameters, keys and items, ReturnValues, an item's size, what
# expressions say, and whether the table is there.
ORDERS = refusals(
    "orders",
    VALIDATION,
    ("PutItem", {"Item": WRONG, "ConditionExpression": "", "Expected": {}}, BOTH),
    ("PutItem", {"Item": WRONG, "ConditionExpression": "", "ReturnValues": "ALL_NEW"}, EMPTY),
    ("DeleteItem", {"Key": WRONG, "ConditionExpression": "", "ReturnValues": "ALL_NEW"}, EMPTY),
    ("UpdateItem", {"Key": WRONG, "UpdateExpression": ""}, EMPTY),
    ("GetItem", {"Key": WRONG, "ProjectionExpression": ""}, EMPTY),
    (
        "PutItem",
        {**LARGE, "ConditionExpression": "", "ReturnValues": "ALL_NEW"},
        "ReturnValues can only be ALL_OLD or NONE",
    ),
    ("PutItem", {**LARGE, "ConditionExpression": ""}, TOO_LARGE),
    ("PutItem", {**LARGE, **NOWHERE}, TOO_LARGE),
    (
        "PutItem",
        {**ITEM, **NOWHERE, "ConditionExpression": ""},
        "Invalid ConditionExpression: The expression can not be empty;",
    ),
    (
        "Scan",
        {**NOWHERE, "Select": "ALL_PROJECTED_ATTRIBUTES"},
        "ALL_PROJECTED_ATTRIBUTES can be used only when Querying using an IndexName",
    ),
    (
        "Query",
        {"ExclusiveStartKey": WRONG, "KeyConditionExpression": ""},
        f"The provided starting key is invalid: {EMPTY}",
    ),
    (
        "Scan",
        {"ExclusiveStartKey": WRONG, "Segment": 1, "TotalSegments": 1, "FilterExpression": ""},
        f"The provided starting key is invalid: {EMPTY}",
    ),
    (
        "Scan",
        {"Segment": 1, "TotalSegments": 1, "FilterExpression": ""},
        (
            "The Segment parameter is zero-based and must be less than parameter TotalSegments: "
            "Segment: 1 is not less than TotalSegments: 1"
        ),
    ),
    (
        "BatchGetItem",
        {"RequestItems": {"answers": {"Keys": [WRONG], "ProjectionExpression": ""}}},
        EMPTY,
    ),
    (
        "BatchWriteItem",
        {"RequestItems": {"answers": [{"PutRequest": ITEM}, {"PutRequest": LARGE}]}},
        TOO_LARGE,
    ),
)


@pytest.mark.parametrize(
    ("operation", "request_", "error", "text"),
    [*WRONG_TYPES, *CONSTRAINTS, *PARAMETERS, *ORDERS],
)
def test_a_request_is_refused_in_the_services_words(
    shared: Served, name: str, operation: str, request_: Any, error: str, text: str
) -> None:
    lists = {"ListTables", "BatchGetItem", "BatchWriteItem", "TransactWriteItems"}
    named = {} if operation in lists else {"TableName": name}
    assert shared.refused(operation, **{**named, **request_}) == (error, text)
