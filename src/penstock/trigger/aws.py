"""Failure destinations in AWS, and in whatever else serves SQS, SNS and S3, by boto3.

Each takes the document that Lambda gives to its kind.
"""

import asyncio
import uuid
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

from penstock.trigger.arns import Resource
from penstock.trigger.destinations import Deliver, UndeliveredError
from penstock.trigger.letters import Letter


def to_queue(client: Any, queue: Resource) -> Deliver:
    """Letters as messages of an SQS queue, without the records."""
    owner = {"QueueOwnerAWSAccountId": queue.account} if queue.account else {}
    url = ""

    async def deliver(letter: Letter) -> None:
        nonlocal url
        if not url:
            url = await _ask(client.get_queue_url, "QueueUrl", QueueName=queue.name, **owner)
        body = letter.metadata().decode()
        await _ask(client.send_message, "MessageId", QueueUrl=url, MessageBody=body)

    return deliver


def to_topic(client: Any, topic: Resource) -> Deliver:
    """Letters as notifications of an SNS topic, without the records."""

    async def deliver(letter: Letter) -> None:
        body = letter.metadata().decode()
        await _ask(client.publish, "MessageId", TopicArn=topic.arn, Message=body)

    return deliver


def to_bucket(client: Any, bucket: Resource) -> Deliver:
    """Letters as objects of an S3 bucket, with the records."""

    async def deliver(letter: Letter) -> None:
        body = letter.with_payload()
        await _ask(client.put_object, "ETag", Bucket=bucket.name, Key=key_of(letter), Body=body)

    return deliver


BY_SERVICE: Final[dict[str, Callable[[Any, Resource], Deliver]]] = {
    "sqs": to_queue,
    "sns": to_topic,
    "s3": to_bucket,
}


def key_of(letter: Letter) -> str:
    """The object's key as Lambda names it: aws/lambda/MAPPING/SHARD/YYYY/MM/DD/TIME-UUID.

    The mapping's UUID is made of the function's ARN, which has the trigger's name. The last is the
    request's, so that a letter that is sent again replaces itself.
    """
    document, context = letter.document, letter.document.request_context
    mapping = uuid.uuid5(uuid.NAMESPACE_URL, context.function_arn)
    at = datetime.fromisoformat(document.timestamp)
    folder = f"aws/lambda/{mapping}/{document.batch_info.shard_id}/{at:%Y/%m/%d}"
    return f"{folder}/{at:%Y-%m-%dT%H.%M.%S}-{context.request_id}"


async def _ask(call: Callable[..., dict[str, Any]], member: str, **request: Any) -> str:
    """A member of the answer, which proves that it is the service that took the request."""
    from botocore.exceptions import BotoCoreError, ClientError
    from botocore.parsers import ResponseParserError

    try:
        answer = await asyncio.to_thread(call, **request)
    except ClientError as error:
        response: Any = error.response
        raise UndeliveredError(str(response.get("Error", {}).get("Code"))) from error
    except (BotoCoreError, ResponseParserError) as error:
        raise UndeliveredError(type(error).__name__) from error
    if not answer.get(member):
        raise UndeliveredError(f"an answer without {member}")
    return str(answer[member])
