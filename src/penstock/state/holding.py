"""What readings of current rows need of the log: the changes that follow their rows.

Whoever takes rows for hours follows from where they were taken, and finds that retention was
quicker. So the keeper writes down what its readings hold, and the process that trims the log looks
there. A hold ends by itself, and takes no more of the disk than it may: a reader that is too slow
even then is told so (RowsOvertakenError), and neither it nor capture waits for the other.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import msgspec

from penstock.holds import WrittenHolds, now_ms
from penstock.kv import Env, Transaction
from penstock.ports import Hold
from penstock.state.layout import HOLDS_KEY, META
from penstock.state.tables import find_state, state_path

__all__ = ["Holds", "write_holds"]


def write_holds(txn: Transaction, env: Env, holds: Sequence[Hold]) -> None:
    """Write what is held, in place of what was."""
    txn.put(HOLDS_KEY, msgspec.json.encode(holds), db=env[META])


class Holds(WrittenHolds):
    """What the log at `path` must not trim, as the process that keeps its state writes it."""

    def __init__(
        self,
        path: Path,
        *,
        wall_ms: Callable[[], int] = now_ms,
        steady_seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(
            partial(find_state, state_path(path)),
            database=META,
            key=HOLDS_KEY,
            wall_ms=wall_ms,
            steady_seconds=steady_seconds,
        )
