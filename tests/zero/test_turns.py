"""Which connection of a shard is served: the newest, whenever the others get to ask."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.serve.zero.socket import ClosingError
from penstock.serve.zero.turns import Turns, arrived
from tests import waiting


class Comer:
    """A connection that is served until it is told to end."""

    def __init__(self) -> None:
        self.key = b"shard"
        self.number = arrived()
        self.replaced = asyncio.Event()
        self.served = False

    async def run(self, turns: "Turns[Comer]", steps: int) -> None:
        for _ in range(steps):
            await asyncio.sleep(0)
        async with turns.alone(self):
            self.served = True
            assert list(turns.live.values()) == [self]
            await self.replaced.wait()


async def test_an_older_connection_that_was_held_up_does_not_end_a_newer() -> None:
    """Who connects, gives up and connects again is served, whichever of the two begins first."""
    turns = Turns[Comer]()
    older, newer = Comer(), Comer()
    async with turns.alone(newer):
        with pytest.raises(ClosingError, match="took its place"):
            await older.run(turns, 0)
    assert not newer.replaced.is_set()
    assert older.replaced.is_set()


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8))
def test_the_newest_is_served_in_whatever_order_they_come_to_ask(steps: list[int]) -> None:
    async def told() -> None:
        turns = Turns[Comer]()
        comers = [Comer() for _ in steps]
        tasks = [
            asyncio.ensure_future(one.run(turns, n)) for one, n in zip(comers, steps, strict=True)
        ]
        await waiting.turns(100)
        assert list(turns.live.values()) == [comers[-1]]
        assert not comers[-1].replaced.is_set()
        comers[-1].replaced.set()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(one is None or isinstance(one, ClosingError) for one in ended)

    asyncio.run(told())
