"""What every `ChangeLog` promises, durable or not."""

import asyncio
import random
import tempfile
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.clocks import Clock
from penstock.errors import AheadError, LogError, TrimmedError
from penstock.event import Commit, Fragment
from penstock.log.config import LogConfig
from penstock.ports import ChangeLog
from penstock.progress import Progress, parse_progress
from penstock.testing.contracts.entries import (
    change,
    changes,
    read_all,
    read_seen,
    require_whole_commits,
    seen,
)
from penstock.testing.contracts.model import Abandon, Batch, Model, histories

DAY_MS = 86_400_000


class ManualClock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self._wall_ms = 1_800_000_000_000
        self._steady_seconds = 1000.0

    def wall_ms(self) -> int:
        return self._wall_ms

    def steady_seconds(self) -> float:
        return self._steady_seconds

    def pass_(self, seconds: float) -> None:
        """Time goes by."""
        self._wall_ms += int(seconds * 1000)
        self._steady_seconds += seconds

    def jump(self, seconds: float) -> None:
        """Somebody sets the wall clock."""
        self._wall_ms += int(seconds * 1000)


class TrimmableLog(ChangeLog, Protocol):
    """A log that can also be trimmed by hand."""

    async def trim(self, until: int) -> None: ...


class ChangeLogContract:
    """Inherit, and give `open_log`."""

    def open_log(self, folder: Path, *, config: LogConfig, clock: Clock | None) -> TrimmableLog:
        """The log in `folder`, empty when the folder is; `config.path` lies in it."""
        raise NotImplementedError

    @asynccontextmanager
    async def opened(
        self, *, clock: Clock | None = None, **settings: object
    ) -> AsyncGenerator[TrimmableLog]:
        """A log of this test's own."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder)
            options = {"path": path / "log", "free_bytes_min": 0, **settings}
            config = LogConfig.model_validate(options)
            log = self.open_log(path, config=config, clock=clock)
            try:
                yield log
            finally:
                await log.close()

    # --- order, wholeness, positions (invariants 2 and 3) ---------------------------------------

    # One history suits every log: each class of a log runs them all.
    @settings(max_examples=40, suppress_health_check=[HealthCheck.differing_executors])
    @given(histories, st.randoms(use_true_random=False))
    async def test_a_log_says_what_was_appended_whatever_the_history(
        self, history: list[Batch | Abandon], random_: random.Random
    ) -> None:
        """P3: dense sequences, in commit order, commits whole, fragments unseen until the commit;
        and any range of it reads exactly.

        P14: one sequence covers all sources, and one that comes later has its place in it.
        """
        model = Model()
        async with self.opened() as log:
            for happening in history:
                if isinstance(happening, Abandon):
                    model.abandon(happening.source)
                    await log.abandon(happening.source)
                else:
                    await log.append(model.batch(happening))
                bounds = await log.bounds()
                assert (bounds.head, bounds.head_commit) == (len(model.entries), model.commits)
            assert await read_seen(log) == model.entries
            for source in ("a", "b", "c"):
                assert await log.position(source) == model.positions.get(source)
            head = len(model.entries)
            after = random_.randint(0, head)
            until = random_.randint(0, head)
            bytes_max = random_.choice([1, 5000, 1 << 20])
            entries = await read_all(log, after=after, until=until, bytes_max=bytes_max)
            assert [seen(entry) for entry in entries] == model.entries[after:until]

    async def test_events_and_the_position_of_their_source_appear_together(self) -> None:
        async with self.opened() as log:
            append = asyncio.ensure_future(
                log.append([Commit(source="a", position="7", events=changes("a", "7", 3))])
            )
            while not append.done():
                head, position = (await log.bounds()).head, await log.position("a")
                if head == 0 and position is not None:
                    # Between the two questions the append became visible: ask again.
                    head = (await log.bounds()).head
                assert (head, position) in {(0, None), (3, None), (3, "7")}
                await asyncio.sleep(0)
            await append
            assert ((await log.bounds()).head, await log.position("a")) == (3, "7")

    async def test_a_heartbeat_moves_the_position_and_takes_no_number(self) -> None:
        """P15, invariant 5."""
        clock = ManualClock()
        async with self.opened(clock=clock) as log:
            await log.append([Commit(source="a", position="1", events=changes("a", "1", 2))])
            before = await log.bounds()
            (quiet,) = await log.sources()
            clock.pass_(5)
            await log.append([Commit(source="a", position="2")])
            assert await log.bounds() == before
            assert await log.position("a") == "2"
            (moved,) = await log.sources()
            assert moved == msgspec.structs.replace(
                quiet, position="2", moved_at=quiet.moved_at + 5000
            )

    async def test_a_heartbeat_before_the_first_event_is_a_place_to_resume_from(self) -> None:
        """P15, P14: of its own source, and of no other."""
        async with self.opened() as log:
            await log.append([Commit(source="a", position="quiet")])
            assert (await log.position("a"), await log.position("b")) == ("quiet", None)
            assert (await log.bounds()).head == 0
            waiting = asyncio.ensure_future(log.wait(after=0))
            await log.append([Commit(source="a", position="1", events=changes("a", "1", 1))])
            assert await waiting
            assert [entry.document_id for entry in await read_seen(log, after=0)] == ["a/1/0"]

    async def test_a_batch_that_cannot_be_stored_leaves_nothing_behind(self) -> None:
        """P5: not its good commits either, and what comes after is appended without a hole."""
        bad = msgspec.structs.replace(change("a", "2"), document_id="\ud800")
        async with self.opened() as log:
            await log.append([Commit(source="a", position="1", events=changes("a", "1", 1))])
            before = await log.bounds()
            with pytest.raises(UnicodeEncodeError):
                await log.append(
                    [
                        Commit(source="b", position="1", events=changes("b", "1", 1)),
                        Commit(source="a", position="2", events=(bad,)),
                    ]
                )
            assert await log.bounds() == before
            assert (await log.position("a"), await log.position("b")) == ("1", None)
            await log.append([Commit(source="b", position="1", events=changes("b", "1", 1))])
            assert [entry.document_id for entry in await read_seen(log)] == ["a/1/0", "b/1/0"]

    @pytest.mark.parametrize(("rows", "bytes_"), [(2000, 50), (1900, 9_000)])
    async def test_a_source_that_does_not_wait_is_appended_in_its_order(
        self, rows: int, bytes_: int
    ) -> None:
        """P3: a large batch takes longer to encode (or to stage) than the small one after it."""
        async with self.opened() as log:
            large = Commit(source="a", position="1", events=changes("a", "1", rows, bytes_=bytes_))
            await asyncio.gather(
                log.append([large]),
                log.append([Commit(source="a", position="2", events=changes("a", "2", 1))]),
                log.append([Commit(source="b", position="1", events=changes("b", "1", 1))]),
            )
            own = [entry for entry in await read_seen(log) if entry.source == "a"]
            assert own[-1].document_id == "a/2/0"
            assert await log.position("a") == "2"

    async def test_batches_that_wait_behind_one_that_failed_are_not_written(self) -> None:
        """P3, P5: a source that does not wait gets no hole; others are not refused for it."""
        bad = msgspec.structs.replace(change("a", "1"), document_id="\ud800")
        async with self.opened() as log:
            results = await asyncio.gather(
                log.append([Commit(source="a", position="1", events=(bad,))]),
                log.append([Commit(source="a", position="2", events=changes("a", "2", 1))]),
                log.append([Commit(source="b", position="1", events=changes("b", "1", 1))]),
                log.append([Commit(source="a", position="3")]),
                return_exceptions=True,
            )
            assert [type(result) for result in results] == [
                UnicodeEncodeError,
                LogError,
                type(None),
                LogError,
            ]
            assert (await log.position("a"), await log.position("b")) == (None, "1")
            await log.append([Commit(source="a", position="1", events=changes("a", "1", 1))])
            assert [entry.document_id for entry in await read_seen(log)] == ["b/1/0", "a/1/0"]

    async def test_a_batch_whose_caller_left_keeps_its_place_before_the_next(self) -> None:
        """P3: cancelling the wait does not cancel the append, nor let another one overtake it."""
        async with self.opened() as log:
            for number in range(20):
                one, two = str(2 * number), str(2 * number + 1)
                left = asyncio.ensure_future(
                    log.append([Commit(source="a", position=one, events=changes("a", one, 1))])
                )
                for _ in range(number % 5):
                    await asyncio.sleep(0)
                left.cancel()
                await asyncio.gather(left, return_exceptions=True)
                await log.append([Commit(source="a", position=two, events=changes("a", two, 1))])
            ids = [entry.document_id for entry in await read_seen(log)]
            assert ids == sorted(ids, key=lambda one: int(one.split("/")[1]))
            assert await log.position("a") == "39"

    async def test_a_position_can_be_set_and_forgotten_by_hand(self) -> None:
        async with self.opened() as log:
            await log.append([Commit(source="a", position="1", events=changes("a", "1", 1))])
            await log.set_position("a", "0")
            assert await log.position("a") == "0"
            await log.set_position("a", None)
            assert await log.position("a") is None
            assert await log.sources() == []

    # --- large commits (S14) --------------------------------------------------------------------

    async def test_fragments_stay_invisible_until_their_commit_and_then_stand_whole(self) -> None:
        """S14: others append meanwhile, and nothing interleaves."""
        async with self.opened() as log:
            for start in range(0, 3000, 500):
                await log.append(
                    [Fragment(source="a", events=changes("a", "1", 500, start=start, bytes_=200))]
                )
                await log.append([Commit(source="b", position=str(start), events=())])
                position = f"x{start}"
                await log.append(
                    [Commit(source="c", position=position, events=changes("c", position, 1))]
                )
                sources = {entry.source for entry in await read_seen(log)}
                assert sources == {"c"}
                assert await log.position("a") is None
            await log.append([Commit(source="a", position="1", events=())])
            entries = await read_all(log)
            require_whole_commits(entries)
            assert [entry.commit_rows for entry in entries[-3000:]] == [3000] * 3000
            assert [seen(entry).document_id for entry in entries[-3000:]] == [
                f"a/1/{ordinal}" for ordinal in range(3000)
            ]

    async def test_abandoned_fragments_never_appear(self) -> None:
        """S14."""
        async with self.opened() as log:
            await log.append([Fragment(source="a", events=changes("a", "1", 50, bytes_=9000))])
            await log.append([Fragment(source="b", events=changes("b", "1", 2))])
            await log.abandon("a")
            await log.append([Commit(source="a", position="1", events=changes("a", "1", 3))])
            await log.append([Commit(source="b", position="1", events=())])
            assert [entry.document_id for entry in await read_seen(log)] == [
                "a/1/0",
                "a/1/1",
                "a/1/2",
                "b/1/0",
                "b/1/1",
            ]

    async def test_a_failed_append_keeps_what_was_staged_before_it(self) -> None:
        bad = msgspec.structs.replace(change("a", "1", 3), document_id="\ud800")
        async with self.opened() as log:
            await log.append([Fragment(source="a", events=changes("a", "1", 2, bytes_=70_000))])
            with pytest.raises(UnicodeEncodeError):
                await log.append(
                    [
                        Fragment(source="a", events=changes("a", "1", 1, start=2)),
                        Fragment(source="a", events=(bad,)),
                    ]
                )
            await log.append(
                [Commit(source="a", position="1", events=changes("a", "1", 2, start=2))]
            )
            entries = await read_all(log)
            require_whole_commits(entries)
            assert [seen(entry).ordinal for entry in entries] == [0, 1, 2, 3]

    async def test_a_large_commit_given_whole_lets_others_append_and_appears_at_once(self) -> None:
        """S14: over 16 MiB; a reader sees none of it or all of it."""
        async with self.opened() as log:
            rows = 2000
            large = Commit(source="a", position="1", events=changes("a", "1", rows, bytes_=12_000))
            append = asyncio.ensure_future(log.append([large]))
            small = 0
            while not append.done():
                small += 1
                await log.append(
                    [Commit(source="b", position=str(small), events=changes("b", str(small), 1))]
                )
                assert (await log.bounds()).head in {small, small + rows}
            await append
            entries = await read_all(log)
            require_whole_commits(entries)
            assert [seen(e).ordinal for e in entries if e.event.source == "a"] == list(range(rows))
            assert len(entries) == rows + small

    # --- reading --------------------------------------------------------------------------------

    async def test_the_head_reads_as_empty_and_beyond_it_is_an_error(self) -> None:
        async with self.opened() as log:
            assert await log.read(after=0) == []
            with pytest.raises(AheadError):
                await log.read(after=1)
            await log.append([Commit(source="a", position="1", events=changes("a", "1", 2))])
            assert await log.read(after=2) == []
            with pytest.raises(AheadError):
                await log.read(after=3)

    async def test_a_reader_waits_until_something_is_appended(self) -> None:
        async with self.opened() as log:
            assert not await log.wait(after=0, timeout_seconds=0.01)
            waiting = [asyncio.ensure_future(log.wait(after=0)) for _ in range(3)]
            await asyncio.sleep(0)
            await log.append([Commit(source="a", position="0")])
            assert not any(waiter.done() for waiter in waiting)
            await log.append([Commit(source="a", position="1", events=changes("a", "1", 1))])
            assert await asyncio.gather(*waiting) == [True, True, True]
            assert await log.wait(after=0)

    async def test_every_entry_has_the_check_by_which_its_marker_proves_itself(self) -> None:
        async with self.opened() as log:
            await log.append([Commit(source="a", position="1", events=changes("a", "1", 40))])
            await log.append([Fragment(source="a", events=changes("a", "2", 9, bytes_=30_000))])
            await log.append([Commit(source="a", position="2")])
            entries = await read_all(log)
            markers = [parse_progress(entry.progress) for entry in entries]
            for entry, marker in zip(entries, markers, strict=True):
                assert await log.check_at(entry.sequence) == marker.check
            bounds = await log.bounds()
            assert markers[-1] == Progress(bounds.log_id, bounds.head, bounds.head_check)
            assert await log.check_at(0) == 0
            assert await log.check_at(bounds.head + 1) is None

    async def test_the_check_of_a_place_is_of_all_that_is_told_up_to_it(self) -> None:
        """However it came: a log with the same history has the same checks, and no other log."""
        commits = [
            Commit(source=source, position="1", events=changes(source, "1", count, bytes_=9_000))
            for source, count in (("a", 1), ("b", 30), ("c", 2), ("d", 1))
        ]
        one, _, other, last = commits
        staged: list[Commit | Fragment] = [
            Fragment(source="b", events=changes("b", "1", 15, bytes_=9_000)),
            Fragment(source="b", events=changes("b", "1", 15, start=15, bytes_=9_000)),
            Commit(source="b", position="1"),
        ]
        told: list[list[Sequence[Commit | Fragment]]] = [
            [[commit] for commit in commits],
            [commits],
            [[one], *[[part] for part in staged], [other, last]],
            [[other], [commits[1]], [one], [last]],
        ]
        found: list[list[int | None]] = []
        for history in told:
            async with self.opened() as log:
                for batch in history:
                    await log.append(batch)
                head = (await log.bounds()).head
                found.append([await log.check_at(at) for at in range(head + 1)])
        assert found[0] == found[1] == found[2]
        assert found[3][0] == 0
        assert not any(a == b for a, b in zip(found[0][2:], found[3][2:], strict=True))

    async def test_concurrent_writers_and_scans_see_every_event_once(self) -> None:
        """P31: what is acknowledged is readable at once, in one order for everyone."""
        writers, commits = 4, 30
        async with self.opened() as log:

            async def write(source: str) -> None:
                for number in range(commits):
                    position = str(number)
                    events = changes(source, position, number % 5 + 1, bytes_=4000)
                    await log.append([Commit(source=source, position=position, events=events)])
                    bounds = await log.bounds()
                    newest = await read_all(log, after=max(0, bounds.head - 60))
                    ids = {seen(entry).document_id for entry in newest}
                    assert f"{source}/{position}/0" in ids, "acknowledged, but not readable"

            async def scan() -> list[str]:
                found: list[str] = []
                after = 0
                total = sum(number % 5 + 1 for number in range(commits)) * writers
                while len(found) < total:
                    await log.wait(after=after)
                    entries = await read_all(log, after=after)
                    require_whole_commits(entries)
                    found += [seen(entry).document_id for entry in entries]
                    after = entries[-1].sequence
                return found

            names = [f"s{number}" for number in range(writers)]
            scans = asyncio.gather(scan(), scan())
            await asyncio.gather(*(write(name) for name in names))
            first, second = await scans
            assert first == second
            assert len(set(first)) == len(first)
            for name in names:
                own = [one for one in first if one.startswith(f"{name}/")]
                assert own == [
                    f"{name}/{number}/{ordinal}"
                    for number in range(commits)
                    for ordinal in range(number % 5 + 1)
                ]

    # --- trimming and retention (invariant 4) ---------------------------------------------------

    async def test_the_watermark_is_exact(self) -> None:
        """P7: a marker at the last trimmed entry resumes; one below it is told, with the oldest."""
        async with self.opened() as log:
            await log.append([Commit(source="a", position="1", events=changes("a", "1", 10))])
            check = await log.check_at(4)
            await log.trim(4)
            bounds = await log.bounds()
            assert (bounds.trimmed, bounds.trimmed_check) == (4, check)
            assert await log.check_at(4) == check
            assert await log.check_at(3) is None
            assert [entry.sequence for entry in await read_seen(log, after=4)] == [*range(5, 11)]
            for after in range(4):
                with pytest.raises(TrimmedError) as refused:
                    await log.read(after=after)
                marker = parse_progress(refused.value.oldest)
                assert (marker.sequence, marker.check) == (4, check)
            await log.trim(2)
            assert await log.bounds() == bounds
            with pytest.raises(AheadError):
                await log.trim(11)

    async def test_a_log_trimmed_to_its_head_goes_on_where_it_was(self) -> None:
        async with self.opened() as log:
            await log.append([Commit(source="a", position="1", events=changes("a", "1", 10))])
            await log.append([Fragment(source="a", events=changes("a", "2", 5, bytes_=60_000))])
            await log.append([Commit(source="a", position="2")])
            await log.trim(13)
            assert [entry.ordinal for entry in await read_seen(log, after=13)] == [3, 4]
            await log.trim(15)
            assert await log.read(after=15) == []
            await log.append([Commit(source="a", position="3", events=changes("a", "3", 1))])
            (entry,) = await read_seen(log, after=15)
            assert (entry.sequence, entry.commit) == (16, 3)
            assert await log.position("a") == "3"

    async def _until(self, log: ChangeLog, reached: Callable[[int], bool]) -> int:
        """Let retention work, a bounded step at each append, until its watermark is there."""
        trimmed = 0
        for number in range(1000):
            trimmed = (await log.bounds()).trimmed
            if reached(trimmed):
                return trimmed
            await log.append([Commit(source="beat", position=str(number))])
        raise AssertionError(f"retention stopped at {trimmed}")

    async def test_old_source_times_are_no_reason_to_trim(self) -> None:
        """P22: retention counts from when the log took an entry, whatever its source says."""
        clock = ManualClock()
        async with self.opened(clock=clock, retention="1h", retention_bytes=None) as log:
            for number in range(5):
                clock.pass_(30)
                await log.append(
                    [Commit(source="a", position=str(number), events=(change("a", str(number)),))]
                )
            assert (await log.bounds()).trimmed == 0
            clock.pass_(3600 - 75)
            await self._until(log, lambda trimmed: trimmed == 2)
            assert [entry.sequence for entry in await read_seen(log, after=2)] == [3, 4, 5]
            clock.pass_(3600)
            await self._until(log, lambda trimmed: trimmed == 5)

    async def test_retention_by_age_waits_while_the_clocks_disagree(self) -> None:
        clock = ManualClock()
        async with self.opened(clock=clock, retention="1h", retention_bytes=None) as log:
            await log.append([Commit(source="a", position="1", events=changes("a", "1", 3))])
            clock.jump(7200)
            for beat in range(5):
                clock.pass_(10)
                await log.append([Commit(source="a", position=f"1.{beat}")])
            assert (await log.bounds()).trimmed == 0
            clock.jump(-7200)
            clock.pass_(3600)
            await self._until(log, lambda trimmed: trimmed == 3)

    async def test_what_came_while_the_clock_was_behind_is_as_old_as_it_is(self) -> None:
        """Nor do times run backwards, which searches by time go by."""
        clock = ManualClock()
        async with self.opened(clock=clock, retention="1h", retention_bytes=None) as log:
            for number, jump in enumerate((0, -864_000, 864_000)):
                clock.jump(jump)
                await log.append(
                    [Commit(source="a", position=str(number), events=(change("a", str(number)),))]
                )
                if number < 2:
                    clock.pass_(1500)
            times = [block.ingested_at for block in await log.read(after=0)]
            assert times == sorted(times)
            assert times[1] == times[0] + 1_500_000
            clock.pass_(1500)
            await self._until(log, lambda trimmed: trimmed == 1)
            for beat in range(20):
                await log.append([Commit(source="a", position=f"3.{beat}")])
            assert (await log.bounds()).trimmed == 1

    async def test_retention_by_age_goes_on_once_the_clocks_have_agreed_for_an_hour(self) -> None:
        """P22: the clock was set, and stays so. It is not believed at once: it may be wrong."""
        clock = ManualClock()
        async with self.opened(clock=clock, retention="3h", retention_bytes=None) as log:
            await log.append([Commit(source="a", position="1", events=changes("a", "1", 3))])
            clock.jump(7200)
            await log.append([Commit(source="a", position="2", events=changes("a", "2", 3))])
            for beat in range(5):
                clock.pass_(700)
                # Another step starts the hour again.
                clock.jump(-120)
                await log.append([Commit(source="beat", position=str(beat))])
            for beat in range(5, 10):
                clock.pass_(700)
                assert (await log.bounds()).trimmed == 0
                await log.append([Commit(source="beat", position=str(beat))])
            assert (await log.bounds()).trimmed == 0
            clock.pass_(700)
            await self._until(log, lambda trimmed: trimmed == 3)
            assert [entry.sequence for entry in await read_seen(log, after=3)] == [4, 5, 6]

    async def test_retention_by_count_keeps_the_newest_whole_commits(self) -> None:
        async with self.opened(retention=None, retention_bytes=None, retention_events=20) as log:
            for number in range(30):
                position = str(number)
                await log.append(
                    [Commit(source="a", position=position, events=changes("a", position, 3))]
                )
            # 90 entries in commits of 3: keeping 20 means keeping the last 7 commits, 21 entries.
            trimmed = await self._until(log, lambda trimmed: trimmed >= 69)
            entries = await read_all(log, after=trimmed)
            require_whole_commits(entries)
            assert [entry.sequence for entry in entries] == [*range(70, 91)]

    async def test_retention_by_bytes_keeps_the_newest(self) -> None:
        """P23: what is kept is near the limit, not nothing; and the newest commit always stays."""
        limit = 2 << 20
        async with self.opened(retention=None, retention_bytes=limit) as log:
            for number in range(100):
                position = str(number)
                events = changes("a", position, 10, bytes_=6_000)
                await log.append([Commit(source="a", position=position, events=events)])
            head = (await log.bounds()).head
            trimmed = await self._until(log, lambda trimmed: trimmed > 0)
            for beat in range(100):
                await log.append([Commit(source="a", position=f"beat {beat}")])
            trimmed = (await log.bounds()).trimmed
            kept = await read_all(log, after=trimmed)
            require_whole_commits(kept)
            assert kept[-1].sequence == head
            assert limit // 2 < len(kept) * 6_000 <= limit
            large = changes("a", "large", 60, bytes_=60_000)
            await log.append([Commit(source="a", position="large", events=large)])
            await self._until(log, lambda trimmed: trimmed == head)
            assert len(await read_all(log, after=head)) == 60

    async def test_a_trimmed_extent_goes_whole(self) -> None:
        clock = ManualClock()
        async with self.opened(clock=clock, retention="1h", retention_bytes=None) as log:
            for _ in range(20):
                await log.append([Fragment(source="a", events=changes("a", "1", 50, bytes_=5_000))])
            await log.append([Commit(source="a", position="1")])
            clock.pass_(1800)
            await log.append([Commit(source="b", position="1", events=changes("b", "1", 1))])
            clock.pass_(1801)
            await self._until(log, lambda trimmed: trimmed > 0)
            assert (await log.bounds()).trimmed == 1000
            assert len(await read_seen(log, after=1000)) == 1
