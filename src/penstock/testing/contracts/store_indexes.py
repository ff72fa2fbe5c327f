"""What every face of a store promises of secondary indexes (`penstock.store.indexes`).

class TestClient(StoreIndexContract):
    @contextmanager
    def opened(self, folder, clock): yield Client(...)
"""

import tempfile
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from penstock.store import (
    AnyStore,
    AnyTransaction,
    IndexAlreadyExistsError,
    IndexNotFoundError,
    InvalidConditionError,
    Item,
    KeyAttribute,
    KeyTooLargeError,
    KeyType,
    KeyTypeMismatchError,
    MissingKeyAttributeError,
    RefusedError,
    StoreError,
    StreamViewType,
    TableNotFoundError,
    Update,
    attr,
)
from penstock.testing.contracts.log import ManualClock

TINY = Decimal("1E-130")
NINES = 10**38 - 1


def found(
    db: AnyStore | AnyTransaction, partition: Any, *, index: str = "by", forward: bool = True
) -> list[Any]:
    """The ids of the items of one partition of the index, in its order."""
    query = db.query_index("t", index).partition_key(partition).scan_forward(forward)
    return [item["id"] for item in query.execute().items]


def paged(db: AnyStore, partition: Any, *, limit: int, forward: bool) -> list[Any]:
    """As `found`, page by page."""
    ids, last = list[Any](), None
    while True:
        query = db.query_index("t", "by").partition_key(partition).scan_forward(forward)
        page = query.limit(limit).exclusive_start_key(last).execute()
        assert page.evaluated <= limit
        ids += [item["id"] for item in page.items]
        if (last := page.last_key) is None:
            return ids


class StoreIndexContract:
    """Inherit, and give `opened`."""

    def opened(self, folder: Path, clock: ManualClock) -> AbstractContextManager[AnyStore]:
        """The store in `folder`, made if it is not there. Nothing sweeps it but `sweep`."""
        raise NotImplementedError

    @contextmanager
    def store(
        self,
        *items: Item,
        sort: KeyType | None = KeyType.NUMBER,
        index: bool = True,
        clock: ManualClock | None = None,
    ) -> Generator[AnyStore]:
        """A store of this test's own: a table `t` with these items, indexed `by` `of`, then `n`."""
        with (
            tempfile.TemporaryDirectory() as folder,
            self.opened(Path(folder), clock or ManualClock()) as db,
        ):
            table = db.create_table("t").partition_key("id", KeyType.STRING).ttl("until")
            table.stream(StreamViewType.NEW_AND_OLD_IMAGES).execute()
            for item in items:
                db.put("t", item)
            if index:
                self.indexed(db, sort)
            yield db

    def indexed(self, db: AnyStore, sort: KeyType | None = KeyType.NUMBER) -> None:
        """Make the index `by` of the table `t`."""
        index = db.create_index("t", "by").partition_key("of", KeyType.STRING)
        if sort is not None:
            index.sort_key("n", sort)
        index.execute()

    # --- what is in it ---------------------------------------------------------------------------

    def test_items_that_are_there_are_in_it_and_those_that_are_written_too(self) -> None:
        with self.store({"id": "a", "of": "x", "n": 2}, {"id": "b", "of": "y", "n": 1}) as db:
            db.put("t", {"id": "c", "of": "x", "n": 1, "raw": b"\x00"})
            page = db.query_index("t", "by").partition_key("x").execute()
            assert page.items == [
                {"id": "c", "of": "x", "n": 1, "raw": b"\x00"},
                {"id": "a", "of": "x", "n": 2},
            ]
            assert page.last_key is None
            assert found(db, "none") == []

    def test_it_follows_every_kind_of_write(self) -> None:
        with self.store({"id": "a", "of": "x", "n": 1}, {"id": "b", "of": "x", "n": 2}) as db:
            db.update("t", {"id": "a"}).set("n", 3).execute()
            assert found(db, "x") == ["b", "a"]
            db.update("t", {"id": "a"}).set("other", 3).execute()
            assert found(db, "x") == ["b", "a"]
            db.put("t", {"id": "b", "of": "y", "n": 2})
            assert (found(db, "x"), found(db, "y")) == (["a"], ["b"])
            db.update("t", {"id": "a"}).remove("of").execute()
            assert found(db, "x") == []
            db.write_batch(
                puts=[("t", {"id": "c", "of": "y", "n": 1})], deletes=[("t", {"id": "b"})]
            )
            assert found(db, "y") == ["c"]
            db.delete("t", {"id": "c"})
            assert found(db, "y") == []

    def test_a_transaction_sees_its_own_and_leaves_all_or_nothing(self) -> None:
        with self.store({"id": "a", "of": "x", "n": 1}) as db:
            with db.transact() as transaction:
                transaction.put("t", {"id": "b", "of": "x", "n": 0})
                transaction.update("t", {"id": "a"}, Update().set("n", -1))
                assert found(transaction, "x") == ["a", "b"]
                transaction.delete("t", {"id": "a"})
                assert found(transaction, "x") == ["b"]
                assert found(db, "x") == ["a"], "nobody else sees it yet"
            assert found(db, "x") == ["b"]
            with pytest.raises(ZeroDivisionError), db.transact() as transaction:
                transaction.put("t", {"id": "c", "of": "x", "n": 5})
                transaction.delete("t", {"id": "b"})
                assert found(transaction, "x") == ["c"]
                _ = 1 / 0
            assert found(db, "x") == ["b"]

    def test_what_cannot_be_its_key_is_not_in_it_and_no_write_is_refused(self) -> None:
        items: list[Item] = [
            {"id": "absent", "n": 1},
            {"id": "no sort key", "of": "x"},
            {"id": "null", "of": None, "n": 1},
            {"id": "number", "of": 1, "n": 1},
            {"id": "empty", "of": "", "n": 1},
            {"id": "too long", "of": "x" * 2049, "n": 1},
            {"id": "text", "of": "x", "n": "1"},
            {"id": "bool", "of": "x", "n": True},
            {"id": "set", "of": "x", "n": {1}},
        ]
        with self.store(*items) as db:
            for item in items:
                db.put("t", {**item, "again": True})
            db.put("t", {"id": "in", "of": "x", "n": 1})
            assert found(db, "x") == ["in"]
            for item in items:
                db.put("t", {"id": item["id"], "of": "x", "n": 2})
            assert sorted(found(db, "x")) == sorted(["in", *(item["id"] for item in items)])
            for item in items:
                db.put("t", item)
            assert found(db, "x") == ["in"]

    def test_nothing_that_has_expired_is_found(self) -> None:
        """F8: whether it was swept or not, and again once it is written anew."""
        clock = ManualClock()
        until = clock.wall_ms() // 1000 + 60
        with self.store(clock=clock) as db:
            for number in range(4):
                item: Item = {"id": str(number), "of": "x", "n": number}
                db.put("t", item if number % 2 else {**item, "until": until})
            assert found(db, "x") == ["0", "1", "2", "3"]
            clock.pass_(61)
            assert found(db, "x") == ["1", "3"]
            page = db.query_index("t", "by").partition_key("x").limit(2).execute()
            assert (page.evaluated, page.last_key) == (2, None), "the limit counts what is there"
            while db.sweep():
                pass
            db.put("t", {"id": "0", "of": "x", "n": 9})
            assert found(db, "x") == ["1", "3", "0"]

    def test_streams_hear_nothing_of_it(self) -> None:
        with self.store({"id": "a", "of": "x", "n": 1}, index=False) as db:
            before = db.get_stream_info("t")
            self.indexed(db)
            db.drop_index("t", "by")
            self.indexed(db)
            db.put("t", {"id": "a", "of": "x", "n": 2})
            after = db.get_stream_info("t")
            assert after.records == before.records + 1
            assert before.latest_sequence is not None
            assert after.latest_sequence == before.latest_sequence + 1

    def test_a_scope_is_what_stands_before_the_first_hash_of_the_key(self) -> None:
        with self.store(index=False) as db:
            for key in ("user#1", "user#1#2", "user", "users#1", "us#er#1", "#user#1", "zz#1"):
                db.put("t", {"id": key, "of": "x"})
            index = db.create_index("t", "by").partition_key("of", KeyType.STRING)
            index.scope("user").execute()
            assert found(db, "x") == ["user#1", "user#1#2"]
            for key in ("user#0", "users#0"):
                db.put("t", {"id": key, "of": "x"})
            db.delete("t", {"id": "user#1"})
            assert found(db, "x") == ["user#0", "user#1#2"]

    # --- its order, and pages --------------------------------------------------------------------

    def test_numbers_are_in_their_exact_order_and_ties_in_that_of_the_items_keys(self) -> None:
        """F15."""
        numbers: list[Any] = [-NINES, Decimal("-0.5"), -TINY, 0, TINY, 2**53, 2**53 + 1, NINES]
        with self.store() as db:
            for at, number in reversed(list(enumerate(numbers))):
                for name in ("b", "a"):
                    db.put("t", {"id": f"{name}{at}", "of": "x", "n": number})
            ordered = [f"{name}{at}" for at in range(len(numbers)) for name in ("a", "b")]
            assert found(db, "x") == ordered
            assert found(db, "x", forward=False) == ordered[::-1]

    def test_every_type_can_be_a_key_of_it(self) -> None:
        of: dict[KeyType, list[Any]] = {
            KeyType.STRING: ["\x00", "\x00\x00", "a", "a\x00", "é"],
            KeyType.NUMBER: [-2, Decimal("-0.1"), 0, 2**64],
            KeyType.BINARY: [b"\x00", b"\x00\xff", b"a", b"\xff", b"\xff\xff"],
        }
        with self.store(index=False) as db:
            for kind, values in of.items():
                index = db.create_index("t", kind.value).partition_key("p", kind)
                index.sort_key("s", kind).execute()
                for at, value in enumerate(values):
                    db.put("t", {"id": f"{kind}{at}", "p": values[0], "s": value})
                    db.put("t", {"id": f"{kind}-{at}", "p": value, "s": values[0]})
                names = [f"{kind}{at}" for at in range(1, len(values))]
                assert found(db, values[0], index=kind.value)[2:] == names
                assert found(db, values[1], index=kind.value) == [f"{kind}-1"]

    @pytest.mark.parametrize("forward", [True, False])
    def test_the_sort_key_is_bounded_as_a_querys_is(self, forward: bool) -> None:
        with self.store(sort=KeyType.STRING) as db:
            for value in ("a", "aa", "ab", "b", "c"):
                for tie in ("1", "2"):
                    db.put("t", {"id": value + tie, "of": "x", "n": value})
            db.put("t", {"id": "other", "of": "xx", "n": "a"})
            asked: list[tuple[Callable[[Any], Any], list[str]]] = [
                (lambda query: query, ["a", "aa", "ab", "b", "c"]),
                (lambda query: query.sort_key_eq("aa"), ["aa"]),
                (lambda query: query.sort_key_lt("ab"), ["a", "aa"]),
                (lambda query: query.sort_key_le("ab"), ["a", "aa", "ab"]),
                (lambda query: query.sort_key_gt("aa"), ["ab", "b", "c"]),
                (lambda query: query.sort_key_ge("aa"), ["aa", "ab", "b", "c"]),
                (lambda query: query.sort_key_between("aa", "b"), ["aa", "ab", "b"]),
                (lambda query: query.sort_key_between("b", "aa"), []),
                (lambda query: query.sort_key_begins_with("a"), ["a", "aa", "ab"]),
            ]
            for bound, wanted in asked:
                query = db.query_index("t", "by").partition_key("x").scan_forward(forward)
                ids = [item["id"] for item in bound(query).execute().items]
                expected = [value + tie for value in wanted for tie in ("1", "2")]
                assert ids == (expected if forward else expected[::-1])

    def test_pages_are_the_whole_though_index_keys_are_equal(self) -> None:
        with self.store() as db:
            for number in range(23):
                db.put("t", {"id": f"{number:02}", "of": "x", "n": number // 8})
            whole = found(db, "x")
            assert whole == sorted(whole)
            for limit in (1, 3, 8, 23, 30):
                assert paged(db, "x", limit=limit, forward=True) == whole
                assert paged(db, "x", limit=limit, forward=False) == whole[::-1]

    def test_a_page_goes_on_though_the_item_that_it_ended_with_is_gone(self) -> None:
        with self.store(sort=None) as db:
            for name in "abcd":
                db.put("t", {"id": name, "of": "x"})
            page = db.query_index("t", "by").partition_key("x").limit(2).execute()
            assert page.last_key == {"id": "b", "of": "x"}
            db.delete("t", {"id": "b"})
            db.put("t", {"id": "b2", "of": "x"})
            query = db.query_index("t", "by").partition_key("x")
            page = query.exclusive_start_key(page.last_key).execute()
            assert [item["id"] for item in page.items] == ["b2", "c", "d"]

    def test_a_filter_is_behind_the_limit_and_a_projection_keeps_the_keys(self) -> None:
        with self.store() as db:
            for number in range(4):
                db.put("t", {"id": str(number), "of": "x", "n": number, "m": {"a": 1, "b": 2}})
            query = db.query_index("t", "by").partition_key("x").filter(attr("n").gt(1))
            page = query.limit(3).project("m.a").execute()
            assert page.items == [{"id": "2", "of": "x", "n": 2, "m": {"a": 1}}]
            assert (page.evaluated, page.last_key) == (3, {"id": "2", "of": "x", "n": 2})

    def test_long_keys_that_share_all_but_their_ends_are_told_apart(self) -> None:
        """Keys of 2048 and 1024 bytes, in the index and in the table at once."""
        with self.store(sort=KeyType.STRING) as db:
            places = [(of, sort, row) for of in "ab" for sort in "01" for row in "567"]
            items: list[Item] = [
                {
                    "id": "i" * 2045 + row + of + sort,
                    "of": "x" * 2047 + of,
                    "n": "n" * 1023 + sort,
                }
                for of, sort, row in places
            ]
            for item in reversed(items):
                db.put("t", item)
            for of in "ab":
                rows = [item["id"] for item in items if item["of"][-1] == of]
                assert found(db, "x" * 2047 + of) == rows
                assert found(db, "x" * 2047 + of, forward=False) == rows[::-1]
                assert paged(db, "x" * 2047 + of, limit=1, forward=True) == rows
            query = db.query_index("t", "by").partition_key("x" * 2047 + "a")
            page = query.sort_key_begins_with("n" * 1023 + "1").execute()
            assert [item["id"][-3] for item in page.items] == ["5", "6", "7"]
            for item in items:
                db.delete("t", {"id": item["id"]})
            assert found(db, "x" * 2047 + "b") == []

    # --- made, dropped, refused ------------------------------------------------------------------

    def test_a_table_tells_of_its_indexes(self) -> None:
        with self.store() as db:
            index = db.create_index("t", "raw").partition_key("b", KeyType.BINARY)
            index.scope("user").execute()
            by, raw = db.describe_table("t").indexes
            assert (by.name, by.partition_key, by.sort_key, by.scope, by.ready) == (
                "by",
                KeyAttribute("of", KeyType.STRING),
                KeyAttribute("n", KeyType.NUMBER),
                None,
                True,
            )
            assert (raw.name, raw.sort_key, raw.scope) == ("raw", None, "user")
            assert by.key_names == ("of", "n")
            db.drop_index("t", "by")
            assert db.describe_table("t").indexes == (raw,)

    def test_a_dropped_index_is_gone_and_its_name_is_free(self) -> None:
        with self.store({"id": "a", "of": "x", "n": 1}) as db:
            db.drop_index("t", "by")
            with pytest.raises(IndexNotFoundError):
                found(db, "x")
            db.put("t", {"id": "b", "of": "x", "n": 0})
            db.create_index("t", "by").partition_key("n", KeyType.NUMBER).execute()
            assert (found(db, 1), found(db, 0)) == (["a"], ["b"])
            while db.sweep():
                pass
            assert (found(db, 1), found(db, 0)) == (["a"], ["b"])

    def test_a_table_made_anew_has_none(self) -> None:
        with self.store({"id": "a", "of": "x", "n": 1}) as db:
            db.drop_table("t")
            db.create_table("t").partition_key("id", KeyType.STRING).execute()
            assert db.describe_table("t").indexes == ()
            self.indexed(db)
            assert found(db, "x") == []

    def test_what_cannot_be_is_refused_by_its_name_and_changes_nothing(self) -> None:
        with self.store({"id": "a", "of": "x", "n": 1}) as db:

            def make(name: str, key: str = "of", kind: KeyType = KeyType.STRING) -> Any:
                return db.create_index("t", name).partition_key(key, kind)

            def ask() -> Any:
                return db.query_index("t", "by").partition_key("x")

            db.create_table("n").partition_key("n", KeyType.NUMBER).execute()
            start = {"id": "a", "of": "x", "n": 1}
            refused: list[tuple[type[StoreError], Callable[[], object]]] = [
                (IndexAlreadyExistsError, lambda: make("by").execute()),
                (RefusedError, lambda: db.create_index("t", "none").execute()),
                (RefusedError, lambda: make("").execute()),
                (RefusedError, lambda: make("x" * 256).execute()),
                (RefusedError, lambda: make("no", "").execute()),
                (RefusedError, lambda: make("no").sort_key("of", KeyType.NUMBER).execute()),
                (RefusedError, lambda: make("no").scope("").execute()),
                (RefusedError, lambda: make("no").scope("a#b").execute()),
                (
                    RefusedError,
                    lambda: (
                        db.create_index("n", "no")
                        .partition_key("of", KeyType.STRING)
                        .scope("a")
                        .execute()
                    ),
                ),
                (
                    TableNotFoundError,
                    lambda: (
                        db.create_index("none", "no").partition_key("a", KeyType.STRING).execute()
                    ),
                ),
                (IndexNotFoundError, lambda: db.drop_index("t", "none")),
                (TableNotFoundError, lambda: db.drop_index("none", "by")),
                (IndexNotFoundError, lambda: found(db, "x", index="none")),
                (RefusedError, lambda: db.query_index("t", "by").execute()),
                (KeyTypeMismatchError, lambda: found(db, 1)),
                (KeyTooLargeError, lambda: found(db, "x" * 2049)),
                (KeyTypeMismatchError, lambda: ask().sort_key_eq("1").execute()),
                (
                    MissingKeyAttributeError,
                    lambda: ask().exclusive_start_key({"id": "a"}).execute(),
                ),
                (
                    MissingKeyAttributeError,
                    lambda: ask().exclusive_start_key({"of": "x", "n": 1}).execute(),
                ),
                (
                    KeyTypeMismatchError,
                    lambda: ask().exclusive_start_key({**start, "n": "1"}).execute(),
                ),
            ]
            for error, operation in refused:
                with pytest.raises(error) as caught:
                    operation()
                assert type(caught.value).name == error.name
            assert [index.name for index in db.describe_table("t").indexes] == ["by"]
            make("no sort key").execute()
            with pytest.raises(InvalidConditionError):
                db.query_index("t", "no sort key").partition_key("x").sort_key_eq(1).execute()

    def test_a_table_has_at_most_twenty_five(self) -> None:
        with self.store() as db:
            for number in range(24):
                db.create_index("t", str(number)).partition_key("of", KeyType.STRING).execute()
            index = db.create_index("t", "one more").partition_key("of", KeyType.STRING)
            with pytest.raises(RefusedError, match="25 indexes"):
                index.execute()
            db.drop_index("t", "7")
            index.execute()
            db.put("t", {"id": "a", "of": "x", "n": 1})
            assert found(db, "x", index="one more") == ["a"]
