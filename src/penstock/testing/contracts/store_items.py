"""What every face of a store promises of tables and items."""

import threading
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

from penstock.store import (
    ConditionCheckFailedError,
    DocumentTooLargeError,
    InvalidConditionError,
    Item,
    KeyAttributeUpdateError,
    KeyTooLargeError,
    KeyType,
    KeyTypeMismatchError,
    MissingKeyAttributeError,
    RefusedError,
    StoreClosedError,
    StoreError,
    TableAlreadyExistsError,
    TableNotFoundError,
    TransactionError,
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
from penstock.testing.contracts.store_face import StoreFace

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


class StoreItemsContract(StoreFace):
    """Inherited by way of `StoreContract`."""

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

    # --- the end ---------------------------------------------------------------------------------

    def test_what_was_closed_says_so(self) -> None:
        with self.store() as db:
            db.close()
            db.close()
            with pytest.raises(StoreClosedError):
                db.list_tables()
