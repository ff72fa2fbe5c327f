"""What tables promise wherever they are: in folders, by delta-rs, or in a catalog, by Spark.

Whoever reads here reads with delta-rs, which knows neither.
"""

import json
import math
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from msgspec import structs

from penstock.errors import (
    ChangesLostError,
    PipelineChangedError,
    PipelineError,
    StreamChangedError,
)
from penstock.event import ChangeEvent
from penstock.ports import Bounds
from penstock.progress import Progress
from penstock.spark.config import TablePipelineConfig
from penstock.spark.table import progress_columns
from penstock.spark.table.apply import table_states
from penstock.spark.table.arrow import Field, compute
from penstock.spark.table.kinds import Kind, kind_of_column
from penstock.spark.table.lake import KeptTable, Lake
from penstock.spark.table.plan import REJECTED, SEQUENCE
from penstock.spark.table.standing import StandingTable
from penstock.spark.table.upkeep import tidy
from penstock.spark.table.writing import BatchResult
from tests.seeds import seed_of
from tests.spark.tables import LOG_ID, Document, Entries, apply, change, fold, put, schema_event

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HARD = "a'b\"c\\d\n${env:HOME} %_`é"
"""Text that SQL, Spark and JSON would each like to read in their own way."""
BOUNDS = Bounds(
    log_id=LOG_ID,
    trimmed=0,
    trimmed_check=0,
    head=9,
    head_commit=9,
    head_check=9,
    ancestors=(),
)


class Place(Protocol):
    """Somewhere tables can be, empty."""

    @property
    def spark(self) -> "SparkSession | None":
        """Who sees them, where others do not."""
        ...

    def config(self, *collections: str, **more: Any) -> TablePipelineConfig:
        """A pipeline into it."""
        ...

    def lake(self, config: TablePipelineConfig, name: str = "p") -> Lake:
        """Its tables."""
        ...

    def path(self, config: TablePipelineConfig, table: str) -> str:
        """Where the files are of the table of a collection, of `rejects` or of `standing`."""
        ...


class World:
    """A log, a pipeline, and its tables in a place."""

    def __init__(self, place: Place, *collections: str, **more: Any) -> None:
        self.place = place
        self.config = place.config(*(collections or ("orders",)), **more)
        self.lake = place.lake(self.config)
        self.entries = Entries()

    def apply(self, after: int = 0, until: int | None = None, **more: Any) -> BatchResult:
        """Apply the entries of (after, until]."""
        table = self.entries.table(after, until)
        return apply(table, self.config, lake=self.lake, **more)

    def table(self, collection: str = "orders") -> KeptTable:
        """A collection's table, as it is now."""
        return self.lake.table(collection)

    def stored(self, table: str = "orders") -> pa.Table:
        """All that a table has."""
        return DeltaTable(self.place.path(self.config, table)).to_pyarrow_table()

    def rows(self, collection: str = "orders") -> dict[tuple[str, str], Document]:
        """The documents by (database, key), nulls left out."""
        return {
            (database, key): state.document or {}
            for (key, _, database), state in table_states(self.stored(collection)).items()
        }

    def rejected(self) -> list[int]:
        """The sequences of what was rejected."""
        rows: list[Document] = self.stored("rejects").to_pylist()
        return sorted(row["sequence"] for row in rows)


def some_history(dice: random.Random, commits: int) -> Entries:
    """Whole documents, deltas, documents with unchanged fields, deletes and drops, over few keys;
    as a source that always knows the row would tell them."""
    entries, live = Entries(), dict[tuple[str, int], Document]()
    for _ in range(commits):
        if dice.random() < 0.1:
            database = dice.choice(["a", HARD])
            live = {own: row for own, row in live.items() if own[0] != database}
            entries.commit(schema_event("drop", database=database))
            continue
        events: list[ChangeEvent] = []
        for _ in range(dice.randrange(1, 5)):
            own = dice.choice(["a", HARD]), dice.randrange(5)
            database, key = own
            kind = dice.choice(["put", "delete", "delta", "unchanged"] if own in live else ["put"])
            n: float = dice.choice([dice.randrange(100), dice.randrange(100) + 0.5])
            document = {"_id": key, "n": n, "name": HARD, "tags": [1, HARD]}
            if kind == "delete":
                del live[own]
                events.append(change(key, "delete", database=database))
            elif kind == "delta":
                removed = [one for one in ("name",) if one in live[own]]
                update = {"updatedFields": {"n": n}, "removedFields": removed}
                kept = {one: value for one, value in live[own].items() if one not in removed}
                live[own] = {**kept, "n": n}
                events.append(change(key, "update", update=update, database=database))
            elif kind == "unchanged":
                same = [one for one in ("name", "tags") if one in live[own]]
                sent = {"_id": key, "n": n}
                live[own] = {**live[own], **sent}
                events.append(change(key, "update", sent, unchanged=same, database=database))
            else:
                live[own] = document
                events.append(change(key, "replace", document, database=database))
        entries.commit(*events)
    return entries


class PowerCutError(BaseException):
    """The writer has died."""


class TornLake:
    """A lake whose writer dies right behind each commit, from the `dies_at`th on."""

    def __init__(self, lake: Lake, *, dies_at: int = 1) -> None:
        self._lake = lake
        self._left = dies_at

    def table(self, collection: str) -> KeptTable:
        return cast("KeptTable", TornTable(self._lake.table(collection), self))

    def rejects(self) -> KeptTable:
        return self._lake.rejects()

    def committed(self) -> None:
        self._left -= 1
        if self._left <= 0:
            raise PowerCutError


class TornTable:
    """A table of such a lake."""

    def __init__(self, table: KeptTable, lake: TornLake) -> None:
        self._table = table
        self._lake = lake

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._table, name)
        if name not in {"merge", "insert", "rewrite", "append", "empty", "relabel"}:
            return found

        def write(*given: Any) -> None:
            before = self._table.version
            found(*given)
            if self._table.version != before:
                self._lake.committed()

        return write


class LakeContract:
    """What both promise."""

    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:
        """An empty place."""
        raise NotImplementedError

    def test_values_arrive_exactly_and_columns_keep_their_kinds(self, place: Place) -> None:
        world = World(place)
        values = {
            "i": "5",
            "big": '{"$numberLong":"9223372036854775807"}',
            "d": "5e-324",
            "dec": '{"$numberDecimal":"99999999999999999999.999999999999999999"}',
            "s": json.dumps(HARD),
            "b": "true",
            "oid": '{"$oid":"65a1b2c3d4e5f60718293a4b"}',
            "old": '{"$date":{"$numberLong":"-62135596800000"}}',
            "late": '{"$date":"9999-12-31T23:59:59.999999Z"}',
            "bin": '{"$binary":{"base64":"AAH/","subType":"00"}}',
            "doc": '{"a":[1,3.0,{"$oid":"00"}]}',
            "a b": "1",
        }
        said = ",".join(f'"{name}":{value}' for name, value in values.items())
        world.entries.commit(change(1, "insert", text=f'{{"_id":1,{said}}}'))
        # Of another kind each, that goes where the column's kind says, and nowhere else.
        world.entries.commit(change(2, "insert", text='{"_id":2,"doc":"x","i":1.5,"oid":"t"}'))
        world.entries.commit(change(3, "insert", text='{"_id":3,"s":{"a":1}}'))
        world.apply(0, 1)
        world.apply(1)
        rows = {row["_id"]: row for row in world.stored().to_pylist()}
        assert sorted(rows) == [1, 2]
        assert rows[1]["big"] == 2**63 - 1
        assert rows[1]["d"] == 5e-324
        assert str(rows[1]["dec"]) == "99999999999999999999.999999999999999999"
        assert (rows[1]["s"], rows[1]["oid"]) == (HARD, "65a1b2c3d4e5f60718293a4b")
        assert rows[1]["old"].isoformat() == "0001-01-01T00:00:00+00:00"
        assert rows[1]["late"].isoformat() == "9999-12-31T23:59:59.999999+00:00"
        assert rows[1]["bin"] == b"\x00\x01\xff"
        assert (rows[1]["doc"], rows[2]["doc"]) == (values["doc"], '"x"')
        assert (rows[1]["i"], rows[2]["i"]) == (5.0, 1.5)
        assert world.rejected() == [3]
        fields: list[Field] = list(world.table().schema)
        kinds = {field.name: kind_of_column(field) for field in fields}
        assert kinds["doc"] is Kind.JSON
        assert kinds["oid"] is Kind.OBJECT_ID
        assert kinds["i"] is Kind.DOUBLE
        assert world.rows()["db", '{"_id":1}']["a b"] == 1

    def test_a_condition_on_any_column_finds_the_rows(self, place: Place) -> None:
        """Readers pass over files by what the log says of them, which has not these values."""
        world = World(place)
        exact = '{"$numberDecimal":"12345678901234567890.123456789012345678"}'
        values = {"d": "2", "f": "1.5", "b": "true", "dec": exact, "s": json.dumps("a" * 99)}
        said = ",".join(f'"{name}":{value}' for name, value in values.items())
        world.entries.commit(change(1, "insert", text=f'{{"_id":1,{said}}}'))
        for key, value in ((2, "Infinity"), (3, "NaN")):
            inexact = f'{{"$numberDouble":"{value}"}}'
            text = f'{{"_id":{key},"d":{inexact},"f":{inexact},"new":{inexact},"late":{key}}}'
            world.entries.commit(change(key, "insert", text=text))
        for sequence in range(3):
            world.apply(sequence, sequence + 1)
        stored = DeltaTable(world.place.path(world.config, "orders"))
        dataset = cast("Any", stored).to_pyarrow_dataset()
        whole = stored.to_pyarrow_table()
        conditions: list[tuple[list[int], Any]] = [
            ([1], compute.field("d") == 2),
            ([1], compute.field("f") < 5),
            ([2], compute.field("d") > 5),
            ([2], compute.field("new") == math.inf),
            ([3], compute.is_nan(compute.field("f"))),
            ([1], compute.field("b")),
            ([1], compute.field("dec") == whole["dec"].drop_null()[0]),
            ([1], compute.field("s") == "a" * 99),
            ([3], compute.field("late") > 2),
        ]
        for keys, condition in conditions:
            assert dataset.to_table(filter=condition)["_id"].to_pylist() == keys, condition

    def test_collections_with_long_names_are_tables_of_their_own(self, place: Place) -> None:
        long = "заказы_клиентов_за_прошлый_квартал_по_всем_регионам"
        names = (long, f"{long}_2")
        world = World(place, *names)
        world.entries.commit(
            *(change(at, "insert", {"_id": at}, collection=name) for at, name in enumerate(names))
        )
        world.entries.commit(
            *(change(9, "insert", {"_id": 9, "n": 9}, collection=name) for name in names)
        )
        world.apply(0, len(names))
        world.apply(len(names), 2 * len(names))
        for at, name in enumerate(names):
            assert set(world.rows(name)) == {("db", f'{{"_id":{at}}}'), ("db", '{"_id":9}')}
        # delta-rs forgets a name where it adds columns; the next write says it again.
        world.entries.commit(
            *(change(9, "update", {"_id": 9, "n": 8}, collection=name) for name in names)
        )
        world.apply(2 * len(names))
        for name in names:
            told = DeltaTable(place.path(world.config, name)).metadata()
            keeps = told.configuration.get("penstock.keeps", "")
            assert (told.name or keeps.removeprefix("collection ")) == name

    def test_an_event_that_finds_no_row_moves_its_table_on(self, place: Place) -> None:
        """Or a replay would not know of it, and bring rows that were dropped."""
        world = World(place)
        world.entries.commit(put(1, n=1))
        world.entries.commit(change(1, "delete"))
        world.entries.commit(schema_event("drop"))
        world.entries.commit(schema_event("rename", to={"db": "other", "coll": "orders"}))
        world.apply(0, 2)
        for sequence in (3, 4):
            assert world.apply(sequence - 1, sequence).tables == {"orders": sequence}
        version = world.table().version
        world.apply(2)
        assert world.table().version == version
        world.entries.commit(put(1, n=2))
        world.apply(4)
        assert world.rows() == {("db", '{"_id":1}'): {"_id": 1, "n": 2}}

    def test_another_log_is_refused(self, place: Place) -> None:
        """F10: sequences of another log say nothing about this table."""
        world = World(place)
        world.entries.commit(put(1, n=1))
        world.apply()
        with pytest.raises(StreamChangedError, match="fedcba9876543210"):
            world.apply(log_id=7)
        assert world.table().applied("p", log_id=LOG_ID) == 1

    def test_where_it_stands_is_kept_and_never_written_over(self, place: Place) -> None:
        """Of two drivers that go on from one place the second is refused."""
        world = World(place)
        world.entries.commit(put(1, n=1))
        first = StandingTable(world.config, "p", world.lake)
        assert first.start(BOUNDS).after.sequence == 0
        first.advance(Progress(LOG_ID, 1, 1), world.apply().tables, batch_id=0)
        second = StandingTable(world.config, "p", world.place.lake(world.config))
        assert second.start(BOUNDS).after.sequence == 1
        first.advance(Progress(LOG_ID, 2, 2), {"orders": 1}, batch_id=1)
        with pytest.raises(Exception, match=r"same time|Failed to commit") as refused:
            second.advance(Progress(LOG_ID, 3, 3), {"orders": 1}, batch_id=1)
        assert isinstance(refused.value, PipelineError) or type(refused.value).__name__ == (
            "CommitFailedError"
        )
        third = StandingTable(world.config, "p", world.place.lake(world.config))
        assert third.start(BOUNDS).after.sequence == 2
        lost = structs.replace(BOUNDS, log_id=3)
        with pytest.raises(StreamChangedError):
            third.start(lost)

    def test_a_row_with_fewer_columns_says_where_it_stands_and_has_them_all_from_then_on(
        self, place: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As an earlier version of Penstock has written it."""
        before = [field for field in progress_columns.STANDING_SCHEMA if not field.nullable]
        with monkeypatch.context() as patched:
            patched.setattr(progress_columns, "STANDING_SCHEMA", pa.schema(before))
            world = World(place)
            first = StandingTable(world.config, "p", world.place.lake(world.config))
            first.start(BOUNDS)
            first.advance(Progress(LOG_ID, 1, 1), {"orders": 0}, batch_id=0)
        (row,) = self._rows(world)
        assert list(row) == [field.name for field in before]
        second = StandingTable(world.config, "p", world.place.lake(world.config))
        assert second.start(BOUNDS).after.sequence == 1
        second.advance(Progress(LOG_ID, 2, 2), {"orders": 0}, batch_id=1)
        (row,) = self._rows(world)
        assert list(row) == progress_columns.STANDING_SCHEMA.names
        assert (row["sequence"], row["to"]) == (2, "table")
        third = StandingTable(world.config, "p", world.place.lake(world.config))
        assert third.start(BOUNDS).after.sequence == 2

    def _rows(self, world: World) -> list[dict[str, Any]]:
        batches = world.place.lake(world.config).standing().scan()
        return [row for batch in batches for row in batch.to_pylist()]


class LongLakeContract:
    """What both promise, too, and Spark takes long to show."""

    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:
        """An empty place."""
        raise NotImplementedError

    def test_a_table_is_the_fold_of_its_history_however_it_falls_into_batches(
        self, place: Place
    ) -> None:
        """Invariant 7: batches repeated and overlapping, and old ones delivered again."""
        seed = seed_of("lake-contract")
        dice = random.Random(seed)
        world = World(place)
        world.entries = some_history(dice, 24)
        whole = world.entries.table()
        ends = [
            row["sequence"]
            for row in whole.select(["sequence", "ends_commit"]).to_pylist()
            if row["ends_commit"]
        ]
        reached = 0
        for until in sorted({*dice.sample(ends, 2), ends[-1]}):
            after = dice.choice([end for end in [0, *ends] if end <= reached])
            assert world.apply(after, until).tables["orders"] <= until
            reached = until
        assert world.rows() == fold(whole)
        version = world.table().version
        assert world.apply().rows == 0
        assert world.table().version == version

    def test_what_is_rejected_is_so_once_and_its_row_says_it_until_it_heals(
        self, place: Place
    ) -> None:
        world = World(place)
        world.entries.commit(put(1, n=1))
        world.entries.commit(put(1, n="x"), put(2, n="y"))
        world.apply(0, 1)
        assert world.apply(0).rejected == 2
        assert [(row[SEQUENCE], row[REJECTED]) for row in world.stored().to_pylist()] == [(1, 2)]
        world.entries.commit(change(1, "update", update={"updatedFields": {"n": 5}}))
        assert world.apply(3).rejected == 1
        assert world.apply().rejected == 0
        assert world.rejected() == [2, 3, 4]
        world.entries.commit(put(1, n=7))
        world.apply(4)
        assert world.rows() == {("db", '{"_id":1}'): {"_id": 1, "n": 7}}
        assert world.stored()[REJECTED].null_count == 1

    def test_a_rename_hands_rows_over_and_replaces_what_was_there(self, place: Place) -> None:
        world = World(place, "orders", "archive")
        entries = world.entries
        entries.commit(put(1, n=1), change(2, "insert", {"_id": 2, "n": 2}, collection="archive"))
        entries.commit(schema_event("rename", to={"db": "db", "coll": "archive"}))
        entries.commit(put(1, n=3))
        to_other = {"db": HARD, "coll": "orders"}
        entries.commit(schema_event("rename", to=to_other))
        world.apply()
        world.apply()
        assert world.rows("archive") == {("db", '{"_id":1}'): {"_id": 1, "n": 1}}
        assert world.rows("orders") == {(HARD, '{"_id":1}'): {"_id": 1, "n": 3}}

    def test_rows_that_were_handed_over_before_their_table_was_are_a_gap(
        self, place: Place
    ) -> None:
        """The old name's table is past the rename; what it has now is not what it had then."""
        before = World(place, "orders", "lines")
        entries = before.entries
        entries.commit(put(1, n=1), put(2, n=2))
        entries.commit(schema_event("rename", to={"db": "db", "coll": "archive"}))
        entries.commit(put(7, n=7))
        before.apply()
        entries.commit(change(3, "insert", {"_id": 3, "n": 3}, collection="archive"))
        added = World(place, "orders", "archive", "lines")
        added.entries = entries
        with pytest.raises(ChangesLostError, match=r"at sequence 3 .* remove the tables of both"):
            added.apply()
        recorded = World(place, "orders", "archive", "lines", on_gap="record")
        recorded.entries = entries
        for _ in range(2):
            recorded.apply()
        assert recorded.rejected() == [3]
        assert recorded.rows("archive") == {("db", '{"_id":3}'): {"_id": 3, "n": 3}}
        assert recorded.rows() == {("db", '{"_id":7}'): {"_id": 7, "n": 7}}

    @pytest.mark.parametrize("rows", [0, 2])
    def test_a_rename_that_is_torn_behind_any_commit_comes_again_whole(
        self, place: Place, rows: int
    ) -> None:
        """The new name's table is never before a rename that the old one's is past."""
        world = World(place, "orders", "archive")
        replaced = change(9, "insert", {"_id": 9, "n": 9}, collection="archive")
        if rows:
            world.entries.commit(*(put(key, n=1) for key in range(rows)), replaced)
        world.entries.commit(schema_event("rename", to={"db": "db", "coll": "archive"}))
        world.entries.commit(put(7, n=7))
        whole, torn = world.lake, 0
        world.lake = cast("Lake", TornLake(whole))
        while True:
            try:
                world.apply()
            except PowerCutError:
                torn += 1
                assert torn < 10
            else:
                break
        assert torn >= 2
        assert world.rows() == {("db", '{"_id":7}'): {"_id": 7, "n": 7}}
        assert world.rows("archive") == {
            ("db", f'{{"_id":{key}}}'): {"_id": key, "n": 1} for key in range(rows)
        }

    @pytest.mark.parametrize("dies_at", [2, 3])
    def test_a_rename_of_more_than_memory_holds_is_that_of_one_commit(
        self, place: Place, dies_at: int
    ) -> None:
        """Here of more than a row, and torn behind the first one that came to a new table; and
        where one has made a column there wider."""
        world = World(place, "orders", "archive", max_bytes_per_batch=1)
        entries = world.entries
        entries.commit(put(1, n=1), put(2, n=2.5), put(3, n=1, name=HARD))
        entries.commit(change(1, "insert", {"_id": 1, "n": 7}, database=HARD))
        entries.commit(schema_event("rename", to={"db": "db", "coll": "archive"}))
        entries.commit(put(4, n=4))
        whole = world.lake
        world.apply(0, 4)
        world.lake = cast("Lake", TornLake(whole, dies_at=dies_at))
        with pytest.raises(PowerCutError):
            world.apply(4)
        world.lake = whole
        assert world.table("archive").applied("p", log_id=LOG_ID) < 5
        moved = world.stored("archive")
        assert 0 < moved.num_rows < 3
        assert set(moved[SEQUENCE].to_pylist()) == {5}
        world.apply(4)
        assert world.table("archive").applied("p", log_id=LOG_ID) == 5
        assert world.rows("orders") == {
            ("db", '{"_id":4}'): {"_id": 4, "n": 4},
            (HARD, '{"_id":1}'): {"_id": 1, "n": 7},
        }
        assert world.rows("archive") == {
            ("db", '{"_id":1}'): {"_id": 1, "n": 1},
            ("db", '{"_id":2}'): {"_id": 2, "n": 2.5},
            ("db", '{"_id":3}'): {"_id": 3, "n": 1, "name": HARD},
        }

    def test_a_rename_that_another_driver_has_done_meanwhile_is_no_gap(self, place: Place) -> None:
        """The new name's table was opened before that, and the old one's is only now."""
        world = World(place, "orders", "archive")
        before = change(9, "insert", {"_id": 9, "n": 9}, collection="archive")
        world.entries.commit(put(1, n=1), before)
        world.entries.commit(schema_event("rename", to={"db": "db", "coll": "archive"}))
        world.entries.commit(put(7, n=7))
        world.apply(0, 2)
        lake, seen = world.lake, world.table("archive")
        world.apply(2)
        rows = world.rows("archive")

        class AsSeen:
            def table(self, collection: str) -> KeptTable:
                return seen if collection == "archive" else lake.table(collection)

        world.lake = cast("Lake", AsSeen())
        world.apply(2)
        assert world.rows("archive") == rows

    def test_a_table_that_was_restored_by_its_owner_is_not_gone_on_with(self, place: Place) -> None:
        """It still says that it has what it lost."""
        world = World(place)
        for number in range(3):
            world.entries.commit(put(number, n=number))
            world.apply(number)
        standing = StandingTable(world.config, "p", world.lake)
        standing.start(BOUNDS)
        standing.advance(Progress(LOG_ID, 3, 3), {"orders": 3}, batch_id=0)
        table = DeltaTable(world.place.path(world.config, "orders"))
        before = table.version()
        # What somebody else did was undone so, and nothing is missing.
        table.delete()
        table.restore(before)
        again = StandingTable(world.config, "p", world.place.lake(world.config))
        assert again.start(BOUNDS).after.sequence == 3
        table.restore(before - 1)
        assert len(world.rows()) == 2
        assert world.table().applied("p", log_id=LOG_ID) == 3
        with pytest.raises(PipelineChangedError, match="orders was restored to an earlier version"):
            StandingTable(world.config, "p", world.lake).start(BOUNDS)
        world.entries.commit(put(9, n=9))
        world.apply(3)
        assert StandingTable(world.config, "p", world.lake).start(BOUNDS).after.sequence == 3

    def test_tidying_keeps_the_rows_and_the_place(self, place: Place) -> None:
        """P18: without it the files that each batch replaces would fill the disk."""
        world = World(place)
        for number in range(3):
            world.entries.commit(put(number, n=number))
            world.apply(number)
        rows = world.rows()
        assert tidy("p", world.config, world.table()).failed == ""
        assert world.rows() == rows
        assert world.table().applied("p", log_id=None) == 3
