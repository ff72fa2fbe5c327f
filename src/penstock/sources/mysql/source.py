"""MySQL or MariaDB as a source: a reading of its binlog behind the port of a source."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

from penstock.event import Commit, Fragment
from penstock.sources.mysql.config import MysqlSourceConfig
from penstock.sources.mysql.history import seconds_to_loss
from penstock.sources.mysql.positions import parse_position
from penstock.sources.mysql.session import Session
from penstock.sources.mysql.stream import drawn_server_id
from penstock.sources.mysql.transactions import Undone

T = TypeVar("T")


class MysqlSource:
    """The captured tables of one server, in the order of its binlog: a ChangeSource.

    A commit is a transaction of the server, as far as its tables are captured. The server keeps its
    binlogs without regard to who reads them, so nothing is acknowledged to it.
    """

    def __init__(self, name: str, config: MysqlSourceConfig) -> None:
        self.name = name
        self.config = config
        # The same in each session: a server that has not noticed yet that the last one is gone ends
        # it when a replica of its number comes back. Else their connections add up.
        self._server_id = config.server_id or drawn_server_id()
        self._undone: Undone = {}
        self._warns = True

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
            while True:
                for item in step.items:
                    yield item
                if step.error is not None:
                    raise step.error
                step = await self._away(session, session.step)
        finally:
            session.close()

    async def acknowledge(self, position: str) -> None:
        """Nothing: the server's own settings decide how long it keeps its binlogs."""

    async def close(self) -> None:
        """Nothing is held between sessions."""

    async def seconds_to_loss(self, position: str) -> float | None:
        """As `Retains.seconds_to_loss`: from the age of the server's oldest binlog."""
        known = parse_position(position)
        return await asyncio.to_thread(seconds_to_loss, self.name, self.config, known)

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
