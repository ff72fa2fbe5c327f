"""DynamoDB Streams by botocore: the four operations, and what their errors mean.

https://docs.aws.amazon.com/amazondynamodb/latest/APIReference/API_Operations_Amazon_DynamoDB_Streams.html
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

import structlog

from penstock.client.retry import Backoff, Retry
from penstock.errors import TriggerError, TriggerStreamGoneError
from penstock.trigger.clients import THREADS, connect
from penstock.trigger.config import TriggerConfig
from penstock.trigger.lineage import Place, Shard

log = structlog.get_logger(__name__)

_TRANSIENT: Final = frozenset(
    {
        "InternalServerError",
        "LimitExceededException",
        "ProvisionedThroughputExceededException",
        "RequestLimitExceeded",
        "ServiceUnavailable",
        "ServiceUnavailableException",
        "ThrottlingException",
    }
)


class ExpiredError(Exception):
    """The iterator is too old; another one goes on."""


class TrimmedError(Exception):
    """Retention removed what follows the place."""


class NotThereError(Exception):
    """The shard, or the stream, is not there."""


class Page(NamedTuple):
    """What GetRecords answered."""

    records: list[dict[str, Any]]
    then: str | None
    """The next iterator; None at the end of a closed shard."""


class Described(NamedTuple):
    """What DescribeStream answered."""

    is_enabled: bool
    table: str
    view: str
    """Its StreamViewType."""
    shards: list[Shard]


class Streams:
    """The service. What passes by itself is asked again, until `stop` is set; then Stopped."""

    def __init__(self, config: TriggerConfig, *, stop: asyncio.Event) -> None:
        arn = (config.stream or "").split(":")
        self._client = connect(
            "dynamodbstreams",
            region=config.region or (arn[3] if len(arn) > 5 else None),
            endpoint=config.endpoint,
            option="--endpoint",
        )
        self._stop = stop
        self._threads = ThreadPoolExecutor(THREADS, "trigger-streams")
        self._retry = Retry(
            initial_seconds=config.retry_delay, max_seconds=config.retry_delay_max, max_retries=0
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self._threads.shutdown)
        self._client.close()

    async def of_table(self, table: str) -> list[str]:
        """The ARNs of a table's streams, oldest first, with those that ended."""
        arns = list[str]()
        start = dict[str, Any]()
        while True:
            try:
                told = await self._ask("list_streams", TableName=table, **start)
            except NotThereError:
                return []
            arns += [one["StreamArn"] for one in told.get("Streams", [])]
            if "LastEvaluatedStreamArn" not in told:
                return sorted(arns, key=label_of)
            start = {"ExclusiveStartStreamArn": told["LastEvaluatedStreamArn"]}

    async def describe(self, arn: str) -> Described:
        """A stream and its shards. Raises TriggerStreamGoneError if there is none."""
        shards, start = list[Shard](), dict[str, Any]()
        while True:
            try:
                answer = await self._ask("describe_stream", StreamArn=arn, **start)
            except NotThereError:
                raise TriggerStreamGoneError(what=f"the stream {arn}") from None
            told = answer["StreamDescription"]
            for shard in told.get("Shards", []):
                between = shard.get("SequenceNumberRange", {})
                shards.append(
                    Shard(
                        id=shard["ShardId"],
                        parent=shard.get("ParentShardId"),
                        first=between.get("StartingSequenceNumber", ""),
                        is_closed="EndingSequenceNumber" in between,
                    )
                )
            if "LastEvaluatedShardId" not in told:
                is_enabled = told["StreamStatus"] in {"ENABLED", "ENABLING"}
                table, view = told.get("TableName", ""), told["StreamViewType"]
                return Described(is_enabled, table, view, shards)
            start = {"ExclusiveStartShardId": told["LastEvaluatedShardId"]}

    async def iterator(self, arn: str, shard: str, place: Place) -> tuple[str, float]:
        """An iterator at a place, and when it was made by the service's clock, in Unix seconds.

        Raises TrimmedError and NotThereError.
        """
        at = dict[str, Any]()
        if place.kind == "AT_TIMESTAMP":
            at["Timestamp"] = float(place.value)
        elif place.kind in {"AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER"}:
            at["SequenceNumber"] = place.value
        told = await self._ask(
            "get_shard_iterator", StreamArn=arn, ShardId=shard, ShardIteratorType=place.kind, **at
        )
        return str(told["ShardIterator"]), _date(told)

    async def records(self, iterator: str) -> Page:
        """What follows. Raises ExpiredError, TrimmedError and NotThereError."""
        told = await self._ask("get_records", ShardIterator=iterator)
        return Page(told.get("Records", []), told.get("NextShardIterator") or None)

    async def _ask(self, operation: str, **request: Any) -> dict[str, Any]:
        from botocore.exceptions import (
            BotoCoreError,
            ClientError,
            NoCredentialsError,
            ParamValidationError,
            PartialCredentialsError,
        )

        call: Callable[..., dict[str, Any]] = getattr(self._client, operation)
        backoff = Backoff(self._retry)
        loop = asyncio.get_running_loop()
        while True:
            if self._stop.is_set():
                raise StoppedError
            try:
                return await loop.run_in_executor(self._threads, lambda: call(**request))
            except ClientError as error:
                response: Any = error.response
                name = str(response["Error"]["Code"])
                status = int(response["ResponseMetadata"]["HTTPStatusCode"])
                if name not in _TRANSIENT and status < 500:
                    raise _meaning(name, operation) from error
            except (NoCredentialsError, PartialCredentialsError, ParamValidationError) as error:
                raise TriggerError(
                    f"{operation} cannot be asked ({type(error).__name__}). What was handled is "
                    f"safe. Give credentials as AWS's clients take them, and --region or "
                    f"--endpoint."
                ) from error
            except BotoCoreError as error:
                name = type(error).__name__  # the connection, or an answer that was cut short
            seconds = backoff.next_wait()
            assert seconds is not None
            log.warning(
                "the stream's service cannot be asked, trying again",
                operation=operation,
                error=name,
                attempt=backoff.failures,
                wait_seconds=round(seconds, 3),
            )
            if await stopped_within(self._stop, seconds):
                raise StoppedError


def table_of(arn: str) -> str:
    """The table's name in a stream's ARN: arn:aws:dynamodb:...:table/NAME/stream/LABEL."""
    return arn.partition(":table/")[2].partition("/")[0]


def label_of(arn: str) -> str:
    """When a stream began, YYYY-MM-DDTHH:MM:SS.mmm: a later one of a table has a greater label."""
    return arn.rpartition("/stream/")[2]


class StoppedError(Exception):
    """The trigger is to stop; nothing was read."""


async def stopped_within(stop: asyncio.Event, seconds: float) -> bool:
    """Wait so long, or until `stop` is set: whether it is."""
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        return False
    return True


def _meaning(name: str, operation: str) -> Exception:
    match name:
        case "ExpiredIteratorException":
            return ExpiredError()
        case "TrimmedDataAccessException":
            return TrimmedError()
        case "ResourceNotFoundException":
            return NotThereError()
        case _:
            return TriggerError(
                f"the stream's service refused {operation} ({name}). What was handled is safe. "
                f"Look at the credentials and what they allow; after a restore of the table's "
                f"store from a backup, start under another --name."
            )


def _date(told: dict[str, Any]) -> float:
    """When the service answered, in whole Unix seconds, rounded down."""
    said = told.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
    try:
        return float(int(parsedate_to_datetime(said).timestamp()))
    except (TypeError, ValueError):
        return float(int(time.time()))
