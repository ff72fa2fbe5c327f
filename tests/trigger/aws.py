"""SQS, SNS and S3 as moto's server has them, and what came there."""

import itertools
import json
import re
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import boto3

from tests.children import MODULE, Child

ACCOUNT, REGION = "123456789012", "eu-west-1"
"""Another region than the streams', which a queue is not found in."""
_boto3: Any = boto3
_numbers = itertools.count()


class Aws:
    """The services, and clients of them."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self._session = _boto3.Session("AKIDEXAMPLE", "secret")
        self.sqs, self.sns = self._client("sqs"), self._client("sns")
        self.s3 = self._client("s3", "us-east-1")
        self._came = dict[str, list[Any]]()

    def _client(self, service: str, region: str = REGION) -> Any:
        return self._session.client(service, region, endpoint_url=self.endpoint)

    def close(self) -> None:
        for client in (self.sqs, self.sns, self.s3):
            client.close()

    def queue(self, name: str = "") -> str:
        """A new queue's ARN."""
        name = name or f"q{next(_numbers)}"
        self.sqs.create_queue(QueueName=name)
        return arn_of_queue(name)

    def topic(self, queue: str) -> str:
        """The ARN of a new topic, whose notifications go to a queue."""
        topic = str(self.sns.create_topic(Name=f"t{next(_numbers)}")["TopicArn"])
        self.sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=queue)
        return topic

    def bucket(self) -> str:
        """A new bucket's name."""
        name = f"bucket-{next(_numbers)}"
        self.s3.create_bucket(Bucket=name)
        return name

    def messages(self, queue: str) -> list[Any]:
        """What has come to a queue so far."""
        url = self.sqs.get_queue_url(QueueName=queue.rpartition(":")[2])["QueueUrl"]
        came = self._came.setdefault(queue, [])
        while found := self.sqs.receive_message(QueueUrl=url).get("Messages"):
            for one in found:
                came.append(json.loads(one["Body"]))
                self.sqs.delete_message(QueueUrl=url, ReceiptHandle=one["ReceiptHandle"])
        return came

    def objects(self, bucket: str) -> dict[str, Any]:
        """What a bucket has, by its keys."""
        listed = self.s3.list_objects_v2(Bucket=bucket).get("Contents", [])
        return {one["Key"]: json.loads(self._read(bucket, one["Key"])) for one in listed}

    def _read(self, bucket: str, key: str) -> bytes:
        with self.s3.get_object(Bucket=bucket, Key=key)["Body"] as body:
            data: bytes = body.read()
        return data


def arn_of_queue(name: str) -> str:
    return f"arn:aws:sqs:{REGION}:{ACCOUNT}:{name}"


@contextmanager
def served_aws(port: int = 0) -> Generator[Aws]:
    """A server of its own process, empty, at a port or any."""
    with Child(*MODULE, "moto.server", "-H", "127.0.0.1", "-p", port) as process:
        found = process.wait_until(
            lambda: re.search(r"Running on (http://127\.0\.0\.1:\d+)\s", process.errors())
        )
        aws = Aws(found[1])
        try:
            yield aws
        finally:
            aws.close()
