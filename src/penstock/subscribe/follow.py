"""The one loop of every reader: catching up and live are the same reading of the log."""

import asyncio
from collections.abc import AsyncGenerator, Callable

from penstock.ports import LogReader
from penstock.subscribe.coalesce import Coalescing, Steps, coalesce, window_of
from penstock.subscribe.deliver import Delivery, Subscription, deliver
from penstock.telemetry import CHANGES_COALESCED, INSERTS_REPEATED


async def follow(
    log: LogReader,
    subscription: Subscription,
    *,
    bytes_max: int,
    heartbeat_seconds: float,
    clock: Callable[[], float],
    coalescing: Coalescing | None = None,
) -> AsyncGenerator[Delivery]:
    """Yield what goes out to one reader, in log order, until the reader stops asking.

    A slow reader simply asks later, and the log is read on from its place: nothing waits in
    memory but the delivery in hand (about `bytes_max`). A delivery without slices is a heartbeat:
    it comes when nothing went out for `heartbeat_seconds` of `clock` (0 = never), live as well as
    while catching up past entries that the filter takes out. Ends after a delivery with a gap.
    With `coalescing`, a reader that is far behind gets windows, in which the changes of a document
    are merged; each loop decides anew. Raises what the log and `deliver` raise.
    """
    sent_at = clock()
    while True:
        after = subscription.progress.sequence
        if coalescing is not None and await _behind(log, after) > coalescing.threshold:
            blocks = await log.read(after=after, bytes_max=coalescing.window_bytes)
            blocks = window_of(blocks, events_max=coalescing.window_events)
            delivery = await _by_turns(
                coalesce(
                    blocks,
                    deliver(subscription, blocks),
                    start=subscription.progress,
                    insert_delete=coalescing.insert_delete,
                )
            )
            _count(delivery)
        else:
            blocks = await log.read(after=after, bytes_max=bytes_max)
            delivery = deliver(subscription, blocks)
        subscription = Subscription(criteria=subscription.criteria, progress=delivery.progress)
        quiet_seconds = clock() - sent_at
        heartbeat = 0 < heartbeat_seconds <= quiet_seconds
        if delivery.slices or delivery.gap is not None or heartbeat:
            yield delivery
            if delivery.gap is not None:
                return
            sent_at = clock()
        elif not blocks:
            timeout = heartbeat_seconds - quiet_seconds if heartbeat_seconds else None
            await log.wait(after=subscription.progress.sequence, timeout_seconds=timeout)


async def _behind(log: LogReader, sequence: int) -> int:
    """How many entries the log holds after `sequence`, whether the reader wants them or not."""
    return (await log.bounds()).head - sequence


async def _by_turns(steps: Steps) -> Delivery:
    """What `steps` come to, with a turn for every other reader between them (invariant 8)."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            delivery: Delivery = end.value
            return delivery
        await asyncio.sleep(0)


def _count(delivery: Delivery) -> None:
    if delivery.window is not None:
        CHANGES_COALESCED.inc(delivery.window.changes_merged)
        for source, count in delivery.window.inserts_repeated.items():
            INSERTS_REPEATED.labels(source).inc(count)
