"""Two keys of the source are never one row of a table without a word, whatever its columns hold."""

import itertools
import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw, structs

from penstock.errors import DestinationError
from penstock.event import ChangeEvent
from penstock.spark.config import ReplicatePipelineConfig
from penstock.spark.replica.altering import altered
from penstock.spark.replica.dialect import SqlTable
from penstock.spark.replica.mysql import MysqlDialect
from penstock.spark.replica.postgres import PostgresDialect
from penstock.spark.replica.rows import decode_keyed, prepared
from tests.seeds import cases
from tests.spark.replica.support import (
    Driver,
    SqlReplica,
    collected,
    replay_beside,
)
from tests.spark.tables import Entries, change, schema_event

SUBTYPES = ("00", "04", "80")
HEX = "65a0c0ffee65a0c0ffee65a0"
ALIKE: tuple[list[Any], ...] = (
    [{"$oid": HEX}, HEX],
    [{"$oid": HEX}, HEX, HEX.upper(), HEX + " ", HEX + "\0", {"$oid": "0" * 24}, "0" * 24],
    [
        {"$binary": {"base64": data, "subType": sub}}
        for data in ("AAE=", "AAEA")
        for sub in SUBTYPES
    ],
    [0, 0.0, -0.0, {"$numberLong": "0"}, {"$numberDecimal": "0"}, {"$numberDecimal": "-0.0"}],
    [1, 1.0, {"$numberLong": "1"}, {"$numberDecimal": "1"}, {"$numberDecimal": "1.00"}, True, "1"],
    [{"$numberLong": str((1 << 53) + 1)}, float(1 << 53), {"$numberDouble": "NaN"}, "NaN"],
    [
        "a",
        "A",
        "a ",
        "\u00e4",
        "a\u0308",
        "",
        " ",
        "null",
        {"a": 1},
        {"a": 1.0},
        {"a": {"$oid": HEX}},
    ],
)
"""Keys that some column, index or collation would take for one another."""


def equal_at_the_source(key: Any) -> Any:
    """What MongoDB's index on `_id` tells apart."""
    match key:
        case bool():
            return ("bool", key)
        case {"$numberDouble": "NaN"}:
            return ("number", "NaN")
        case {"$numberLong": text} | {"$numberDecimal": text}:
            return ("number", Decimal(text) + 0)
        case int() | float():
            return ("number", Decimal(key) + 0)
        case _:
            return ("other", json.dumps(key))


class Columns:
    """As much of an SQL table as keys need: a row for each value that an index tells apart."""

    def __init__(self, dialect: type[PostgresDialect | MysqlDialect], uri: str) -> None:
        config = ReplicatePipelineConfig.model_validate(
            {"to": "replicate", "source": "shop", "uri": uri}
        )
        self.table: SqlTable | None = None
        self.rows: dict[Any, Any] = {}
        self.forms: Any = {}
        self.stale: dict[str, int] = {}
        self.dialect: Any = dialect("p", config)

    def apply(self, entries: Entries, after: int) -> None:
        chunk = collected(entries.table(after), decode_keyed).chunk
        while True:
            made = prepared(
                chunk,
                name="orders",
                table=self.table,
                dialect=self.dialect,
                pipeline="p",
                stale=self.stale,
                forms=self.forms,
                select=nothing,
            )
            if not made.setup:
                break
            for one in made.setup:
                self.table = altered(self.table, one, self.dialect)
        for key in _tuples(made.deletes):
            self.rows.pop(key, None)
        puts = {one.name: one.column.to_pylist() for one in made.puts}
        for key, n in zip(_tuples([one for one in made.puts if one.name == "_id"]),
                          puts.get("n", ()), strict=True):  # fmt: skip
            self.rows[key] = n
        self.forms = made.forms
        for key in (*made.put, *made.deleted, *made.absent):
            self.stale.pop(key, None)
        self.stale |= made.stale


def _tuples(values: Any) -> list[Any]:
    return list(zip(*(map(_told_apart, one.column.to_pylist()) for one in values), strict=True))


def _told_apart(value: Any) -> Any:
    return "NaN" if value != value else value  # noqa: PLR0124 - an index has one NaN


ACTS = ("put", "put", "delete", "batch", "batch")
_acts = st.sampled_from(ALIKE).flatmap(
    lambda keys: st.lists(
        st.tuples(
            st.sampled_from(keys), st.sampled_from(["put", "put", "delete", "batch", "batch"])
        ),
        max_size=30,
    )
)


@settings(max_examples=cases(200))
@given(
    acts=_acts,
    server=st.sampled_from([(PostgresDialect, "postgresql://h/d"), (MysqlDialect, "mysql://h/d")]),
)
def test_each_key_has_its_own_row_or_is_rejected(acts: list[Any], server: Any) -> None:
    """The naive model: what MongoDB has, by what its index tells apart."""
    columns, entries, numbers = Columns(*server), Entries(), itertools.count(1)
    source: dict[Any, tuple[Any, int]] = {}
    done = 0
    for key, act in [*acts, (0, "batch")]:
        own = equal_at_the_source(key)
        if act in {"put", "delete"} and own in source:
            old, _ = source[own]
            if act == "delete" or entry_key(old) != entry_key(key):
                # Another type of the same key is a delete and an insert, as capture says it.
                del source[own]
                entries.commit(of(old))
        if act == "put":
            source[own] = key, next(numbers)
            entries.commit(of(key, source[own][1]))
        if act == "batch" and entries.head > done:
            columns.apply(entries, done)
            done = entries.head
            rejected = set(columns.stale)
            expected = {n for key, n in source.values() if entry_key(key) not in rejected}
            assert sorted(columns.rows.values()) == sorted(expected)


def nothing(_columns: Any, _key: Any) -> list[Any]:
    """No change here builds on a row."""
    return []


def entry_key(key: Any) -> str:
    return json.dumps({"_id": key}, separators=(",", ":"))


def of(key: Any, n: int | None = None) -> ChangeEvent:
    """An insert of a document whose `_id` is Extended JSON; without `n` a delete."""
    if n is None:
        event = change(1, "delete")
    else:
        document = {"_id": key, "n": n}
        event = change(1, "replace", text=json.dumps(document))
    return structs.replace(event, key=Raw(entry_key(key).encode()))


def test_an_object_id_and_its_digits_as_text_are_not_one_row(
    replica: SqlReplica, start: Any
) -> None:
    """The first form stays; the other is rejected, by name, until the table is empty again."""
    entries, text = Entries(), {"$oid": HEX}
    entries.commit(of(text, 1), of("other", 2))
    entries.commit(of(HEX, 3))
    driver: Driver = start(entries)
    driver.apply(0, 2)
    assert driver.apply(2).rejected == 1
    entries.commit(of(HEX), of("another", 4))  # which deletes nothing
    start(entries).apply(3)
    assert {key: row["n"] for key, row in replica.rows("orders").items()} == {
        HEX: 1, "other": 2, "another": 4,
    }  # fmt: skip
    (reject,) = replica.rejects()
    assert (reject["sequence"], reject["healed"]) == (3, 5)
    assert reject["reason"] == (
        "the key's field _id is text of 24 digits, and an ObjectId is the same in its column: the "
        f'key {{"_id":{{"$oid":"{HEX}"}}}} would be the same row'
    )
    entries.commit(schema_event("drop"))
    entries.commit(of(HEX, 5))
    start(entries).apply(5)
    assert {key: row["n"] for key, row in replica.rows("orders").items()} == {HEX: 5}


def test_a_row_that_the_server_does_not_hold_decides_no_form() -> None:
    """It is rejected, and what comes behind it is not for what was never written."""

    def texted(key: Any, n: int, text: str) -> ChangeEvent:
        document = json.dumps({"_id": key, "n": n, "t": text})
        return structs.replace(of(key, n), full_document=Raw(document.encode()))

    columns, entries = Columns(PostgresDialect, "postgresql://h/d"), Entries()
    entries.commit(texted("other", 1, "fits"))
    columns.apply(entries, 0)
    entries.commit(texted(HEX, 2, "\0"))
    columns.apply(entries, 1)
    assert set(columns.stale) == {entry_key(HEX)}
    entries.commit(of({"$oid": HEX}, 3))
    columns.apply(entries, 2)
    assert columns.rows == {("other",): 1, (HEX,): 3}


def test_a_running_pipeline_knows_the_form_that_a_replay_has_found(
    replica: SqlReplica, start: Any
) -> None:
    entries = Entries()
    entries.commit(of("other", 2))
    driver: Driver = start(entries)
    driver.apply(0)
    entries.commit(of({"$oid": HEX}, 1))
    replay_beside(driver, 1, 2)
    entries.commit(of(HEX, 3))
    assert driver.apply(2).rejected == 1
    entries.commit(of("another", 4))
    driver.apply(3)
    entries.commit(of(HEX, 5))
    assert start(entries).apply(4).rejected == 1
    assert replica.rows("orders")[HEX]["n"] == 1


def test_bytes_of_two_subtypes_are_not_one_row(replica: SqlReplica, start: Any) -> None:
    entries = Entries()
    one, other = ({"$binary": {"base64": "AAE=", "subType": sub}} for sub in ("04", "00"))
    entries.commit(of(one, 1))
    entries.commit(of(other, 2))
    driver: Driver = start(entries)
    driver.apply(0, 1)
    assert driver.apply(1).rejected == 1
    assert [row["n"] for row in replica.rows("orders").values()] == [1]
    assert '"subType":"04"' in replica.rejects()[0]["reason"]


def test_texts_that_people_take_for_the_same_are_rows_of_their_own(
    replica: SqlReplica, start: Any
) -> None:
    entries = Entries()
    keys = [
        "a",
        "A",
        "a ",
        "a  ",
        "\u00e4",
        "a\u0308",
        "\u00c4",
        "ss",
        "\u00df",
        "",
        " ",
        "\t",
        "NULL",
    ]
    entries.commit(*(of(key, at) for at, key in enumerate(keys)))
    start(entries).apply()
    assert {key: row["n"] for key, row in replica.rows("orders").items()} == {
        key: at for at, key in enumerate(keys)
    }
    entries.commit(of("a "), of("\u00df"), of("NULL"))
    start(entries).apply(len(keys))
    assert set(replica.rows("orders")) == set(keys) - {"a ", "\u00df", "NULL"}


def test_a_key_that_gets_another_type_is_the_row_that_it_was(
    replica: SqlReplica, start: Any
) -> None:
    """Numbers that are equal are one key at the source: the old one is deleted, in one batch or
    two."""
    entries = Entries()
    numbers: list[Any] = [5, 5.0, {"$numberLong": "5"}, {"$numberDecimal": "5.0"}, 5]
    entries.commit(of(numbers[0], 0))
    for at, (old, new) in enumerate(itertools.pairwise(numbers), 1):
        entries.commit(of(old), of(new, at))
    driver: Driver = start(entries)
    driver.apply(0, 3)
    driver.apply(3, 9)
    assert [row["n"] for row in replica.rows("orders").values()] == [4]


def test_two_keys_that_are_both_there_and_equal_in_a_column_stop_it_by_name(
    replica: SqlReplica, start: Any
) -> None:
    entries = Entries()
    entries.commit(of(7, 1))
    entries.commit(of(5, 2), of(5.0, 3))
    driver: Driver = start(entries)
    driver.apply(0, 1)
    with pytest.raises(DestinationError, match=r'\{"_id":5\} and \{"_id":5\.0\}'):
        driver.apply(1)
    assert set(replica.rows("orders")) == {7}
