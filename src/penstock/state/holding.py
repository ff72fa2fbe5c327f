"""What readings of current rows need of the log: the changes that follow their rows.

Whoever takes rows for hours follows from where they were taken, and finds that retention was
quicker. So the keeper writes down what its readings hold, and the process that trims the log looks
there. A hold ends by itself, and takes no more of the disk than it may: a reader that is too slow
even then is told so (RowsOvertakenError), and neither it nor capture waits for the other.
"""

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from penstock.errors import PenstockError
from penstock.kv import Env, Transaction
from penstock.ports import Hold
from penstock.state.layout import HOLDS_KEY, META
from penstock.state.tables import find_state, state_path

_LOOK_SECONDS: Final = 0.25
"""What is held is near the log's head when it begins, so it may be looked at a little later."""
_holds: Final = msgspec.json.Decoder(tuple[Hold, ...])


def write_holds(txn: Transaction, env: Env, holds: Sequence[Hold]) -> None:
    """Write what is held, in place of what was."""
    txn.put(HOLDS_KEY, msgspec.json.encode(holds), db=env[META])


def now_ms() -> int:
    """Unix milliseconds."""
    return time.time_ns() // 1_000_000


class Holds:
    """What the log at `path` must not trim, as the process that keeps its state writes it.

    Safe for any number of threads. A state that is not there or cannot be read holds nothing, nor
    does one that was closed.
    """

    def __init__(
        self,
        path: Path,
        *,
        wall_ms: Callable[[], int] = now_ms,
        steady_seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = state_path(path)
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
                    # The keeper says what is wrong, and every reading checks for itself. Whoever
                    # asks writes the log, and must not fail for it: ValueError is of holds that
                    # another Penstock wrote.
                    self._seen = ()
            now = self._wall_ms()
            valid = [hold for hold in self._seen if now < hold.until_ms]
            return min(valid, key=lambda hold: hold.sequence, default=None)

    def close(self) -> None:
        """Let go of the state."""
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
            self._env = find_state(self._path)
        if self._env is None:
            return ()
        with self._env.read() as txn:
            written = txn.get(HOLDS_KEY, db=self._env[META])
        return () if written is None else _holds.decode(written)
