"""Tables, their tags and time to live, through boto3."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.store import KeyType
from tests.serve.dynamodb.support import Served, served
from tests.store.support import SetClock

KEY: Any = {
    "KeySchema": [{"AttributeName": "id", "KeyType": "HASH"}],
    "AttributeDefinitions": [{"AttributeName": "id", "AttributeType": "S"}],
}
ON_DEMAND: Any = {**KEY, "BillingMode": "PAY_PER_REQUEST"}
INVALID = "One or more parameter values were invalid: "


def test_a_table_is_described_as_it_was_made(shared: Served) -> None:
    told = shared.client.create_table(
        TableName="described",
        KeySchema=[
            {"AttributeName": "a", "KeyType": "HASH"},
            {"AttributeName": "b", "KeyType": "RANGE"},
        ],
        AttributeDefinitions=[
            {"AttributeName": "b", "AttributeType": "N"},
            {"AttributeName": "a", "AttributeType": "B"},
        ],
        ProvisionedThroughput={"ReadCapacityUnits": 3, "WriteCapacityUnits": 4},
        StreamSpecification={"StreamEnabled": True, "StreamViewType": "NEW_IMAGE"},
        DeletionProtectionEnabled=True,
        Tags=[{"Key": "team", "Value": "shop"}],
    )["TableDescription"]
    shared.client.get_waiter("table_exists").wait(TableName="described")
    found = shared.client.describe_table(TableName="described")["Table"]
    assert told["TableStatus"] == "CREATING"
    assert found == {**told, "TableStatus": "ACTIVE"}
    assert [one["AttributeName"] for one in found["KeySchema"]] == ["a", "b"]
    assert found["ProvisionedThroughput"]["WriteCapacityUnits"] == 4
    assert found["StreamSpecification"] == {"StreamEnabled": True, "StreamViewType": "NEW_IMAGE"}
    assert found["LatestStreamArn"] == f"{found['TableArn']}/stream/{found['LatestStreamLabel']}"
    assert shared.client.describe_table(TableName=found["TableArn"])["Table"] == found
    assert shared.client.list_tags_of_resource(ResourceArn=found["TableArn"])["Tags"] == [
        {"Key": "team", "Value": "shop"}
    ]
    name, text = shared.refused("DeleteTable", TableName="described")
    assert name == "ValidationException"
    assert "protected against deletion" in text
    shared.client.update_table(TableName="described", DeletionProtectionEnabled=False)
    shared.client.delete_table(TableName="described")
    shared.client.get_waiter("table_not_exists").wait(TableName="described")


def test_tables_are_listed_page_by_page(tmp_path: Path) -> None:
    with served(tmp_path) as everything:
        for name in ("ddd", "aaa", "ccc", "bbb"):
            everything.client.create_table(TableName=name, **ON_DEMAND)
        first = everything.client.list_tables(Limit=3)
        assert first["TableNames"] == ["aaa", "bbb", "ccc"]
        rest = everything.client.list_tables(
            ExclusiveStartTableName=first["LastEvaluatedTableName"]
        )
        assert rest["TableNames"] == ["ddd"]
        assert "LastEvaluatedTableName" not in rest


@pytest.mark.slow
def test_settings_survive_a_restart_and_end_with_the_table(tmp_path: Path) -> None:
    with served(tmp_path) as everything:
        arn = everything.client.create_table(
            TableName="table", Tags=[{"Key": "a", "Value": "1"}], **ON_DEMAND
        )["TableDescription"]["TableArn"]
        everything.client.tag_resource(ResourceArn=arn, Tags=[{"Key": "b", "Value": "2"}])
        everything.client.untag_resource(ResourceArn=arn, TagKeys=["a", "none"])
        everything.client.update_table(
            TableName="table",
            BillingMode="PROVISIONED",
            ProvisionedThroughput={"ReadCapacityUnits": 1, "WriteCapacityUnits": 1},
        )
        before = everything.client.describe_table(TableName="table")["Table"]
    with served(tmp_path) as everything:
        assert everything.client.describe_table(TableName="table")["Table"] == before
        tags = everything.client.list_tags_of_resource(ResourceArn=arn)["Tags"]
        assert tags == [{"Key": "b", "Value": "2"}]
        everything.client.delete_table(TableName="table")
        everything.client.create_table(TableName="table", **ON_DEMAND)
        assert everything.client.list_tags_of_resource(ResourceArn=arn)["Tags"] == []
        after = everything.client.describe_table(TableName="table")["Table"]
        assert after["TableId"] != before["TableId"]


def test_a_table_that_was_made_from_python_is_served_as_any_other(shared: Served) -> None:
    shared.db.create_table("embedded").partition_key("id", KeyType.STRING).execute()
    shared.db.put("embedded", {"id": "k", "n": 1})
    found = shared.resource.Table("embedded")
    assert found.get_item(Key={"id": "k"})["Item"] == {"id": "k", "n": 1}
    assert found.billing_mode_summary == {
        "BillingMode": "PAY_PER_REQUEST",
        "LastUpdateToPayPerRequestDateTime": found.creation_date_time,
    }
    shared.client.update_table(TableName="embedded", DeletionProtectionEnabled=True)
    assert shared.client.describe_table(TableName="embedded")["Table"]["DeletionProtectionEnabled"]


MAXIMA: Any = {"MaxReadRequestUnits": 5, "MaxWriteRequestUnits": 6}
WARM: Any = {"ReadUnitsPerSecond": 12_000, "WriteUnitsPerSecond": 4000}


def test_class_and_throughput_are_described_as_they_were_given(shared: Served) -> None:
    def index(described: Any) -> Any:
        (found,) = described["GlobalSecondaryIndexes"]
        return found

    gsi: Any = {"IndexName": "all", "Projection": {"ProjectionType": "ALL"}}
    gsi |= {"KeySchema": KEY["KeySchema"], "OnDemandThroughput": MAXIMA}
    made = shared.client.create_table(
        TableName="classed",
        TableClass="STANDARD_INFREQUENT_ACCESS",
        OnDemandThroughput={"MaxReadRequestUnits": 9},
        WarmThroughput=WARM,
        GlobalSecondaryIndexes=[gsi],
        **ON_DEMAND,
    )["TableDescription"]
    assert index(made)["IndexStatus"] == "CREATING"
    found = shared.client.describe_table(TableName="classed")["Table"]
    assert found["TableClassSummary"] == {"TableClass": "STANDARD_INFREQUENT_ACCESS"}
    assert found["OnDemandThroughput"] == {"MaxReadRequestUnits": 9, "MaxWriteRequestUnits": -1}
    assert found["WarmThroughput"] == {**WARM, "Status": "ACTIVE"}
    assert index(found)["OnDemandThroughput"] == MAXIMA
    assert index(found)["IndexStatus"] == "ACTIVE"
    changed = shared.client.update_table(
        TableName="classed",
        TableClass="STANDARD",
        OnDemandThroughput={"MaxReadRequestUnits": -1, "MaxWriteRequestUnits": 7},
        GlobalSecondaryIndexUpdates=[{"Update": {"IndexName": "all", "WarmThroughput": WARM}}],
    )["TableDescription"]
    assert changed["TableStatus"] == "UPDATING"
    assert "TableClassSummary" not in changed
    assert changed["OnDemandThroughput"] == {"MaxReadRequestUnits": -1, "MaxWriteRequestUnits": 7}
    assert index(changed)["WarmThroughput"] == {**WARM, "Status": "ACTIVE"}
    units = {"ReadCapacityUnits": 1, "WriteCapacityUnits": 1}
    told = shared.client.update_table(
        TableName="classed",
        BillingMode="PROVISIONED",
        ProvisionedThroughput=units,
        GlobalSecondaryIndexUpdates=[
            {"Update": {"IndexName": "all", "ProvisionedThroughput": units}}
        ],
    )["TableDescription"]
    assert "OnDemandThroughput" not in {**told, **index(told)}
    assert told["BillingModeSummary"] == {
        "BillingMode": "PROVISIONED",
        "LastUpdateToPayPerRequestDateTime": told["CreationDateTime"],
    }
    again = shared.client.update_table(TableName="classed", BillingMode="PAY_PER_REQUEST")
    summary = again["TableDescription"]["BillingModeSummary"]
    assert summary["LastUpdateToPayPerRequestDateTime"] > told["CreationDateTime"]


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (
            {**ON_DEMAND, "OnDemandThroughput": {"MaxReadRequestUnits": 0}},
            "MaxReadRequestUnits must be at least 1, or -1 for no maximum",
        ),
        (
            {**ON_DEMAND, "WarmThroughput": {"WriteUnitsPerSecond": 0}},
            "WriteUnitsPerSecond must be at least 1",
        ),
        (
            {
                **KEY,
                "ProvisionedThroughput": {"ReadCapacityUnits": 1, "WriteCapacityUnits": 1},
                "OnDemandThroughput": MAXIMA,
            },
            "OnDemandThroughput cannot be specified when BillingMode is PROVISIONED",
        ),
        (
            {
                **ON_DEMAND,
                "GlobalSecondaryIndexes": [
                    {
                        "IndexName": f"index{number}",
                        "KeySchema": KEY["KeySchema"],
                        "Projection": {
                            "ProjectionType": "INCLUDE",
                            "NonKeyAttributes": [f"a{place}" for place in range(20)],
                        },
                    }
                    for number in range(6)
                ],
            },
            "Number of NonKeyAttributes of all indexes exceeds per-table limit of 100: 120",
        ),
    ],
)
def test_throughput_and_projections_beyond_their_limits_make_no_table(
    shared: Served, request_: Any, text: str
) -> None:
    refused = ("ValidationException", INVALID + text)
    assert shared.refused("CreateTable", TableName="never", **request_) == refused


def test_limits_are_the_largest_capacities(shared: Served) -> None:
    told = shared.client.describe_limits()
    del told["ResponseMetadata"]
    assert len(told) == 4
    assert set(told.values()) == {10**12}


UNITS: Any = {"ReadCapacityUnits": 5.0, "WriteCapacityUnits": 6.0}


def test_capacity_that_is_written_with_a_point_is_the_whole_number(shared: Served) -> None:
    def done(operation: str, **request: Any) -> Any:
        status, told, _ = shared.post(f"DynamoDB_20120810.{operation}", request)
        assert status == 200, told
        found = shared.client.describe_table(TableName="pointed")["Table"]["ProvisionedThroughput"]
        return found["ReadCapacityUnits"], found["WriteCapacityUnits"]

    assert done("CreateTable", TableName="pointed", ProvisionedThroughput=UNITS, **KEY) == (5, 6)
    changed = {"ReadCapacityUnits": 1e3, "WriteCapacityUnits": 7.0}
    assert done("UpdateTable", TableName="pointed", ProvisionedThroughput=changed) == (1000, 7)
    shared.client.delete_table(TableName="pointed")


@pytest.mark.parametrize("units", [5.0, 1e20, 2**64 - 1])
def test_a_table_whose_capacity_was_kept_as_it_was_written_is_described_and_deleted(
    shared: Served, units: float
) -> None:
    kept = msgspec.msgpack.encode({"read_units": units, "write_units": units})
    shared.db.create_table("left").partition_key("id", KeyType.STRING).beside(kept).execute()
    found = shared.client.describe_table(TableName="left")["Table"]["ProvisionedThroughput"]
    assert found["ReadCapacityUnits"] == found["WriteCapacityUnits"] == min(units, 10**12)
    shared.client.delete_table(TableName="left")


def test_more_capacity_than_there_can_be_makes_no_table(shared: Served) -> None:
    units = {"ReadCapacityUnits": 5, "WriteCapacityUnits": 10**12 + 1}
    request = {**KEY, "TableName": "never", "ProvisionedThroughput": units}
    assert shared.refused("CreateTable", **request) == (
        "ValidationException",
        "Given value 1000000000001 for WriteCapacityUnits is out of bounds",
    )
    units["WriteCapacityUnits"] = 2**63
    assert shared.refused("CreateTable", **request) == (
        "SerializationException",
        "NUMBER_VALUE cannot be converted to Long",
    )


def test_limits_and_segments_that_are_written_with_a_point_are_whole_numbers(
    shared: Served,
) -> None:
    table = shared.table(view=None)
    table.put_item(Item={"id": "k"})
    found = list[Any]()
    for segment in (0.0, 1.0):
        request = {"TableName": table.name, "Segment": segment, "TotalSegments": 2.0, "Limit": 9.0}
        status, told, _ = shared.post("DynamoDB_20120810.Scan", request)
        assert status == 200
        found += told["Items"]
    assert found == [{"id": {"S": "k"}}]
    status, told, _ = shared.post("DynamoDB_20120810.ListTables", {"Limit": 1.0})
    assert status == 200
    assert len(told["TableNames"]) == 1


def test_items_expire_by_the_attribute_that_was_set(tmp_path: Path) -> None:
    clock = SetClock()
    with served(tmp_path, clock=clock) as everything:
        table = everything.table(view=None)
        off = everything.client.describe_time_to_live(TableName=table.name)
        assert off["TimeToLiveDescription"] == {"TimeToLiveStatus": "DISABLED"}
        wanted = {"Enabled": True, "AttributeName": "until"}
        told = everything.client.update_time_to_live(
            TableName=table.name, TimeToLiveSpecification=wanted
        )
        assert told["TimeToLiveSpecification"] == wanted
        assert everything.client.describe_time_to_live(TableName=table.name)[
            "TimeToLiveDescription"
        ] == {"TimeToLiveStatus": "ENABLED", "AttributeName": "until"}
        table.put_item(Item={"id": "k", "until": clock.now_ms // 1000 + 10})
        assert table.scan()["Count"] == 1
        clock.pass_(11)
        assert table.scan()["Count"] == 0
        assert everything.refused(
            "UpdateTimeToLive", TableName=table.name, TimeToLiveSpecification=wanted
        ) == ("ValidationException", "TimeToLive is already enabled")
        other = {"Enabled": False, "AttributeName": "other"}
        assert everything.refused(
            "UpdateTimeToLive", TableName=table.name, TimeToLiveSpecification=other
        )[1] == (
            "TimeToLive is active on a different AttributeName: current AttributeName is until"
        )
        everything.client.update_time_to_live(
            TableName=table.name, TimeToLiveSpecification={**wanted, "Enabled": False}
        )


STREAM_ON = {"StreamEnabled": True, "StreamViewType": "KEYS_ONLY"}


@pytest.mark.parametrize(
    ("stream", "text"),
    [
        (
            {"StreamEnabled": True},
            "Table is being created with a stream enabled, UpdateViewType is required",
        ),
        (
            {"StreamEnabled": False, "StreamViewType": "KEYS_ONLY"},
            "Table is being created with a stream disabled, UpdateViewType should not be specified",
        ),
    ],
)
def test_a_stream_is_made_with_a_view_and_without_one_is_none(
    shared: Served, stream: dict[str, Any], text: str
) -> None:
    assert shared.refused(
        "CreateTable", TableName="never", StreamSpecification=stream, **ON_DEMAND
    ) == ("ValidationException", INVALID + text)


def test_a_stream_is_enabled_and_disabled_once(shared: Served) -> None:
    on, off = shared.table().name, shared.table(view=None).name

    def refused(table: str, stream: dict[str, Any]) -> str:
        name, text = shared.refused("UpdateTable", TableName=table, StreamSpecification=stream)
        assert name == "ValidationException"
        return text

    assert refused(on, STREAM_ON) == f"Table already has an enabled stream: TableName: {on}"
    assert refused(off, {"StreamEnabled": False}) == (
        f"Table has no stream to disable: TableName: {off}"
    )
    assert refused(off, {"StreamEnabled": True}) == (
        f"{INVALID}If stream is being enabled then UpdateViewType is required"
    )
    assert refused(on, {"StreamEnabled": False, "StreamViewType": "KEYS_ONLY"}) == (
        f"{INVALID}If stream is being disabled, then UpdateViewType must not be specified"
    )
    told = shared.client.update_table(TableName=off, StreamSpecification=STREAM_ON)
    assert told["TableDescription"]["StreamSpecification"] == STREAM_ON
    assert told["TableDescription"]["LatestStreamArn"]


IMPOSSIBLE: Any = [
    (
        {"KeySchema": [{"AttributeName": "id", "KeyType": "RANGE"}]},
        "Invalid KeySchema: The first KeySchemaElement is not a HASH key type",
    ),
    (
        {"KeySchema": [{"AttributeName": "x", "KeyType": "HASH"}]},
        INVALID + "Some index key attributes are not defined in AttributeDefinitions. Keys: [x], "
        "AttributeDefinitions: [id]",
    ),
    (
        {
            "AttributeDefinitions": [
                *KEY["AttributeDefinitions"],
                {"AttributeName": "x", "AttributeType": "S"},
            ]
        },
        INVALID + "Number of attributes in KeySchema does not exactly match number of attributes "
        "defined in AttributeDefinitions",
    ),
    (
        {"AttributeDefinitions": 2 * KEY["AttributeDefinitions"]},
        "Attribute Name is duplicated: id",
    ),
    (
        {"BillingMode": "PROVISIONED"},
        INVALID + "ReadCapacityUnits and WriteCapacityUnits must both be specified when "
        "BillingMode is PROVISIONED",
    ),
    (
        {"ProvisionedThroughput": {"ReadCapacityUnits": 1, "WriteCapacityUnits": 1}},
        INVALID + "Neither ReadCapacityUnits nor WriteCapacityUnits can be specified when "
        "BillingMode is PAY_PER_REQUEST",
    ),
    (
        {"SSESpecification": {"Enabled": True}},
        INVALID + "SSESpecification: this endpoint encrypts nothing",
    ),
    (
        {"SSESpecification": {"SSEType": "KMS"}},
        INVALID + "SSESpecification: this endpoint encrypts nothing",
    ),
    (
        {"VectorIndexes": [{"IndexName": "vectors"}]},
        INVALID + "VectorIndexes: this endpoint does not offer vector indexes",
    ),
    (
        {"GlobalTableSourceArn": "arn"},
        INVALID + "GlobalTableSourceArn: this endpoint does not offer global tables",
    ),
]


@pytest.mark.parametrize(("changed", "text"), IMPOSSIBLE)
def test_a_table_that_cannot_be_is_refused(
    shared: Served, changed: dict[str, Any], text: str
) -> None:
    request = {**ON_DEMAND, "TableName": "never", **changed}
    assert shared.refused("CreateTable", **request) == ("ValidationException", text)


def test_a_table_is_made_once(shared: Served) -> None:
    name = shared.table(view=None).name
    assert shared.refused("CreateTable", TableName=name, **ON_DEMAND) == (
        "ResourceInUseException",
        f"Table already exists: {name}",
    )


def test_what_is_not_there_is_not_found(shared: Served) -> None:
    for operation in ("DescribeTable", "DeleteTable", "DescribeTimeToLive"):
        assert shared.refused(operation, TableName="none") == (
            "ResourceNotFoundException",
            "Requested resource not found: Table: none not found",
        )


# --- tags -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tag", "text"),
    [
        (
            {"Key": "a*b", "Value": ""},
            "A tag's Key has letters, digits, whitespace and + - = . _ : / @ only: a*b",
        ),
        (
            {"Key": "a", "Value": "b#"},
            "A tag's Value has letters, digits, whitespace and + - = . _ : / @ only: b#",
        ),
        ({"Key": "aws:a", "Value": "b"}, "The prefix aws: of a tag's Key is reserved: aws:a"),
    ],
)
def test_a_tag_has_the_characters_that_tags_have(
    shared: Served, tag: dict[str, str], text: str
) -> None:
    refused = ("ValidationException", INVALID + text)
    assert shared.refused("CreateTable", TableName="never", Tags=[tag], **ON_DEMAND) == refused
    arn = shared.table(view=None).table_arn
    assert shared.refused("TagResource", ResourceArn=arn, Tags=[tag]) == refused
    shared.client.tag_resource(ResourceArn=arn, Tags=[{"Key": "Größe 1", "Value": "a=b/c:d@e.f"}])


TABLE_ARN = "arn:aws:dynamodb:us-east-1:000000000000:table/nowhere"


@pytest.mark.parametrize(
    ("arn", "name", "text"),
    [
        (
            "nowhere",
            "ValidationException",
            "Invalid TableArn: Invalid ResourceArn provided as input nowhere",
        ),
        (
            TABLE_ARN.replace("us-east-1", "eu-west-1"),
            "ValidationException",
            (
                "Invalid TableArn: Invalid ResourceArn provided as input "
                "arn:aws:dynamodb:eu-west-1:000000000000:table/nowhere"
            ),
        ),
        (
            TABLE_ARN.replace("000000000000", "123456789012"),
            "AccessDeniedException",
            (
                "User: arn:aws:iam::000000000000:root is not authorized to perform: "
                "dynamodb:ListTagsOfResource on resource: "
                "arn:aws:dynamodb:us-east-1:123456789012:table/nowhere"
            ),
        ),
        (
            TABLE_ARN,
            "AccessDeniedException",
            (
                "User: arn:aws:iam::000000000000:root is not authorized to perform: "
                f"dynamodb:ListTagsOfResource on resource: {TABLE_ARN}"
            ),
        ),
    ],
)
def test_tags_are_those_of_a_table_that_is_there(
    shared: Served, arn: str, name: str, text: str
) -> None:
    assert shared.refused("ListTagsOfResource", ResourceArn=arn) == (name, text)
    if arn == TABLE_ARN:  # that there is none is said to those alone who would change it
        name = "ResourceNotFoundException"
    tags = [{"Key": "a", "Value": "b"}]
    assert shared.refused("TagResource", ResourceArn=arn, Tags=tags)[0] == name
    assert shared.refused("UntagResource", ResourceArn=arn, TagKeys=["a"])[0] == name


@pytest.mark.parametrize(
    "operation",
    ["CreateTable", "UpdateTable", "DescribeTable", "DeleteTable", "DescribeTimeToLive"],
)
def test_a_table_that_is_not_named_is_asked_for_first(shared: Served, operation: str) -> None:
    assert shared.refused(operation, BillingMode="none") == (
        "ValidationException",
        "The parameter 'TableName' is required but was not present in the request",
    )
