"""Rows of a MySQL that lack columns, and rules of columns on what is MySQL's own."""

import json
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.errors import UndecodableError
from penstock.event import Commit
from penstock.log.memory import MemoryLog
from tests.mysql.support import caught_up, run
from tests.mysql.test_images import FULL, MINIMAL, NOBLOB, folded, told
from tests.mysql.test_mysql_origins import NO_TEXTS, TEXTS
from tests.mysql.test_on_mysql import JSON_BEFORE, begun, documents, plain
from tests.seeds import seed_of
from tests.state.test_keeper import all_steps, current, keeping
from tests.telling import follow
from tests_support.servers import MySqlServer

DECODE: dict[str, Any] = {"on_partial_rows": "decode"}
PARTIAL_JSON = "SET SESSION binlog_row_value_options = 'PARTIAL_JSON'"


async def test_whoever_keeps_rows_has_those_of_the_server(
    mysql: MySqlServer, mysql_database: str, tmp_path: Path
) -> None:
    """S1: with what the server sets by itself: stored columns, ON UPDATE, triggers; compressed."""
    rng = random.Random(seed_of("mysql-own-images"))
    source, story = await begun(mysql, mysql_database, **DECODE)
    columns = "id, k, n, t, j, g, w, HEX(b)"
    with mysql.connect(database=mysql_database) as db:
        run(
            db,
            TEXTS,
            "CREATE TABLE a (k VARCHAR(9), id INT, n INT, t TEXT, j JSON, b BLOB, v INT AS (n + 1) "
            "VIRTUAL, g INT AS (n * 2) STORED, w INT, u TIMESTAMP(3) DEFAULT CURRENT_TIMESTAMP(3) "
            "ON UPDATE CURRENT_TIMESTAMP(3), PRIMARY KEY (id, k))",
            "CREATE TRIGGER x BEFORE UPDATE ON a FOR EACH ROW "
            "SET NEW.w = IF(NEW.n <=> OLD.n, OLD.w, COALESCE(OLD.w, 0) + 1)",
        )
        for key in range(5):
            run(db, f"INSERT INTO a (id, k, n) VALUES ({key}, 'k', 0)")
        for number in range(120):
            compressed = rng.choice(["ON", "OFF"])
            run(db, rng.choice([MINIMAL, NOBLOB, FULL]))
            run(db, f"SET SESSION binlog_transaction_compression = {compressed}")
            chosen = rng.sample(["n", "t", "b", "j"], rng.randrange(1, 4))
            sets = ", ".join(f"{one} = {rng.choice([repr(str(number)), 'NULL'])}" for one in chosen)
            where = f"id = {rng.randrange(5)}"
            if rng.random() < 0.15:
                run(db, f"DELETE FROM a WHERE {where}")
                whole = "id, k, n, t, j, b, w, u"
                run(
                    db, f"INSERT IGNORE INTO a ({whole}) VALUES (1, 'k', 1, 't', '1', '', 0, NOW())"
                )
            else:
                run(db, f"UPDATE {mysql_database}.a SET {sets} WHERE {where}")
        there = run(db, f"SELECT {columns} FROM a")
    await caught_up(mysql, source, story)
    assert {event.operation.value for event in story.changes} == {
        *("insert", "update", "replace", "delete")
    }
    expected = {f'{{"id":{row[0]},"k":"k"}}': shown(*row) for row in there}
    log = MemoryLog()
    await log.append([item for item in story.items if isinstance(item, Commit)])
    with keeping(log, tmp_path) as keeper:
        all_steps(keeper)
        (kept,) = current(keeper, collections=frozenset({"a"})).values()
    assert {key: values(row or {}) for key, row in kept.items()} == expected
    assert {key: values(row) for key, row in folded(story).items()} == expected


def shown(*row: Any) -> tuple[Any, ...]:
    """A row of the server, JSON read."""
    return (*row[:4], None if row[4] is None else json.loads(row[4]), *row[5:])


def values(row: dict[str, Any]) -> tuple[Any, ...]:
    import base64

    assert set(row) == {"k", "id", "n", "t", "j", "b", "g", "w", "u"}
    blob = row["b"] and base64.b64decode(row["b"]["$binary"]["base64"]).hex().upper()
    blob = "" if row["b"] is not None and not blob else blob
    return (*(row[name] for name in ("id", "k", "n", "t", "j", "g", "w")), blob)


async def test_what_was_not_sent_is_named_in_payloads_and_xa_transactions_too(
    mysql: MySqlServer, mysql_database: str
) -> None:
    """S1: an XA transaction keeps the statements by which its rows are read."""
    source, story = await begun(mysql, mysql_database, **DECODE)
    with mysql.connect(database=mysql_database) as db:
        run(db, "CREATE TABLE a (id INT PRIMARY KEY, n INT, t TEXT)")
        run(db, "INSERT INTO a VALUES (1, 1, 'x')", TEXTS, MINIMAL)
        run(db, "XA START 'x'", "UPDATE a SET n = 2", "XA END 'x'", "XA PREPARE 'x'")
        db.close()
        db.connect()
        run(db, "XA COMMIT 'x'", TEXTS, MINIMAL)
        run(db, "SET SESSION binlog_transaction_compression = ON", "UPDATE a SET n = 3")
    await caught_up(mysql, source, story)
    assert [told(event) for event in story.changes][1:] == [
        ("update", None, {"id": 1, "n": 2}, {"n": 2}, ("t",)),
        ("update", None, {"id": 1, "n": 3}, {"n": 3}, ("t",)),
    ]


@pytest.mark.parametrize("image", [MINIMAL, NOBLOB])
@pytest.mark.parametrize("text", [TEXTS, NO_TEXTS])
async def test_a_replace_is_told_as_it_is(
    mysql: MySqlServer, mysql_database: str, image: str, text: str
) -> None:
    """Unlike MariaDB, MySQL logs what a REPLACE resets, whatever the image is."""
    source, story = await begun(mysql, mysql_database, **DECODE)
    with mysql.connect(database=mysql_database) as db:
        run(
            db,
            "CREATE TABLE a (id INT PRIMARY KEY, n INT DEFAULT 7, t TEXT, j JSON)",
            "CREATE TABLE b (id INT PRIMARY KEY, n INT)",
            "CREATE TRIGGER x AFTER UPDATE ON b FOR EACH ROW REPLACE a SET id = 1, t = 'z'",
            *("INSERT INTO a VALUES (1, 1, 'x', '{}')", "INSERT INTO b VALUES (1, 1)", text, image),
            "REPLACE INTO a (id) VALUES (1)",
            "REPLACE a SET id = 1, n = 2",
            *("SET SESSION binlog_rows_query_log_events = ON", "UPDATE b SET n = 2"),
        )
    await caught_up(mysql, source, story)
    rows = [told(event) for event in story.changes if event.collection == "a"]
    assert rows[1:] == [
        ("replace", None, {"id": 1, "n": 7, "t": None, "j": None}, None, ()),
        ("replace", None, {"id": 1, "n": 2, "t": None, "j": None}, None, ()),
        ("replace", None, {"id": 1, "n": 7, "t": "z", "j": None}, None, ()),
    ]


@pytest.mark.parametrize(
    "statements",
    [
        [MINIMAL, "UPDATE a SET n = 5"],
        [TEXTS, MINIMAL, "BEGIN", "UPDATE a SET n = 1", NO_TEXTS, "UPDATE a SET n = 2", "COMMIT"],
        [
            *(TEXTS, MINIMAL, "XA START 'x'", "UPDATE a SET n = 1", NO_TEXTS, "UPDATE a SET n = 5"),
            *("XA END 'x'", "XA COMMIT 'x' ONE PHASE"),
        ],
        [
            "CREATE TRIGGER x AFTER UPDATE ON b FOR EACH ROW UPDATE a SET n = 5",
            *(TEXTS, MINIMAL, "UPDATE b SET n = 9"),
        ],
    ],
)
async def test_what_no_statement_says_to_be_an_update_stops_capture(
    mysql: MySqlServer, mysql_database: str, statements: list[str]
) -> None:
    """Invariant 10: that another version logs what a REPLACE resets, nobody has seen."""
    source, story = await begun(mysql, mysql_database, **DECODE)
    with mysql.connect(database=mysql_database) as db:
        run(db, "CREATE TABLE a (id INT PRIMARY KEY, n INT, t TEXT)", "CREATE TABLE b LIKE a")
        run(db, "INSERT INTO a VALUES (1, 0, 'x')", "INSERT INTO b VALUES (1, 1, 'x')", *statements)
    with pytest.raises(UndecodableError, match="may be of a REPLACE"):
        await follow(source, story, lambda _: False)
    assert len([event for event in story.changes if event.collection == "a"]) == 1


async def test_a_change_of_json_in_part_needs_the_row_before(
    mysql: MySqlServer, mysql_database: str
) -> None:
    """Invariant 10: of a MINIMAL image there is nothing that it could be applied to."""
    source, story = await begun(mysql, mysql_database, **DECODE)
    with mysql.connect(database=mysql_database) as db:
        run(db, "CREATE TABLE a (id INT PRIMARY KEY, j JSON)")
        run(db, f"INSERT INTO a VALUES (1, '{JSON_BEFORE}')", TEXTS, MINIMAL, PARTIAL_JSON)
        run(db, "UPDATE a SET j = JSON_SET(j, '$.n', 2)")
    with pytest.raises(UndecodableError, match="of JSON say only what changed"):
        await follow(source, story, lambda _: False)
    assert len(story.changes) == 1


async def test_rules_are_of_whole_json_whatever_of_it_is_logged(
    mysql: MySqlServer, mysql_database: str
) -> None:
    """A26: a hash of what changed would be none of the value; a mask would be changed itself."""
    columns = {
        "hash": ["*.*.h", "*.*.x"],
        "hash_salt": "a salt of sixteen",
        "mask": {"*.*.m": "***"},
        "exclude": ["*.*.e"],
    }
    source, story = await begun(mysql, mysql_database, columns=columns)
    with mysql.connect(database=mysql_database) as db:
        run(
            db, "CREATE TABLE a (id INT PRIMARY KEY, e JSON, h JSON, m JSON, j JSON, x TEXT, n INT)"
        )
        whole = ", ".join([f"'{JSON_BEFORE}'"] * 4)
        run(db, f"INSERT INTO a VALUES (1, {whole}, 'x', 0)")
        run(db, "INSERT INTO a VALUES (2, NULL, NULL, NULL, NULL, 'x', 0)")
        for option in (PARTIAL_JSON, "SET SESSION binlog_row_value_options = ''"):
            run(db, option)
            for number in range(2):
                value = f"'$.n', {number}, '$.a[1]', {number}"
                sets = ", ".join(f"{one} = JSON_SET({one}, {value})" for one in "ehmj")
                run(db, f"UPDATE a SET {sets}, n = n + 1")
        (file, *_) = run(db, "SHOW BINARY LOGS")[-1]
        written = [row[2] for row in run(db, f"SHOW BINLOG EVENTS IN '{file}'")]
        ((now,),) = run(db, "SELECT j FROM a WHERE id = 1")
    assert "Update_rows_partial" in written
    await caught_up(mysql, source, story)
    # A second row of the same events, in which no JSON changes in part.
    assert len({row["x"] for row in documents(story)}) == 1
    rows = [row for row in documents(story) if row["id"] == 1]
    assert [list(row) for row in rows] == [["id", "h", "m", "j", "x", "n"]] * 5
    assert {row["m"] for row in rows} == {"***"}
    # The values go 0, 1, 0, 1: told in part first, then whole.
    hashes = [row["h"] for row in rows]
    assert hashes[1:3] == hashes[3:5]
    assert len(set(hashes)) == 3
    assert plain(rows[-1]["j"]) == json.loads(now)
    changes = [event for event in story.changes if event.document_id == "1"]
    for before, event in zip(rows, changes[1:], strict=False):
        assert msgspec.json.decode(event.full_document_before_change or b"") == before
    assert b"deep" not in b"".join(bytes(event.origin or b"") for event in story.changes)


async def test_rules_are_of_every_type_of_mysql(mysql: MySqlServer, mysql_database: str) -> None:
    """A26: what is left out is read over, whatever it is."""
    kinds = ("JSON", "VECTOR(2)", "GEOMETRY", "ENUM('a', 'b')", "SET('a', 'b')", "BIT(9)")
    made = ("'[1]'", "STRING_TO_VECTOR('[1,2]')", "POINT(1, 2)", "'b'", "'a,b'", "7")
    columns = {
        "exclude": ["*.*.e*"],
        "mask": {"*.*.m*": "***"},
        "truncate": {"*.*.t": 4},
        "hash": ["*.*.h*"],
        "hash_salt": "a salt of sixteen",
    }
    source, story = await begun(mysql, mysql_database, columns=columns)
    with mysql.connect(database=mysql_database) as db:
        defined = [f"{x}{i} {kind}" for x in "emh" for i, kind in enumerate(kinds)]
        run(db, f"CREATE TABLE a (id INT PRIMARY KEY, {', '.join(defined)}, t VECTOR(2), z INT)")
        for number in (1, 2):
            run(db, f"INSERT INTO a VALUES ({number}, {', '.join(made * 3)}, {made[1]}, 5)")
    await caught_up(mysql, source, story)
    first, second = documents(story)
    assert list(first) == ["id", *(f"{x}{i}" for x in "mh" for i in range(6)), "t", "z"]
    assert {first[f"m{i}"] for i in range(6)} == {"***"}
    assert {**first, "id": 2} == second
    assert all(len(first[f"h{i}"]) == 64 for i in range(6))
    assert first["t"]["$binary"]["base64"] == "AACAPw=="  # the first float of two
    assert first["z"] == 5
