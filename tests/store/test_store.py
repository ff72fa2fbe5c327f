"""Items: written, changed and read back, by key, by partition and by table."""

import sys
import threading
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import store
from penstock.store import (
    ConditionCheckFailedError,
    KeyTooLargeError,
    KeyType,
    KeyTypeMismatchError,
    MissingKeyAttributeError,
    RefusedError,
    Store,
    StoreClosedError,
    TableAlreadyExistsError,
    TableNotFoundError,
    TransactionError,
    VersionMismatchError,
    attr,
)
from penstock.store.builders import Query
from tests.children import Child
from tests.store.support import SetClock, all_records, opened, with_table


def orders(db: Store) -> Store:
    """A store with a table of customers' orders, sorted by number."""
    db.create_table("orders").partition_key("customer", KeyType.STRING).sort_key(
        "number", KeyType.NUMBER
    ).execute()
    return db


# --- writing --------------------------------------------------------------------------------------


def test_an_item_is_there_after_the_store_was_closed_and_opened(tmp_path: Path) -> None:
    item = {"id": "a", "price": Decimal("1.10"), "tags": {"x"}, "deep": [{"raw": b"\x00"}, None]}
    with opened(tmp_path) as db:
        with_table(db)
        assert db.put("t", item) is None
        assert db.put("t", {"id": "a"}) == item
        assert db.put("t", item) == {"id": "a"}
    with opened(tmp_path) as db:
        assert db.get("t", {"id": "a"}) == item
        assert db.delete("t", {"id": "a"}) == item
        assert db.get("t", {"id": "a"}) is None


def test_an_update_changes_parts_and_says_what_it_found_and_left(tmp_path: Path) -> None:
    with opened(tmp_path) as db:
        with_table(db)
        made = db.update("t", {"id": "a"}).set("n", 1).add("tags", {"x", "y"}).execute()
        assert (made.old, made.new) == (None, {"id": "a", "n": 1, "tags": {"x", "y"}})
        changed = db.update("t", {"id": "a"}).add("n", 2).delete("tags", {"x"}).execute()
        assert changed.new == {"id": "a", "n": 3, "tags": {"y"}}
        assert changed.old == made.new
        with pytest.raises(RefusedError):
            db.update("t", {"id": "a"}).set("id", "b").execute()
        assert db.get("t", {"id": "a"}) == changed.new


def test_a_sum_is_exact_or_refused(tmp_path: Path) -> None:
    """F15."""
    with opened(tmp_path) as db:
        with_table(db)
        db.put("t", {"id": "a", "n": 2**53})
        assert db.update("t", {"id": "a"}).add("n", 1).execute().new["n"] == 2**53 + 1
        db.put("t", {"id": "a", "n": 10**37})
        with pytest.raises(RefusedError, match="significant digits"):
            db.update("t", {"id": "a"}).add("n", Decimal("0.01")).execute()
        assert db.get("t", {"id": "a"}) == {"id": "a", "n": 10**37}


def test_a_condition_or_version_that_does_not_hold_changes_nothing(tmp_path: Path) -> None:
    with opened(tmp_path) as db:
        with_table(db)
        db.put("t", {"id": "a", "n": 1}, condition=attr("id").not_exists())
        found = db.get_versioned("t", {"id": "a"})
        assert found is not None
        with pytest.raises(ConditionCheckFailedError) as failed:
            db.put("t", {"id": "a", "n": 2}, condition=attr("id").not_exists())
        assert failed.value.item == {"id": "a", "n": 1}
        with pytest.raises(VersionMismatchError) as mismatch:
            db.put("t", {"id": "a", "n": 2}, expected_version=0)
        assert mismatch.value.facts() == {"expected": 0, "actual": found[1]}
        db.put("t", {"id": "a", "n": 2}, expected_version=found[1])
        with pytest.raises(VersionMismatchError):
            db.delete("t", {"id": "a"}, expected_version=found[1])
        with pytest.raises(VersionMismatchError):
            db.update("t", {"id": "b"}).set("n", 1).expected_version(7).execute()
        assert db.get("t", {"id": "a"}) == {"id": "a", "n": 2}


@pytest.mark.parametrize(
    ("key", "error"),
    [
        ({}, MissingKeyAttributeError),
        ({"customer": "c"}, MissingKeyAttributeError),
        ({"customer": 1, "number": 1}, KeyTypeMismatchError),
        ({"customer": "c" * 2049, "number": 1}, KeyTooLargeError),
    ],
)
def test_what_is_no_key_is_refused_by_every_operation(
    tmp_path: Path, key: Any, error: type[Exception]
) -> None:
    with opened(tmp_path) as db:
        orders(db)
        for operation in (
            lambda: db.put("orders", key),
            lambda: db.get("orders", key),
            lambda: db.delete("orders", key),
            lambda: db.update("orders", key).set("x", 1).execute(),
        ):
            with pytest.raises(error):
                operation()
        assert db.scan("orders").execute().items == []


def test_what_a_transaction_raises_undoes_all_of_it(tmp_path: Path) -> None:
    with opened(tmp_path) as db:
        with_table(db)
        orders(db)

        def fail() -> None:
            with db.transact() as transaction:
                transaction.put("t", {"id": "a"})
                transaction.put("orders", {"customer": "c", "number": 1})
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail()
        assert db.scan("t").execute().items == db.scan("orders").execute().items == []
        with pytest.raises(RefusedError):
            db.write_batch(puts=[("t", {"id": "a"}), ("t", {"id": 1})])
        assert all_records(db) == []


def test_an_operation_that_raises_inside_a_transaction_changes_nothing_and_the_rest_is_kept(
    tmp_path: Path,
) -> None:
    with opened(tmp_path) as db:
        with_table(db)
        with db.transact() as transaction:
            transaction.put("t", {"id": "a"})
            with pytest.raises(ConditionCheckFailedError):
                transaction.put("t", {"id": "b"}, condition=attr("id").exists())
        assert db.scan("t").execute().items == [{"id": "a"}]


def test_a_transaction_inside_another_of_the_same_thread_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path) as db:
        with_table(db)
        with db.transact() as transaction:
            transaction.put("t", {"id": "a"})
            with pytest.raises(TransactionError, match="one at a time"):
                db.put("t", {"id": "b"})
        assert db.scan("t").execute().items == [{"id": "a"}]


def test_writers_of_several_threads_take_turns_and_lose_nothing(tmp_path: Path) -> None:
    with opened(tmp_path) as db:
        with_table(db)

        def add() -> None:
            for _ in range(20):
                db.update("t", {"id": "a"}).add("n", 1).execute()

        threads = [threading.Thread(target=add) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert db.get("t", {"id": "a"}) == {"id": "a", "n": 80}
        assert len(all_records(db)) == 80


# --- reading --------------------------------------------------------------------------------------


def test_a_query_reads_a_partition_by_sort_key(tmp_path: Path) -> None:
    with opened(tmp_path) as db:
        orders(db)
        for customer in ("a", "a\x00", "b"):
            for number in (10, -3, Decimal("2.5"), 0):
                db.put("orders", {"customer": customer, "number": number})

        def numbers(query: Query) -> list[Any]:
            return [item["number"] for item in query.execute().items]

        def query() -> Query:
            return db.query("orders").partition_key("a")

        assert numbers(query()) == [-3, 0, Decimal("2.5"), 10]
        assert numbers(query().scan_forward(False)) == [10, Decimal("2.5"), 0, -3]
        assert numbers(query().sort_key_eq(Decimal("2.50"))) == [Decimal("2.5")]
        assert numbers(query().sort_key_lt(0)) == [-3]
        assert numbers(query().sort_key_le(0)) == [-3, 0]
        assert numbers(query().sort_key_gt(0)) == [Decimal("2.5"), 10]
        assert numbers(query().sort_key_ge(0)) == [0, Decimal("2.5"), 10]
        assert numbers(query().sort_key_between(0, 10)) == [0, Decimal("2.5"), 10]
        assert numbers(query().sort_key_between(10, 0)) == []


def test_limit_counts_what_is_looked_at_and_pages_join_without_hole_or_repeat(
    tmp_path: Path,
) -> None:
    with opened(tmp_path) as db:
        orders(db)
        for number in range(10):
            db.put("orders", {"customer": "a", "number": number, "even": number % 2 == 0})
        for forward in (True, False):
            found, last, pages = list[Any](), None, 0
            while True:
                page = (
                    db.query("orders")
                    .partition_key("a")
                    .filter(attr("even").eq(True))
                    .limit(3)
                    .scan_forward(forward)
                    .exclusive_start_key(last)
                    .execute()
                )
                found += [item["number"] for item in page.items]
                assert page.evaluated <= 3
                pages += 1
                if (last := page.last_key) is None:
                    break
            assert found == ([0, 2, 4, 6, 8] if forward else [8, 6, 4, 2, 0])
            assert pages == 4


def test_a_projection_keeps_the_keys(tmp_path: Path) -> None:
    with opened(tmp_path) as db:
        orders(db)
        db.put("orders", {"customer": "a", "number": 1, "deep": {"x": 1, "y": 2}, "z": 3})
        found = db.query("orders").partition_key("a").project("deep.y").execute().items
        assert found == [{"customer": "a", "number": 1, "deep": {"y": 2}}]


def test_a_page_is_a_megabyte_at_the_most(tmp_path: Path) -> None:
    with opened(tmp_path) as db:
        with_table(db, view=None)
        for number in range(6):
            db.put("t", {"id": str(number), "data": "x" * 399_000})
        page = db.scan("t").execute()
        assert page.evaluated == 2
        assert page.last_key == {"id": "1"}


LONG = st.text("ab", min_size=1, max_size=3).map(lambda end: "p" * 700 + end)


@pytest.mark.slow
@given(st.lists(st.tuples(LONG, LONG), min_size=1, max_size=12, unique=True), st.data())
def test_long_keys_that_share_a_prefix_are_all_found_and_sorted(
    tmp_path_factory: pytest.TempPathFactory, keys: list[tuple[str, str]], data: st.DataObject
) -> None:
    """Up to 2048 and 1024 bytes, where LMDB itself has 511."""
    with opened(tmp_path_factory.mktemp("long")) as db:
        db.create_table("t").partition_key("p", KeyType.STRING).sort_key(
            "s", KeyType.STRING
        ).execute()
        db.write_batch(puts=[("t", {"p": p * 2, "s": s}) for p, s in keys])
        partition = data.draw(st.sampled_from(keys))[0]
        wanted = sorted(s for p, s in keys if p == partition)
        query = db.query("t").partition_key(partition * 2)
        assert [item["s"] for item in query.execute().items] == wanted
        start = wanted[0][:701]
        begun = db.query("t").partition_key(partition * 2).sort_key_begins_with(start)
        assert [item["s"] for item in begun.execute().items] == [
            s for s in wanted if s.startswith(start)
        ]
        for p, s in keys:
            assert db.delete("t", {"p": p * 2, "s": s}) is not None
        assert db.scan("t").execute().items == []


def test_the_longest_keys_are_taken(tmp_path: Path) -> None:
    with opened(tmp_path) as db:
        db.create_table("t").partition_key("p", KeyType.BINARY).sort_key(
            "s", KeyType.BINARY
        ).execute()
        item = {"p": b"\x00" * 2048, "s": b"\x00" * 1024, "n": 1}
        db.put("t", item)
        assert db.get("t", {"p": item["p"], "s": item["s"]}) == item
        with pytest.raises(KeyTooLargeError):
            db.put("t", {"p": b"x", "s": b"x" * 1025})


# --- tables and the store itself ------------------------------------------------------------------


def test_tables_are_made_listed_described_and_dropped(tmp_path: Path) -> None:
    with opened(tmp_path) as db:
        with_table(db)
        orders(db)
        with pytest.raises(TableAlreadyExistsError):
            orders(db)
        assert db.list_tables() == ["orders", "t"]
        assert db.describe_table("orders").key_names == ("customer", "number")
        for number in range(250):
            db.put("orders", {"customer": "c", "number": number})
        db.drop_table("orders")
        with pytest.raises(TableNotFoundError):
            db.get("orders", {"customer": "c", "number": 1})
        orders(db)
        assert db.scan("orders").execute().items == []
        while db.sweep():
            pass
        assert db.list_tables() == ["orders", "t"]
    with store.open(tmp_path, read_only=True) as reader:
        assert reader.list_tables() == ["orders", "t"]


OPENING = """
import sys
from penstock import store
from penstock.store import StoreLockedError
try:
    store.open(sys.argv[1])
except StoreLockedError as error:
    print(error)
else:
    print("opened")
"""


@pytest.mark.slow
def test_a_second_writer_is_refused_and_a_reader_is_not(tmp_path: Path) -> None:
    with opened(tmp_path) as db:
        with_table(db)
        with Child(sys.executable, "-c", OPENING, tmp_path) as second:
            assert "a store has one writer" in second.rest()
        with store.open(tmp_path, read_only=True) as reader:
            db.put("t", {"id": "a"})
            assert reader.get("t", {"id": "a"}) == {"id": "a"}
            with pytest.raises(TransactionError, match="for reading"):
                reader.put("t", {"id": "b"})


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    db = store.open(tmp_path)
    db.close()
    db.close()
    with pytest.raises(StoreClosedError):
        db.list_tables()
    with pytest.raises(StoreClosedError), db.transact():
        pass


# --- time to live ---------------------------------------------------------------------------------


def test_what_has_expired_is_not_there_and_the_sweep_tells_of_it_once(tmp_path: Path) -> None:
    """F8: a Remove with the service's identity."""
    clock = SetClock()
    second = clock.now_ms // 1000
    with opened(tmp_path, clock) as db:
        with_table(db, ttl="until")
        for name, until in (("soon", second + 10), ("never", 0), ("text", "10"), ("later", 10**30)):
            db.put("t", {"id": name, "until": until})
        clock.pass_(10)
        assert db.get("t", {"id": "soon"}) is None
        assert db.get_versioned("t", {"id": "soon"}) is None
        assert sorted(item["id"] for item in db.scan("t").execute().items) == [
            "later",
            "never",
            "text",
        ]
        assert db.query("t").partition_key("soon").execute().items == []
        assert db.sweep() == 1
        assert db.sweep() == 0
        last = db.get_stream_records("t").execute().records[-1]
    assert (last.event_type, last.keys) == ("Remove", {"id": "soon"})
    assert last.old_image == {"id": "soon", "until": second + 10}
    assert last.user_identity == {
        "type": "Service",
        "principal_id": "dynamodb.amazonaws.com",
    }


def test_a_write_over_an_expired_item_removes_it_first(tmp_path: Path) -> None:
    """F8: put, update and delete."""
    clock = SetClock()
    second = clock.now_ms // 1000
    with opened(tmp_path, clock) as db:
        with_table(db, ttl="until")
        for name in ("put", "update", "delete", "fails"):
            db.put("t", {"id": name, "until": second + 10})
        clock.pass_(10)
        db.put("t", {"id": "put", "n": 1}, condition=attr("id").not_exists())
        db.update("t", {"id": "update"}).set("n", 1).execute()
        assert db.delete("t", {"id": "delete"}) is None
        with pytest.raises(ConditionCheckFailedError):
            db.delete("t", {"id": "fails"}, condition=attr("id").exists())
        records = db.get_stream_records("t").execute().records[4:]
        assert [(one.event_type, one.keys["id"], one.user_identity is None) for one in records] == [
            ("Remove", "put", False),
            ("Insert", "put", True),
            ("Remove", "update", False),
            ("Insert", "update", True),
            ("Remove", "delete", False),
        ]
        assert db.sweep() == 1


def test_an_item_that_was_refreshed_is_not_swept(tmp_path: Path) -> None:
    """F9: written between the sweep's look and its delete."""
    clock = SetClock()
    second = clock.now_ms // 1000
    with opened(tmp_path, clock) as db:
        with_table(db, ttl="until")
        db.put("t", {"id": "a", "until": second + 10})
        clock.pass_(10)
        table = db.describe_table("t")
        db.put("t", {"id": "a", "until": second + 100})
        with db.transact() as transaction:
            assert not transaction.expire(table, table.key({"id": "a"}))
        assert db.get("t", {"id": "a"}) is not None


def test_a_ttl_may_be_set_later_and_taken_away(tmp_path: Path) -> None:
    clock = SetClock()
    second = clock.now_ms // 1000
    with opened(tmp_path, clock) as db:
        with_table(db)
        db.put("t", {"id": "a", "until": second - 1, "other": second + 50})
        assert db.get("t", {"id": "a"}) is not None
        db.set_ttl("t", "other")
        assert db.get("t", {"id": "a"}) is not None
        db.set_ttl("t", "until")
        assert db.get("t", {"id": "a"}) is None
        db.set_ttl("t", None)
        assert db.get("t", {"id": "a"}) is not None
        assert db.sweep() == 0


def test_a_clock_that_was_set_forward_sweeps_nothing(tmp_path: Path) -> None:
    """F11: what is hidden by a wrong clock comes back with the right one."""
    clock = SetClock()
    with opened(tmp_path, clock) as db:
        with_table(db, ttl="until")
        db.put("t", {"id": "a", "until": clock.now_ms // 1000 + 1000})
        clock.now_ms += 10**9
        assert db.get("t", {"id": "a"}) is None
        assert db.sweep() == 0
        clock.now_ms -= 10**9
        assert db.get("t", {"id": "a"}) is not None
