"""Every gap of the log is found, whoever wrote it, and it is open until it was made good."""

import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.capture import Supervised, Supervisor
from penstock.capture.alerts import Alert
from penstock.capture.config import CaptureConfig
from penstock.capture.gaps import GAPS_MAX, LETTERS, GapWatch, OpenGaps, Scanned
from penstock.capture.moving import move
from penstock.cli.last_states import LastStates
from penstock.cli.observer import Observer
from penstock.cli.remembered import NAME, AlertMemory, Remembered
from penstock.event import Commit
from penstock.log import MemoryLog
from tests.capture.doubles import ListSource, ManualClock, commit
from tests.state.histories import system

STARTED, COMPLETED = "snapshot_started", "snapshot_completed"


Story = list[tuple[str, dict[str, Any]]]
"""Operations, and what they say."""


def parts(story: Story, source: str = "shop") -> list[str]:
    """What is open after `story`, whose sequences count from 1."""
    gaps = OpenGaps()
    for sequence, (operation, said) in enumerate(story, 1):
        gaps.take(system(source, operation, **said), sequence=sequence, at_ms=sequence)
    return list(gaps.open.get(source, {}))


NOTHING: dict[str, Any] = {}
WHOLE: dict[str, Any] = {"snapshot": "s", "whole": True}


@pytest.mark.parametrize(
    ("story", "left"),
    [
        ([("gap", NOTHING)], ["1"]),
        ([("gap", NOTHING), ("gap", NOTHING)], ["1", "2"]),
        ([("gap", {"reason": "scope"})], []),
        ([("gap", NOTHING), (STARTED, WHOLE), (COMPLETED, WHOLE)], []),
        ([("gap", NOTHING), ("gap_closed", NOTHING)], []),
        # It went on, and what was lost is still lost.
        ([("gap", NOTHING), ("gap_ended", NOTHING)], ["1", "2"]),
        # A copy of some collections, and one that began before the loss, make nothing good.
        ([("gap", NOTHING), (STARTED, {"snapshot": "s"}), (COMPLETED, {"snapshot": "s"})], ["1"]),
        ([(STARTED, WHOLE), ("gap", NOTHING), (COMPLETED, WHOLE)], ["2"]),
        (
            [
                (STARTED, WHOLE),
                ("gap", NOTHING),
                (STARTED, {**WHOLE, "again": 1}),
                (COMPLETED, WHOLE),
            ],
            ["2"],
        ),
        # Letters are one alert, over with the last of them.
        ([("gap", {"deadLetter": "a"}), ("gap", {"deadLetter": "b"})], [LETTERS]),
        ([("gap", {"deadLetter": "a"}), ("dead_letter_replayed", {"deadLetter": "a"})], []),
        (
            [
                ("gap", {"deadLetter": "a"}),
                ("gap", {"deadLetter": "b"}),
                ("dead_letter_settled", {"deadLetter": "a"}),
            ],
            [LETTERS],
        ),
        ([("gap", NOTHING), ("gap", {"deadLetter": "a"}), ("gap_closed", NOTHING)], [LETTERS]),
        ([("gap", {"deadLetter": "a"}), (STARTED, WHOLE), (COMPLETED, WHOLE)], []),
    ],
)
def test_a_gap_is_open_until_what_it_lost_is_copied_or_replayed(
    story: Story, left: list[str]
) -> None:
    assert parts(story) == left


def test_a_gap_that_says_nothing_of_itself_is_a_gap() -> None:
    """A source of another's may describe it in its own way; that must not end capture."""
    gaps = OpenGaps()
    for description in (b"[]", b"null"):
        event = msgspec.structs.replace(system("shop", "gap"), description=msgspec.Raw(description))
        gaps.take(event, sequence=1, at_ms=1)
    assert list(gaps.open["shop"]) == ["1"]


def test_many_gaps_and_letters_are_bounded_and_stay_open() -> None:
    """Invariant 6: what is not told apart is not told to be over."""
    gaps: Story = [("gap", NOTHING)] * GAPS_MAX * 3
    letters: Story = [("gap", {"deadLetter": str(n)}) for n in range(GAPS_MAX * 3)]
    replayed: Story = [
        ("dead_letter_replayed", {"deadLetter": str(n)}) for n in range(GAPS_MAX * 3)
    ]
    assert len(parts(gaps)) == GAPS_MAX
    assert parts(letters + replayed) == [LETTERS]
    assert parts(letters[:GAPS_MAX] + replayed[:GAPS_MAX]) == []


story = st.lists(
    st.tuples(st.sampled_from(("gap", "row", "closed", "started")), st.sampled_from(("a", "b"))),
    max_size=30,
)


@given(story=story, seed=st.integers(0, 2**32))
async def test_whenever_it_is_stopped_it_finds_each_gap_once_and_no_other(
    story: list[tuple[str, str]], seed: int
) -> None:
    """What was read is kept with what was found, so a crash repeats nothing and misses nothing."""
    rng, log = random.Random(seed), MemoryLog()
    watch, expected = GapWatch(log), OpenGaps()
    for n, (what, source) in enumerate(story, 1):
        if what == "row":
            await log.append([commit(n, source=source)])
        else:
            operation = {"gap": "gap", "closed": "gap_closed", "started": "started"}[what]
            event = system(source, operation)
            await log.append([Commit(source=source, position=str(n), events=(event,))])
            head = (await log.bounds()).head
            (block,) = await log.read(after=head - 1)
            expected.take(event, sequence=head, at_ms=block.ingested_at)
        if rng.random() < 0.5:
            await watch.step()
        if rng.random() < 0.3:
            kept = msgspec.json.encode(watch.scanned)
            watch = GapWatch(log, msgspec.json.decode(kept, type=Scanned))
    await watch.step()
    assert watch.scanned.gaps == expected
    assert watch.scanned.sequence == (await log.bounds()).head
    await log.close()


async def test_another_log_is_read_from_its_beginning_and_a_trimmed_one_from_what_is_left() -> None:
    watch = GapWatch(MemoryLog(), Scanned(log_id=1, sequence=10, gaps=OpenGaps(copies={"x": "y"})))
    await watch.step()
    assert watch.scanned.gaps == OpenGaps()
    log = MemoryLog()
    for n in range(1, 5):
        event = system("shop", "gap")
        await log.append([Commit(source="shop", position=str(n), events=(event,))])
    late = GapWatch(log)
    await log.trim(2)
    await late.step()
    assert list(late.scanned.gaps.open["shop"]) == ["3", "4"]
    behind = GapWatch(log, Scanned(log_id=(await log.bounds()).log_id, sequence=1))
    await behind.step()
    assert list(behind.scanned.gaps.open["shop"]) == ["3", "4"]
    await log.close()


# --- over restarts of capture -------------------------------------------------------------------


class ObservedLog(MemoryLog):
    age_retention_paused = False


class Capture:
    """One life of the capture process, as far as alerts go."""

    def __init__(self, log: ObservedLog, folder: Path, clock: ManualClock) -> None:
        self.alerts: list[Alert] = []
        self.clock = clock
        supervised = Supervised(source=ListSource([]), silence_seconds_max=60)
        self.observer = Observer(
            log,
            Supervisor(log, [supervised], clock=clock, rng=random.Random(1)),
            CaptureConfig.model_validate({}),
            clock,
            alert=self._take,
            memory=AlertMemory(folder),
            last=LastStates(folder),
        )

    def _take(self, alert: Alert) -> bool:
        self.alerts.append(alert)
        return True

    async def look(self, seconds: float = 0.0) -> list[tuple[str, str]]:
        """Look after so many seconds: the ids and statuses of the alerts that it made new."""
        self.clock.seconds += seconds
        before = len(self.alerts)
        await self.observer.gaps.step()
        await self.observer.observe()
        return [(alert.id, alert.status) for alert in self.alerts[before:]]

    def delivered(self) -> None:
        for alert in self.alerts:
            self.observer.delivered(alert)


async def test_a_gap_that_a_command_wrote_is_told_also_if_the_service_was_down(
    tmp_path: Path,
) -> None:
    log, clock = ObservedLog(), ManualClock()
    await log.append([commit(1), commit(2), commit(3)])
    first = Capture(log, tmp_path, clock)
    assert await first.look() == []
    await move(log, "shop", "1", now_ms=0)
    assert await first.look() == [("gap:shop:4", "raised")]
    first.delivered()
    await first.look()
    # The service is down: another process writes.
    await move(log, "shop", "3", now_ms=1)
    assert await Capture(log, tmp_path, clock).look() == [("gap:shop:5", "raised")]
    await log.close()


async def test_a_gap_written_just_before_a_crash_is_told_after_it_and_once_delivered_no_more(
    tmp_path: Path,
) -> None:
    """Until somebody has it, every start tells it again, with the same id."""
    log, clock = ObservedLog(), ManualClock()
    await Capture(log, tmp_path, clock).look()
    await log.append([commit(1)])
    await move(log, "shop", "0", now_ms=0)
    raised = [("gap:shop:2", "raised")]
    for _ in range(3):
        assert await Capture(log, tmp_path, clock).look() == raised, "a crash before the delivery"
    heard = Capture(log, tmp_path, clock)
    assert await heard.look() == raised
    heard.delivered()
    await heard.look()
    after = Capture(log, tmp_path, clock)
    assert await after.look() == []
    for said in ({"snapshot": "s"}, {"snapshot": "s", "whole": True}):
        operation = "snapshot_completed" if "whole" in said else "snapshot_started"
        event = system("shop", operation, **said)
        await log.append([Commit(source="shop", position="0", events=(event,))])
    assert await after.look() == []
    again = Capture(log, tmp_path, clock)
    assert await again.look() == []
    assert await again.look(31) == [("gap:shop:2", "resolved")]
    again.delivered()
    await again.look()
    assert await Capture(log, tmp_path, clock).look(31) == []
    await log.close()


async def test_an_open_gap_is_told_also_after_retention_removed_its_entry(tmp_path: Path) -> None:
    log, clock = ObservedLog(), ManualClock()
    await log.append([commit(1)])
    await move(log, "shop", "0", now_ms=0)
    await Capture(log, tmp_path, clock).look()
    await log.append([commit(2)])
    await log.trim(3)
    assert await Capture(log, tmp_path, clock).look() == [("gap:shop:2", "raised")]
    await log.close()


async def told_of_a_gap(folder: Path, clock: ManualClock) -> ObservedLog:
    """A log with a gap at 2 that somebody was told of; `folder` remembers it."""
    log = ObservedLog()
    await log.append([commit(1)])
    await move(log, "shop", "0", now_ms=0)
    heard = Capture(log, folder, clock)
    assert await heard.look() == [("gap:shop:2", "raised")]
    heard.delivered()
    await heard.look()
    return log


@pytest.mark.parametrize("has_gap", [False, True])
async def test_what_was_told_of_another_log_is_not_said_to_be_over(
    tmp_path: Path, has_gap: bool
) -> None:
    """Nothing was copied; and a gap of the other log at the same place is news."""
    clock = ManualClock()
    await (await told_of_a_gap(tmp_path, clock)).close()
    other = ObservedLog()
    await other.append([commit(1)])
    if has_gap:
        await move(other, "shop", "0", now_ms=0)
    raised = [("gap:shop:2", "raised")] if has_gap else []
    capture = Capture(other, tmp_path, clock)
    assert await capture.look() == raised
    assert await capture.look(31) == []
    # Nor after one more restart, which reads what this one has kept.
    again = Capture(other, tmp_path, clock)
    assert await again.look() == raised
    assert await again.look(31) == []
    await other.close()


async def test_nothing_is_said_of_gaps_before_the_log_is_read_up_to_its_end(
    tmp_path: Path,
) -> None:
    """A large log takes minutes: what is not found yet is not over, and what is found may be."""
    clock = ManualClock()
    log = await told_of_a_gap(tmp_path, clock)
    # Nothing is kept of how far was read: as after a crash in the middle of the first reading.
    kept = AlertMemory(tmp_path).read()
    kept.scanned = Scanned(log_id=kept.scanned.log_id)
    (tmp_path / NAME).write_bytes(msgspec.json.encode(kept))
    capture = Capture(log, tmp_path, clock)
    for _ in range(4):
        clock.seconds += 31
        await capture.observer.observe()
    assert capture.alerts == []
    assert await capture.look() == []
    assert await capture.look(31) == []
    # It is over when it is: a whole copy.
    for said in ({"snapshot": "s"}, {"snapshot": "s", "whole": True}):
        operation = "snapshot_completed" if "whole" in said else "snapshot_started"
        event = system("shop", operation, **said)
        await log.append([Commit(source="shop", position="0", events=(event,))])
    assert await capture.look() == []
    assert await capture.look(31) == [("gap:shop:2", "resolved")]
    # Found by a process that crashed before it told it, and made good since.
    kept.told = []
    kept.scanned.gaps.take(system("shop", "gap"), sequence=2, at_ms=0)
    kept.scanned.sequence = 2
    (tmp_path / NAME).write_bytes(msgspec.json.encode(kept))
    late = Capture(log, tmp_path, clock)
    await late.observer.observe()
    assert await late.look() == []
    assert late.alerts == []
    await log.close()


@pytest.mark.parametrize("content", [b"", b"{", b'{"scanned":5}'])
async def test_a_file_that_is_lost_or_damaged_costs_a_repeat_and_no_alert(
    tmp_path: Path, content: bytes
) -> None:
    log, clock = ObservedLog(), ManualClock()
    await log.append([commit(1)])
    await move(log, "shop", "0", now_ms=0)
    heard = Capture(log, tmp_path, clock)
    await heard.look()
    heard.delivered()
    await heard.look()
    (tmp_path / NAME).write_bytes(content)
    assert await Capture(log, tmp_path, clock).look() == [("gap:shop:2", "raised")]
    await log.close()


async def test_a_disk_that_does_not_take_the_file_holds_up_nothing(tmp_path: Path) -> None:
    log, clock = ObservedLog(), ManualClock()
    await log.append([commit(1)])
    await move(log, "shop", "0", now_ms=0)
    folder = tmp_path / "gone"
    capture = Capture(log, folder, clock)
    assert await capture.look() == [("gap:shop:2", "raised")]
    assert await capture.look() == []
    folder.mkdir()
    capture.delivered()
    await capture.look()
    assert await Capture(log, folder, clock).look() == []
    await log.close()


async def test_how_far_was_read_is_written_now_and_then_and_not_with_every_commit(
    tmp_path: Path,
) -> None:
    log, clock = ObservedLog(), ManualClock()
    capture = Capture(log, tmp_path, clock)
    await capture.look()
    written = (tmp_path / NAME).read_bytes()
    await log.append([commit(1)])
    await capture.look(30)
    assert (tmp_path / NAME).read_bytes() == written
    await capture.look(31)
    kept = AlertMemory(tmp_path).read()
    assert kept.scanned.sequence == 1
    await log.close()


@pytest.mark.parametrize("content", [b"", b"\0" * 64, b"{", b'{"told":[{"kind":"\xff"}]}', None])
def test_a_file_of_alerts_that_cannot_be_read_keeps_nothing_from_being_captured(
    tmp_path: Path, content: bytes | None
) -> None:
    path = tmp_path / NAME
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    assert AlertMemory(tmp_path).read() == Remembered()
