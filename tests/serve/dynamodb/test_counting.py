"""How much DescribeTable says that tables and indexes hold."""

from pathlib import Path
from typing import Any

import pytest
import structlog

from penstock.serve.dynamodb import counting
from penstock.serve.dynamodb.capacity import item_size
from tests.serve.dynamodb.support import Served, served
from tests.serve.dynamodb.test_indexes import index, keys, typed
from tests.store.support import SetClock
from tests.waiting import wait_until

TABLE: Any = {
    "KeySchema": keys("id"),
    "AttributeDefinitions": typed(id="S", state="S"),
    "BillingMode": "PAY_PER_REQUEST",
    "GlobalSecondaryIndexes": [index("open", "state", projection="KEYS_ONLY")],
}

COLLECTED: Any = {
    "KeySchema": keys("id", "at"),
    "AttributeDefinitions": typed(id="S", at="S", state="S"),
    "BillingMode": "PAY_PER_REQUEST",
    "LocalSecondaryIndexes": [index("open", "id", "state")],
}


def described(everything: Served, name: str) -> Any:
    return everything.client.describe_table(TableName=name)["Table"]


def test_a_small_table_is_counted_when_it_is_described(shared: Served) -> None:
    told = shared.client.create_table(TableName="counted", **TABLE)["TableDescription"]
    assert (told["ItemCount"], told["TableSizeBytes"]) == (0, 0)
    table = shared.resource.Table("counted")
    table.put_item(Item={"id": "k", "v": "12345"})
    table.put_item(Item={"id": "l", "state": "x", "v": "1"})
    found = described(shared, "counted")
    assert (found["ItemCount"], found["TableSizeBytes"]) == (2, 20)
    (one,) = found["GlobalSecondaryIndexes"]
    assert (one["ItemCount"], one["IndexSizeBytes"]) == (1, 9)


def test_a_large_table_is_counted_beside_requests_and_not_too_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "_AT_ONCE_ITEMS", 2)
    clock = SetClock()
    with served(tmp_path, clock=clock) as everything:
        table = everything.resource.create_table(TableName="table", **TABLE)
        for number in range(5):
            table.put_item(Item={"id": f"{number}", "state": "x"})
        wait_until(lambda: described(everything, "table").get("ItemCount") == 5)
        (one,) = described(everything, "table")["GlobalSecondaryIndexes"]
        assert one["ItemCount"] == 5
        table.put_item(Item={"id": "more"})
        clock.pass_(6 * 3600 - 1)
        assert described(everything, "table")["ItemCount"] == 5
        clock.pass_(2)
        wait_until(lambda: described(everything, "table")["ItemCount"] == 6)


def test_a_large_item_collection_is_counted_beside_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "_COLLECTION_AT_ONCE_ITEMS", 2)
    monkeypatch.setattr(counting, "_AT_ONCE_ITEMS", 2)
    monkeypatch.setattr(counting, "_GIGABYTE", 100)
    with served(tmp_path) as everything:
        table = everything.resource.create_table(TableName="table", **COLLECTED)

        def told(number: int, *, partition: str = "p") -> Any:
            item = {"id": partition, "at": f"{number}", "v": "v" * 44}  # 50 bytes and the partition
            metrics = table.put_item(Item=item, ReturnItemCollectionMetrics="SIZE")
            return metrics["ItemCollectionMetrics"]["SizeEstimateRangeGB"]

        # What one look sees is exact; of more, nothing until it has been counted.
        assert [told(1), told(2), told(3)] == [[0.0, 1.0], [1.0, 2.0], [0.0, 1.0]]
        wait_until(lambda: told(3) == [1.0, 2.0])
        # The last count is given for six hours, and other collections have their own.
        assert [told(4), told(1, partition="q")] == [[1.0, 2.0], [0.0, 1.0]]


def test_a_count_that_failed_on_a_defect_is_told_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class DefectError(Exception):
        pass

    failed: list[Any] = []

    def size(item: Any) -> int:
        if not failed:
            failed.append(item)
            raise DefectError
        return item_size(item)

    monkeypatch.setattr(counting, "_AT_ONCE_ITEMS", 2)
    monkeypatch.setattr(counting, "item_size", size)
    with structlog.testing.capture_logs() as logs, served(tmp_path) as everything:
        table = everything.resource.create_table(TableName="table", **TABLE)
        for number in range(3):
            table.put_item(Item={"id": f"{number}"})
        wait_until(lambda: described(everything, "table").get("ItemCount") == 3)
    (told,) = [one for one in logs if one["event"] == "a DynamoDB table was not counted"]
    assert (told["table"], told["error"], told["log_level"]) == ("table", "DefectError", "error")
