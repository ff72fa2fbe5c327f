"""Keeps the current state: one thread that reads the log and writes rows and progress together.

Exactly once: what is applied is told in the same transaction as the rows, so a crash at any point
repeats nothing. It runs where the log is served, not where it is captured: a state that is behind,
or that has no room, delays no source (invariant 8).
"""

import os
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self

import structlog
from msgspec import structs

from penstock.clocks import SystemClock, Trust
from penstock.errors import (
    AheadError,
    LogError,
    LogFullError,
    LogLockedError,
    PenstockError,
    ServiceUnavailableError,
    StateFailedError,
    StateIncompleteError,
    StreamChangedError,
    TrimmedError,
)
from penstock.folders import make_folder
from penstock.kv import Env, Transaction
from penstock.locks import hold
from penstock.ports import Bounds, Hold, SourceState
from penstock.progress import Progress
from penstock.state.apply import Applying, write_facts
from penstock.state.complete import require_complete
from penstock.state.config import StateConfig
from penstock.state.facts import Facts
from penstock.state.holding import write_holds
from penstock.state.layout import (
    BEFORE,
    DATABASES,
    DROPPED,
    FORMAT,
    ROWS,
    Applied,
    Name,
    number_key,
    number_of,
)
from penstock.state.looking import row_of
from penstock.state.reading import StateReading
from penstock.state.tables import open_state, read_applied, read_facts, state_path, write_applied
from penstock.subscribe.captures.past import Known
from penstock.subscribe.criteria import Criteria
from penstock.subscribe.current import CurrentStatus, Declared
from penstock.subscribe.resume import resume
from penstock.subscribe.shards import Shards
from penstock.wire import Block

logger = structlog.get_logger(__name__)

_EVENTS_MAX: Final = 20_000
_BYTES_MAX: Final = 8 << 20
"""How much of the log one transaction applies."""
_REMOVED_MAX: Final = 5_000
"""How many rows of a forgotten collection one transaction removes."""
_WAIT_SECONDS: Final = 0.5
_FULL_SECONDS: Final = 5.0
_RETRY_SECONDS: Final = 30.0
"""After an error that does not pass by itself: somebody may mend it meanwhile."""
_LOCK_NAME: Final = "writer.lock"
_OPEN_SECONDS: Final = 2.0
"""The error that follows is transient."""
_FOLLOW_SECONDS: Final = 60.0
"""How long who has all rows may take to begin following."""
_PASSING: Final = (LogError, TrimmedError)
"""What the log says while it is being opened, replaced or trimmed; their subclasses stay."""


class StateLog(Protocol):
    """What the keeper needs of a log, on its own thread."""

    def bounds_now(self) -> Bounds: ...

    def sources_now(self) -> list[SourceState]: ...

    def read_now(
        self, *, after: int, until: int | None = None, bytes_max: int = 1 << 20
    ) -> list[Block]: ...

    def check_at_now(self, sequence: int) -> int | None: ...

    def commit_end(self, *, after: int, events_max: int) -> int: ...

    def wait_now(self, *, after: int, timeout_seconds: float | None = None) -> bool: ...


class StateKeeper:
    """The only writer of the state of one log; a `subscribe.current.CurrentState`.

    `step` applies what there is; once started it does so on a thread, until closed. No error ends
    the thread: one that passes (no space, the log being replaced) is tried again soon, any other,
    a defect too, now and then; until then whoever opens a reading gets it, and `status` says it.
    """

    def __init__(
        self,
        log: StateLog,
        path: Path,
        config: StateConfig | None = None,
        *,
        wall_ms: Callable[[], int] | None = None,
    ) -> None:
        """`path` is that of the log; the state lies beside its files. What a reading holds begins
        and ends by `wall_ms`; None: by this machine's clock as far as it is believed (`Trust`)."""
        self._log = log
        self._config = config or StateConfig()
        trust = Trust(SystemClock())
        self._came_ms = wall_ms or trust.came_ms
        self._earliest_ms = wall_ms or trust.earliest_ms
        self._turn = threading.Condition()
        self._stopping = threading.Event()
        self._readings: list[StateReading] = []
        self._holds: dict[int, Hold] = {}
        """What readings hold of the log, by their ids; for a while after they ended, too."""
        self._ended: list[int] = []
        self._failure: PenstockError | None = None
        self._waits: PenstockError | None = None
        """What it waits for to pass; the rows that are here are right all the same."""
        self._doubtful = False
        """What is in memory may not be what was written: nobody reads until it was loaded again."""
        self._last_reading = 0
        self._thread: threading.Thread | None = None
        self._compared = False
        """What is applied was held against the log's entries, once."""
        self.path = state_path(path)
        make_folder(self.path, mode=0o700)
        self._lock = hold(
            self.path / _LOCK_NAME,
            refused=lambda owner: LogLockedError(
                f"process {owner} serves this log and keeps its current rows at {self.path}, which "
                f"have one writer. Nothing was changed. Stop that process, or set enabled = false "
                f"under [state] here."
            ),
        )
        try:
            self._env = open_state(self.path)
        except BaseException:
            os.close(self._lock)
            raise
        try:
            with self._env.write() as txn:
                # What was kept for readings that a crash ended.
                txn.drop(self._env[BEFORE], delete=False)
                write_holds(txn, self._env, ())
            self._applied, self._facts = self._loaded()
        except BaseException:
            self._release()
            raise

    def _release(self) -> None:
        self._env.close()
        os.close(self._lock)

    def start(self) -> None:
        """Apply on a thread, until closed."""
        self._thread = threading.Thread(target=self._run, name="penstock-state", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop after the write under way."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
        self._release()

    @property
    def applied(self) -> Applied:
        """How much of the log the state has."""
        return self._applied

    def status(self) -> CurrentStatus:
        """How far the state is, and what keeps it from going on. From any thread."""
        error = self._failure or self._waits
        return CurrentStatus(
            sequence=self._applied.sequence,
            code="" if error is None else error.code,
            message="" if error is None else str(error),
        )

    @property
    def facts(self) -> Facts:
        """What is known, for whoever also holds the keeper still."""
        return self._facts

    # --- writing --------------------------------------------------------------------------------

    def step(self) -> bool:
        """Apply the next entries in one transaction; False if there was nothing to do."""
        with self._turn:
            try:
                if self._doubtful:
                    self._reload()
                try:
                    return self._step()
                except BaseException:
                    # What the transaction undid must be undone here too, if not now then later.
                    self._doubtful = True
                    self._reload()
                    raise
            finally:
                self._turn.notify_all()

    def _step(self) -> bool:
        self._place()
        applied = self._applied
        end = self._log.commit_end(after=applied.sequence, events_max=_EVENTS_MAX)
        if end <= applied.sequence:
            return self._remove_some()
        blocks = self._log.read_now(after=applied.sequence, until=end, bytes_max=_BYTES_MAX)
        if not blocks or blocks[0].log_id != applied.log_id:
            return True  # the log was replaced between two looks: look again
        self._require_space(sum(block.nbytes for block in blocks))
        with self._env.write() as txn:
            applying = Applying(txn, self._env, self._facts, self._readings)
            applying.take(blocks)
            applying.finish()
            last = blocks[-1]
            i = last.stop - 1
            applied = structs.replace(
                applied,
                sequence=last.last_sequence,
                check=last.history(i),
                ends_commit=last.ends_commit(i),
                next_number=self._facts.next_number,
                renames_since=self._facts.renames_since,
            )
            write_applied(txn, self._env, applied)
        self._applied = applied
        return True

    def _place(self) -> None:
        """Hold what is applied against the log: it may have been trimmed past it, or replaced."""
        applied, bounds = self._applied, self._log.bounds_now()
        here = applied.log_id == bounds.log_id
        here = here and bounds.trimmed <= applied.sequence <= bounds.head
        # Files that were put back by hand make no other log, but may hold other entries.
        if here and (self._compared or self._log.check_at_now(applied.sequence) == applied.check):
            self._compared = True
            return
        marker = Progress(applied.log_id, applied.sequence, applied.check)
        with self._env.write() as txn:
            try:
                check = self._log.check_at_now(applied.sequence)
                place = resume(marker, bounds=bounds, check=check)
            except TrimmedError:
                logger.warning("state missed changes that were trimmed; copies are needed")
                place = Progress(bounds.log_id, bounds.trimmed, bounds.trimmed_check)
                for source in {*self._facts.sources, *(n.source for n in self._facts.collections)}:
                    self._facts.interrupted(source, by_us=True)
                self._facts.renames_since = place.sequence
                write_facts(txn, self._env, self._facts)
            except (StreamChangedError, AheadError):
                if applied.log_id:
                    logger.warning("state belongs to another log; it is built anew")
                place = Progress(bounds.log_id, bounds.trimmed, bounds.trimmed_check)
                for reading in self._readings:
                    reading.broken = True
                for name in DATABASES:
                    txn.drop(self._env[name], delete=False)
                self._holds = {}
                self._facts = Facts(
                    {}, {}, next_number=self._facts.next_number, renames_since=place.sequence
                )
            applied = structs.replace(
                applied,
                log_id=place.log_id,
                sequence=place.sequence,
                check=place.check,
                ends_commit=True,
                next_number=self._facts.next_number,
                renames_since=self._facts.renames_since,
            )
            write_applied(txn, self._env, applied)
        self._applied = applied
        self._compared = True

    def _reload(self) -> None:
        self._applied, self._facts = self._loaded()
        self._doubtful = False

    def _loaded(self) -> tuple[Applied, Facts]:
        with self._env.read() as txn:
            applied = read_applied(txn, self._env)
            facts = read_facts(txn, self._env)
        fresh = Applied(
            format=FORMAT, log_id=0, sequence=0, check=0, ends_commit=True, next_number=1
        )
        return applied or fresh, facts

    def _require_space(self, size: int) -> None:
        self._env.require_space(self._config.free_bytes_min, bytes_needed=size)

    def _remove_some(self) -> bool:
        """Remove some rows that nobody can read any more; False if there are none."""
        with self._env.read() as txn, txn.cursor(self._env[DROPPED]) as cursor:
            numbers = [number_of(key) for key in cursor.iternext(keys=True, values=False)]
        wanted = {number for reading in self._readings for number in reading.numbers}
        number = next((one for one in numbers if one not in wanted), None)
        if number is None and not self._ended:
            return False
        with self._env.write() as txn:
            if self._ended:
                if not _remove(txn, self._env, BEFORE, self._ended[0]):
                    self._ended.pop(0)
            elif number is not None and not _remove(txn, self._env, ROWS, number):
                txn.delete(number_key(number), db=self._env[DROPPED])
        return True

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                if self.step():
                    self._goes_on()
                    continue
                self._goes_on()
                self._log.wait_now(after=self._applied.sequence, timeout_seconds=_WAIT_SECONDS)
            except PenstockError as error:
                if error.transient or type(error) in _PASSING:
                    self._wait(error)
                else:
                    self._fail(error)
            except Exception as error:  # a defect here must not go unseen, nor end the streams
                # Where it happened, but not its text, which might quote a document.
                self._fail(
                    StateFailedError(error=type(error).__name__),
                    where=traceback.format_tb(error.__traceback__),
                )
            else:
                self._stopping.wait(self._config.interval)

    def _goes_on(self) -> None:
        if self._failure is not None:
            logger.info("state goes on")
        self._failure = self._waits = None

    def _wait(self, error: PenstockError) -> None:
        if self._waits is None:
            logger.warning("state waits", code=error.code)
        self._waits = error
        self._stopping.wait(_FULL_SECONDS if error.transient else _WAIT_SECONDS)

    def _fail(self, error: PenstockError, **where: object) -> None:
        if self._failure is None:
            logger.error("state stopped; it needs attention", code=error.code, **where)
        with self._turn:
            self._failure = error
            self._turn.notify_all()
        self._stopping.wait(_RETRY_SECONDS)

    # --- reading --------------------------------------------------------------------------------

    def open(self, criteria: Criteria) -> StateReading:
        """As `CurrentState.open`; waits a little while the state is within a commit, and where rows
        seem to be missing, for what the log has of them."""
        with self._turn:
            bounds = self._log.bounds_now()
            try:
                wanted = self._wanted(criteria)
            except StateIncompleteError:
                if self._has(bounds):
                    raise
                if not self._turn.wait_for(
                    lambda: self._has(bounds) or self._failure is not None, timeout=_OPEN_SECONDS
                ):
                    raise ServiceUnavailableError(
                        "the current rows are behind the log, and as of where they are not all "
                        "are known. Nothing was sent. Ask again in a moment; `penstock status` "
                        "shows how far they are."
                    ) from None
                wanted = self._wanted(criteria)
            return self._begin(wanted, criteria.shards)

    def look(
        self, name: tuple[str, str, str], spellings: Sequence[bytes], *, at: int | None = None
    ) -> Known | None:
        """As `CurrentRows.look`."""
        of = Name(*name)
        with self._turn:
            if self._doubtful or self._failure is not None:
                return None
            applied = self._applied
            if applied.log_id != self._log.bounds_now().log_id:
                return None
            if at is not None:
                now = self._facts.called_now(of, at=at)
                if now is None:
                    return Known(row=None, sequence=applied.sequence)
                of = now
            facts = self._facts.collections.get(of)
            if facts is None:
                whole = self._facts.source(of.source).whole_since
                return Known(row=None, sequence=applied.sequence) if whole else None
            if not facts.whole:
                return None
            with self._env.read() as txn:
                row = row_of(txn, self._env, of, facts.number, spellings)
            return Known(row=row, sequence=applied.sequence)

    def declared(self, source: str, *, at: int) -> list[Declared] | None:
        """As `CurrentState.declared`; waits a little for rows that are behind."""
        with self._turn:
            bounds = self._log.bounds_now()
            if at > bounds.head:
                return []  # whoever reads from there is told
            if not self._turn.wait_for(lambda: self._reaches(at, bounds), timeout=_OPEN_SECONDS):
                return None
            return [
                Declared(
                    database=name.database,
                    collection=name.collection,
                    varying=known.varying,
                    sequence=known.varying_since,
                )
                for name, known in self._facts.collections.items()
                if name.source == source and known.varying and known.varying_since <= at
            ]

    def _reaches(self, at: int, bounds: Bounds) -> bool:
        """Whether everything up to the sequence `at` is applied."""
        applied = self._applied
        here = applied.log_id == bounds.log_id and not self._doubtful
        return here and applied.sequence >= at

    def _wanted(self, criteria: Criteria) -> list[Name]:
        """The collections to read, between two commits."""
        if not self._turn.wait_for(self._between_commits, timeout=_OPEN_SECONDS):
            raise ServiceUnavailableError(
                "the current rows are within a large transaction. Nothing was sent. Ask again "
                "in a moment."
            )
        if self._failure is not None:
            raise self._failure
        sources = [state.source for state in self._log.sources_now()]
        return require_complete(self._facts, sources, criteria)

    def _has(self, bounds: Bounds) -> bool:
        """Whether everything up to the end of the log, as it was, is applied."""
        applied = self._applied
        return applied.log_id == bounds.log_id and applied.sequence >= bounds.head

    def _between_commits(self) -> bool:
        settled = self._applied.ends_commit and not self._doubtful
        return settled or self._failure is not None

    def _begin(self, wanted: Sequence[Name], shards: Shards | None) -> StateReading:
        self._last_reading += 1
        applied = self._applied
        names: Mapping[int, Name] = {self._facts.collections[one].number: one for one in wanted}
        reading = StateReading(
            self._env,
            reading=self._last_reading,
            names=names,
            progress=Progress(applied.log_id, applied.sequence, applied.check),
            shards=shards,
            bounds=self._log.bounds_now,
            closed=self._closed,
        )
        self._hold(reading, self._config.hold)
        self._readings.append(reading)
        return reading

    def _closed(self, reading: StateReading) -> None:
        with self._turn:
            if reading in self._readings:
                self._readings.remove(reading)
                self._ended.append(reading.id)
                self._hold(reading, _FOLLOW_SECONDS if reading.ended else 0)

    def _hold(self, reading: StateReading, seconds: float) -> None:
        """Have the log keep what follows a reading for so long from now; 0: no longer."""
        ended = self._earliest_ms()
        holds = {number: hold for number, hold in self._holds.items() if ended < hold.until_ms}
        holds.pop(reading.id, None)
        if seconds and self._config.hold:
            holds[reading.id] = Hold(
                sequence=reading.progress.sequence,
                until_ms=self._came_ms() + int(seconds * 1000),
                bytes_max=self._config.hold_bytes,
            )
        if holds == self._holds:
            return
        self._holds = holds
        try:
            with self._env.write() as txn:
                write_holds(txn, self._env, list(holds.values()))
        except LogFullError as error:
            # The reading finds out for itself whether it was overtaken; what stays ends in time.
            logger.warning("what a reading needs of the log is not held", code=error.code)


def _remove(txn: Transaction, env: Env, database: bytes, number: int) -> bool:
    """Remove some of what lies under a number; False once nothing is left."""
    prefix = number_key(number)
    with txn.cursor(env[database]) as cursor:
        found = cursor.set_range(prefix)
        for _ in range(_REMOVED_MAX):
            if not (found and cursor.key().startswith(prefix)):
                return False
            found = cursor.delete()
    return True
