"""Who asks for a copy is answered once a position that speaks of it is durable, and not before."""

import asyncio

from penstock.capture.copies import CopyDesk
from penstock.event import Commit
from tests.waiting import turns


def commit(position: str) -> Commit:
    return Commit(source="s", position=position)


async def asked(desk: CopyDesk[str], *names: str) -> asyncio.Task[None]:
    """A request that is on the desk, and begun."""
    waiting = asyncio.create_task(desk.ask(names))
    await asyncio.sleep(0)
    desk.begun(desk.asked)
    return waiting


async def settled(task: asyncio.Task[None]) -> bool:
    await turns(2)
    return task.done()


async def test_a_position_answers_only_what_had_begun_when_it_was_said() -> None:
    desk = CopyDesk[str]()
    first = await asked(desk, "a")
    desk.saying(commit("1"))
    second = await asked(desk, "b")
    desk.acknowledged("1")
    assert await settled(first)
    assert not await settled(second), "a crash now would forget it"
    desk.saying(commit("2"))
    desk.acknowledged("2")
    assert await settled(second)


async def test_what_a_session_did_not_make_durable_is_begun_by_the_next() -> None:
    desk = CopyDesk[str]()
    waiting = await asked(desk, "a")
    desk.saying(commit("1"))
    desk.session_ended()
    desk.acknowledged("1")
    assert not await settled(waiting)
    assert [request.names for request in desk.asked] == [("a",)]
    desk.begun(desk.asked)
    desk.acknowledged("1")
    assert not await settled(waiting)
    desk.saying(commit("2"))
    desk.acknowledged("2")
    assert await settled(waiting)
