"""A column that somebody altered to a type that no replica writes: never altered back, never left
out without a word. One that somebody added is theirs."""

from decimal import Decimal
from typing import Any

import pytest

from penstock.errors import DestinationError
from tests.spark.replica.support import Driver, MysqlReplica, PostgresReplica, SqlReplica
from tests.spark.tables import Entries, change, put, schema_event

ALTERED = {"numeric(12,2)": r"n \((numeric|decimal)\(12,2\)\)", "date": r"n \(date\)"}


def retyped(replica: SqlReplica, column: str, declared: str) -> None:
    """Give a column of `orders` another type, as who runs the server would."""
    if isinstance(replica, PostgresReplica):
        using = "" if "date" not in declared else f" USING NULL::{declared}"
        replica.ask(f"ALTER TABLE orders ALTER COLUMN {column} TYPE {declared}{using}")
        return
    if declared == "date":
        replica.ask(f"UPDATE orders SET {column} = NULL")
    replica.ask(f"ALTER TABLE orders MODIFY COLUMN {column} {declared} NULL")


def declared(replica: SqlReplica, column: str) -> str:
    """The type that the server has for a column of `orders`."""
    (row,) = replica.ask(
        "SELECT data_type AS t FROM information_schema.columns WHERE table_schema = "
        f"{replica.schema} AND table_name = 'orders' AND column_name = '{column}'"
    )
    return str(row["t"])


@pytest.mark.parametrize("fields", [{"n": 5}, {}])
@pytest.mark.parametrize("declaration", [*ALTERED])
def test_a_column_that_is_altered_stops_the_pipeline_until_it_is_altered_back(
    replica: SqlReplica, start: Any, declaration: str, fields: dict[str, Any]
) -> None:
    """Whether a row has its field or not: else that row would keep a value that it has no more."""
    entries = Entries()
    entries.commit(put(1, n=19.99), put(2, n=4))
    start(entries).apply()
    retyped(replica, "n", declaration)
    before, type_ = replica.rows("orders"), declared(replica, "n")
    entries.commit(change(2, "replace", {"_id": 2, **fields}))
    for _ in range(2):
        driver: Driver = start(entries)
        with pytest.raises(DestinationError, match=rf"orders were altered.*{ALTERED[declaration]}"):
            driver.apply(2)
        assert replica.rows("orders") == before
        assert declared(replica, "n") == type_
    if isinstance(replica, PostgresReplica) and declaration == "date":
        replica.ask("ALTER TABLE orders ALTER COLUMN n TYPE double precision USING NULL")
    else:
        retyped(replica, "n", "double precision")
    start(entries).apply(2)
    assert replica.rows("orders")[2] == {"_id": 2, **fields}


def test_a_column_that_somebody_added_is_left_alone_until_a_field_has_its_name(
    replica: SqlReplica, start: Any
) -> None:
    """It has another type from the beginning; a type that a replica writes is not known to be
    theirs."""
    entries = Entries()
    entries.commit(put(1, n=1), put(2, n=1))
    driver: Driver = start(entries)
    driver.apply()
    replica.ask("ALTER TABLE orders ADD COLUMN price decimal(12,2) DEFAULT 1.25 NOT NULL")
    replica.ask("UPDATE orders SET price = 19.99 WHERE _id = 1")
    entries.commit(change(1, "update", update={"updatedFields": {"n": 2}}), put(3, n=3))
    driver.apply(2)
    entries.commit(change(2, "replace", {"_id": 2, "n": 2}))
    start(entries).apply(4)
    there = {
        1: {"_id": 1, "n": 2, "price": Decimal("19.99")},
        2: {"_id": 2, "n": 2, "price": Decimal("1.25")},
        3: {"_id": 3, "n": 3, "price": Decimal("1.25")},
    }
    assert replica.rows("orders") == there
    entries.commit(change(1, "delete"), put(4, price=5))
    told = r"have a field price, and its column is of a type .*(numeric|decimal)\(12,2\)"
    for _ in range(2):
        with pytest.raises(DestinationError, match=told):
            start(entries).apply(5)
    assert replica.rows("orders") == there


def test_a_row_without_a_value_for_a_column_that_takes_no_null_is_rejected_alone(
    replica: SqlReplica, start: Any
) -> None:
    entries = Entries()
    entries.commit(put(1, n=1), put(2, n=2))
    driver: Driver = start(entries)
    driver.apply()
    replica.ask("ALTER TABLE orders ADD COLUMN done bigint DEFAULT 0 NOT NULL")
    entries.commit(put(3, n=3), put(4, n=4, done=1), change(1, "delete"))
    start(entries).apply(2)
    there = {2: {"_id": 2, "n": 2, "done": 0}, 4: {"_id": 4, "n": 4, "done": 1}}
    assert replica.rows("orders") == there
    (found,) = replica.ask("SELECT reason FROM _penstock_rejects")
    assert found["reason"] == "the field done has no value, and its column is NOT NULL"
    entries.commit(put(3, n=3, done=2))
    start(entries).apply(5)
    assert replica.rows("orders") == {**there, 3: {"_id": 3, "n": 3, "done": 2}}


def test_a_value_that_the_server_makes_of_a_column_is_left_to_it(
    replica: SqlReplica, start: Any
) -> None:
    entries = Entries()
    entries.commit(put(1, n=1, doc={"a": 1}))
    driver: Driver = start(entries)
    driver.apply()
    replica.ask("ALTER TABLE orders ADD COLUMN twice int GENERATED ALWAYS AS (n * 2) STORED")
    if isinstance(replica, PostgresReplica):
        replica.ask("CREATE INDEX found ON orders USING gin ((doc::jsonb))")
    entries.commit(change(1, "replace", {"_id": 1, "n": 2}), put(2, doc={"b": 2}))
    driver.apply(1)
    rows = replica.rows("orders")
    assert rows == {1: {"_id": 1, "n": 2, "twice": 4}, 2: {"_id": 2, "doc": {"b": 2}}}


def test_what_a_table_was_before_it_was_begun_anew_is_forgotten(
    replica: SqlReplica, start: Any
) -> None:
    entries = Entries()
    entries.commit(put(1, n=1))
    start(entries).apply()
    replica.drop("orders")
    for table in ("_penstock_pipelines", "_penstock_tables"):
        replica.ask(f"DELETE FROM {table}")
    entries.commit(change(1, "replace", {"_id": 1}))
    driver: Driver = start(entries)
    driver.apply(1)
    replica.ask("ALTER TABLE orders ADD COLUMN n date")
    entries.commit(put(2))
    driver.apply(2)
    assert set(replica.rows("orders")) == {1, 2}


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ("ADD COLUMN day date", r"orders has columns of types .*day \(date\)"),
        ("DROP COLUMN n, ADD COLUMN n date", r"orders were altered to types .*n \(date\)"),
    ],
)
def test_rows_with_a_column_that_no_replica_writes_are_not_handed_over(
    replica: SqlReplica, start: Any, statement: str, told: str
) -> None:
    entries = Entries()
    entries.commit(put(1, n=1))
    driver: Driver = start(entries)
    driver.apply()
    replica.ask(f"ALTER TABLE orders {statement}")
    before = replica.rows("orders")
    entries.commit(schema_event("rename", to={"db": "db", "coll": "lines"}))
    with pytest.raises(DestinationError, match=told):
        driver.apply(1)
    assert replica.rows("orders") == before
    assert replica.rows("lines") == {}


def test_a_text_of_another_character_set_is_told_with_its_collation(
    mariadb: Any, mariadb_database: str
) -> None:
    replica = MysqlReplica(mariadb.host, mariadb.port, mariadb_database)
    entries = Entries()
    entries.commit(put(1, t="a"))
    driver = Driver(entries, replica.config())
    try:
        driver.start()
        driver.apply()
        replica.ask("ALTER TABLE orders MODIFY COLUMN t longtext CHARACTER SET latin1")
        entries.commit(put(2, t="b"))
        with pytest.raises(DestinationError, match=r"t \(longtext COLLATE latin1_"):
            driver.apply(1)
    finally:
        driver.close()
