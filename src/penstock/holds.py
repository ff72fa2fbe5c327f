"""What others need of the log, as they write it beside the log, for the process that trims it."""

import threading
import time
from collections.abc import Callable
from typing import Final

import msgspec

from penstock.errors import PenstockError
from penstock.kv import Env
from penstock.ports import Hold

_LOOK_SECONDS: Final = 0.25
"""What is held is near the log's head when it begins, so it may be looked at a little later."""
_holds: Final = msgspec.json.Decoder(tuple[Hold, ...])


def now_ms() -> int:
    """Unix milliseconds."""
    return time.time_ns() // 1_000_000


class WrittenHolds:
    """Holds, as JSON under one key of an environment that another process writes.

    Safe for any number of threads. An environment that is not there or cannot be read holds
    nothing, nor does one that was closed.
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

    def __call__(self) -> Hold | None:
        """The hold that reaches furthest back."""
        with self._lock:
            steady = self._steady_seconds()
            if not self._closed and steady - self._looked >= _LOOK_SECONDS:
                self._looked = steady
                try:
                    self._seen = self._read()
                except (PenstockError, ValueError):
                    # Who writes them says what is wrong, and every reader checks for itself.
                    # Whoever asks writes the log, and must not fail for it: ValueError is of holds
                    # that another Penstock wrote.
                    self._seen = ()
            now = self._wall_ms()
            valid = [hold for hold in self._seen if now < hold.until_ms]
            return min(valid, key=lambda hold: hold.sequence, default=None)

    def close(self) -> None:
        """Let go of the environment."""
        with self._lock:
            self._closed, self._seen = True, ()
            self._let_go()

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
