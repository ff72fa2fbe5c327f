"""Run a function on every change: retried a bounded number of times, then set aside, in order.

A change that a consumer cannot process must neither be skipped in silence nor hold up all that
follow it. It is tried again with growing pauses; when it has failed for good, it is made durable
as a dead letter, whole and with its reason, and only then passed.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol

import msgspec
import structlog
from msgspec import Raw, Struct

from penstock.client.change import Change
from penstock.client.following import AsyncChange, Following
from penstock.client.retry import Backoff, Retry
from penstock.errors import RequestError
from penstock.folders import make_folder, sync_folder
from penstock.wire import to_json

log = structlog.get_logger(__name__)

Handler = Callable[[AsyncChange], Awaitable[None]]
"""Processes one change; raises if it could not. What is raised is the reason in a dead letter."""

ATTEMPTS = Retry(initial_seconds=0.5, max_seconds=30.0, max_retries=5)
"""After the first attempt: so many more, with these pauses."""


class DeadLetter(Struct, frozen=True, kw_only=True, rename="camel"):
    """A change that was set aside."""

    reason: str
    attempts: int
    failed_at: int
    """Unix milliseconds of the last attempt."""
    progress: str
    """The marker after the change: following from before it brings it again."""
    event: Raw
    """The change in the JSON of the puller."""


class DeadLetters(Protocol):
    """Keeps what could not be processed. Called from one thread at a time."""

    def add(self, letter: DeadLetter) -> None:
        """Keep `letter`: durable when this returns. What it raises ends the consumer."""
        ...


class DeadLetterFile:
    """Dead letters as JSON lines in a file, each made durable before its change is passed."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def add(self, letter: DeadLetter) -> None:
        make_folder(self.path.parent)
        with self.path.open("ab") as file:
            if file.tell() and not self._ends_a_line():
                file.write(b"\n")  # a crash cut the last one short: it comes again, whole
            file.write(msgspec.json.encode(letter) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        # Whether new or not: whoever made it may have failed, or died, in front of this.
        sync_folder(self.path.parent)

    def _ends_a_line(self) -> bool:
        with self.path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) == b"\n"


async def handle_changes(
    changes: Following,
    handler: Handler,
    *,
    dead_letters: DeadLetters | None = None,
    retry: Retry = ATTEMPTS,
    stop: asyncio.Event | None = None,
) -> None:
    """Run `handler` on every change of `changes`, one after the other, until `stop` is set.

    A change counts as processed once its handler returned, or once it is a dead letter; progress
    never passes another. A change whose handler raises is handled again after the pauses of
    `retry`. After `retry.max_retries` of them it goes to `dead_letters`; without any, the
    handler's error is raised and the change is not passed.

    Raises what following raises. Returns between two changes once `stop` is set, so that the one
    in hand is finished first. `changes` is saved and closed when this ends, however it ends.
    """
    if dead_letters is not None and not retry.max_retries:
        raise RequestError(
            "dead letters need a bound: with max_retries = 0 a change is retried for ever. "
            "Nothing was handled. Give a max_retries, or no dead_letters."
        )
    changes.confirm_explicitly()
    stopping = asyncio.ensure_future((stop or asyncio.Event()).wait())
    try:
        while (change := await _next_unless(changes, stopping)) is not None:
            await _handle(change, handler, dead_letters, retry)
            change.processed()
    finally:
        stopping.cancel()
        await changes.aclose()


async def _next_unless(changes: Following, stopping: "asyncio.Future[Any]") -> AsyncChange | None:
    """The next change, or None once `stopping` is done."""
    asking = asyncio.ensure_future(anext(changes))
    try:
        await asyncio.wait({asking, stopping}, return_when=asyncio.FIRST_COMPLETED)
        return asking.result() if asking.done() else None
    finally:
        if not asking.done():
            asking.cancel()
            await asyncio.wait({asking})


async def _handle(
    change: AsyncChange, handler: Handler, dead_letters: DeadLetters | None, retry: Retry
) -> None:
    backoff = Backoff(retry)
    while True:
        try:
            await handler(change)
        except Exception as error:
            wait_seconds = backoff.next_wait()
            if wait_seconds is None and dead_letters is None:
                raise
            if wait_seconds is None:
                assert dead_letters is not None
                letter = _letter(change, error, attempts=backoff.failures)
                await asyncio.to_thread(dead_letters.add, letter)
                log.error(  # noqa: TRY400 - the text of the error may quote the document
                    "a change was set aside as a dead letter",
                    sequence=change.sequence,
                    attempts=backoff.failures,
                    error=type(error).__name__,
                )
                return
            log.warning(
                "a change was not processed, trying again",
                sequence=change.sequence,
                attempt=backoff.failures,
                wait_seconds=round(wait_seconds, 3),
                error=type(error).__name__,
            )
        else:
            return
        await asyncio.sleep(wait_seconds)


def _letter(change: Change, error: Exception, *, attempts: int) -> DeadLetter:
    return DeadLetter(
        reason=f"{type(error).__name__}: {error}",
        attempts=attempts,
        failed_at=time.time_ns() // 1_000_000,
        progress=change.progress,
        event=Raw(to_json(change.entry)),
    )
