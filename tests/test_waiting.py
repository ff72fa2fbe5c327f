"""Waiting, which every other test relies on."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests import waiting
from tests.waiting import timeouts_of, turns, until, wait_until


def becomes(value: object, *, looks: int = 3) -> Callable[[], Any]:
    """False until the last of so many looks."""
    values = iter([*[0] * (looks - 1), value])
    return lambda: next(values)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "PATIENCE_SECONDS", 0.0)


async def test_the_value_of_the_condition_is_returned_once_it_is_true() -> None:
    later: Callable[[], Awaitable[Any]] = lambda: asyncio.sleep(0, look())  # noqa: E731
    look = becomes("found")
    assert await until(later) == "found"
    assert await until(becomes("found")) == "found"
    assert wait_until(becomes("found")) == "found"


@pytest.mark.usefixtures("impatient")
async def test_a_failure_says_what_was_awaited_and_shows_the_log() -> None:
    told = r"waited 0.0 s for the snapshot; its last value was 0\nthe log ends here"
    with pytest.raises(AssertionError, match=told):
        wait_until(lambda: 0, "the snapshot", diagnose=lambda: "the log ends here")
    with pytest.raises(AssertionError, match="for the snapshot"):
        await until(lambda: 0, "the snapshot")
    with pytest.raises(AssertionError, match="for the snapshot"):
        await until(asyncio.Event().wait, "the snapshot")
    with pytest.raises(AssertionError, match=r"becomes.*lambda"):
        wait_until(becomes(0))


@pytest.mark.usefixtures("impatient")
def test_time_starts_over_while_something_moves() -> None:
    moved = iter(range(10))
    assert wait_until(becomes(1, looks=8), moving=lambda: next(moved))


async def test_waiting_ends_with_its_subject_but_after_a_last_look() -> None:
    assert wait_until(lambda: 1, unless=lambda: True)
    with pytest.raises(AssertionError, match="for the file"):
        wait_until(lambda: 0, "the file", unless=lambda: True)
    ended = asyncio.ensure_future(turns(1))
    assert await until(becomes(1), task=asyncio.ensure_future(asyncio.Event().wait()))
    await ended
    assert await until(lambda: 1, task=ended)
    with pytest.raises(AssertionError, match="for the file"):
        await until(lambda: 0, "the file", task=ended)
    with pytest.raises(ZeroDivisionError):
        await until(lambda: 0, task=asyncio.ensure_future(fails()))


async def test_a_timeout_of_the_condition_is_its_own() -> None:
    async def times_out() -> bool:
        raise TimeoutError("of a client")

    with pytest.raises(TimeoutError, match="of a client"):
        await until(times_out)


async def test_a_timeout_expires_when_the_test_wants(monkeypatch: pytest.MonkeyPatch) -> None:
    expire = timeouts_of(monkeypatch, 77.0)

    async def waits() -> None:
        async with asyncio.timeout(77.0):
            await asyncio.Event().wait()

    waiting_ = asyncio.ensure_future(waits())
    await turns(5)
    assert not waiting_.done()
    expire()
    with pytest.raises(TimeoutError):
        await waiting_


async def fails() -> None:
    raise ZeroDivisionError
