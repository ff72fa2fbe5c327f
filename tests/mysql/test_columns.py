"""Columns that are left out, masked, hashed or cut: in every image, and nowhere else."""

import hmac
import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigError, UndecodableError
from penstock.event import ChangeEvent
from penstock.sources.mysql import MysqlSourceConfig
from penstock.sources.mysql.columns import ColumnRules, ColumnScope, ForbiddenRuleError
from penstock.sources.mysql.doctor import doctor
from tests.mysql.support import Story, caught_up, config_of, run, source_of
from tests.telling import follow
from tests_support.servers import MariaDbServer, MySqlServer

SALT = "a salt that nobody else has"
TABLE = ("shop", "customers")
NAMES = ("id", "email", "phone", "note", "password")


def hashed(text: str) -> str:
    """What anybody who has the salt finds."""
    return hmac.new(SALT.encode(), text.encode(), "sha256").hexdigest()


def rules_of(**written: Any) -> ColumnRules:
    columns = {"hash_salt": SALT, **written}
    return MysqlSourceConfig.model_validate({"user": "u", "columns": columns}).columns.rules


EVERYTHING: dict[str, Any] = {
    "exclude": ["*.*.password"],
    "mask": {"*.*.phone": "***"},
    "hash": ["*.*.email"],
    "truncate": {"*.*.note": 3},
}


def images(event: ChangeEvent) -> list[dict[str, Any]]:
    found = (event.full_document_before_change, event.full_document)
    return [msgspec.json.decode(one) for one in found if one is not None]


def everything(story: Story) -> str:
    """All that a log would hold."""
    said = msgspec.json.encode(story.events).decode()
    return f"{said}{story.position}"


async def test_the_rules_are_of_both_images_of_every_change(
    mariadb: MariaDbServer, mariadb_database: str
) -> None:
    columns = {**EVERYTHING, "hash_salt": SALT}
    source = source_of(mariadb, include=[f"{mariadb_database}.*"], columns=columns)
    story = await follow(source, Story(), lambda _: True)
    with mariadb.connect(database=mariadb_database) as db:
        run(
            db,
            "CREATE TABLE c (id INT PRIMARY KEY, email VARCHAR(99), phone TEXT, note TEXT, "
            "password VARCHAR(20) CHARACTER SET gbk)",
            "INSERT INTO c VALUES (1, 'a@b.c', '+420 555', 'žluť', 'hunter2'), "
            "(2, NULL, NULL, NULL, NULL)",
            "UPDATE c SET email = 'x@y.z', note = 'ab', password = 'hunter3' WHERE id = 1",
            "DELETE FROM c",
        )
    await caught_up(mariadb, source, story)
    one = {"id": 1, "email": hashed("a@b.c"), "phone": "***", "note": "žlu"}
    two = {"id": 1, "email": hashed("x@y.z"), "phone": "***", "note": "ab"}
    none = {"id": 2, "email": None, "phone": None, "note": None}
    assert [images(event) for event in story.changes] == [[one], [none], [one, two], [two], [none]]
    said = everything(story)
    assert hashed("a@b.c") in said
    for secret in (SALT, "a@b.c", "420 555", "hunter", "žluť"):
        assert secret not in said


MASKED_UPDATES: list[tuple[str, list[str] | None]] = [
    ("phone = '+420 556'", ["phone"]),
    ("note = 'sample', phone = '+420 556'", ["note"]),
    ("note = 'other', email = 'b', password = 'hunter3'", None),
    ("phone = NULL, doc = NULL", None),
    ("phone = '+420 555', doc = '[1]'", None),
    ("doc = '[true]', email = 'c', phone = '+420 557'", ["phone", "doc"]),
    ("id = 2, phone = '+420 558'", None),
]
"""What is set, and the columns of which only that they changed is captured."""


def masked(event: ChangeEvent) -> Any:
    assert event.origin is not None
    return msgspec.json.decode(event.origin).get("masked")


async def test_that_a_masked_value_changed_is_captured(
    mariadb: MariaDbServer, mariadb_database: str
) -> None:
    masks = {"*.*.phone": "***", "*.*.doc": "{}"}
    columns = {**EVERYTHING, "mask": masks, "hash_salt": SALT}
    source = source_of(mariadb, include=[f"{mariadb_database}.*"], columns=columns)
    story = await follow(source, Story(), lambda _: True)
    with mariadb.connect(database=mariadb_database) as db:
        run(
            db,
            "CREATE TABLE c (id INT PRIMARY KEY, email VARCHAR(99), phone TEXT, note TEXT, "
            "password VARCHAR(20), doc JSON)",
            "INSERT INTO c VALUES (1, 'a', '+420 555', 'same', 'hunter2', '[1, 2]')",
            *(f"UPDATE c SET {what}" for what, _ in MASKED_UPDATES),
        )
    await caught_up(mariadb, source, story)
    (_, *updates, deleted, inserted) = story.changes
    assert [masked(event) for event in updates] == [names for _, names in MASKED_UPDATES[:-1]]
    before, after = images(updates[0])
    assert before == after
    assert [masked(event) for event in (deleted, inserted)] == [None, None]
    assert not any(secret in everything(story) for secret in ("420", "sample", "hunter", "[true]"))


async def test_that_masked_json_changed_is_captured_where_only_the_change_is_logged(
    mysql: MySqlServer, mysql_database: str
) -> None:
    columns = {"mask": {"*.*.doc": "{}"}}
    source = source_of(mysql, include=[f"{mysql_database}.*"], columns=columns)
    story = await follow(source, Story(), lambda _: True)
    with mysql.connect(database=mysql_database) as db:
        run(
            db,
            "CREATE TABLE c (id INT PRIMARY KEY, doc JSON)",
            """INSERT INTO c VALUES (1, '{"a": 1, "b": "a long text that makes it worth it"}')""",
            "SET binlog_row_value_options = 'PARTIAL_JSON'",
            "UPDATE c SET doc = JSON_SET(doc, '$.a', 2)",
        )
        events = run(db, "SHOW BINLOG EVENTS IN '" + run(db, "SHOW BINARY LOGS")[-1][0] + "'")
    assert {row[2] for row in events} >= {"Update_rows_partial"}
    await caught_up(mysql, source, story)
    assert [masked(event) for event in story.changes] == [None, ["doc"]]


async def test_that_a_masked_value_changed_is_captured_of_rows_that_lack_columns(
    mariadb: MariaDbServer, mariadb_database: str
) -> None:
    """An update that sends a column anyway, changed or not, says so already."""
    options: dict[str, Any] = {"on_partial_rows": "decode", "columns": {"mask": {"*.*.phone": "*"}}}
    source = source_of(mariadb, include=[f"{mariadb_database}.*"], **options)
    story = await follow(source, Story(), lambda _: True)
    with mariadb.connect(database=mariadb_database) as db:
        run(
            db,
            "CREATE TABLE c (id INT PRIMARY KEY, phone TEXT, n VARCHAR(9), b BLOB)",
            "INSERT INTO c VALUES (1, '555', 'x', 'b')",
            "SET SESSION binlog_row_image = 'MINIMAL'",
            "UPDATE c SET phone = '556'",
            "SET SESSION binlog_row_image = 'FULL'",
            "UPDATE c SET phone = '557'",
        )
    await caught_up(mariadb, source, story)
    assert [masked(event) for event in story.changes] == [None, None, ["phone"]]
    update = story.changes[1].update_description
    assert update is not None
    assert msgspec.json.decode(update)["updatedFields"] == {"phone": "*"}


async def test_a_row_is_known_by_the_hash_of_its_key(
    mariadb: MariaDbServer, mariadb_database: str
) -> None:
    """A13: as it is by its key."""
    columns = {"hash": ["*.*.email"], "hash_salt": SALT}
    source = source_of(mariadb, include=[f"{mariadb_database}.*"], columns=columns)
    story = await follow(source, Story(), lambda _: True)
    with mariadb.connect(database=mariadb_database) as db:
        run(
            db,
            "CREATE TABLE c (email VARCHAR(99) PRIMARY KEY, n INT)",
            "INSERT INTO c VALUES ('a', 1), ('b', 2)",
            "UPDATE c SET n = 3 WHERE email = 'a'",
            "UPDATE c SET email = 'c' WHERE email = 'b'",
        )
    await caught_up(mariadb, source, story)
    assert [(event.operation.value, event.document_id) for event in story.changes] == [
        ("insert", hashed("a")),
        ("insert", hashed("b")),
        ("replace", hashed("a")),
        ("delete", hashed("b")),
        ("insert", hashed("c")),
    ]
    for event in story.changes:
        assert json.loads(bytes(event.key)) == {"email": event.document_id}


@pytest.mark.parametrize(
    "written",
    [{"exclude": ["*.*.id"]}, {"mask": {"*.*.id": "x"}}, {"truncate": {"*.*.id": 2}},
     {"include": ["*.*.email"]}],
)  # fmt: skip
async def test_a_column_of_a_key_is_only_ever_hashed(
    mariadb: MariaDbServer, mariadb_database: str, written: dict[str, Any]
) -> None:
    """Of a table that is there, before anything is captured; and of one that becomes so."""
    options: dict[str, Any] = {"include": [f"{mariadb_database}.*"], "columns": written}
    source = source_of(mariadb, **options)
    story = await follow(source, Story(), lambda _: True)
    create = "CREATE TABLE c (id VARCHAR(9) PRIMARY KEY)"
    with mariadb.connect(database=mariadb_database) as db:
        run(db, create, "INSERT INTO c VALUES ('x')", "DROP TABLE c")
        with pytest.raises(UndecodableError, match=r"column 'id' of .*\.c is of its key"):
            await follow(source, story, lambda _: False)
        run(db, create)
    with pytest.raises(ConfigError, match=r"different rows would become one"):
        await follow(source, Story(), lambda _: True)
    checks = await doctor("db", config_of(mariadb, **options))
    assert "is of its key" in next(check.detail for check in checks if check.name == "columns")


async def test_a_number_is_not_cut(mariadb: MariaDbServer, mariadb_database: str) -> None:
    """Invariant 10."""
    columns = {"truncate": {"*.*.n": 1}}
    source = source_of(mariadb, include=[f"{mariadb_database}.*"], columns=columns)
    story = await follow(source, Story(), lambda _: True)
    with mariadb.connect(database=mariadb_database) as db:
        run(db, "CREATE TABLE c (id INT PRIMARY KEY, n INT)", "INSERT INTO c VALUES (1, NULL)")
        run(db, "INSERT INTO c VALUES (2, 12345)")
    with pytest.raises(UndecodableError, match="neither text nor bytes"):
        await follow(source, story, lambda _: False)
    assert [images(event) for event in story.changes] == [[{"id": 1, "n": None}]]


async def test_other_rules_are_said_and_another_key_is_a_gap(
    start_mariadb: Callable[..., MariaDbServer],
) -> None:
    """What was told under the old keys is ended by nobody."""
    server = start_mariadb()
    with server.connect() as db:
        run(db, "CREATE DATABASE d", "CREATE TABLE d.a (id INT PRIMARY KEY, n INT)")
        run(db, "CREATE TABLE d.b (id INT PRIMARY KEY, n INT)", "INSERT INTO d.b VALUES (1, 1)")
    masked = {"mask": {"d.a.n": "x"}, "hash": ["d.b.id"], "hash_salt": SALT}
    story = await caught_up(server, source_of(server, start="beginning", columns=masked))
    before = list(story.said)
    await caught_up(server, source_of(server, columns=masked), story)
    assert story.said == before
    other = {**masked, "hash_salt": f"{SALT}!"}
    await caught_up(server, source_of(server, columns=other), story)
    assert story.said[len(before) :] == [("scope_changed", ""), ("gap", "b")]
    await caught_up(server, source_of(server, columns={"mask": {"d.a.n": "y"}}), story)
    assert story.said[len(before) + 2 :] == [("scope_changed", ""), ("gap", "b")]
    await caught_up(server, source_of(server, columns={}), story)
    assert story.said[len(before) + 4 :] == [("scope_changed", "")]
    assert SALT not in everything(story)


def test_what_is_computed_is_told_where_all_that_it_is_computed_of_is() -> None:
    rules = rules_of(exclude=["*.*.a", "*.*.a`b"], mask={"*.*.own": "***"})
    columns = ["id", "a", "a`b", "of_a", "of_ab", "of_of", "of_id", "aa", "own", "of_word"]
    computed = {
        "of_a": "upper(`A`)",
        "of_ab": "upper(`a``b`)",
        "of_of": "length(of_a)",
        "of_id": "`id` + 1",
        "aa": "`id` * `aa_` + $a",
        "own": "`a`",
        "of_word": "cast(`id` as a)",
    }
    found = rules.of(TABLE, columns, ["id"], computed)
    assert found is not None
    assert found.left_out == {"a", "a`b", "of_a", "of_ab", "of_of"}
    with pytest.raises(
        ForbiddenRuleError, match=r"'of_a' .* is computed of 'a', which is not told"
    ):
        rules.of(TABLE, columns, ["of_a"], computed)
    assert rules_of().of(TABLE, columns, ["id"], computed) is None


def test_the_rule_that_tells_least_wins() -> None:
    both = {"mask": {"*.*.note": "x"}, "hash": ["*.*.*e"], "truncate": {"*.*.*": 1}}
    rules = rules_of(**both, include=["*.*.*"]).of(TABLE, NAMES, ())
    assert rules is not None
    told = rules.apply(dict.fromkeys(NAMES, "abc"))
    assert told == {"id": "a", "email": "a", "phone": hashed("abc"), "note": "x", "password": "a"}
    rules = rules_of(**both, include=["/.*/"], exclude=["*.*.note"]).of(TABLE, NAMES, ())
    assert rules is not None
    assert rules.left_out == {"note"}


def test_bytes_are_cut_and_what_is_no_text_is_hashed_as_the_log_would_have_it() -> None:
    rules = rules_of(truncate={"*.*.note": 2}, hash=["*.*.id"]).of(TABLE, NAMES, ("id",))
    assert rules is not None
    told = rules.apply({"id": 5, "note": {"$binary": {"base64": "AAECAw==", "subType": "00"}}})
    assert told == {
        "id": hashed("5"),
        "note": {"$binary": {"base64": "AAE=", "subType": "00"}},
    }


def test_a_table_that_no_rule_is_of_is_read_as_it_is() -> None:
    assert ColumnRules(ColumnScope()).of(TABLE, NAMES, ("id",)) is None
    assert rules_of(**EVERYTHING).of(("shop", "orders"), ("id", "n"), ("id",)) is None
    with pytest.raises(ForbiddenRuleError, match=r"'email' of shop.customers is of its key"):
        rules_of(mask={"/.*l/": ""}).of(TABLE, NAMES, ("email",))


values = st.none() | st.text() | st.integers() | st.floats(allow_nan=False)


@given(st.dictionaries(st.sampled_from(NAMES), values))
def test_rules_take_any_part_of_a_row_and_null_stays_null(row: dict[str, Any]) -> None:
    rules = rules_of(exclude=["*.*.password"], mask={"*.*.phone": "***"}, hash=["*.*.*"])
    table = rules.of(TABLE, NAMES, ("id",))
    assert table is not None
    told = table.apply(row)
    assert list(told) == [name for name in row if name != "password"]
    assert {name for name in told if told[name] is None} == {
        name for name in told if row[name] is None
    }
    assert table.apply(dict(row)) == told, "the same each time"
