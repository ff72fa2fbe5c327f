"""The newest blocks of the log, read once for every lane at its head.

Which lanes an entry may be for is looked up in an index of them all (routing.py), so a commit costs
nothing for the others (E5).
"""

import asyncio
import random
import traceback
from collections.abc import Sequence
from typing import Final, Protocol

import structlog

from penstock.errors import (
    PenstockError,
    RequestError,
    ServiceUnavailableError,
    TrimmedError,
)
from penstock.ports import LogReader
from penstock.progress import Progress
from penstock.subscribe.captures.routing import Routes, Wanting
from penstock.subscribe.resume import start
from penstock.wire import Block

logger = structlog.get_logger(__name__)

_READ_BYTES: Final = 1 << 20
_RETRY_SECONDS_MAX: Final = 30.0
_PROBE_SECONDS: Final = 0.25
"""How long a log that failed must be quiet, or be read, to be believed again."""


class Listener(Wanting, Protocol):
    """A lane at the head."""

    def offer(self, block: Block, entries: Sequence[int] | None, *, before: Progress) -> None:
        """Take note of a block that may be for it: of these entries (None: any of them).

        All up to `before` was offered, and so was for nobody if it was not.
        """
        ...

    def detach(self) -> None:
        """Nothing is offered any more: read on alone."""
        ...

    def fail(self, error: PenstockError) -> None:
        """The log cannot be read now, or not for this one, and nothing is offered any more."""
        ...


class Hub:
    """Feeds the lanes that stand where it stands, or further on. `run` it in a task of its own."""

    def __init__(
        self, log: LogReader, *, pause_seconds: float = 0.002, retry_seconds: float = 0.25
    ) -> None:
        """`pause_seconds` between two reads lets commits gather, so that a busy log costs each
        reader a wake-up for many of them. `retry_seconds`: the first pause after a failure; they
        double, up to half a minute, and half of each is random."""
        self._log = log
        self._retry_seconds = retry_seconds
        self._pause_seconds = pause_seconds
        self._place: Progress | None = None
        self._routes = Routes[Listener]()
        self._failed: PenstockError | None = None
        self._ready = asyncio.Event()

    @property
    def place(self) -> Progress:
        """All up to here was offered to who listens."""
        assert self._place is not None  # `ready` comes first
        return self._place

    @property
    def failure(self) -> PenstockError | None:
        """Why nobody is fed now: for good if it is not transient."""
        return self._failed

    async def ready(self) -> None:
        """Return once the hub stands somewhere. Raises why it cannot read the log now."""
        await self._ready.wait()
        if self._failed is not None:
            raise self._failed.with_traceback(None)

    def join(self, listener: Listener, place: Progress) -> bool:
        """Listen from here on, if the hub is not beyond `place`; else read on, and try again.

        What is offered may begin before `place`.
        """
        if self._failed is not None:
            listener.fail(self._failed)
            return False
        if self._place is None or place.sequence < self._place.sequence:
            return False
        self._routes.add(listener)
        return True

    def leave(self, listener: Listener) -> None:
        """Listen no more; harmless for who does not."""
        self._routes.remove(listener)

    async def run(self) -> None:
        """Read on for ever. An error of the log goes to everyone who listens, and to who comes
        while it lasts.

        What may pass is tried again, and whoever comes behind it is fed. Returns on what does not
        pass: `failure` says what it is from then on.
        """
        failures = 0
        while True:
            try:
                if self._place is None:
                    self._place = await start(self._log, "")
                    self._ready.set()
                await self._read_on(wait_seconds=_PROBE_SECONDS if failures else None)
            except Exception as error:  # whatever it is, silence would look like an idle log
                failures += 1
                most = min(_RETRY_SECONDS_MAX, self._retry_seconds * 2.0 ** min(failures - 1, 30))
                wait_seconds = most * (0.5 + random.random() / 2)
                if not self._fail(error, failures, wait_seconds):
                    return
                await asyncio.sleep(wait_seconds)
            else:
                if failures:
                    logger.info("captures: the log is read again", failures=failures)
                self._failed, failures = None, 0

    def _fail(self, error: Exception, failures: int, wait_seconds: float) -> bool:
        """Tell everyone who listens; False if no other try can help."""
        failed = self._failed = error if isinstance(error, PenstockError) else _broken()
        facts: dict[str, object] = {"code": failed.code, "failures": failures}
        if failed is not error:
            facts |= _facts(error)
        if failed.transient:
            logger.warning(
                "captures: the log cannot be read; trying again",
                wait_seconds=round(wait_seconds, 3),
                **facts,
            )
        else:
            logger.error("captures: the log cannot be read, for good", **facts)
        self._ready.set()
        for listener in self._routes:
            self.leave(listener)
            listener.fail(failed)
        return failed.transient

    async def _read_on(self, *, wait_seconds: float | None) -> None:
        place = self.place
        try:
            blocks = await self._log.read(after=place.sequence, bytes_max=_READ_BYTES)
        except TrimmedError:
            # Behind by the whole log: who listens reads by itself, and learns what it missed. So
            # does who came further on until the new place was known: it may lie behind that.
            leapt = await start(self._log, "")
            for listener in self._routes:
                listener.detach()
            self._place = leapt
            return
        for block in blocks:
            for listener, entries in self._routes.interested(block).items():
                listener.offer(block, entries, before=self.place)
            for listener, error in self._routes.take_failed():
                logger.error("captures: what a request asks for cannot be found", **_facts(error))
                listener.fail(error if isinstance(error, PenstockError) else _unfit())
            self._place = block.place(block.stop - 1)
        if blocks:
            await asyncio.sleep(self._pause_seconds)
        else:
            await self._log.wait(after=place.sequence, timeout_seconds=wait_seconds)


def _facts(error: Exception) -> dict[str, object]:
    """Where it happened, but not its text, which might quote a document."""
    where = traceback.format_tb(error.__traceback__)
    return {"error": type(error).__name__, "where": where}


def _unfit() -> RequestError:
    return RequestError(
        "what is asked for cannot be looked up, by an error of ours, which the service has logged. "
        "What you saved is safe. Ask in another way, and report it."
    )


def _broken() -> ServiceUnavailableError:
    return ServiceUnavailableError(
        "the service cannot read its log now, and tries again. What you saved is safe: subscribe "
        "again with it in a moment."
    )
