"""The loop of every reader, on a clock that the test moves."""

from collections.abc import Sequence

import pytest

from penstock.progress import Progress
from penstock.subscribe import Criteria, Delivery, Subscription, follow
from penstock.wire import Block
from tests.subscribe.events import LOG_ID, PartialLog, blocks_of, commit, one_each, system

START = Progress(LOG_ID, 0, 0)


class NothingMoreError(Exception):
    """A reader waits without an end, for what will never come."""


class TickingLog(PartialLog):
    """Blocks that are read one at a time, each read taking a second; quiet at the end."""

    def __init__(self, blocks: Sequence[Block]) -> None:
        self._blocks = blocks
        self.now = 0.0
        self.waits: list[float | None] = []

    async def read(
        self, *, after: int, until: int | None = None, bytes_max: int = 1
    ) -> list[Block]:
        self.now += 1
        return [one for one in self._blocks if one.last_sequence > after][:1]

    async def wait(self, *, after: int, timeout_seconds: float | None = None) -> bool:
        self.waits.append(timeout_seconds)
        if timeout_seconds is None:
            raise NothingMoreError
        self.now += timeout_seconds
        return False


async def collect(
    log: TickingLog, count: int, wished: Criteria, *, heartbeat_seconds: float = 10
) -> list[Delivery]:
    deliveries: list[Delivery] = []
    async for delivery in follow(
        log,
        Subscription(criteria=wished, progress=START),
        bytes_max=1,
        heartbeat_seconds=heartbeat_seconds,
        clock=lambda: log.now,
    ):
        deliveries.append(delivery)
        if len(deliveries) == count:
            break
    return deliveries


NOTHING = Criteria(collections=frozenset({"nothing"}))


async def test_heartbeats_come_while_catching_up_past_what_the_filter_takes_out_p15() -> None:
    log = TickingLog(blocks_of([one_each(n, n) for n in range(1, 36)]))
    deliveries = await collect(log, 3, NOTHING)
    assert [delivery.slices for delivery in deliveries] == [(), (), ()]
    assert [delivery.progress.sequence for delivery in deliveries] == [10, 20, 30]
    assert log.waits == []


async def test_a_quiet_log_yields_a_heartbeat_each_interval_from_the_first_on_p15() -> None:
    log = TickingLog([])
    deliveries = await collect(log, 3, Criteria())
    assert deliveries == [Delivery(progress=START)] * 3
    # One second of each interval went into reading.
    assert log.waits == [9, 9, 9]


async def test_an_event_puts_the_next_heartbeat_off() -> None:
    log = TickingLog(blocks_of([one_each(n, n) for n in range(1, 4)]))
    deliveries = await collect(log, 4, Criteria())
    assert [len(delivery.slices) for delivery in deliveries] == [1, 1, 1, 0]
    assert log.waits == [9]


async def test_an_interval_of_0_sends_no_heartbeat_p15() -> None:
    log = TickingLog(blocks_of([one_each(n, n) for n in range(1, 36)]))
    with pytest.raises(NothingMoreError):
        await collect(log, 1, NOTHING, heartbeat_seconds=0)
    assert log.waits == [None]


async def test_nothing_comes_after_a_gap_that_the_reader_did_not_ask_for() -> None:
    log = TickingLog(blocks_of([one_each(1, 2), [commit(system(3, "gap"))], one_each(4, 5)]))
    deliveries = await collect(log, 99, Criteria())
    assert [delivery.progress.sequence for delivery in deliveries] == [2, 2]
    assert deliveries[-1].gap is not None
