"""The one thread that writes the log: appends of all sources meet here and become durable together.

Each round takes the jobs that wait, applies them in one LMDB write transaction (entries, positions
and the log's state together) and only then says that they are done. What a transaction would
change lives in a `_Draft`; it becomes the truth when the transaction is durable, and is forgotten
when it fails.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final

from penstock.errors import LogError
from penstock.kv import Env, Transaction
from penstock.log.assemble import Head, Item, Staging, finish, moved, pack_commits, stage
from penstock.log.config import LogConfig
from penstock.log.layout import (
    ENTRIES,
    EXTENTS,
    META,
    POSITIONS,
    STATE_KEY,
    Pointer,
    State,
    entry_key,
    pack_source,
    row_key,
)
from penstock.log.retention import Clock, Trust
from penstock.log.trimming import Trimmer
from penstock.log.wake import Bell
from penstock.ports import SourceState
from penstock.telemetry import APPEND_SECONDS, LOG_BYTES, LOG_HEAD_SEQUENCE, LOG_TRIMMED_SEQUENCE
from penstock.wire import EncodedCommit

GROUP_BYTES_MAX: Final = 8 << 20
"""A group commit closes here, so that nobody waits long behind a large one."""
_QUEUE_BYTES_MAX: Final = 32 << 20
_TICK_SECONDS: Final = 1.0
_READER_CHECK_SECONDS: Final = 10.0


class Draft:
    """What a write transaction is about to make true."""

    def __init__(
        self,
        state: State,
        sources: dict[str, SourceState],
        stagings: dict[str, Staging],
        dropped: deque[int],
        next_extent: int,
    ) -> None:
        self.state = state
        self.sources = dict(sources)
        self.stagings = dict(stagings)
        self.dropped = deque(dropped)
        self.next_extent = next_extent
        self.moved: set[str] = set()
        self.inline: list[EncodedCommit] = []
        self.blocks = 0
        self.now = 0

    def head(self) -> Head:
        return Head(self.state.head, self.state.head_commit, self.state.head_check)

    def set_head(self, head: Head) -> None:
        self.state = self.state._replace(
            head=head.sequence, head_commit=head.commit, head_check=head.check
        )

    def drop_staging(self, key: str) -> None:
        staging = self.stagings.pop(key, None)
        if staging is not None:
            self.dropped.append(staging.extent)


Change = Callable[["Applied"], None]
"""A job: what it does inside the write transaction."""


class Applied:
    """A draft inside its write transaction."""

    def __init__(self, txn: Transaction, env: Env, draft: Draft) -> None:
        self.txn = txn
        self.env = env
        self.draft = draft

    def append(self, items: list[Item]) -> None:
        """Entries and positions of `items`, in order."""
        for item in items:
            part = item.part
            staging = self.draft.stagings.get(item.staging)
            if part.position is None or staging is not None:
                staging = self._stage(item, staging)
                if part.position is not None:
                    self._publish(part, part.position, staging)
            else:
                self.draft.inline.append(part)
                self._move(part.source, part.position, len(part.events), part.last_timestamp)

    def _stage(self, item: Item, staging: Staging | None) -> Staging:
        """Stage a part. If it ends its commit, the staging is the caller's to publish."""
        draft = self.draft
        if staging is None:
            staging = Staging(extent=draft.next_extent)
            draft.next_extent += 1
        blocks, staging = stage(staging, item.part)
        for block in blocks:
            key = row_key(staging.extent, block.last, block.rows)
            self.txn.put(key, block.data, db=self.env[EXTENTS])
        draft.blocks += len(blocks)
        if item.part.position is None:
            draft.stagings[item.staging] = staging
        else:
            draft.stagings.pop(item.staging, None)
        return staging

    def _publish(self, part: EncodedCommit, position: str, staging: Staging) -> None:
        """The last block, and the pointer that makes the whole commit visible at once."""
        rows = 0
        if staging.held:
            self.flush()
            rows = self._point_at(staging)
        # Fragments without events were a heartbeat after all.
        self._move(part.source, position, rows, staging.last_timestamp)

    def _point_at(self, staging: Staging) -> int:
        draft, done = self.draft, finish(staging)
        key = row_key(staging.extent, done.block.last, done.block.rows)
        self.txn.put(key, done.block.data, db=self.env[EXTENTS])
        self.txn.put(row_key(staging.extent, 0, 0), b"", db=self.env[EXTENTS])
        rows = done.summary.rows
        head = Head(draft.state.head + rows, draft.state.head_commit + 1, done.check)
        pointer = Pointer(
            extent=staging.extent,
            rows=rows,
            digest=done.summary.digest,
            commit=head.commit,
            ingested_at=draft.now,
            stored_bytes=done.bytes,
        )
        entries = self.env[ENTRIES]
        self.txn.put(entry_key(head.sequence, rows), pointer.pack(), append=True, db=entries)
        draft.set_head(head)
        return rows

    def flush(self) -> None:
        """Write the inline commits gathered so far, sharing blocks."""
        draft = self.draft
        packed, head = pack_commits(draft.inline, after=draft.head(), ingested_at=draft.now)
        entries = self.env[ENTRIES]
        for block in packed:
            # `append` also proves the order: LMDB refuses a key that is not the greatest.
            self.txn.put(entry_key(block.last, block.rows), block.data, append=True, db=entries)
        draft.blocks += len(packed)
        draft.inline.clear()
        draft.set_head(head)

    def _move(self, source: str, position: str, events: int, last_timestamp: int) -> None:
        draft = self.draft
        draft.moved.add(source)
        draft.sources[source] = moved(
            draft.sources.get(source),
            source,
            position=position,
            events=events,
            last_timestamp=last_timestamp,
            now=draft.now,
        )

    def set_position(self, source: str, position: str | None) -> None:
        """Move a source by hand; None forgets it."""
        draft = self.draft
        draft.moved.add(source)
        if position is None:
            draft.sources.pop(source, None)
            return
        draft.sources[source] = moved(
            draft.sources.get(source),
            source,
            position=position,
            events=0,
            last_timestamp=0,
            now=draft.now,
        )

    def seal(self) -> None:
        """Write what belongs to the transaction as a whole."""
        self.flush()
        for source in self.draft.moved:
            state = self.draft.sources.get(source)
            if state is None:
                self.txn.delete(source.encode(), db=self.env[POSITIONS])
            else:
                self.txn.put(source.encode(), pack_source(state), db=self.env[POSITIONS])
        self.txn.put(STATE_KEY, self.draft.state.pack(), db=self.env[META])


class _Job:
    """A change that somebody waits for."""

    def __init__(self, change: Change, bytes_: int, *, space: bool) -> None:
        self.change = change
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
    ) -> None:
        self._env = env
        self._config = config
        self._clock = clock
        self._trimmer = Trimmer(env, config, clock, Trust(clock))
        self._truth = draft
        self._on_commit = on_commit
        self._turn = threading.Condition()
        self._queue: deque[_Job] = deque()
        self._queued_bytes = 0
        self._closing = False
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

    def stages(self, key: str) -> bool:
        """Whether a commit is being staged under `key`."""
        return key in self._truth.stagings

    def full(self) -> bool:
        return self._queued_bytes > _QUEUE_BYTES_MAX

    def submit(self, change: Change, *, bytes_: int = 0, space: bool = True) -> Future[None]:
        """Have `change` applied after everything submitted before; done when it is durable.

        `space` False is for what makes space: it may go below the floor of free space.
        """
        job = _Job(change, bytes_, space=space)
        with self._turn:
            if self._closing:
                raise LogError(f"the log at {self._env.path} is closed; nothing was written")
            self._queue.append(job)
            self._queued_bytes += bytes_
            self._turn.notify()
        return job.done

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
        while True:
            jobs = self._take()
            if jobs:
                self._commit(jobs)
            elif self._closing:
                return
            self._housekeep()

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
            self._write(jobs)
        except Exception as error:  # whoever waits raises it
            if len(jobs) > 1:
                # Another's job may be the one that cannot be written: each gets its own answer.
                for job in jobs:
                    self._commit([job])
                return
            jobs[0].done.set_exception(error)
            return
        for job in jobs:
            job.done.set_result(None)
        self._on_commit()
        APPEND_SECONDS.observe(time.perf_counter() - jobs[0].submitted)

    def _write(self, jobs: list[_Job]) -> None:
        if any(job.space for job in jobs):
            self._env.require_space(self._config.free_bytes_min)
        draft = self._draft()
        with self._env.write() as txn:
            applied = Applied(txn, self._env, draft)
            for job in jobs:
                job.change(applied)
            applied.flush()
            self._trimmer.step(applied)
            applied.seal()
        self._keep(draft)

    def _draft(self) -> Draft:
        truth = self._truth
        draft = Draft(truth.state, truth.sources, truth.stagings, truth.dropped, truth.next_extent)
        draft.now = self._clock.wall_ms()
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
            if self._trimmer.wanted(self._truth):
                draft = self._draft()
                with self._env.write() as txn:
                    applied = Applied(txn, self._env, draft)
                    self._trimmer.step(applied)
                    applied.seal()
                self._keep(draft)
        except LogError:
            # A full disk refuses this too: appends say so, and the next tick tries again.
            self._trimmer.pending = False


async def durable(done: "Future[None]") -> None:
    """Wait for a submitted change. Cancelling the wait does not cancel the change."""
    await asyncio.shield(asyncio.wrap_future(done))
