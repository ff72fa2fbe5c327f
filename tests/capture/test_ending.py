"""What ends a task leaves none behind, whatever becomes of a cancellation."""

import asyncio

import pytest

from penstock.capture import ending
from penstock.capture.ending import ended
from tests.waiting import patience


async def losing_one() -> None:
    """Goes on after its first cancellation, as asyncio's `wait_for` may before Python 3.12."""
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        await asyncio.Event().wait()


async def test_who_is_cancelled_while_ending_a_task_ends_it_and_is_cancelled_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A session ends its reading while a pump ends the session: each cancels again."""
    monkeypatch.setattr(ending, "_AGAIN_SECONDS", 0.01)
    inner = asyncio.create_task(losing_one())
    cleaned: list[bool] = []

    async def outer() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            try:
                await ended(inner)
            finally:
                await asyncio.sleep(0)
                cleaned.append(inner.done())

    task = asyncio.create_task(outer())
    await asyncio.sleep(0)
    async with patience():
        await ended(task)
    assert task.cancelled()
    assert cleaned == [True]
