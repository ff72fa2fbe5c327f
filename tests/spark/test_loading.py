"""What decides a first load, without Spark: any interleaving ends as the source (decision 0034)."""

import itertools
import shutil
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import ConfigError, PipelineChangedError
from penstock.event import Kind
from penstock.ports import Bounds, InexactRow, KeyRange, Listing
from penstock.serve.flight import FlightServer
from penstock.spark.config import TablePipelineConfig
from penstock.spark.loading.load import first_load
from penstock.spark.loading.parts import OPEN, READ, UNSPLIT, Outcome, Part, Plan
from penstock.spark.loading.reading import entries_of, untold_entries_of
from penstock.spark.loading.stored import StoredPlan
from penstock.spark.loading.window import Window, ends_of, renamed_to
from penstock.spark.loading.writing import LoadWriter
from penstock.spark.progress import LoadProgress
from penstock.spark.replaying import pending_rejects, replay_rejects
from penstock.spark.table.apply import prepare
from penstock.spark.table.chunk import ROW_SCHEMA, Chunk, Control, reduce_entries
from penstock.spark.table.plan import OWN_COLUMNS
from penstock.spark.table.reduce import CONTROL, DELETE, PUT, RELATIVE
from penstock.spark.table.standing import StandingTable
from tests.flight.blocks import BlockLog
from tests.seeds import cases
from tests.spark.tables import (
    LOG_ID,
    Entries,
    apply,
    change,
    pipeline,
    put,
    rejects_of,
    rows_of,
)

_KEYS = 4
_MISSING: Any = None


def rows(*keys: int, role: int = PUT, collection: str = "orders") -> pa.Table:
    """Changes of these keys, as the tables take them."""
    said = [
        {"role": role, "database": "db", "collection": collection, "key": str(key), "sequence": at}
        for at, key in enumerate(keys)
    ]
    return pa.Table.from_pylist(said, schema=ROW_SCHEMA)


class World:
    """A source, a log that is captured from it, and tables; naive, and each at its own pace."""

    def __init__(self, commits: Sequence[tuple[int, int | None]]) -> None:
        """`commits` are (key, value), of which None is a delete."""
        self.commits = commits
        self.source = self.log = self.tables = 0
        """How many of the commits have happened, are captured, and are applied."""
        self.table: dict[int, int] = {}
        self.window: Window | None = None
        self.read: tuple[range, dict[int, int]] | None = None
        self.plan = Plan(parts=tuple(part(low) for low in range(0, _KEYS, 2)))

    def state(self, until: int) -> dict[int, int]:
        """The source after its first `until` commits."""
        rows: dict[int, int] = {}
        for key, value in self.commits[:until]:
            rows.pop(key, None)
            if value is not None:
                rows[key] = value
        return rows

    def apply(self, count: int) -> None:
        """The stream: the next captured commits, in one batch."""
        batch = self.commits[self.tables : min(self.log, self.tables + count)]
        if self.window is not None:
            self.window.see(rows(*(key for key, _ in batch)))
        for key, value in batch:
            self.table.pop(key, None)
            if value is not None:
                self.table[key] = value
        self.tables += len(batch)

    def open(self) -> None:
        if self.window is None and self.plan.of(OPEN):
            self.window = Window()

    def fetch(self) -> None:
        """The next part, as the source is now: at or behind all that the log has."""
        if self.window is not None and self.read is None:
            first = int((self.plan.of(OPEN)[0].start or b"0").decode())
            keys = range(first, first + 2)
            state = self.state(self.source)
            self.read = keys, {key: state[key] for key in keys if key in state}

    def write(self) -> None:
        """Put what was read into the table."""
        if self.window is None or self.read is None:
            return
        names = list(self.read[1])
        for place in self.window.untouched(rows(*names)):
            self.table[names[place]] = self.read[1][names[place]]
        at = Outcome(read_at=str(self.source))
        self.plan = self.plan.read({self.plan.of(OPEN)[0]: at})
        self.window = self.read = None

    def finish(self) -> None:
        """Nothing more happens; what did is captured, read, written and applied."""
        while self.plan.of(OPEN):
            self.open()
            self.fetch()
            self.write()
        self.log = self.source
        self.apply(len(self.commits))


def part(low: int) -> Part:
    return Part(
        database="db",
        collection="orders",
        start=str(low).encode(),
        stop=str(low + 2).encode(),
        state=OPEN,
    )


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[int, int | None]]:
    """Commits of a few keys; no value comes twice, so that a stale one is seen."""
    told = draw(
        st.lists(st.tuples(st.integers(0, _KEYS - 1), st.booleans()), min_size=20, max_size=50)
    )
    return [(key, None if ends else at) for at, (key, ends) in enumerate(told)]


MOVES = st.sampled_from([1, 2, 3, 0])
CATCHES_UP = st.sampled_from([99, 1, 99, 0])
STEPS = st.lists(
    st.tuples(MOVES, CATCHES_UP, CATCHES_UP, st.sampled_from([True, True, True, False])),
    min_size=9,
    max_size=30,
)
"""How far the source, the log and the tables come; and whether the load comes on then."""


def run(world: World, before: int, steps: Sequence[tuple[int, int, int, bool]]) -> None:
    """Some commits are older than the log; then everything moves, each at its own pace, until all
    is read: what came later would only heal what went wrong."""
    world.source = world.log = world.tables = min(before, len(world.commits))
    load = itertools.cycle([world.open, world.fetch, world.write])
    for source, log, tables, comes_on in steps:
        world.source = min(len(world.commits), world.source + source)
        world.log = min(world.source, world.log + log)
        world.apply(tables)
        if comes_on:
            next(load)()
        if not world.plan.of(OPEN):
            return


@settings(max_examples=cases(100))
@given(histories(), st.integers(0, 5), STEPS)
def test_reads_changes_and_writes_in_any_order_end_as_the_source(
    commits: list[tuple[int, int | None]], before: int, steps: list[tuple[int, int, int, bool]]
) -> None:
    """Newer changes win, deletes stay deletes, and a key that is used again is the new one."""
    world = World(commits)
    run(world, before, steps)
    world.finish()
    assert world.table == world.state(world.source)


@settings(max_examples=cases(100))
@given(histories(), st.integers(0, 5), STEPS)
def test_once_the_log_has_passed_all_reads_the_table_is_the_source_at_its_own_place(
    commits: list[tuple[int, int | None]], before: int, steps: list[tuple[int, int, int, bool]]
) -> None:
    """So the load is complete then, and not before."""
    world = World(commits)
    run(world, before, steps)
    for _ in range(100):
        parts = world.plan.of(READ)
        if not world.plan.of(OPEN) and all(world.tables >= int(one.read_at) for one in parts):
            assert world.table == world.state(world.tables)
        if world.tables == len(commits):
            break
        world.source = world.log = min(len(commits), world.source + 1)
        world.apply(1)


# --- the plan ---------------------------------------------------------------------------------


NONE = Listing(ranges=(), read_at="0")


def ranges(collection: str, *keys: bytes, database: str = "db") -> Listing:
    edges = [None, *keys, None]
    found = (
        KeyRange(database=database, collection=collection, start=start, stop=stop)
        for start, stop in itertools.pairwise(edges)
    )
    return Listing(ranges=tuple(found), read_at="0")


def test_a_plan_is_complete_once_all_that_was_asked_for_is_read_and_passed() -> None:
    plan = Plan().with_collections(["orders", "lines"]).with_collections(["orders"])
    assert [one.collection for one in plan.of(UNSPLIT)] == ["orders", "lines"]
    for one in plan.of(UNSPLIT):
        plan = plan.split(one, ranges(one.collection, b"k") if one.collection == "orders" else NONE)
    assert [(one.start, one.stop) for one in plan.of(OPEN)] == [(None, b"k"), (b"k", None)]
    assert not plan.complete
    first, second = plan.of(OPEN)
    plan = plan.read({first: Outcome(read_at="1", sequence=7)})
    assert plan.of(OPEN) == [second]
    assert not plan.passed().complete
    plan = plan.read({second: Outcome(read_at="2", sequence=8)})
    assert not plan.complete
    assert plan.passed().complete
    assert not Plan().complete


def test_a_plan_counts_ranges_and_names_what_is_not_divided_into_any() -> None:
    def counted(plan: Plan) -> tuple[int, int, tuple[str, ...], bool]:
        told = LoadProgress.of("p", plan)
        return told.loaded, told.ranges, told.undivided, told.complete

    assert counted(Plan().with_collections([""])) == (0, 0, ("",), False)
    plan = Plan().with_collections(["orders", "lines"])
    plan = plan.split(plan.of(UNSPLIT)[0], ranges("orders", b"k"))
    assert counted(plan) == (0, 2, ("lines",), False)
    # That a collection was listed is a part of the plan, and no range.
    plan = plan.split(plan.of(UNSPLIT)[0], ranges("lines"))
    assert counted(plan) == (0, 3, (), False)
    plan = plan.read({plan.of(OPEN)[0]: Outcome(read_at="1")})
    assert counted(plan) == (1, 3, (), False)
    assert counted(plan.anew("db", "orders")) == (0, 1, ("orders",), False)
    plan = plan.read({one: Outcome(read_at="1") for one in plan.of(OPEN)})
    assert counted(plan) == (3, 3, (), False)
    assert counted(plan.passed()) == (3, 3, (), True)


def test_a_collection_that_took_over_rows_is_planned_anew() -> None:
    plan = Plan().with_collections(["orders"])
    plan = plan.split(plan.of(UNSPLIT)[0], ranges("orders", b"k"))
    first, second = plan.of(OPEN)
    anew = plan.anew("db", "orders")
    assert [(one.database, one.state) for one in anew.parts] == [("", READ), ("db", UNSPLIT)]
    assert anew.read({first: Outcome(read_at="1")}) == anew, "what was read before says nothing"
    assert anew.split(second, NONE) == anew
    again = anew.split(anew.of(UNSPLIT)[0], ranges("orders"))
    assert len(again.of(OPEN)) == 1
    # Asked for once more, its ranges are those that were said last.
    assert again.with_collections(["orders"]) == again


def test_a_plan_is_kept_as_it_is(tmp_path: Path) -> None:
    plan = Plan().with_collections(["orders", ""])
    plan = plan.split(plan.of(UNSPLIT)[0], ranges("orders", b"\0\xff"))
    plan = plan.read({plan.of(OPEN)[0]: Outcome(read_at="7.1", sequence=9, version=4)})
    stored = StoredPlan("p", pipeline(tmp_path / "t"))
    assert stored.read() == Plan()
    stored.write(plan, log_id=1, sequence=9)
    assert StoredPlan("p", pipeline(tmp_path / "t")).read() == plan


# --- what the log says of whole collections -----------------------------------------------------


def control(operation: str, collection: str = "orders", **facts: Any) -> Control:
    return Control(
        sequence=1,
        kind=Kind.SCHEMA,
        operation=operation,
        source="shop",
        database="db",
        collection=collection,
        timestamp=0,
        description=facts,
    )


def test_a_drop_or_rename_ends_what_was_read_of_its_collections() -> None:
    assert ends_of(control("drop")) == [("db", "orders")]
    assert ends_of(control("dropDatabase", "")) == [("db", "")]
    assert ends_of(control("createIndexes")) == []
    renamed = control("rename", to={"db": "db", "coll": "old"})
    assert ends_of(renamed) == [("db", "orders"), ("db", "old")]
    assert renamed_to(renamed) == ("db", "old")
    assert renamed_to(control("drop")) is None
    window = Window()
    window.end("db", "")
    assert window.ended("db", "orders")
    assert not window.ended("other", "orders")


def test_a_window_knows_a_row_by_database_collection_and_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    window = Window()
    window.see(rows(1, 2))
    window.see(rows(3, role=DELETE))
    window.see(rows(4, role=CONTROL))
    window.see(rows(5, collection="lines"))
    assert list(window.untouched(rows(1, 2, 3, 4, 5))) == [3, 4]
    assert not window.is_full
    monkeypatch.setattr("penstock.spark.loading.window.KEYS_MAX", 4)
    assert window.is_full


def test_a_full_window_holds_no_keys_however_long_it_is_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it is asked for all the same is never answered as by one in which nothing changed."""
    monkeypatch.setattr("penstock.spark.loading.window.KEYS_MAX", 100)
    window = Window()
    many = rows(*range(100), role=RELATIVE)
    window.see(many)
    assert not len(window.untouched(many))
    window.end("db", "lines")
    tracemalloc.start()
    try:
        for first in range(100, 20_000, 100):
            window.see(rows(*range(first, first + 100), role=RELATIVE))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 500_000
    assert window.is_full
    assert window.ended("db", "lines")
    for ask in (window.untouched, window.building):
        with pytest.raises(RuntimeError, match="full"):
            ask(many)


# --- rows of the source -------------------------------------------------------------------------


def test_a_row_of_the_source_is_decoded_as_one_of_the_stream() -> None:
    """Invariant 9."""
    events = [put(1, n=7, big=1 << 40, nested={"a": [1]}), put("1", text="x")]
    made = pa.Table.from_batches([entries_of(events, first=5)])
    chunk = reduce_entries(made)
    assert chunk.rows["key"].to_pylist() == ['{"_id":1}', '{"_id":"1"}']
    assert chunk.rows["sequence"].to_pylist() == [5, 6]
    assert set(chunk.cells) == {"_id", "n", "big", "nested", "text"}


# --- who cannot -----------------------------------------------------------------------------------


def test_a_source_that_cannot_be_read_is_refused_by_name(tmp_path: Path) -> None:
    config = pipeline(tmp_path / "t", first_load="source")
    for opens in (None, lambda: _MISSING):
        with pytest.raises(ConfigError, match=r"shop is none.*penstock snapshot shop"):
            first_load("p", config, "h:1", _MISSING, opens, _MISSING)


# --- writing --------------------------------------------------------------------------------------


def chunk_of(*events: Any) -> Chunk:
    return reduce_entries(pa.Table.from_batches([entries_of(events, first=5)]))


def begun(config: TablePipelineConfig, *, head: int = 40) -> StandingTable:
    """A new pipeline, on a log with that many entries."""
    standing = StandingTable(config, "p")
    standing.start(
        Bounds(log_id=LOG_ID, trimmed=0, trimmed_check=0, head=head, head_commit=head, head_check=1)
    )
    standing.settle()
    return standing


def test_rows_that_the_log_changed_are_left_to_it_and_the_others_are_as_of_the_table(
    tmp_path: Path,
) -> None:
    config = pipeline(tmp_path / "t", first_load="source")
    standing, writer, window = begun(config), LoadWriter("p", config), Window()
    window.see(chunk_of(put(2, n=0)).rows)
    assert (
        writer.write("orders", [chunk_of(put(1, n=1), put(2, n=2))], window, standing).sequence
        == 40
    )
    assert rows_of(tmp_path / "t") == {("db", '{"_id":1}'): {"_id": 1, "n": 1}}
    assert writer.written("orders", log_id=LOG_ID).sequence == 40
    kept = StandingTable(config, "p").read()
    assert kept is not None
    assert kept.tables == {"orders": 40}
    # Read once more, it is there once.
    again = chunk_of(put(1, n=3))
    assert writer.write("orders", [again], Window(), standing).sequence == 40
    assert rows_of(tmp_path / "t") == {("db", '{"_id":1}'): {"_id": 1, "n": 3}}
    assert writer.write("orders", [], Window(), standing).sequence == -1


def test_a_row_that_fits_no_column_is_in_the_rejects_once_and_replays_leave_it(
    tmp_path: Path,
) -> None:
    config = pipeline(tmp_path / "t", first_load="source")
    standing, writer = begun(config), LoadWriter("p", config)
    writer.write("orders", [chunk_of(put(1, n=1))], Window(), standing)
    for _ in range(2):
        writer.write("orders", [chunk_of(put(2, n="x"), put(3, n=3))], Window(), standing)
    (reject,) = rejects_of(tmp_path / "t")
    assert (reject["key"], reject["field"], reject["operation_type"]) == ('{"_id":2}', "n", "load")
    assert reject["full_document"] == '{"_id":2,"n":"x"}'
    assert {key for _, key in rows_of(tmp_path / "t")} == {'{"_id":1}', '{"_id":3}'}
    log = BlockLog(log_id=LOG_ID)
    # An entry at the very place that the reject names is another row's.
    log.append([[put(3, n=number)] for number in range(41)])
    server = FlightServer(log)
    server.start()
    try:
        (left,) = replay_rejects("p", config, server.address)
    finally:
        server.stop()
    assert (left.state, left.reason) == ("left", "it came with the first load: no log has it")


def test_a_row_that_has_lost_its_exact_form_since_is_stale_and_in_the_rejects_once(
    tmp_path: Path,
) -> None:
    config = pipeline(tmp_path / "t", first_load="source")
    standing, writer = begun(config), LoadWriter("p", config)
    writer.write("orders", [chunk_of(put(1, n=1), put(2, n=2))], Window(), standing)
    named = {"source": "shop", "database": "db", "collection": "orders"}
    untold = InexactRow(**named, key='{"_id":2}', reason="the field n is no UTF-8")
    entries = [
        untold_entries_of([untold], first=1),
        entries_of([put(1, n="x"), put(3, n=3)], first=5),
    ]
    chunks = [reduce_entries(pa.Table.from_batches([one])) for one in entries]
    for _ in range(2):
        writer.write("orders", chunks, Window(), standing, inexact=[untold])
    found = sorted((row["key"], row["field"], row["reason"]) for row in rejects_of(tmp_path / "t"))
    assert [(key, field) for key, field, _ in found] == [('{"_id":1}', "n"), ('{"_id":2}', None)]
    assert found[1][2] == "the field n is no UTF-8"
    rows = DeltaTable(str(tmp_path / "t")).to_pyarrow_table().to_pylist()
    assert sorted((row["_key"], row["n"], row["_rejected_sequence"]) for row in rows) == [
        ('{"_id":1}', 1, 40),
        ('{"_id":2}', 2, 40),
        ('{"_id":3}', 3, None),
    ]


def test_a_rejected_row_that_came_since_is_superseded_and_told_anew_if_it_is_rejected_again(
    tmp_path: Path,
) -> None:
    """Of rows with the same key, in tables that were as far, only the one that came."""
    config = pipeline(tmp_path, "orders", "lines", first_load="source")
    standing, writer = begun(config), LoadWriter("p", config)

    def write(n: Any, *collections: str) -> None:
        for name in collections:
            row = change(2, "insert", {"_id": 2, "n": n}, collection=name)
            writer.write(name, [chunk_of(row)], Window(), standing)

    def replayed() -> list[tuple[str | None, str]]:
        log = BlockLog(log_id=LOG_ID)
        log.append([[put(3, n=number)] for number in range(41)])
        server = FlightServer(log)
        server.start()
        try:
            outcomes = replay_rejects("p", config, server.address)
        finally:
            server.stop()
        return sorted((one.collection, one.state) for one in outcomes)

    for name in ("orders", "lines"):
        row = change(1, "insert", {"_id": 1, "n": 1}, collection=name)
        writer.write(name, [chunk_of(row)], Window(), standing)
    write("x", "orders", "lines")
    assert replayed() == [("lines", "left"), ("orders", "left")]
    write(2, "orders")
    assert replayed() == [("lines", "left"), ("orders", "superseded")]
    assert [one["collection"] for one in pending_rejects("p", config)] == ["lines"]
    write("x", "orders", "lines")
    assert replayed() == [("lines", "left"), ("orders", "left")]


def test_a_row_that_the_stream_brought_and_that_is_rejected_again_is_told_anew(
    tmp_path: Path,
) -> None:
    """Without a replay in between: it would settle the first reject, and none would be left."""
    config = pipeline(tmp_path / "t", first_load="source")
    standing, writer = begun(config), LoadWriter("p", config)
    writer.write("orders", [chunk_of(put(1, n=1))], Window(), standing)
    writer.write("orders", [chunk_of(put(2, n="x"))], Window(), standing)
    entries = Entries()
    entries.commit(*[put(3, n=number) for number in range(40)])
    entries.commit(put(2, n=2), put(3, n=3))
    apply(entries.table(after=40), config)
    for _ in range(2):
        writer.write("orders", [chunk_of(put(2, n="y"))], Window(), standing)
    assert [(row["sequence"], row["full_document"]) for row in rejects_of(tmp_path / "t")] == [
        (40, '{"_id":2,"n":"x"}'),
        (42, '{"_id":2,"n":"y"}'),
    ]
    log = BlockLog(log_id=LOG_ID)
    log.append([[put(3, n=number)] for number in range(42)])
    server = FlightServer(log)
    server.start()
    try:
        outcomes = replay_rejects("p", config, server.address)
    finally:
        server.stop()
    assert [(one.sequence, one.state) for one in outcomes] == [(40, "superseded"), (42, "left")]


def test_a_table_that_is_gone_is_not_begun_in_its_midst(tmp_path: Path) -> None:
    config = pipeline(tmp_path / "t", first_load="source")
    standing, writer = begun(config), LoadWriter("p", config)
    writer.write("orders", [chunk_of(put(1, n=1))], Window(), standing)
    shutil.rmtree(tmp_path / "t" / "_delta_log")
    with pytest.raises(PipelineChangedError, match="is gone or older"):
        writer.write("orders", [chunk_of(put(2, n=1))], Window(), standing)


def test_while_rows_are_loaded_a_change_that_builds_on_one_to_come_is_no_reject() -> None:
    """P25: its document was looked up and not found, so the end of its row follows."""
    empty = OWN_COLUMNS.empty_table()
    relative = change(1, "update", update={"updatedFields": {"n": 1}, "removedFields": []})
    entries = Entries()
    entries.commit(relative)
    changed = reduce_entries(entries.table())
    for loading, rejected in ((True, 0), (False, 1)):
        write = prepare(changed, schema=pa.schema([]), base=empty, loading=loading)
        assert len(write.rejects) == rejected
        assert write.changes.num_rows == rejected
