"""An ALTER by which rows have another key is a gap of their table (invariant 4): nothing that comes
later ends what was told of them by the key before. One that leaves the key as it was is none."""

from typing import Any

import msgspec
import pytest
from msgspec import structs

from penstock.event import ChangeEvent, SystemEvent
from penstock.sources.mysql.copying import again, with_tables
from penstock.sources.mysql.positions import parse_position
from penstock.sources.mysql.shapes import KEPT_MAX, Kept, Shape, Shapes
from penstock.sources.mysql.statements import (
    Created,
    DatabaseDropped,
    Dropped,
    Emptied,
    Renamed,
    Unclear,
)
from tests.mysql.support import Rows, Story, caught_up, completed, run, source_of
from tests.mysql.test_copying import contents
from tests.telling import follow
from tests_support.servers import MariaDbServer, SqlServer

ANEW: dict[str, tuple[str, str, list[str]]] = {
    "renamed": ("id INT PRIMARY KEY", "CHANGE id oid INT", ["oid"]),
    "recased": ("id INT PRIMARY KEY", "CHANGE id ID INT", ["ID"]),
    "other": ("id INT PRIMARY KEY", "DROP PRIMARY KEY, ADD PRIMARY KEY (n)", ["n"]),
    "more": ("id INT PRIMARY KEY", "DROP PRIMARY KEY, ADD PRIMARY KEY (n, id)", ["n", "id"]),
    "turned": (
        "id INT, PRIMARY KEY (id, n)",
        "DROP PRIMARY KEY, ADD PRIMARY KEY (n, id)",
        ["n", "id"],
    ),
    "gone": ("id INT PRIMARY KEY", "DROP PRIMARY KEY", []),
    "new": ("id INT NOT NULL", "ADD PRIMARY KEY (id)", ["id"]),
    "all": ("id INT", "ADD m INT", []),
    "as_text": ("id INT PRIMARY KEY", "MODIFY id VARCHAR(20)", ["id"]),
    "as_decimal": ("id INT PRIMARY KEY", "MODIFY id DECIMAL(9)", ["id"]),
    "scale": ("id DECIMAL(9, 1) PRIMARY KEY", "MODIFY id DECIMAL(9, 2)", ["id"]),
    "digits": ("id TIME PRIMARY KEY", "MODIFY id TIME(3)", ["id"]),
    "moments": ("id DATETIME PRIMARY KEY", "MODIFY id DATETIME(6)", ["id"]),
    "filled": ("id BINARY(4) PRIMARY KEY", "MODIFY id BINARY(5)", ["id"]),
    "bytes": ("id VARCHAR(9) PRIMARY KEY", "MODIFY id VARBINARY(9)", ["id"]),
}
"""By table: its key, what is altered, and the columns of the key behind that."""
AS_IT_WAS: dict[str, tuple[str, str]] = {
    "column": ("id INT PRIMARY KEY", "ADD m INT FIRST"),
    "others": ("id INT PRIMARY KEY", "CHANGE n m VARCHAR(20)"),
    "indexed": ("id INT PRIMARY KEY", "ADD UNIQUE (n)"),
    "keyless": ("id INT", "ADD INDEX (n)"),
    "grown": ("id INT PRIMARY KEY", "MODIFY id BIGINT UNSIGNED"),
    "precise": ("id DECIMAL(9, 2) PRIMARY KEY", "MODIFY id DECIMAL(20, 2)"),
    "longer": ("id VARCHAR(9) PRIMARY KEY", "MODIFY id VARCHAR(90) CHARACTER SET latin1"),
    "chosen": ("id ENUM('0', '1', '2', '3') PRIMARY KEY", "MODIFY id VARCHAR(9)"),
    "made": ("id INT PRIMARY KEY", "ENGINE = MyISAM"),
}
MOMENTS = "('2026-01-31 00:00:01', -1), ('2026-01-31 00:00:02', -2), ('2026-01-31 00:00:03', -3)"
NUMBERS = "(1, -1), (2, -2), (3, -3)"
TEXTS = "('1', -1), ('2', -2), ('3', -3)"


def made(db: Any) -> None:
    """Each of the tables, with three rows."""
    for table, (key, *_) in (ANEW | AS_IT_WAS).items():
        run(db, f"CREATE TABLE `{table}` (n INT NOT NULL, {key})")
        numbers = key.startswith(("id INT", "id D", "id T"))
        values = MOMENTS if table == "moments" else NUMBERS if numbers else TEXTS
        run(db, f"INSERT INTO `{table}` (id, n) VALUES {values}")


def altered(db: Any) -> None:
    for table, (_, what, *_) in (ANEW | AS_IT_WAS).items():
        run(db, f"ALTER TABLE `{table}` {what}")


def changed(db: Any) -> None:
    """A row of each is deleted, and one changed."""
    for table in ANEW | AS_IT_WAS:
        n = "m" if table == "others" else "n"
        run(db, f"DELETE FROM `{table}` WHERE {n} = -1")
        if table not in {"other", "more", "turned"}:
            run(db, f"UPDATE `{table}` SET {n} = -20 WHERE {n} = -2")


def gaps(story: Story) -> dict[str, list[str]]:
    """By table: the key that its rows have behind the gap, which is told once and before them."""
    found: dict[str, list[str]] = {}
    for number, event in enumerate(story.events):
        if event.operation == "gap":
            assert isinstance(event, SystemEvent)
            said = msgspec.json.decode(event.description)
            assert (said["reason"], event.collection in found) == ("rekeyed", False)
            found[event.collection] = said["key"]
            row = story.events[number + 1]
            if isinstance(row, ChangeEvent) and not row.snapshot:
                assert row.collection == event.collection
                assert said["from"] == said["to"] == row.transaction
                assert list(msgspec.json.decode(row.key)) == (said["key"] or ["_row"])
    return found


def settled(story: Story) -> Rows:
    """The rows that a consumer has who ends, with a copy, what it did not meet: by their keys."""
    rows: dict[str, dict[str, tuple[int, Any]]] = {}
    since: dict[str, int] = {}
    for number, event in enumerate(story.events):
        of_table = rows.setdefault(f"{event.database}.{event.collection}", {})
        if isinstance(event, ChangeEvent):
            key = bytes(event.key).decode()
            of_table.pop(key, None)
            if event.full_document is not None:
                of_table[key] = number, msgspec.json.decode(event.full_document)
        elif isinstance(event, SystemEvent) and event.operation.startswith("snapshot_"):
            for table in msgspec.json.decode(event.description)["collections"]:
                if event.operation == "snapshot_started":
                    since[table] = number
                elif table in rows:
                    told = rows[table].items()
                    rows[table] = {key: row for key, row in told if row[0] > since[table]}
    return {
        table: {key: row for key, (_, row) in found.items()}
        for table, found in rows.items()
        if found
    }


@pytest.mark.slow
async def test_another_key_is_a_gap_before_its_first_row_and_the_same_key_is_none(
    server: SqlServer, database: str
) -> None:
    """Whether a restart is before the ALTER or behind it; and read again, it is the same."""
    options: dict[str, Any] = {"include": [f"{database}.*"]}
    story = await follow(source_of(server, **options), Story(), lambda _: True)
    with server.connect(database=database) as db:
        made(db)
        await caught_up(server, source_of(server, **options), story)
        assert not gaps(story)
        altered(db)
        before = story.position
        behind = await caught_up(server, source_of(server, **options), Story(before))
        assert not gaps(behind)
        changed(db)
        later = await caught_up(server, source_of(server, **options), Story(behind.position))
        assert gaps(later) == {table: key for table, (_, _, key) in ANEW.items()}
        once = await caught_up(server, source_of(server, **options), Story(before))
        told = [event.event_id for event in (*behind.events, *later.events)]
        assert [event.event_id for event in once.events] == told
        run(db, "UPDATE renamed SET n = 7", "UPDATE `column` SET n = 8")
        after = await caught_up(server, source_of(server, **options), Story(later.position))
    assert len(after.changes) == 4
    assert not gaps(after)


async def test_what_an_earlier_position_does_not_know_is_no_gap(
    mariadb: MariaDbServer, mariadb_database: str
) -> None:
    """A position of before keys were kept: it is read, and the next key is learned."""
    options: dict[str, Any] = {"include": [f"{mariadb_database}.*"]}
    story = await follow(source_of(mariadb, **options), Story(), lambda _: True)
    with mariadb.connect(database=mariadb_database) as db:
        run(db, "CREATE TABLE a (id INT PRIMARY KEY)", "INSERT INTO a VALUES (1)")
        await caught_up(mariadb, source_of(mariadb, **options), story)
        assert [one.key != "" for one in story.place.shapes] == [True]
        shapes = tuple(structs.replace(one, key="") for one in story.place.shapes)
        old = structs.replace(story.place, shapes=shapes).text()
        run(db, "ALTER TABLE a CHANGE id b INT", "INSERT INTO a VALUES (2)")
        run(db, "ALTER TABLE a CHANGE b c INT", "INSERT INTO a VALUES (3)")
    again = await caught_up(mariadb, source_of(mariadb, **options), Story(old))
    assert gaps(again) == {"a": ["c"]}


async def test_where_lost_rows_are_copied_the_table_is_and_the_old_keys_end(
    server: SqlServer, database: str
) -> None:
    with server.connect(database=database) as db:
        source = source_of(server, include=[f"{database}.*"], on_position_lost="snapshot")
        story = await follow(source, Story(), lambda _: True)
        names = ("renamed", "more", "as_text", "column", "grown")
        for table in names:
            key, what = (ANEW | AS_IT_WAS)[table][:2]
            run(db, f"CREATE TABLE `{table}` (n INT NOT NULL, {key})")
            run(db, f"INSERT INTO `{table}` (id, n) VALUES {NUMBERS}")
            run(db, f"ALTER TABLE `{table}` {what}", f"DELETE FROM `{table}` WHERE n = -1")
        await follow(source, story, completed)
        await caught_up(server, source, story)
        there = contents(db, database, *names)
        assert gaps(story).keys() == {"renamed", "more", "as_text"}
        copied = {event.collection for event in story.changes if event.snapshot}
        assert copied == {"renamed", "more", "as_text"}
    found = settled(story)
    for table in copied:
        assert found[f"{database}.{table}"] == there[f"{database}.{table}"]


async def test_a_copy_of_a_table_without_rows_tells_no_key(
    server: SqlServer, database: str
) -> None:
    """What was never told needs no end, so another key is no gap there."""
    source = source_of(server, include=[f"{database}.*"], start="snapshot")
    with server.connect(database=database) as db:
        for table in ("bare", "filled"):
            run(db, f"CREATE TABLE {table} (id INT PRIMARY KEY)")
            run(db, f"CREATE TABLE {table}_keyless (id INT)")
        run(db, "INSERT INTO filled VALUES (1)", "INSERT INTO filled_keyless VALUES (1)")
        story = await follow(source, Story(), completed)
        kept = {one.name for one in story.place.shapes if one.key}
        assert kept == {"filled", "filled_keyless"}
        for table in ("bare", "filled"):
            run(db, f"ALTER TABLE {table} CHANGE id k INT")
            run(db, f"ALTER TABLE {table}_keyless ADD n INT")
            run(db, f"INSERT INTO {table} VALUES (2)", f"INSERT INTO {table}_keyless VALUES (2, 2)")
        await caught_up(server, source, story)
    assert gaps(story) == {"filled": ["k"], "filled_keyless": []}


async def test_tables_that_begin_anew_have_no_keys_of_before(
    mariadb: MariaDbServer, mariadb_database: str
) -> None:
    """Dropped, emptied, or under another table's name: there is nothing by the old key."""
    source = source_of(mariadb, include=[f"{mariadb_database}.{one}" for one in "abcdexyz"])
    story = await follow(source, Story(), lambda _: True)
    with mariadb.connect(database=mariadb_database) as db:
        for table in ("a", "b", "c", "d", "e"):
            run(db, f"CREATE TABLE {table} (id INT PRIMARY KEY, n INT)")
            run(db, f"INSERT INTO {table} VALUES (1, 1)")
        run(db, "DROP TABLE a", "CREATE TABLE a (k INT PRIMARY KEY)", "INSERT INTO a VALUES (1)")
        run(db, "TRUNCATE b", "ALTER TABLE b CHANGE id k INT", "INSERT INTO b VALUES (1, 1)")
        # As gh-ost does it, of a table that is captured too.
        run(db, "CREATE TABLE x (k INT PRIMARY KEY, n INT)", "INSERT INTO x VALUES (1, 1)")
        run(db, "RENAME TABLE c TO y, x TO c", "UPDATE c SET n = 2", "UPDATE y SET n = 2")
        run(db, "RENAME TABLE d TO z", "UPDATE z SET n = 2", "ALTER TABLE z CHANGE id k INT")
        run(db, "RENAME TABLE e TO away", "ALTER TABLE away CHANGE id k INT")
        run(db, "RENAME TABLE away TO e")
        await caught_up(mariadb, source, story)
        said = [what for what in story.said if what[0] == "gap"]
        assert said == [("gap", "e")], "it was renamed into what is captured"
        run(db, "DELETE FROM z", "UPDATE e SET n = 3")
    await caught_up(mariadb, source, story)
    assert [what for what in story.said if what[0] == "gap"] == [("gap", "e"), ("gap", "z")]


async def test_a_row_that_is_rolled_back_takes_its_gap_with_it(
    mariadb: MariaDbServer, mariadb_database: str
) -> None:
    """The gap comes with the first row that is committed."""
    source = source_of(mariadb, include=[f"{mariadb_database}.*"])
    story = await follow(source, Story(), lambda _: True)
    with mariadb.connect(database=mariadb_database) as db:
        run(db, "CREATE TABLE a (id INT PRIMARY KEY)", "INSERT INTO a VALUES (1), (2)")
        run(db, "CREATE TABLE m (id INT PRIMARY KEY) ENGINE = MyISAM")
        run(db, "ALTER TABLE a CHANGE id k INT", "BEGIN", "SAVEPOINT s", "DELETE FROM a")
        run(db, "INSERT INTO m VALUES (1)", "ROLLBACK TO s", "INSERT INTO a VALUES (3)", "COMMIT")
    await caught_up(mariadb, source, story)
    assert gaps(story) == {"a": ["k"]}
    behind = story.events[[event.operation for event in story.events].index("gap") :]
    assert [event.document_id for event in behind if isinstance(event, ChangeEvent)] == ["3"]


def test_keys_go_where_their_tables_go() -> None:
    names = [("d", one) for one in "abcdef"]
    shapes = Shapes(Shape(*name, key=name[1]) for name in names)
    assert shapes.kept() == tuple(Shape(*name, key=name[1]) for name in names)
    effects = (
        *(Created(("d", "a")), Dropped(("d", "b")), Emptied(("d", "c"))),
        *(Renamed(("d", "d"), ("e", "x")), Renamed(("d", "e"), ("d", "f"))),
    )
    for effect in effects:
        shapes.alter(effect, {})
    assert [shapes.key(name) for name in names] == [None] * 5 + ["e"]
    assert shapes.key(("e", "x")) == "d"
    shapes.alter(DatabaseDropped("e"), {})
    assert shapes.key(("e", "x")) is None
    shapes.alter(Unclear(), {})
    assert shapes.kept() == ()


def test_a_key_is_told_once_it_is_committed() -> None:
    table, other = ("d", "a"), ("d", "b")
    shapes = Shapes([Shape(*table, ("v",), key="old")])
    assert not shapes.keys_anew(table, "old", 0)
    assert shapes.keys_anew(table, "new", 1)
    assert not shapes.keys_anew(table, "new", 2), "once"
    assert not shapes.keys_anew(other, "any", 3), "nothing was known"
    assert shapes.kept() == (Shape(*table, ("v",), key="old"),)
    shapes.undone(1)
    assert shapes.keys_anew(table, "new", 4)
    shapes.undone(2)
    assert shapes.committed() == []
    assert shapes.keys_anew(table, "new", 0)
    assert not shapes.keys_anew(other, "any", 1)
    assert shapes.committed() == [table]
    kept = (Shape(*other, key="any"), Shape(*table, ("v",), key="new"))
    assert shapes.kept() == kept
    assert Shapes(kept).kept() == kept


def test_a_position_keeps_keys_after_all_else_that_it_must() -> None:
    shapes = Shapes(Shape("d", f"t{number}", key="k") for number in range(KEPT_MAX))
    shapes.alter(Created(("d", "new")), {("d", "new"): frozenset("v")})
    kept = shapes.kept()
    assert len(kept) == KEPT_MAX
    assert kept[-1] == Shape("d", "new", ("v",), untold=True)
    assert kept[0] == Shape("d", "t1", key="k")


def test_a_position_says_the_same_whether_its_tables_are_said_for_the_first_time_or_not() -> None:
    place = parse_position('{"server":{"id":1},"gtids":"0-1-5","scope":{},"v":1}')
    copying = with_tables(None, [("d", "a")], seconds=5, snapshot="s")
    shapes = Shapes([Shape("d", "é", ("v",), untold=True), Shape("d", 'a"b', key="k")])
    for kept in (shapes.kept(), shapes.kept(), Shapes().kept()):
        for one in (place, structs.replace(place, gtids="0-1-6", copying=copying)):
            plain = structs.replace(one, shapes=tuple(kept))
            text = msgspec.json.encode(plain).decode()
            known = structs.replace(one, shapes=kept)
            assert known.text() == plain.text() == text
            assert parse_position(text) == known == plain


def test_what_is_known_of_many_tables_is_encoded_once_while_it_is_the_same() -> None:
    """Every commit says its position, and most change nothing of that."""
    place = parse_position('{"server":{"id":1},"gtids":"0-1-5","scope":{},"v":1}')
    shapes = Shapes(Shape("d", f"t{number}", key=f"{number:016x}") for number in range(KEPT_MAX))
    kept = shapes.kept()
    assert isinstance(kept, Kept)
    assert vars(kept) == {}
    structs.replace(place, shapes=kept).text()
    encoded = vars(kept)["encoded"]
    structs.replace(place, gtids="0-1-6", shapes=shapes.kept()).text()
    assert shapes.kept() is kept
    assert vars(kept)["encoded"] is encoded


def test_a_position_from_before_keys_were_kept_is_read() -> None:
    text = '{"server":{"id":1},"gtids":"0-1-5","scope":{},"shapes":[["d","a",["v"],true]],"v":1}'
    assert parse_position(text).shapes == (Shape("d", "a", ("v",), untold=True),)


def test_a_position_with_keys_is_read_by_who_does_not_know_them() -> None:
    class Before(msgspec.Struct, frozen=True, omit_defaults=True, array_like=True):
        database: str
        name: str
        virtual: tuple[str, ...] | None = None
        untold: bool = False

    known = parse_position('{"server":{"id":1},"gtids":"0-1-5","scope":{},"v":1}')
    text = structs.replace(known, shapes=(Shape("d", "a", key="k"),)).text()
    assert parse_position(text).shapes == (Shape("d", "a", key="k"),)
    shapes = msgspec.json.encode(msgspec.json.decode(text)["shapes"])
    assert msgspec.json.decode(shapes, type=tuple[Before, ...]) == (Before("d", "a"),)


def test_a_table_that_is_copied_again_is_announced_and_has_other_rows() -> None:
    copying = with_tables(None, [("d", "a"), ("d", "b")], seconds=5, snapshot="s")
    under_way = structs.replace(copying, announced=True, after=("1",), key="k")
    anew = again(under_way, ("d", "a"))
    assert (anew.pending, anew.announced, anew.after) == ((("d", "b"), ("d", "a")), False, None)
    assert anew.copies == under_way.copies + 1
    assert set(anew.covers) == set(copying.covers)
