"""A store in memory that fails as it is told to, for what no real one does on command."""

import asyncio
import itertools
import time

from penstock.checkpoints.record import pack, unpack
from penstock.errors import CheckpointConflictError, CheckpointUnavailableError
from penstock.ports import Checkpoint, Kept


class MemoryStore:
    """A CheckpointStore; two services may share one."""

    def __init__(self) -> None:
        self.kept: dict[str, tuple[bytes, int]] = {}
        self.history: list[Checkpoint] = []
        """Every copy that was kept, in its order."""
        self.calls = 0
        self.down = False
        self.answers_lost = 0
        """So many of the next writes are kept, and their answers are not heard."""
        self.wrote = asyncio.Event()
        self._revisions = itertools.count(1)

    async def read(self, instance: str) -> Kept | None:
        await self._answer()
        found = self.kept.get(instance)
        return None if found is None else Kept(unpack(found[0], where="memory"), found[1])

    async def write(self, checkpoint: Checkpoint, *, replacing: int | None) -> int:
        await self._answer()
        found = self.kept.get(checkpoint.instance)
        if (None if found is None else found[1]) != replacing:
            raise CheckpointConflictError(instance=checkpoint.instance)
        revision = next(self._revisions)
        self.kept[checkpoint.instance] = (pack(checkpoint), revision)
        self.history.append(checkpoint)
        self.wrote.set()
        if self.answers_lost:
            self.answers_lost -= 1
            raise CheckpointUnavailableError("the answer was lost")
        return revision

    async def clear(self, instance: str) -> None:
        await self._answer()
        self.kept.pop(instance, None)

    async def close(self) -> None:
        pass

    async def _answer(self) -> None:
        self.calls += 1
        await asyncio.sleep(0)
        if self.down:
            raise CheckpointUnavailableError("the store is down")


class ScaledClock:
    """The machine's clock, but for waits, which take no time; how long they were is kept."""

    def __init__(self) -> None:
        self.waits: list[float] = []
        self.passed = 0.0
        """What the waits took, by this clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + int(self.passed * 1000)

    def steady_seconds(self) -> float:
        return time.monotonic() + self.passed

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.passed += seconds
        await asyncio.sleep(0)
