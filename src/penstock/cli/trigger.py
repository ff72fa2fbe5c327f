"""`penstock trigger`: a stream's records, in batches, to a Python function."""

import asyncio
import signal
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.cli import output
from penstock.errors import ConfigError

_BATCHES, _FAILURES, _PLACE = "Batches", "Failures", "Where it begins and ends"
_OPTIONS = {"filters": "filter"}
"""Options that are called otherwise than what they set."""


def command(
    function: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:FUNCTION",
            help="Called with (event, context) for each batch; async or not. Imported from here.",
        ),
    ],
    state: Annotated[Path, typer.Option(help="The folder that checkpoints are kept in.")],
    endpoint: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Where DynamoDB Streams is served; AWS without it."),
    ] = None,
    region: Annotated[
        str | None, typer.Option(help="The region that requests are signed for.")
    ] = None,
    table: Annotated[str | None, typer.Option(help="The table whose stream is read.")] = None,
    stream: Annotated[
        str | None, typer.Option(metavar="ARN", help="The stream that is read.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="What its checkpoint is kept under; MODULE.FUNCTION without.")
    ] = None,
    starting_position: Annotated[
        str,
        typer.Option(
            metavar="TRIM_HORIZON|LATEST|AT_TIMESTAMP",
            help="Where it begins without a checkpoint.",
            rich_help_panel=_PLACE,
        ),
    ] = "TRIM_HORIZON",
    starting_position_timestamp: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="The time of AT_TIMESTAMP, as 2026-01-31T12:00:00Z.",
            rich_help_panel=_PLACE,
        ),
    ] = None,
    on_trimmed: Annotated[
        str,
        typer.Option(
            metavar="halt|horizon",
            help="When retention removed what was not handled: stop, or go on with the oldest.",
            rich_help_panel=_PLACE,
        ),
    ] = "halt",
    on_stream_end: Annotated[
        str,
        typer.Option(
            metavar="halt|follow",
            help="When the stream ended and was handled: stop, or go on with the table's next.",
            rich_help_panel=_PLACE,
        ),
    ] = "halt",
    batch_size: Annotated[
        int, typer.Option(help="Records of a batch, of at most 6 MiB.", rich_help_panel=_BATCHES)
    ] = 100,
    batching_window: Annotated[
        str,
        typer.Option(help="How long a batch may gather, as 5s.", rich_help_panel=_BATCHES),
    ] = "0s",
    tumbling_window: Annotated[
        str,
        typer.Option(
            help="Windows of time over which the function adds up a state, as 60s; up to 900s.",
            rich_help_panel=_BATCHES,
        ),
    ] = "0s",
    parallelization_factor: Annotated[
        int,
        typer.Option(
            help="Batches of one shard at a time; an item's records stay in order.",
            rich_help_panel=_BATCHES,
        ),
    ] = 1,
    filters: Annotated[
        list[str] | None,
        typer.Option(
            "--filter",
            metavar="JSON",
            help="Only records that match this pattern, or another one; repeatable.",
            rich_help_panel=_BATCHES,
        ),
    ] = None,
    environments_max: Annotated[
        int,
        typer.Option(help="Processes that run the function.", rich_help_panel=_BATCHES),
    ] = 10,
    timeout: Annotated[
        str,
        typer.Option(help="A call that takes longer is killed.", rich_help_panel=_FAILURES),
    ] = "60s",
    maximum_retry_attempts: Annotated[
        int, typer.Option(help="Retries of a batch; -1 = for ever.", rich_help_panel=_FAILURES)
    ] = -1,
    maximum_record_age: Annotated[
        str | None,
        typer.Option(
            help="Records older than this are not given to it any more, as 1h.",
            rich_help_panel=_FAILURES,
        ),
    ] = None,
    bisect_batch_on_function_error: Annotated[
        bool,
        typer.Option(
            "--bisect-batch-on-function-error",
            help="Cut a failed batch in two.",
            rich_help_panel=_FAILURES,
        ),
    ] = False,
    report_batch_item_failures: Annotated[
        bool,
        typer.Option(
            "--report-batch-item-failures",
            help="The function answers with batchItemFailures.",
            rich_help_panel=_FAILURES,
        ),
    ] = False,
    on_failure: Annotated[
        str | None,
        typer.Option(
            metavar="DESTINATION",
            help="Where goes what failed for good: file:PATH, exec:COMMAND, call:MODULE:FUNCTION, "
            "the ARN of an SQS queue, SNS topic or S3 bucket, or discard.",
            rich_help_panel=_FAILURES,
        ),
    ] = None,
    on_failure_endpoint: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Where that SQS, SNS or S3 is served; AWS without it.",
            rich_help_panel=_FAILURES,
        ),
    ] = None,
    retry_delay: Annotated[
        str,
        typer.Option(help="The first pause; doubled each time.", rich_help_panel=_FAILURES),
    ] = "500ms",
    retry_delay_max: Annotated[
        str, typer.Option(help="The longest pause.", rich_help_panel=_FAILURES)
    ] = "60s",
    poll_interval: Annotated[
        str, typer.Option(help="How long a quiet shard is left alone.", rich_help_panel=_BATCHES)
    ] = "250ms",
    as_json: output.JsonOption = False,
) -> None:
    """Give a DynamoDB stream's records to a Python function, as AWS Lambda does.

    Over a store (`penstock store serve --dynamodb`), AWS, and whatever serves DynamoDB Streams. The
    checkpoint moves behind what was handled, so after a crash records may come twice, in order for
    each item, and none is missed. Ends on SIGTERM or Ctrl-C, once the batches under way are done.
    """
    settings: dict[str, Any] = {
        "function": function,
        "name": name or function.replace(":", "."),
        "state": state,
        "endpoint": endpoint,
        "region": region,
        "table": table,
        "stream": stream,
        "starting_position": starting_position,
        "starting_position_timestamp": starting_position_timestamp,
        "on_trimmed": on_trimmed,
        "on_stream_end": on_stream_end,
        "batch_size": batch_size,
        "batching_window": batching_window,
        "tumbling_window": tumbling_window,
        "parallelization_factor": parallelization_factor,
        "filters": tuple(filters or ()),
        "environments_max": environments_max,
        "timeout": timeout,
        "maximum_retry_attempts": maximum_retry_attempts,
        "maximum_record_age": maximum_record_age,
        "bisect_batch_on_function_error": bisect_batch_on_function_error,
        "report_batch_item_failures": report_batch_item_failures,
        "on_failure": on_failure,
        "on_failure_endpoint": on_failure_endpoint,
        "retry_delay": retry_delay,
        "retry_delay_max": retry_delay_max,
        "poll_interval": poll_interval,
    }
    _run(settings, as_json=as_json)


def _run(settings: dict[str, Any], *, as_json: bool) -> None:
    from pydantic import ValidationError

    from penstock.cli import logs
    from penstock.trigger.config import TriggerConfig
    from penstock.trigger.mapping import run_trigger

    logs.configure(as_json=as_json, process="trigger")
    try:
        config = TriggerConfig.model_validate(settings)
    except ValidationError as error:
        raise ConfigError(f"{_told(error)}. Nothing was started.") from None

    def tell(fact: dict[str, Any]) -> None:
        if as_json:
            output.emit(fact)
        else:
            output.stdout().print(f"{fact['name']} reads {fact['stream']}", markup=False)

    async def trigger() -> dict[str, int]:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        for which in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(which, stop.set)
        return dict(await run_trigger(config, stop=stop, tell=tell))

    counts = asyncio.run(trigger())
    if as_json:
        output.emit({"event": "stopped", **counts})


def _told(error: Any) -> str:
    """What is wrong, option by option."""
    said = list[str]()
    for one in error.errors(include_input=False):
        name = str(one["loc"][0]) if one["loc"] else ""
        option = f"--{_OPTIONS.get(name, name)}".replace("_", "-") if name else "the options"
        said.append(f"{option}: {one['msg'].removeprefix('Value error, ')}")
    return "; ".join(said)
