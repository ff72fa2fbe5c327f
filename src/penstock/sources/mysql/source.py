"""MySQL or MariaDB as a source: a reading of its binlog behind the port of a source."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from functools import partial
from typing import TypeVar

from penstock.capture.copies import CopyDesk, CopyRequest
from penstock.errors import RequestError
from penstock.event import Commit, Fragment
from penstock.ports import KeyRange, Listing, RangeRows
from penstock.sources.mysql.agreement import has_told, require_agreement, require_whole_rows
from penstock.sources.mysql.chunks import captured_tables
from penstock.sources.mysql.config import MysqlSourceConfig
from penstock.sources.mysql.copying import Name, named
from penstock.sources.mysql.held import Undone
from penstock.sources.mysql.history import names_nothing, seconds_to_loss
from penstock.sources.mysql.positions import is_copying, moved, parse_position
from penstock.sources.mysql.ranges import RangeReader
from penstock.sources.mysql.session import Session
from penstock.sources.mysql.stream import drawn_server_id

T = TypeVar("T")


class MysqlSource:
    """The captured tables of one server, in the order of its binlog: a ChangeSource.

    A commit is a transaction of the server, as far as its tables are captured. The server keeps its
    binlogs without regard to who reads them: what is acknowledged to it, with `semi_sync`, only has
    its commits wait.
    """

    def __init__(self, name: str, config: MysqlSourceConfig) -> None:
        self.name = name
        self.config = config
        # The same in each session: a server that has not noticed yet that the last one is gone ends
        # it when a replica of its number comes back. Else their connections add up.
        self._server_id = config.server_id or drawn_server_id()
        self._undone: Undone = {}
        self._warns = True
        self._desk = CopyDesk[Name]()
        self._session: Session | None = None
        """While it is captured."""
        self._ranges = RangeReader(name, config)

    async def changes(self, *, position: str | None) -> AsyncIterator[Commit | Fragment]:
        """Commits after `position`; None: where `start` says.

        Empty commits tell newer positions: one at the start, one every heartbeat while nothing
        changes, and one every second while nothing of what changes is captured (A17). Raises
        SourceError, and ConfigError for what only an operator can mend.
        """
        known = None if position is None else parse_position(position)
        session = Session(
            *(self.name, self.config),
            server_id=self._server_id,
            undone=self._undone,
            warns=self._warns,
        )
        self._warns = False
        try:
            step = await self._away(session, lambda: session.begin(known))
            self._session = session
            asked: Sequence[CopyRequest[Name]] = ()
            while True:
                if step.begun:
                    self._desk.begun(asked)
                for item in step.items:
                    self._desk.saying(item)
                    yield item
                if step.error is not None:
                    raise step.error
                asked = self._desk.asked
                step = await self._away(
                    session, partial(session.step, [request.names for request in asked])
                )
        finally:
            self._session = None
            self._desk.session_ended()
            session.close()

    async def acknowledge(self, position: str) -> None:
        """The server alone decides what it keeps of its binlogs; but its commits may wait for us
        (`semi_sync`), and so may who asked for a copy."""
        if self._session is not None:
            self._session.acknowledge(position)
        self._desk.acknowledged(position)

    async def close(self) -> None:
        """Let go of what ranges were read by; nothing is held between sessions."""
        self._ranges.close()

    # --- what others ask -------------------------------------------------------------------------

    async def copy(self, names: Sequence[str], *, known: Collection[tuple[str, str]]) -> list[str]:
        """As `Copies.copy`."""
        if self._session is None:
            raise RequestError(
                f"{self.name} is not being captured now, and a copy is made beside its stream. "
                f"Nothing was copied. Ask again when `penstock status` shows it running."
            )
        flavour = self._session.flavour
        there = await asyncio.to_thread(captured_tables, self.name, self.config, flavour)
        scope = self.config.scope
        asked = named(self.name, names, scope=scope, there=there, known=known)
        waiting = asyncio.ensure_future(self._desk.ask(asked))
        await asyncio.sleep(0)  # it is on the desk before the bell rings
        if self._session is not None:
            self._session.ring()
        try:
            await waiting
        finally:
            waiting.cancel()
        return [".".join(one) for one in asked or there]

    def moved(self, position: str, *, before: str | None) -> str:
        """As `Moves.moved`."""
        return moved(self.name, position, before=before)

    def is_copying(self, position: str) -> bool:
        """As `Moves.is_copying`."""
        return is_copying(position)

    def require_readable(self) -> None:
        """As `ReadsRanges.require_readable`."""
        require_whole_rows(self.name, self.config)

    async def ranges(self, database: str, collection: str, *, rows: int, position: str) -> Listing:
        """As `ReadsRanges.ranges`."""
        known = parse_position(position)
        require_agreement(self.name, self.config, known)
        return await asyncio.to_thread(
            self._ranges.ranges, database, collection, rows=rows, known=known
        )

    async def read_range(self, part: KeyRange, *, position: str) -> RangeRows:
        """As `ReadsRanges.read_range`."""
        known = parse_position(position)
        require_agreement(self.name, self.config, known)
        return await asyncio.to_thread(self._ranges.read, part, known=known)

    def has_told(self, position: str, read_at: str) -> bool:
        """As `ReadsRanges.has_told`."""
        return has_told(parse_position(position), read_at)

    async def seconds_to_loss(self, position: str) -> float | None:
        """As `Retains.seconds_to_loss`: from the age of the server's oldest binlog."""
        known = parse_position(position)
        return await asyncio.to_thread(seconds_to_loss, self.name, self.config, known)

    async def unmatched(self) -> list[str]:
        """As `NamesThings.unmatched`."""
        return await asyncio.to_thread(names_nothing, self.name, self.config)

    async def _away(self, session: Session, act: Callable[[], T]) -> T:
        """What `act` returns, in a thread, which has ended when this returns."""
        acting = asyncio.ensure_future(asyncio.to_thread(act))
        try:
            return await asyncio.shield(acting)
        except asyncio.CancelledError:
            session.abort()
            await asyncio.wait({acting})
            if not acting.cancelled():
                acting.exception()  # of a connection that we broke off ourselves
            raise
