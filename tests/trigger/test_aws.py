"""Failure destinations in AWS: Lambda's documents, at least once, before the checkpoint passes."""

import json
import re
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

import pytest
from structlog.testing import capture_logs

from penstock.errors import TriggerLockedError
from penstock.testing.faults import CutProxy
from penstock.trigger.checkpoints import locked
from penstock.trigger.config import TriggerConfig
from tests.children import Child
from tests.cli.service import COMMAND
from tests.serve.dynamodb.support import Served
from tests.trigger.aws import Aws, arn_of_queue, served_aws
from tests.trigger.support import Calls, configured, put, running
from tests.waiting import until
from tests_support.servers.process import free_ports

FUNCTION = "arn:aws:lambda:us-east-1:000000000000:function:t"


@pytest.fixture(scope="module")
def aws() -> Iterator[Aws]:
    with served_aws() as everything:
        yield everything


def place_of(folder: Path) -> Any:
    """The checkpoint's place in the only shard."""
    kept = json.loads((folder / "state" / "t" / "checkpoint.json").read_bytes())
    (place,) = kept["shards"].values()
    return place


def numbers_of(everything: Served, table: Any) -> list[str]:
    records = everything.records(everything.arn(table))
    return [record["dynamodb"]["SequenceNumber"] for record in records]


def instant(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


@pytest.mark.slow
@pytest.mark.parametrize("service", ["sqs", "sns", "s3"])
async def test_what_failed_for_good_is_told_as_lambda_tells_it(
    shared: Served, calls: Calls, tmp_path: Path, aws: Aws, service: str
) -> None:
    table = shared.table()
    items = ["k0=0", "k1=1", "k2=2"]
    put(table, items)
    calls.spoil("k1=1")
    queue, bucket = aws.queue(), aws.bucket()
    targets = {"sqs": queue, "sns": aws.topic(queue), "s3": f"arn:aws:s3:::{bucket}"}
    config = configured(
        shared,
        tmp_path,
        table=table.name,
        maximum_retry_attempts=1,
        on_failure=targets[service],
        on_failure_endpoint=aws.endpoint,
    )
    async with running(config) as trigger:
        await trigger.until(lambda: len(calls.batches()) == 2)
        put(table, ["end=1"])
        await trigger.until(lambda: calls.items()[-1:] == ["end=1"])
        counts = await trigger.end()
    assert counts["set_aside"] == 3
    came = aws.objects(bucket) if service == "s3" else dict(enumerate(aws.messages(queue)))
    ((key, document),) = came.items()
    if service == "sns":
        assert document["TopicArn"] == targets["sns"]
        document = json.loads(document["Message"])
    request, told_at = document["requestContext"].pop("requestId"), document.pop("timestamp")
    assert str(uuid.UUID(request)) == request
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", told_at)
    records = shared.records(shared.arn(table))
    first, _, last, _ = (record["dynamodb"] for record in records)
    shard = shared.shards(shared.arn(table))[0]["ShardId"]
    if service == "s3":
        mapping = uuid.uuid5(uuid.NAMESPACE_URL, FUNCTION)
        folder = f"aws/lambda/{mapping}/{shard}/{told_at[:10].replace('-', '/')}"
        assert key == f"{folder}/{told_at[:19].replace(':', '.')}-{request}"
        payload = json.loads(document.pop("payload"))
        assert [one["eventID"] for one in payload["Records"]] == [
            one["eventID"] for one in records[:3]
        ]
    assert document == {
        "requestContext": {
            "functionArn": FUNCTION,
            "condition": "RetryAttemptsExhausted",
            "approximateInvokeCount": 2,
        },
        "responseContext": {
            "statusCode": 200,
            "executedVersion": "$LATEST",
            "functionError": "Unhandled",
        },
        "version": "1.0",
        "DDBStreamBatchInfo": {
            "shardId": shard,
            "startSequenceNumber": first["SequenceNumber"],
            "endSequenceNumber": last["SequenceNumber"],
            "approximateArrivalOfFirstRecord": instant(first["ApproximateCreationDateTime"]),
            "approximateArrivalOfLastRecord": instant(last["ApproximateCreationDateTime"]),
            "batchSize": 3,
            "streamArn": shared.arn(table),
        },
    }


@pytest.mark.slow
async def test_a_destination_that_is_down_keeps_the_checkpoint(
    shared: Served, calls: Calls, tmp_path: Path
) -> None:
    """And one whose queue is missing; the log has the reason, and neither secrets nor records."""
    table = shared.table()
    put(table, ["k=7317317317", "k=732"])
    calls.spoil("k=7317317317")
    (port,) = free_ports(1)
    config = configured(
        shared,
        tmp_path,
        table=table.name,
        batch_size=1,
        maximum_retry_attempts=0,
        on_failure=arn_of_queue("late"),
        on_failure_endpoint=f"http://127.0.0.1:{port}",
    )

    def reasons() -> list[str]:
        return [line["error"] for line in said if "destination cannot be reached" in line["event"]]

    with capture_logs() as said:
        async with running(config) as trigger:
            await trigger.until(lambda: len(reasons()) > 2)
            place = place_of(tmp_path)
            with served_aws(port) as aws:
                await trigger.until(lambda: "AWS.SimpleQueueService.NonExistentQueue" in reasons())
                assert calls.items() == ["k=7317317317"]
                assert place_of(tmp_path) == place
                aws.queue("late")
                await trigger.until(lambda: calls.items() == ["k=7317317317", "k=732"])
                (message,) = aws.messages(arn_of_queue("late"))
    first, second = numbers_of(shared, table)
    assert place["value"] < first
    assert message["DDBStreamBatchInfo"]["startSequenceNumber"] == first
    assert place_of(tmp_path)["value"] == second
    assert reasons()[0] == "EndpointConnectionError"
    assert not re.search(r"secret|AKID|7317317317", repr(said))


@pytest.mark.slow
@pytest.mark.parametrize(("is_delivered", "notices"), [(True, 2), (False, 1)])
async def test_a_kill_before_the_checkpoint_sends_the_notice_again(
    shared: Served,
    calls: Calls,
    tmp_path: Path,
    aws: Aws,
    is_delivered: bool,
    notices: int,
) -> None:
    """Whether the queue had it already, and its answer was lost, or not."""
    table = shared.table()
    put(table, ["k=1"])
    calls.spoil("k=1")
    queue, away = aws.queue(), free_ports(1)[0]
    served = urlsplit(aws.endpoint)
    async with CutProxy(str(served.hostname), served.port or 0) as proxy:
        proxy.cut(0, once=lambda sent: b"SendMessage" in sent)
        port = proxy.port if is_delivered else away
        command = (
            *("trigger", "tests.trigger.functions:handle", "--name", "t"),
            *("--endpoint", f"http://{shared.address}", "--table", table.name),
            *("--state", tmp_path / "state", "--maximum-retry-attempts", "0"),
            *("--on-failure", queue, "--on-failure-endpoint", f"http://127.0.0.1:{port}"),
            *("--retry-delay", "10h", "--retry-delay-max", "10h"),
        )
        with Child(*COMMAND, *command) as process:
            await until(
                lambda: process.ended() or "cannot be reached" in process.errors(),
                diagnose=process.tail,
            )
            assert not process.ended(), process.tail()
            process.kill()
    assert len(aws.messages(queue)) == is_delivered

    def is_free() -> bool:
        try:
            with locked(tmp_path / "state" / "t", name="t"):
                return True
        except TriggerLockedError:
            return False

    await until(is_free)
    config = configured(
        shared,
        tmp_path,
        table=table.name,
        maximum_retry_attempts=0,
        on_failure=queue,
        on_failure_endpoint=aws.endpoint,
    )
    async with running(config) as trigger:
        put(table, ["k=2"])
        await trigger.until(lambda: calls.items()[-1:] == ["k=2"])
    number, _ = numbers_of(shared, table)
    told = [one["DDBStreamBatchInfo"] for one in aws.messages(queue)]
    assert [one["startSequenceNumber"] for one in told] == [number] * notices


class _Any(BaseHTTPRequestHandler):
    """Takes whatever it gets, as a server does that is not the service's."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_PUT = do_POST  # noqa: N815 - the base class calls it

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Nothing."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "target",
    [arn_of_queue("q"), "arn:aws:sns:us-east-1:123456789012:t", "arn:aws:s3:::bucket"],
)
async def test_an_answer_that_is_not_the_services_delivers_nothing(
    shared: Served, calls: Calls, tmp_path: Path, target: str
) -> None:
    table = shared.table()
    put(table, ["k=1"])
    calls.spoil("k=1")
    with ThreadingHTTPServer(("127.0.0.1", 0), _Any) as server, capture_logs() as said:
        Thread(target=server.serve_forever, daemon=True).start()
        config = configured(
            shared,
            tmp_path,
            table=table.name,
            maximum_retry_attempts=0,
            on_failure=target,
            on_failure_endpoint=f"http://127.0.0.1:{server.server_port}",
        )
        async with running(config) as trigger:
            await trigger.until(
                lambda: [one for one in said if "failure destination" in one["event"]]
            )
            counts = await trigger.end()
        server.shutdown()
    assert counts["set_aside"] == 0


def configured_with(tmp_path: Path, **settings: Any) -> TriggerConfig:
    told: dict[str, Any] = {"function": "a:b", "name": "t", "state": tmp_path, "table": "t"}
    return TriggerConfig.model_validate({**told, "maximum_retry_attempts": 0, **settings})


@pytest.mark.parametrize(
    "arn",
    [
        "arn:aws:sqs:us-east-1:123456789012:orders.fifo",
        "arn:aws:sqs:us-east-1:123456789012",
        "arn:aws:s3:::bucket/prefix",
        "arn:aws:lambda:us-east-1:123456789012:function:f",
    ],
)
def test_an_arn_of_what_takes_no_letters_is_refused_at_the_start(tmp_path: Path, arn: str) -> None:
    with pytest.raises(ValueError, match="SQS queue, an SNS topic"):
        configured_with(tmp_path, on_failure=arn)


def test_an_endpoint_without_an_arn_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="goes with an ARN"):
        configured_with(tmp_path, on_failure="discard", on_failure_endpoint="http://127.0.0.1:1")
