"""A copy tells rows by the rules of columns that the stream tells them by, and from nowhere."""

from typing import Any

import msgspec
import pytest

from penstock.errors import ConfigError, RequestError
from penstock.event import ChangeEvent, SystemEvent
from penstock.sources.mysql.config import ColumnsConfig
from penstock.sources.mysql.rows import UnreadableTableError
from penstock.sources.mysql.selecting import ColumnFacts, Definition, KeyPart, Selection
from penstock.testing.servers import MariaDbServer, MySqlServer
from tests.mysql.support import Story, run, source_of
from tests.telling import follow

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
ROWS = "('Anna@x', 1.50, '1', 'p', 'žluť', 'abc'), ('bert@x', NULL, NULL, NULL, NULL, NULL)"


def completed(story: Story) -> bool:
    return ("snapshot_completed", "") in story.said


def told(events: list[ChangeEvent]) -> dict[bytes, bytes]:
    """The rows, by their keys."""
    return {bytes(event.key): bytes(event.full_document or b"") for event in events}


async def test_a_copied_row_is_what_the_stream_tells_of_it(
    mariadb: MariaDbServer, mariadb_database: str
) -> None:
    """Invariant 9, A26: masked, hashed, cut and left out alike; a hashed key is the same key."""
    source = source_of(mariadb, include=[f"{mariadb_database}.*"], columns=RULES, start="snapshot")
    with mariadb.connect(database=mariadb_database) as db:
        run(db, MADE, f"INSERT INTO a (mail, n, phone, password, note, raw) VALUES {ROWS}")
        story = await follow(source, Story(), completed)
        copied = list(story.changes)
        run(db, f"REPLACE INTO a (mail, n, phone, password, note, raw) VALUES {ROWS}")
        run(db, "UPDATE a SET password = 'q'")
        await follow(source, story, lambda story: len(story.changes) == 4)
    streamed = story.changes[2:]
    assert [event.snapshot for event in story.changes] == [True, True, False, False]
    assert told(copied) == told(streamed)
    assert {event.document_id for event in copied} == {event.document_id for event in streamed}
    assert b"Anna" not in b"".join(told(copied))
    # Where a copied row came from is no place of the binlog.
    assert [event.origin is None for event in story.changes] == [True, True, False, False]


async def test_rules_that_make_other_keys_have_the_rows_copied_again(
    mariadb: MariaDbServer, mariadb_database: str
) -> None:
    """Invariant 4: it is a gap, and where tables are copied the copy closes it."""
    options: dict[str, Any] = {"include": [f"{mariadb_database}.*"], "start": "snapshot"}
    with mariadb.connect(database=mariadb_database) as db:
        run(db, MADE, f"INSERT INTO a (mail, n, phone, password, note, raw) VALUES {ROWS}")
    story = await follow(source_of(mariadb, **options), Story(), completed)
    again = Story(story.position)
    await follow(source_of(mariadb, columns=RULES, **options), again, completed)
    assert again.said == [
        ("scope_changed", ""),
        ("gap", "a"),
        ("snapshot_started", ""),
        ("snapshot_completed", ""),
    ]
    (started,) = [one for one in again.events if isinstance(one, SystemEvent)][2:3]
    said = msgspec.json.decode(started.description)
    assert said["collections"] == [f"{mariadb_database}.a"]
    assert len(again.changes) == 2
    assert not told(again.changes).keys() & told(story.changes).keys()


def test_a_rule_that_a_copied_table_cannot_have_stops_before_its_rows() -> None:
    """Invariant 10."""
    column = ColumnFacts("mail", "int", "int(11)", None, None)
    key = (KeyPart("mail", partial=False),)
    table = Definition("d", "a", "InnoDB", (column,), "PRIMARY", key)
    rules = ColumnsConfig.model_validate({"mask": {"*.*.mail": "x"}}).rules
    with pytest.raises(UnreadableTableError, match="is of its key"):
        Selection(table, rules=rules)


async def test_a_copy_of_a_mysql_is_refused_in_words(
    mysql: MySqlServer, mysql_database: str
) -> None:
    for option in ("start", "on_position_lost"):
        source = source_of(mysql, include=[f"{mysql_database}.*"], **{option: "snapshot"})
        with pytest.raises(ConfigError, match="tables of a MySQL are not copied"):
            await follow(source, Story(), lambda _: True)
    source = source_of(mysql, include=[f"{mysql_database}.*"])
    with pytest.raises(RequestError):
        await source.copy([], known=[])
    changes = source.changes(position=None)
    await anext(changes)
    with pytest.raises(RequestError, match="tables of a MySQL are not copied"):
        await source.copy([], known=[])
    await changes.aclose()  # type: ignore[attr-defined]
