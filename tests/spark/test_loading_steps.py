"""A first load step by step, beside a stream: a real log and real tables, without Spark."""

import itertools
import shutil
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from penstock.client.retry import Backoff, Retry
from penstock.errors import (
    BatchTooLargeError,
    PipelineChangedError,
    PipelineError,
    SourceUnavailableError,
)
from penstock.event import AnyEvent
from penstock.ports import InexactRow, KeyRange, Listing, RangeRows, SourceState
from penstock.progress import Progress
from penstock.serve.flight import FlightServer
from penstock.spark.config import TablePipelineConfig
from penstock.spark.loading import reading
from penstock.spark.loading.backfill import backfill
from penstock.spark.loading.load import FirstLoad
from penstock.spark.loading.parts import DONE, OPEN, READ, UNSPLIT, Part
from penstock.spark.loading.reading import PartRows
from penstock.spark.loading.stored import StoredPlan
from penstock.spark.progress import LoadProgress
from penstock.spark.table.arrow import compute
from penstock.spark.table.batch import BatchWriter
from penstock.spark.table.chunk import Collected, reduce_entries
from penstock.spark.table.kinds import Kind, kind_of_column
from penstock.spark.table.standing import StandingTable
from penstock.wire import to_arrow
from tests.flight.blocks import BlockLog
from tests.spark.tables import LOG_ID, change, pipeline, put, rejects_of, rows_of, schema_event
from tests.waiting import wait_until


class Source:
    """Rows by key, each a range of its own; its time is how often it was asked."""

    def __init__(self, rows: dict[int, int]) -> None:
        self.rows = rows
        self.time = 0
        self.asked: list[tuple[str, int]] = []
        self.listed: list[tuple[str, int]] = []
        """Collections whose ranges were asked for, and how large those were to be."""
        self.failing: Exception | None = None
        self.inexact: set[int] = set()
        """Keys of rows that have no exact form."""
        self.missing: set[str] = set()
        """Collections that are not there."""
        self.varying: dict[str, str] = {}
        """As `RangeRows.varying`."""

    def require_readable(self) -> None:
        """It is."""

    async def ranges(self, database: str, collection: str, *, rows: int, position: str) -> Listing:
        del database, position
        self.listed.append((collection, rows))
        self.time += 1
        found = (
            KeyRange(database="db", collection=collection, start=str(key).encode())
            for key in sorted(self.rows)
            if collection not in self.missing
        )
        return Listing(ranges=tuple(found), read_at=str(self.time))

    async def read_range(self, part: KeyRange, *, position: str) -> RangeRows:
        del position
        if self.failing is not None:
            raise self.failing
        key = int((part.start or b"").decode())
        self.asked.append((part.collection, key))
        self.time += 1
        if key in self.inexact:
            named = {"source": "shop", "database": "db", "collection": part.collection}
            row = InexactRow(**named, key=f'{{"_id":{key}}}', reason="a double as a key")
            return RangeRows(events=(), inexact=(row,), rest=None, read_at=str(self.time))
        events = [put(key, n=self.rows[key])] if key in self.rows else []
        return RangeRows(
            events=tuple(events), rest=None, read_at=str(self.time), varying=self.varying
        )

    def has_told(self, position: str, read_at: str) -> bool:
        return int(position) > int(read_at)

    async def close(self) -> None:
        """Nothing is open."""


class NoContext:
    """What a load tells Spark of its jobs."""

    defaultParallelism = 1  # noqa: N815 - Spark's name

    def tell(self, *_: object) -> None:
        """Nobody listens."""

    setJobGroup = setLocalProperty = cancelJobGroup = tell  # noqa: N815


class World:
    """A source, a log that follows it, tables, and a load; the test says what comes when."""

    def __init__(self, path: Path, rows: dict[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = path
        self.config: TablePipelineConfig = pipeline(path, "orders", "lines", first_load="source")
        self.source = Source(rows)
        self.heard: list[LoadProgress] = []
        self.log = BlockLog(log_id=LOG_ID)
        self.server = FlightServer(self.log)
        self.server.start()
        self.told(position=0)
        monkeypatch.setattr("penstock.spark.loading.load.read_parts", read_here)
        monkeypatch.setattr("penstock.spark.loading.load._LOOK_SECONDS", 0.0)
        self.start()

    def told(self, *, position: int) -> None:
        """The log has the source's changes up to there."""
        state = SourceState(
            source="shop", position=str(position), commits=1, events=1, last_timestamp=1, moved_at=1
        )
        self.log.sources = [state]

    def start(self) -> None:
        """A driver begins."""
        spark: Any = SimpleNamespace(sparkContext=NoContext())
        self.load = FirstLoad(
            *("p", self.config, self.server.address, spark, lambda: self.source),
            tell=self.heard.append,
        )
        self.standing = StandingTable(self.config, "p")
        self.standing.start(self.log.bounds_now())
        self.load.begin(self.standing)

    def step(self, *, once: bool = False) -> None:
        """The next thing that the load does under the lock."""
        wait_until(lambda: self.load.is_due, unless=self.is_complete)
        self.load.step(once=once)

    def is_complete(self) -> bool:
        return self.load.complete

    def until(self, condition: Callable[[], object], *, once: bool = False) -> None:
        """Step until that is so."""
        while not condition():
            self.step(once=once)

    def reading(self) -> None:
        """What is asked for is read, and not written yet."""
        self.step()
        wait_until(lambda: self.load.is_due)

    def stream(self, *events: AnyEvent) -> None:
        """One commit is captured and applied, in a batch of its own."""
        after = self.log.head
        self.log.append([events])
        self.streamed(after=after)

    def streamed(self, *, after: int) -> None:
        """What the log has behind `after`, which is one commit, is applied."""
        bounds = self.log.bounds_now()
        (block,) = self.log.read_now(after=after)
        entries = pa.Table.from_batches([to_arrow((block,))])
        count = entries.num_rows
        collected = Collected(chunk=reduce_entries(entries), after=after, entries=count)
        self.load.applying(collected)
        writer = BatchWriter(
            pipeline="p",
            config=self.config,
            log_id=LOG_ID,
            batch_id=1,
            entries_at=lambda _: entries,
            loading=not self.load.complete,
        )
        until = Progress(LOG_ID, bounds.head, bounds.head_check)
        applied = writer.apply(collected, before=lambda _: collected)
        self.standing.advance(until, applied.tables, batch_id=1)

    def parts(self, state: int, collection: str = "orders") -> list[Part]:
        stored = StoredPlan("p", self.config).read()
        return [
            one
            for one in stored.of(state)
            if one.collection == collection and (one.database or state == UNSPLIT)
        ]

    def table(self, collection: str = "orders") -> dict[str, int]:
        path = self.path / collection
        if not (path / "_delta_log").exists():
            return {}
        return {key: row["n"] for (_, key), row in rows_of(path).items()}


def read_here(
    spark: object, parts: Sequence[Part], open_source: Any, *, position: str
) -> list[PartRows]:
    """As `read_parts`, in this process."""
    del spark
    work = partial(
        reading._read,  # pyright: ignore[reportPrivateUsage]
        ranges=[part.range for part in parts],
        open_source=open_source,
        position=position,
        scratch=None,
    )
    numbers = [pa.RecordBatch.from_pydict({"id": [at]}) for at in range(len(parts))]
    table = pa.Table.from_batches(itertools.chain.from_iterable(work([one]) for one in numbers))
    return [
        reading._part_rows(  # pyright: ignore[reportPrivateUsage]
            table.filter(compute.equal(table["part"], at))
        )
        for at in range(len(parts))
    ]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = World(tmp_path / "lake", {1: 10, 2: 20, 3: 30}, monkeypatch)
    yield made
    made.load.close()
    made.server.stop()


def key(number: int) -> str:
    return f'{{"_id":{number}}}'


def test_a_load_tells_how_far_it_is_and_one_that_goes_on_tells_it_at_once(world: World) -> None:
    assert [(one.ranges, one.undivided) for one in world.heard] == [(0, ("orders", "lines"))]
    world.until(lambda: world.parts(OPEN) and not world.parts(UNSPLIT, "lines"))
    assert (world.heard[-1].loaded, world.heard[-1].ranges, world.heard[-1].undivided) == (0, 6, ())
    world.until(lambda: len(world.parts(READ)) == 2)
    world.load.close()
    world.heard.clear()
    world.start()
    assert [(one.loaded, one.ranges, one.complete) for one in world.heard] == [(2, 6, False)]


def test_what_changes_between_the_read_and_the_write_is_left_to_the_stream(world: World) -> None:
    """The watermarks: a deleted row stays so, and a newer one is not overwritten."""
    world.until(lambda: world.parts(OPEN))
    world.until(lambda: not world.parts(UNSPLIT, "lines"))
    world.reading()
    world.stream(change(1, "delete"), put(2, n=21))
    world.step()
    world.until(lambda: len(world.parts(READ)) == 3)
    assert world.table() == {key(2): 21, key(3): 30}


@pytest.mark.slow
def test_a_column_that_is_loaded_has_the_kind_that_the_source_declares(world: World) -> None:
    """Whatever its first value happens to be."""
    world.source.varying = {"n": "json"}
    world.until(lambda: len(world.table()) == 3)
    schema: Any = DeltaTable(f"{world.path}/orders").schema().to_arrow()
    assert kind_of_column(pa.field(schema.field("n"))) is Kind.JSON


@pytest.mark.slow
def test_a_row_that_has_no_exact_form_is_in_the_rejects_and_the_load_goes_on(world: World) -> None:
    world.source.inexact = {2, 3}
    world.until(lambda: world.table() == {key(1): 10})
    world.reading()
    world.stream(put(3, n=31))  # corrected since
    world.until(lambda: not StoredPlan("p", world.config).read().of(OPEN))
    assert world.table() == {key(1): 10, key(3): 31}
    found = [
        (row["collection"], row["key"], row["operation_type"], row["reason"], row["full_document"])
        for row in rejects_of(world.path)
    ]
    why = ("load", "a double as a key", None)
    assert found == [("orders", key(2), *why), ("lines", key(2), *why), ("lines", key(3), *why)]


@pytest.mark.slow
def test_what_is_read_while_more_changes_than_a_window_knows_is_read_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.until(lambda: world.parts(OPEN))
    world.until(lambda: not world.parts(UNSPLIT, "lines"))
    opened = world.parts(OPEN)
    with monkeypatch.context() as small:
        small.setattr("penstock.spark.loading.window.KEYS_MAX", 1)
        world.reading()
        del world.source.rows[1]
        world.source.rows[2] = 21
        world.stream(change(1, "delete"), put(2, n=21))
        world.step()
        assert world.parts(OPEN) == opened
    world.until(lambda: len(world.parts(READ)) == 3)
    assert world.table() == {key(2): 21, key(3): 30}


DELTA: dict[str, Any] = {"updatedFields": {"n": 11}, "removedFields": []}


def test_a_row_is_read_again_where_a_change_built_on_it_before_it_was_there(world: World) -> None:
    """P25, and logs from before updates said the document: the row is neither left out nor old."""
    world.until(lambda: world.parts(OPEN) and not world.parts(UNSPLIT, "lines"))
    world.reading()
    world.stream(change(1, "update", update=DELTA))
    world.source.rows[1] = 11
    world.step()
    assert [one.start for one in world.parts(OPEN)][:1] == [b"1"]
    world.until(lambda: not world.parts(OPEN))
    assert world.table() == {key(1): 11, key(2): 20, key(3): 30}


@pytest.mark.slow
def test_a_row_whose_end_followed_a_look_up_that_found_nothing_is_left_out(world: World) -> None:
    """P25: nothing is read again for it, and it does not come back."""
    world.until(lambda: world.parts(OPEN) and not world.parts(UNSPLIT, "lines"))
    world.reading()
    world.stream(change(1, "update", update=DELTA))
    world.stream(change(1, "delete"))
    world.step()
    assert b"1" not in [one.start for one in world.parts(OPEN)]
    world.until(lambda: not world.parts(OPEN))
    assert world.table() == {key(2): 20, key(3): 30}


def test_a_change_that_builds_on_a_row_that_is_there_has_nothing_read_again(world: World) -> None:
    world.stream(put(1, n=10))
    world.until(lambda: world.parts(OPEN) and not world.parts(UNSPLIT, "lines"))
    world.reading()
    world.stream(change(1, "update", update=DELTA))
    world.step()
    assert b"1" not in [one.start for one in world.parts(OPEN)]
    assert world.table()[key(1)] == 11


@pytest.mark.slow
def test_a_load_is_complete_once_the_log_and_the_tables_have_passed_its_last_read(
    world: World,
) -> None:
    world.until(lambda: not world.parts(OPEN) and not world.parts(UNSPLIT, "lines"))
    while world.parts(OPEN) or world.parts(OPEN, "lines"):
        world.step()
    for _ in range(6):
        world.step()
    assert not world.is_complete(), "the log may not have what was committed before the last read"
    world.log.append([[put(4, n=40)]])
    world.told(position=100)
    for _ in range(6):
        world.step()
    assert not world.is_complete(), "the log has it, and the tables have not"
    head = world.log.bounds_now()
    world.standing.advance(Progress(LOG_ID, head.head, head.head_check), {}, batch_id=2)
    world.step()
    assert world.is_complete()
    assert not world.parts(READ)
    assert len(world.parts(DONE)) == 3
    assert not world.load.is_due


@pytest.mark.slow
def test_a_driver_that_is_killed_reads_what_is_left_and_a_table_that_is_gone_anew(
    world: World,
) -> None:
    world.until(lambda: world.parts(READ))
    done = {("orders", int((one.start or b"").decode())) for one in world.parts(READ)}
    world.reading()  # read, and never written
    world.load.close()
    world.source.asked.clear()
    world.start()
    world.until(lambda: not world.parts(OPEN) and world.parts(READ))
    assert not done & set(world.source.asked)
    assert world.table() == {key(1): 10, key(2): 20, key(3): 30}
    world.load.close()
    shutil.rmtree(world.path / "orders")
    world.config = world.config.model_copy(update={"start": "oldest"})
    world.start()
    assert [one.database for one in world.parts(UNSPLIT)] == ["db"]
    world.until(lambda: not world.parts(UNSPLIT) and not world.parts(OPEN))
    assert world.table() == {key(1): 10, key(2): 20, key(3): 30}


@pytest.mark.slow
def test_a_drop_throws_away_what_was_read_and_a_rename_has_the_new_name_read(
    world: World,
) -> None:
    """S10: documents came to it that were not loaded under their old name."""
    world.until(lambda: world.parts(OPEN) and not world.parts(UNSPLIT, "lines"))
    world.reading()
    world.stream(schema_event("drop"))
    world.step()
    assert world.table() == {}
    assert not world.parts(READ)
    while world.parts(OPEN) or world.parts(OPEN, "lines"):
        world.step()
    world.stream(schema_event("rename", to={"db": "db", "coll": "lines"}))
    assert world.parts(UNSPLIT, "lines"), "it is kept before the rename is written"
    world.told(position=1000)
    world.until(lambda: not world.parts(UNSPLIT, "lines") and not world.parts(OPEN, "lines"))
    assert world.table("lines") == {key(1): 10, key(2): 20, key(3): 30}


@pytest.mark.slow
def test_a_table_that_is_altered_is_read_again_also_what_was_written_of_it(world: World) -> None:
    """S4: rows may have other values behind it, and the log tells none of them."""
    world.until(lambda: world.parts(READ))
    world.reading()  # the second one is read, and not written
    world.source.rows.update({1: 11, 2: 21, 3: 31})
    world.stream(schema_event("modify", statement="ALTER TABLE orders ..."))
    assert [one.database for one in world.parts(UNSPLIT)] == ["db"]
    world.step()
    assert not world.parts(READ), "what was read meanwhile is thrown away"
    world.until(lambda: len(world.parts(READ)) == 3)
    assert world.table() == {key(1): 11, key(2): 21, key(3): 31}
    # What the columns are now, behind the next rows, is no change of them.
    world.stream(schema_event("modify", columns=[]))
    assert len(world.parts(READ)) == 3


@pytest.mark.parametrize("operation", ["modify", "drop"])
def test_ranges_that_were_listed_before_a_table_was_another_are_listed_again(
    world: World, operation: str
) -> None:
    """A range of the old table's keys is none of the new one."""
    world.reading()
    world.stream(schema_event(operation))
    world.step()
    assert not world.parts(OPEN)
    world.until(lambda: len(world.parts(READ)) == 3)
    assert world.table() == {key(1): 10, key(2): 20, key(3): 30}


@pytest.mark.slow
def test_a_collection_that_was_not_there_when_it_was_listed_is_listed_again(world: World) -> None:
    """S10: it took another one's name meanwhile, of which nothing was loaded yet."""
    world.until(lambda: world.parts(OPEN) and not world.parts(UNSPLIT, "lines"))
    world.stream(schema_event("drop"))
    rows = dict(world.source.rows)
    world.source.rows.clear()
    world.reading()  # the list is empty
    world.source.rows.update(rows)
    world.stream(schema_event("rename", collection="lines", to={"db": "db", "coll": "orders"}))
    world.step()
    assert world.parts(UNSPLIT)
    world.until(lambda: len(world.parts(READ)) == 3)
    assert world.table() == {key(1): 10, key(2): 20, key(3): 30}


@pytest.mark.slow
def test_a_source_that_is_away_is_waited_for_and_once_not_for_ever(world: World) -> None:
    backoff = Backoff(Retry(max_seconds=0.0))
    world.load._backoff = backoff  # pyright: ignore[reportPrivateUsage]
    world.until(lambda: world.parts(OPEN) and not world.parts(UNSPLIT, "lines"))
    world.source.failing = SourceUnavailableError("shop: away")
    for _ in range(10):
        world.step()
    world.source.failing = None
    world.until(lambda: len(world.parts(READ)) == 3)
    world.source.failing = SourceUnavailableError("shop: away")
    with pytest.raises(SourceUnavailableError):
        world.until(lambda: False, once=True)


def test_a_source_that_fails_for_good_ends_the_pipeline_without_its_text(world: World) -> None:
    world.until(lambda: world.parts(OPEN) and not world.parts(UNSPLIT, "lines"))
    world.source.failing = RuntimeError("a document: secret")
    with pytest.raises(PipelineError) as raised:
        world.until(lambda: world.parts(READ))
    assert "secret" not in str(raised.value)


def test_a_range_beyond_the_memory_that_is_allowed_says_what_helps_and_that_does(
    world: World,
) -> None:
    """No setting of batches does, nor do smaller ranges while those that are known stay."""

    def start(**settings: int) -> None:
        world.load.close()
        world.config = world.config.model_copy(update=settings)
        world.start()

    start(max_bytes_per_batch=1)
    for rows in (world.config.first_load_rows, 5):
        start(first_load_rows=rows)
        with pytest.raises(BatchTooLargeError, match="a range of 1 rows of orders") as raised:
            world.until(world.is_complete)
    assert "max_events_per_batch" not in str(raised.value)
    assert "pipeline backfill p --collection orders`" in str(raised.value)
    listed = len(world.source.listed)
    assert backfill("p", world.config, ["orders"], world.log.bounds_now()) == ["orders"]
    world.told(position=100)
    start(max_bytes_per_batch=1 << 30)
    world.until(world.is_complete)
    assert world.source.listed[listed:] == [("orders", 5)]
    assert world.table() == {key(1): 10, key(2): 20, key(3): 30}


def test_a_load_does_not_begin_anew_over_tables_whose_place_is_gone(world: World) -> None:
    """Between them and the log's head may be deletes, which nobody would read."""
    world.told(position=100)
    world.until(world.is_complete)
    world.stream(put(3, n=31))
    world.load.close()
    shutil.rmtree(world.path / "_penstock_standing")
    with pytest.raises(PipelineChangedError, match="table of orders is there"):
        world.start()
    shutil.rmtree(world.path)
    world.start()
    world.until(world.is_complete)
    assert set(world.table()) == {key(1), key(2), key(3)}


THREE = ("orders", "lines", "notes")


def follow(world: World, *collections: str, **settings: Any) -> None:
    """The next driver is of a pipeline with these collections."""
    world.load.close()
    update: dict[str, Any] = {"collections": collections, **settings}
    world.config = world.config.model_copy(update=update)
    world.start()


def all_parts(world: World) -> set[str]:
    return {one.collection for one in StoredPlan("p", world.config).read().parts}


@pytest.mark.parametrize("named", [True, False])
def test_what_is_taken_out_of_a_pipeline_is_loaded_no_further(world: World, named: bool) -> None:
    """One that cannot be loaded may be why."""
    shutil.rmtree(world.path)
    follow(world, *(THREE if named else ()))
    listed = [KeyRange(database="db", collection="orders", start=b"1")]
    if named:
        world.until(lambda: world.table() and world.parts(OPEN))
    else:
        stored = StoredPlan("p", world.config)
        (whole,) = stored.read().parts
        plan = stored.read().split(whole, Listing(ranges=tuple(listed), read_at="1"))
        stored.write(plan, log_id=LOG_ID, sequence=0)
    rows = world.table()
    world.source.asked.clear()
    follow(world, "lines", "notes")
    assert all_parts(world) == {"lines", "notes"}
    world.told(position=1000)
    world.until(world.is_complete)
    assert {name for name, _ in world.source.asked} == {"lines", "notes"}
    assert world.table() == rows


def test_a_collection_that_comes_back_is_loaded_as_if_it_were_new(world: World) -> None:
    """Its table may be as of a place that the stream passed while it left the collection out."""
    follow(world, *THREE, start="oldest")
    world.told(position=1000)
    world.until(world.is_complete)
    whole = StoredPlan("p", world.config).read()
    follow(world, "lines", "notes")
    world.log.append([[put(1, n=11)]])
    world.source.rows[1] = 11
    head = world.log.bounds_now()
    world.standing.advance(Progress(LOG_ID, head.head, head.head_check), {"lines": 0}, batch_id=2)
    # A release before wrote on of what was taken out.
    stored = StoredPlan("p", world.config)
    stored.read()
    stored.write(whole, log_id=LOG_ID, sequence=1)
    follow(world, *THREE)
    assert world.parts(UNSPLIT)
    world.until(lambda: not world.parts(UNSPLIT) and not world.parts(OPEN))
    assert world.table() == {key(1): 11, key(2): 20, key(3): 30}
