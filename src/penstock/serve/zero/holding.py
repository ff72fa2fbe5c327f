"""What shards need of the log: the changes that follow what they acknowledged (Z2, Z11)."""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from penstock.holds import WrittenHolds, now_ms
from penstock.serve.zero.shards import HOLDS_KEY, META, find_shards, shards_path


class ShardHolds(WrittenHolds):
    """What the log at `path` must not trim, as the process that serves shards writes it."""

    def __init__(
        self,
        path: Path,
        *,
        wall_ms: Callable[[], int] = now_ms,
        steady_seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(
            partial(find_shards, shards_path(path)),
            database=META,
            key=HOLDS_KEY,
            wall_ms=wall_ms,
            steady_seconds=steady_seconds,
        )
