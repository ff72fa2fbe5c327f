"""What every face of a store promises: the open store itself, and the clients of its server.

class TestClient(StoreContract):
    @contextmanager
    def opened(self, folder, clock): yield Client(...)
"""

import tempfile
import threading
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from penstock.store import (
    AheadOfStreamError,
    AnyStore,
    CheckpointConflictError,
    ConditionCheckFailedError,
    DocumentTooLargeError,
    InvalidConditionError,
    Item,
    KeyAttributeUpdateError,
    KeyTooLargeError,
    KeyType,
    KeyTypeMismatchError,
    MissingKeyAttributeError,
    Page,
    RefusedError,
    Retention,
    StoreClosedError,
    StoreError,
    StreamAlreadyEnabledError,
    StreamChangedError,
    StreamClosedError,
    StreamError,
    StreamFullError,
    StreamNotEnabledError,
    StreamRecord,
    StreamViewType,
    TableAlreadyExistsError,
    TableNotFoundError,
    TransactionError,
    TrimmedDataError,
    Update,
    UpdateTypeMismatchError,
    ValueRefusedError,
    VersionMismatchError,
    attr,
    if_not_exists,
    list_append,
    minus,
    plus,
)
from penstock.testing.contracts.log import ManualClock

BOTH = StreamViewType.NEW_AND_OLD_IMAGES
NINES = 10**38 - 1

VALUES: dict[str, Any] = {
    "null": None,
    "true": True,
    "zero": 0,
    "digits": NINES,
    "fraction": Decimal(f"-0.{NINES}"),
    "tiny": Decimal("1E-130"),
    "huge": int(Decimal("9.9999999999999999999999999999999999999E+125")),
    "beyond double": 2**53 + 1,
    "beyond int64": 2**63,
    "text": "é𝄞\x00\n\u2028",
    "empty": "",
    "bytes": bytes(range(256)),
    "no bytes": b"",
    "strings": {"", "a", "é"},
    "numbers": {NINES, Decimal("0.1"), -1},
    "binaries": {b"", b"\x00\xff"},
    "list": [1, [None, {"x": []}], {b"\x00"}],
    "map": {"a.b": {"c[0]": {}}},
    "looks like a value": {"S": "x"},
    "looks like a number": {"N": "1"},
}
"""Values of every kind, and what a careless wire would change."""


def told(page: Page) -> list[tuple[str, object, object]]:
    """What the records of a page say: event, item before, item after."""
    return [(str(one.event_type), one.old_image, one.new_image) for one in page.records]


class StoreContract:
    """Inherit, and give `opened`."""

    def opened(self, folder: Path, clock: ManualClock) -> AbstractContextManager[AnyStore]:
        """The store in `folder`, made if it is not there. Nothing sweeps it but `sweep`."""
        raise NotImplementedError

    @contextmanager
    def store(
        self,
        *,
        view: StreamViewType | None = BOTH,
        ttl: str | None = None,
        retention: Retention | None = None,
        clock: ManualClock | None = None,
    ) -> Generator[AnyStore]:
        """A store of this test's own, with a table `t` of partition key `id`."""
        with (
            tempfile.TemporaryDirectory() as folder,
            self.opened(Path(folder), clock or ManualClock()) as db,
        ):
            table = db.create_table("t").partition_key("id", KeyType.STRING)
            if ttl is not None:
                table.ttl(ttl)
            if view is not None:
                table.stream(view)
            if retention is not None:
                table.retention(retention)
            table.execute()
            yield db

    # --- items -----------------------------------------------------------------------------------

    def test_every_value_comes_back_as_it_was_and_of_its_type(self) -> None:
        """F15: also within old items, pages and records."""
        item: Item = {"id": "a", **VALUES}
        with self.store() as db:
            assert db.put("t", item) is None
            found = db.get("t", {"id": "a"})
            assert found == item
            assert found is not None
            assert {name: type(value) for name, value in found.items()} == {
                name: type(value) for name, value in item.items()
            }
            assert "absent" not in found
            assert db.scan("t").execute().items == [item]
            assert db.query("t").partition_key("a").execute().items == [item]
            assert db.put("t", {"id": "a"}) == item
            records = db.get_stream_records("t").execute().records
            assert [record.new_image for record in records] == [item, {"id": "a"}]
            assert records[1].old_image == item

    def test_keys_of_every_type_find_their_item(self) -> None:
        """F15, F16."""
        keys: dict[KeyType, list[Any]] = {
            KeyType.STRING: ["\x00", "é", "a"],
            KeyType.NUMBER: [2**53, 2**53 + 1, Decimal("-0.5"), NINES],
            KeyType.BINARY: [b"\x00", b"\x00\xff", b"\xff"],
        }
        with self.store() as db:
            for kind, values in keys.items():
                db.create_table(kind.value).partition_key("k", kind).execute()
                for at, value in enumerate(values):
                    db.put(kind.value, {"k": value, "at": at})
                for at, value in enumerate(values):
                    assert db.get(kind.value, {"k": value}) == {"k": value, "at": at}
                assert db.count(kind.value) == len(values)

    def test_a_write_says_what_it_found(self) -> None:
        with self.store() as db:
            assert db.put("t", {"id": "a", "n": 1}) is None
            assert db.put("t", {"id": "a", "n": 2}) == {"id": "a", "n": 1}
            assert db.update("t", {"id": "a"}).add("n", 5).execute() == (
                {"id": "a", "n": 2},
                {"id": "a", "n": 7},
            )
            assert db.update("t", {"id": "b"}).set("n", 1).execute().old is None
            assert db.delete("t", {"id": "a"}) == {"id": "a", "n": 7}
            assert db.delete("t", {"id": "a"}) is None
            assert db.get("t", {"id": "a"}) is None

    def test_an_update_takes_every_action_path_and_expression(self) -> None:
        with self.store() as db:
            db.put(
                "t",
                {
                    "id": "a",
                    "n": NINES - 1,
                    "log": ["x"],
                    "tags": {b"1", b"2"},
                    "the.dot": {"z": 1},
                },
            )
            changed = (
                db.update("t", {"id": "a"})
                .set("n", plus(attr("n"), 1))
                .set("m", minus(attr("n"), Decimal(1)))
                .set("log", list_append(attr("log"), [{b"y"}]))
                .set("first", if_not_exists("first", b"\x00"))
                .set(("the.dot", "deeper"), None)
                .remove(("the.dot", "z"), "nothing")
                .delete("tags", {b"1"})
                .add("hits", Decimal("0.1"))
                .condition(attr("tags").contains(b"2"))
                .execute()
            )
            assert changed.new == {
                "id": "a",
                "n": NINES,
                "m": NINES - 2,
                "log": ["x", {b"y"}],
                "first": b"\x00",
                "the.dot": {"deeper": None},
                "tags": {b"2"},
                "hits": Decimal("0.1"),
            }
            assert db.get("t", {"id": "a"}) == changed.new

    def test_a_condition_that_is_false_changes_nothing_and_shows_the_item(self) -> None:
        item: Item = {"id": "a", "raw": b"\x00", "n": 1}
        with self.store() as db:
            db.put("t", item, condition=attr("id").not_exists())
            wrong = attr("raw").eq(b"\x01") | attr("n").size().gt(3)
            for fails in (
                lambda: db.put("t", {"id": "a"}, condition=wrong),
                lambda: db.update("t", {"id": "a"}).set("n", 2).condition(wrong).execute(),
                lambda: db.delete("t", {"id": "a"}, condition=wrong),
            ):
                with pytest.raises(ConditionCheckFailedError) as failed:
                    fails()
                assert failed.value.item == item
            with pytest.raises(ConditionCheckFailedError) as failed:
                db.put("t", {"id": "b"}, condition=attr("id").exists())
            assert failed.value.item is None
            assert db.scan("t").execute().items == [item]

    def test_a_version_that_is_not_the_items_changes_nothing(self) -> None:
        with self.store() as db:
            assert db.get_versioned("t", {"id": "a"}) is None
            db.put("t", {"id": "a"}, expected_version=0)
            found = db.get_versioned("t", {"id": "a"})
            assert found is not None
            with pytest.raises(VersionMismatchError) as mismatch:
                db.put("t", {"id": "a", "n": 1}, expected_version=0)
            assert (mismatch.value.expected, mismatch.value.actual) == (0, found[1])
            db.put("t", {"id": "a", "n": 1}, expected_version=found[1])
            with pytest.raises(VersionMismatchError):
                db.delete("t", {"id": "a"}, expected_version=found[1])
            with pytest.raises(VersionMismatchError):
                db.update("t", {"id": "a"}).remove("n").expected_version(found[1]).execute()
            assert db.get("t", {"id": "a"}) == {"id": "a", "n": 1}

    def test_what_cannot_be_is_refused_by_its_name_and_changes_nothing(self) -> None:
        with self.store() as db:
            db.put("t", {"id": "a", "text": "x"})
            refused: list[tuple[type[StoreError], Callable[[], object]]] = [
                (MissingKeyAttributeError, lambda: db.put("t", {"n": 1})),
                (KeyTypeMismatchError, lambda: db.get("t", {"id": 1})),
                (KeyTooLargeError, lambda: db.put("t", {"id": "x" * 2049})),
                (DocumentTooLargeError, lambda: db.put("t", {"id": "b", "x": "x" * 410_000})),
                (ValueRefusedError, lambda: db.put("t", {"id": "b", "x": 10**38 + 1})),
                (ValueRefusedError, lambda: db.put("t", {"id": "b", "x": 0.5})),
                (ValueRefusedError, lambda: db.put("t", {"id": "b", "x": set()})),
                (
                    KeyAttributeUpdateError,
                    lambda: db.update("t", {"id": "a"}).set("id", "b").execute(),
                ),
                (
                    UpdateTypeMismatchError,
                    lambda: db.update("t", {"id": "a"}).add("text", 1).execute(),
                ),
                (
                    InvalidConditionError,
                    lambda: db.query("t").partition_key("a").sort_key_eq("b").execute(),
                ),
                (RefusedError, lambda: db.query("t").execute()),
                (TableNotFoundError, lambda: db.put("none", {"id": "a"})),
                (TableNotFoundError, lambda: db.describe_table("none")),
                (
                    TableAlreadyExistsError,
                    lambda: db.create_table("t").partition_key("id", KeyType.STRING).execute(),
                ),
            ]
            for error, operation in refused:
                with pytest.raises(error) as caught:
                    operation()
                assert type(caught.value).name == error.name
            assert db.scan("t").execute().items == [{"id": "a", "text": "x"}]

    def test_a_batch_is_read_as_of_one_moment_by_its_places(self) -> None:
        with self.store() as db:
            db.write_batch(puts=[("t", {"id": "a"}), ("t", {"id": "c"})])
            keys: list[Item] = [{"id": "c"}, {"id": "b"}, {"id": "a"}, {"id": "c"}]
            assert db.batch_get("t", keys) == [{"id": "c"}, None, {"id": "a"}, {"id": "c"}]
            assert db.batch_get("t", []) == []

    def test_a_batch_is_written_whole_or_not_at_all(self) -> None:
        with self.store() as db:
            db.create_table("other").partition_key("n", KeyType.NUMBER).execute()
            db.write_batch(puts=[("t", {"id": "a"}), ("other", {"n": 1})])
            with pytest.raises(KeyTypeMismatchError):
                db.write_batch(puts=[("t", {"id": "b"})], deletes=[("other", {"n": "1"})])
            db.write_batch(puts=[("t", {"id": "c"})], deletes=[("other", {"n": 1})])
            assert [item["id"] for item in db.scan("t").execute().items] == ["a", "c"]
            assert db.count("other") == 0

    def test_a_transaction_sees_itself_and_is_kept_whole_or_not_at_all(self) -> None:
        with self.store() as db:
            db.put("t", {"id": "a", "n": 1})
            with db.transact() as transaction:
                assert transaction.put("t", {"id": "a", "n": 2}) == {"id": "a", "n": 1}
                assert transaction.get("t", {"id": "a"}) == {"id": "a", "n": 2}
                updated = transaction.update("t", {"id": "b"}, Update().add("n", NINES))
                assert updated.new == {"id": "b", "n": NINES}
                transaction.check("t", {"id": "b"}, attr("n").eq(NINES))
                with pytest.raises(ConditionCheckFailedError):
                    transaction.check("t", {"id": "c"}, attr("id").exists())
                assert transaction.delete("t", {"id": "b"}) == {"id": "b", "n": NINES}
                assert transaction.get("t", {"id": "b"}) is None
            with pytest.raises(ZeroDivisionError), db.transact() as transaction:
                transaction.put("t", {"id": "z"})
                _ = 1 / 0
            assert db.scan("t").execute().items == [{"id": "a", "n": 2}]
            records = db.get_stream_records("t").execute().records
            assert [record.ordinal for record in records] == [0, 0, 1, 2]
            assert len({record.commit for record in records}) == 2

    def test_a_write_beside_ones_own_open_transaction_is_refused(self) -> None:
        with self.store() as db:
            with db.transact() as transaction:
                transaction.put("t", {"id": "a"})
                with pytest.raises(TransactionError, match="one at a time"):
                    db.put("t", {"id": "b"})
                with pytest.raises(TransactionError, match="one at a time"), db.transact():
                    pass
                assert db.get("t", {"id": "a"}) is None, "nobody else sees it yet"
            assert db.scan("t").execute().items == [{"id": "a"}]

    def test_writers_of_several_threads_lose_nothing(self) -> None:
        with self.store() as db:
            failures = list[BaseException]()

            def add() -> None:
                try:
                    for _ in range(5):
                        with db.transact() as transaction:
                            found = transaction.get("t", {"id": "a"}) or {"n": 0}
                            transaction.put("t", {"id": "a", "n": found["n"] + 1})
                except BaseException as failure:
                    failures.append(failure)
                    raise

            threads = [threading.Thread(target=add) for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert not failures
            assert db.get("t", {"id": "a"}) == {"id": "a", "n": 15}

    # --- reading many ----------------------------------------------------------------------------

    def test_a_query_reads_a_partition_within_bounds_either_way(self) -> None:
        with self.store() as db:
            db.create_table("o").partition_key("c", KeyType.BINARY).sort_key(
                "n", KeyType.NUMBER
            ).execute()
            for number in (10, -3, Decimal("2.5"), 0):
                db.put("o", {"c": b"\x00", "n": number, "even": number in {10, 0}})

            def query() -> Any:
                return db.query("o").partition_key(b"\x00")

            def numbers(described: Any) -> list[Any]:
                return [item["n"] for item in described.execute().items]

            assert numbers(query()) == [-3, 0, Decimal("2.5"), 10]
            assert numbers(query().scan_forward(False)) == [10, Decimal("2.5"), 0, -3]
            assert numbers(query().sort_key_eq(Decimal("2.50"))) == [Decimal("2.5")]
            assert numbers(query().sort_key_lt(0)) == [-3]
            assert numbers(query().sort_key_le(0)) == [-3, 0]
            assert numbers(query().sort_key_gt(0)) == [Decimal("2.5"), 10]
            assert numbers(query().sort_key_ge(0)) == [0, Decimal("2.5"), 10]
            assert numbers(query().sort_key_between(0, 10)) == [0, Decimal("2.5"), 10]
            assert numbers(query().filter(attr("even").eq(True))) == [0, 10]
            assert db.query("o").partition_key(b"\x01").execute().items == []

    def test_pages_join_without_hole_or_repeat_and_projections_keep_keys(self) -> None:
        with self.store() as db:
            db.create_table("o").partition_key("c", KeyType.STRING).sort_key(
                "s", KeyType.STRING
            ).execute()
            for number in range(7):
                db.put("o", {"c": "c", "s": f"x{number}", "m": {"deep": b"\x00", "other": 1}})
            for described in (
                lambda: db.scan("o"),
                lambda: db.query("o").partition_key("c").sort_key_begins_with("x"),
            ):
                found, last, looked = list[Item](), None, 0
                while True:
                    page = (
                        described()
                        .limit(3)
                        .exclusive_start_key(last)
                        .project("m.deep")
                        .filter(attr("s").ne("x3"))
                        .execute()
                    )
                    found += page.items
                    looked += page.evaluated
                    if (last := page.last_key) is None:
                        break
                assert looked == 7
                assert found == [
                    {"c": "c", "s": f"x{number}", "m": {"deep": b"\x00"}}
                    for number in (0, 1, 2, 4, 5, 6)
                ]

    # --- tables ----------------------------------------------------------------------------------

    def test_tables_are_made_described_counted_and_dropped(self) -> None:
        with self.store(ttl="until") as db:
            db.create_table("o").partition_key("p", KeyType.STRING).sort_key(
                "s", KeyType.BINARY
            ).execute()
            assert db.list_tables() == ["o", "t"]
            table = db.describe_table("o")
            assert (table.partition_key, table.sort_key) == (
                ("p", KeyType.STRING),
                ("s", KeyType.BINARY),
            )
            assert table.ttl_attribute is None
            assert table.stream is None
            assert db.describe_table("t").ttl_attribute == "until"
            assert db.describe_table("t").stream is not None
            db.drop_table("o")
            assert db.list_tables() == ["t"]
            with pytest.raises(TableNotFoundError):
                db.count("o")
            with pytest.raises(TableNotFoundError):
                db.drop_table("o")

    def test_a_sync_is_harmless_where_writes_wait_for_the_disk(self) -> None:
        with self.store() as db:
            db.put("t", {"id": "a"})
            db.sync()
            assert db.get("t", {"id": "a"}) == {"id": "a"}

    def test_what_has_expired_is_not_there_and_the_sweep_tells_of_it(self) -> None:
        """F8."""
        clock = ManualClock()
        with self.store(ttl="until", clock=clock) as db:
            second = clock.wall_ms() // 1000
            db.put("t", {"id": "a", "until": second + 10})
            db.put("t", {"id": "b"})
            clock.pass_(11)
            assert db.get("t", {"id": "a"}) is None
            assert db.count("t") == 1
            assert db.sweep() == 1
            assert db.sweep() == 0
            last = db.get_stream_records("t").execute().records[-1]
            assert (last.event_type, last.keys) == ("Remove", {"id": "a"})
            assert last.user_identity == {
                "type": "Service",
                "principal_id": "dynamodb.amazonaws.com",
            }
            db.set_ttl("t", None)
            assert db.describe_table("t").ttl_attribute is None
            db.set_ttl("t", "other")
            assert db.describe_table("t").ttl_attribute == "other"

    # --- streams ---------------------------------------------------------------------------------

    def test_every_record_has_its_own_sequence_and_pages_give_each_once(self) -> None:
        """F1, F2, F13."""
        with self.store() as db:
            db.write_batch(puts=[("t", {"id": f"k{number}"}) for number in range(10)])
            read, page = list[StreamRecord](), db.get_stream_records("t").limit(3).execute()
            while page.records:
                read += page.records
                page = db.get_stream_records("t").after(page.position).limit(3).execute()
            assert [record.keys["id"] for record in read] == [f"k{number}" for number in range(10)]
            sequences = [record.sequence_number for record in read]
            assert sequences == sorted(set(sequences))
            assert {record.commit_records for record in read} == {10}
            info = db.get_stream_info("t")
            assert (info.oldest_sequence, info.latest_sequence) == (sequences[0], sequences[-1])
            assert (info.records, info.enabled, info.view_type) == (10, True, BOTH)

            def names(described: Any) -> list[Any]:
                return [record.keys["id"] for record in described.execute().records]

            def records() -> Any:
                return db.get_stream_records("t")

            assert names(records().at_sequence(sequences[8])) == ["k8", "k9"]
            assert names(records().after_sequence(sequences[8])) == ["k9"]
            assert names(records().after(read[8].position)) == ["k9"]
            assert names(records().latest()) == []
            assert names(records().trim_horizon().max_bytes(1)) == ["k0"]

    @pytest.mark.parametrize("view", list(StreamViewType))
    def test_a_view_says_which_images_a_record_has(self, view: StreamViewType) -> None:
        with self.store(view=view) as db:
            db.put("t", {"id": "a", "n": 1})
            db.put("t", {"id": "a", "n": 2})
            db.delete("t", {"id": "a"})
            old: list[object] = [None, {"id": "a", "n": 1}, {"id": "a", "n": 2}]
            new: list[object] = [{"id": "a", "n": 1}, {"id": "a", "n": 2}, None]
            records = db.get_stream_records("t").execute().records
            assert [one.old_image for one in records] == (old if view.has_old else [None] * 3)
            assert [one.new_image for one in records] == (new if view.has_new else [None] * 3)
            assert {one.view for one in records} == {view}

    def test_a_reader_that_waits_gets_the_next_record(self) -> None:
        """F14."""
        with self.store() as db:
            found = list[Page]()
            reader = db.get_stream_records("t").wait(60)
            thread = threading.Thread(target=lambda: found.append(reader.execute()))
            thread.start()
            db.put("t", {"id": "a"})
            thread.join()
            assert [told(page) for page in found] == [[("Insert", None, {"id": "a"})]]
            after = db.get_stream_records("t").after(found[0].position).wait(0.05).execute()
            assert (after.records, after.position) == ([], found[0].position)

    def test_a_position_that_cannot_be_read_on_from_says_why(self) -> None:
        """F4, F10, F19."""
        with self.store() as db:
            for number in range(4):
                db.put("t", {"id": str(number)})
            first = db.get_stream_records("t").limit(1).execute()
            third = db.get_stream_records("t").limit(3).execute().records[2]
            assert db.prune_stream("t", until_sequence=third.sequence_number) == 3
            with pytest.raises(TrimmedDataError) as trimmed:
                db.get_stream_records("t").after(first.position).execute()
            assert trimmed.value.trimmed == third.sequence_number
            assert len(db.get_stream_records("t").after(third.position).execute().records) == 1
            with pytest.raises(AheadOfStreamError):
                db.get_stream_records("t").after_sequence(10**9).execute()
            with pytest.raises(RefusedError, match="no position"):
                db.get_stream_records("t").after("nonsense:x").execute()
            foreign = "0000000000000000.1:5"
            with pytest.raises(StreamChangedError):
                db.get_stream_records("t").after(foreign).execute()
            db.disable_stream("t")
            end = db.get_stream_records("t").after(third.position).execute()
            assert (len(end.records), end.closed) == (1, True)
            assert not db.get_stream_info("t").enabled

    def test_streams_are_enabled_disabled_and_kept_as_their_retention_says(self) -> None:
        """F12."""
        with self.store(view=None) as db:
            with pytest.raises(StreamNotEnabledError):
                db.get_stream_records("t").execute()
            with pytest.raises(StreamNotEnabledError):
                db.disable_stream("t")
            db.enable_stream("t", BOTH, retention=Retention.by_hand(bytes_max=500))
            with pytest.raises(StreamAlreadyEnabledError):
                db.enable_stream("t", BOTH)
            with pytest.raises(StreamFullError):
                for number in range(10):
                    db.put("t", {"id": str(number), "data": "x" * 100})
            db.alter_table_stream_retention("t", Retention(records_max=1))
            db.put("t", {"id": "again"})
            while db.sweep():
                pass
            assert db.get_stream_info("t").records == 1

    def test_writes_that_change_nothing_are_recorded_where_that_is_asked_for(self) -> None:
        """F6."""
        with self.store(view=None) as db:
            db.enable_stream("t", BOTH, unchanged=True)
            db.put("t", {"id": "a"})
            db.put("t", {"id": "a"})
            events = [event for event, _, _ in told(db.get_stream_records("t").execute())]
            assert events == ["Insert", "Modify"]

    # --- following -------------------------------------------------------------------------------

    def test_a_follower_gets_what_was_and_what_comes_and_hears_of_the_end(self) -> None:
        """F14, F19."""
        with self.store() as db:
            db.put("t", {"id": "a"})
            following = db.follow("t")
            assert next(following).keys == {"id": "a"}
            db.put("t", {"id": "b"})
            last = next(following)
            assert last.keys == {"id": "b"}
            db.disable_stream("t")
            with pytest.raises(StreamClosedError) as closed:
                next(following)
            assert closed.value.position == last.position

    def test_a_follower_goes_on_behind_a_position_and_may_end_when_nothing_comes(self) -> None:
        with self.store() as db:
            for name in ("a", "b", "c"):
                db.put("t", {"id": name})
            first = next(db.follow("t", idle_seconds=5))
            behind = db.follow("t", after=first.position, idle_seconds=0.05)
            assert [record.keys["id"] for record in behind] == ["b", "c"]
            assert list(db.follow("t", start="latest", idle_seconds=0.05)) == []
            db.prune_stream("t", until_sequence=first.sequence_number + 1)
            with pytest.raises(TrimmedDataError):
                list(db.follow("t", after=first.position, idle_seconds=5))

    # --- consumers -------------------------------------------------------------------------------

    def test_a_consumer_goes_on_where_its_handler_last_returned(self) -> None:
        """At least once: what a handler raised on comes again."""
        with self.store() as db:
            for number in range(5):
                db.put("t", {"id": str(number)})
            handled = list[object]()

            def handle(records: list[StreamRecord]) -> None:
                handled.extend(record.keys["id"] for record in records)
                if "3" in handled and handled.count("3") == 1:
                    raise OSError("the mail server is down")

            consumer = db.consume("t", "mailer", limit=2)
            with pytest.raises(OSError, match="mail server"):
                consumer.run(handle, idle_seconds=0)
            assert handled == ["0", "1", "2", "3"]
            db.consume("t", "mailer", limit=2).run(handle, idle_seconds=0)
            assert handled == ["0", "1", "2", "3", "2", "3", "4"]
            db.consume("t", "mailer", limit=2).run(handle, idle_seconds=0)
            assert len(handled) == 7

    def test_a_consumer_that_begins_with_the_latest_misses_nothing_from_its_beginning_on(
        self,
    ) -> None:
        """Its place is kept before the first record, so a crash before it skips nothing."""
        with self.store() as db:
            db.put("t", {"id": "before"})
            db.consume("t", "c", start="latest").step(_never)
            db.put("t", {"id": "after"})
            handled = list[object]()
            again = db.consume("t", "c", start="latest")
            again.run(
                lambda records: handled.extend(one.keys["id"] for one in records), idle_seconds=0
            )
            assert handled == ["after"]

    def test_a_consumer_that_retention_overtook_copies_and_goes_on_from_before_the_copy(
        self,
    ) -> None:
        """F4: and without a callback it is an error, each time."""
        with self.store() as db:
            db.put("t", {"id": "a"})
            db.register_consumer("t", "c")
            last = db.get_stream_records("t").execute().records[-1]
            db.prune_stream("t", until_sequence=last.sequence_number)
            with pytest.raises(TrimmedDataError):
                db.consume("t", "c").run(_never, idle_seconds=0)
            copied, handled, why = list[Item](), list[object](), list[StreamError]()

            def copy(error: StreamError) -> None:
                why.append(error)
                db.put("t", {"id": "during"})
                copied.extend(db.scan("t").execute().items)

            consumer = db.consume("t", "c", resync=copy)
            consumer.run(
                lambda records: handled.extend(one.keys["id"] for one in records), idle_seconds=0
            )
            assert copied == [{"id": "a"}, {"id": "during"}]
            assert handled == ["during"]
            assert [type(error) for error in why] == [TrimmedDataError]
            db.consume("t", "c").run(_never, idle_seconds=0)

    def test_a_copy_that_failed_is_made_again(self) -> None:
        with self.store() as db:
            db.put("t", {"id": "a"})
            db.register_consumer("t", "c")
            last = db.get_stream_records("t").execute().records[-1]
            db.prune_stream("t", until_sequence=last.sequence_number)
            tries = list[int]()

            def copy(_: StreamError) -> None:
                tries.append(1)
                if len(tries) == 1:
                    raise OSError("no room")

            with pytest.raises(OSError, match="no room"):
                db.consume("t", "c", resync=copy).run(_never, idle_seconds=0)
            db.consume("t", "c", resync=copy).run(_never, idle_seconds=0)
            assert len(tries) == 2

    def test_a_consumer_hears_that_its_stream_ended_and_goes_over_to_the_next(self) -> None:
        """F10, F19: changes may lie between the two, so it copies."""
        with self.store() as db:
            db.put("t", {"id": "a"})
            handled, why = list[object](), list[StreamError]()
            consumer = db.consume("t", "c", resync=why.append)

            def handle(records: list[StreamRecord]) -> None:
                handled.extend(one.keys["id"] for one in records)

            consumer.run(handle, idle_seconds=0)
            db.disable_stream("t")
            with pytest.raises(StreamClosedError):
                consumer.run(handle, idle_seconds=0)
            assert why == []
            db.enable_stream("t", BOTH)
            consumer.run(handle, idle_seconds=0)
            assert [type(error) for error in why] == [StreamClosedError]
            db.put("t", {"id": "b"})
            consumer.run(handle, idle_seconds=0)
            assert handled == ["a", "b"]

    def test_two_consumers_of_one_name_are_told(self) -> None:
        with self.store() as db:
            for name in ("a", "b"):
                db.put("t", {"id": name})
            one, two = (db.consume("t", "c", limit=1) for _ in range(2))
            assert one.step(lambda _: None) == 1
            assert two.step(lambda _: None) == 1
            with pytest.raises(CheckpointConflictError) as conflict:
                one.step(lambda _: None)
            assert conflict.value.actual == two.position

    def test_how_far_consumers_are_behind_is_told_and_they_can_be_forgotten(self) -> None:
        """F12."""
        clock = ManualClock()
        with self.store(clock=clock) as db:
            for name in ("a", "b", "c"):
                db.put("t", {"id": name})
            consumer = db.consume("t", "c", limit=1)
            consumer.step(lambda _: None)
            db.consume("t", "d", start="latest", hold_bytes_max=1000).step(_never)
            clock.pass_(2)
            told = {one.name: one for one in db.get_stream_info("t").consumers}
            assert (told["c"].lag_records, told["c"].lag_ms) == (2, 2000)
            assert (told["d"].lag_records, told["d"].lag_ms) == (0, 0)
            assert (told["c"].hold_bytes_max, told["d"].hold_bytes_max) == (None, 1000)
            assert db.forget_consumer("t", "c")
            assert not db.forget_consumer("t", "c")
            assert [one.name for one in db.get_stream_info("t").consumers] == ["d"]
            with pytest.raises(CheckpointConflictError):
                consumer.step(lambda _: None)

    def test_retention_keeps_what_a_consumer_has_not_read_up_to_its_bytes(self) -> None:
        """F12: then it goes on, and says so."""
        retention = Retention(age_seconds=None, records_max=2)
        with self.store(retention=retention) as db:
            consumer = db.consume("t", "c", hold_bytes_max=3000)
            consumer.step(_never)
            for number in range(6):
                db.put("t", {"id": str(number), "data": "x" * 200})
            info = db.get_stream_info("t")
            assert (info.records, info.consumers[0].overrun) == (6, False)
            handled = list[object]()
            consumer.run(
                lambda records: handled.extend(one.keys["id"] for one in records), idle_seconds=0
            )
            assert handled == [str(number) for number in range(6)]
            db.put("t", {"id": "read"})
            assert db.get_stream_info("t").records <= 3
            for number in range(30):
                db.put("t", {"id": str(number), "data": "y" * 200})
            info = db.get_stream_info("t")
            assert 2 < info.records < 20
            assert info.bytes <= 3000 + 700
            assert info.consumers[0].overrun
            assert info.consumers[0].lag_records == 31
            with pytest.raises(TrimmedDataError):
                consumer.run(_never, idle_seconds=0)

    # --- the end ---------------------------------------------------------------------------------

    def test_what_was_closed_says_so(self) -> None:
        with self.store() as db:
            db.close()
            db.close()
            with pytest.raises(StoreClosedError):
                db.list_tables()

    def test_who_waits_is_told_that_it_was_closed(self) -> None:
        with self.store() as db:
            told, waits = list[type[BaseException]](), threading.Event()

            def wait() -> None:
                following = db.follow("t")
                next(following)
                waits.set()
                try:
                    next(following)
                except BaseException as error:
                    told.append(type(error))

            db.put("t", {"id": "a"})
            thread = threading.Thread(target=wait)
            thread.start()
            waits.wait()
            db.close()
            thread.join()
            assert told == [StoreClosedError]


def _never(records: list[StreamRecord]) -> None:
    raise AssertionError(f"{len(records)} records came, and none were to")
