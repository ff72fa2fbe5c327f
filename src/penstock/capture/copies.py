"""Copies that are asked for while a stream is read (`penstock snapshot`), and who waits for them.

A request waits until the source's session can begin the copy. From there on every position says
that the copy is under way, so once one of them is durable the copy survives anything, and the
request is answered. A session that ends before leaves the request for the next one.
"""

import asyncio
from collections.abc import Sequence
from typing import Generic, TypeVar

from msgspec import Struct, field

from penstock.event import Commit, Fragment

Name = TypeVar("Name")
"""How a source names what it copies."""


class CopyRequest(Struct, Generic[Name], eq=False):
    """A copy that somebody waits for."""

    names: tuple[Name, ...]
    """Empty: all."""
    durable: asyncio.Future[None]
    positions: set[str] = field(default_factory=set[str])
    """Those that were said since it began."""


class CopyDesk(Generic[Name]):
    """The requests of one source, from the handler that takes them to the session that copies."""

    def __init__(self) -> None:
        self._waiting: list[CopyRequest[Name]] = []
        self._begun: list[CopyRequest[Name]] = []

    async def ask(self, names: Sequence[Name]) -> None:
        """Return once the copy of `names` (none: of all) is sure to be made."""
        request = CopyRequest(tuple(names), asyncio.get_running_loop().create_future())
        self._waiting.append(request)
        try:
            await request.durable
        finally:
            for requests in (self._waiting, self._begun):
                if request in requests:
                    requests.remove(request)

    @property
    def asked(self) -> tuple[CopyRequest[Name], ...]:
        """What is asked for and was not begun."""
        return tuple(self._waiting)

    def begun(self, requests: Sequence[CopyRequest[Name]]) -> None:
        """A session has begun them, and says so from here on. Who gave up gets no answer."""
        taken = [request for request in self._waiting if request in requests]
        self._waiting = [request for request in self._waiting if request not in taken]
        self._begun += taken

    def saying(self, item: Commit | Fragment) -> None:
        """The session hands out `item`."""
        if isinstance(item, Commit):
            for request in self._begun:
                request.positions.add(item.position)

    def acknowledged(self, position: str) -> None:
        """Everything up to `position` is durable."""
        durable = [request for request in self._begun if position in request.positions]
        self._begun = [request for request in self._begun if request not in durable]
        for request in durable:
            if not request.durable.done():
                request.durable.set_result(None)

    def session_ended(self) -> None:
        """What is not durable is begun again by the next session."""
        for request in self._begun:
            request.positions.clear()
        self._waiting = [*self._begun, *self._waiting]
        self._begun = []
