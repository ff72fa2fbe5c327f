"""Secondary indexes through boto3: local and global ones, what they project and cost."""

from typing import Any

import pytest
from boto3.dynamodb import conditions

from penstock.store import KeyType
from tests.serve.dynamodb.support import Served

Attr: Any = conditions.Attr
Key: Any = conditions.Key
INVALID = "One or more parameter values were invalid: "


def keys(*names: str) -> list[dict[str, str]]:
    return [
        {"AttributeName": name, "KeyType": role}
        for name, role in zip(names, ("HASH", "RANGE"), strict=False)
    ]


def typed(**types: str) -> list[dict[str, str]]:
    return [{"AttributeName": name, "AttributeType": kind} for name, kind in types.items()]


def index(name: str, *key: str, projection: str = "ALL", include: Any = None) -> dict[str, Any]:
    projected: dict[str, Any] = {"ProjectionType": projection}
    if include is not None:
        projected["NonKeyAttributes"] = include
    return {"IndexName": name, "KeySchema": keys(*key), "Projection": projected}


SHOP: Any = {
    "KeySchema": keys("shop", "id"),
    "AttributeDefinitions": typed(shop="S", id="N", state="S", total="N"),
    "BillingMode": "PAY_PER_REQUEST",
    "LocalSecondaryIndexes": [
        index("by-total", "shop", "total", projection="KEYS_ONLY"),
    ],
    "GlobalSecondaryIndexes": [
        index("by-state", "state", "total"),
        index("open", "state", projection="KEYS_ONLY"),
        index("noted", "state", "id", projection="INCLUDE", include=["note"]),
    ],
}


@pytest.fixture(scope="module")
def orders(shared: Served) -> Any:
    """Two shops of six orders; every third has no state, every second no total."""
    made = shared.resource.create_table(TableName="orders", **SHOP)
    with made.batch_writer() as batch:
        for shop in ("a", "b"):
            for number in range(6):
                item: dict[str, Any] = {"shop": shop, "id": number, "note": f"n{number}", "x": 1}
                if number % 3:
                    item["state"] = "open" if number % 3 == 1 else "paid"
                if number % 2:
                    item["total"] = 100 - number
                batch.put_item(Item=item)
    return made


def ids(told: Any) -> list[str]:
    return [f"{item['shop']}{item['id']}" for item in told["Items"]]


def test_a_table_is_described_with_its_indexes(shared: Served, orders: Any) -> None:
    described = shared.client.describe_table(TableName=orders.name)["Table"]
    (local,) = described["LocalSecondaryIndexes"]
    assert local["IndexName"] == "by-total"
    assert local["KeySchema"] == keys("shop", "total")
    assert local["Projection"] == {"ProjectionType": "KEYS_ONLY"}
    assert local["IndexArn"] == f"{described['TableArn']}/index/by-total"
    assert "IndexStatus" not in local
    by_state, _, noted = described["GlobalSecondaryIndexes"]
    assert by_state["IndexStatus"] == "ACTIVE"
    assert by_state["ProvisionedThroughput"]["ReadCapacityUnits"] == 0
    assert noted["Projection"] == {"ProjectionType": "INCLUDE", "NonKeyAttributes": ["note"]}
    types = {
        one["AttributeName"]: one["AttributeType"] for one in described["AttributeDefinitions"]
    }
    assert types == {"shop": "S", "id": "N", "state": "S", "total": "N"}


def test_a_global_index_has_the_items_that_have_its_keys_in_their_order(orders: Any) -> None:
    told = orders.query(IndexName="by-state", KeyConditionExpression=Key("state").eq("paid"))
    assert ids(told) == ["a5", "b5"]
    told = orders.query(IndexName="open", KeyConditionExpression=Key("state").eq("open"))
    assert sorted(ids(told)) == ["a1", "a4", "b1", "b4"]
    backward = orders.query(
        IndexName="noted", KeyConditionExpression=Key("state").eq("open"), ScanIndexForward=False
    )
    assert [item["id"] for item in backward["Items"]] == [4, 4, 1, 1]
    bound = Key("state").eq("open") & Key("id").gt(1)
    told = orders.query(IndexName="noted", KeyConditionExpression=bound)
    assert sorted(ids(told)) == ["a4", "b4"]


def test_an_index_answers_with_what_it_projects(orders: Any) -> None:
    def names(**request: Any) -> set[str]:
        told = orders.query(KeyConditionExpression=Key("state").eq("paid"), **request)
        return {name for item in told["Items"] for name in item}

    assert names(IndexName="by-state") == {"shop", "id", "state", "total", "note", "x"}
    assert names(IndexName="open") == {"shop", "id", "state"}
    assert names(IndexName="noted") == {"shop", "id", "state", "note"}
    assert names(IndexName="noted", Select="ALL_PROJECTED_ATTRIBUTES") == {
        *("shop", "id", "state", "note")
    }
    assert names(IndexName="noted", ProjectionExpression="note") == {"note"}
    assert names(IndexName="by-state", Select="ALL_ATTRIBUTES") > {"x"}


def test_a_local_index_reads_what_it_lacks_from_the_table(orders: Any) -> None:
    request = {"IndexName": "by-total", "KeyConditionExpression": Key("shop").eq("a")}
    told = orders.query(ConsistentRead=True, **request)
    assert told["Items"] == [{"shop": "a", "id": n, "total": 100 - n} for n in (5, 3, 1)]
    told = orders.query(ProjectionExpression="note", **request)
    assert told["Items"] == [{"note": f"n{n}"} for n in (5, 3, 1)]
    whole = orders.query(Select="ALL_ATTRIBUTES", **request)
    assert all("x" in item for item in whole["Items"])
    filtered = orders.query(FilterExpression=Attr("note").eq("n3"), **request)
    assert ids(filtered) == ["a3"]
    assert filtered["ScannedCount"] == 3


def test_a_scan_of_an_index_has_all_of_its_entries_and_only_these(orders: Any) -> None:
    told = orders.scan(IndexName="by-state")
    assert sorted(ids(told)) == ["a1", "a5", "b1", "b5"]
    found = [
        one
        for segment in range(3)
        for one in ids(orders.scan(IndexName="open", Segment=segment, TotalSegments=3))
    ]
    assert sorted(found) == sorted(f"{shop}{n}" for shop in "ab" for n in (1, 2, 4, 5))
    assert orders.scan(IndexName="open", Select="COUNT")["Count"] == 8


@pytest.mark.parametrize("forward", [True, False])
def test_pages_of_an_index_put_together_are_the_whole(orders: Any, forward: bool) -> None:
    found, start = list[str](), dict[str, Any]()
    while True:
        told = orders.query(
            IndexName="open",
            KeyConditionExpression=Key("state").eq("open"),
            Limit=1,
            ScanIndexForward=forward,
            **start,
        )
        found += ids(told)
        if "LastEvaluatedKey" not in told:
            break
        assert set(told["LastEvaluatedKey"]) == {"shop", "id", "state"}
        start = {"ExclusiveStartKey": told["LastEvaluatedKey"]}
    expected = ["a1", "a4", "b1", "b4"]
    assert found == (expected if forward else expected[::-1])


def test_a_page_of_an_index_counts_what_it_projects(shared: Served) -> None:
    table = shared.resource.create_table(
        TableName="large",
        KeySchema=keys("id"),
        AttributeDefinitions=typed(id="S", state="S"),
        BillingMode="PAY_PER_REQUEST",
        GlobalSecondaryIndexes=[
            index("narrow", "state", projection="KEYS_ONLY"),
            index("whole", "state"),
        ],
    )
    for number in range(4):
        table.put_item(Item={"id": f"k{number}", "state": "s", "v": "x" * 390_000})
    narrow = table.scan(IndexName="narrow", ReturnConsumedCapacity="INDEXES")
    assert narrow["Count"] == 4
    assert narrow["ConsumedCapacity"] == {
        "TableName": "large",
        "CapacityUnits": 0.5,
        "Table": {"CapacityUnits": 0.0},
        "GlobalSecondaryIndexes": {"narrow": {"CapacityUnits": 0.5}},
    }
    assert table.scan(IndexName="whole")["Count"] == 3


def test_what_a_local_index_fetches_costs_the_table_too(shared: Served) -> None:
    table = shared.resource.create_table(
        TableName="fetched",
        KeySchema=keys("id", "at"),
        AttributeDefinitions=typed(id="S", at="N", by="S"),
        BillingMode="PAY_PER_REQUEST",
        LocalSecondaryIndexes=[index("ordered", "id", "by", projection="KEYS_ONLY")],
    )
    for number in range(4):
        table.put_item(Item={"id": "k", "at": number, "by": "x", "v": "v" * 4500, "n": number})
    asked: Any = {
        "IndexName": "ordered",
        "KeyConditionExpression": Key("id").eq("k"),
        "ReturnConsumedCapacity": "INDEXES",
    }

    def consumed(of_table: float, of_index: float) -> Any:
        return {
            "TableName": "fetched",
            "CapacityUnits": of_table + of_index,
            "Table": {"CapacityUnits": of_table},
            "LocalSecondaryIndexes": {"ordered": {"CapacityUnits": of_index}},
        }

    assert table.query(**asked)["ConsumedCapacity"] == consumed(0.0, 0.5)
    whole = table.query(**asked, Select="ALL_ATTRIBUTES", ConsistentRead=True)
    assert whole["ConsumedCapacity"] == consumed(8.0, 1.0)
    # Of what is filtered out too.
    some = table.query(**asked, FilterExpression=Attr("n").gte(2))
    assert (some["Count"], some["ScannedCount"]) == (2, 4)
    assert some["ConsumedCapacity"] == consumed(4.0, 0.5)


@pytest.mark.parametrize(
    ("operation", "request_", "text"),
    [
        ("Scan", {"IndexName": "none"}, "The table does not have the specified index: none"),
        (
            "Scan",
            {"IndexName": "open", "ConsistentRead": True},
            "Consistent reads are not supported on global secondary indexes",
        ),
        (
            "Scan",
            {"IndexName": "open", "Select": "ALL_ATTRIBUTES"},
            (
                f"{INVALID}Select type ALL_ATTRIBUTES is not supported for global secondary "
                f"index open because its projection type is not ALL"
            ),
        ),
        (
            "Scan",
            {"IndexName": "open", "ProjectionExpression": "note, id, x.y"},
            f"{INVALID}Global secondary index open does not project [note, x]",
        ),
        (
            "Scan",
            {"IndexName": "open", "AttributesToGet": ["note"]},
            f"{INVALID}Global secondary index open does not project [note]",
        ),
        (
            "Scan",
            {"IndexName": "open", "FilterExpression": "attribute_not_exists(note)"},
            f"{INVALID}Global secondary index open does not project [note]",
        ),
        (
            "Scan",
            {"Select": "ALL_PROJECTED_ATTRIBUTES"},
            "ALL_PROJECTED_ATTRIBUTES can be used only when Querying using an IndexName",
        ),
        (
            "Scan",
            {"IndexName": "open", "ExclusiveStartKey": {"shop": {"S": "a"}, "id": {"N": "1"}}},
            (
                "The provided starting key is invalid: The provided key element does not match the "
                "schema"
            ),
        ),
        (
            "Query",
            {
                "IndexName": "open",
                "KeyConditionExpression": "#s = :s",
                "ExpressionAttributeNames": {"#s": "state"},
                "ExpressionAttributeValues": {":s": {"S": "open"}},
                "ExclusiveStartKey": {"shop": {"S": "a"}, "id": {"N": "1"}},
            },
            "The provided starting key is invalid",
        ),
        (
            "Query",
            {
                "IndexName": "by-state",
                "KeyConditionExpression": "shop = :s",
                "ExpressionAttributeValues": {":s": {"S": "a"}},
            },
            "Query condition missed key schema element: state",
        ),
        (
            "Query",
            {
                "IndexName": "by-state",
                "KeyConditionExpression": "#s = :s",
                "FilterExpression": "#total > :n",
                "ExpressionAttributeNames": {"#s": "state", "#total": "total"},
                "ExpressionAttributeValues": {":s": {"S": "open"}, ":n": {"N": "1"}},
            },
            (
                "Filter Expression can only contain non-primary key attributes: Primary key "
                "attribute: total"
            ),
        ),
    ],
)
def test_what_an_index_cannot_answer_is_refused(
    shared: Served, orders: Any, operation: str, request_: Any, text: str
) -> None:
    found = shared.refused(operation, TableName=orders.name, **request_)
    assert found == ("ValidationException", text)


def test_the_keys_of_the_table_may_be_in_the_filter_of_an_index(orders: Any) -> None:
    told = orders.query(
        IndexName="by-state",
        KeyConditionExpression=Key("state").eq("open"),
        FilterExpression=Attr("id").lt(4) & Attr("shop").eq("b"),
    )
    assert ids(told) == ["b1"]


def wrong(name: str, found: str, *, index: str = "by-state") -> str:
    expected = "S" if name == "state" else "N"
    return (
        f"{INVALID}Type mismatch for Index Key {name} Expected: {expected} Actual: {found} "
        f"IndexName: {index}"
    )


KEY = {"shop": {"S": "a"}, "id": {"N": "99"}}
EMPTY = "The AttributeValue for a key attribute cannot contain an empty string value."


@pytest.mark.parametrize(
    ("attributes", "text"),
    [
        ({"state": {"N": "1"}}, wrong("state", "N")),
        ({"state": {"NULL": True}}, wrong("state", "NULL")),
        ({"state": {"SS": ["open"]}}, wrong("state", "SS")),
        ({"total": {"S": "1"}}, wrong("total", "S")),
        (
            {"state": {"S": ""}},
            (
                f"One or more parameter values are not valid. A value specified for a secondary "
                f"index key is not supported. {EMPTY} IndexName: by-state, IndexKey: state"
            ),
        ),
        (
            {"state": {"S": "x" * 2049}},
            f"{INVALID}Size of hashkey has exceeded the maximum size limit of2048 bytes",
        ),
    ],
)
def test_a_value_that_cannot_be_a_key_of_an_index_is_not_written(
    shared: Served, orders: Any, attributes: Any, text: str
) -> None:
    name, item = orders.name, {**KEY, **attributes}
    assert shared.refused("PutItem", TableName=name, Item=item) == ("ValidationException", text)
    batch = {name: [{"PutRequest": {"Item": item}}]}
    assert shared.refused("BatchWriteItem", RequestItems=batch)[1] == text
    ((attribute, value),) = attributes.items()
    refused = shared.refused(
        "UpdateItem",
        TableName=name,
        Key=KEY,
        UpdateExpression="SET #a = :a",
        ExpressionAttributeNames={"#a": attribute},
        ExpressionAttributeValues={":a": value},
    )
    if value == {"S": ""}:
        text = (
            f"One or more parameter values are not valid. The update expression attempted to "
            f"update a secondary index key to a value that is not supported. {EMPTY}"
        )
    elif text.startswith(f"{INVALID}Size"):
        text = (
            "The update expression attempted to update the secondary index key beyond allowed size "
            "limits"
        )
    assert refused == ("ValidationException", text)
    assert "Item" not in orders.get_item(Key={"shop": "a", "id": 99})


def test_an_index_follows_every_write_of_an_item(shared: Served, orders: Any) -> None:
    def found(state: str) -> list[str]:
        told = orders.query(IndexName="by-state", KeyConditionExpression=Key("state").eq(state))
        return ids(told)

    key = {"shop": "z", "id": 1}
    orders.put_item(Item={**key, "state": "s1", "total": 1})
    assert found("s1") == ["z1"]
    orders.update_item(
        Key=key,
        UpdateExpression="SET #s = :s",
        ExpressionAttributeNames={"#s": "state"},
        ExpressionAttributeValues={":s": "s2"},
    )
    assert (found("s1"), found("s2")) == ([], ["z1"])
    orders.update_item(Key=key, AttributeUpdates={"total": {"Action": "DELETE"}})
    assert found("s2") == []
    orders.put_item(Item={**key, "state": "s2", "total": 2})
    orders.delete_item(Key=key)
    assert found("s2") == []


def test_writes_say_what_they_cost_the_indexes(orders: Any) -> None:
    key = {"shop": "cost", "id": 1}

    def spent(done: Any) -> Any:
        told = done["ConsumedCapacity"]
        return (
            told["CapacityUnits"],
            told["Table"]["CapacityUnits"],
            told.get("LocalSecondaryIndexes", {}),
            {
                name: one["CapacityUnits"]
                for name, one in told.get("GlobalSecondaryIndexes", {}).items()
            },
        )

    wanted = {"ReturnConsumedCapacity": "INDEXES"}
    new = orders.put_item(Item={**key, "state": "c", "total": 1}, **wanted)
    local = {"by-total": {"CapacityUnits": 1.0}}
    assert spent(new) == (5.0, 1.0, local, {"by-state": 1.0, "open": 1.0, "noted": 1.0})
    moved = orders.put_item(Item={**key, "state": "c", "total": 2}, **wanted)
    local = {"by-total": {"CapacityUnits": 2.0}}
    assert spent(moved) == (5.0, 1.0, local, {"by-state": 2.0})
    other = orders.put_item(Item={**key, "state": "c", "total": 2, "x": 3}, **wanted)
    assert spent(other) == (2.0, 1.0, {}, {"by-state": 1.0})
    gone = orders.delete_item(Key=key, **wanted)
    assert gone["ConsumedCapacity"]["CapacityUnits"] == 5.0


def test_writes_say_the_size_of_their_item_collection(shared: Served, orders: Any) -> None:
    wanted = {"ReturnItemCollectionMetrics": "SIZE"}
    item = {"shop": "m", "id": 1}
    told = orders.put_item(Item=item, **wanted)["ItemCollectionMetrics"]
    assert told == {"ItemCollectionKey": {"shop": "m"}, "SizeEstimateRangeGB": [0.0, 1.0]}
    assert "ItemCollectionMetrics" not in orders.put_item(Item=item)
    written = {"PutRequest": {"Item": {"shop": {"S": "m"}, "id": {"N": "2"}}}}
    other = {"PutRequest": {"Item": {"shop": {"S": "m"}, "id": {"N": "3"}}}}
    batch = shared.client.batch_write_item(RequestItems={orders.name: [written, other]}, **wanted)
    metrics = [
        {"ItemCollectionKey": {"shop": {"S": "m"}}, "SizeEstimateRangeGB": [0.0, 1.0]},
    ]
    assert batch["ItemCollectionMetrics"] == {orders.name: metrics}
    put = {"Put": {"TableName": orders.name, "Item": written["PutRequest"]["Item"]}}
    done = shared.client.transact_write_items(TransactItems=[put], **wanted)
    assert done["ItemCollectionMetrics"] == {orders.name: metrics}
    without = shared.table(view=None)
    assert "ItemCollectionMetrics" not in without.put_item(Item={"id": "k"}, **wanted)


def test_an_index_that_was_made_from_python_is_served_and_refuses_no_write(shared: Served) -> None:
    shared.db.create_table("mixed").partition_key("id", KeyType.STRING).execute()
    shared.db.create_index("mixed", "by-n").partition_key("n", KeyType.NUMBER).execute()
    table = shared.resource.Table("mixed")
    table.put_item(Item={"id": "k", "n": 1, "v": 2})
    table.put_item(Item={"id": "other", "n": "text"})
    assert table.scan(IndexName="by-n")["Items"] == [{"id": "k", "n": 1, "v": 2}]
    (described,) = table.global_secondary_indexes
    assert described["Projection"] == {"ProjectionType": "ALL"}


def test_the_stream_of_a_table_hears_nothing_of_its_indexes(shared: Served) -> None:
    table = shared.resource.create_table(
        TableName="streamed",
        StreamSpecification={"StreamEnabled": True, "StreamViewType": "NEW_IMAGE"},
        **SHOP,
    )
    for number in range(2):
        table.put_item(Item={"shop": "a", "id": number, "state": "open", "total": 1})
    records = shared.records(shared.arn(table))
    assert [one["eventName"] for one in records] == ["INSERT", "INSERT"]


def changed(**request: Any) -> dict[str, Any]:
    return {**SHOP, "LocalSecondaryIndexes": None, "GlobalSecondaryIndexes": None, **request}


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (
            changed(GlobalSecondaryIndexes=[index("abc", "other")]),
            (
                "Some index key attributes are not defined in AttributeDefinitions. Keys: [other], "
                "AttributeDefinitions: [shop, id, state, total]"
            ),
        ),
        (
            changed(GlobalSecondaryIndexes=[index("abc", "state")]),
            (
                "Some AttributeDefinitions are not used. AttributeDefinitions: [shop, id, state, "
                "total], keys used: [shop, id, state]"
            ),
        ),
        (
            changed(GlobalSecondaryIndexes=[index("abc", "state"), index("abc", "total")]),
            "Duplicate index name: abc",
        ),
        (
            changed(
                LocalSecondaryIndexes=[index("abc", "shop", "state")],
                GlobalSecondaryIndexes=[index("abc", "total")],
            ),
            "Duplicate index name: abc",
        ),
        (
            changed(LocalSecondaryIndexes=[index("abc", "state", "total")]),
            (
                "Index KeySchema does not have the same leading hash key as table KeySchema for "
                "index: abc. index hash key: state, table hash key: shop"
            ),
        ),
        (
            changed(LocalSecondaryIndexes=[index("abc", "shop")]),
            "Index KeySchema does not have a range key for index: abc",
        ),
        (
            changed(KeySchema=keys("shop"), LocalSecondaryIndexes=[index("abc", "shop", "total")]),
            (
                "Table KeySchema does not have a range key, which is required when specifying a "
                "LocalSecondaryIndex"
            ),
        ),
        (changed(GlobalSecondaryIndexes=[]), "List of GlobalSecondaryIndexes is empty"),
        (changed(LocalSecondaryIndexes=[]), "List of LocalSecondaryIndexes is empty"),
        (
            changed(
                LocalSecondaryIndexes=[index(f"abc{n}", "shop", "total") for n in range(6)],
            ),
            "Number of LocalSecondaryIndexes exceeds per-table limit of 5",
        ),
        (
            changed(GlobalSecondaryIndexes=[index(f"abc{n}", "total") for n in range(21)]),
            "GlobalSecondaryIndex count exceeds the per-table limit of 20",
        ),
        (
            changed(GlobalSecondaryIndexes=[index("abc", "state", projection="INCLUDE")]),
            "ProjectionType is INCLUDE, but NonKeyAttributes is not specified",
        ),
        (
            changed(GlobalSecondaryIndexes=[index("abc", "state", include=["x"])]),
            "ProjectionType is ALL, but NonKeyAttributes is specified",
        ),
        (
            changed(GlobalSecondaryIndexes=[{**index("abc", "state"), "Projection": {}}]),
            "Unknown ProjectionType: null",
        ),
        (
            changed(
                GlobalSecondaryIndexes=[
                    {
                        **index("abc", "state"),
                        "ProvisionedThroughput": {"ReadCapacityUnits": 1, "WriteCapacityUnits": 1},
                    }
                ]
            ),
            (
                "ProvisionedThroughput should not be specified for index: abc when BillingMode is "
                "PAY_PER_REQUEST"
            ),
        ),
        (
            changed(
                BillingMode="PROVISIONED",
                ProvisionedThroughput={"ReadCapacityUnits": 1, "WriteCapacityUnits": 1},
                GlobalSecondaryIndexes=[index("abc", "state")],
            ),
            "ProvisionedThroughput is not specified for index: abc",
        ),
    ],
)
def test_an_index_that_cannot_be_makes_no_table(shared: Served, request_: Any, text: str) -> None:
    found = shared.refused("CreateTable", TableName="impossible", **request_)
    assert found == ("ValidationException", INVALID + text)
    assert "impossible" not in shared.client.list_tables()["TableNames"]
