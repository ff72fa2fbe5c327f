"""What every destination promises: run by one class for each of them."""

import random
import re
import threading
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest

from penstock.capture.deadletter import COLLECTION
from penstock.errors import (
    ChangesLostError,
    DestinationError,
    HistoryTrimmedError,
    PipelineChangedError,
    PipelineError,
    StreamChangedError,
    SupersededPipelineError,
)
from penstock.event import ChangeEvent
from penstock.ports import Bounds
from penstock.spark.config import ReplicatePipelineConfig
from penstock.spark.plan import begins
from penstock.spark.replica import mongodb as replicas
from penstock.spark.replica.ledger import Ledger
from penstock.spark.replica.rejecting import Written
from penstock.spark.replica.replaying import ReplicaReplay, pending_at
from penstock.spark.replica.steps import Done
from penstock.spark.table.declared import Declarations
from penstock.subscribe.current import Declared
from tests.spark.replica.support import Driver, Replica, replay_beside
from tests.spark.stepped import MemoryLog
from tests.spark.tables import LOG_ID, Entries, change, dotted, fold, gap, put, schema_event


def history(dice: random.Random, entries: Entries, *, commits: int = 40) -> None:
    """Commits over two collections; each row's later changes may build on the one before."""
    live: set[tuple[str, int]] = set()
    for _ in range(commits):
        events: list[ChangeEvent] = []
        for _ in range(dice.randrange(1, 6)):
            collection, key = dice.choice(["orders", "lines"]), dice.randrange(12)
            own = (collection, key)
            if own in live and dice.random() < 0.3:
                events.append(change(key, "delete", collection=collection))
                live.discard(own)
            elif own in live and dice.random() < 0.4:
                update = {"updatedFields": {"n": dice.randrange(1000)}, "removedFields": ["gone"]}
                events.append(change(key, "update", update=update, collection=collection))
            else:
                document = {"_id": key, "n": dice.randrange(1000), "gone": "x", "deep": {"a": [1]}}
                if dice.random() < 0.2:
                    document[f"new{dice.randrange(3)}"] = "y" * dice.randrange(5)
                events.append(change(key, "replace", document, collection=collection))
                live.add(own)
        entries.commit(*events)


def line(key: int, **fields: Any) -> ChangeEvent:
    """An insert into the other collection."""
    return change(key, "insert", {"_id": key, **fields}, collection="lines")


def expected(replica: Replica, entries: Entries, collection: str = "orders") -> dict[Any, Any]:
    """What the fold of the log comes to."""
    table = entries.table()
    own = table.filter([name == collection for name in table["collection"].to_pylist()])
    return {document["_id"]: replica.expected(document) for document in fold(own).values()}


STEPS: dict[str, Any] = {"transform": [{"cast": {"n": "int"}}, {"rename": {"m": "mm"}}]}


def bounds(*, log_id: int = LOG_ID, trimmed: int = 0) -> Bounds:
    """Of a log that ends at 9."""
    return Bounds(
        log_id=log_id,
        trimmed=trimmed,
        trimmed_check=0,
        head=9,
        head_commit=9,
        head_check=0,
    )


class Stepped:
    """The naive model of one collection behind STEPS, change by change."""

    def __init__(self) -> None:
        self.rows: dict[int, dict[str, Any]] = {}
        self.stale: set[int] = set()
        self.refused: set[int] = set()

    def commit(self, dice: random.Random, entries: Entries) -> None:
        """A commit of one change."""
        key = dice.randrange(6)
        n: Any = dice.choice([dice.randrange(100), str(dice.randrange(100)), 1.5])
        if key in self.rows and dice.random() < 0.2:
            entries.commit(change(key, "delete"))
            del self.rows[key]
            self.stale.discard(key)
        elif key in self.rows and dice.random() < 0.5:
            fields = {"m": 5} if dice.random() < 0.5 else {"n": n}
            entries.commit(change(key, "update", update={"updatedFields": fields}))
            if fields.get("n") == 1.5:
                self.refused.add(entries.head)
                self.stale.add(key)
            elif key not in self.stale:
                self.rows[key] |= {"mm": 5} if "m" in fields else {"n": int(n)}
        else:
            entries.commit(change(key, "replace", {"_id": key, "n": n, "m": 1}))
            if n == 1.5:
                self.refused.add(entries.head)
                self.stale.add(key)
            else:
                self.rows[key] = {"_id": key, "n": int(n), "mm": 1}
                self.stale.discard(key)


class Replay(ReplicaReplay):
    """A replay from entries in memory."""

    def __init__(
        self, entries: Entries, config: ReplicatePipelineConfig, *, trimmed: int = 0
    ) -> None:
        super().__init__("p", config, MemoryLog(entries, trimmed), None)


def _power_cut(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


class ReplicaContract:
    """Subclass it with a fixture `replica`."""

    @pytest.fixture
    def entries(self) -> Entries:
        return Entries()

    @pytest.fixture
    def drivers(self, entries: Entries) -> Iterator[list[Driver]]:
        opened: list[Driver] = []
        yield opened
        for driver in opened:
            driver.close()

    @pytest.fixture
    def start(self, replica: Replica, entries: Entries, drivers: list[Driver]) -> Any:
        def start(*collections: str, name: str = "p", **more: Any) -> Driver:
            driver = Driver(entries, replica.config(*collections, **more), name)
            drivers.append(driver)
            driver.start()
            return driver

        return start

    # --- rows -----------------------------------------------------------------------------------

    @pytest.mark.parametrize("seed", range(4))
    def test_rows_equal_the_fold_of_the_log_whatever_the_batches_and_repeats(
        self, replica: Replica, entries: Entries, start: Any, seed: int
    ) -> None:
        """Invariant 7: late and repeated batches, and drivers that begin again, change nothing."""
        dice = random.Random(seed)
        history(dice, entries)
        ends = sorted({entries.head, *dice.sample(range(1, entries.head), 6)})
        driver: Driver = start()
        before = 0
        for end in ends:
            if dice.random() < 0.3:
                driver = start()
            driver.apply(max(0, before - dice.randrange(8)), end, parts=dice.randrange(1, 3))
            assert driver.apply(0, dice.randrange(1, end + 1)) == Done()
            before = end
        for collection in ("orders", "lines"):
            assert replica.rows(collection) == expected(replica, entries, collection)
        assert replica.rejects() == []

    def test_a_field_whose_own_name_has_a_dot_is_none_of_an_object(
        self, replica: Replica, entries: Entries, start: Any
    ) -> None:
        entries.commit(put(1, a={"c": 2}))
        start().apply()
        entries.commit(dotted(1))
        start().apply(1, 2)
        assert replica.rows("orders") == {1: {"_id": 1, "a": {"c": 2}, "a.b": 1}}
        assert replica.rejects() == []

    def test_a_column_that_its_source_declares_as_json_holds_every_value(
        self, replica: Replica, entries: Entries, start: Any
    ) -> None:
        driver: Driver = start()
        columns = schema_event("modify", columns=[], varying={"j": "json"})
        entries.commit(put(0, j=None), columns)
        driver.apply()
        for key, value in enumerate(["red", {"a": 1}, [1, 2], 5, 1.5, True], 1):
            entries.commit(put(key, j=value))
            driver.apply(entries.head - 1, entries.head)
        assert replica.rejects() == []
        assert set(replica.rows("orders")) == set(range(7))

    @pytest.mark.parametrize("restarted", [False, True])
    def test_what_is_declared_in_a_batch_without_rows_is_known_when_one_comes(
        self, replica: Replica, entries: Entries, start: Any, restarted: bool
    ) -> None:
        entries.commit(schema_event("modify", columns=[], varying={"j": "json"}))
        driver: Driver = start()
        driver.apply()
        if restarted:
            driver = start()
            told = Declared(database="db", collection="orders", varying={"j": "json"}, sequence=1)
            driver.declarations = Declarations([told])
        for key, value in enumerate(["red", {"a": 1}, 5]):
            entries.commit(put(key, j=value))
            driver.apply(entries.head - 1)
        assert replica.rejects() == []
        assert set(replica.rows("orders")) == set(range(3))

    def test_a_deleted_row_does_not_come_back_with_an_older_change(
        self, replica: Replica, entries: Entries, start: Any
    ) -> None:
        entries.commit(put(1, n=1))
        entries.commit(change(1, "replace", {"_id": 1, "n": 2}))
        entries.commit(change(1, "delete"))
        start().apply()
        late: Driver = start()
        assert late.place is not None
        assert late.place.progress.sequence == 3
        assert late.apply(0, 2) == Done()
        assert replica.rows("orders") == {}

    def test_an_older_driver_finds_that_it_was_followed_and_writes_nothing(
        self, replica: Replica, entries: Entries, start: Any
    ) -> None:
        entries.commit(put(1, n=1))
        entries.commit(put(2, n=2))
        older: Driver = start()
        older.apply(0, 1)
        newer: Driver = start()
        with pytest.raises(SupersededPipelineError):
            older.apply(1, 2)
        assert set(replica.rows("orders")) == {1}
        newer.apply(1, 2)
        assert set(replica.rows("orders")) == {1, 2}

    def test_what_fails_midway_leaves_no_row_and_no_place(
        self,
        replica: Replica,
        entries: Entries,
        start: Any,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        entries.commit(put(1, n=1), line(1))
        driver: Driver = start()
        driver.apply()
        entries.commit(put(2, n=1), line(2))

        with monkeypatch.context() as patched:
            # Behind the rows.
            patched.setattr(Written, "rejected", _power_cut)
            with pytest.raises(KeyboardInterrupt):
                driver.apply(2, 4)
        driver.close()
        assert set(replica.rows("orders")) == set(replica.rows("lines")) == {1}
        again: Driver = start()
        assert again.place is not None
        assert again.place.progress.sequence == 2
        again.apply(2, 4)
        assert set(replica.rows("orders")) == set(replica.rows("lines")) == {1, 2}

    def test_a_reader_never_sees_half_of_a_transaction(
        self, replica: Replica, entries: Entries, start: Any
    ) -> None:
        """Money moves between the accounts of two tables; its sum is what it was, to whoever reads
        both in one transaction."""
        tables = ("orders", "lines")
        entries.commit(
            *(put(key, n=100) for key in range(25)), *(line(k, n=100) for k in range(25))
        )
        dice, money = random.Random(7), {(table, k): 100 for table in tables for k in range(25)}
        for _ in range(60):
            a, b = (("orders", dice.randrange(25)), ("lines", dice.randrange(25)))
            money[a], money[b] = money[a] - 7, money[b] + 7
            entries.commit(
                *(
                    change(at, "replace", {"_id": at, "n": money[table, at]}, collection=table)
                    for table, at in (a, b)
                )
            )
        driver: Driver = start()
        driver.apply(0, 50)
        sums: list[int] = []
        over = threading.Event()

        def look() -> None:
            while not over.is_set():
                sums.append(sum(replica.totals("n", *tables)))

        reader = threading.Thread(target=look)
        reader.start()
        try:
            for end in range(52, entries.head + 1, 2):
                driver.apply(end - 2, end)
        finally:
            over.set()
            reader.join()
        assert set(sums) == {5000}

    def test_pipelines_that_begin_at_once_on_a_new_database_all_begin(
        self, replica: Replica, entries: Entries, drivers: list[Driver]
    ) -> None:
        entries.commit(*(put(key, n=key) for key in range(3)))
        together = threading.Barrier(6)
        failed: list[BaseException] = []

        def begin(driver: Driver) -> None:
            together.wait()
            try:
                driver.start()
                driver.apply()
            except BaseException as error:
                failed.append(error)

        for name in "abcdef":
            config = replica.config(table=name + "_{collection}", retry_attempts=0)
            drivers.append(Driver(entries, config, name))
        threads = [threading.Thread(target=begin, args=(driver,)) for driver in drivers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failed == []
        assert all(set(replica.rows(f"{name}_orders")) == {0, 1, 2} for name in "abcdef")

    def test_a_commit_whose_outcome_nobody_heard_is_not_applied_twice(
        self, replica: Replica, entries: Entries, start: Any, lose_commit: Any
    ) -> None:
        """The place is read again: it says whether the commit went through."""
        entries.commit(put(1, n=1))
        driver: Driver = start()
        driver.apply()
        entries.commit(change(1, "delete"), put(2, n=1))
        for happened in (True, False):
            lose_commit(driver, happened)
            driver.apply(entries.head - 2)
            assert driver.place is not None
            assert driver.place.progress.sequence == entries.head
            assert set(replica.rows("orders")) == {2}
            entries.commit(change(2, "replace", {"_id": 2, "n": 3}), change(1, "delete"))
        assert replica.rows("orders")[2]["n"] == 3

    # --- events about whole collections -----------------------------------------------------------

    def test_a_drop_empties_and_what_comes_behind_it_is_there(
        self, replica: Replica, entries: Entries, start: Any
    ) -> None:
        entries.commit(put(1), put(2))
        entries.commit(line(1))
        driver: Driver = start()
        driver.apply()
        entries.commit(schema_event("drop"))
        entries.commit(schema_event("create"), schema_event("modify"))
        entries.commit(put(3, n=1))
        driver.apply(3)
        assert set(replica.rows("orders")) == {3}
        assert set(replica.rows("lines")) == {1}
        entries.commit(schema_event("dropDatabase", collection=""))
        driver.apply(6)
        assert replica.rows("orders") == replica.rows("lines") == {}

    def test_a_rename_hands_the_rows_over_in_one_transaction(
        self, replica: Replica, entries: Entries, start: Any
    ) -> None:
        entries.commit(put(1, n=1), put(2, t="x"))
        entries.commit(line(9, old=True))
        driver: Driver = start()
        driver.apply()
        entries.commit(schema_event("rename", to={"db": "db", "coll": "lines"}))
        entries.commit(change(2, "replace", {"_id": 2, "t": "y"}, collection="lines"))
        entries.commit(put(5))
        driver.apply(3)
        assert replica.rows("lines") == {1: {"_id": 1, "n": 1}, 2: {"_id": 2, "t": "y"}}
        assert set(replica.rows("orders")) == {5}
        entries.commit(schema_event("rename", to={"db": "db", "coll": "fresh"}))
        driver.apply(6)
        assert set(replica.rows("fresh")) == {5}
        assert replica.rows("orders") == {}

    def test_a_rename_hands_rows_over_to_a_table_with_wider_columns(
        self, replica: Replica, entries: Entries, start: Any
    ) -> None:
        """As where a job fills another collection, and swaps it in."""
        wide = {"d": 0.5, "l": 1 << 40, "m": Decimal("0.25")}
        entries.commit(line(9, **wide))
        entries.commit(put(1, d=1, l=2, m=3))
        driver: Driver = start()
        driver.apply()
        entries.commit(schema_event("rename", to={"db": "db", "coll": "lines"}))
        driver.apply(2)
        assert replica.rows("lines") == {1: {"_id": 1, "d": 1, "l": 2, "m": 3}}
        assert replica.rows("orders") == {}

    def test_a_rename_out_of_the_pipeline_empties(
        self, replica: Replica, entries: Entries, start: Any
    ) -> None:
        entries.commit(put(1))
        driver: Driver = start("orders")
        driver.apply()
        entries.commit(schema_event("rename", to={"db": "db", "coll": "attic"}))
        driver.apply(1)
        assert replica.rows("orders") == {}

    def test_a_rename_behind_which_the_rows_are_copied_is_no_gap(
        self, replica: Replica, entries: Entries, start: Any
    ) -> None:
        entries.commit(put(1), put(2))
        to = {"db": "db", "coll": "orders"}
        entries.commit(schema_event("rename", collection="tmp", to=to, rowsFollow=True))
        entries.commit(put(2, a=3))
        driver: Driver = start("orders")
        driver.apply()
        assert replica.rows("orders") == {2: {"_id": 2, "a": 3}}

    def test_a_gap_stops_it_with_everything_before_applied_or_is_noted(
        self, replica: Replica, entries: Entries, start: Any
    ) -> None:
        """Invariant 4."""
        entries.commit(put(1))
        entries.commit(gap())
        entries.commit(put(2))
        with pytest.raises(ChangesLostError, match="sequence 2"):
            start().apply()
        assert set(replica.rows("orders")) == {1}
        driver: Driver = start(on_gap="record")
        driver.apply(1)
        assert set(replica.rows("orders")) == {1, 2}
        assert [(row["sequence"], row["healed"]) for row in replica.rejects()] == [(2, None)]

    def test_a_gap_in_the_middle_of_a_transaction_stops_it_before_all_of_that(
        self, replica: Replica, entries: Entries, start: Any
    ) -> None:
        """As a dead letter and its gap are; with them recorded, the transaction comes whole."""
        entries.commit(put(1, n=1))
        letter = change("l", "insert", {"_id": "l"}, collection=COLLECTION)
        entries.commit(change(1, "replace", {"_id": 1, "n": 2}), put(2), letter, gap(), put(3))
        for _ in range(2):
            driver: Driver = start()
            with pytest.raises(ChangesLostError, match="sequence 5"):
                driver.apply()
            assert driver.place is not None
            assert driver.place.progress.sequence == 1
            assert replica.rows("orders") == {1: {"_id": 1, "n": 1}}
            assert replica.rows(COLLECTION) == {}
        start(on_gap="record").apply(1)
        assert replica.rows("orders") == {1: {"_id": 1, "n": 2}, 2: {"_id": 2}, 3: {"_id": 3}}
        assert set(replica.rows(COLLECTION)) == {"l"}
        assert [row["sequence"] for row in replica.rejects()] == [5]

    def test_an_event_that_is_not_known_stops_it_by_name(
        self, replica: Replica, entries: Entries, start: Any
    ) -> None:
        entries.commit(put(1))
        entries.commit(schema_event("shred"))
        entries.commit(put(2))
        with pytest.raises(PipelineError, match=r"'shred' of db\.orders"):
            start().apply()
        assert set(replica.rows("orders")) == {1}

    # --- rejects ----------------------------------------------------------------------------------

    def test_a_row_whose_change_is_rejected_stays_as_it_was_until_it_is_healed(
        self, replica: Replica, entries: Entries, start: Any, misfit: ChangeEvent
    ) -> None:
        entries.commit(put(1, n=1), put(2, n=1))
        entries.commit(misfit, change(2, "replace", {"_id": 2, "n": 2}))
        update = {"updatedFields": {"n": 7}}
        driver: Driver = start()
        driver.apply(0, 2)
        done = driver.apply(2)
        assert done.rejected == 1
        entries.commit(change(1, "update", update=update))
        start().apply(4)  # a new driver knows that the row is stale
        assert replica.rows("orders").get(1, {"n": 1})["n"] == 1
        assert replica.rows("orders")[2]["n"] == 2
        seen = [(row["sequence"], row["tab"], row["healed"]) for row in replica.rejects()]
        assert seen == [(3, "orders", None), (5, "orders", None)]
        entries.commit(change(1, "replace", {"_id": 1, "n": 8}))
        start().apply(5)
        assert replica.rows("orders")[1]["n"] == 8
        assert [row["healed"] for row in replica.rejects()] == [6, 6]
        entries.commit(change(1, "update", update=update))
        start().apply(6)
        assert replica.rows("orders")[1]["n"] == 7

    # --- steps ------------------------------------------------------------------------------------

    @pytest.mark.parametrize("seed", range(2))
    def test_rows_behind_steps_equal_the_model_whatever_the_batches_and_repeats(
        self, replica: Replica, entries: Entries, start: Any, seed: int
    ) -> None:
        """A refused change is in the rejects once, and open as long as its row lacks it."""
        dice, model = random.Random(seed), Stepped()
        for _ in range(60):
            model.commit(dice, entries)
        ends = sorted({entries.head, *dice.sample(range(1, entries.head), 6)})
        driver: Driver = start(**STEPS)
        before = 0
        for end in ends:
            if dice.random() < 0.3:
                driver = start(**STEPS)
            driver.apply(max(0, before - dice.randrange(5)), end)
            assert driver.apply(0, end) == Done()
            before = end
        assert replica.rows("orders") == {
            key: replica.expected(document) for key, document in model.rows.items()
        }
        rejects = [row["sequence"] for row in replica.rejects()]
        assert len(set(rejects)) == len(rejects)
        assert set(rejects) >= model.refused
        keys = {row["sequence"]: row["key"] for row in entries.table().to_pylist()}
        open_ = {keys[row["sequence"]] for row in replica.rejects() if row["healed"] is None}
        assert open_ == {f'{{"_id":{key}}}' for key in model.stale}

    def test_rejects_and_place_are_one_transaction_and_say_the_step(
        self, replica: Replica, entries: Entries, start: Any
    ) -> None:
        entries.commit(put(1, n=1), put(2, n="x"))
        driver: Driver = start(**STEPS)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Ledger, "store", _power_cut)
            patched.setattr(replicas, "document_of", _power_cut)
            with pytest.raises(KeyboardInterrupt):
                driver.apply()
        assert replica.rejects() == []
        start(**STEPS).apply()
        (reject,) = replica.rejects()
        assert reject["reason"] == "transform 1 (cast): the field n as int: the text is no integer"
        assert set(replica.rows("orders")) == {1}

    @pytest.mark.parametrize("alone", [False, True])
    def test_a_row_that_goes_and_whose_return_is_refused_lacks_it_until_it_is_replayed(
        self, replica: Replica, entries: Entries, start: Any, alone: bool
    ) -> None:
        """Its delete heals what came before it, and not what came behind it, be it in one batch."""
        entries.commit(put(1, n=1), put(2, n=1))
        entries.commit(change(1, "delete"))
        entries.commit(put(1, n=1.5))  # 4
        entries.commit(change(1, "update", update={"updatedFields": {"m": 7}}))  # 5
        entries.commit(put(2, n=2.5), change(2, "delete"))  # 6, 7
        driver: Driver = start(**STEPS)
        driver.apply(0, 2)
        for end in (3, 4, 5, 7) if alone else (7,):
            driver.apply(0, end)
        assert replica.rows("orders") == {}
        healed = {row["sequence"]: row["healed"] is not None for row in replica.rejects()}
        assert healed == {4: False, 5: False, 6: True}
        assert [row["sequence"] for row in pending_at("p", driver.config)] == [4, 5]
        outcomes = Replay(entries, replica.config()).run()
        assert {one.sequence: one.state for one in outcomes} == {4: "superseded", 5: "replayed"}
        assert replica.rows("orders") == {1: {"_id": 1, "n": 1.5, "m": 7}}

    def test_a_reject_goes_with_its_row_to_another_name_and_is_healed_there(
        self, replica: Replica, entries: Entries, start: Any
    ) -> None:
        """In the one batch that rejects it: what waits to be written is moved and healed too."""
        entries.commit(put(1, n=1), put(2, n=1))
        entries.commit(put(1, n="x"), put(2, n="x"))
        entries.commit(schema_event("rename", to={"db": "db", "coll": "lines"}))
        entries.commit(line(1, n=5))
        start(**STEPS).apply()
        seen = {row["sequence"]: (row["tab"], row["healed"]) for row in replica.rejects()}
        assert seen[4] == ("lines", None)
        assert seen[3][1] is not None
        assert {key: row["n"] for key, row in replica.rows("lines").items()} == {1: 5, 2: 1}

    def test_a_rename_to_a_collection_with_other_steps_is_a_gap(
        self, replica: Replica, entries: Entries, start: Any
    ) -> None:
        more = {"transform": [{"mask": ["n"], "collections": ["lines"]}]}
        entries.commit(put(1, n=1))
        entries.commit(schema_event("rename", to={"db": "db", "coll": "lines"}))
        with pytest.raises(ChangesLostError, match="has other steps"):
            start(**more).apply()
        start(**more, on_gap="record").apply(1)
        assert replica.rows("orders") == replica.rows("lines") == {}

    def test_steps_that_say_another_key_are_refused(
        self, replica: Replica, entries: Entries, start: Any
    ) -> None:
        entries.commit(put(1, n=1))
        start(transform=[{"cast": {"_id": "string"}}]).apply()
        (reject,) = replica.rejects()
        assert "part of the key" in reject["reason"]
        assert replica.rows("orders") == {}

    def test_rejected_changes_are_replayed_from_their_last_whole_document(
        self, replica: Replica, entries: Entries, start: Any
    ) -> None:
        """The place is where it was; what the log does not say whole is left."""
        entries.commit(put(1, n=1), put(2, n=2), put(3, n=3))
        entries.commit(change(1, "replace", {"_id": 1, "n": 1.5}))  # 4
        entries.commit(change(1, "update", update={"updatedFields": {"m": 7}}))  # 5
        entries.commit(put(4, n=4.5), change(2, "replace", {"_id": 2, "n": "x"}))  # 6, 7
        entries.commit(change(2, "delete"))
        driver: Driver = start(**STEPS)
        driver.apply()
        pending = pending_at("p", driver.config)
        assert [row["sequence"] for row in pending] == [4, 5, 6]
        trimmed = Replay(entries, replica.config(), trimmed=4).run()
        assert {one.sequence: one.state for one in trimmed} == {4: "left", 5: "left", 6: "replayed"}
        assert "no longer" in trimmed[0].reason
        outcomes = Replay(entries, replica.config()).run()
        assert {one.sequence: one.state for one in outcomes} == {4: "superseded", 5: "replayed"}
        assert replica.rows("orders")[1] == {"_id": 1, "n": 1.5, "m": 7}
        assert replica.rows("orders")[4]["n"] == 4.5
        assert Replay(entries, replica.config()).run() == []
        entries.commit(change(3, "update", update={"updatedFields": {"n": 8}}))
        driver.apply(8)
        assert replica.rows("orders")[3]["n"] == 8
        assert len(replica.rejects()) == 4

    def test_what_does_not_fit_when_it_is_replayed_is_rejected_once_and_stays_open(
        self, replica: Replica, entries: Entries, start: Any, misfit: ChangeEvent
    ) -> None:
        entries.commit(put(1, n=1))
        entries.commit(misfit)
        driver: Driver = start()
        driver.apply(0, 1)
        driver.apply(1)
        before = replica.rows("orders")
        for _ in range(2):
            (one,) = Replay(entries, replica.config()).run()
            assert (one.sequence, one.state) == (2, "left")
        assert [(row["sequence"], row["healed"]) for row in replica.rejects()] == [(2, None)]
        assert replica.rows("orders") == before

    def test_a_replay_leaves_a_row_whose_later_change_is_still_refused(
        self, replica: Replica, entries: Entries, start: Any
    ) -> None:
        """Else what the row lacks was healed, and later changes were applied to it."""
        entries.commit(put(1, n=1), put(2, n=1))
        entries.commit(change(1, "update", update={"updatedFields": {"a.b": 2}}))  # 3
        entries.commit(change(1, "update", update={"updatedFields": {"m": 7}}))  # 4
        entries.commit(change(2, "replace", {"_id": 2, "n": 1.5}))  # 5
        driver: Driver = start(**STEPS)
        for end in (2, 3, 4, 5):
            driver.apply(0, end)
        found = {one.sequence: one for one in Replay(entries, replica.config()).run()}
        assert {at: one.state for at, one in found.items()} == {3: "left", 4: "left", 5: "replayed"}
        assert "builds on" in found[4].reason
        assert [row["healed"] is None for row in replica.rejects()] == [True, True, False]
        entries.commit(change(1, "update", update={"updatedFields": {"z": 9}}))
        start(**STEPS).apply(5)
        assert replica.rows("orders")[1] == {"_id": 1, "n": 1}
        assert replica.rows("orders")[2] == {"_id": 2, "n": 1.5}

    def test_a_replay_takes_no_row_back_behind_a_change_that_fitted_once(
        self, replica: Replica, entries: Entries, start: Any, misfit: ChangeEvent
    ) -> None:
        """The steps of today drop no longer what does not fit."""
        entries.commit(put(2, n=1))
        start().apply()
        entries.commit(misfit)
        entries.commit(change(1, "update", update={"updatedFields": {"m": 1.5}}))
        start(transform=[{"drop": ["n"]}, {"cast": {"m": "int"}}]).apply(1)
        assert replica.rows("orders")[1] == {"_id": 1}
        (one,) = Replay(entries, replica.config()).run()
        assert (one.sequence, one.state) == (3, "left")
        assert replica.rows("orders")[1] == {"_id": 1}
        assert [(row["sequence"], row["healed"]) for row in replica.rejects()] == [(3, None)]

    def test_a_replay_tries_again_where_the_pipeline_begins_meanwhile(
        self, replica: Replica, entries: Entries, start: Any
    ) -> None:
        entries.commit(put(1, n=1.5))
        start(**STEPS).apply()

        class Meanwhile(Replay):
            begun = False

            def _chunk(self, stream: Any, rejects: Any, place: Any) -> Any:
                if not self.begun:
                    self.begun = True
                    start(**STEPS)
                return super()._chunk(stream, rejects, place)

        replay = Meanwhile(entries, replica.config())
        assert [one.state for one in replay.run()] == ["replayed"]
        assert replica.rows("orders")[1]["n"] == 1.5

    def test_a_running_pipeline_knows_the_tables_that_a_replay_has_made(
        self, replica: Replica, entries: Entries, start: Any
    ) -> None:
        """It writes there, and empties them."""
        driver: Driver = start()
        entries.commit(put(1, n=1), line(1, n=1))
        replay_beside(driver, 0, 2)
        assert set(replica.rows("orders")) == set(replica.rows("lines")) == {1}
        entries.commit(put(2, n=2))
        entries.commit(schema_event("drop", collection="lines"))
        driver.apply(2)
        assert set(replica.rows("orders")) == {1, 2}
        assert replica.rows("lines") == {}

    def test_rejects_of_a_row_that_was_moved_leave_the_others_to_be_replayed(
        self, replica: Replica, entries: Entries, start: Any
    ) -> None:
        entries.commit(put(2, n=2))
        entries.commit(put(1, n=1.5))  # 2
        entries.commit(schema_event("rename", to={"db": "db", "coll": "lines"}))
        entries.commit(put(1, n=2.5))  # 4
        start(**STEPS).apply()
        found = {one.sequence: one.state for one in Replay(entries, replica.config()).run()}
        assert found == {2: "left", 4: "replayed"}
        assert replica.rows("orders")[1]["n"] == 2.5
        entries.commit(line(1, n=3.5))  # which is the same row as that of 2
        start(**STEPS).apply(4)
        found = {one.sequence: one.state for one in Replay(entries, replica.config()).run()}
        assert found == {2: "superseded", 5: "replayed"}

    def test_rejects_of_a_renamed_row_are_open_until_its_row_is_whole_where_it_is(
        self, replica: Replica, entries: Entries, start: Any
    ) -> None:
        """Whatever a replay knows, or comes under the old name."""
        entries.commit(put(1, n=1), put(2, n=1))
        entries.commit(put(1, n=1.5))  # 3
        entries.commit(put(3, n=1.5))  # 4
        entries.commit(schema_event("rename", to={"db": "db", "coll": "lines"}))
        update = {"updatedFields": {"m": 7}}
        entries.commit(change(1, "update", update=update, collection="lines"))  # 6
        driver: Driver = start(**STEPS)
        for end in (2, 3, 4, 5, 6):
            driver.apply(0, end)
        entries.commit(put(1, n=4), put(3, n=4))
        before = replica.rows("lines")
        for head in (6, 8):
            driver.apply(0, head)
            for trimmed in (0, 2, 5):
                found = Replay(entries, replica.config(), trimmed=trimmed).run()
                assert {one.sequence: one.state for one in found} == dict.fromkeys(
                    (3, 4, 6), "left"
                )
            assert replica.rows("lines") == before
            driver = start(**STEPS)
        entries.commit(line(1, n=5))
        driver.apply(8)
        assert [row["sequence"] for row in pending_at("p", driver.config)] == [4]
        assert {key: row["n"] for key, row in replica.rows("lines").items()} == {1: 5, 2: 1}

    # --- what a pipeline may begin with -----------------------------------------------------------

    def test_a_table_that_no_pipeline_has_written_is_not_written_over(
        self, replica: Replica, entries: Entries, start: Any
    ) -> None:
        replica.put("orders", 5)
        entries.commit(put(1))
        with pytest.raises(DestinationError, match="which no pipeline has written"):
            start().apply()
        assert set(replica.rows("orders")) == {5}

    def test_two_streams_do_not_meet_in_one_table(
        self, replica: Replica, entries: Entries, start: Any
    ) -> None:
        entries.commit(put(1))
        entries.commit(change(1, "insert", {"_id": 1}, database="other"))
        with pytest.raises(
            DestinationError, match=r"has the (rows|documents) of db\.orders"
        ) as own:
            start().apply()
        start().apply(0, 1)
        other: Driver = start(name="q")
        with pytest.raises(DestinationError, match="of pipeline p") as its:
            other.apply(0, 1)
        for told in (own, its):
            assert "a new name and a `table` that tells them apart" in str(told.value)
        start(name="r", table="{database}_{collection}").apply()
        assert set(replica.rows("other_orders")) == set(replica.rows("db_orders")) == {1}

    def test_a_place_is_of_one_log_one_source_and_its_tables(
        self, replica: Replica, entries: Entries, start: Any, drivers: list[Driver]
    ) -> None:
        entries.commit(put(1))
        start("orders").apply()

        def refused(kind: type[Exception], text: str, driver: Driver, **bounds: int) -> None:
            drivers.append(driver)
            with pytest.raises(kind, match=text):
                driver.start(**bounds)

        refused(StreamChangedError, "log", Driver(entries, replica.config("orders")), log_id=5)
        more = Driver(entries, replica.config("orders", "lines"))
        refused(PipelineChangedError, "lines was added", more)
        fresh = Driver(entries, replica.config(), "fresh")
        refused(HistoryTrimmedError, "first 1 entries", fresh, trimmed=1)
        replica.drop("orders")
        refused(PipelineChangedError, "orders is gone", Driver(entries, replica.config("orders")))

    def test_rows_of_one_collection_are_never_in_tables_of_two_names(
        self, replica: Replica, entries: Entries, start: Any, drivers: list[Driver]
    ) -> None:
        """The new one would have what comes, and the old one what was."""
        entries.commit(put(1), put(2))
        start().apply()
        before = replica.names()
        apart = {"table": "{database}_{collection}"}
        text = r"rows of db\.orders are in orders, and what comes would be in db_orders"
        for collections in ((), ("orders",)):
            driver = Driver(entries, replica.config(*collections, **apart))
            drivers.append(driver)
            with pytest.raises(PipelineChangedError, match=f"{text}.*or set `table` back"):
                driver.start()
        assert replica.names() == before
        entries.commit(change(1, "update", update={"updatedFields": {"n": 1}}))
        start().apply(2)
        start(name="q", **apart).apply()
        assert replica.rows("orders") == replica.rows("db_orders") == {
            1: {"_id": 1, "n": 1}, 2: {"_id": 2},
        }  # fmt: skip

    def test_tables_that_a_rename_filled_or_that_are_followed_no_more_hinder_no_other_name(
        self, replica: Replica, entries: Entries, start: Any, drivers: list[Driver]
    ) -> None:
        entries.commit(put(1))
        entries.commit(schema_event("rename", to={"db": "db", "coll": "lines"}))
        entries.commit(
            schema_event("rename", collection="lines", to={"db": "two", "coll": "lines"})
        )
        start("orders", "lines").apply()
        start("orders", "lines")
        changed = replica.config("lines", table="{database}_{collection}")
        drivers.append(Driver(entries, changed))
        with pytest.raises(PipelineChangedError, match=r"two\.lines are in lines"):
            drivers[-1].start()
        entries.commit(put(2))
        start("orders", "notes", name="r", table="old_{collection}").apply()
        entries.commit(change(3, "insert", {"_id": 3}, collection="notes"))
        start("notes", name="r", table="new_{collection}").apply(4)
        assert set(replica.rows("new_notes")) == {3}
        assert set(replica.rows("old_orders")) == {2}

    # --- plans ------------------------------------------------------------------------------------

    def test_a_plan_begins_where_a_run_would_and_changes_nothing(
        self, replica: Replica, entries: Entries, start: Any, drivers: list[Driver]
    ) -> None:
        """Whatever the service knows, and though retention has passed the place."""
        config = replica.config("orders")
        entries.commit(put(1, n=1))
        found, why = begins("p", config, bounds())
        assert (found.sequence, why) == (0, "it is new: its destination has nothing of it")
        with pytest.raises(HistoryTrimmedError, match="first 5 entries"):
            begins("p", config, bounds(trimmed=5))
        assert replica.names() == set()
        driver: Driver = start("orders")
        driver.apply()
        before = replica.rows("orders"), replica.names()
        found, why = begins("p", config, bounds(trimmed=5))
        assert driver.place is not None
        assert (found, why) == (
            driver.place.progress,
            "that is how far its destination has come, as its place there says",
        )
        assert (replica.rows("orders"), replica.names()) == before
        # Nothing was claimed: the driver is still the newest.
        entries.commit(put(1, n=2))
        driver.apply(1)
        assert replica.rows("orders")[1]["n"] == 2
        assert begins("p", config, bounds())[0].sequence == 2
        again = Driver(entries, config)
        drivers.append(again)
        assert again.start(trimmed=5) == 2

    def test_what_a_run_would_stop_with_is_the_error_of_its_plan(
        self, replica: Replica, entries: Entries, start: Any, drivers: list[Driver]
    ) -> None:
        entries.commit(put(1, n=1))
        start("orders").apply()

        def refused(
            kind: type[Exception], config: ReplicatePipelineConfig, name: str = "p", **at: int
        ) -> None:
            driver = Driver(entries, config, name)
            drivers.append(driver)
            with pytest.raises(kind) as stopped:
                driver.start(**at)
            with pytest.raises(kind, match=f"^{re.escape(str(stopped.value))}$"):
                begins(name, config, bounds(**at))

        refused(StreamChangedError, replica.config("orders"), log_id=5)
        refused(PipelineChangedError, replica.config("orders", "lines"))
        refused(PipelineChangedError, replica.config("orders", table="{database}_{collection}"))
        refused(HistoryTrimmedError, replica.config(), "fresh", trimmed=1)
        replica.drop("orders")
        refused(PipelineChangedError, replica.config("orders"))

    def test_a_plan_waits_for_no_driver_that_holds_the_place(
        self, replica: Replica, entries: Entries, start: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        entries.commit(put(1, n=1))
        driver: Driver = start("orders")
        driver.apply()
        entries.commit(put(1, n=2))
        found: list[int] = []
        rejected = Written.rejected

        def meanwhile(*given: Any, **named: Any) -> Any:
            found.append(begins("p", replica.config("orders"), bounds())[0].sequence)
            return rejected(*given, **named)

        monkeypatch.setattr(Written, "rejected", meanwhile)
        driver.apply(1)
        assert found == [1]

    def test_a_plan_of_a_destination_that_is_away_says_so(self, replica: Replica) -> None:
        uri = re.sub(r":\d+(?=/)", ":1", replica.uri)
        config = replica.config(uri=uri, answer_seconds=0.3)
        with pytest.raises(DestinationError, match="its destination does not answer") as told:
            begins("p", config, bounds())
        assert "a run would wait for it" in str(told.value)
        assert re.search(r"127\.0\.0\.1:1\b", str(told.value)), told.value
