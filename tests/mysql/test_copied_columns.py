"""A copy tells rows by the rules of columns that the stream tells them by, and from nowhere."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from penstock.checks import Level
from penstock.errors import ConfigError, RequestError, UndecodableError
from penstock.event import ChangeEvent, SchemaEvent, SystemEvent
from penstock.sources.mysql.config import ColumnsConfig
from penstock.sources.mysql.doctor import doctor
from penstock.sources.mysql.row_readers import UnreadableTableError
from penstock.sources.mysql.selecting import ColumnFacts, Definition, KeyPart, Selection
from tests.mysql.conftest import on
from tests.mysql.ranges import by_ranges
from tests.mysql.support import Story, config_of, run, source_of
from tests.telling import follow
from tests_support.servers import MySqlServer, SqlServer

SALT = "a salt of sixteen"
RULES: dict[str, Any] = {
    "exclude": ["*.*.password"],
    "mask": {"*.*.phone": "***"},
    "hash": ["*.*.mail", "*.*.n"],
    "hash_salt": SALT,
    "truncate": {"*.*.note": 3, "*.*.raw": 2},
}
MADE = (
    "CREATE TABLE a (mail VARCHAR(99) COLLATE utf8mb4_bin PRIMARY KEY, n DECIMAL(9, 2), "
    "phone TEXT, password TEXT, note TEXT, raw BLOB, v INT AS (n + 1) VIRTUAL)"
)
MANY = 30_000
ALL = (
    "(WITH RECURSIVE r (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < "
    f"{MANY}) SELECT n FROM r) x"
)
ROWS = "('Anna@x', 1.50, '1', 'p', 'žluť', 'abc'), ('bert@x', NULL, NULL, NULL, NULL, NULL)"


def completed(story: Story) -> bool:
    return ("snapshot_completed", "") in story.said


def told(events: list[ChangeEvent]) -> dict[bytes, bytes]:
    """The rows, by their keys."""
    return {bytes(event.key): bytes(event.full_document or b"") for event in events}


async def test_a_copied_row_is_what_the_stream_tells_of_it(
    server: SqlServer, database: str
) -> None:
    """Invariant 9, A26: masked, hashed, cut and left out alike; a hashed key is the same key."""
    source = source_of(server, include=[f"{database}.*"], columns=RULES, start="snapshot")
    with server.connect(database=database) as db:
        run(db, MADE, f"INSERT INTO a (mail, n, phone, password, note, raw) VALUES {ROWS}")
        story = await follow(source, Story(), completed)
        copied = list(story.changes)
        run(db, f"REPLACE INTO a (mail, n, phone, password, note, raw) VALUES {ROWS}")
        run(db, "UPDATE a SET password = 'q'")
        await follow(source, story, lambda story: len(story.changes) == 4)
    streamed = story.changes[2:]
    assert [event.snapshot for event in story.changes] == [True, True, False, False]
    assert told(copied) == told(streamed)
    assert told(await by_ranges(source, str(story.position), rows=1)) == told(streamed)
    assert {event.document_id for event in copied} == {event.document_id for event in streamed}
    assert b"Anna" not in b"".join(told(copied))
    # Where a copied row came from is no place of the binlog.
    assert [event.origin is None for event in story.changes] == [True, True, False, False]


async def test_what_is_computed_of_a_hidden_column_is_left_out(
    server: SqlServer, database: str
) -> None:
    """Stored ones are in the binlog as any other column, and so is one that is computed of them; of
    an ENUM that is masked, the shape does not say what it may be."""
    rules = {
        "exclude": ["*.*.password", "*.*.twice"],
        "mask": {"*.*.Phone": "***", "*.*.mood": "?"},
        "truncate": {"*.*.short": 2},
    }
    options: dict[str, Any] = {"include": [f"{database}.*"], "columns": rules}
    made = (
        "CREATE TABLE a (id INT PRIMARY KEY, `Phone` VARCHAR(20), password VARCHAR(20), "
        "digits VARCHAR(9) AS (RIGHT(phone, 4)) STORED, "
        "v VARCHAR(40) AS (CONCAT(id, ' ', `password`)) VIRTUAL, "
        "of_v INT AS (CHAR_LENGTH(v)) STORED, double_id INT AS (id * 2) STORED, "
        "twice INT AS (id * 2) VIRTUAL, of_twice INT AS (twice + 1) STORED, "
        "nick VARCHAR(9) DEFAULT (RIGHT(phone, 4)), "
        "short VARCHAR(20) AS (password) STORED, mood ENUM('glad', 'sad'), kind ENUM('a', 'b'))"
    )
    values = (
        "INSERT INTO a (id, Phone, password, mood, kind) VALUES ({}, '555-1234', 'pw', 'sad', 'b')"
    )
    source = source_of(server, start="snapshot", **options)
    with server.connect(database=database) as db:
        run(db, made, values.format(1))
        left_out = [
            f"{database}.a.{column}" for column in ("digits", "v", "of_v", "of_twice", "nick")
        ]
        checks = {one.name: one for one in await doctor("db", config_of(server, **options))}
        assert checks["computed columns"].level is Level.WARNING
        assert all(one in checks["computed columns"].detail for one in left_out)
        assert "double_id" not in checks["computed columns"].detail
        with capture_logs() as logs:
            story = await follow(source, Story(), completed)
        assert [one["columns"] for one in logs if "columns" in one] == [left_out]
        run(db, "ALTER TABLE a ADD also VARCHAR(30) AS (CONCAT(Phone, 'x')) STORED")
        run(db, values.format(2))
        await follow(source, story, lambda story: len(story.changes) == 2)
        # Rows of a table that is another by the time that they are read.
        run(
            db,
            values.format(3),
            "ALTER TABLE a DROP also, DROP mood",
            "RENAME TABLE a TO b",
            "INSERT INTO b (id, Phone, password, kind) VALUES (4, '555-1234', 'pw', 'b')",
            "DROP TABLE b",
        )
        await follow(source, story, lambda story: len(story.changes) == 4)
    told = {"Phone": "***", "double_id": 2, "short": "pw", "mood": "?", "kind": "b"}
    assert [msgspec.json.decode(event.full_document or b"") for event in story.changes] == [
        {"id": 1, **told},
        {"id": 2, **told, "double_id": 4},
        {"id": 3, **told, "double_id": 6},
        {
            name: value
            for name, value in {"id": 4, **told, "double_id": 8}.items()
            if name != "mood"
        },
    ]
    said = msgspec.json.encode(story.events).decode()
    assert "glad" not in said
    shapes = [
        msgspec.json.decode(one.description)
        for one in story.events
        if isinstance(one, SchemaEvent) and b'"columns"' in bytes(one.description)
    ]
    columns = {one["name"]: one for shape in shapes for one in shape["columns"]}
    assert columns["kind"]["values"] == ["a", "b"]
    assert "values" not in columns["mood"]


@on("mysql", "files")
async def test_a_key_that_is_computed_of_a_hidden_column_is_refused(
    server: SqlServer, database: str
) -> None:
    options: dict[str, Any] = {"include": [f"{database}.*"], "columns": {"exclude": ["*.*.name"]}}
    with server.connect(database=database) as db:
        run(
            db,
            "CREATE TABLE a (name VARCHAR(9), code VARCHAR(9) AS (UPPER(name)) STORED NOT NULL, "
            "UNIQUE (code))",
        )
        with pytest.raises(ConfigError, match=r"'code' of .*\.a is of its key, and is computed of"):
            await follow(source_of(server, **options), Story(), lambda _: True)
    hashed = {"exclude": ["*.*.name"], "hash": ["*.*.code"], "hash_salt": SALT}
    await follow(source_of(server, **{**options, "columns": hashed}), Story(), lambda _: True)


async def test_rules_that_make_other_keys_have_the_rows_copied_again(
    server: SqlServer, database: str
) -> None:
    """Invariant 4: it is a gap, and where tables are copied the copy closes it."""
    options: dict[str, Any] = {"include": [f"{database}.*"], "start": "snapshot"}
    with server.connect(database=database) as db:
        run(db, MADE, f"INSERT INTO a (mail, n, phone, password, note, raw) VALUES {ROWS}")
    story = await follow(source_of(server, **options), Story(), completed)
    again = Story(story.position)
    await follow(source_of(server, columns=RULES, **options), again, completed)
    assert again.said == [
        ("scope_changed", ""),
        ("gap", "a"),
        ("snapshot_started", ""),
        ("snapshot_completed", ""),
    ]
    (started,) = [one for one in again.events if isinstance(one, SystemEvent)][2:3]
    said = msgspec.json.decode(started.description)
    assert said["collections"] == [f"{database}.a"]
    assert len(again.changes) == 2
    assert not told(again.changes).keys() & told(story.changes).keys()


@on("mysql", "mariadb")
async def test_a_copied_value_may_be_longer_than_what_the_server_sends_to_functions(
    start: Callable[..., SqlServer], kind: str
) -> None:
    """They are NULL to it then: a text is asked for without one, and of JSON that is said."""
    server = start()
    with server.connect() as db:
        run(db, "CREATE DATABASE d", "CREATE TABLE d.a (id INT PRIMARY KEY, t LONGTEXT)")
        run(db, "INSERT INTO d.a VALUES (1, REPEAT('x', 400000))")
        if kind == "mysql":
            run(db, "CREATE TABLE d.j (id INT PRIMARY KEY, doc JSON)")
            run(db, f"SET SESSION cte_max_recursion_depth = {MANY}")
            run(db, f"INSERT INTO d.j SELECT 1, JSON_ARRAYAGG(CAST(n AS DECIMAL(9, 2))) FROM {ALL}")
        run(db, "SET GLOBAL max_allowed_packet = 262144")
    story = await follow(source_of(server, start="snapshot", include=["d.a"]), Story(), completed)
    (row,) = story.changes
    assert msgspec.json.decode(bytes(row.full_document or b""))["t"] == "x" * 400_000
    if kind == "mysql":
        source = source_of(server, start="snapshot", include=["d.j"])
        with pytest.raises(UndecodableError, match=r"d\.j .*'doc'.* max_allowed_packet. Raise"):
            await follow(source, Story(), completed)


def test_a_rule_that_a_copied_table_cannot_have_stops_before_its_rows() -> None:
    """Invariant 10."""
    column = ColumnFacts("mail", "int", "int(11)", None, None)
    key = (KeyPart("mail", partial=False),)
    table = Definition("d", "a", "InnoDB", (column,), "PRIMARY", key)
    rules = ColumnsConfig.model_validate({"mask": {"*.*.mail": "x"}}).rules
    with pytest.raises(UnreadableTableError, match="is of its key"):
        Selection(table, rules=rules)


async def test_a_copy_is_refused_in_words_where_nothing_says_what_a_snapshot_has(
    start_mysql: Callable[..., MySqlServer],
) -> None:
    """Invariant 9: a MySQL without GTIDs, and without a list of the commits that are under way."""
    server = start_mysql(options=["--gtid-mode=OFF", "--enforce-gtid-consistency=OFF"])
    for option in ("start", "on_position_lost"):
        source = source_of(server, include=["d.*"], **{option: "snapshot"})
        with pytest.raises(ConfigError, match="nothing else says which transactions"):
            await follow(source, Story(), lambda _: True)
        checks = await doctor("db", source.config)
        (check,) = [check for check in checks if check.name == "copies"]
        assert not check.ok
        assert "performance_schema = ON" in check.fix
    source = source_of(server, include=["d.*"])
    with pytest.raises(RequestError):
        await source.copy([], known=[])
    changes = source.changes(position=None)
    await anext(changes)
    with pytest.raises(RequestError, match="nothing else says which transactions"):
        await source.copy([], known=[])
    await changes.aclose()  # type: ignore[attr-defined]


@on("files")
async def test_a_server_that_lists_its_commits_no_more_stops_the_copy(
    start: Callable[..., SqlServer],
) -> None:
    """Invariant 9: and nothing of it is told."""
    server = start()
    with server.connect() as db:
        run(db, "CREATE DATABASE d", "CREATE TABLE d.a (id INT PRIMARY KEY)")
        source = source_of(server, include=["d.*"], start="snapshot")
        story = await follow(source, Story(), lambda story: bool(story.said))
        assert story.said == [("snapshot_started", "")]
        checks = await doctor("db", source.config)
        assert [check.ok for check in checks if check.name == "copies"] == [True]
        run(
            db,
            "UPDATE performance_schema.setup_instruments SET ENABLED = 'NO' "
            "WHERE NAME = 'wait/lock/metadata/sql/mdl'",
        )
        for again in (source, source_of(server, include=["d.*"])):
            with pytest.raises(ConfigError, match="metadata locks"):
                await follow(again, story, completed)
        assert story.said == [("snapshot_started", "")]
