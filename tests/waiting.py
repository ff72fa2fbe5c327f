"""Wait for a condition, with one margin for every test."""

import asyncio
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from time import monotonic, sleep
from typing import Any, TypeVar, overload

import pytest

PATIENCE_SECONDS = 400.0
"""How long a test waits for anything before it calls it stuck.

A limit against hanging, not a measure of speed: a slow machine must never reach it.
"""

T = TypeVar("T")


def wait_until(
    condition: Callable[[], T | None],
    what: str = "",
    *,
    unless: Callable[[], object] | None = None,
    moving: Callable[[], object] | None = None,
    diagnose: Callable[[], str] | None = None,
) -> T:
    """Poll `condition` until it is true and return its value.

    Fails after `PATIENCE_SECONDS`, naming `what` and showing the text of `diagnose`. Fails at once
    if `unless` is true and `condition` still is not. Time starts over whenever `moving` returns
    another value.
    """
    began = since = monotonic()
    stood = moving and moving()
    while True:
        pointless = unless is not None and unless()
        if found := condition():
            return found
        now = monotonic()
        if moving and (stands := moving()) != stood:
            since, stood = now, stands
        if pointless or now - since > PATIENCE_SECONDS:
            raise _stuck(condition, what, found, began, diagnose)
        sleep(_pause_seconds(began))


@overload
async def until(
    condition: Callable[[], Awaitable[T | None]],
    what: str = "",
    *,
    task: "asyncio.Future[Any] | None" = None,
    diagnose: Callable[[], str] | None = None,
) -> T: ...


@overload
async def until(
    condition: Callable[[], T | None],
    what: str = "",
    *,
    task: "asyncio.Future[Any] | None" = None,
    diagnose: Callable[[], str] | None = None,
) -> T: ...


async def until(
    condition: Callable[[], Any],
    what: str = "",
    *,
    task: "asyncio.Future[Any] | None" = None,
    diagnose: Callable[[], str] | None = None,
) -> Any:
    """Poll `condition`, plain or async, until it is true and return its value.

    Fails like `wait_until`. If `task` ends before the condition is true, raises its error.
    """
    began, found, margin = monotonic(), None, patience()
    try:
        async with margin:
            while True:
                pointless = task is not None and task.done()
                found = condition()
                if isawaitable(found):
                    found = await found
                if found:
                    return found
                if task is not None and pointless:
                    task.result()
                    break
                await asyncio.sleep(_pause_seconds(began))
    except TimeoutError:
        if not margin.expired():
            raise
    raise _stuck(condition, what, found, began, diagnose)


def patience() -> asyncio.Timeout:
    """Fail a block that hangs."""
    return asyncio.timeout(PATIENCE_SECONDS)


def timeouts_of(monkeypatch: pytest.MonkeyPatch, seconds: float) -> Callable[[], None]:
    """Make the newest `asyncio.timeout(seconds)` expire when the test calls the result."""
    real, made = asyncio.timeout, list[asyncio.Timeout]()

    def timeout(delay: float | None) -> asyncio.Timeout:
        one = real(delay)
        if delay == seconds:
            made.append(one)
        return one

    monkeypatch.setattr(asyncio, "timeout", timeout)
    return lambda: made[-1].reschedule(asyncio.get_running_loop().time())


async def turns(count: int) -> None:
    """Let the other tasks of the loop run, this many times."""
    for _ in range(count):
        await asyncio.sleep(0)


def _pause_seconds(began: float) -> float:
    """A tenth of the time waited so far: short at first, and then easy on the machine."""
    return min((monotonic() - began) / 10, 0.05)


def _stuck(
    condition: Callable[[], object],
    what: str,
    found: object,
    began: float,
    diagnose: Callable[[], str] | None,
) -> AssertionError:
    what = what or getattr(condition, "__qualname__", repr(condition))
    said = f"waited {monotonic() - began:.1f} s for {what}; its last value was {found!r}"
    return AssertionError(f"{said}\n{diagnose()}" if diagnose else said)
