"""A replica that is what the log says is never told to be another, whatever is in it."""

import json
import random
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import Raw, structs

from tests.flight.blocks import BlockLog, gap
from tests.spark.replica.contract import history
from tests.spark.replica.support import MongoReplica, PostgresReplica, database
from tests.spark.replica.verified import Pipeline, ask
from tests.spark.tables import Entries, change, schema_event
from tests_support.servers import PostgresServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def log() -> BlockLog:
    return BlockLog()


VALUES = [
    *("0", "-1", "2147483647", "-2147483648"),
    *('{"$numberLong":"7"}', "9007199254740993", "9223372036854775807", "-9223372036854775808"),
    *("0.0", "-0.0", "0.1", "5e-324", "1.7976931348623157e308", "123456789012345680.0", "1e22"),
    *('{"$numberDouble":"NaN"}', '{"$numberDouble":"-Infinity"}'),
    *('{"$numberDecimal":"1.10"}', '{"$numberDecimal":"-0"}', '{"$numberDecimal":"1E+3"}'),
    '{"$numberDecimal":"99999999999999999999.999999999999999999"}',
    '{"$numberDecimal":"0.000000000000000001"}',
    *('{"$numberDecimal":"NaN"}', '{"$numberDecimal":"1E-19"}'),
    *("true", "false", "null"),
    *('""', '" "', '"a "', '"it\'s \\"q\\" \\\\ %s %% \\n\\t"', '"😀 ÅÄ\u0301"', '"a\\u0000b"'),
    '"5f0000000000000000000001"',
    '{"$oid":"5f0000000000000000000002"}',
    *('{"$date":"2026-01-02T03:04:05.678Z"}', '{"$date":"2026-01-02T03:04:05.678901Z"}'),
    *('{"$date":"0001-01-01T00:00:00Z"}', '{"$date":{"$numberLong":"253402300799999"}}'),
    *('{"$date":"1969-12-31T23:59:59.999Z"}', '{"$date":{"$numberLong":"-999999999999999"}}'),
    *('{"$binary":{"base64":"","subType":"00"}}', '{"$binary":{"base64":"AP8n","subType":"05"}}'),
    *("{}", "[]", '{"a":{"b":[1,{"$numberLong":"1"},1.0,null,"x"]}}', "[[],[1.5]]"),
    *('{"$regularExpression":{"pattern":"a.b","options":"i"}}', '{"$minKey":1}', '{"$code":"x"}'),
    *('{"$timestamp":{"t":5,"i":6}}', '{"$timestamp":{"t":0,"i":0}}'),
]
"""As Extended JSON. Not each fits each server: then its row is in the rejects."""


def told(collection: str, *texts: str) -> list[Any]:
    """Inserts of documents without their _id, as Extended JSON."""
    return [
        change(key, "insert", text=f'{{"_id":{key},{text}}}', collection=collection)
        for key, text in enumerate(texts)
    ]


@pytest.mark.parametrize(
    "any_replica",
    [
        pytest.param(name, marks=pytest.mark.server)
        for name in ("postgres", "mariadb", "mysql", "mongo")
    ],
    indirect=True,
)
def test_a_value_of_any_type_is_equal_to_itself(pipeline: Pipeline, log: BlockLog) -> None:
    """In a column of its own, and in one that the values before it have made."""
    own = [
        f'"v{at}":{value},"p%s \'{at}":{value},"deep":{{"v":[{value}]}}'
        for at, value in enumerate(VALUES)
    ]
    log.append([told("own", *own), told("mixed", *(f'"v":{value}' for value in VALUES))])
    update = {"updatedFields": {"new": {"a": 1.0}, "more": 5}, "removedFields": ["v2", "deep"]}
    changed = [change(key, "update", update=update, collection="own") for key in range(40)]
    log.append([one] for one in changed)
    pipeline.run("own", "mixed", max_events_per_batch=60)
    found = pipeline.verify("own", "mixed")
    mixed, own_one = found.tables
    assert found.sound, (mixed.listed, own_one.listed)
    lacking = [row for row in pipeline.replica.rejects() if row["healed"] is None]
    assert own_one.rejected <= len([row for row in lacking if row["tab"] == "own"])
    assert own_one.rows + own_one.rejected >= len(VALUES) > own_one.rows > len(VALUES) - 15
    assert mixed.rows > 3


def test_columns_that_grew_hold_what_they_held(pipeline: Pipeline, log: BlockLog) -> None:
    numbers = [*range(5), 1 << 31, -5, 1 << 62, 7]
    log.append([told("t", *(f'"d":{n if n < 4 else 0.25},"n":{n},"t":"{n}"' for n in numbers))])
    log.append([[change(3, "update", update={"updatedFields": {"t": "x"}}, collection="t")]])
    decimal = '{"$numberDecimal":"0.5"}'
    log.append([[change(9, "insert", text=f'{{"_id":9,"n":{decimal}}}', collection="t")]])
    for _ in range(2):
        pipeline.run("t", max_events_per_batch=2)
    found = pipeline.verify("t")
    assert found.sound, found.tables
    assert found.tables[0].rows + found.tables[0].rejected == len(numbers) + 1


def test_a_table_that_somebody_made_has_its_own_columns(
    spark: "SparkSession", endpoint: str, log: BlockLog, postgres: PostgresServer
) -> None:
    """A value is what its column makes of it, and a row that one of them does not hold is apart."""
    replica = PostgresReplica(postgres.create(database()))
    replica.ask(
        "CREATE TABLE t (_id bigint PRIMARY KEY, j json, d double precision, n numeric(38,18), "
        "s varchar(3), x int DEFAULT 5)"
    )
    pipeline = Pipeline(spark, endpoint, replica)
    values = ['"a"', "1", "{}", "null", "0.5", "[1.0]", "true"]
    log.append([told("t", *(f'"j":{value},"d":{at},"n":{at}' for at, value in enumerate(values)))])
    log.append([[change(20, "insert", text='{"_id":20,"s":"four"}', collection="t")]])
    pipeline.run("t")
    (table,) = pipeline.verify("t").tables
    assert (table.differences, table.rejected) == (0, 1)
    assert table.rows == len(values)


KEYS = {
    "text": ['"a"', '"A"', '"a "', '"\u00e4"', '"a\u0308"', '""', '"%s \\\\ x"', '"😀"'],
    "number": ["1", "1.5", "-0.0", "1e22", "9007199254740992"],
    "objectid": [f'{{"$oid":"5f000000000000000000000{at}"}}' for at in range(5)],
    "bytes": [f'{{"$binary":{{"base64":"{at}A==","subType":"05"}}}}' for at in "ABCDE"],
    "two": ['1,"b":"x"', '1,"b":"X"', '2,"b":"x"', '2,"b":"x "', '3,"b":""'],
    "instant": [f'{{"$date":"2026-01-0{at}T00:00:00.00{at}Z"}}' for at in range(1, 6)],
}
"""By collection, as Extended JSON."""


def test_rows_are_known_by_keys_of_any_form(pipeline: Pipeline, log: BlockLog) -> None:
    keys = {
        form: [f'{{"{"a" if form == "two" else "_id"}":{one}}}' for one in values]
        for form, values in KEYS.items()
    }
    for form, values in keys.items():
        texts = [f'{key[:-1]},"n":{at}}}' for at, key in enumerate(values)]
        whole = [change(1, "insert", text=text, collection=form) for text in texts]
        log.append(
            [structs.replace(one, key=Raw(key.encode()))]
            for one, key in zip(whole, values, strict=True)
        )
    pipeline.run(*keys)
    found = pipeline.verify(*keys)
    assert found.sound, found.tables
    for one in found.tables:
        assert one.rows == len(keys[one.collection]) - one.rejected >= 4
        if isinstance(pipeline.replica, MongoReplica):
            pipeline.replica.database[one.collection].update_many({}, {"$set": {"n": -1}})
            pipeline.replica.database[one.collection].delete_one({"n": -1})
        else:
            ask(pipeline.replica, f"UPDATE {one.collection} SET n = -n - 1 WHERE n > 0")
            ask(pipeline.replica, f"DELETE FROM {one.collection} WHERE n = 0")
    for one in pipeline.verify(*keys, repair=True).tables:
        assert one.differences == one.repaired == one.rows
        said = {json.dumps(json.loads(row.key)) for row in one.listed}
        assert said <= {json.dumps(json.loads(key)) for key in keys[one.collection]}
    assert pipeline.verify(*keys).sound


@pytest.mark.parametrize(
    ("seed", "batch_events_max"),
    [(1, 45), *(pytest.param(seed, 13, marks=pytest.mark.soak) for seed in (1, 2))],
)
def test_any_history_is_what_the_log_says(
    pipeline: Pipeline, log: BlockLog, seed: int, batch_events_max: int
) -> None:
    """Updates that build on rows, drops, and renames, in batches that end elsewhere."""
    dice = random.Random(seed)
    history(dice, Appending(log), commits=60)
    log.append([[schema_event("rename", to={"db": "db", "coll": "lines"})]])
    history(dice, Appending(log), commits=30)
    log.append([[schema_event("drop", collection="lines")], [gap()]])
    history(dice, Appending(log), commits=30)
    pipeline.run(max_events_per_batch=batch_events_max, on_gap="record")
    log.append([[schema_event("rename", to={"db": "db", "coll": "lines"})]])
    history(dice, Appending(log), commits=10)
    pipeline.run(max_events_per_batch=batch_events_max, on_gap="record")
    found = pipeline.verify()
    assert found.sound, found.tables
    assert {one.collection for one in found.tables} == {"orders", "lines"}
    assert sum(one.rows for one in found.tables) > 5


def test_rows_that_a_rename_brought_to_wider_columns_are_what_the_log_says(
    pipeline: Pipeline, log: BlockLog
) -> None:
    wide = '{"_id":9,"d":0.5,"l":{"$numberLong":"1099511627776"},"m":{"$numberDecimal":"0.25"}}'
    log.append([[change(9, "insert", text=wide, collection="lines")]])
    log.append([[change(1, "insert", text='{"_id":1,"d":1,"l":2,"m":3}')]])
    log.append([[schema_event("rename", to={"db": "db", "coll": "lines"})]])
    pipeline.run()
    found = pipeline.verify()
    assert found.sound, found.tables
    assert sum(one.rows for one in found.tables) == 1


class Appending(Entries):
    """Commits that go to a log."""

    def __init__(self, log: BlockLog) -> None:
        super().__init__()
        self._log = log

    def commit(self, *events: Any) -> None:
        self._log.append([events])


def test_the_least_change_of_a_value_is_told(
    spark: "SparkSession", endpoint: str, log: BlockLog, postgres: PostgresServer
) -> None:
    replica = PostgresReplica(postgres.create(database()))
    pipeline = Pipeline(spark, endpoint, replica)
    altered = {
        "zero": ("-0.0", "0.0"),
        "tenth": ("0.1", "0.10000000000000002"),
        "fine": ('{"$numberDecimal":"1.1"}', "1.100000000000000001"),
        "blank": ('"a"', "'a '"),
        "none": ('"a"', "NULL"),
        "given": ('null,"x":1', "'a'"),
        "never": ('{"$date":"2026-01-02T03:04:05Z"}', "'infinity'"),
        "later": ('{"$date":"2026-01-02T03:04:05Z"}', "'2026-01-02T03:04:05.000001Z'"),
        "bytes": ('{"$binary":{"base64":"AA==","subType":"00"}}', r"'\x0000'"),
        "truth": ("true", "false"),
        "json": ('{"a":1}', "'{\"a\": 1}'"),
        "nan": ('{"$numberDouble":"NaN"}', "1"),
    }
    texts = [f'{{"_id":1,"first":"","{name}":{value}}}' for name, (value, _) in altered.items()]
    log.append(
        [change(1, "insert", text=text, collection=name)]
        for name, text in zip(altered, texts, strict=True)
    )
    log.append([[change(2, "insert", text='{"_id":2,"given":"x"}', collection="given")]])
    pipeline.run(*altered)
    assert pipeline.verify(*altered).sound
    for name, (_, value) in altered.items():
        replica.ask(f"UPDATE {name} SET {name} = {value} WHERE _id = 1")
    found = pipeline.verify(*altered, repair=True)
    assert [one.collection for one in found.tables if one.differences == one.repaired == 1] == (
        sorted(altered)
    )
    assert {one.listed[0].columns for one in found.tables} == {(name,) for name in altered}
    assert pipeline.verify(*altered).sound
