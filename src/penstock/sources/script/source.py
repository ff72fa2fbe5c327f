"""The simulated shop behind the port of a source: positions, pace and heartbeats."""

import asyncio
import re
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import ClassVar, Literal

from pydantic import AwareDatetime, Field

from penstock.config import Config, Seconds
from penstock.errors import RequestError, SourceChangedError
from penstock.event import Commit
from penstock.sources.script.shop import Shop


class ScriptSourceConfig(Config):
    """Capture a simulated shop: no database needed."""

    type: Literal["script"] = "script"
    seed: int = Field(default=1, ge=0, description="The same seed tells the same story.")
    database: str = Field(default="shop", min_length=1, description="Name of the shop's database.")
    transactions: int | None = Field(
        default=None,
        ge=1,
        description="End after so many transactions; without it the shop never closes.",
    )
    events_per_second: float = Field(
        default=200.0,
        ge=0,
        description="About how many events a second; 0: as fast as the log takes them.",
    )
    starts_at: AwareDatetime = Field(
        default=datetime(2026, 1, 1, tzinfo=UTC),
        description="The shop's time at its first transaction; each takes 10 ms of it.",
    )
    note_bytes: int = Field(
        default=0, ge=0, le=1 << 20, description="Length of a filler text in every document."
    )
    heartbeat_seconds: Seconds = Field(
        default=5.0, gt=0, description="Say that the shop is quiet at least so often."
    )
    lacks_after: ClassVar[bool] = False
    lacks_before: ClassVar[bool] = True
    """No change tells the document before it."""


class ScriptSource:
    """A ChangeSource that tells the story of a `Shop`, at its pace, from any position.

    Its position is `seed:n`, n transactions told. It ends after `transactions` of them.
    """

    def __init__(self, name: str, config: ScriptSourceConfig) -> None:
        self.name = name
        self._config = config
        self.shop = Shop(
            source=name,
            database=config.database,
            seed=config.seed,
            starts_at=config.starts_at,
            note_bytes=config.note_bytes,
        )

    async def changes(self, *, position: str | None) -> AsyncIterator[Commit]:
        """The transactions after `position`.

        First an empty commit: the position is in the log before the first event is (P21).
        Raises SourceChangedError if the position is of another seed.
        """
        shop, last = self.shop, self._config.transactions
        n = 0 if position is None else self._told(position)
        yield Commit(source=self.name, position=shop.position(n))
        pace = _Pace(self._config.events_per_second)
        while last is None or n < last:
            commit = shop.transaction(n + 1)
            while (wait_seconds := pace.wait_seconds()) > 0:
                beat_seconds = self._config.heartbeat_seconds
                await asyncio.sleep(min(wait_seconds, beat_seconds))
                if wait_seconds > beat_seconds:
                    beat = Commit(
                        source=self.name,
                        position=shop.position(n),
                        as_of_ms=time.time_ns() // 1_000_000,
                    )
                    yield beat
            yield commit
            pace.told(len(commit.events))
            n += 1

    async def acknowledge(self, position: str) -> None:
        """Nothing to discard: any transaction can be told again."""

    async def close(self) -> None:
        """Nothing is held."""

    async def rewound(self, position: str, *, to: str | None, by_seconds: float | None) -> str:
        """As `Rewinds.rewound`: a transaction takes 10 ms of the shop's time."""
        told = self._told(position)
        if to is None:
            return self.shop.position(max(0, told - round(100 * (by_seconds or 0))))
        found = re.fullmatch(r"([0-9]+):([0-9]+)", to)
        if found is None or int(found[1]) != self._config.seed or int(found[2]) > told:
            raise RequestError(
                f"{self.name}: {to[:40]!r} is no position before {position}. Nothing was changed."
            )
        # The transaction of an event's position comes again.
        return to

    def told_at(self, position: str) -> int:
        """As `Rewinds.told_at`."""
        return round((self._config.starts_at.timestamp() + self._told(position) / 100) * 1000)

    def _told(self, position: str) -> int:
        seed, _, n = position.partition(":")
        if seed != str(self._config.seed):
            raise SourceChangedError(
                source=self.name,
                expected=f"the shop of seed {seed}",
                found=f"the shop of seed {self._config.seed}",
            )
        return int(n)


class _Pace:
    """So many events a second on average since the first question; 0: never wait."""

    def __init__(self, events_per_second: float) -> None:
        self._rate = events_per_second
        self._due: float | None = None

    def wait_seconds(self) -> float:
        """How long until the next transaction is due; negative if it is overdue."""
        if not self._rate:
            return 0.0
        now = asyncio.get_running_loop().time()
        if self._due is None:
            self._due = now
        return self._due - now

    def told(self, events: int) -> None:
        """Count the events of a transaction that was told."""
        if self._due is not None:
            self._due += events / self._rate
