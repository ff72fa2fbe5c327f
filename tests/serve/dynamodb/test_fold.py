"""What boto3 reads from a stream is what happened: folded, it is what Scan returns."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.store.shards import ShardLimits
from tests.seeds import cases
from tests.serve.dynamodb.support import Served, served
from tests.store.support import SetClock

KEYS = st.sampled_from(["a", "b", "c", "d"])
VALUES = st.one_of(
    st.integers(-3, 3),
    st.text(max_size=3),
    st.booleans(),
    st.none(),
    st.lists(st.integers(0, 2), max_size=2),
)
STEP = st.one_of(
    st.tuples(st.just("put"), KEYS, VALUES),
    st.tuples(st.just("set"), KEYS, VALUES),
    st.tuples(st.just("add"), KEYS, st.integers(-2, 2)),
    st.tuples(st.just("delete"), KEYS, st.none()),
    st.tuples(st.just("batch"), KEYS, VALUES),
    st.tuples(st.just("transact"), KEYS, VALUES),
    st.tuples(st.just("expire"), KEYS, st.integers(0, 120)),
    st.tuples(st.just("wait"), KEYS, st.integers(0, 90)),
    st.tuples(st.just("read"), KEYS, st.integers(1, 4)),
)


@pytest.fixture(scope="module")
def rolling(tmp_path_factory: pytest.TempPathFactory) -> Any:
    clock = SetClock()
    limits = ShardLimits(age_seconds=100, bytes_max=300)
    path = tmp_path_factory.mktemp("fold") / "store"
    with served(path, clock=clock, shards=limits) as everything:
        yield everything, clock


class Reader:
    """Reads a stream as its clients do: a shard after its parent, page by page."""

    def __init__(self, everything: Served, arn: str) -> None:
        self._served = everything
        self._arn = arn
        self._shard: str | None = None
        self._iterator: str | None = None
        self.items = dict[str, Any]()
        self.numbers = list[str]()

    def read(self, limit: int) -> bool:
        """Apply a page; whether there may be more now."""
        if self._iterator is None:
            shards = self._served.shards(self._arn)
            following = [one for one in shards if one.get("ParentShardId") == self._shard]
            self._shard = following[0]["ShardId"]
            self._iterator = self._served.iterator(self._arn, following[0]["ShardId"])
        told = self._served.streams.get_records(ShardIterator=self._iterator, Limit=limit)
        for record in told["Records"]:
            self._apply(record["eventName"], record["dynamodb"])
        self._iterator = told.get("NextShardIterator")
        return bool(told["Records"]) or self._iterator is None

    def _apply(self, event: str, change: Any) -> None:
        self.numbers.append(change["SequenceNumber"])
        key = change["Keys"]["id"]["S"]
        # Every image before a change is what the change before it left.
        assert change.get("OldImage") == self.items.get(key)
        assert (event == "INSERT") == (key not in self.items)
        if event == "REMOVE":
            del self.items[key]
        else:
            assert change["NewImage"] != change.get("OldImage")
            self.items[key] = change["NewImage"]


def apply(everything: Served, table: Any, clock: SetClock, step: tuple[str, str, Any]) -> None:
    kind, key, value = step
    match kind:
        case "put":
            table.put_item(Item={"id": key, "v": value})
        case "set":
            table.update_item(
                Key={"id": key},
                UpdateExpression="SET v = :v",
                ExpressionAttributeValues={":v": value},
            )
        case "add":
            table.update_item(
                Key={"id": key},
                UpdateExpression="ADD n :n",
                ExpressionAttributeValues={":n": value},
            )
        case "delete":
            table.delete_item(Key={"id": key})
        case "batch":
            with table.batch_writer() as batch:
                batch.put_item(Item={"id": key, "v": value})
                batch.delete_item(Key={"id": "e" + key})
                batch.put_item(Item={"id": "f" + key, "v": value})
        case "transact":
            everything.resource.meta.client.transact_write_items(
                TransactItems=[
                    {"Put": {"TableName": table.name, "Item": {"id": key, "v": value}}},
                    {"Delete": {"TableName": table.name, "Key": {"id": "f" + key}}},
                    {"Put": {"TableName": table.name, "Item": {"id": "e" + key}}},
                ]
            )
        case "expire":
            table.put_item(Item={"id": key, "until": clock.now_ms // 1000 + value})
        case "wait":
            clock.pass_(value)
        case _:
            pass


@pytest.mark.slow
@settings(max_examples=cases(20), suppress_health_check=[HealthCheck.too_slow])
@given(steps=st.lists(STEP, max_size=25))
def test_the_stream_folds_to_the_table(
    rolling: tuple[Served, SetClock], steps: list[tuple[str, str, Any]]
) -> None:
    everything, clock = rolling
    table = everything.table()
    everything.client.update_time_to_live(
        TableName=table.name,
        TimeToLiveSpecification={"Enabled": True, "AttributeName": "until"},
    )
    reader = Reader(everything, everything.arn(table))
    for step in steps:
        apply(everything, table, clock, step)
        if step[0] == "read":
            reader.read(step[2])
    while everything.db.sweep():
        pass
    while reader.read(7):
        pass
    items = everything.client.scan(TableName=table.name)["Items"]
    assert reader.items == {item["id"]["S"]: item for item in items}
    assert reader.numbers == sorted(set(reader.numbers))
    table.delete()
