"""An embedded store as a source: where to start, when to look, and what others ask of it."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from functools import partial
from typing import TypeVar

from msgspec import structs

from penstock import kv, store
from penstock.capture.copies import CopyDesk
from penstock.errors import (
    ConfigError,
    LogCorruptError,
    LogError,
    LogFormatError,
    RequestError,
    SourceError,
    SourceUnavailableError,
)
from penstock.event import Commit, Fragment
from penstock.sources.store.config import StoreSourceConfig
from penstock.sources.store.copying import followed, named, unmatched
from penstock.sources.store.places import place_before, seconds_to_loss
from penstock.sources.store.positions import parse_position
from penstock.sources.store.session import Session
from penstock.store import Store, StoreClosedError, StoreError, StoreUnsettledError

T = TypeVar("T")


class StoreSource:
    """The tables of one store, in the order of its commits: a ChangeSource.

    A commit is a write transaction of the store, as far as its tables are captured. The store's
    writer may be this process or another one; it is never waited for, nor does it wait. Nothing is
    acknowledged to it: each table's retention alone decides what its stream keeps.
    """

    def __init__(self, name: str, config: StoreSourceConfig) -> None:
        self.name = name
        self.config = config
        self._desk = CopyDesk[str]()
        self._db: Store | None = None
        self._capturing = False

    async def changes(self, *, position: str | None) -> AsyncIterator[Commit | Fragment]:
        """Commits after `position`; None: where `start` says.

        Empty commits tell newer positions: one at the start, and one every heartbeat while
        nothing changes. Raises SourceError, and ConfigError for what only an operator can mend.
        """
        known = None if position is None else parse_position(position)
        clock = asyncio.get_running_loop().time
        db = await self._opened()
        session = Session(self.name, self.config, db)
        try:
            first = await self._looked(partial(session.begin, known))
            self._capturing = True
            for item in first:
                yield item
            heard = clock()
            while True:
                rings, asked = db.bell.rings, self._desk.asked
                tables = [request.names for request in asked]
                step = await self._looked(partial(session.step, tables))
                for number, item in enumerate(step.items, start=1):
                    # Copies begin with the last item: those before it do not speak of them.
                    if step.begun and number == len(step.items):
                        self._desk.begun(asked)
                    self._desk.saying(item)
                    yield item
                    heard = clock()
                if step.error is not None:
                    raise step.error
                if step.more:
                    continue
                left = heard + self.config.heartbeat_seconds - clock()
                if left > 0:
                    await self._rung(db, rings, left)
                elif session.settled:
                    now_ms = time.time_ns() // 1_000_000
                    beat = structs.replace(session.heartbeat(), as_of_ms=now_ms)
                    self._desk.saying(beat)
                    yield beat
                    heard = clock()
        finally:
            self._capturing = False
            self._desk.session_ended()

    async def _rung(self, db: Store, rings: int, seconds: float) -> None:
        """Wait until something may have been written, a copy is asked for, or the time is up."""
        await db.wait_async(rings, seconds)
        if db.stale:
            await self.close()
            raise SourceUnavailableError(
                f"{self.name}: other files were put at {self.config.path}, as a restore does. "
                f"Nothing was skipped; capture opens them, and refuses them if they are not a "
                f"store that goes on from our position."
            )

    async def acknowledge(self, position: str) -> None:
        """The streams' retention alone decides what they keep; who asked for a copy waits."""
        self._desk.acknowledged(position)

    async def close(self) -> None:
        """Let go of the store; harmless when it is not open."""
        db, self._db = self._db, None
        if db is not None:
            await asyncio.to_thread(db.close)

    # --- what others ask -------------------------------------------------------------------------

    async def copy(self, names: Sequence[str], *, known: Collection[tuple[str, str]]) -> list[str]:
        """As `Copies.copy`."""
        if not self._capturing:
            raise RequestError(
                f"{self.name} is not being captured now, and a copy is made beside its stream. "
                f"Nothing was copied. Ask again when `penstock status` shows it running."
            )
        db, scope = await self._opened(), self.config.scope

        def there() -> tuple[str, ...]:
            with db.view() as view:
                return followed(view, scope)

        tables = await self._looked(there)
        asked = named(self.name, names, scope=scope, there=tables, known=known)
        waiting = asyncio.ensure_future(self._desk.ask(asked))
        await asyncio.sleep(0)  # it is on the desk before the bell rings
        db.bell.ring()
        try:
            await waiting
        finally:
            waiting.cancel()
        return [f"{scope.database}.{table}" for table in asked or tables]

    async def rewound(self, position: str, *, to: str | None, by_seconds: float | None) -> str:
        """As `Rewinds.rewound`, to the end of a commit. Copies that are under way go on."""
        known = parse_position(position)
        db = await self._opened()
        place = await self._looked(
            lambda: place_before(self.name, db, known, to=to, by_seconds=by_seconds)
        )
        return structs.replace(known, **place, gap_said=()).text()

    def told_at(self, position: str) -> int:
        """As `Rewinds.told_at`: a store's positions say no time, so nothing is surely older."""
        parse_position(position)
        return 0

    async def seconds_to_loss(self, position: str) -> float | None:
        """As `Retains.seconds_to_loss`: of the table that is nearest to a loss."""
        known = parse_position(position)
        db = await self._opened()
        return await self._looked(lambda: seconds_to_loss(db, known))

    async def unmatched(self) -> list[str]:
        """As `NamesThings.unmatched`."""
        if not (self.config.include or self.config.exclude):
            return []
        db = await self._opened()

        def look() -> list[str]:
            with db.view() as view:
                return unmatched(view, self.config.scope)

        return await self._looked(look)

    # --- the store -------------------------------------------------------------------------------

    async def _opened(self) -> Store:
        if self._db is not None and self._db.stale:
            await self.close()
        if not await self._looked(lambda: kv.exists(self.config.path)):
            raise self._not_there()
        if self._db is None:
            self._db = await self._looked(
                lambda: store.open(self.config.path, read_only=True, sweep_seconds=None)
            )
        return self._db

    async def _looked(self, look: Callable[[], T]) -> T:
        """What `look` returns, in a thread; what the store raises, in our words."""
        try:
            return await asyncio.to_thread(look)
        except (LogCorruptError, LogFormatError) as error:
            raise SourceError(
                f"{self.name}: the store at {self.config.path} cannot be read ({error.code}). "
                f"Capture has stopped and nothing was skipped. Restore a backup of it."
            ) from error
        except ConfigError:
            raise
        except (StoreClosedError, StoreUnsettledError, LogError) as error:
            raise SourceUnavailableError(
                f"{self.name}: the store at {self.config.path} does not answer ({error}). Nothing "
                f"was skipped; capture goes on from its durable position once it does."
            ) from error
        except StoreError as error:
            raise self._not_there() from error

    def _not_there(self) -> SourceUnavailableError:
        return SourceUnavailableError(
            f"{self.name}: there is no store at {self.config.path} (yet). Nothing was skipped; "
            f"capture goes on once it is there. If it lies elsewhere, set path."
        )
