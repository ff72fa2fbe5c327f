"""What decides whether tables are what the source is, without Spark (decision 0036)."""

import itertools
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import structs

from penstock.errors import ConfigError, PipelineError, SourceUnavailableError
from penstock.event import Kind
from penstock.ports import Bounds
from penstock.spark.against.changed import ended_by
from penstock.spark.against.fitting import DOUBTFUL, fitted
from penstock.spark.against.source import pin, verify_with_source, wait_until_told
from penstock.spark.config import TablePipelineConfig
from penstock.spark.loading.parts import DONE, READ, Part, Plan
from penstock.spark.loading.reading import entries_of
from penstock.spark.loading.stored import StoredPlan
from penstock.spark.table.apply import prepare
from penstock.spark.table.arrow import arrow
from penstock.spark.table.chunk import Chunk, Control, reduce_entries
from penstock.spark.table.comparing import UNFIT
from penstock.spark.table.delta import as_wide
from penstock.spark.table.lake import Folders, Lake
from penstock.spark.table.plan import KEY, OPERATION, OWN_COLUMNS
from penstock.spark.table.reduce import PUT
from penstock.spark.table.standing import Standing, StandingTable
from penstock.spark.verifying import standing_of
from tests.seeds import cases
from tests.spark.tables import LOG_ID, Entries, apply, change, pipeline, put

_MISSING: Any = None

# --- rows as the columns of a table ---------------------------------------------------------------

BEYOND = {"$date": {"$numberLong": "253402300800000"}}
VALUES = st.one_of(
    st.integers(-3, 3),
    st.sampled_from([1 << 31, 1 << 54, 1 << 62, 1 << 70, True, None, "x", [1], {"a": 1}]),
    st.sampled_from([0.0, -0.0, 2.0, 2.5, float(1 << 53), float(1 << 60)]),
    st.sampled_from(["NaN", "-Infinity"]).map(lambda text: {"$numberDouble": text}),
    st.sampled_from(["1.5", "2", "-0", "NaN", "1E400"]).map(lambda text: {"$numberDecimal": text}),
    st.sampled_from([BEYOND, {"$date": {"$numberLong": "-1"}}]),
    st.just({"$oid": "0" * 24}),
    st.just({"$numberLong": "2"}),
)
DOCUMENTS = st.dictionaries(st.sampled_from(["a", "A", "b", "c d", "_key", ""]), VALUES, max_size=4)
BATCHES = st.lists(st.lists(DOCUMENTS, max_size=3), max_size=6)


def chunk_of(documents: Sequence[dict[str, Any]], first: int) -> Chunk:
    """These documents, with the keys from `first` on."""
    events = [
        change(key, "insert", text=json.dumps(document))
        for key, document in enumerate(documents, first)
    ]
    return reduce_entries(pa.Table.from_batches([entries_of(events, first=first)]))


@pytest.mark.slow
@settings(max_examples=cases(60))
@example([[{"a": 1}, {"a": 2.0}], [{"a": 1 << 62}], [{"a": {"$numberDecimal": "1.5"}}]])
@example([[{"a": 0, "b": BEYOND}], [{"a": "x", "b": [1]}]])
@given(BATCHES)
def test_what_a_table_took_is_what_is_compared_and_what_it_did_not_take_is_doubted(
    batches: list[list[dict[str, Any]]],
) -> None:
    """However its columns came to be, and widened since."""
    schema: Any = pa.schema([])
    taken: list[Any] = []
    places = itertools.accumulate((len(batch) for batch in batches), initial=1)
    for first, batch in zip(places, batches, strict=False):
        if not batch:
            continue
        write = prepare(chunk_of(batch, first), schema=schema, base=OWN_COLUMNS.empty_table())
        changes: Any = write.changes
        schema = arrow.schema(
            [one for one in changes.schema if one.name not in {*OWN_COLUMNS.names, OPERATION}]
        )
        taken.append(changes.filter(pa.array(changes[OPERATION].to_numpy() == PUT)))
    there: dict[str, dict[str, Any]] = {}
    for some in taken:
        for at in range(some.num_rows):
            row = some.slice(at, 1)
            there[row[KEY][0].as_py()] = {
                one.name: _plain(as_wide(row[one.name].combine_chunks(), one.type))
                for one in schema
                if one.name in row.column_names
            }
    everything = list(itertools.chain.from_iterable(batches))
    if not everything:
        return
    table = arrow.schema([*OWN_COLUMNS, *schema])
    rows: Any = fitted(chunk_of(everything, 1), table)
    for at in range(rows.num_rows):
        row = rows.slice(at, 1)
        key = row[KEY][0].as_py()
        if key not in there:
            assert row[DOUBTFUL][0].as_py()
            continue
        assert row[UNFIT][0].as_py() == []
        found = {one.name: _plain(row[one.name].combine_chunks()) for one in schema}
        assert found == {one.name: there[key].get(one.name, "None") for one in schema}


def _plain(column: Any) -> str:
    """A value so that 0.0 is not -0.0, and NaN is itself."""
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    return repr(column[0].as_py())


def test_a_value_that_no_column_holds_is_named() -> None:
    table = pa.schema([*OWN_COLUMNS, ("n", pa.int32()), ("gone", pa.int32())])
    rows = fitted(chunk_of([{"n": "x", "new": 1}, {"n": 1}, {"n": None, "new": None}], 1), table)
    assert rows[UNFIT].to_pylist() == [["n", "new"], [], []]
    assert rows[DOUBTFUL].to_pylist() == [True, False, False]
    assert rows["n"].to_pylist() == [None, 1, None]


# --- the method: any interleaving, each at its own pace -------------------------------------------

_KEYS = 4
Commits = list[tuple[int, int | None]]


@st.composite
def histories(draw: st.DrawFn) -> Commits:
    told = draw(
        st.lists(st.tuples(st.integers(0, _KEYS - 1), st.booleans()), min_size=6, max_size=20)
    )
    return [(key, None if ends else at) for at, (key, ends) in enumerate(told)]


def state(commits: Commits, until: int) -> dict[int, int]:
    """The source after its first `until` commits."""
    rows: dict[int, int] = {}
    for key, value in commits[:until]:
        rows.pop(key, None)
        if value is not None:
            rows[key] = value
    return rows


STEPS = st.lists(st.sampled_from([0, 0, 1, 2]), min_size=5 + _KEYS, max_size=5 + _KEYS)


@settings(max_examples=cases(300))
@example(
    commits=[(0, 0), (0, 1)], before=1, steps=[0, 0, 1, 0, 0, 0, 0, 0, 0], looks_up=True, lost=20
)
@given(
    commits=histories(),
    before=st.integers(0, 10),
    steps=STEPS,
    looks_up=st.booleans(),
    lost=st.integers(0, 20),
)
def test_no_row_is_called_different_that_nobody_lost(
    commits: Commits, before: int, steps: list[int], looks_up: bool, lost: int
) -> None:
    """And one that was lost is, unless the log names its key once more.

    `steps` say how far each is behind the one before: tables, log and source, as 0036 asks them.
    """
    end = len(commits)
    places = [min(end, place) for place in itertools.accumulate(steps[:4], initial=before)]
    standing, version, position, listed, last = places
    reads = [min(position + step, last) for step in steps[5:]]
    head = min(end, max(listed, *reads) + steps[4])
    captured = [one for at, one in enumerate(commits) if at != lost]

    def told(place: int) -> int:
        """How many entries the log has of the first `place` commits."""
        return place - (lost < place)

    table = state(captured, told(version))
    if looks_up:
        # A change may carry what the row was at any time before the source was asked (P25).
        for key in {key for key, _ in captured[: told(version)]}:
            table.pop(key, None)
            if (now := state(commits, listed).get(key)) is not None:
                table[key] = now
    named = {key for key, _ in captured[told(standing) : told(head)]}
    different = {
        key
        for key in range(_KEYS)
        if key not in named and table.get(key) != state(commits, reads[key]).get(key)
    }
    if lost >= end:
        assert not different
        return
    key, value = commits[lost]
    assert different <= {key}
    is_last = all(one != key for one, _ in commits[lost + 1 :])
    if is_last and key not in named and lost < position and not looks_up:
        assert (key in different) == (state(commits, lost).get(key) != value)


# --- what the log says of whole collections -------------------------------------------------------


def control(kind: Kind, operation: str, database: str = "db", **facts: Any) -> Control:
    return Control(
        sequence=7, kind=kind, operation=operation, source="shop", database=database,
        collection="orders", timestamp=0, description=facts,
    )  # fmt: skip


def test_collections_that_ended_are_not_judged_and_a_gap_leaves_nothing_to_judge() -> None:
    renamed = control(Kind.SCHEMA, "rename", to={"db": "db", "coll": "old"})
    index = control(Kind.SCHEMA, "createIndexes")
    assert ended_by("p", [index]) == set()
    assert ended_by("p", [renamed, index]) == {("db", "orders"), ("db", "old")}
    assert ended_by("p", [control(Kind.SCHEMA, "modify")]) == {("db", "orders")}
    with pytest.raises(PipelineError, match=r"sequence 7 the log says that changes are missing"):
        ended_by("p", [control(Kind.GAP, "gap", "")])
    with pytest.raises(PipelineError, match=r"says 'unheard'.*Run the pipeline on"):
        ended_by("p", [control(Kind.SCHEMA, "unheard", "")])


# --- what it waits for, and what it refuses -------------------------------------------------------


class Told:
    """A log that moves on with the source whenever it is asked, up to `end`."""

    def __init__(self, end: int) -> None:
        self._end = end
        self.asked = 0

    def position(self, source: str) -> str | None:
        self.asked += 1
        return str(min(self.asked, self._end)) if self._end else None

    def live_bounds(self) -> Bounds:
        return bounds(head=self.asked)

    def has_told(self, position: str, read_at: str) -> bool:
        return int(position) > int(read_at)


def bounds(*, head: int = 40) -> Bounds:
    return Bounds(
        log_id=LOG_ID, trimmed=0, trimmed_check=0, head=head, head_commit=head, head_check=1
    )


def waited(told: Any, *reads: str) -> int:
    config = pipeline(Path("lake"))
    return wait_until_told(told, told, "p", config, reads, still_seconds=0.1).sequence


def test_the_head_is_that_of_a_log_that_has_told_all_that_was_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock.spark.against.source._LOOK_SECONDS", 0.0)
    assert waited(Told(99), "3", "7", "5") == 8
    with pytest.raises(SourceUnavailableError, match="is captured no further"):
        waited(Told(7), "3", "7")
    with pytest.raises(SourceUnavailableError, match="is not captured"):
        waited(Told(0), "3")


def test_tables_whose_rows_are_still_to_come_are_not_compared(tmp_path: Path) -> None:
    config = pipeline(tmp_path / "t", "orders", "lines", first_load="source")
    with pytest.raises(PipelineError, match="has never run"):
        pin("p", config)
    standing = StandingTable(config, "p")
    standing.start(bounds())
    standing.settle()
    with pytest.raises(PipelineError, match="first load of pipeline p is not complete"):
        pin("p", config)
    whole = Part(database="db", collection="orders", state=READ)
    stored = StoredPlan("p", config)
    stored.write(Plan(parts=(whole,)), log_id=LOG_ID, sequence=40)
    with pytest.raises(PipelineError, match="not complete"):
        pin("p", config.model_copy(update={"first_load": "off"}))
    done = Plan(parts=(structs.replace(whole, state=DONE),))
    stored.write(done, log_id=LOG_ID, sequence=40)
    assert pin("p", config).until.sequence == 40
    more = pipeline(tmp_path / "t", "orders", "lines", "more", first_load="source")
    with pytest.raises(PipelineError, match=r"added to pipeline p that it has never read: more"):
        pin("p", more)


def test_tables_are_looked_at_after_their_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a batch in between would be in none of them: neither in the tables, nor behind it."""
    config = pipeline(tmp_path / "t")
    standing = StandingTable(config, "p")
    standing.start(bounds(head=0))
    standing.settle()
    entries = Entries()
    entries.commit(put(1, n=1))
    read = standing_of

    def moved(name: str, config: TablePipelineConfig, lake: Lake) -> Standing:
        found = read(name, config, lake)
        apply(entries.table(), config)
        return structs.replace(found, tables={"orders": 0})

    monkeypatch.setattr("penstock.spark.against.source.standing_of", moved)
    pinned = pin("p", config)
    assert (pinned.until.sequence, pinned.table("orders").version >= 0) == (0, True)


@pytest.mark.parametrize("opens", [None, lambda: _MISSING])
def test_a_source_that_cannot_be_read_and_steps_are_refused_by_name(
    tmp_path: Path, opens: Any
) -> None:
    config = pipeline(tmp_path / "t")
    with pytest.raises(ConfigError, match=r"as MongoDB, MySQL and MariaDB can; shop is none"):
        verify_with_source("p", config, "h:1", spark=_MISSING, open_source=opens)
    named = TablePipelineConfig.model_validate({"source": "shop", "catalog": "main.sales"})
    with pytest.raises(ConfigError, match="Compare with the log"):
        verify_with_source("p", named, "h:1", spark=_MISSING, open_source=opens)
    masked = pipeline(tmp_path / "t", transform=[{"mask": ["name"]}])
    with pytest.raises(ConfigError, match="steps or expectations"):
        verify_with_source("p", masked, "h:1", spark=_MISSING, open_source=opens)


def test_a_table_whose_version_is_gone_is_an_error_and_not_a_table_without_rows(
    tmp_path: Path,
) -> None:
    """Else every row would be called missing, and a repair write them all."""
    config = pipeline(tmp_path / "t")
    entries = Entries()
    entries.commit(put(1, n=1))
    apply(entries.table(), config)
    side = Folders(config, "p").table("orders").side()
    shutil.rmtree(config.path)
    with pytest.raises(PipelineError, match=r"cannot be read any more.*`history`"):
        side.opened()
