"""Pipelines, as their drivers say: how far each has come, and what the log holds for it.

Written into the environment of consumers, whose only writer is the serve process; what retention
must leave alone is written with it, for the process that trims the log. A place that moved on is
written once a second: a crash that takes it back only holds a little more of the log. Everything
else is durable when the driver is answered.
"""

import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final, Protocol

import msgspec
import structlog
from msgspec import Struct, structs

from penstock.client.pipelines import (
    AWAY_SECONDS,
    PipelineAnswer,
    PipelineOrder,
    PipelineStatus,
    PipelineTold,
)
from penstock.errors import LogFullError, PartialViewError, RequestError, TrimmedError
from penstock.holds import WrittenHolds, dating, now_ms
from penstock.kv import Env, exists, open_env
from penstock.ports import Bounds, Hold
from penstock.progress import Progress
from penstock.serve.access.actions import kept_of
from penstock.subscribe.resume import resume
from penstock.subscribe.scope import Scope
from penstock.wire import Block

log = structlog.get_logger(__name__)

PIPELINES: Final = b"pipelines"
_BOOK_KEY: Final = b"book"
_HOLDS_KEY: Final = b"holds"
_MAP_BYTES: Final = 1 << 30
_WRITE_SECONDS: Final = 1.0
_KEPT: Final = kept_of("flight pipeline")


class PipelineRecord(Struct, frozen=True, kw_only=True, rename="camel"):
    """A pipeline, and what the service knows besides what its driver said last."""

    told: PipelineTold
    told_at: int
    began_at: int
    """When this run said something first."""
    stop_run: str = ""
    """The run that is to stop."""
    who: str = ""
    """Who told it first; empty where nobody is asked who they are."""


_decoder: Final = msgspec.json.Decoder(tuple[PipelineRecord, ...])


class PlacedLog(Protocol):
    """What is asked of the log here."""

    def bounds_now(self) -> Bounds: ...

    def read_now(
        self, *, after: int, until: int | None = None, bytes_max: int = 1 << 20
    ) -> list[Block]: ...

    def check_at_now(self, sequence: int) -> int | None: ...


class PipelineBook:
    """All pipelines that ever said something. Safe for any number of threads."""

    def __init__(
        self,
        path: Path,
        reader: PlacedLog,
        *,
        hold_seconds: float,
        hold_bytes: int,
        wall_ms: Callable[[], int] | None = None,
        steady_seconds: Callable[[], float] = time.monotonic,
        log_bytes: Callable[[], int] = lambda: 0,
    ) -> None:
        """`path` is where the serve process writes who reads the log; `log_bytes` is what the log
        takes up, and `wall_ms` the time that what is told is dated by; None: `holds.dating`."""
        self._reader = reader
        self._hold_seconds = hold_seconds
        self._hold_bytes = hold_bytes
        self._wall_ms = wall_ms or dating()
        self._steady_seconds = steady_seconds
        self._log_bytes = log_bytes
        self._lock = threading.Lock()
        self._env = open_env(path, map_bytes=_MAP_BYTES, create=True)
        self._env.databases([PIPELINES], create=True)
        with self._env.read() as txn:
            written = txn.get(_BOOK_KEY, db=self._env[PIPELINES])
        records = () if written is None else _decoder.decode(written)
        self._records = {one.told.pipeline: one for one in records}
        self._written_at = float("-inf")

    def close(self) -> None:
        """Write what has moved on, if there is space, and let go."""
        with self._lock:
            try:
                self._write(self._records)
            except LogFullError as error:
                # The places that are there only hold more of the log than they must.
                log.warning("places of pipelines not written", code=error.code)
            finally:
                self._env.close()

    def tell(self, told: PipelineTold, scope: Scope, who: str = "") -> PipelineAnswer:
        """Take what a driver says, if `scope` lets it read all that it speaks of.

        Raises PartialViewError; StreamChangedError or AheadError for a place that is not of this
        log; RequestError where there are too many pipelines; LogFullError where what must be
        durable cannot be written.
        """
        self._require(told, scope)
        told = structs.replace(told, place=self._placed(told.place))
        with self._lock:
            before = self._records.get(told.pipeline)
            if before is not None and not scope.shows_all_of(before.told.source):
                raise PartialViewError(source=before.told.source)
            if before is None:
                self._require_room(told, who)
            now = self._wall_ms()
            same = before is not None and before.told.run == told.run
            record = PipelineRecord(
                told=told,
                told_at=now,
                began_at=before.began_at if before is not None and same else now,
                stop_run="" if before is None else before.stop_run,
                who=who if before is None else before.who,
            )
            records = {**self._records, told.pipeline: record}
            if (
                before is None
                or not same
                or told.state != before.told.state
                or told.place.log_id != before.told.place.log_id
                or told.place.sequence < before.told.place.sequence
                or told.oldest != before.told.oldest
                or self._steady_seconds() - self._written_at >= _WRITE_SECONDS
            ):
                self._write(records)
            self._records = records
        return PipelineAnswer(stop=record.stop_run == told.run)

    def order(self, order: PipelineOrder, scope: Scope) -> None:
        """Remember that a run is to stop, or forget a pipeline that does not run; durably.

        Raises RequestError where there is no such pipeline, or its state does not allow it.
        """
        with self._lock:
            record = self._records.get(order.pipeline)
            if record is None or not _shown(record, scope):
                raise RequestError(
                    f"the service knows no pipeline {order.pipeline!r}: none of that name has "
                    f"told it how far it is. Nothing was changed. `penstock pipeline list` has "
                    f"their names."
                )
            state = self._state(record, self._wall_ms())
            records = dict(self._records)
            if order.order == "stop":
                if state not in {"running", "away"}:
                    raise RequestError(
                        f"pipeline {order.pipeline} does not run: its last run has {state}. "
                        f"Nothing was changed."
                    )
                records[order.pipeline] = structs.replace(record, stop_run=record.told.run)
            else:
                if state == "running":
                    raise RequestError(
                        f"pipeline {order.pipeline} is running, and would be known again at once. "
                        f"Nothing was changed. Stop it first: penstock pipeline stop "
                        f"{order.pipeline}."
                    )
                del records[order.pipeline]
            self._write(records)
            self._records = records

    def status(self, scope: Scope) -> list[PipelineStatus]:
        """How the pipelines are of whose sources `scope` shows something; by name."""
        with self._lock:
            records = [one for one in self._records.values() if _shown(one, scope)]
            now = self._wall_ms()
        bounds = self._reader.bounds_now()
        kept_bytes = self._log_bytes()
        return [
            self._status(one, bounds, now, kept_bytes)
            for one in sorted(records, key=lambda one: one.told.pipeline)
        ]

    def _require_room(self, told: PipelineTold, who: str) -> None:
        of_one = sum(one.who == who for one in self._records.values())
        if len(self._records) >= _KEPT.names_max or (who and of_one >= _KEPT.of_one_max):
            raise RequestError(
                f"{_KEPT.names_max} pipelines are remembered, of one token {_KEPT.of_one_max}, and "
                f"{told.pipeline} would be one more. Nothing is held for it. Forget one: penstock "
                f"pipeline forget NAME."
            )

    def _require(self, told: PipelineTold, scope: Scope) -> None:
        texts = (told.pipeline, told.source, told.run, told.to, told.code, told.verify_code)
        if not (told.pipeline and told.source) or max(map(len, texts)) > _KEPT.name_length_max:
            raise RequestError(
                f"a pipeline has a source, and a name of 1 to {_KEPT.name_length_max} characters; "
                f"neither may what it says of its run be longer. Nothing was changed."
            )
        if not scope.shows_all_of(told.source):
            raise PartialViewError(source=told.source)

    def _placed(self, place: Progress) -> Progress:
        """The place as this log names it; one that retention has passed stays what it is."""
        check = self._reader.check_at_now(place.sequence)
        bounds = self._reader.bounds_now()
        try:
            return resume(place, bounds=bounds, check=check)
        except TrimmedError:
            return place

    def _state(self, record: PipelineRecord, now: int) -> str:
        silent = now - record.told_at > AWAY_SECONDS * 1000
        return "away" if record.told.state == "running" and silent else record.told.state

    def _status(
        self, record: PipelineRecord, bounds: Bounds, now: int, kept_bytes: int
    ) -> PipelineStatus:
        told, place = record.told, record.told.place
        ours = place.log_id == bounds.log_id
        follows = max(place.sequence, bounds.trimmed) if ours else bounds.trimmed
        lag = max(0, bounds.head - follows)
        trimmed = ours and place.sequence < bounds.trimmed and not told.oldest
        return PipelineStatus(
            pipeline=told.pipeline,
            source=told.source,
            to=told.to,
            state=self._state(record, now),
            code=told.code,
            stopping=told.state == "running" and record.stop_run == told.run,
            progress=str(place),
            sequence=place.sequence,
            lag_entries=max(0, bounds.head - place.sequence),
            lag_seconds=self._waited(follows, now) if lag else 0.0,
            trimmed=trimmed,
            # What it lacks is gone: it holds nothing any more.
            held_bytes=0 if trimmed else kept_bytes * lag // max(1, bounds.head - bounds.trimmed),
            held_until_ms=0 if trimmed else self._until(record),
            told_at_ms=record.told_at,
            began_at_ms=record.began_at,
            batches=told.batches,
            entries=told.entries,
            rows=told.rows,
            rejected=told.rejected,
            batch_seconds=told.batch_seconds,
            entries_per_second=told.entries_per_second,
            verified_at_ms=told.verified_at_ms,
            differences=told.differences,
            verify_code=told.verify_code,
            lost=told.lost,
            untidied=told.untidied,
        )

    def _waited(self, after: int, now: int) -> float:
        """Since when the entry that follows is in the log."""
        try:
            (block, *_) = self._reader.read_now(after=after, bytes_max=1)
        except (TrimmedError, ValueError):
            return 0.0  # retention has overtaken the question, and the next one finds it
        return max(0, now - block.ingested_at) / 1000

    def _until(self, record: PipelineRecord) -> int:
        return record.told_at + int(self._hold_seconds * 1000)

    def _write(self, records: Mapping[str, PipelineRecord]) -> None:
        bounds = self._reader.bounds_now()
        # A log that was restored goes on from another: places that both share resume here, too.
        shared = {one.log_id: one.head for one in bounds.ancestors} | {bounds.log_id: bounds.head}
        holds = [
            Hold(
                sequence=one.told.place.sequence,
                until_ms=self._until(one),
                bytes_max=self._hold_bytes,
                oldest=one.told.oldest,
            )
            for one in records.values()
            if one.told.place.sequence <= shared.get(one.told.place.log_id, -1)
        ]
        with self._env.write() as txn:
            db = self._env[PIPELINES]
            txn.put(_BOOK_KEY, msgspec.json.encode(list(records.values())), db=db)
            txn.put(_HOLDS_KEY, msgspec.json.encode(holds), db=db)
        self._written_at = self._steady_seconds()


class PipelineHolds(WrittenHolds):
    """What the log must not trim for pipelines, as the process that serves writes it."""

    def __init__(
        self,
        path: Path,
        *,
        wall_ms: Callable[[], int] = now_ms,
        steady_seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        """`path` is where the serve process writes who reads the log."""
        super().__init__(
            partial(_find, path),
            database=PIPELINES,
            key=_HOLDS_KEY,
            wall_ms=wall_ms,
            steady_seconds=steady_seconds,
        )


def _shown(record: PipelineRecord, scope: Scope) -> bool:
    return scope.administers or scope.allows_source(record.told.source)


def _find(path: Path) -> Env | None:
    if not exists(path):
        return None
    env = open_env(path, map_bytes=_MAP_BYTES, create=False)
    if not env.databases([PIPELINES], create=False):
        env.close()
        return None
    return env
