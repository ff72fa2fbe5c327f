"""What a foreign key does to rows is in no binlog: nobody hears of it by silence."""

import asyncio
from typing import Any

import pytest

from penstock.errors import ConfigError
from penstock.mysql_sql.tokens import significant, tokens
from penstock.sources.mysql.connection import cascading, connect
from penstock.sources.mysql.statements import cascades
from tests.mysql.support import Story, caught_up, completed, config_of, run, source_of
from tests.telling import follow
from tests_support.servers import MariaDbServer

PARENT = "CREATE TABLE parents (id INT PRIMARY KEY)"
CHILD = "CREATE TABLE children (id INT PRIMARY KEY, parent INT)"
CASCADE = "ALTER TABLE children ADD FOREIGN KEY (parent) REFERENCES parents (id) ON DELETE CASCADE"


async def test_a_table_whose_rows_go_with_others_is_refused_before_anything_is_captured(
    mariadb: MariaDbServer, mariadb_database: str
) -> None:
    with mariadb.connect(database=mariadb_database) as db:
        run(db, PARENT, CHILD, CASCADE)
    of_database: dict[str, Any] = {"include": [f"{mariadb_database}.*"]}
    with pytest.raises(ConfigError, match=r"children by itself.*on_cascades = 'ignore'"):
        await follow(source_of(mariadb, **of_database), Story(), lambda _: True)
    told = await follow(source_of(mariadb, **of_database, on_cascades="ignore"), Story(), bool)
    assert told.changes == []
    without = source_of(mariadb, include=[f"{mariadb_database}.parents"])
    await follow(without, Story(), bool)


async def test_a_table_that_becomes_one_stops_capture_behind_the_statement(
    mariadb: MariaDbServer, mariadb_database: str
) -> None:
    source = source_of(mariadb, include=[f"{mariadb_database}.*"])
    story, inserted = await follow(source, Story(), bool), asyncio.Event()

    def never(said: Story) -> bool:
        if said.changes:
            inserted.set()
        return False

    reading = asyncio.create_task(follow(source, story, never))
    with mariadb.connect(database=mariadb_database) as db:
        run(db, PARENT, CHILD, "INSERT INTO children VALUES (1, NULL)")
        await inserted.wait()
        run(db, CASCADE)
        with pytest.raises(ConfigError, match="What was captured before is safe"):
            await reading
        assert story.said == [
            ("create", "parents"),
            ("create", "children"),
            ("modify", "children"),
            ("gap", "children"),
        ]
        assert len(story.changes) == 1
        with pytest.raises(ConfigError):
            await caught_up(mariadb, source, story)
        run(
            *(db, "ALTER TABLE children DROP FOREIGN KEY children_ibfk_1"),
            "INSERT INTO parents VALUES (1)",
        )
    await caught_up(mariadb, source, story)
    assert len(story.changes) == 2


async def test_what_a_key_changed_while_nobody_listened_is_copied_again(
    mariadb: MariaDbServer, mariadb_database: str
) -> None:
    """The key is gone when capture asks for it, as its own advice is, and so are rows."""
    options: dict[str, Any] = {"start": "snapshot", "on_position_lost": "snapshot"}
    source = source_of(mariadb, include=[f"{mariadb_database}.*"], **options)
    with mariadb.connect(database=mariadb_database) as db:
        run(
            *(db, PARENT, CHILD, "INSERT INTO parents VALUES (1), (2)"),
            "INSERT INTO children VALUES (1, 1), (2, 2)",
        )
        story = await follow(source, Story(), completed)
        first = len(story.events)
        run(
            *(db, CASCADE, "DELETE FROM parents WHERE id = 1"),
            "ALTER TABLE children DROP FOREIGN KEY children_ibfk_1",
        )

    def again(told: Story) -> bool:
        return any(event.operation == "snapshot_completed" for event in told.events[first:])

    await follow(source, story, again)
    copied = [event for event in story.changes if event in story.events[first:] and event.snapshot]
    assert [bytes(event.key) for event in copied] == [b'{"id":2}']
    assert ("gap", "children") in story.said


async def test_keys_that_are_taken_as_they_are_lose_nothing_more(
    mariadb: MariaDbServer, mariadb_database: str
) -> None:
    source = source_of(mariadb, include=[f"{mariadb_database}.*"], on_cascades="ignore")
    story = await follow(source, Story(), bool)
    with mariadb.connect(database=mariadb_database) as db:
        run(db, PARENT, CHILD, CASCADE)
    await caught_up(mariadb, source, story)
    assert ("gap", "children") not in story.said


KEYS = {
    "plain": "id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES parents (id)",
    "cascades": "p INT, FOREIGN KEY (p) REFERENCES parents (id) ON DELETE CASCADE",
    "sets": "p INT, FOREIGN KEY (p) REFERENCES parents (id) ON DELETE RESTRICT ON UPDATE SET NULL",
    "comment": "p INT COMMENT 'no FOREIGN KEY: rows go ON DELETE CASCADE by the app'",
    "named": "p INT, CONSTRAINT `ON DELETE CASCADE` FOREIGN KEY (p) REFERENCES parents (id)",
    "behind": "p INT COMMENT ' (', b BLOB DEFAULT (0xFF27), "
    "FOREIGN KEY (p) REFERENCES parents (id) ON DELETE CASCADE",
    "time": "t TIMESTAMP DEFAULT NOW() ON UPDATE NOW(), `ON DELETE CASCADE` INT",
}


@pytest.mark.parametrize(
    ("sql_mode", "text"),
    [
        ("", r"'it\'s ON DELETE CASCADE'"),
        ("ANSI_QUOTES", "'\" ON DELETE CASCADE'"),
        ("NO_BACKSLASH_ESCAPES", r"'\', s TEXT DEFAULT ' ON DELETE CASCADE'"),
    ],
)
def test_a_foreign_key_is_read_from_the_words_of_a_definition_alone(
    mariadb: MariaDbServer, mariadb_database: str, sql_mode: str, text: str
) -> None:
    """B11: whatever its comments, names and defaults say."""
    with mariadb.connect(database=mariadb_database) as db:
        run(db, f"SET sql_mode = '{sql_mode}'", PARENT)
        for table, columns in KEYS.items():
            run(db, f"CREATE TABLE {table} ({columns}) COMMENT 'ON DELETE CASCADE'")
        run(db, f"CREATE TABLE texts (p INT COMMENT ' ON DELETE CASCADE', q TEXT DEFAULT {text})")
        run(db, f"CREATE TABLE computed (t TEXT DEFAULT (CONCAT('', {text.partition(',')[0]})))")
    config = config_of(mariadb, include=[f"{mariadb_database}.*"])
    with connect("db", config, read_seconds=30) as ours:
        found = [name.partition(".")[2] for name in cascading(ours, config.scope)]
    assert sorted(found) == ["behind", "cascades", "sets"]


@pytest.mark.parametrize(
    ("definition", "changes_rows"),
    [
        ("CREATE TABLE `t` (\n  `c` int COMMENT 'FOREIGN KEY ON DELETE CASCADE'\n)", False),
        (
            "CREATE TABLE `t` (FOREIGN KEY (`c`) REFERENCES `p` (`id`) ON UPDATE SET NULL) /*!1 */",
            True,
        ),
        ("CREATE TABLE t (c int REFERENCES p (id) ON DELETE NO ACTION)", False),
        ("CREATE TABLE t (c int REFERENCES p (id) ON UPDATE SET DEFAULT)", True),
    ],
)
def test_a_definition_says_whether_a_key_changes_rows(
    definition: str, *, changes_rows: bool
) -> None:
    assert cascades(significant(tokens(definition))) == changes_rows
