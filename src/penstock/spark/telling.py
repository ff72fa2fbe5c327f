"""A pipeline tells the service how it is, and how far its destination has durably come.

On a thread of its own: a service that is slow or away delays no batch, and is told again. What it
answers may be that the pipeline is to stop.
"""

import secrets
import threading
from collections.abc import Callable
from typing import Final

import structlog
from msgspec import structs

from penstock.client.credentials import Credentials
from penstock.client.flight import LogClient
from penstock.client.pipelines import TOLD_SECONDS, PipelineTold, RunState
from penstock.errors import PenstockError
from penstock.progress import Progress
from penstock.spark.scheduled import Verification
from penstock.spark.table.upkeep import untidied
from penstock.spark.target import Applied

log = structlog.get_logger()

_TELL_SECONDS_MIN: Final = 0.5
"""Not oftener: what moved on meanwhile is told at once then."""
_CALL_SECONDS: Final = 5.0


class ServiceTeller:
    """What the service knows of one run of a pipeline."""

    def __init__(
        self,
        pipeline: str,
        *,
        source: str,
        to: str,
        endpoint: str,
        credentials: Credentials,
        on_stop: Callable[[], None],
    ) -> None:
        """`on_stop` is called, in a thread of its own, when the service says so."""
        self._pipeline = pipeline
        self._source = source
        self._to = to
        self._run = secrets.token_hex(8)
        self._endpoint = endpoint
        self._credentials = credentials
        self._on_stop = on_stop
        self._lock = threading.Lock()
        self._news = threading.Event()
        self._closing = threading.Event()
        self._told: PipelineTold | None = None
        self._passed: Progress | None = None
        self._code = ""
        self._verified: Verification | None = None
        self.stopped = False
        """Whether the service said so."""
        self._thread = threading.Thread(
            target=self._work, name=f"penstock-tells-{pipeline}", daemon=True
        )

    def begins_with_oldest(self, place: Progress) -> None:
        """The run is about to begin behind `place`, where the log begins now, or where it begins by
        then; until it has stored something. Has told it when it returns, if the service answers."""
        with self._lock:
            self._told = told = structs.replace(self._standing_at(place), oldest=True)
        self._tell(told)
        # Of a run that begins once more, an older word may have been on its way.
        self._news.set()

    def began(self, place: Progress) -> None:
        """The destination stands at `place`, and is read on from there."""
        with self._lock:
            self._passed = place
            self._told = structs.replace(self._standing_at(place), code="")
            if self._thread.ident is None:
                self._thread.start()
        self._news.set()

    def _standing_at(self, place: Progress) -> PipelineTold:
        if self._told is not None:
            return structs.replace(self._told, place=place)
        told = PipelineTold(
            pipeline=self._pipeline, run=self._run, source=self._source, to=self._to, place=place
        )
        return told if self._verified is None else _with(told, self._verified)

    def applied(self, result: Applied, *, seconds: float) -> None:
        """A batch is in the destination; how far that holds durably `settled` says."""
        with self._lock:
            told = self._told
            assert told is not None
            self._told = structs.replace(
                told,
                batches=told.batches + 1,
                entries=told.entries + result.entries,
                rows=told.rows + result.rows,
                rejected=told.rejected + result.rejected,
                lost=told.lost + result.entries_lost,
                untidied=untidied(self._pipeline),
                batch_seconds=seconds,
                entries_per_second=result.entries / seconds if seconds else 0.0,
                code="",
            )
        self._news.set()

    def passed(self, place: Progress) -> None:
        """Everything up to `place` was applied, and may not be stored yet."""
        with self._lock:
            self._passed = place

    def settled(self) -> None:
        """How far the destination has come is durably stored with it."""
        with self._lock:
            assert self._told is not None
            assert self._passed is not None
            self._told = structs.replace(self._told, place=self._passed, oldest=False)
        self._news.set()

    def verified(self, found: Verification) -> None:
        """What is known of the tables, beside the batches."""
        with self._lock:
            self._verified = found
            if self._told is not None:
                self._told = _with(self._told, found)
        self._news.set()

    def waits(self, code: str) -> None:
        """An error that passes holds it up."""
        with self._lock:
            if self._told is not None:
                self._told = structs.replace(self._told, code=code)

    def close(self, state: RunState, code: str = "") -> None:
        """The run is over. Waits a little for the service to hear of it; only the first call of
        this counts."""
        if self._told is None or self._closing.is_set():
            return  # it never began, or this was said
        self._closing.set()
        self._news.set()
        if self._thread.ident is not None:
            self._thread.join()
        with self._lock:
            last = structs.replace(self._told, state=state, code=code, oldest=False)
        self._tell(last)

    def _work(self) -> None:
        while not self._closing.is_set():
            self._news.wait(TOLD_SECONDS)
            self._news.clear()
            with self._lock:
                told = self._told
            if told is not None and self._tell(told) and not self.stopped:
                self.stopped = True
                self._on_stop()
            self._closing.wait(_TELL_SECONDS_MIN)

    def _tell(self, told: PipelineTold) -> bool:
        """Say it; whether the service wants us to stop."""
        try:
            with LogClient(
                self._endpoint,
                patience_seconds=0,
                call_seconds=_CALL_SECONDS,
                credentials=self._credentials,
            ) as client:
                stop = client.tell(told).stop
        except Exception as error:
            # Whatever it is: what is read of the log meets it too, or it is told again.
            code = error.code if isinstance(error, PenstockError) else type(error).__name__
            if code != self._code:
                log.warning("service not told of a pipeline", pipeline=self._pipeline, code=code)
            self._code = code
            return False
        self._code = ""
        return stop


def _with(told: PipelineTold, found: Verification) -> PipelineTold:
    return structs.replace(
        told,
        verified_at_ms=found.at_ms,
        differences=found.differences,
        verify_code=found.code,
    )
