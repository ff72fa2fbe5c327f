"""A store served by DynamoDB's protocol, and boto3 as it is sold."""

import asyncio
import itertools
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Generator, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config

from penstock import store
from penstock.clocks import Clock
from penstock.errors import PenstockError
from penstock.serve.dynamodb.config import DynamoConfig
from penstock.serve.dynamodb.server import serving_dynamodb
from penstock.store import Store
from penstock.store.shards import ShardLimits
from tests.waiting import PATIENCE_SECONDS

# Any: what is in an answer is what the tests are about.
_boto3: Any = boto3
_session = _boto3.Session(
    aws_access_key_id="AKIDEXAMPLE", aws_secret_access_key="secret", region_name="us-east-1"
)
_numbers = itertools.count()
_SETTINGS = Config(retries={"max_attempts": 0}, parameter_validation=False)


class Clients:
    """Clients of an endpoint."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._made = list[Any]()

    @cached_property
    def client(self) -> Any:
        return self._client("dynamodb")

    @cached_property
    def streams(self) -> Any:
        return self._client("dynamodbstreams")

    @cached_property
    def resource(self) -> Any:
        made = _session.resource("dynamodb", endpoint_url=self._url, config=_SETTINGS)
        self._made.append(made.meta.client)
        return made

    @property
    def _url(self) -> str:
        return f"http://{self.address}"

    def _client(self, service: str) -> Any:
        made = _session.client(service, endpoint_url=self._url, config=_SETTINGS)
        self._made.append(made)
        return made

    def close(self) -> None:
        """Close the clients' connections."""
        for client in self._made:
            client.close()

    def arn(self, table: Any) -> str:
        """The ARN of a table's latest stream."""
        return str(self.client.describe_table(TableName=table.name)["Table"]["LatestStreamArn"])

    def shards(self, arn: str) -> list[Any]:
        """The shards of a stream, whatever pages they come in."""
        shards, start = list[Any](), dict[str, Any]()
        while True:
            told = self.streams.describe_stream(StreamArn=arn, **start)["StreamDescription"]
            shards += told["Shards"]
            if "LastEvaluatedShardId" not in told:
                return shards
            start = {"ExclusiveStartShardId": told["LastEvaluatedShardId"]}

    def iterator(self, arn: str, shard: str, kind: str = "TRIM_HORIZON", **place: Any) -> str:
        """A shard iterator."""
        told = self.streams.get_shard_iterator(
            StreamArn=arn,
            ShardId=shard,
            ShardIteratorType=kind,
            **place,
        )
        return str(told["ShardIterator"])

    def records(self, arn: str, *, limit: int = 1000) -> list[Any]:
        """Every record of a stream, shard by shard, as a consumer reads them."""
        return [
            record
            for shard in self.shards(arn)
            for record in self.of_shard(arn, shard["ShardId"], limit=limit)
        ]

    def of_shard(self, arn: str, shard: str, *, limit: int = 1000) -> Iterator[Any]:
        """Every record that a shard has by now."""
        iterator: str | None = self.iterator(arn, shard)
        while iterator is not None:
            told = self.streams.get_records(ShardIterator=iterator, Limit=limit)
            yield from told["Records"]
            iterator = told.get("NextShardIterator")
            if not told["Records"]:
                return

    def post(
        self, target: str, body: object, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, Any], dict[str, str]]:
        """Send a request as it is; returns status, body and headers."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://{self.address}/", data, {"X-Amz-Target": target, **(headers or {})}
        )
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
                return answer.status, json.loads(answer.read()), dict(answer.headers)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read()), dict(error.headers)

    def refused(self, operation: str, **request: Any) -> tuple[str, str]:
        """The name and the text of the error that answers a request."""
        streams = operation in {
            "ListStreams",
            "DescribeStream",
            "GetShardIterator",
            "GetRecords",
        }
        prefix = "DynamoDBStreams_20120810" if streams else "DynamoDB_20120810"
        status, body, _ = self.post(f"{prefix}.{operation}", request)
        assert status == 400, body
        name = str(body["__type"]).partition("#")[2]
        return name, str(body.get("message", body.get("Message")))


class Served(Clients):
    """A store that is served, and clients of it."""

    def __init__(self, db: Store, address: str) -> None:
        super().__init__(address)
        self.db = db

    def table(
        self, *, view: str | None = "NEW_AND_OLD_IMAGES", sort: str | None = None, kind: str = "S"
    ) -> Any:
        """A new table of a name of its own, with the partition key `id`."""
        name = f"table{next(_numbers)}"
        keys = [("id", "HASH", "S")] + ([(sort, "RANGE", kind)] if sort else [])
        specification: Any = {"StreamEnabled": view is not None}
        if view is not None:
            specification["StreamViewType"] = view
        schema: Any = [{"AttributeName": name, "KeyType": role} for name, role, _ in keys]
        definitions: Any = [{"AttributeName": name, "AttributeType": t} for name, _, t in keys]
        return self.resource.create_table(
            TableName=name,
            KeySchema=schema,
            AttributeDefinitions=definitions,
            BillingMode="PAY_PER_REQUEST",
            StreamSpecification=specification,
        )


@contextmanager
def served(
    path: Path,
    *,
    clock: Clock | None = None,
    shards: ShardLimits | None = None,
    **config: Any,
) -> Generator[Served]:
    """A store that nobody sweeps, served inside the block."""
    with store.open(path, sweep_seconds=None, clock=clock, shards=shards) as db:
        settings = DynamoConfig.model_validate({"address": "127.0.0.1:0", **config})
        with _running(db, settings, clock) as address:
            everything = Served(db, address)
            try:
                yield everything
            finally:
                everything.close()


@contextmanager
def _running(db: Store, config: DynamoConfig, clock: Clock | None) -> Generator[str]:
    """The server in a thread of its own, with an event loop."""
    found: Future[str] = Future()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def serve() -> None:
        try:
            async with serving_dynamodb(db, config, clock=clock) as address:
                found.set_result(address)
                await stop.wait()
        except PenstockError as error:
            found.set_exception(error)

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        yield found.result()
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


def response_of(error: Any) -> Any:
    """What a ClientError has of its answer."""
    return error.response


def name_of(error: Any) -> str:
    """The name of a ClientError."""
    return str(error.response["Error"]["Code"])
