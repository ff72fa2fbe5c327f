"""What a trigger reads, what it calls, and what it does about failures."""

import shlex
from pathlib import Path
from typing import Final, Literal, Self

from pydantic import AwareDatetime, Field, field_validator, model_validator

from penstock.config import Config, Seconds
from penstock.trigger.arns import read_arn
from penstock.trigger.patterns import parse_pattern

DISCARD: Final = "discard"
DESTINATIONS: Final = ("file:", "exec:", "call:", "arn:")
_CALLABLE: Final = r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*"


class TriggerConfig(Config):
    """An event source mapping. Names, bounds and defaults are Lambda's where Lambda has them."""

    function: str = Field(
        pattern=f"^{_CALLABLE}$",
        description="What is called for each batch: module:function(event, context), async or not.",
    )
    name: str = Field(
        pattern=r"^[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}$",
        description="What its checkpoint is kept under, and its context's function_name.",
    )
    state: Path = Field(description="The folder of checkpoints; one folder may serve many names.")
    endpoint: str | None = Field(
        default=None, description="Where DynamoDB Streams is served; AWS itself without it."
    )
    region: str | None = Field(default=None, description="The region that requests are signed for.")
    table: str | None = Field(default=None, description="The table whose stream is read.")
    stream: str | None = Field(default=None, description="The ARN of the stream that is read.")
    starting_position: Literal["TRIM_HORIZON", "LATEST", "AT_TIMESTAMP"] = Field(
        default="TRIM_HORIZON", description="Where a trigger begins that has no checkpoint yet."
    )
    starting_position_timestamp: AwareDatetime | None = Field(
        default=None, description="The time of AT_TIMESTAMP, with its offset from UTC."
    )
    batch_size: int = Field(
        default=100, ge=1, le=10_000, description="Records of a batch, of at most 6 MiB together."
    )
    batching_window: Seconds = Field(
        default=0.0, ge=0, le=300, description="How long a batch that is not full may gather."
    )
    parallelization_factor: int = Field(
        default=1,
        ge=1,
        le=10,
        description="Batches of one shard at a time. The records of an item stay in order.",
    )
    tumbling_window: Seconds = Field(
        default=0.0,
        ge=0,
        le=900,
        description="Length of the windows of time over which the function adds up a state; whole "
        "seconds, 0 = none.",
    )
    maximum_retry_attempts: int = Field(
        default=-1, ge=-1, le=10_000, description="Retries of a failed batch; -1 = for ever."
    )
    maximum_record_age: Seconds | None = Field(
        default=None,
        gt=0,
        le=604_800,
        description="Records older than this are not given to the function (any more).",
    )
    bisect_batch_on_function_error: bool = Field(
        default=False, description="Cut a batch that failed in two, which uses up no retry."
    )
    report_batch_item_failures: bool = Field(
        default=False, description="The function answers with batchItemFailures."
    )
    filters: tuple[str, ...] = Field(
        default=(),
        description="Patterns in JSON: the function is called for records that match any of them, "
        "and the others are passed.",
    )
    on_failure: str | None = Field(
        default=None,
        description="Where goes what has failed for good: file:PATH, exec:COMMAND, "
        "call:module:function, the ARN of an SQS queue, SNS topic or S3 bucket, or discard.",
    )
    on_failure_endpoint: str | None = Field(
        default=None, description="Where on_failure's SQS, SNS or S3 is served; AWS without it."
    )
    on_trimmed: Literal["halt", "horizon"] = Field(
        default="halt",
        description="When retention removed what was not handled: stop, or go on with the oldest.",
    )
    on_stream_end: Literal["halt", "follow"] = Field(
        default="halt",
        description="When the stream ended and was handled: stop, or go on with the table's next.",
    )
    timeout: Seconds = Field(
        default=60.0,
        gt=0,
        description="A call that takes longer is killed, with its process, and has failed.",
    )
    environments_max: int = Field(
        default=10, ge=1, le=1000, description="Processes that run the function at a time."
    )
    poll_interval: Seconds = Field(
        default=0.25, gt=0, le=60, description="How long a shard without new records is left alone."
    )
    retry_delay: Seconds = Field(
        default=0.5, gt=0, description="The pause after a first failure; doubled after each more."
    )
    retry_delay_max: Seconds = Field(default=60.0, gt=0, description="The longest such pause.")

    @field_validator("filters")
    @classmethod
    def _known(cls, filters: tuple[str, ...]) -> tuple[str, ...]:
        for text in filters:
            parse_pattern(text)
        return filters

    @field_validator("on_failure")
    @classmethod
    def _somewhere(cls, told: str | None) -> str | None:
        if told in {None, DISCARD}:
            return told
        assert told is not None
        if not any(told.startswith(kind) and told != kind for kind in DESTINATIONS):
            raise ValueError(
                "on_failure is file:PATH, exec:COMMAND, call:module:function, an ARN, or discard"
            )
        kind, _, target = told.partition(":")
        if kind == "arn":
            read_arn(told)
        if kind == "exec":
            try:
                has_program = bool(shlex.split(target))
            except ValueError as error:
                raise ValueError(f"the command of on_failure cannot be read: {error}") from None
            if not has_program:
                raise ValueError("on_failure names no command")
        return told

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if (self.table is None) == (self.stream is None):
            raise ValueError("say one of table and stream")
        if self.tumbling_window != int(self.tumbling_window):
            raise ValueError("tumbling_window is of whole seconds")
        if self.tumbling_window and self.parallelization_factor > 1:
            raise ValueError(
                "tumbling_window has one state a shard, which batches side by side would share: "
                "leave parallelization_factor at 1"
            )
        if (self.starting_position == "AT_TIMESTAMP") != (
            self.starting_position_timestamp is not None
        ):
            raise ValueError("starting_position_timestamp goes with AT_TIMESTAMP, and only with it")
        is_bounded = self.maximum_retry_attempts >= 0 or self.maximum_record_age is not None
        if is_bounded and self.on_failure is None:
            raise ValueError(
                "with maximum_retry_attempts or maximum_record_age a record can be given up, and "
                "nothing says where it goes. Give on_failure; 'discard' throws it away knowingly"
            )
        if not is_bounded and self.on_failure is not None:
            raise ValueError(
                "on_failure is never used while retries go on for ever. Give "
                "maximum_retry_attempts or maximum_record_age too"
            )
        if self.on_failure_endpoint is not None and not (self.on_failure or "").startswith("arn:"):
            raise ValueError("on_failure_endpoint goes with an ARN as on_failure, and only with it")
        return self
