"""A writer that dies at any call of MongoDB leaves a trail that the next one makes whole."""

import random
import threading
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from typing import Any, TypeVar

import pytest
from pymongo.client_session import ClientSession
from pymongo.collection import Collection

from penstock.audit.bringing import bring_part
from penstock.audit.chain import HASH_BYTES, batch_hash
from penstock.audit.outages import Patience
from penstock.audit.trail import Trail
from penstock.audit.writing import Writer
from tests.audit.proofs import verify
from tests.audit.support import commit_of, marker, row, steps, stored, trail_of, write, writer_of
from tests.seeds import seed_of

pytestmark = [pytest.mark.server, pytest.mark.slow]
T = TypeVar("T")

ROWS = [
    row(1, after={"id": 1}),
    *commit_of(2, 3),
    *commit_of(5, 8),
    row(13, before={"id": 1}, after={"id": 1, "v": 2}),
    *commit_of(14, 2),
]
EVENTS_MAX = 3


class PowerCutError(Exception):
    """The process is gone."""


class Dying(Patience):
    """Dies at its call number `at`: before it, or once MongoDB has done what it asks."""

    def __init__(self, trail: Trail, *, at: int, done: bool) -> None:
        super().__init__(trail, stopping=threading.Event())
        self._left = at
        self._done = done

    def call(self, act: Callable[[], T]) -> T:
        self._left -= 1
        if self._left == 0:
            if self._done:
                super().call(act)
            raise PowerCutError
        return super().call(act)


@pytest.mark.parametrize("done", [False, True], ids=["before", "behind"])
def test_whatever_call_it_dies_at_nothing_is_lost_or_there_twice(
    any_trail: Trail,
    done: bool,
) -> None:
    """A2, A3, A5, A21: recovery goes on in order, and a half-written batch converges."""
    at = 0
    while True:
        at += 1
        any_trail.client.drop_database(any_trail.config.database)
        writer = Writer(any_trail, "trail", patience=Dying(any_trail, at=at, done=done))
        try:
            writer.open()
            writer.write(steps(ROWS, events_max=EVENTS_MAX), marker=marker)
        except PowerCutError:
            _check_whole_commits(any_trail)
            write(any_trail, ROWS, events_max=EVENTS_MAX)
            check(any_trail)
        else:
            break
    assert at > 10
    check(any_trail)


COMMANDS = [
    *("find", "find_one", "insert_many", "insert_one", "update_one", "replace_one"),
    *("delete_many", "delete_one"),
]


@contextmanager
def dying_at(command: int, *, done: bool) -> Generator[None]:
    """The process dies at its command number `command`, in whichever thread: before it, or behind.

    From then on it sends nothing more.
    """
    left, lock, gone = command, threading.Lock(), threading.Event()

    def dying(act: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any, **options: Any) -> Any:
            nonlocal left
            with lock:
                left -= 1
                mine = left == 0
                if gone.is_set():
                    raise PowerCutError
                if mine:
                    gone.set()
                if mine and not done:
                    raise PowerCutError
            found = act(*arguments, **options)
            if mine:
                raise PowerCutError
            return found

        return called

    with pytest.MonkeyPatch.context() as patched:
        for name in COMMANDS:
            patched.setattr(Collection, name, dying(getattr(Collection, name)))
        patched.setattr(
            ClientSession, "commit_transaction", dying(ClientSession.commit_transaction)
        )
        yield


@pytest.mark.parametrize("stride", [4, pytest.param(1, marks=pytest.mark.soak)])
@pytest.mark.parametrize("together", [1, 6])
@pytest.mark.parametrize("done", [False, True], ids=["before", "behind"])
def test_whatever_command_it_dies_at_the_trail_is_whole_and_proved(
    any_trail: Trail, done: bool, together: int, stride: int
) -> None:
    """A2, A3, A5: several batches in one transaction, parts that are staged and brought in by
    several writers; then the one who finds that dies too, and the third makes it whole.

    At every command in the long runs; else at every fourth, from a random one on."""
    config = any_trail.config
    said = {"transaction_events": together, "writers": 3}
    with closing(trail_of(config.uri.get_secret_value(), config.database, **said)) as trail:
        writer_of(trail)
        seed, ended = seed_of("power cut") % stride, False
        while not ended:
            seed += stride
            for one in (trail.records, trail.batches, trail.heads, trail.staging):
                one.delete_many({})
            writer = writer_of(trail)
            try:
                with dying_at(seed, done=done):
                    writer.write(steps(ROWS, events_max=EVENTS_MAX), marker=marker)
                    ended = True
            except PowerCutError:
                print(f"seed {seed}")
                _check_whole_commits(trail)
            second = random.Random(seed).randrange(1, 30)
            try:
                with dying_at(second, done=not done):
                    write(trail, ROWS, events_max=EVENTS_MAX)
            except PowerCutError:
                _check_whole_commits(trail)
            write(trail, ROWS, events_max=EVENTS_MAX)
            check(trail)
            assert verify(trail).sound
        assert seed > 12


def test_dying_while_parts_are_brought_in_is_gone_on_with_from_the_parts_alone(
    any_trail: Trail, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind its commit point, a commit needs the log no more."""
    brought: list[str] = []

    def dying(trail: Trail, name: str, **options: Any) -> None:
        if len(brought) == 2:
            raise PowerCutError
        brought.append(name)
        bring_part(trail, name, **options)

    with monkeypatch.context() as patched:
        patched.setattr("penstock.audit.bringing.bring_part", dying)
        with pytest.raises(PowerCutError):
            write(any_trail, commit_of(1, 12), events_max=2)
    head = any_trail.head()
    assert head is not None
    assert (head.at, head.staged is not None) == (0, True)
    assert write(any_trail, []).at == 12
    assert [record["seq"] for record in stored(any_trail)] == list(range(12))


def check(trail: Trail) -> None:
    """All of ROWS is there, once, in order, and chained; nothing is pending."""
    found = stored(trail)
    assert [record["at"] for record in found] == list(range(1, len(ROWS) + 1))
    assert [record["_id"] for record in found] == [one["event_id"] for one in ROWS]
    assert trail.staging.count_documents({"status": "pending"}) == 0
    head = trail.head()
    assert head is not None
    assert (head.at, head.staged) == (len(ROWS), None)
    before = bytes(HASH_BYTES)
    for number, batch in enumerate(trail.batches.find().sort("_id", 1), 1):
        said: dict[str, Any] = {name: int(batch[name]) for name in ("first", "last")}
        before = batch_hash(before=before, root=batch["root"], number=number, key=None, **said)
        assert (batch["_id"], batch["hash"]) == (number, before)
    assert before == head.hash


def _check_whole_commits(trail: Trail) -> None:
    """Up to the head there are whole commits, whatever lies beyond it."""
    head = trail.head()
    shown = [] if head is None else [one for one in stored(trail) if one["at"] <= head.at]
    sizes = {one["txn"]["id"]: one["txn"]["size"] for one in shown}
    assert len(shown) == sum(sizes.values())
