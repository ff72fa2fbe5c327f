"""One connection of a shard at a time: the newest that came."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Mapping
from itertools import count
from typing import Final, Generic, Protocol, TypeVar

from penstock.serve.zero.socket import superseded

_arrivals: Final = count()


def arrived() -> int:
    """The number of a connection, in the order of their coming."""
    return next(_arrivals)


class Comer(Protocol):
    """A connection that wants to be the one of its shard."""

    @property
    def key(self) -> bytes:
        """Of its shard."""
        ...

    @property
    def number(self) -> int:
        """By `arrived`, as it came."""
        ...

    @property
    def replaced(self) -> asyncio.Event:
        """Set when it must end: a newer one waits."""
        ...


One = TypeVar("One", bound=Comer)


class Turns(Generic[One]):
    """Who has the turn of each shard. Belongs to one event loop."""

    def __init__(self) -> None:
        self._live: dict[bytes, One] = {}
        self._left = asyncio.Condition()

    @property
    def live(self) -> Mapping[bytes, One]:
        """The connection of each shard that has one."""
        return self._live

    @contextlib.asynccontextmanager
    async def alone(self, comer: One) -> AsyncGenerator[None]:
        """Inside, `comer` is the only one of its shard: an older one is ended first.

        Raises ClosingError where a newer one is there already: who came first and was held up is
        most likely gone, and must not put an end to what its client does now.
        """
        key = comer.key
        async with self._left:
            while (other := self._live.get(key)) is not None:
                if other.number > comer.number:
                    comer.replaced.set()
                    raise superseded()
                other.replaced.set()
                await self._left.wait()
            self._live[key] = comer
        try:
            yield
        finally:
            async with self._left:
                del self._live[key]
                self._left.notify_all()
