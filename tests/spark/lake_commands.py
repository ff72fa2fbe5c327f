"""What commands do with tables wherever they are: they list, plan, reset, replay and tidy.

Nothing is written but what is said here, and a table never loses how far it has come.
"""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from penstock.errors import PipelineError, ResetRefusedError
from penstock.event import ChangeEvent
from penstock.progress import Progress
from penstock.spark.plan import begins
from penstock.spark.replaying import pending_rejects
from penstock.spark.table.lake import seen_lake
from penstock.spark.table.plan import OPERATION, REJECTED
from penstock.spark.table.reduce import PUT
from penstock.spark.table.stamp import Stamp
from penstock.spark.table.standing import StandingTable
from penstock.spark.tidying import tidy_pipeline
from penstock.spark.transform.fate import Replayed
from penstock.spark.transform.replay import Replay
from tests.spark.lake_contract import Place, World
from tests.spark.stepped import MemoryLog
from tests.spark.tables import LOG_ID, Entries, change, put


class Kept(World):
    """A world whose pipeline has stood somewhere."""

    def run(self) -> None:
        """Apply what is new, and have the row beside the tables say so."""
        standing = StandingTable(self.config, "p", self.lake)
        after = standing.start(self.log().bounds()).after.sequence
        result = self.apply(after)
        standing.advance(
            Progress(LOG_ID, self.entries.head, 0), result.tables, batch_id=self.entries.head
        )

    def log(self, entries: Entries | None = None) -> MemoryLog:
        """The log, or another that tells the same changes otherwise."""
        return MemoryLog(entries or self.entries, 0)

    def replayed(self, entries: Entries | None = None) -> list[tuple[int, str]]:
        """What becomes of the rejects."""
        replay = Replay("p", self.config, self.log(entries), self.place.spark)
        return [_outcome(one) for one in replay.run()]

    def pending(self) -> list[int]:
        """The sequences that are not settled."""
        listed = pending_rejects("p", self.config, spark=self.place.spark)
        return [one["sequence"] for one in listed]

    def versions(self) -> dict[str, int]:
        """By table, how often something was committed to it."""
        names = ("orders", "rejects", "standing")
        return {name: DeltaTable(self.place.path(self.config, name)).version() for name in names}


def _outcome(one: Replayed) -> tuple[int, str]:
    return one.sequence, one.state


def commits(*commits: list[ChangeEvent]) -> Entries:
    entries = Entries()
    for events in commits:
        entries.commit(*events)
    return entries


class LakeCommands:
    """What both promise."""

    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:
        """An empty place."""
        raise NotImplementedError

    def test_rejects_are_listed_and_tried_again_and_nothing_is_applied_twice(
        self, place: Place
    ) -> None:
        """And a plan, a list and what does not fit yet write nothing."""
        world = Kept(place)
        first = [put(1, n=1), put(2, n=2)]
        world.entries = commits(first)
        world.run()
        world.entries.commit(put(1, n="x"), put(9, n="new"), change(2, "delete"))
        world.run()
        before = world.versions()
        lake = seen_lake(world.config, "p", place.spark)
        begun, why = begins("p", world.config, world.log().bounds(), lake)
        assert (begun.sequence, why[:4]) == (5, "that")
        assert world.pending() == [3, 4]
        assert world.replayed() == [(3, "left"), (4, "left")]
        assert world.versions() == before
        # As a step of today would have them.
        mended = commits(first, [put(1, n=1.5), put(9, n=9, more="x"), change(2, "delete")])
        assert world.replayed(mended) == [(3, "replayed"), (4, "replayed")]
        rows: dict[tuple[str, str], dict[str, Any]] = {
            ("db", '{"_id":1}'): {"_id": 1, "n": 1.5},
            ("db", '{"_id":9}'): {"_id": 9, "n": 9.0, "more": "x"},
        }
        assert world.rows() == rows
        assert world.stored()[REJECTED].null_count == 2
        assert (world.pending(), world.replayed(mended)) == ([], [])
        # The pipeline goes on as if nothing had been.
        assert world.table().applied("p", log_id=LOG_ID) == 5
        world.entries.commit(put(1, n=4), put(5, n="z"))
        world.apply(5)
        assert world.rows() == {**rows, ("db", '{"_id":1}'): {"_id": 1, "n": 4.0}}
        assert world.pending() == [7]

    def test_what_another_committed_meanwhile_is_not_mended_over(self, place: Place) -> None:
        world = Kept(place)
        world.entries = commits([put(1, n=1), put(2, n=2)])
        world.apply()
        seen = world.table()
        changes = seen.rows(['{"_id":2}']).append_column(OPERATION, pa.array([PUT], pa.int8()))
        world.entries.commit(change(2, "delete"))
        world.apply(2)
        stamp = Stamp(pipeline="p", log_id=LOG_ID, after=2, until=2, batch=-1)
        with pytest.raises(Exception, match=r"moved on|oncurrent|conflict") as refused:
            seen.merge(changes, stamp)
        assert isinstance(refused.value, PipelineError | CommitFailedError)
        assert [key for _, key in world.rows()] == ['{"_id":1}']


class LongLakeCommands:
    """What both promise, too, and Spark takes long to show."""

    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:
        """An empty place."""
        raise NotImplementedError

    def test_a_reset_goes_back_and_brings_what_is_gone(self, place: Place) -> None:
        world = Kept(place, "orders", "lines")
        line = change(1, "insert", {"_id": 1}, collection="lines")
        world.entries = commits([put(1, n=1)], [line], [put(2, n=2)])
        world.run()
        standing = StandingTable(world.config, "p", seen_lake(world.config, "p", place.spark))
        bounds = world.log().bounds()
        with pytest.raises(ResetRefusedError):
            standing.reset(Progress(LOG_ID, 4, 0), bounds)
        rows = world.rows()
        assert standing.reset(Progress(LOG_ID, 1, 0), bounds).sequence == 3
        again = StandingTable(world.config, "p", world.place.lake(world.config))
        assert again.start(bounds).after.sequence == 1
        world.run()
        assert world.rows() == rows

    def test_all_tables_are_tidied_and_keep_what_they_say(self, place: Place) -> None:
        world = Kept(place)
        for number in range(2):
            world.entries.commit(put(number, n=number), put(10 + number, n="x"))
            world.run()
        rows, pending = world.rows(), world.pending()
        done = {
            Path(one.path).name.rpartition(".")[2]: one
            for one in tidy_pipeline("p", world.config, spark=place.spark)
        }
        assert len(done) == 3
        assert {one.failed for one in done.values()} == {""}
        assert max(one.joined - one.into for one in done.values()) > 0
        assert (world.rows(), world.pending()) == (rows, pending)
        assert world.table().applied("p", log_id=LOG_ID) == 4
