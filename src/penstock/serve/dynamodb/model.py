"""The inputs of the operations: their members, types and bounds.

From the service's published model (API version 2012-08-10), words in the order in which errors list
them. Attribute values, keys, items and expressions are looked at by whoever reads them
(`penstock.store.attributevalue`, `.expressions`).
"""

from typing import Final

from penstock.serve.dynamodb.names import SEQUENCE_PATTERN
from penstock.serve.dynamodb.shapes import (
    AttributeValue,
    Flag,
    Listed,
    Mapped,
    Moment,
    Rule,
    Shape,
    TableName,
    Text,
    Whole,
)
from penstock.store.expressions.legacy import COMPARISON_OPERATORS

_ANY: Final = Rule()
_TABLE: Final = TableName()
_ARN: Final = Text(1, 1283)
_STREAM_ARN: Final = Text(37, 1024)
_SHARD_ID: Final = Text(28, 65)
_SEQUENCE: Final = Text(21, 40, pattern=SEQUENCE_PATTERN)
_NAME: Final = Text(1, 255)
_INDEX_NAME: Final = Text(3, 255, pattern="[a-zA-Z0-9_.-]+")
_LIMIT: Final = Whole(1)
_PAGE: Final = Whole(1, 100)
_CAPACITY: Final = Text(words=("INDEXES", "TOTAL", "NONE"))
_COLLECTIONS: Final = Text(words=("SIZE", "NONE"))
_ON_FAILURE: Final = Text(words=("ALL_OLD", "NONE"))
_RETURNED: Final = Text(words=("ALL_NEW", "UPDATED_OLD", "ALL_OLD", "NONE", "UPDATED_NEW"))
_OPERATOR: Final = Text(words=("OR", "AND"))
_VALUE: Final = AttributeValue()
_KEY: Final = Mapped(_VALUE)
_NAMES: Final = Mapped(Text())
_VALUES: Final = Mapped(_VALUE)

_COMPARED: Final = Text(words=COMPARISON_OPERATORS)
_COMPARISONS: Final = Mapped(
    Shape({"ComparisonOperator": _COMPARED}, {"AttributeValueList": Listed(_VALUE)})
)
_EXPECTED: Final = Mapped(
    Shape(
        {},
        {
            "Value": _VALUE,
            "Exists": Flag(),
            "ComparisonOperator": _COMPARED,
            "AttributeValueList": Listed(_VALUE),
        },
    )
)
_UPDATES: Final = Mapped(
    Shape({}, {"Value": _VALUE, "Action": Text(words=("ADD", "PUT", "DELETE"))})
)
_EXPRESSED: Final = {
    "ExpressionAttributeNames": _NAMES,
    "ExpressionAttributeValues": _VALUES,
}
_CONDITIONED: Final = {"ConditionExpression": Text(), **_EXPRESSED}
_WRITING: Final = {
    **_CONDITIONED,
    "Expected": _EXPECTED,
    "ConditionalOperator": _OPERATOR,
    "ReturnValues": _RETURNED,
    "ReturnConsumedCapacity": _CAPACITY,
    "ReturnItemCollectionMetrics": _COLLECTIONS,
    "ReturnValuesOnConditionCheckFailure": _ON_FAILURE,
}
_PROJECTED: Final = {
    "ProjectionExpression": Text(),
    "ExpressionAttributeNames": _NAMES,
    "AttributesToGet": Listed(Text(), 1),
    "ConsistentRead": Flag(),
}
_PAGED: Final = {
    **_PROJECTED,
    "ExpressionAttributeValues": _VALUES,
    "FilterExpression": Text(),
    "ConditionalOperator": _OPERATOR,
    "ExclusiveStartKey": _KEY,
    "IndexName": _INDEX_NAME,
    "Limit": _LIMIT,
    "ReturnConsumedCapacity": _CAPACITY,
    "Select": Text(
        words=("SPECIFIC_ATTRIBUTES", "COUNT", "ALL_ATTRIBUTES", "ALL_PROJECTED_ATTRIBUTES")
    ),
}
_DEFINITIONS: Final = Listed(
    Shape({"AttributeName": _NAME, "AttributeType": Text(words=("B", "N", "S"))}, {})
)
_SCHEMA: Final = Listed(
    Shape({"AttributeName": _NAME, "KeyType": Text(words=("HASH", "RANGE"))}, {}), 1, 2
)
_UNITS: Final = Whole(1, long=True)
_THROUGHPUT: Final = Shape({"ReadCapacityUnits": _UNITS, "WriteCapacityUnits": _UNITS}, {})
_LONG: Final = Whole(long=True)
_ON_DEMAND: Final = Shape({}, {"MaxReadRequestUnits": _LONG, "MaxWriteRequestUnits": _LONG})
_WARM: Final = Shape({}, {"ReadUnitsPerSecond": _LONG, "WriteUnitsPerSecond": _LONG})
_PROJECTION: Final = Shape(
    {},
    {
        "ProjectionType": Text(words=("ALL", "INCLUDE", "KEYS_ONLY")),
        "NonKeyAttributes": Listed(_NAME, 1, 20),
    },
)
_LOCAL_INDEX: Final = Shape(
    {"IndexName": _INDEX_NAME, "KeySchema": _SCHEMA, "Projection": _PROJECTION}, {}
)
_GLOBAL_INDEX: Final = Shape(
    {"IndexName": _INDEX_NAME, "KeySchema": _SCHEMA, "Projection": _PROJECTION},
    {
        "ProvisionedThroughput": _THROUGHPUT,
        "OnDemandThroughput": _ON_DEMAND,
        "WarmThroughput": _WARM,
    },
)
_INDEX_UPDATE: Final = Shape(
    {},
    {
        "Create": _GLOBAL_INDEX,
        "Update": Shape(
            {"IndexName": _INDEX_NAME},
            {
                "ProvisionedThroughput": _THROUGHPUT,
                "OnDemandThroughput": _ON_DEMAND,
                "WarmThroughput": _WARM,
            },
        ),
        "Delete": Shape({"IndexName": _INDEX_NAME}, {}),
    },
)
_VIEWS: Final = Text(words=("NEW_IMAGE", "OLD_IMAGE", "NEW_AND_OLD_IMAGES", "KEYS_ONLY"))
_STREAM: Final = Shape({"StreamEnabled": Flag()}, {"StreamViewType": _VIEWS})
_TAG: Final = Shape({"Key": Text(1, 128), "Value": Text(0, 256)}, {})
_OPTIONS: Final = {
    "BillingMode": Text(words=("PROVISIONED", "PAY_PER_REQUEST")),
    "ProvisionedThroughput": _THROUGHPUT,
    "StreamSpecification": _STREAM,
    "SSESpecification": Shape(
        {}, {"Enabled": Flag(), "SSEType": Text(words=("AES256", "KMS")), "KMSMasterKeyId": Text()}
    ),
    "TableClass": Text(words=("STANDARD", "STANDARD_INFREQUENT_ACCESS")),
    "DeletionProtectionEnabled": Flag(),
    "OnDemandThroughput": _ON_DEMAND,
    "WarmThroughput": _WARM,
}
_WRITE: Final = Shape(
    {}, {"PutRequest": Shape({"Item": _KEY}, {}), "DeleteRequest": Shape({"Key": _KEY}, {})}
)
_IN_TRANSACTION: Final = {
    **_CONDITIONED,
    "ReturnValuesOnConditionCheckFailure": _ON_FAILURE,
}
_ACTION: Final = Shape(
    {},
    {
        "ConditionCheck": Shape(
            {"TableName": _TABLE, "Key": _KEY, "ConditionExpression": Text()}, _IN_TRANSACTION
        ),
        "Put": Shape({"TableName": _TABLE, "Item": _KEY}, _IN_TRANSACTION),
        "Delete": Shape({"TableName": _TABLE, "Key": _KEY}, _IN_TRANSACTION),
        "Update": Shape(
            {"TableName": _TABLE, "Key": _KEY, "UpdateExpression": Text()}, _IN_TRANSACTION
        ),
    },
)
_GET: Final = Shape(
    {
        "Get": Shape(
            {"TableName": _TABLE, "Key": _KEY},
            {"ProjectionExpression": Text(), "ExpressionAttributeNames": _NAMES},
        )
    },
    {},
)

_NAMED: Final = Shape({"TableName": _TABLE}, {}, first=True)

STREAMS: Final = {
    "ListStreams": Shape(
        {},
        {"TableName": _TABLE, "Limit": _PAGE, "ExclusiveStartStreamArn": _STREAM_ARN},
    ),
    "DescribeStream": Shape(
        {"StreamArn": _STREAM_ARN},
        {
            "Limit": _PAGE,
            "ExclusiveStartShardId": _SHARD_ID,
            "ShardFilter": Shape({"Type": Text(words=("CHILD_SHARDS",)), "ShardId": _SHARD_ID}, {}),
        },
    ),
    "GetShardIterator": Shape(
        {
            "StreamArn": _STREAM_ARN,
            "ShardId": _SHARD_ID,
            "ShardIteratorType": Text(
                words=(
                    "TRIM_HORIZON",
                    "LATEST",
                    "AT_SEQUENCE_NUMBER",
                    "AFTER_SEQUENCE_NUMBER",
                    "AT_TIMESTAMP",
                )
            ),
        },
        {"SequenceNumber": _SEQUENCE, "Timestamp": Moment()},
    ),
    "GetRecords": Shape({"ShardIterator": Text(1, 2048)}, {"Limit": Whole(1, 1000)}),
}

DATA: Final = {
    "CreateTable": Shape(
        {"AttributeDefinitions": _DEFINITIONS, "TableName": _TABLE, "KeySchema": _SCHEMA},
        {
            **_OPTIONS,
            "LocalSecondaryIndexes": Listed(_LOCAL_INDEX),
            "GlobalSecondaryIndexes": Listed(_GLOBAL_INDEX),
            "Tags": Listed(_TAG, 0, 50),
            "ResourcePolicy": Text(),
        },
        first=True,
    ),
    "UpdateTable": Shape(
        {"TableName": _TABLE},
        {
            **_OPTIONS,
            "AttributeDefinitions": _DEFINITIONS,
            "GlobalSecondaryIndexUpdates": Listed(_INDEX_UPDATE),
            "ReplicaUpdates": Listed(_ANY),
        },
        first=True,
    ),
    "DescribeTable": _NAMED,
    "DeleteTable": _NAMED,
    "ListTables": Shape({}, {"ExclusiveStartTableName": _TABLE, "Limit": _PAGE}),
    "DescribeLimits": Shape({}, {}),
    "TagResource": Shape({"ResourceArn": _ARN, "Tags": Listed(_TAG, 0, 50)}, {}),
    "UntagResource": Shape({"ResourceArn": _ARN, "TagKeys": Listed(Text(1, 128))}, {}),
    "ListTagsOfResource": Shape({"ResourceArn": _ARN}, {"NextToken": Text()}),
    "UpdateTimeToLive": Shape(
        {
            "TableName": _TABLE,
            "TimeToLiveSpecification": Shape({"Enabled": Flag(), "AttributeName": _NAME}, {}),
        },
        {},
    ),
    "DescribeTimeToLive": _NAMED,
    "DescribeContinuousBackups": _NAMED,
    "PutItem": Shape({"TableName": _TABLE, "Item": _KEY}, _WRITING),
    "DeleteItem": Shape({"TableName": _TABLE, "Key": _KEY}, _WRITING),
    "UpdateItem": Shape(
        {"TableName": _TABLE, "Key": _KEY},
        {**_WRITING, "UpdateExpression": Text(), "AttributeUpdates": _UPDATES},
    ),
    "GetItem": Shape(
        {"TableName": _TABLE, "Key": _KEY}, {**_PROJECTED, "ReturnConsumedCapacity": _CAPACITY}
    ),
    "BatchGetItem": Shape(
        {
            "RequestItems": Mapped(
                Shape({"Keys": Listed(_KEY, 1, 100)}, _PROJECTED), 1, 100, key=_TABLE
            )
        },
        {"ReturnConsumedCapacity": _CAPACITY},
    ),
    "BatchWriteItem": Shape(
        {"RequestItems": Mapped(Listed(_WRITE), 1, 25, key=_TABLE, lengths=(1, 25))},
        {"ReturnConsumedCapacity": _CAPACITY, "ReturnItemCollectionMetrics": _COLLECTIONS},
    ),
    "TransactWriteItems": Shape(
        {"TransactItems": Listed(_ACTION, 1, 100)},
        {
            "ClientRequestToken": Text(1, 36),
            "ReturnConsumedCapacity": _CAPACITY,
            "ReturnItemCollectionMetrics": _COLLECTIONS,
        },
    ),
    "TransactGetItems": Shape(
        {"TransactItems": Listed(_GET, 1, 100)}, {"ReturnConsumedCapacity": _CAPACITY}
    ),
    "Query": Shape(
        {"TableName": _TABLE},
        {
            **_PAGED,
            "KeyConditionExpression": Text(),
            "KeyConditions": _COMPARISONS,
            "QueryFilter": _COMPARISONS,
            "ScanIndexForward": Flag(),
        },
    ),
    "Scan": Shape(
        {"TableName": _TABLE},
        {
            **_PAGED,
            "ScanFilter": _COMPARISONS,
            "Segment": Whole(0, 999_999),
            "TotalSegments": Whole(1, 1_000_000),
        },
    ),
}
