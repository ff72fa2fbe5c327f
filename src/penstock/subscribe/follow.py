"""The one loop of every reader: catching up and live are the same reading of the log."""

from collections.abc import AsyncGenerator, Callable

from penstock.ports import LogReader
from penstock.subscribe.deliver import Delivery, Subscription, deliver


async def follow(
    log: LogReader,
    subscription: Subscription,
    *,
    bytes_max: int,
    heartbeat_seconds: float,
    clock: Callable[[], float],
) -> AsyncGenerator[Delivery]:
    """Yield what goes out to one reader, in log order, until the reader stops asking.

    A slow reader simply asks later, and the log is read on from its place: nothing waits in
    memory but the delivery in hand (about `bytes_max`). A delivery without slices is a heartbeat:
    it comes when nothing went out for `heartbeat_seconds` of `clock` (0 = never), live as well as
    while catching up past entries that the filter takes out. Ends after a delivery with a gap.
    Raises what the log and `deliver` raise.
    """
    sent_at = clock()
    while True:
        blocks = await log.read(after=subscription.progress.sequence, bytes_max=bytes_max)
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
