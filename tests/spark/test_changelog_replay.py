"""Rejected changes of a changelog, replayed: each once more, in its place, and then never again."""

import itertools
import os
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake.exceptions import CommitFailedError
from msgspec import structs

from penstock.client.flight import ReadRequest
from penstock.spark.changelog.entries import PROOFS
from penstock.spark.changelog.formats import format_of
from penstock.spark.changelog.replaying import ChangelogReplay
from penstock.spark.changelog.writing import hidden_name
from penstock.spark.config import ChangelogPipelineConfig
from penstock.spark.table.lake import KeptTable, lake_of
from penstock.spark.table.stamp import Stamp
from penstock.spark.transform.fate import Replayed
from tests.spark.changelogs import add, changelog, counted, expected, files_of, rows_of, started
from tests.spark.stepped import MemoryLog, stepped
from tests.spark.tables import LOG_ID, Entries, change, put, rejects_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STEPS: list[dict[str, Any]] = [{"cast": {"n": "int"}}]
DAY_MS = 86_400_000
FORMATS = pytest.mark.parametrize("form", ["delta", "parquet"])


class Torn(ChangelogReplay):
    """A replay that ends before the rejects say so."""

    def _mark(self, rejects: KeptTable, settled: Sequence[Replayed]) -> None:
        pass


def log() -> Entries:
    """2 and 4 do not fit."""
    entries = Entries()
    entries.commit(put(1, n=1))
    entries.commit(put(2, n="x", card="y"))
    entries.commit(change(1, "delete"))
    entries.commit(change(2, "update", update={"updatedFields": {"n": "z"}}))
    return entries


def reject(config: ChangelogPipelineConfig, entries: Entries, after: int, until: int) -> pa.Table:
    """The entries as the steps make them; what these refuse is in the rejects then."""
    table, rejects = stepped(entries.table(after, until), config)
    if rejects is not None:
        stamp = Stamp(pipeline="p", log_id=LOG_ID, after=after, until=until, batch=0)
        lake_of(config, "p").rejects().append(rejects, stamp)
    return table


def take(config: ChangelogPipelineConfig, entries: Entries, after: int, until: int) -> None:
    """Apply a batch."""
    add(started(config), reject(config, entries, after, until), until=until)


def replay(
    config: ChangelogPipelineConfig,
    entries: Entries,
    trimmed: int = 0,
    kind: type[ChangelogReplay] = ChangelogReplay,
) -> dict[int, str]:
    """What became of each, in words where it is left."""
    found = kind("p", config, MemoryLog(entries, trimmed), None).run()
    return {one.sequence: one.reason or one.state for one in found}


def check(config: ChangelogPipelineConfig, entries: Entries) -> list[int]:
    """The entries that tell something are those of the log, in their order, each once; the
    sequences of those that tell nothing."""
    found = rows_of(config)
    told = [
        row
        for row in found
        if row["operation_type"] != "update" or row["update_description"] or row["full_document"]
    ]
    assert told == expected(entries.table())
    return [row["sequence"] for row in found if row not in told]


@FORMATS
def test_an_entry_that_fits_now_is_there_once_more_in_its_place(tmp_path: Path, form: str) -> None:
    config, entries = changelog(tmp_path / "c", format=form, transform=STEPS), log()
    take(config, entries, 0, 2)
    take(config, entries, 2, 4)
    folders = {Path(name).parent for name in files_of(config)}
    whole = changelog(tmp_path / "c", format=form)
    assert replay(whole, entries, 3, Torn) == {2: "the log no longer has it", 4: "replayed"}
    assert replay(whole, entries, kind=Torn) == {2: "replayed", 4: "replayed"}
    assert check(whole, entries) == [2, 4]
    assert replay(whole, entries) == {2: "replayed", 4: "replayed"}
    assert check(whole, entries) == [2, 4]
    assert {Path(name).parent for name in files_of(config)} == folders
    assert files_of(config) == counted(config)
    assert [row["state"] for row in rejects_of(tmp_path / "c")] == ["replayed"] * 2
    assert replay(whole, entries) == {}
    entries.commit(put(9, n=9))
    add(started(whole), entries.table(4), until=5)
    assert [row["sequence"] for row in rows_of(whole)] == [1, 2, 2, 3, 4, 4, 5]


def test_files_that_a_replay_left_without_their_names_get_them(tmp_path: Path) -> None:
    """It died behind its commit; then the pipeline went on, and looked for what is left over."""
    config, entries = changelog(tmp_path / "c", format="parquet", transform=STEPS), log()
    take(config, entries, 0, 4)
    before = files_of(config)
    whole = changelog(tmp_path / "c", format="parquet")
    replay(whole, entries, kind=Torn)
    made = set(files_of(config)).difference(before)
    assert made
    for name in made:
        hidden = tmp_path / "c" / hidden_name(name)
        (tmp_path / "c" / name).rename(hidden)
        os.utime(hidden, (0, 0))
    entries.commit(put(9, n=9))
    add(started(whole), entries.table(4), until=5)
    assert format_of("p", whole).leftovers() == 0
    assert [row["sequence"] for row in rows_of(whole)] == [1, 2, 3, 4, 5]
    assert replay(whole, entries) == {2: "replayed", 4: "replayed"}
    assert [row["sequence"] for row in rows_of(whole)] == [1, 2, 2, 3, 4, 4, 5]
    assert files_of(whole) == counted(whole)


@pytest.mark.slow
@FORMATS
@pytest.mark.parametrize("seed", range(4))
def test_each_entry_tells_what_it_has_to_once(tmp_path: Path, form: str, seed: int) -> None:
    """Whatever was refused, in whatever batches and folders, and replayed in between, whole or
    torn, from half a log."""
    dice = random.Random(seed)
    entries = Entries()
    for _ in range(40):
        key, n = dice.randrange(4), dice.choice([1, "x"])
        update = {"updatedFields": {"n": n}}
        event = dice.choice(
            [put(key, n=n), change(key, "delete"), change(key, "update", update=update)]
        )
        name = dice.choice(["orders", "lines"])
        entries.commit(structs.replace(event, collection=name, timestamp=dice.choice([1, DAY_MS])))
    folders = dice.choice([[], ["date"], ["collection"], ["date", "collection"]])
    more: dict[str, Any] = {"format": form, "partition_by": folders}
    config = changelog(tmp_path / "c", transform=STEPS, **more)
    whole = changelog(tmp_path / "c", **more)
    ends = sorted({*dice.sample(range(1, 40), 8), 40})
    for after, end in itertools.pairwise([0, *ends]):
        take(config, entries, after, end)
        if dice.random() < 0.4:
            replay(whole, entries, dice.randrange(end), dice.choice([ChangelogReplay, Torn]))
    assert set(replay(whole, entries).values()) == {"replayed"}
    assert check(whole, entries) == [row["sequence"] for row in rejects_of(tmp_path / "c")]
    assert files_of(whole) == counted(whole)
    assert replay(whole, entries) == {}


@FORMATS
def test_what_its_batch_took_after_all_is_not_added_again(tmp_path: Path, form: str) -> None:
    """A driver died behind the rejects of a batch, and the next one had other steps."""
    config, entries = changelog(tmp_path / "c", format=form, transform=STEPS), log()
    take(config, entries, 0, 1)
    reject(config, entries, 1, 4)
    whole = changelog(tmp_path / "c", format=form)
    not_yet = "its batch is not in the changelog yet"
    assert replay(whole, entries) == {2: not_yet, 4: not_yet}
    add(started(whole), entries.table(1), until=4)
    assert replay(whole, entries) == {2: "replayed", 4: "replayed"}
    assert rows_of(whole) == expected(entries.table())


def test_what_is_replayed_has_its_elements_and_no_hash_of_what_is_hidden(
    spark: "SparkSession", tmp_path: Path
) -> None:
    explode = {"explode": "lines"}
    config = changelog(tmp_path / "c", transform=[*STEPS, explode])
    entries = Entries()
    entries.commit(put(1, n=1, lines=[]))
    entries.commit(put(2, n="x", lines=[3, 4]))
    take(config, entries, 0, 2)
    mended = changelog(tmp_path / "c", transform=[{"drop": ["n"]}, explode])
    for kind in (Torn, ChangelogReplay):
        found = kind("p", mended, MemoryLog(entries, 0), spark).run()
        assert [(one.sequence, one.state) for one in found] == [(2, "replayed")]
    rows = [row for row in rows_of(mended) if row["sequence"] == 2 and row["elements"] is not None]
    assert [(row["element"], row["elements"], row["full_document"]) for row in rows] == [
        (None, 2, '{"_id":2,"lines":[3,4]}'),
        (0, 2, '{"_id":2,"lines":3}'),
        (1, 2, '{"_id":2,"lines":4}'),
    ]
    assert {row[name] for row in rows for name in PROOFS} == {None}


def test_of_a_replay_and_a_batch_that_commit_at_once_one_is_refused(tmp_path: Path) -> None:
    """A replay beside a batch would take the changelog back to where it was before that."""
    config, entries = changelog(tmp_path / "c", transform=STEPS), log()
    take(config, entries, 0, 3)
    whole = changelog(tmp_path / "c")

    class Beside(MemoryLog):
        def read(self, request: ReadRequest) -> Iterator[pa.RecordBatch]:
            take(config, entries, 3, 4)
            yield from super().read(request)

    with pytest.raises(CommitFailedError):
        ChangelogReplay("p", whole, Beside(entries, 0), None).run()
    assert [row["sequence"] for row in rows_of(whole)] == [1, 2, 3, 4]
    assert replay(whole, entries) == {2: "replayed", 4: "replayed"}
    assert check(whole, entries) == [2, 4]
