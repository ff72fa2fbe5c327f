"""Threads of a client have their turns in the order in which they came."""

import threading
from pathlib import Path

import pytest

from penstock.store import AsyncClient, ServerUnavailableError
from penstock.store.remote.calls import SHARES, Turn
from penstock.store.remote.errors import ServerBusyError
from penstock.store.remote.turns import Turns
from tests.waiting import PATIENCE_SECONDS, wait_until


def waiting(turns: Turns) -> int:
    return len(turns._waiting)  # pyright: ignore[reportPrivateUsage]


def test_whoever_came_first_has_the_next_turn_and_who_comes_again_is_last() -> None:
    turns, order = Turns(1), list[str]()

    def take(name: str) -> None:
        with turns.one(PATIENCE_SECONDS):
            order.append(name)

    threads = list[threading.Thread]()
    with turns.one(1):
        for name in "abc":
            threads.append(threading.Thread(target=take, args=(name,)))
            threads[-1].start()
            wait_until(lambda: waiting(turns) == len(threads))
    take("again")
    for thread in threads:
        thread.join()
    assert order == ["a", "b", "c", "again"]


def test_a_turn_that_does_not_come_is_given_up_and_nothing_is_lost_of_it() -> None:
    turns = Turns(1)
    with turns.one(1):
        with pytest.raises(ServerUnavailableError, match=r"all in use for 0 s\. Nothing was"):
            turns.one(0).__enter__()
        assert not waiting(turns)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError), turns.one(0):
            raise ZeroDivisionError
    with turns.one(0):
        pass


def test_whoever_is_interrupted_as_it_gets_its_turn_gives_it_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turns = Turns(1)
    holder = turns.one(1)
    holder.__enter__()

    def interrupted(event: threading.Event, timeout: float | None = None) -> bool:
        holder.__exit__(None, None, None)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Event, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        turns.one(1).__enter__()
    with turns.one(0):
        pass


async def test_a_task_is_told_that_no_turn_came_as_a_thread_is(tmp_path: Path) -> None:
    client = AsyncClient(tmp_path / "s", timeout_seconds=0)
    places = client._turns[Turn.TRANSACTION]  # pyright: ignore[reportPrivateUsage]
    for _ in range(SHARES[Turn.TRANSACTION]):
        await places.acquire()
    with pytest.raises(ServerBusyError, match=r"4 connections .* all in use for 0 s"):
        await client.transact().__aenter__()
    places.release()
    with pytest.raises(ServerUnavailableError):
        await client.transact().__aenter__()
    assert not places.locked(), "it gave its turn back"
