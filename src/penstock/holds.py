"""What others need of the log, as they write it beside the log, for the process that trims it."""

import threading
import time
from collections.abc import Callable
from typing import Final

import msgspec
import structlog
from msgspec import structs

from penstock.clocks import SystemClock, Trust
from penstock.errors import PenstockError
from penstock.kv import Env
from penstock.ports import Hold

_LOOK_SECONDS: Final = 0.25
"""What is held is near the log's head when it begins, so it may be looked at a little later."""
SEEN_SECONDS: Final = 2 * _LOOK_SECONDS
"""By then whoever trims the log has seen what was written."""
_EVERYTHING: Final = Hold(sequence=0, until_ms=1 << 62, bytes_max=1 << 62)
_holds: Final = msgspec.json.Decoder(tuple[Hold, ...])

log = structlog.get_logger(__name__)


def now_ms() -> int:
    """Unix milliseconds."""
    return time.time_ns() // 1_000_000


def dating() -> Callable[[], int]:
    """The clock by which whoever holds something says until when: `Trust.came_ms`.

    By a wall clock that was set back it would be held until a time that is over once that clock is
    set right, though nobody had let go of it.
    """
    return Trust(SystemClock()).came_ms


class WrittenHolds:
    """Holds, as JSON under one key of an environment that another process writes.

    Safe for any number of threads. An environment that is not there holds nothing, nor does one
    that was closed. One that cannot be read holds everything, as far as holds may, until it can:
    nobody knows what is in it.
    """

    def __init__(
        self,
        find: Callable[[], Env | None],
        *,
        database: bytes,
        key: bytes,
        wall_ms: Callable[[], int] = now_ms,
        steady_seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        """`find` opens the environment; None as long as there is none."""
        self._find = find
        self._database = database
        self._key = key
        self._wall_ms = wall_ms
        self._steady_seconds = steady_seconds
        self._lock = threading.Lock()
        self._closed = False
        self._env: Env | None = None
        self._looked = float("-inf")
        self._seen: tuple[Hold, ...] = ()
        self._failed = ""

    def __call__(self, trimmed: int = 0) -> Hold | None:
        """The hold that reaches furthest back; `trimmed` is how far retention has come.

        Whoever it has overtaken is told so, must begin anew, and holds nothing any more; but who
        is about to begin with the oldest entry holds that.
        """
        with self._lock:
            steady = self._steady_seconds()
            if not self._closed and steady - self._looked >= _LOOK_SECONDS:
                self._looked = steady
                self._look()
            if self._failed:
                return _EVERYTHING
            now = self._wall_ms()
            valid = [
                structs.replace(hold, sequence=max(hold.sequence, trimmed))
                for hold in self._seen
                if now < hold.until_ms and (hold.oldest or hold.sequence >= trimmed)
            ]
            return min(valid, key=lambda hold: hold.sequence, default=None)

    def close(self) -> None:
        """Let go of the environment."""
        with self._lock:
            self._closed, self._seen, self._failed = True, (), ""
            self._let_go()

    def _look(self) -> None:
        failed = ""
        try:
            self._seen = self._read()
        except (PenstockError, OSError, ValueError) as error:
            # Whoever asks writes the log, and must not fail for it: ValueError is of holds that
            # another Penstock wrote.
            failed = error.code if isinstance(error, PenstockError) else type(error).__name__
        if failed and failed != self._failed:
            log.warning("holds cannot be read; retention waits as if all were held", code=failed)
        elif self._failed and not failed:
            log.warning("holds are read again; retention goes on")
        self._failed = failed

    def _let_go(self) -> None:
        env, self._env = self._env, None
        if env is not None:
            env.close()

    def _read(self) -> tuple[Hold, ...]:
        if self._env is not None and self._env.stale():
            self._let_go()
        if self._env is None:
            self._env = self._find()
        if self._env is None:
            return ()
        with self._env.read() as txn:
            written = txn.get(self._key, db=self._env[self._database])
        return () if written is None else _holds.decode(written)
