"""What MongoDB alone promises: the same BSON, and transactions of any size or a clear word."""

import json
from collections.abc import Iterator
from typing import Any

import bson
import pytest
from bson import (
    Binary,
    Code,
    DatetimeMS,
    Decimal128,
    Int64,
    MaxKey,
    MinKey,
    ObjectId,
    Regex,
    Timestamp,
)
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import Raw, structs
from pymongo.errors import OperationFailure

from penstock.errors import ConfigError, DestinationError
from penstock.sources.mongodb.documents import BsonEncoder, decode
from penstock.spark.config import ReplicatePipelineConfig
from penstock.spark.replica.documents import (
    CODEC,
    DOCUMENT,
    ID,
    REASON,
    InexactBsonError,
    decode_bson,
    exact,
)
from penstock.spark.replica.mongodb import MongoDestination
from penstock.spark.table.kinds import Kind
from tests.spark.replica.support import Driver, MongoReplica, database
from tests.spark.tables import Entries, change, put, schema_event
from tests_support.servers import MongoReplicaSet

_names = st.text(st.characters(codec="utf-8", exclude_characters="\0$."), min_size=1, max_size=5)
_plain = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 31), (1 << 31) - 1),
    st.integers(-(1 << 63), (1 << 63) - 1).map(Int64),
    st.floats(allow_nan=False),
    st.text(st.characters(codec="utf-8"), max_size=8),
    st.binary(max_size=8),
    st.binary(max_size=8).map(lambda data: Binary(data, 5)),
    st.binary(min_size=12, max_size=12).map(ObjectId),
    st.integers(-(1 << 50), 1 << 50).map(DatetimeMS),
    st.sampled_from([Decimal128("1.10"), Decimal128("NaN"), Decimal128("-0E+3"), Timestamp(5, 6)]),
    st.sampled_from([Regex("a.b", "im"), Code("x"), Code("x", {"a": 1}), MinKey(), MaxKey()]),
)
_values = st.recursive(
    _plain,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_names, inner, max_size=3),
    max_leaves=8,
)
_keys = st.one_of(
    st.integers(-(1 << 31), (1 << 31) - 1),
    st.integers(-(1 << 63), (1 << 63) - 1).map(Int64),
    st.text(st.characters(codec="utf-8"), max_size=8),
    st.binary(min_size=12, max_size=12).map(ObjectId),
    st.dictionaries(_names, st.integers(0, 9), min_size=1, max_size=2),
)


@given(key=_keys, fields=st.dictionaries(_names.filter(lambda name: name != "_id"), _values))
def test_a_document_of_mongodb_is_the_same_bson_again(key: Any, fields: dict[str, Any]) -> None:
    document = {"_id": key, **fields}
    encode = BsonEncoder().encode
    raw, own = bson.encode(document), bson.encode({"_id": key})
    cells = decode_bson(
        [bytes(encode(decode(raw), raw)).decode()],
        [bytes(encode(decode(own), own)).decode()],
    )
    assert cells[REASON][Kind.STRING].to_pylist() == [None]
    assert cells[DOCUMENT][Kind.BINARY].to_pylist() == [raw]


@pytest.mark.parametrize("nan", ['{"$numberDouble":"NaN"}', '{"$numberDecimal":"NaN"}'])
def test_a_key_that_is_no_number_or_has_one_within_is_its_documents(nan: str) -> None:
    """NaN is not even equal to itself."""
    for own in (nan, f'{{"a":{nan},"b":[{nan}]}}'):
        cells = decode_bson([f'{{"_id":{own},"n":{nan}}}'], [f'{{"_id":{own}}}'])
        assert cells[REASON][Kind.STRING].to_pylist() == [None]
        documents: list[Any] = cells[DOCUMENT][Kind.BINARY].to_pylist()
        keys: list[Any] = cells[ID][Kind.BINARY].to_pylist()
        assert documents[0][4:].startswith(keys[0][4:-1])  # all but its length, and its end
    cells = decode_bson([f'{{"_id":{{"a":{nan}}}}}'], [f'{{"_id":{{"b":{nan}}}}}'])
    assert cells[REASON][Kind.STRING].to_pylist() == ["it has a field _id that is not its key"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"a":{"$symbol":"x"}}', "symbol"),
        ('{"a":{"$numberDecimal":"%s"}}' % ("1" * 40), "34 digits"),
        ('{"a":{"$date":"2026-01-01T00:00:00.000001Z"}}', "two milliseconds"),
        ('{"a":18446744073709551615}', "64 bits"),
        ('{"_id":7}', "not its key"),
        ('{"$a":7}', "begins with"),
        ('{"a":{"$timestamp":{"t":0,"i":0}}}', "a timestamp is 0"),
    ],
)
def test_what_bson_does_not_hold_exactly_has_a_reason(text: str, reason: str) -> None:
    cells = decode_bson([text], ['{"id":5}'])
    assert cells[DOCUMENT][Kind.BINARY].to_pylist() == [None]
    (said,) = cells[REASON][Kind.STRING].to_pylist()
    assert said is not None
    assert reason in str(said)


_LARGE = "18446744073709551615"
_numerals = st.lists(
    st.sampled_from([*',:[]{}"\\- a', _LARGE, "9400111899223197428490"]), max_size=9
).map("".join)


@given(text=_numerals)
@example(text="a,9400111899223197428490,b")
@example(text="[9400111899223197428490]")
def test_digits_in_a_text_are_no_integer(text: str) -> None:
    """However many they are, and whatever stands around them; in a key too."""
    document = {"_id": text, "t": text, "deep": [text, {"a": text}]}
    cells = decode_bson([compact(document)], [compact({"_id": text})])
    assert cells[REASON][Kind.STRING].to_pylist() == [None]
    (made,) = cells[DOCUMENT][Kind.BINARY].to_pylist()
    assert bson.decode(made) == document  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text",
    [
        f'{{"n":{_LARGE}}}',
        f"[{_LARGE}]",
        f'{{"a":[5000000000000000000,{_LARGE}]}}',
        f'{{"t":"a,{_LARGE},b","deep":{{"n":{_LARGE}}}}}',
        '{"n":9223372036854775808}',
        '{"n":-9223372036854775809}',
    ],
)
def test_an_integer_beyond_64_bits_is_refused_wherever_it_is(text: str) -> None:
    with pytest.raises(InexactBsonError, match="64 bits"):
        exact(text)
    assert exact('{"a":[9223372036854775807,-9223372036854775808]}')


def compact(document: Any) -> str:
    return json.dumps(document, separators=(",", ":"))


def test_a_row_of_another_source_has_its_key_as_its_id() -> None:
    cells = decode_bson(['{"a":1,"b":"x","c":2}', '{"a":1}'], ['{"a":1,"b":"x"}', '{"a":1}'])
    made = [bson.decode(raw) for raw in cells[DOCUMENT][Kind.BINARY].to_pylist()]  # type: ignore[arg-type]
    assert made == [
        {"_id": {"a": 1, "b": "x"}, "a": 1, "b": "x", "c": 2},
        {"_id": 1, "a": 1},
    ]


@pytest.mark.parametrize("millis", [-999_999_999_999_999, 300_000_000_000_000])
def test_an_instant_that_python_has_none_for_is_the_same_again(
    mongo: MongoReplicaSet, mongo_database: str, millis: int
) -> None:
    """In a field, in a key, and in a collection that is renamed."""
    instant = f'{{"$date":{{"$numberLong":"{millis}"}}}}'
    field = change(1, "insert", text=f'{{"_id":1,"at":{instant}}}')
    key = change(2, "insert", text=f'{{"_id":{instant},"n":1}}')
    entries = Entries()
    entries.commit(field, structs.replace(key, key=Raw(f'{{"_id":{instant}}}'.encode())))
    entries.commit(schema_event("rename", to={"db": "db", "coll": "lines"}))
    replica = MongoReplica(mongo.uri, mongo_database)
    driver = Driver(entries, replica.config())
    driver.start()
    try:
        driver.apply()
        lines: Any = replica.database["lines"].with_options(codec_options=CODEC)
        assert sorted(lines.find(), key=str) == [
            {"_id": 1, "at": DatetimeMS(millis)},
            {"_id": DatetimeMS(millis), "n": 1},
        ]
    finally:
        driver.close()
        replica.close()


@pytest.fixture
def small(start_mongo: Any) -> Iterator[MongoReplica]:
    server: MongoReplicaSet = start_mongo()
    replica = MongoReplica(server.uri, database())
    yield replica
    replica.close()


def end_transactions_after(replica: MongoReplica, seconds: int) -> None:
    said = {"setParameter": 1, "transactionLifetimeLimitSeconds": seconds}
    replica.database.client.admin.command(said)


@pytest.mark.slow
def test_a_transaction_beyond_16_megabytes_is_whole_and_one_that_lasts_too_long_is_named(
    small: MongoReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = Entries()
    entries.commit(*(put(key, text="x" * 400_000) for key in range(60)))
    driver = Driver(entries, small.config(retry_attempts=0))
    driver.start()
    try:
        driver.apply()
        assert len(small.rows("orders")) == 60
        # Not before: a busy machine may take as long for so many bytes.
        end_transactions_after(small, 2)
        entries.commit(*(change(key, "delete") for key in range(60)))
        destination: Any = driver.destination
        reject = destination._reject

        def after_its_time(*given: Any) -> None:
            while True:  # until the server has ended the transaction
                destination._stored(given[-1])

        monkeypatch.setattr(destination, "_reject", after_its_time)
        with pytest.raises(DestinationError, match="transactionLifetimeLimitSeconds"):
            driver.apply(60)
        assert len(small.rows("orders")) == 60
        monkeypatch.setattr(destination, "_reject", reject)
        end_transactions_after(small, 60)
        driver.apply(60)
        assert small.rows("orders") == {}
    finally:
        driver.close()


def test_a_change_that_is_longer_than_a_document_is_rejected_and_its_text_stays_in_the_log(
    mongo: MongoReplicaSet, mongo_database: str
) -> None:
    replica = MongoReplica(mongo.uri, mongo_database)
    entries = Entries()
    entries.commit(put(1, n=1), put(2, text="x" * (17 << 20)))
    driver = Driver(entries, replica.config())
    try:
        driver.start()
        assert driver.apply().rejected == 1
        assert set(replica.rows("orders")) == {1}
        (reject,) = replica.rejects()
        assert reject["full_document"] is None
        assert "larger than 16 MiB" in reject["reason"]
        assert "in the log" in reject["reason"]
    finally:
        driver.close()
        replica.close()


def test_collections_whose_names_are_too_long_here_have_collections_of_their_own(
    mongo: MongoReplicaSet, mongo_database: str
) -> None:
    """They may come from a database with a shorter name; names that the server takes stay."""
    replica, entries = MongoReplica(mongo.uri, mongo_database), Entries()
    room = 255 - len(f"{mongo_database}.")
    fits = ["a" * room, "\u0436" * (room // 2)]
    names = [*fits, *(f"{name}{end}" for name in fits for end in ("bb", "cc"))]
    for at, name in enumerate(names):
        entries.commit(change(at, "insert", {"_id": at}, collection=name))
    renamed = "x" * 250
    to = {"db": "db", "coll": renamed}
    entries.commit(schema_event("rename", collection=names[-1], to=to))
    names[-1] = renamed
    driver = Driver(entries, replica.config())
    try:
        driver.start()
        assert driver.apply().rejected == 0
        tables = [driver.config.table_of("db", name) for name in names]
        assert tables[: len(fits)] == fits
        assert [list(replica.rows(table)) for table in tables] == [[at] for at in range(len(names))]
        kept = replica.database["_penstock_tables"].find()
        told = {row["_id"]: row["collection"] for row in kept}
        assert [told[table] for table in tables] == names
    finally:
        driver.close()
        replica.close()


def test_an_uri_without_a_database_is_refused(mongo: MongoReplicaSet) -> None:
    replica = MongoReplica(mongo.uri, "nothing")
    config = replica.config().model_copy(update={"uri": replica.config(uri=mongo.uri).uri})
    driver = Driver(Entries(), config)
    try:
        with pytest.raises(ConfigError, match="names a database"):
            driver.start()
    finally:
        driver.close()
        replica.close()


def test_an_unpassable_error_stops_it_without_quoting_a_document() -> None:
    destination = MongoDestination(
        "p",
        ReplicatePipelineConfig.model_validate(
            {"to": "replicate", "source": "shop", "uri": "mongodb://u:secret@h/d"}
        ),
    )
    error = OperationFailure("document {name: 'Ada'}", 121, {"codeName": "DocumentValidation"})
    said = str(destination.judge(error))
    assert "DocumentValidation" in said
    assert "Ada" not in said
    assert "secret" not in said
