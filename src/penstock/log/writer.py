"""The one thread that writes the log: appends of all sources meet here and become durable together.

Each round takes the jobs that wait, applies them in one LMDB write transaction (entries, positions
and the log's state together) and only then says that they are done. What a transaction would
change lives in a `Draft` (`draft.py`); it becomes the truth when the transaction is durable, and is
forgotten when it fails.
"""

import asyncio
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Final

import structlog

from penstock.clocks import Clock, Trust
from penstock.disks import space
from penstock.errors import LogError, LogFullError
from penstock.kv import Env
from penstock.log.config import LogConfig
from penstock.log.draft import Applied, Change, Draft, load
from penstock.log.layout import State
from penstock.log.recovery import newest_ms
from penstock.log.retention import within_disk
from penstock.log.trimming import Trimmer
from penstock.ports import Hold, SourceState
from penstock.telemetry import APPEND_SECONDS, LOG_BYTES, LOG_HEAD_SEQUENCE, LOG_TRIMMED_SEQUENCE
from penstock.wake import Bell

GROUP_BYTES_MAX: Final = 8 << 20
"""A group commit closes here, so that nobody waits long behind a large one."""
_QUEUE_BYTES_MAX: Final = 32 << 20
_TICK_SECONDS: Final = 1.0
_READER_CHECK_SECONDS: Final = 10.0

_log = structlog.get_logger()


class _Job:
    """A change that somebody waits for."""

    def __init__(
        self, change: Change, bytes_: int, *, space: bool, forgets: str | None = None
    ) -> None:
        self.change = change
        self.forgets = forgets
        """The staging that it drops, when that is all it does."""
        self.bytes = bytes_
        self.space = space
        self.done: Future[None] = Future()
        self.done.set_running_or_notify_cancel()
        self.submitted = time.perf_counter()


class Writer:
    """Owns the write side of one open log."""

    def __init__(
        self,
        env: Env,
        config: LogConfig,
        clock: Clock,
        *,
        draft: Draft,
        on_commit: Callable[[], None],
        trims: bool = True,
    ) -> None:
        self._env = env
        self._config = config
        self._clock = clock
        kept = within_disk(config, space(env.path).total)
        self._trust = Trust(clock, newest_ms=newest_ms(env, draft.sources.values()))
        self._trimmer = Trimmer(env, kept, clock, self._trust)
        self._trimmer.begun = trims
        self._truth = draft
        self._openings = env.openings
        self._on_commit = on_commit
        self._turn = threading.Condition()
        self._queue: deque[_Job] = deque()
        self._queued_bytes = 0
        self._closing = False
        self._taken: list[_Job] = []
        self._died: BaseException | None = None
        self.room = Bell()
        self._readers_checked = self._house_kept = clock.steady_seconds()
        self._thread = threading.Thread(target=self._run, name="penstock-log", daemon=True)
        self._thread.start()

    # --- what others see ------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """Of the last durable commit."""
        return self._truth.state

    @property
    def sources(self) -> dict[str, SourceState]:
        """Of the last durable commit; not to be changed."""
        return self._truth.sources

    @property
    def age_paused(self) -> bool:
        return self._trimmer.age_paused

    def retain(self, config: LogConfig) -> None:
        """Trim by the limits of `config` from the next step on."""
        self._trimmer.config = within_disk(config, space(self._env.path).total)

    def held_by(self, look: Callable[[int], Hold | None]) -> None:
        """Ask `look`, too, on this thread, what retention must leave alone."""
        self._trimmer.looks.append(look)

    def earliest_ms(self) -> int:
        """As `Trust.earliest_ms`, on this thread."""
        return self._trust.earliest_ms()

    def begin_trimming(self) -> None:
        """Let retention choose from now on."""
        self._trimmer.begun = True

    def stages(self, key: str) -> bool:
        """Whether a commit is being staged under `key`."""
        return key in self._truth.stagings

    def full(self) -> bool:
        return self._queued_bytes > _QUEUE_BYTES_MAX

    def submit(self, change: Change, *, bytes_: int = 0, space: bool = True) -> Future[None]:
        """Have `change` applied after everything submitted before; done when it is durable.

        `space` False is for what makes space: it may go below the floor of free space.
        """
        return self._enqueue(_Job(change, bytes_, space=space))

    def forget(self, key: str) -> Future[None]:
        """Drop the staging under `key`, after everything submitted before.

        What is staged is known here only, so that no disk can refuse this; pages go later.
        """
        job = _Job(lambda applied: applied.draft.forget(key), 0, space=False, forgets=key)
        return self._enqueue(job)

    def _enqueue(self, job: _Job) -> Future[None]:
        with self._turn:
            if self._died is not None:
                raise self._death()
            if self._closing:
                raise LogError(f"the log at {self._env.path} is closed; nothing was written")
            self._queue.append(job)
            self._queued_bytes += job.bytes
            self._turn.notify()
        return job.done

    def require_alive(self) -> None:
        """Raise LogError if the writer's thread died: nothing will be written any more."""
        if self._died is not None:
            raise self._death()

    def _death(self) -> LogError:
        return LogError(
            f"the writer of the log at {self._env.path} stopped on a defect "
            f"({type(self._died).__name__}). Nothing unfinished was kept and everything "
            f"acknowledged before is safe. Restart `penstock run`, and please report it."
        )

    def trim(self, applied: Applied, until: int) -> None:
        """Move the watermark, inside a submitted change."""
        self._trimmer.trim(applied, until)

    def close(self) -> None:
        """Finish what was submitted, then stop."""
        with self._turn:
            self._closing = True
            self._turn.notify()
        self._thread.join()

    # --- the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._rounds()
        except BaseException as error:
            self._die(error)

    def _rounds(self) -> None:
        while True:
            jobs = self._taken = self._take()
            if jobs:
                self._commit(jobs)
            elif self._closing:
                return
            self._taken = []
            self._housekeep()

    def _die(self, error: BaseException) -> None:
        """Nobody may wait for a thread that is gone: all who do are told, and all who come."""
        where = traceback.format_tb(error.__traceback__)
        _log.error("the log's writer died", error=type(error).__name__, where=where)
        with self._turn:
            self._died = error
            jobs = [*self._taken, *self._queue]
            self._queue.clear()
            self._queued_bytes = 0
        for job in jobs:
            if not job.done.done():
                job.done.set_exception(self._death())
        self.room.ring()

    def _take(self) -> list[_Job]:
        """The jobs of the next group commit; none when it is time to look after the house."""
        jobs: list[_Job] = []
        size = 0
        with self._turn:
            if not self._queue and not self._closing:
                self._turn.wait(0 if self._trimmer.pending else _TICK_SECONDS)
            while self._queue and size < GROUP_BYTES_MAX:
                job = self._queue.popleft()
                jobs.append(job)
                size += job.bytes
            self._queued_bytes -= size
        if size:
            self.room.ring()
        return jobs

    def _commit(self, jobs: list[_Job]) -> None:
        try:
            self._refresh()
            self._write(jobs)
        except Exception as error:  # whoever waits raises it
            if len(jobs) == 1:
                jobs[0].done.set_exception(error)
                return
            # Another's job may be the one that cannot be written: each gets its own answer.
            for job in jobs:
                self._commit_again(job, error)
            return
        self._settle(jobs)

    def _commit_again(self, job: _Job, error: Exception) -> None:
        """Write a job of a group that failed, but not after a new start of LMDB: the group may
        have been kept after all. `_write` itself refuses then, until `_refresh`."""
        if self._env.openings != self._openings:
            job.done.set_exception(error)
            return
        try:
            self._write([job])
        except Exception as own:  # whoever waits raises it
            job.done.set_exception(own)
            return
        self._settle([job])

    def _settle(self, jobs: list[_Job]) -> None:
        for job in jobs:
            job.done.set_result(None)
        self._on_commit()
        APPEND_SECONDS.observe(time.perf_counter() - jobs[0].submitted)

    def _refresh(self) -> None:
        """Read the truth again if LMDB was started anew: a write that failed may have been kept.

        A source whose position turns out to be another one than it was told, or whose commit was
        being staged, must start over: `forget` says that it does.
        """
        if self._env.openings == self._openings:
            return
        known = self._truth
        with self._env.read() as txn:
            openings = self._env.openings
            draft = load(txn, self._env)
        changed = {
            source
            for source in {*known.sources, *draft.sources}
            if known.sources.get(source) != draft.sources.get(source)
        }
        draft.broken = known.broken | known.stagings.keys() | changed
        self._keep(draft)
        self._openings = openings
        self._on_commit()

    @contextmanager
    def _transaction(self) -> Generator[Applied]:
        """A write on top of the truth, which it becomes when the block ends."""
        draft = self._draft()
        with self._env.write() as txn:
            if self._env.openings != self._openings:
                raise LogFullError(
                    f"{self._env.path} was opened anew after the disk failed; nothing of this "
                    f"write was kept and everything acknowledged before is safe. Writing goes on "
                    f"by itself."
                )
            applied = Applied(txn, self._env, draft)
            yield applied
            self._trimmer.step(applied)
            applied.seal()
        self._keep(draft)

    def _write(self, jobs: list[_Job]) -> None:
        forgotten = [job.forgets for job in jobs if job.forgets is not None]
        if len(forgotten) == len(jobs):
            draft = self._draft()
            for key in forgotten:
                draft.forget(key)
            self._keep(draft)
            return
        if any(job.space for job in jobs):
            size = sum(job.bytes for job in jobs)
            self._env.require_space(self._config.free_bytes_min, bytes_needed=size)
        with self._transaction() as applied:
            for job in jobs:
                job.change(applied)
            applied.flush()

    def _draft(self) -> Draft:
        truth = self._truth
        draft = Draft(
            truth.state,
            truth.sources,
            truth.stagings,
            truth.dropped,
            truth.next_extent,
            frozenset(truth.broken),
            truth.newest_ms,
        )
        draft.now, draft.came_ms = self._clock.wall_ms(), self._trust.came_ms()
        return draft

    def _keep(self, draft: Draft) -> None:
        self._truth = draft
        LOG_HEAD_SEQUENCE.set(draft.state.head)
        LOG_TRIMMED_SEQUENCE.set(draft.state.trimmed)
        LOG_BYTES.set(self._trimmer.bytes)

    def _housekeep(self) -> None:
        """Retention while nobody appends, and the slots of dead readers."""
        now = self._clock.steady_seconds()
        if self._queue or not (self._trimmer.pending or now >= self._house_kept + _TICK_SECONDS):
            return
        self._house_kept = now
        try:
            if now - self._readers_checked >= _READER_CHECK_SECONDS:
                self._readers_checked = now
                self._env.reader_check()
            self._refresh()
            if self._trimmer.wanted(self._truth):
                with self._transaction():
                    pass  # a transaction's step of trimming is all there is to do
        except LogError:
            # A full disk refuses this too: appends say so, and the next tick tries again.
            self._trimmer.pending = False


async def durable(done: "Future[None]") -> None:
    """Wait for a submitted change. Cancelling the wait does not cancel the change."""
    await asyncio.shield(asyncio.wrap_future(done))
