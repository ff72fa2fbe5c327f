"""A row that is wider than a server holds is a reject; it stops no pipeline."""

import itertools
import json
import random
from decimal import Decimal
from typing import Any

import pymysql
import pytest

from penstock.event import ChangeEvent
from tests.seeds import seed_of
from tests.spark.replica.support import (
    Driver,
    SqlReplica,
)
from tests.spark.tables import Entries, change, put

INNODB = ("mariadb", "mysql")


def texts(count: int, first: int = 0) -> dict[str, str]:
    return {f"t{n}": f"{n}" for n in range(first, first + count)}


def told(key: int | str, fields: dict[str, Any]) -> ChangeEvent:
    """An insert of a document of Extended JSON."""
    return change(key, "insert", text=json.dumps({"_id": key, **fields}))


def on(*names: str) -> pytest.MarkDecorator:
    marked = [pytest.param(name, marks=pytest.mark.server) for name in names]
    return pytest.mark.parametrize("replica", marked, indirect=True)


@on(*INNODB)
@pytest.mark.parametrize("made", [False, True])
def test_a_row_whose_key_has_more_characters_than_its_column_is_rejected_alone(
    replica: SqlReplica, start: Any, made: bool
) -> None:
    """Each of its changes, whether its table is there or not; its delete heals it."""
    fits, long = "\u4e2d" * 255, "\u4e2d" * 256
    entries = Entries()
    entries.commit(put("a", n=0))
    driver: Driver = start(entries)
    if made:
        driver.apply()
    entries.commit(put(long, n=1), put(fits, n=1))
    assert driver.apply(1 if made else 0).rejected == 1
    entries.commit(put("b", n=2), put(long, n=2))
    assert driver.apply(3).rejected == 1
    assert {key: row["n"] for key, row in replica.rows("orders").items()} == {
        "a": 0,
        fits: 1,
        "b": 2,
    }
    said = "the field _id is longer than 255, which its column holds"
    assert [(row["sequence"], row["reason"]) for row in replica.rejects()] == [(2, said), (5, said)]
    entries.commit(change(long, "delete"))
    driver.apply(5)
    assert all(row["healed"] is not None for row in replica.rejects())


@on(*INNODB)
@pytest.mark.parametrize("made", [False, True])
def test_a_row_that_its_table_has_no_room_for_is_rejected_alone(
    replica: SqlReplica, start: Any, made: bool
) -> None:
    """Whether its table is there or not; it takes no room from others, and its delete heals it."""
    entries = Entries()
    entries.commit(put(0, n=0))
    driver: Driver = start(entries)
    if made:
        driver.apply()
    entries.commit(put(1, **texts(600)), put(2, t0="a"), put(3, t599="c"), put(4, **texts(150)))
    assert driver.apply(1 if made else 0).rejected == 1
    expected = {
        0: {"_id": 0, "n": 0},
        2: {"_id": 2, "t0": "a"},
        3: {"_id": 3, "t599": "c"},
        4: {"_id": 4, **texts(150)},
    }
    assert replica.rows("orders") == expected
    (reject,) = replica.rejects()
    assert reject["sequence"] == 2
    assert "no room for another column" in reject["reason"]
    assert reject["healed"] is None
    head = entries.head
    entries.commit(put(5, **texts(300, 150)), put(6, t3="f"), change(1, "delete"))
    assert driver.apply(head).rejected == 1
    assert replica.rows("orders") == {**expected, 6: {"_id": 6, "t3": "f"}}
    assert [row["healed"] is None for row in replica.rejects()] == [False, True]


@on(*INNODB)
def test_a_batch_of_nothing_but_rows_without_room_stops_nothing(
    replica: SqlReplica, start: Any
) -> None:
    """Nor where its table is not there yet."""
    entries = Entries()
    entries.commit(put(1, **texts(600)))
    driver: Driver = start(entries)
    assert driver.apply().rejected == 1
    head = entries.head
    entries.commit(put(1, n=1), put(2, n=2))
    assert driver.apply(head).rejected == 0
    assert replica.rows("orders") == {1: {"_id": 1, "n": 1}, 2: {"_id": 2, "n": 2}}
    assert [row["healed"] is not None for row in replica.rejects()] == [True]


@on(*INNODB)
@pytest.mark.parametrize("key", [1, "k"])
def test_a_table_takes_columns_until_its_server_would_take_no_more(
    replica: SqlReplica, start: Any, key: int | str
) -> None:
    """Of any kinds, in a table that is made for them or grows; little of its room is left."""
    chance = random.Random(seed_of("wide-replica"))
    values = ["text", {"$numberDecimal": "1.5"}, {"$date": "2024-01-01T00:00:00Z"}, 1, 1.5, True]
    values += [{"a": 1}, {"$numberLong": "1"}, {"$binary": {"base64": "YQ==", "subType": "00"}}]
    entries, head, rejected = Entries(), 0, 0
    driver: Driver = start(entries)
    for part in range(4):
        rows = [
            told(f"k{part}_{n}" if key == "k" else 1000 * part + n, {f"f{part}_{n}": value})
            for n, value in enumerate(chance.choices(values, k=250))
        ]
        entries.commit(*rows)
        rejected = driver.apply(head).rejected
        head = entries.head
    assert rejected
    added = 0
    for added in itertools.count():
        try:
            replica.ask(f"ALTER TABLE orders ADD COLUMN more{added} longtext")
        except pymysql.MySQLError as error:
            assert error.args[0] == 1118  # noqa: PT017
            break
    assert added <= 20


@on(*INNODB)
def test_a_column_that_has_no_room_to_grow_stays_and_rejects_what_it_does_not_hold(
    replica: SqlReplica, start: Any
) -> None:
    entries = Entries()
    numbers = {f"n{n}": n for n in range(6)}
    entries.commit(put(0, **numbers), *(put(n + 1, **texts(1, n)) for n in range(400)))
    driver: Driver = start(entries)
    assert driver.apply().rejected
    head = entries.head
    before = replica.rows("orders")
    half = {"$numberDecimal": "0.5"}
    entries.commit(*(told(500 + n, {name: half}) for n, name in enumerate(numbers)), put(600, n5=5))
    rejected = driver.apply(head).rejected
    assert 0 < rejected <= 6
    written = {500 + n: {"_id": 500 + n, f"n{n}": Decimal("0.5")} for n in range(6 - rejected)}
    assert replica.rows("orders") == {**before, **written, 600: {"_id": 600, "n5": 5}}
    assert all("is int32" in row["reason"] for row in replica.rejects()[-rejected:])


@on("postgres")
def test_rows_that_do_not_fit_a_page_are_rejected_alone_and_healed_by_one_that_fits(
    replica: SqlReplica, start: Any
) -> None:
    """The row stays as it was until then; what builds on what it lacks is rejected too."""
    entries = Entries()
    entries.commit(*(put(key, n=key) for key in range(10)))
    driver: Driver = start(entries)
    driver.apply()
    head = entries.head
    wide = {name: 40 * text for name, text in texts(1000).items()}
    changed = {
        key: change(key, "replace", {"_id": key, "n": -key, **(wide if key in {3, 4, 9} else {})})
        for key in range(10)
    }
    entries.commit(*changed.values())
    done = driver.apply(head)
    assert (done.rows, done.rejected) == (7, 3)
    expected = {key: {"_id": key, "n": key if key in {3, 4, 9} else -key} for key in range(10)}
    assert replica.rows("orders") == expected
    assert [row["sequence"] for row in replica.rejects()] == [14, 15, 20]
    assert all("fits no page" in row["reason"] for row in replica.rejects())
    head = entries.head
    entries.commit(
        change(3, "update", update={"updatedFields": {"m": 1}}),
        change(4, "replace", {"_id": 4, "n": 44}),
        change(9, "delete"),
    )
    driver.apply(head)
    del expected[9]
    assert replica.rows("orders") == {**expected, 4: {"_id": 4, "n": 44}}
    healed = {row["sequence"]: row["healed"] is not None for row in replica.rejects()}
    assert healed == {14: False, 15: True, 20: True, 21: False}
