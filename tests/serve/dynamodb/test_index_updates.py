"""Indexes that are made and deleted by UpdateTable, through boto3."""

import itertools
from pathlib import Path
from typing import Any

import pytest

from penstock import store
from penstock.store import indexes
from tests.serve.dynamodb.support import Served, served
from tests.serve.dynamodb.test_indexes import INVALID, SHOP, index, keys, typed
from tests.waiting import wait_until

_numbers = itertools.count()
UNITS: Any = {"ReadCapacityUnits": 2, "WriteCapacityUnits": 3}


def table_of(shared: Served, **request: Any) -> Any:
    """A table with the partition key `id`, of a name of its own."""
    return shared.resource.create_table(
        **{
            "TableName": f"updated{next(_numbers)}",
            "KeySchema": keys("id"),
            "AttributeDefinitions": typed(id="S"),
            "BillingMode": "PAY_PER_REQUEST",
            **request,
        }
    )


def update(*changes: dict[str, Any], **request: Any) -> dict[str, Any]:
    return {"GlobalSecondaryIndexUpdates": list(changes), **request}


BY_STATE = update(
    {"Create": index("by-state", "state")}, AttributeDefinitions=typed(id="S", state="S")
)


def statuses(table: Any) -> dict[str, str]:
    described = table.meta.client.describe_table(TableName=table.name)["Table"]
    found = described.get("GlobalSecondaryIndexes", [])
    return {one["IndexName"]: one["IndexStatus"] for one in found}


def test_an_index_that_is_made_has_the_items_that_were_there(shared: Served) -> None:
    table = table_of(shared)
    table.put_item(Item={"id": "a", "state": "open"})
    table.put_item(Item={"id": "b"})
    told = shared.client.update_table(TableName=table.name, **BY_STATE)["TableDescription"]
    assert told["TableStatus"] == "UPDATING"
    assert [one["IndexStatus"] for one in told["GlobalSecondaryIndexes"]] == ["CREATING"]
    wait_until(lambda: statuses(table) == {"by-state": "ACTIVE"})
    assert table.scan(IndexName="by-state")["Items"] == [{"id": "a", "state": "open"}]
    table.reload()
    assert {one["AttributeName"] for one in table.attribute_definitions} == {"id", "state"}
    assert shared.refused(
        "PutItem", TableName=table.name, Item={"id": {"S": "c"}, "state": {"N": "1"}}
    )[0] == ("ValidationException")


def test_an_index_that_is_deleted_is_gone(shared: Served) -> None:
    table = table_of(
        shared,
        AttributeDefinitions=typed(id="S", state="S"),
        GlobalSecondaryIndexes=[index("by-state", "state")],
    )
    delete = update({"Delete": {"IndexName": "by-state"}})
    told = shared.client.update_table(TableName=table.name, **delete)["TableDescription"]
    assert [one["IndexStatus"] for one in told["GlobalSecondaryIndexes"]] == ["DELETING"]
    assert statuses(table) == {}
    table.put_item(Item={"id": "a", "state": 1})
    assert shared.refused("UpdateTable", TableName=table.name, **delete) == (
        "ResourceNotFoundException",
        "Requested resource not found",
    )


@pytest.mark.slow
def test_an_index_that_was_begun_is_finished_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(tmp_path) as everything:
        table = table_of(everything, TableName="table")
        for number in range(20):
            table.put_item(Item={"id": f"k{number}", "state": "open"})
    monkeypatch.setattr(indexes, "_STEP_ITEMS", 3)
    described = store.Index(
        id=0,
        name="by-state",
        partition_key=store.KeyAttribute("state", store.KeyType.STRING),
        kept=b"\x80",
    )
    with store.open(tmp_path, sweep_seconds=None) as db:
        # As far as a process came that was killed: other writers have their turn between steps.
        begun = db.begin_index("table", described)
        assert begun is not None
        db.put("table", {"id": "later", "state": "open"})
        db.delete("table", {"id": "k0"})
    with served(tmp_path) as everything:
        table = everything.resource.Table("table")
        wait_until(lambda: statuses(table) == {"by-state": "ACTIVE"})
        found = sorted(item["id"] for item in table.scan(IndexName="by-state")["Items"])
        assert found == sorted(["later", *(f"k{number}" for number in range(1, 20))])


def test_an_index_that_is_not_ready_is_not_read_or_changed(tmp_path: Path) -> None:
    with served(tmp_path) as everything:
        table = table_of(everything, TableName="table")
        table.put_item(Item={"id": "a", "state": "open"})
        table.put_item(Item={"id": "b", "state": "open"})
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(indexes, "_STEP_ITEMS", 1)
            described = store.Index(
                id=0,
                name="by-state",
                partition_key=store.KeyAttribute("state", store.KeyType.STRING),
                kept=b"\x80",
            )
            db = everything.db
            filling = db.begin_index("table", described)
        found = everything.client.describe_table(TableName="table")["Table"]
        (one,) = found["GlobalSecondaryIndexes"]
        assert (one["IndexStatus"], one["Backfilling"]) == ("CREATING", True)
        assert everything.refused("Scan", TableName="table", IndexName="by-state") == (
            "ValidationException",
            "Cannot read from backfilling global secondary index: by-state",
        )
        other = update(
            {"Create": index("other", "state")}, AttributeDefinitions=typed(id="S", state="S")
        )
        assert everything.refused("UpdateTable", TableName="table", **other)[0] == (
            "LimitExceededException"
        )
        assert filling is not None
        assert db.fill_index(filling) is None
        assert table.scan(IndexName="by-state")["Count"] == 2


def test_capacities_of_indexes_change(shared: Served) -> None:
    name = table_of(
        shared,
        AttributeDefinitions=typed(id="S", state="S"),
        BillingMode="PROVISIONED",
        ProvisionedThroughput=UNITS,
        GlobalSecondaryIndexes=[{**index("by-state", "state"), "ProvisionedThroughput": UNITS}],
    ).name

    def units() -> Any:
        described = shared.client.describe_table(TableName=name)["Table"]
        (one,) = described["GlobalSecondaryIndexes"]
        found = one["ProvisionedThroughput"]
        return found["ReadCapacityUnits"], found["WriteCapacityUnits"]

    assert units() == (2, 3)
    more = {"ReadCapacityUnits": 4, "WriteCapacityUnits": 3}
    change = update({"Update": {"IndexName": "by-state", "ProvisionedThroughput": more}})
    shared.client.update_table(TableName=name, **change)
    assert units() == (4, 3)
    assert shared.refused("UpdateTable", TableName=name, **change) == (
        "ValidationException",
        (
            "The provisioned throughput for the index by-state will not change. The requested "
            "value equals the current value. Current ReadCapacityUnits provisioned for the index: "
            "4. Requested ReadCapacityUnits: 4. Current WriteCapacityUnits provisioned for the "
            "index: 3. Requested WriteCapacityUnits: 3. Refer to the Amazon DynamoDB Developer "
            "Guide for current limits and how to request higher limits."
        ),
    )
    assert (
        "the table will not change"
        in shared.refused("UpdateTable", TableName=name, ProvisionedThroughput=UNITS)[1]
    )
    shared.client.update_table(TableName=name, BillingMode="PAY_PER_REQUEST")
    assert units() == (0, 0)
    back: Any = {"TableName": name, "BillingMode": "PROVISIONED"}
    assert shared.refused("UpdateTable", **back) == (
        "ValidationException",
        f"{INVALID}ProvisionedThroughput must be specified when BillingMode is PROVISIONED",
    )
    assert shared.refused("UpdateTable", ProvisionedThroughput=UNITS, **back) == (
        "ValidationException",
        f"{INVALID}ProvisionedThroughput must be specified for index: by-state",
    )
    shared.client.update_table(ProvisionedThroughput=UNITS, **change, **back)
    assert units() == (4, 3)


@pytest.mark.parametrize(
    ("request_", "refusal"),
    [
        (
            update({"Create": index("noted", "state")}, AttributeDefinitions=typed(state="S")),
            ("ValidationException", "Attempting to create an index which already exists"),
        ),
        (
            update({"Create": index("new", "other")}, AttributeDefinitions=typed(state="S")),
            (
                "ValidationException",
                (
                    f"{INVALID}Some index key attributes are not defined in AttributeDefinitions. "
                    f"Keys: [other], AttributeDefinitions: [state]"
                ),
            ),
        ),
        (
            update({"Create": index("new", "state")}, AttributeDefinitions=typed(state="N")),
            (
                "ValidationException",
                (
                    f"{INVALID}AttributeDefinitions: state is of type S in the table's keys and "
                    f"indexes"
                ),
            ),
        ),
        (
            update({"Delete": {"IndexName": "noted"}}, {"Delete": {"IndexName": "open"}}),
            (
                "LimitExceededException",
                (
                    "Subscriber limit exceeded: Only 1 online index can be created or deleted "
                    "simultaneously per table"
                ),
            ),
        ),
        (
            update({"Delete": {"IndexName": "by-total"}}),
            (
                "ValidationException",
                "Cannot delete an index that is not a GlobalSecondaryIndex: by-total",
            ),
        ),
        (
            update({"Update": {"IndexName": "none", "ProvisionedThroughput": UNITS}}),
            ("ResourceNotFoundException", "Requested resource not found"),
        ),
    ],
)
def test_a_change_of_indexes_that_cannot_be_changes_nothing(
    shared: Served, request_: Any, refusal: tuple[str, str]
) -> None:
    table = shared.resource.create_table(TableName=f"updated{next(_numbers)}", **SHOP)
    before = shared.client.describe_table(TableName=table.name)["Table"]
    assert shared.refused("UpdateTable", TableName=table.name, **request_) == refusal
    assert shared.client.describe_table(TableName=table.name)["Table"] == before
