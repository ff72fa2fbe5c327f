"""What every `ChangeLog` promises that begins above the published copy of one that is gone."""

import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec import Raw, json

from penstock.errors import GapError, StreamChangedError, TrimmedError
from penstock.event import ClusterTime, Commit, Kind, SystemEvent, event_id, kind_of
from penstock.log.config import LogConfig
from penstock.ports import Above, Ancestor, ChangeLog, SourceState
from penstock.progress import Progress
from penstock.subscribe import start
from penstock.testing.contracts.entries import changes, read_all, require_whole_commits

GONE = Ancestor(log_id=77, head=1000, gone=True)
ELDER = Ancestor(log_id=55, head=400)


def gap(source: str) -> SystemEvent:
    """What the new log says first of a source."""
    return SystemEvent(
        event_id=event_id(source, "gone", 0),
        source=source,
        database="",
        tenant="",
        collection="",
        cluster_time=ClusterTime(0),
        timestamp=0,
        position="7",
        operation="gap",
        description=Raw(json.encode({"source": source, "from": None, "to": "7", "reason": "gone"})),
    )


ABOVE = Above(
    head=1000,
    head_commit=300,
    head_check=0xABCD,
    ancestors=(GONE, ELDER),
    sources=(
        SourceState(
            source="a", position="7", commits=200, events=900, last_timestamp=5, moved_at=9
        ),
    ),
    gaps=(gap("a"), gap("b")),
)


class AboveContract:
    """Inherit beside `ChangeLogContract`, and give `open_above`."""

    def open_above(self, config: LogConfig, *, above: Above) -> ChangeLog:
        """The log at `config.path`; new, it begins above `above`."""
        raise NotImplementedError

    @asynccontextmanager
    async def begun(self) -> AsyncGenerator[ChangeLog]:
        """A new log above ABOVE."""
        with tempfile.TemporaryDirectory() as folder:
            config = LogConfig(path=Path(folder) / "log", free_bytes_min=0)
            log = self.open_above(config, above=ABOVE)
            try:
                yield log
            finally:
                await log.close()

    async def test_sequences_and_commits_go_on_after_the_published_ones_with_the_gaps_first(
        self,
    ) -> None:
        """P33: its own id; one gap for each source, and then what is captured."""
        async with self.begun() as log:
            await log.append([Commit(source="a", position="8", events=changes("a", "8", 3))])
            bounds = await log.bounds()
            assert bounds.log_id not in {GONE.log_id, ELDER.log_id}
            assert (bounds.base, bounds.trimmed, bounds.trimmed_check) == (1000, 1000, 0xABCD)
            assert (bounds.head, bounds.head_commit) == (1005, 303)
            assert bounds.ancestors == (GONE, ELDER)
            entries = await read_all(log, after=1000)
            require_whole_commits(entries)
            assert [(one.sequence, one.commit) for one in entries] == [
                (1001, 301),
                (1002, 302),
                (1003, 303),
                (1004, 303),
                (1005, 303),
            ]
            assert [one.event.source for one in entries[:2]] == ["a", "b"]
            assert [kind_of(one.event) for one in entries[:2]] == [Kind.GAP, Kind.GAP]

    async def test_every_source_goes_on_from_its_published_position(self) -> None:
        """P14: and one that was not published has none, so that its `start` says where."""
        async with self.begun() as log:
            assert (await log.position("a"), await log.position("b")) == ("7", None)
            (state,) = await log.sources()
            assert state == ABOVE.sources[0]
            await log.append([Commit(source="a", position="8", events=changes("a", "8", 3))])
            (state,) = await log.sources()
            assert (state.commits, state.events) == (201, 903)

    @pytest.mark.parametrize(
        "marker", [Progress(77, 1, 5), Progress(77, 999, 5), Progress(77, 1000, 0xABCD)]
    )
    async def test_an_old_marker_up_to_the_published_sequence_meets_the_gap(
        self, marker: Progress
    ) -> None:
        """P33, invariant 4: it resumes, and the first that it is told is that something is gone."""
        async with self.begun() as log:
            place = await start(log, str(marker))
            assert place == Progress((await log.bounds()).log_id, 1000, 0xABCD)
            first = (await read_all(log, after=place.sequence))[0]
            assert kind_of(first.event) is Kind.GAP

    async def test_an_old_marker_beyond_the_published_sequence_is_data_loss(self) -> None:
        async with self.begun() as log:
            with pytest.raises(GapError, match=r"goes on from its published copy at sequence 1000"):
                await start(log, str(Progress(77, 1001, 5)))

    async def test_the_error_of_a_later_marker_comes_with_one_that_meets_the_gap(self) -> None:
        async with self.begun() as log:
            with pytest.raises(GapError) as refused:
                await start(log, str(Progress(77, 2000, 5)))
            assert (await start(log, refused.value.after)).sequence == 1000

    async def test_the_published_entry_proves_itself_by_its_check(self) -> None:
        async with self.begun() as log:
            with pytest.raises(StreamChangedError):
                await start(log, str(Progress(77, 1000, 0xABCE)))

    async def test_markers_of_logs_further_back_and_of_unknown_logs(self) -> None:
        async with self.begun() as log:
            assert (await start(log, str(Progress(55, 400, 1)))).sequence == 1000
            with pytest.raises(StreamChangedError, match="restored from a copy"):
                await start(log, str(Progress(55, 401, 1)))
            with pytest.raises(StreamChangedError, match="another log"):
                await start(log, str(Progress(66, 10, 1)))

    async def test_once_the_gap_itself_is_trimmed_an_old_marker_is_told_so(self) -> None:
        """P7: it can no longer be told in its place, so it is told at once."""
        async with self.begun() as log:
            await log.append([Commit(source="a", position="8", events=changes("a", "8", 3))])
            await log.trim(1002)  # type: ignore[attr-defined]
            for sequence in (1, 999, 1000):
                with pytest.raises(TrimmedError):
                    await start(log, str(Progress(77, sequence, 0xABCD)))
