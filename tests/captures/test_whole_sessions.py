"""Whole sessions, against evaluating each request over all of the log from its start."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

import pytest
from msgspec import structs

from penstock.errors import PenstockError, RequestError, ServiceUnavailableError
from penstock.progress import Progress, parse_progress
from penstock.subscribe.captures import (
    Boundary,
    Captured,
    CaptureRequest,
    Confirmed,
    Finished,
    Hub,
    Limits,
    Maintained,
    Output,
    Session,
    parse_request,
)
from penstock.subscribe.captures import lane as lanes
from penstock.subscribe.captures.matching import Matcher
from penstock.wire import Block
from tests.captures.support import Reader
from tests.flight.blocks import BlockLog, insert
from tests.waiting import patience

_NAMES = "abcde"
_SITES: list[dict[str, Any]] = [
    {},
    {"catalog": "shop"},
    {"catalog": "erp"},
    {"entityType": "orders"},
    {"entityType": ["lines", "parts"]},
    {"entityPrimaryKey": [1, 2, 3]},
    {"catalog": "erp", "entityPrimaryKey": [4]},
    {"fields": ["total"]},
    {"operation": "delete"},
]


class Item(NamedTuple):
    """What a request gets; in order. `kind`: 0 a beginning, 1 an entry, 2 an end."""

    sequence: int
    """Of the entry, or of the first or last of the transaction."""
    kind: int


class Flaky(Reader):
    """A log that fails now and then, and answers late."""

    def __init__(self, log: BlockLog, dice: random.Random, failing: float) -> None:
        super().__init__(log)
        self.dice = dice
        self.failing = failing

    async def read(
        self, *, after: int, until: int | None = None, bytes_max: int = 1 << 20
    ) -> list[Block]:
        for _ in range(self.dice.randrange(4)):
            await asyncio.sleep(0)
        if self.dice.random() < self.failing:
            raise ServiceUnavailableError("the log is away")
        found = await super().read(after=after, until=until, bytes_max=bytes_max)
        for _ in range(self.dice.randrange(4)):
            await asyncio.sleep(0)
        return found[: self.dice.randrange(1, 4)]

    async def wait(self, *, after: int, timeout_seconds: float | None = None) -> bool:
        # Not to wait for long is as good as the wait of a log that was appended to.
        del timeout_seconds, after
        for _ in range(self.dice.randrange(1, 4)):
            await asyncio.sleep(0)
        return True


def wanted(log: BlockLog, request: CaptureRequest, after: int) -> list[Item]:
    """All that a request gets of the log that begins behind `after`, by asking it alone."""
    matcher = Matcher([request])
    since = request.since
    start = (since.version, since.index) if since.version is not None else (0, 0)
    commits: dict[int, list[tuple[int, int, bool]]] = {}
    edged: set[int] = set()
    for block in log.blocks:
        matched = {one.i for one in matcher.select(block)}
        for i in range(block.start, block.stop):
            version = block.commit(i)
            entry = (block.first_sequence + i, block.ordinal(i) + 1, i in matched)
            commits.setdefault(version, []).append(entry)
            if matcher.headers(block.stream(i)):
                edged.add(version)
    found: list[Item] = []
    for version, entries in commits.items():
        (first, *_), (last, last_index, _) = entries[0], entries[-1]
        if version in edged and first > after and (version, 0) >= start:
            found.append(Item(first, 0))
        found += [
            Item(sequence, 1)
            for sequence, index, is_matched in entries
            if is_matched and sequence > after and (version, index) >= start
        ]
        if version in edged and last > after and (version, last_index) >= start:
            found.append(Item(last, 2))
    return found


class Told:
    """What one request was told since it was confirmed."""

    def __init__(self, log: BlockLog, request: CaptureRequest, after: Progress) -> None:
        self.log = log
        self.request = request
        self.after = after.sequence
        self.got: list[Item] = []
        self._all: tuple[int, list[Item]] = (-1, [])

    def all(self) -> list[Item]:
        """What there is for it by now."""
        if self._all[0] != self.log.head:
            self._all = self.log.head, wanted(self.log, self.request, self.after)
        return self._all[1]

    def standing(self, place: int) -> None:
        """All up to `place` came, and nothing behind it but what its promise says comes again."""
        if place < self.after:
            raise AssertionError((place, self.after))
        due = [one for one in self.all() if one.sequence <= place]
        assert self.got[: len(due)] == due, (place, self.got, due)
        assert len(self.got) - len(due) <= 2, (place, self.got, due)

    def is_prefix(self) -> None:
        due = self.all()
        assert self.got == due[: len(self.got)], (self.got, due, self.after, self.request)


class Run:
    """One session, and what is known of it."""

    def __init__(self, seed: int, *, failing: float) -> None:
        self.dice = random.Random(seed)
        self.checking_seconds = 0.0
        self.log = BlockLog(block_events=self.dice.choice([4, 7, 40]))
        self.reader = Flaky(self.log, self.dice, failing)
        self.hub = Hub(self.reader, pause_seconds=0, retry_seconds=0.001)
        limits = Limits(maintenance_seconds=0.02)
        self.session = Session(self.reader, self.hub, limits=limits, clock=self.clock)
        self.told: dict[str, Told] = {}
        self.asked: dict[str, list[CaptureRequest]] = {name: [] for name in _NAMES}
        self.positions: dict[str, Progress] = {}
        self.ended = 0
        self.compared = 0

    def clock(self) -> float:
        """Without the time that it takes to check: else there is no time for anything else."""
        return time.monotonic() - self.checking_seconds

    def append(self) -> None:
        commits = [
            [
                insert(
                    self.dice.randrange(6),
                    source=self.dice.choice(["shop", "shop", "erp"]),
                    collection=self.dice.choice(["orders", "lines", "parts"]),
                )
                for _ in range(self.dice.choice([1, 2, 5, 30]))
            ]
            for _ in range(self.dice.randrange(1, 5))
        ]
        self.log.append(commits)

    def request(self, name: str, *, since: object = None) -> CaptureRequest:
        criteria: list[dict[str, Any]] = []
        for _ in range(self.dice.randrange(1, 3)):
            area = self.dice.choice(["data", "data", "infrastructure", None])
            site = dict(self.dice.choice(_SITES))
            if area == "infrastructure":
                site = {key: one for key, one in site.items() if key == "catalog"}
            criteria.append({"area": area, "site": site})
        given: dict[str, Any] = {"id": name, "criteria": criteria}
        if since is not None:
            given["since"] = since
        return parse_request(given, new_id=lambda: name)

    def since(self) -> object:
        head, commits = self.log.head, self.log.head_commit
        return self.dice.choice(
            [
                None,
                "beginning",
                {"progress": str(self.log.marker(self.dice.randint(1, head)))},
                {"version": self.dice.randint(1, commits)},
                {"version": self.dice.randint(1, commits + 3), "index": self.dice.randrange(4)},
            ]
        )

    async def command(self) -> None:
        name = self.dice.choice(_NAMES)
        kind = self.dice.choice(["append"] * 4 + ["add"] * 3 + ["change", "remove", "sleep"])
        try:
            if kind == "append":
                self.append()
            elif kind == "add" and name not in self.session.ids:
                await self.ask(self.session.add, self.request(name, since=self.since()))
            elif kind == "change" and name in self.session.ids:
                await self.ask(self.session.change, self.request(name))
            elif kind == "remove" and name in self.session.ids:
                self.session.remove(name)
        except (ServiceUnavailableError, RequestError):
            pass  # refused, and nothing has changed
        for _ in range(self.dice.randrange(12)):
            await asyncio.sleep(0)

    async def ask(
        self, command: Callable[[CaptureRequest], Awaitable[None]], request: CaptureRequest
    ) -> None:
        self.asked[request.id].append(request)
        try:
            await command(request)
        except PenstockError:
            self.asked[request.id].remove(request)
            raise

    async def take(self) -> None:
        await asyncio.sleep(0)  # as who sends does
        outputs = await self.session.next(count_max=self.dice.choice([1, 3, 256]))
        began = time.monotonic()
        self.check(outputs)
        self.checking_seconds += time.monotonic() - began

    def check(self, outputs: Sequence[Output]) -> None:
        for one in outputs:
            if isinstance(one, Confirmed):
                self.confirmed(one)
            elif isinstance(one, Captured):
                for name in one.ids:
                    self.told[name].got.append(Item(one.block.first_sequence + one.i, 1))
            elif isinstance(one, Boundary):
                at = parse_progress(one.progress).sequence
                for name in one.ids:
                    self.told[name].got.append(Item(at + one.begins, 0 if one.begins else 2))
            elif isinstance(one, Maintained):
                assert self.told.keys() >= one.positions.keys()
                for name, place in one.positions.items():
                    self.told[name].standing(place.sequence)
                    self.compared += 1
            else:
                assert isinstance(one, Finished)
                self.ended += 1
                self.told.pop(one.id).is_prefix()

    def confirmed(self, said: Confirmed) -> None:
        before = self.told.pop(said.id, None)
        request = self.asked[said.id].pop(0)
        if before is not None:  # it was changed
            before.is_prefix()
            before.standing(max(said.after.sequence, before.after))
            if before.request.since.version is not None:
                request = parse_since(request, before.request)
        self.told[said.id] = Told(self.log, request, said.after)

    async def settled(self) -> None:
        while any(
            name not in self.told or place.sequence < self.log.head
            for name, place in self.session.positions().items()
        ):
            await self.take()

    async def run(self) -> None:
        self.append()
        following = asyncio.create_task(self.hub.run())
        commanding = asyncio.create_task(self.commands())
        try:
            while not commanding.done():
                await self.take()
            await commanding
            self.reader.failing = 0
            await self.settled()
            for told in self.told.values():
                told.is_prefix()
            for name, place in self.session.positions().items():
                self.told[name].standing(place.sequence)
        finally:
            for task in (following, commanding):
                task.cancel()
            await asyncio.wait({following, commanding})
            self.session.close()
        assert not list(self.hub._routes)  # pyright: ignore[reportPrivateUsage]

    async def commands(self) -> None:
        for _ in range(120):
            await self.command()


def parse_since(request: CaptureRequest, before: CaptureRequest) -> CaptureRequest:
    """`request` begins, if it does, where the one before it does."""
    return structs.replace(request, since=before.since)


@pytest.mark.slow
@pytest.mark.parametrize("failing", [0.0, 0.01])
@pytest.mark.parametrize("seed", range(5))
async def test_every_request_gets_exactly_what_it_asks_for(
    seed: int, failing: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E1, E2, E4, E7, E9, E11: in order, each once, whatever others do, where the log fails now and
    then, and where more is offered than may be pending; what is safe is what was told."""
    monkeypatch.setattr(lanes, "PENDING_BYTES_MAX", 12_000)
    run = Run(seed, failing=failing)
    async with patience():
        await run.run()
    assert run.compared
