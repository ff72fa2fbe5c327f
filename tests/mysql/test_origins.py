"""What a change says of where it comes from: place, session, statement, actor, other half."""

import re
from collections.abc import Callable
from typing import Any, cast

import msgspec
import pytest
from pydantic import ValidationError

from penstock.event import AnyEvent
from penstock.sources.mysql.binlog import HEADER, EventType, begun
from penstock.sources.mysql.origins import origin_rules
from tests.mysql.support import Story, caught_up, config_of, run, source_of
from tests.telling import follow
from tests_support.servers import MariaDbServer


def origin(event: AnyEvent) -> dict[str, Any]:
    """What an event says of where it comes from."""
    return cast("dict[str, Any]", msgspec.json.decode(event.origin or b"null"))


def statements(story: Story) -> list[str | None]:
    """The text of each event; of one that has none, None."""
    return [origin(event).get("statement") for event in story.effects]


async def told(server: MariaDbServer, database: str, *made: str, **options: Any) -> Story:
    """What is told of these statements, of tables of `database`."""
    source = source_of(server, **{"include": [f"{database}.*"], **options})
    story = await follow(source, Story(), lambda _: True)
    with server.connect(database=database) as db:
        run(db, *made)
    return await caught_up(server, source, story)


@pytest.mark.both_mariadbs
async def test_a_row_says_its_file_and_the_offset_of_the_event_that_holds_it(
    mariadb: MariaDbServer, mariadb_database: str
) -> None:
    """A1, A26: as the server's own list of its events has them; of later servers that do not say
    it, the offset of the transaction."""
    story = await told(
        mariadb,
        mariadb_database,
        "CREATE TABLE a (id INT PRIMARY KEY, t TEXT)",
        "BEGIN",
        "INSERT INTO a VALUES (1, ''), (2, ''), (3, REPEAT('x', 20000)), (4, '')",
        "UPDATE a SET t = 'z' WHERE id = 1",
        "COMMIT",
    )
    create, rows = story.events[0], story.changes
    with mariadb.connect() as db:
        listed = {
            (name, int(at)): str(kind)
            for name, at, kind, *_ in run(db, f"SHOW BINLOG EVENTS IN '{story.place.file}'")
        }
    kinds = [listed[origin(event)["file"], origin(event)["offset"]] for event in rows]
    offsets = [origin(event)["offset"] for event in rows]
    assert offsets == sorted(offsets)
    if mariadb.version == "system":
        assert listed[story.place.file, origin(create)["offset"]] == "Query"
        assert kinds == ["Write_rows_v1"] * 4 + ["Update_rows_v1"]
        assert len(set(offsets)) == 4  # the rows of one event have one
    else:  # what goes through a transaction's cache has no place of its own from 11.4 on
        assert kinds == ["Gtid"] * 5
        assert len(set(offsets)) == 1


async def test_the_first_row_of_each_statement_has_its_text_and_the_others_say_which_one_that_is(
    mariadb: MariaDbServer, mariadb_database: str
) -> None:
    """A26."""
    story = await told(
        mariadb,
        mariadb_database,
        "CREATE TABLE a (id INT PRIMARY KEY, t TEXT)",
        "CREATE TABLE b LIKE a",
        "CREATE TRIGGER g AFTER INSERT ON a FOR EACH ROW INSERT INTO b VALUES (NEW.id, 'g')",
        "BEGIN",
        "INSERT INTO a VALUES (1, REPEAT('x', 9000)), (2, REPEAT('x', 9000)), (3, 'ž')",
        "UPDATE a SET t = 'ž' WHERE id < 3",
        "SET SESSION binlog_annotate_row_events = OFF",
        "DELETE FROM a WHERE id = 1",
        "SET SESSION binlog_annotate_row_events = ON",
        "DELETE FROM a WHERE id > 1",
        "COMMIT",
    )
    said = [origin(event) for event in story.changes]
    texts = [one.get("statement") for one in said]
    assert texts[0] is not None
    assert texts[0].startswith("INSERT INTO a VALUES (1,")
    assert [i for i, text in enumerate(texts) if text] == [0, 6, 9]  # rows of the trigger, too
    assert texts[6] == "UPDATE a SET t = 'ž' WHERE id < 3"
    assert [one.get("statementAt") for one in said] == [
        *[None, 0, 0, 0, 0, 0],
        *[None, 6],
        None,  # it was not annotated, and is not of the statement before
        *[None, 9],
    ]
    for one in said:
        if "statementAt" in one:
            number = int(one["statementAt"])
            assert story.changes[number].position.endswith(f":{number}")
    assert statements(story)[:2] == [
        "CREATE TABLE a (id INT PRIMARY KEY, t TEXT)",
        "CREATE TABLE b LIKE a",
    ]


async def test_the_text_comes_with_the_first_row_that_is_captured(
    mariadb: MariaDbServer, mariadb_database: str
) -> None:
    text = "UPDATE x, a SET x.n = 2, a.n = 2"
    story = await told(
        mariadb,
        mariadb_database,
        *("CREATE TABLE x (id INT PRIMARY KEY, n INT)", "CREATE TABLE a LIKE x"),
        *("INSERT INTO x VALUES (1, 1), (2, 1)", "INSERT INTO a VALUES (1, 1)", text),
        include=[f"{mariadb_database}.a"],
    )
    assert [event.collection for event in story.changes] == ["a", "a"]
    assert statements(story)[-1] == text


async def test_the_two_halves_of_a_moved_row_name_each_other(
    mariadb: MariaDbServer, mariadb_database: str
) -> None:
    """A13."""
    story = await told(
        mariadb,
        mariadb_database,
        "CREATE TABLE a (b VARCHAR(9), id INT, n INT, PRIMARY KEY (b, id))",
        "INSERT INTO a VALUES ('x', 1, 0)",
        "UPDATE a SET id = 2",
        "UPDATE a SET n = 2",
    )
    insert, gone, come, stays = story.changes
    assert origin(gone)["movedTo"] == msgspec.json.decode(come.key) == {"b": "x", "id": 2}
    assert origin(come)["movedFrom"] == msgspec.json.decode(gone.key) == {"b": "x", "id": 1}
    assert origin(gone)["statement"] == "UPDATE a SET id = 2"
    assert origin(come)["statementAt"] == 0
    assert not {"movedTo", "movedFrom"} & (origin(insert).keys() | origin(stays).keys())


@pytest.mark.both_mariadbs
async def test_a_session_is_told_where_the_server_says_it(
    mariadb: MariaDbServer, mariadb_database: str
) -> None:
    """Before 11.5, MariaDB says it with statements only."""
    says = mariadb.version != "system"
    source = source_of(mariadb, include=[f"{mariadb_database}.*"])
    story = await follow(source, Story(), lambda _: True)
    with mariadb.connect(database=mariadb_database) as db:
        run(db, "CREATE TABLE a (id INT PRIMARY KEY)", "INSERT INTO a VALUES (1)")
        ((thread,),) = run(db, "SELECT CONNECTION_ID()")
    await caught_up(mariadb, source, story)
    create, insert = story.effects
    assert origin(create)["thread"] == thread
    assert origin(insert).get("thread") == (thread if says else None)


@pytest.mark.parametrize(
    ("flags", "between"), [(0x10, 0), (0x11, 1), (0x14, 8), (0x18, 8), (0x1D, 9)]
)
@pytest.mark.parametrize("group", [0, 8])
def test_a_newer_server_says_the_session_in_its_gtid_event(
    flags: int, between: int, group: int
) -> None:
    """From 11.5 on: behind what else its flags say is there."""
    head = (5).to_bytes(8, "little") + (1).to_bytes(4, "little") + bytes([0x02 if group else 0])
    body = head + b"g" * group + bytes([flags]) + b"x" * between + (77).to_bytes(4, "little")
    assert begun(body).thread == 77
    assert begun(head + b"g" * group + bytes([flags & ~0x10]) + bytes(9)).thread == 0


async def test_a_long_statement_is_cut_at_a_character_and_says_its_length(
    mariadb: MariaDbServer, mariadb_database: str
) -> None:
    text = f"INSERT INTO a VALUES (1, '{'ž' * 100}')"
    story = await told(
        mariadb,
        mariadb_database,
        *("CREATE TABLE a (id INT PRIMARY KEY, t TEXT)", text, "DELETE FROM a"),
        statement_bytes_max="50B",
    )
    insert, delete = (origin(event) for event in story.changes)
    assert insert["statement"] == text[: 26 + 12]
    assert insert["statementBytes"] == len(text.encode())
    assert delete["statement"] == "DELETE FROM a"
    assert "statementBytes" not in delete


async def test_who_wrote_a_statement_is_what_its_comment_says(
    mariadb: MariaDbServer, mariadb_database: str
) -> None:
    """A26: on each of its rows; and never what a value says."""
    made = (
        "CREATE TABLE a (id INT PRIMARY KEY, t TEXT) /* user:anna */",
        "INSERT INTO a VALUES (1, ''), (2, '') -- user:anna",
        "/* request 7, user:ber\"t */ UPDATE a SET t = '/* user:mallory */' WHERE id = 1",
        "UPDATE a SET t = 'x -- user:mallory' WHERE id = 2",
    )
    actor = r"user:([^ ]+)"
    story = await told(mariadb, mariadb_database, *made, actor=actor)
    who = [origin(event).get("actor") for event in story.effects]
    assert who == ["anna", "anna", "anna", 'ber"t', None]
    with mariadb.connect(database=mariadb_database) as db:
        run(db, "DROP TABLE a")
    silent = await told(mariadb, mariadb_database, *made, actor=actor, statements="off")
    assert [origin(event).get("actor") for event in silent.effects] == who
    assert statements(silent) == [None] * 5


async def test_statements_are_told_as_they_are_without_their_values_or_not_at_all(
    mariadb: MariaDbServer, mariadb_database: str
) -> None:
    """A26: where values are hidden they are hidden in the statements of tables, too."""
    made = (
        "CREATE TABLE a (id INT PRIMARY KEY, t TEXT DEFAULT 'secret-0')",
        "INSERT INTO a VALUES (1, 'secret-1'), (2, \"secret-2\")",
        "UPDATE a SET t = 'it\\'s secret-3' /* secret-4 */ WHERE id = 1",
        "TRUNCATE a /* secret-5 */",
        "SET SESSION sql_mode = 'NO_BACKSLASH_ESCAPES'",
        "INSERT INTO a VALUES (1, 'back\\'), (2, 'secret-6')",
        "DROP TABLE a",
    )
    for mode in ("full", "redacted", "off"):
        story = await told(mariadb, mariadb_database, *made, statements=mode)
        said = [bytes(event.origin or b"").decode() for event in story.events]
        said += [bytes(cast("Any", event).description).decode() for event in story.events
                 if event not in story.changes]  # fmt: skip
        assert bool(re.search("secret-[0-9]", "".join(said))) == (mode == "full")
        texts = statements(story)
        if mode == "full":
            drop = "DROP TABLE `a` /* generated by server */"
            assert texts == [made[0], made[1], None, made[2], made[3], None, made[5], None, drop]
        elif mode == "redacted":
            assert texts[:2] == [
                "CREATE TABLE a (id INT PRIMARY KEY, t TEXT DEFAULT ?)",
                "INSERT INTO a VALUES (?, ?), (?, ?)",
            ]
        else:
            assert texts == [None] * 9


def test_a_source_that_hides_columns_tells_no_statement_with_its_values() -> None:
    """A26: one who is not to see a column does not see it in a statement."""
    common: dict[str, Any] = {"bytes_max": 8192, "actor": None}
    rules = origin_rules(statements="full", hides_columns=True, **common)
    assert rules.shown("UPDATE t SET a = 'secret'") == "UPDATE t SET a = ?"
    assert rules.cut("UPDATE t SET a = 'secret'") == ("UPDATE t SET a = ?", 0)
    assert origin_rules(statements="off", hides_columns=True, **common).shown("x") is None
    # Of a long one no more is looked at than is kept, and a value that is cut is hidden.
    short = origin_rules(statements="redacted", hides_columns=True, bytes_max=16, actor=None)
    long = f"UPDATE t SET a = '{'secret' * 100}'"
    assert short.cut(long) == ("UPDATE t SET a =", len(long))


def test_an_actor_must_be_a_regular_expression_of_one_group() -> None:
    for wrong, why in (("user:(", "no regular"), ("user:", "0 groups"), ("(a)(b)", "2 groups")):
        with pytest.raises(ValidationError, match=why):
            config_of(cast("MariaDbServer", type("Server", (), {"port": 1})), actor=wrong)


async def test_what_a_transaction_holds_is_counted_with_its_statements(
    start_mariadb: Callable[..., MariaDbServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invariant 6: rows that are small, of statements that are large."""
    from penstock.event import Fragment
    from penstock.sources.mysql import transactions

    monkeypatch.setattr(transactions, "FRAGMENT_BYTES", 100_000)
    server = start_mariadb()
    with server.connect() as db:
        run(db, "CREATE DATABASE d", "CREATE TABLE d.a (id INT PRIMARY KEY)", "BEGIN")
        for number in range(100):
            run(db, f"INSERT INTO d.a VALUES ({number}) /* {'x' * 8000} */")
        run(db, "COMMIT")
    story = await caught_up(server, source_of(server, start="beginning"))
    fragments = [item for item in story.items if isinstance(item, Fragment)]
    assert len(fragments) >= 5
    for item in fragments:
        assert sum(len(event.origin or b"") for event in item.events) < 120_000


def test_an_event_of_mysql_says_the_session_and_the_statement() -> None:
    """BEGIN says the session and its character set, ROWS_QUERY the text behind a byte."""
    from tests.mysql.test_decoding import reading

    transactions = reading({})
    gtid = (7).to_bytes(8, "little") + bytes(4) + bytes(7)
    variables = bytes([4, 8, 0, 8, 0, 8, 0])  # the character sets: latin1
    query = (99).to_bytes(4, "little") + bytes(5) + bytes(2) + len(variables).to_bytes(2, "little")
    at = 4

    def feed(kind: int, body: bytes) -> list[AnyEvent]:
        nonlocal at
        from penstock.sources.mysql.binlog import Event

        data = HEADER.pack(0, kind, 1, HEADER.size + len(body), 0, 0) + body
        at += len(data)
        items = transactions.event(Event(kind, 5, at, 0, body, at - len(data)), data)
        return [event for item in items for event in item.events]

    feed(EventType.GTID, gtid)
    feed(EventType.QUERY, query + variables + b"\0" + b"BEGIN")
    text = "INSERT INTO d.t VALUES (1, 'é')".encode("latin1")
    feed(EventType.ROWS_QUERY, bytes([len(text)]) + text)
    names = b"\1\1d\0\1t\0"
    table = b"\5\0\0\0\0\0" + bytes(2) + names[1:] + b"\1\x03\0\0" + b"\x04\3\2id" + b"\x08\1\0"
    feed(EventType.TABLE_MAP, table)
    place = at
    row = b"\5\0\0\0\0\0" + b"\1\0" + b"\2\0" + b"\1\1" + b"\0\7\0\0\0" + b"\0\x08\0\0\0"
    feed(EventType.WRITE_ROWS, row)
    first, second = feed(EventType.XID, bytes(8))
    common = {"file": "", "offset": place, "thread": 99}
    assert origin(first) == {**common, "statement": "INSERT INTO d.t VALUES (1, 'é')"}
    assert origin(second) == {**common, "statementAt": 0}
