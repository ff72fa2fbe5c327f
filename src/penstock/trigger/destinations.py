"""Where goes what has failed for good, before the checkpoint passes it.

A letter has the shape of what Lambda sends to an on-failure destination, with the whole event as
`payload`, as Lambda gives it to S3 alone: the stream will have forgotten the records by the time
that somebody reads it.
https://docs.aws.amazon.com/lambda/latest/dg/services-dynamodb-errors.html
"""

import asyncio
import os
import shlex
import signal
import uuid
from asyncio import subprocess
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import msgspec

from penstock.errors import ProgramError
from penstock.folders import make_folder, sync_folder
from penstock.programs import start_program
from penstock.trigger.batches import Piece
from penstock.trigger.environment import Outcome
from penstock.trigger.environments import Environments

Condition = Literal["RetryAttemptsExhausted", "MaximumRecordAgeExceeded"]

Deliver = Callable[[bytes], Awaitable[None]]
"""Keeps a letter in JSON: for good when it returns. Raises OSError or ProgramError."""


def write_letter(
    piece: Piece,
    event: bytes,
    *,
    condition: Condition,
    outcome: Outcome,
    shard: str,
    stream: str,
    arn: str,
) -> bytes:
    """The letter of records that are given up, or of the end of a window, which has none.

    `event` is what the function would be called with; `outcome` is that of the last call, if any.
    """
    of_records: dict[str, Any] = {}
    if piece.records:
        first, last = piece.records[0], piece.records[-1]
        of_records = {
            "startSequenceNumber": first.number,
            "endSequenceNumber": last.number,
            "approximateArrivalOfFirstRecord": _instant(first.arrived_seconds),
            "approximateArrivalOfLastRecord": _instant(last.arrived_seconds),
        }
    letter: dict[str, Any] = {
        "requestContext": {
            "requestId": str(uuid.uuid4()),
            "functionArn": arn,
            "condition": condition,
            "approximateInvokeCount": piece.calls,
        },
        "responseContext": {
            "statusCode": 200,
            "executedVersion": "$LATEST",
            "functionError": "Unhandled" if outcome.error else None,
            "errorType": outcome.error or None,
            "errorMessage": outcome.message or None,
        },
        "version": "1.0",
        "timestamp": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "DDBStreamBatchInfo": {
            "shardId": shard,
            **of_records,
            "batchSize": len(piece.records),
            "streamArn": stream,
        },
        "payload": event.decode(),
    }
    return msgspec.json.encode(letter)


def to_file(path: Path) -> Deliver:
    """Letters as lines of a file, each made durable."""

    def append(letter: bytes) -> None:
        make_folder(path.parent)
        with path.open("a+b") as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":
                    file.write(b"\n")  # a crash cut the last one short: it comes again, whole
            file.write(letter + b"\n")
            file.flush()
            os.fsync(file.fileno())
        # Whether new or not: whoever made it may have failed, or died, in front of this.
        sync_folder(path.parent)

    turn = asyncio.Lock()

    async def deliver(letter: bytes) -> None:
        async with turn:
            await asyncio.to_thread(append, letter)

    return deliver


def to_command(command: str, *, timeout_seconds: float) -> Deliver:
    """Letters on the standard input of a program, which has taken one if it exits with 0.

    It is split as a shell would, and run without one.
    """
    arguments = shlex.split(command)

    async def deliver(letter: bytes) -> None:
        process = await start_program(arguments, stdin=subprocess.PIPE)
        try:
            async with asyncio.timeout(timeout_seconds):
                await process.communicate(letter)
        except TimeoutError:
            raise ProgramError("the command did not end in time, and was killed") from None
        finally:
            if process.returncode is None:
                # Its children too: one that holds standard input open would be waited for.
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        if process.returncode:
            raise ProgramError(f"the command ended with exit code {process.returncode}")

    return deliver


def to_function(environments: Environments) -> Deliver:
    """Letters as events of a function, which has taken one if it returns.

    Delivering raises StoppedError where a call does.
    """

    async def deliver(letter: bytes) -> None:
        outcome = await environments.call(letter)
        if outcome.error:
            raise ProgramError(f"the function failed: {outcome.error}")

    return deliver


def _instant(seconds: float) -> str:
    return f"{datetime.fromtimestamp(int(seconds), UTC):%Y-%m-%dT%H:%M:%SZ}"
