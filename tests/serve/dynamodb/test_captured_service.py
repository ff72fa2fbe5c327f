"""DynamoDB Streams of `penstock run`: real MongoDB, clients as they are sold, processes killed."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import bloop
import pytest
from pymongo import MongoClient

from tests.cli.service import Service, configure
from tests.serve.dynamodb.support import Clients
from tests.waiting import wait_until
from tests_support.servers import MongoReplicaSet

_bloop: Any = bloop
Client = MongoClient[dict[str, Any]]
pytestmark = [pytest.mark.server, pytest.mark.slow]

TEXT = """
[log]
path = "log"
free_bytes_min = 0
[state]
free_bytes_min = 0
[sources.shop]
type = "mongodb"
uri = "{uri}"
database = "{database}"
heartbeat_seconds = 0.5
start = "{start}"
{images}
[serve]
grpc = "127.0.0.1:0"
flight = "127.0.0.1:0"
http = "off"
[serve.dynamodb]
address = "127.0.0.1:0"
shard_bytes = "4KiB"
"""
IMAGES = """full_document = "required"
full_document_before_change = "required"
"""


class Endpoint(Clients):
    """The clients of a running service."""

    def tables(self) -> list[str]:
        return list(self.client.list_tables()["TableNames"])

    def latest(self, table: str) -> str:
        wait_until(lambda: table in self.tables())
        return str(self.client.describe_table(TableName=table)["Table"]["LatestStreamArn"])


@pytest.fixture
def config(mongo: MongoReplicaSet, mongo_database: str, tmp_path: Path) -> Callable[..., Path]:
    def write(*, images: str = IMAGES, start: str = "now") -> Path:
        text = TEXT.format(uri=mongo.uri, database=mongo_database, images=images, start=start)
        return configure(tmp_path, text)

    return write


Base: Any = _bloop.BaseModel


def test_bloop_follows_a_collection_across_shards_and_processes_that_are_killed(
    mongo_client: Client, mongo_database: str, config: Callable[..., Path]
) -> None:
    users = mongo_client[mongo_database].create_collection(
        "users", changeStreamPreAndPostImages={"enabled": True}
    )

    class User(Base):  # type: ignore[misc]
        class Meta:
            table_name = f"shop.{mongo_database}.users"
            stream: ClassVar[Any] = {"include": {"new", "old"}}

        id = _bloop.Column(_bloop.String, hash_key=True, dynamo_name="_id")
        visits = _bloop.Column(_bloop.Integer)

    expected = list[tuple[str | None, str | None]]()

    def write(numbers: range) -> None:
        for n in numbers:
            users.insert_one({"_id": f"u{n}", "visits": n, "text": "x" * 100})
            users.update_one({"_id": f"u{n}"}, {"$inc": {"visits": 1}})
            expected.append((None, f"u{n}={n}"))
            expected.append((f"u{n}={n}", f"u{n}={n + 1}"))
            if n % 3 == 0:
                users.delete_one({"_id": f"u{n}"})
                expected.append((f"u{n}={n + 1}", None))

    with Service(config()) as service:
        endpoint = Endpoint(service.ready["dynamodb"])
        write(range(20))
        engine = _bloop.Engine(dynamodb=endpoint.client, dynamodbstreams=endpoint.streams)
        engine.bind(User, skip_table_setup=True)
        arn = endpoint.latest(User.Meta.table_name)
        User.Meta.stream["arn"] = arn
        stream = engine.stream(User, "trim_horizon")
        found = list[tuple[str | None, str | None]]()

        def read() -> None:
            while len(found) < len(expected):
                record = next(stream)
                if record is not None:
                    images = (record["old"], record["new"])
                    old, new = (one and f"{one.id}={one.visits}" for one in images)
                    found.append((old, new))

        read()
        assert found == expected
        pids = service.ready["pids"]
        for role, numbers in (("serve", range(20, 40)), ("capture", range(40, 60))):
            token = stream.token
            service.kill(role, pids[role])
            write(numbers)
            stream = engine.stream(User, "latest")
            stream.move_to(token)
            read()
            assert found == expected
        assert endpoint.latest(User.Meta.table_name) == arn
        assert len(endpoint.shards(arn)) > 3
        endpoint.close()


def test_records_from_a_copy_on_are_the_collection(
    mongo_client: Client, mongo_database: str, config: Callable[..., Path]
) -> None:
    """What was there comes as inserts, and whoever applies all records has what MongoDB has."""
    orders = mongo_client[mongo_database].create_collection(
        "orders", changeStreamPreAndPostImages={"enabled": True}
    )
    orders.insert_many({"_id": n, "n": n} for n in range(50))
    with Service(config(start="snapshot")) as service:
        endpoint = Endpoint(service.ready["dynamodb"])
        table = f"shop.{mongo_database}.orders"
        arn = endpoint.latest(table)
        for n in range(30):
            orders.update_one({"_id": n}, {"$set": {"n": -n}})
            orders.delete_one({"_id": n + 30})
            orders.replace_one({"_id": 100 + n}, {"n": n}, upsert=True)
        kept = {str(one["_id"]): str(one["n"]) for one in orders.find()}

        def rows() -> bool:
            found = dict[str, str]()
            for one in endpoint.records(arn):
                change = one["dynamodb"]
                key = change["Keys"]["_id"]["N"]
                if one["eventName"] == "REMOVE":
                    found.pop(key, None)
                else:
                    found[key] = change["NewImage"]["n"]["N"]
            return found == kept

        wait_until(rows)
        endpoint.close()


def test_a_collection_without_images_has_a_stream_of_keys(
    mongo_client: Client, mongo_database: str, config: Callable[..., Path]
) -> None:
    orders = mongo_client[mongo_database]["orders"]
    with Service(config(images="")) as service:
        endpoint = Endpoint(service.ready["dynamodb"])
        made = [orders.insert_one({"n": n}).inserted_id for n in range(3)]
        orders.update_one({"_id": made[0]}, {"$set": {"n": 9}})
        orders.delete_one({"_id": made[1]})
        table = f"shop.{mongo_database}.orders"
        arn = endpoint.latest(table)
        wait_until(lambda: len(endpoint.records(arn)) == 5)
        told = endpoint.streams.describe_stream(StreamArn=arn)["StreamDescription"]
        assert told["StreamViewType"] == "KEYS_ONLY"
        records = endpoint.records(arn)
        assert [one["eventName"] for one in records] == ["INSERT"] * 3 + ["MODIFY", "REMOVE"]
        keys = [one["dynamodb"]["Keys"]["_id"]["S"] for one in records[:3]]
        assert keys == [f'{{"$oid":"{one}"}}' for one in made]
        orders.drop()
        wait_until(
            lambda: (
                endpoint.streams.describe_stream(StreamArn=arn)["StreamDescription"]["StreamStatus"]
                == "DISABLED"
            )
        )
        orders.insert_one({"n": 1})
        wait_until(lambda: endpoint.latest(table) != arn)
        assert len(list(itertools.islice(endpoint.records(arn), 9))) == 5
        endpoint.close()
