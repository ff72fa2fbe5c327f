"""A changelog is the log, entry by entry, however batches fall, repeat and tear."""

import itertools
import os
import shutil
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from msgspec import structs

from penstock.client.flight import ReadRequest
from penstock.errors import (
    ChangesLostError,
    HistoryTrimmedError,
    IncompleteCommitError,
    PipelineChangedError,
    PipelineError,
    StreamChangedError,
)
from penstock.event import AnyEvent
from penstock.serve.flight import FlightServer
from penstock.spark import datasource
from penstock.spark.changelog import folder as folders
from penstock.spark.changelog.entries import (
    ENTRY_SCHEMA,
    as_rows,
    collection_folder,
    day_of,
    partitioned,
)
from penstock.spark.changelog.folder import Folder
from penstock.spark.changelog.formats import ParquetFormat, format_of
from penstock.spark.changelog.writing import write_entries
from penstock.spark.changelogs import ChangelogTarget
from penstock.spark.datasource import PenstockReader, RangePartition
from penstock.spark.options import parse_options
from penstock.spark.rows import ENTRY_SCHEMA as SPARK_SCHEMA
from penstock.spark.table.delta import Table
from penstock.spark.table.standing import StandingTable
from penstock.wire import Block
from tests.flight.blocks import BlockLog
from tests.seeds import cases
from tests.spark.changelogs import (
    add,
    bounds,
    changelog,
    counted,
    expected,
    files_of,
    rows_of,
    started,
)
from tests.spark.tables import LOG_ID, Entries, as_of_days_ago, change, gap, put, schema_event

FORMATS = pytest.mark.parametrize("form", ["delta", "parquet"])
DAY_MS = 86_400_000


@st.composite
def histories(draw: st.DrawFn) -> Entries:
    """Commits of everything that an entry can be, over few collections and days."""
    entries = Entries()
    for _ in range(draw(st.integers(1, 8))):
        collection = draw(st.sampled_from(["orders", "007", "a/b", "_ü"]))
        at = draw(st.sampled_from([0, 1, DAY_MS, 1_700_000_000_000, 1_700_000_000_000 + DAY_MS]))
        whole: list[AnyEvent] = [
            put(1, n=draw(st.integers(-(2**63), 2**63 - 1))),
            change(2, "update", update={"updatedFields": {"n": 1}}, unchanged=["a", "b"]),
            change(3, "delete"),
            change(4, "insert", text='{"price":{"$numberDecimal":"1.10"},"d":3.0,"ü":"\\u0000"}'),
        ]
        chosen: list[AnyEvent] = draw(st.lists(st.sampled_from(whole), min_size=1, max_size=4))
        alone: list[AnyEvent] = [gap(), schema_event("drop", collection=collection)]
        events = [draw(st.sampled_from(alone))] if draw(st.integers(0, 4)) == 0 else chosen
        entries.commit(
            *(
                structs.replace(one, timestamp=at, collection=one.collection and collection)
                for one in events
            )
        )
    return entries


@FORMATS
@pytest.mark.slow
@given(entries=histories(), data=st.data())
@settings(max_examples=cases(20), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_changelog_is_the_log_however_it_falls_into_batches(
    tmp_path_factory: pytest.TempPathFactory, form: str, entries: Entries, data: st.DataObject
) -> None:
    """Invariant 7: batches of any size, repeated, overlapping, old ones again, and new runs."""
    chosen: Any = data.draw(st.permutations(["date", "collection"]))
    config = changelog(
        tmp_path_factory.mktemp("lake") / "changes",
        format=form,
        partition_by=chosen[: data.draw(st.integers(0, 2))],
    )
    whole = entries.table()
    ends = [row["sequence"] for row in whole.to_pylist() if row["ends_commit"]]
    target, reached = started(config), 0
    while reached < entries.head:
        until = data.draw(st.sampled_from([end for end in ends if end > reached]))
        after = data.draw(st.sampled_from([end for end in [0, *ends] if end <= reached]))
        add(target, entries.table(after, until), parts=data.draw(st.integers(1, 3)))
        reached = until
        if data.draw(st.booleans()):
            again = data.draw(st.sampled_from([end for end in [0, *ends] if end <= reached]))
            add(target, entries.table(0, again), until=reached)
            target = started(config)
    assert rows_of(config) == expected(whole)
    assert counted(config) == files_of(config)


@pytest.mark.slow
@given(entries=histories())
@settings(max_examples=cases(50), deadline=None)
def test_each_row_is_in_the_folder_of_its_own_day_and_collection(entries: Entries) -> None:
    rows = as_rows(entries.table())
    found = list(partitioned(rows, ("date", "collection")))
    parts = [row for _, part in found for row in part.to_pylist()]
    assert sorted(parts, key=lambda row: row["sequence"]) == rows.to_pylist()
    assert len({one for one, _ in found}) == len(found)
    for partition, part in found:
        for row in part.to_pylist():
            day = day_of(row["timestamp"], row["ingested_at"])
            values = {
                "date": day and day.isoformat(),
                "collection_folder": collection_folder(row["collection"]),
            }
            assert dict(partition.values) == values
            said = (row["timestamp"] or 0) // DAY_MS
            assert day == (date.fromordinal(719_163 + said) if said else None)


@given(names=st.lists(st.text(max_size=120), unique=True, max_size=20))
@example(names=["ü" * 150, "ü" * 151, "", "~", "\0"])
def test_collections_never_share_a_folder_nor_have_one_that_no_disk_allows(
    names: list[str],
) -> None:
    made = [collection_folder(name) for name in names]
    assert len(set(made)) == len(names)
    assert all(len(one) <= 200 and not {*one} & {*"/=%#"} for one in made)


@FORMATS
def test_a_batch_that_was_applied_is_invisible_when_it_comes_again(
    tmp_path: Path, form: str
) -> None:
    entries, config = Entries(), changelog(tmp_path / "c", format=form)
    entries.commit(put(1, n=1), put(2, n=2))
    first = add(started(config), entries.table())
    assert (first.entries, first.rows, first.sequence) == (2, 2, 2)
    assert first.timestamp == 1_700_000_000_000
    version, files = DeltaTable(config.table_path("")).version(), files_of(config)
    again = add(started(config), entries.table())
    assert (again.entries, again.rows) == (2, 0)
    assert DeltaTable(config.table_path("")).version() == version
    assert files_of(config) == files


# --- torn batches -------------------------------------------------------------------------------


class PowerCutError(BaseException):
    """Ends a driver where it stands."""


def power_cut(*_: object, **__: object) -> None:
    raise PowerCutError


@pytest.mark.parametrize(
    ("form", "kind", "name", "seen"),
    [
        ("delta", Table, "add_files", 0),
        ("delta", StandingTable, "save", 3),
        ("parquet", Table, "append", 0),
        ("parquet", Folder, "move", 0),
        ("parquet", StandingTable, "save", 3),
    ],
)
def test_a_crash_anywhere_ends_as_if_there_was_none(
    tmp_path: Path,
    form: str,
    kind: type,
    name: str,
    seen: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What readers see meanwhile is nothing of the batch, or all of it."""
    entries, config = Entries(), changelog(tmp_path / "c", format=form)
    entries.commit(put(1, n=1), change(2, "insert", {"_id": 2}, collection="lines"))
    entries.commit(put(3, n=3))
    with monkeypatch.context() as patched:
        patched.setattr(kind, name, power_cut)
        with pytest.raises(PowerCutError):
            add(started(config), entries.table())
        assert len(rows_of(config)) == seen
    add(started(config), entries.table())
    assert rows_of(config) == expected(entries.table())
    assert {*counted(config)} <= {*files_of(config)}


def test_a_driver_that_dies_amid_the_renames_is_finished_by_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries, config = Entries(), changelog(tmp_path / "c", format="parquet")
    entries.commit(*(change(1, "insert", {"_id": 1}, collection=name) for name in "abc"))
    moves = Folder.move
    left = [2]

    def breaking(self: Folder, name: str, to: str) -> None:
        if not left[0]:
            raise PowerCutError
        left[0] -= 1
        moves(self, name, to)

    with monkeypatch.context() as patched:
        patched.setattr(Folder, "move", breaking)
        with pytest.raises(PowerCutError):
            add(started(config), entries.table())
    assert len(rows_of(config)) == 2
    for name in files_of(config):
        os.utime(tmp_path / "c" / name, (1, 1))
    # A driver that is down for days leaves what it has committed, whoever tidies meanwhile.
    assert format_of("p", config).leftovers() == 0
    started(config)
    assert rows_of(config) == expected(entries.table())


@FORMATS
def test_what_a_failing_worker_and_its_fellows_have_written_is_deleted(
    tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries, config = Entries(), changelog(tmp_path / "c", format=form)
    for number in range(6):
        entries.commit(put(number, n=number))
    calls = [0]

    def failing(batches: Any, *, writing: Any) -> Any:
        calls[0] += 1
        if calls[0] == 2:
            raise OSError
        return write_entries(batches, writing=writing)

    with monkeypatch.context() as patched:
        patched.setattr("penstock.spark.changelogs.write_entries", failing)
        with pytest.raises(OSError):  # noqa: PT011 - the worker's own
            add(started(config), entries.table(), parts=3)
    assert files_of(config) == []


@FORMATS
def test_what_a_dead_driver_left_is_deleted_a_day_later_and_nothing_else(
    tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries, config = Entries(), changelog(tmp_path / "c", format=form)
    entries.commit(put(1, n=1))
    with monkeypatch.context() as patched:
        patched.setattr(Table, "add_files" if form == "delta" else "append", power_cut)
        with pytest.raises(PowerCutError):
            add(started(config), entries.table())
    (torn,) = files_of(config)
    add(started(config), entries.table())
    (kept,) = {*files_of(config)} - {torn}
    beside = ["notes.txt", f"other/{kept}", f"{Path(kept).parent}/own.parquet"]
    for name in beside:
        (tmp_path / "c" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "c" / name).write_text("kept")
    assert format_of("p", config).leftovers() == 0
    for name in files_of(config):
        os.utime(tmp_path / "c" / name, (1, 1))
    assert format_of("p", config).leftovers() == 1
    assert sorted([kept, *beside]) == files_of(config)


def test_files_that_were_joined_are_kept_for_readers_as_long_as_it_says(tmp_path: Path) -> None:
    """Longer than what torn batches leave: a week is more than that day."""
    config = changelog(tmp_path / "c", compact_every=0, vacuum_every=0, history=7 * 86_400.0)
    entries = Entries()
    for number in range(3):
        entries.commit(put(number, n=number))
        add(started(config), entries.table(number), until=number + 1)
    replaced = files_of(config)
    Table(config.path).compact()
    as_of_days_ago(Path(config.path), 2)
    assert format_of("p", config).leftovers() == 0
    assert {*replaced} <= {*files_of(config)}
    as_of_days_ago(Path(config.path), 8)
    assert format_of("p", config).leftovers() == 3


@pytest.mark.parametrize("begun", [0, 1])
@FORMATS
def test_of_two_drivers_that_add_the_same_batch_one_is_refused(
    tmp_path: Path, form: str, begun: int
) -> None:
    """Also where neither has found a changelog."""
    entries, config = Entries(), changelog(tmp_path / "c", format=form)
    entries.commit(put(0, n=0))
    entries.commit(put(1, n=1))
    if begun:
        add(started(config), entries.table(0, begun))
    late = started(config)
    real, rounds = ChangelogTarget._write, [0]  # pyright: ignore[reportPrivateUsage]

    def overtaken(self: ChangelogTarget, *said: Any, **more: Any) -> Any:
        written = real(self, *said, **more)
        rounds[0] += 1
        if rounds[0] == 1:
            add(started(config), entries.table(begun))
        return written

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ChangelogTarget, "_write", overtaken)
        with pytest.raises(CommitFailedError):
            add(late, entries.table(begun))
    assert rows_of(config) == expected(entries.table())


# --- what is refused ----------------------------------------------------------------------------


def test_a_commit_that_lacks_a_row_is_not_added(tmp_path: Path) -> None:
    entries, config = Entries(), changelog(tmp_path / "c")
    entries.commit(put(1, n=1), put(2, n=2))
    with pytest.raises(IncompleteCommitError, match="commit 1"):
        add(started(config), entries.table().slice(1), until=2)
    assert files_of(config) == []


@FORMATS
def test_a_gap_is_a_row_or_stops_the_pipeline_with_everything_before_it_added(
    tmp_path: Path, form: str
) -> None:
    """P19: never a silence."""
    entries = Entries()
    entries.commit(put(1, n=1))
    entries.commit(gap())
    entries.commit(put(2, n=2))
    strict = changelog(tmp_path / "c", format=form, on_gap="halt")
    for _ in range(2):
        with pytest.raises(ChangesLostError, match="at sequence 2"):
            add(started(strict), entries.table())
        assert [row["sequence"] for row in rows_of(strict)] == [1]
        assert counted(strict) == files_of(strict)
    add(started(changelog(tmp_path / "c", format=form)), entries.table())
    assert rows_of(strict) == expected(entries.table())
    # What is in the changelog already stops nobody.
    add(started(strict), entries.table())


@FORMATS
@pytest.mark.parametrize("parts", [1, 3])
def test_a_gap_in_the_middle_of_a_transaction_stops_the_pipeline_before_all_of_that(
    tmp_path: Path, form: str, parts: int
) -> None:
    """As that of a dead letter is: half of a transaction is in no changelog."""
    entries = Entries()
    entries.commit(put(1, n=1))
    entries.commit(put(2, n=2), put(3, n=3), gap(), put(4, n=4), gap())
    strict = changelog(tmp_path / "c", format=form, on_gap="halt")
    for _ in range(2):
        with pytest.raises(ChangesLostError, match="at sequence 4"):
            add(started(strict), entries.table(), parts=parts)
        assert [row["sequence"] for row in rows_of(strict)] == [1]
        assert counted(strict) == files_of(strict)
    add(started(changelog(tmp_path / "c", format=form)), entries.table(), parts=parts)
    assert rows_of(strict) == expected(entries.table())


def test_a_gap_behind_one_that_is_in_the_changelog_already_stops_the_pipeline(
    tmp_path: Path,
) -> None:
    entries, strict = Entries(), changelog(tmp_path / "c", on_gap="halt")
    entries.commit(gap())
    add(started(changelog(tmp_path / "c")), entries.table())
    entries.commit(put(1))
    entries.commit(gap())
    with pytest.raises(ChangesLostError, match="at sequence 3"):
        add(started(strict), entries.table())
    assert [row["sequence"] for row in rows_of(strict)] == [1, 2]


class OvertakenLog(BlockLog):
    """Gives a block at a time; retention passes `past` once that of `at` was given."""

    def __init__(self, *, at: int, past: int) -> None:
        super().__init__(log_id=LOG_ID, block_events=2)
        self._at = at
        self._past = past

    def read_now(self, *, after: int, until: int | None = None, bytes_max: int = 1) -> list[Block]:
        found = super().read_now(after=after, until=until, bytes_max=1)
        if found and found[0].last_sequence >= self._at > self.trimmed:
            self.trimmed = self._past
        return found


@pytest.mark.parametrize("edges", [[0, 9], [0, 5, 9]], ids=["one worker", "two workers"])
def test_a_transaction_that_retention_overtakes_while_it_is_read_has_a_gap_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, edges: list[int]
) -> None:
    """P7: it is no damage of the log, of which the pipeline would be told at every start."""
    monkeypatch.setattr(datasource, "ReadRequest", partial(ReadRequest, batch_bytes=1))
    log = OvertakenLog(at=4, past=7)
    log.append([[put(1)], [put(number) for number in range(6)], [put(1), put(2)]])
    config = changelog(tmp_path / "c")
    server = FlightServer(log)
    server.start()
    options = parse_options(
        {"endpoint": server.address, "failOnDataLoss": "false"}, starting_default="earliest"
    )
    reader = PenstockReader(options, SPARK_SCHEMA)
    try:
        entries = pa.Table.from_batches(
            batch
            for after, until in itertools.pairwise(edges)
            for batch in reader.read(RangePartition(log.log_id, after, until))
        )
    finally:
        server.stop()
    applied = add(started(config), entries)
    rows = [(row["sequence"], row["operation_type"]) for row in rows_of(config)]
    assert rows[:4] == [(1, "insert"), (2, "insert"), (3, "insert"), (4, "insert")]
    assert rows[-3:] == [(7, "gap"), (8, "insert"), (9, "insert")]
    assert sum(last - after for after, last in applied.lost) == 3


@FORMATS
def test_a_changelog_is_begun_gone_on_with_and_refused_like_a_table(
    tmp_path: Path, form: str
) -> None:
    """P7, F10."""
    entries = Entries()
    entries.commit(put(1, n=1))
    entries.commit(put(2, n=2))
    some = changelog(tmp_path / "c", "orders", "lines", format=form)
    with pytest.raises(HistoryTrimmedError):
        ChangelogTarget("p", some).start(bounds(9, trimmed=5))
    target = started(some)
    add(target, entries.table(0, 1))
    assert ChangelogTarget("p", some).start(bounds(9, trimmed=5)).sequence == 1
    with pytest.raises(PipelineChangedError, match="is of pipeline p"):
        ChangelogTarget("other", some).start(bounds(9))
    with pytest.raises(StreamChangedError):
        ChangelogTarget("p", some).start(bounds(9, log_id=7))
    oldest = {"format": form, "start": "oldest"}
    with pytest.raises(PipelineChangedError, match="refunds was added"):
        started(changelog(tmp_path / "c", "orders", "lines", "refunds", **oldest))
    for change_ in ({"partition_by": ["date"]}, {"partition_by": ["collection", "date"]}):
        with pytest.raises(PipelineChangedError, match="partition_by"):
            started(changelog(tmp_path / "c", "orders", "lines", **{**oldest, **change_}))
    shutil.rmtree(Path(some.table_path("")) / "_delta_log")
    with pytest.raises(PipelineChangedError, match="is gone or older"):
        add(target, entries.table(1))
    with pytest.raises(PipelineChangedError, match="is gone or older"):
        started(some)


@pytest.mark.parametrize("stands", [False, True])
@FORMATS
def test_a_folder_is_of_one_format_or_its_readers_would_see_each_change_twice(
    tmp_path: Path, form: str, stands: bool
) -> None:
    """Also where what says that the pipeline stands there lies elsewhere, or is gone."""
    entries, config = Entries(), changelog(tmp_path / "c", format=form)
    entries.commit(put(1, n=1))
    add(started(config), entries.table())
    if not stands:
        shutil.rmtree(config.standing_path)
    before = sorted(path for path in tmp_path.rglob("*"))
    other = changelog(tmp_path / "c", format="parquet" if form == "delta" else "delta")
    with pytest.raises(PipelineChangedError, match=r"says format.*or change format back"):
        started(other)
    assert sorted(path for path in tmp_path.rglob("*")) == before


def test_a_folder_that_has_both_formats_is_refused_in_either(tmp_path: Path) -> None:
    """It was made by a version that did not look."""
    entries = Entries()
    entries.commit(put(1, n=1))
    for form in ("delta", "parquet"):
        add(started(changelog(tmp_path / form, format=form)), entries.table())
    shutil.copytree(tmp_path / "parquet", tmp_path / "delta", dirs_exist_ok=True)
    shutil.move(tmp_path / "parquet_manifest", tmp_path / "delta_manifest")
    for form in ("delta", "parquet"):
        with pytest.raises(PipelineChangedError, match="see changes twice"):
            started(changelog(tmp_path / "delta", format=form))


def test_a_table_that_happens_to_have_the_name_of_a_manifest_is_none(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "c_manifest", pa.table({"n": [1]}))
    started(changelog(tmp_path / "c"))


def test_another_table_is_not_added_to(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "c", pa.table({"sequence": [1]}))
    with pytest.raises(PipelineChangedError, match="is not a changelog"):
        started(changelog(tmp_path / "c"))


@FORMATS
def test_files_that_the_driver_does_not_see_are_not_added(
    tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path on each worker's own disk would make a changelog that has nothing in it."""
    entries, config = Entries(), changelog(tmp_path / "c", format=form)
    entries.commit(put(1, n=1))

    def elsewhere(batches: Any, *, writing: Any) -> Any:
        own = structs.replace(writing, path=str(tmp_path / "disk of a worker"))
        return write_entries(batches, writing=own)

    monkeypatch.setattr("penstock.spark.changelogs.write_entries", elsewhere)
    with pytest.raises(PipelineError, match="must share the path"):
        add(started(config), entries.table())
    assert rows_of(config) == []


def test_a_file_that_the_manifest_has_and_the_folder_has_not_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries, config = Entries(), changelog(tmp_path / "c", format="parquet")
    entries.commit(put(1, n=1))
    with monkeypatch.context() as patched:
        patched.setattr(ParquetFormat, "_show", power_cut)
        with pytest.raises(PowerCutError):
            add(started(config), entries.table())
    (hidden,) = files_of(config)
    (tmp_path / "c" / hidden).unlink()
    with pytest.raises(PipelineError, match="in the changelog's manifest"):
        started(config)


def test_rows_have_every_column_of_an_entry_in_spark_s_types() -> None:
    from pyspark.sql.pandas.types import to_arrow_schema

    from penstock.spark.rows import ENTRY_SCHEMA as SPARK_SCHEMA

    assert to_arrow_schema(SPARK_SCHEMA) == ENTRY_SCHEMA
    assert folders.LEFTOVER_SECONDS == 86_400
