"""A batch until it is done: called, called again, cut, and in the end kept by a destination."""

import asyncio
from collections import Counter, deque

import structlog

from penstock.client.retry import Backoff, Retry
from penstock.clocks import Trust
from penstock.trigger.batches import InvalidAnswerError, Piece, after_failure, first_failed, too_old
from penstock.trigger.config import TriggerConfig
from penstock.trigger.destinations import Deliver, UndeliveredError
from penstock.trigger.environment import Outcome
from penstock.trigger.environments import Environments
from penstock.trigger.letters import REPORTED, Condition, Letter, write_letter
from penstock.trigger.records import Record, event_of
from penstock.trigger.shard import Finished
from penstock.trigger.streams import StoppedError, stopped_within
from penstock.trigger.windows import Windows, without_state

log = structlog.get_logger(__name__)


class Handler:
    """Handles the batches of all shards of a stream. Nothing is finished but what was handled,
    kept by the destination, or is to be discarded by configuration."""

    def __init__(
        self,
        config: TriggerConfig,
        environments: Environments,
        deliver: Deliver | None,
        *,
        stream: str,
        arn: str,
        stop: asyncio.Event,
        counts: Counter[str],
        trust: Trust,
    ) -> None:
        """`deliver` None: what is given up is discarded, and that is logged as an error. `trust` is
        that of the clock since the trigger began."""
        self._config, self._environments, self._deliver = config, environments, deliver
        self._stream, self._arn = stream, arn
        self._stop, self._counts = stop, counts
        self._trust = trust
        self._retry = Retry(
            initial_seconds=config.retry_delay, max_seconds=config.retry_delay_max, max_retries=0
        )

    async def handle(
        self,
        shard: str,
        batch: tuple[Record, ...],
        finished: Finished,
        windows: Windows | None = None,
    ) -> None:
        """Return once every record of the batch is finished, or `stop` is set.

        With `windows`, each call is of the one that is open; a batch without records ends it.
        """
        pending = deque([Piece(batch)])
        backoff = Backoff(self._retry)
        last = Outcome()
        while not self._stop.is_set():
            piece = _next(pending, windows)
            if piece is None:
                return
            if count := self._too_old(piece):
                old = piece._replace(records=piece.records[:count])
                why: Condition = "RecordAgeExceeded"
                if not await self._give_up(shard, old, why, last, finished, windows):
                    return
                rest = piece.records[count:]
                if rest:
                    pending.appendleft(piece._replace(records=rest))
                continue
            piece = piece._replace(calls=piece.calls + 1)
            if windows is not None and piece.records:
                windows.begin(piece.records[0])
            try:
                last, failed = await self._call(piece, windows)
            except StoppedError:
                return
            if windows is not None and failed:
                # What it answered may hold what it did behind the first that failed: what comes
                # before that is called for by itself.
                self._counts["failed_calls"] += 1
                halves = (piece.records[:failed], piece.records[failed:])
                pending.extendleft(Piece(half, 0, piece.calls) for half in reversed(halves))
                continue
            done = [record.number for record in piece.records[:failed]]
            if done or (failed is None and not piece.records):
                self._counts["handled"] += len(done)
                await finished(done)
            if failed is None:
                backoff.reset()
                continue
            if failed:
                backoff.reset()
            self._counts["failed_calls"] += 1
            then = after_failure(
                piece,
                failed,
                bisect=self._config.bisect_batch_on_function_error,
                retries_max=self._config.maximum_retry_attempts,
            )
            pending.extendleft(reversed(then.pieces))
            if then.discarded is not None:
                gone = then.discarded
                why = "RetryAttemptsExhausted"
                if not await self._give_up(shard, gone, why, last, finished, windows):
                    return
                backoff.reset()
                continue
            seconds = backoff.next_wait()
            assert seconds is not None
            log.warning(
                "a batch failed, trying again",
                shard=shard,
                first=_first(then.pieces[0]),
                records=sum(len(one.records) for one in then.pieces),
                pieces=len(then.pieces),
                calls=piece.calls,
                error=last.error,
                wait_seconds=round(seconds, 3),
            )
            await stopped_within(self._stop, seconds)

    async def _call(self, piece: Piece, windows: Windows | None) -> tuple[Outcome, int | None]:
        """Call the function; its outcome, and the first record that it did not handle.

        Raises StoppedError if it was not called.
        """
        outcome = await self._environments.call(_event(piece, windows))
        self._counts["calls"] += 1
        if outcome.error:
            return outcome, 0
        is_reporting = self._config.report_batch_item_failures
        try:
            numbers = [record.number for record in piece.records]
            answer = outcome.answer if windows is None else without_state(outcome.answer)
            failed = first_failed(answer, numbers, is_reporting=is_reporting)
            if windows is not None and failed is None:
                windows.answered(outcome.answer, is_final=not piece.records)
        except InvalidAnswerError as error:
            return Outcome(error="InvalidAnswer", message=f"the function's answer: {error}"), 0
        if failed is None:
            return outcome, None
        return Outcome(error=REPORTED), failed

    def _too_old(self, piece: Piece) -> int:
        age = self._config.maximum_record_age
        # A clock that was set forward would make every record too old.
        now_seconds = self._trust.earliest_ms() / 1000
        return too_old(piece.records, now_seconds=now_seconds, age_seconds_max=age)

    async def _give_up(
        self,
        shard: str,
        piece: Piece,
        condition: Condition,
        outcome: Outcome,
        finished: Finished,
        windows: Windows | None,
    ) -> bool:
        """Have records kept by the destination, and finish them; False if stopped before."""
        facts = {
            "shard": shard,
            "first": _first(piece),
            "last": piece.records[-1].number if piece.records else "the end of a window",
            "records": len(piece.records),
            "condition": condition,
        }
        if self._deliver is None:
            self._counts["discarded"] += len(piece.records)
            log.error("records were discarded, as configured", **facts)
        else:
            letter = write_letter(
                *(piece, _event(piece, windows)),
                condition=condition,
                outcome=outcome if piece.calls else Outcome(),
                shard=shard,
                stream=self._stream,
                arn=self._arn,
            )
            if not await self._delivered(self._deliver, letter):
                return False
            self._counts["set_aside"] += len(piece.records)
            log.error("records were given to the failure destination", **facts)
        if windows is not None and not piece.records:
            windows.close()
        await finished([record.number for record in piece.records])
        return True

    async def _delivered(self, deliver: Deliver, letter: Letter) -> bool:
        """Deliver until it works; False if stopped before. Without it, no record is passed."""
        backoff = Backoff(self._retry)
        while True:
            try:
                await deliver(letter)
            except StoppedError:
                return False
            except (OSError, UndeliveredError) as error:
                seconds = backoff.next_wait()
                assert seconds is not None
                is_told = isinstance(error, UndeliveredError)
                log.error(  # noqa: TRY400 - what it came from may quote the document
                    "the failure destination cannot be reached, trying again",
                    error=str(error) if is_told else type(error).__name__,
                    attempt=backoff.failures,
                    wait_seconds=round(seconds, 3),
                )
                if await stopped_within(self._stop, seconds):
                    return False
            else:
                return True


def _next(pending: deque[Piece], windows: Windows | None) -> Piece | None:
    """What is called next: before all else the end of a window whose state is too large."""
    ends = bool(pending) and not pending[0].records
    if windows is not None and windows.is_full and not ends:
        return Piece(())
    return pending.popleft() if pending else None


def _event(piece: Piece, windows: Windows | None) -> bytes:
    if windows is None or windows.open is None:
        return event_of(piece.records)
    return windows.event(piece.records)


def _first(piece: Piece) -> str:
    return piece.records[0].number if piece.records else "the end of a window"
