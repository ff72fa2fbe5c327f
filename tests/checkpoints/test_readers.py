"""What readers of the lost log get from the one that begins above its published copy (P33, P7)."""

import pytest
from msgspec import structs

from penstock.capture.lineage import above
from penstock.client import follow_log
from penstock.client.flight import PlanRequest
from penstock.errors import GapError
from penstock.event import ChangeEvent, Commit
from penstock.log import MemoryLog
from penstock.ports import Checkpoint, SourceState
from penstock.progress import Progress
from penstock.serve.flight import plan
from penstock.testing.contracts.entries import changes

LOST = Checkpoint(
    instance="shop",
    log_id=77,
    writer="old",
    sequence=1000,
    commit=300,
    check=0xABCD,
    sources=(
        SourceState(
            source="a", position="7", commits=300, events=1000, last_timestamp=5000, moved_at=9
        ),
    ),
    published_at=6000,
)


async def new_log() -> MemoryLog:
    """Above LOST, with three changes of `a` and two of `b`, which is new."""
    log = MemoryLog(above=above(LOST, configured=["a", "b"]))
    await log.append([Commit(source="a", position="8", events=changes("a", "8", 3))])
    await log.append([Commit(source="b", position="1", events=changes("b", "1", 2))])
    return log


async def followed(log: MemoryLog, after: str, *, count: int, control_events: bool) -> list[str]:
    """The first `count` entries, in short."""
    seen: list[str] = []
    stream = follow_log(log, after=after, control_events=control_events)
    async with stream:
        async for change in stream:
            event = change.event
            name = event.document_id if isinstance(event, ChangeEvent) else event.operation
            seen.append(f"{event.source}:{name}")
            if len(seen) == count:
                break
    return seen


async def test_a_reader_that_asks_for_control_events_is_told_the_gaps_and_goes_on() -> None:
    log = await new_log()
    marker = str(Progress(77, 400, 1))
    assert await followed(log, marker, count=7, control_events=True) == [
        "a:gap",
        "b:gap",
        "a:a/8/0",
        "a:a/8/1",
        "a:a/8/2",
        "b:b/1/0",
        "b:b/1/1",
    ]


async def test_a_reader_that_does_not_is_stopped_and_goes_on_from_the_marker_it_is_given() -> None:
    """Once for each gap: none is passed over."""
    log = await new_log()
    marker, told = str(Progress(77, 1001, 1)), 0
    while True:
        try:
            assert await followed(log, marker, count=5, control_events=False) == [
                "a:a/8/0",
                "a:a/8/1",
                "a:a/8/2",
                "b:b/1/0",
                "b:b/1/1",
            ]
            break
        except GapError as error:
            marker = error.after
            told += 1
    assert told == 3, "its marker was beyond the copy, and then there are two gaps"


async def test_a_read_that_was_planned_on_the_lost_log_does_not_skip_the_gaps() -> None:
    """A Spark batch is replayed with the markers of its offsets: it is empty, and the next one
    begins with the gaps."""
    log = await new_log()
    begin, end = Progress(77, 400, 1), Progress(77, 500, 2)
    replayed = plan(log, PlanRequest(after=begin, until=end))
    assert replayed.after == replayed.to
    following = plan(log, PlanRequest(after=end))
    assert (following.after.sequence, following.to.sequence) == (1000, 1007)
    beyond = structs.replace(end, sequence=1001)
    with pytest.raises(GapError):
        plan(log, PlanRequest(after=begin, until=beyond))


async def test_a_copy_of_an_empty_log_has_nothing_to_tell() -> None:
    empty = structs.replace(LOST, sequence=0, commit=0, check=0)
    log = MemoryLog(above=above(empty, configured=["a"]))
    bounds = await log.bounds()
    assert (bounds.head, bounds.ancestors[0].gone) == (0, True)
    assert await log.position("a") == "7"
