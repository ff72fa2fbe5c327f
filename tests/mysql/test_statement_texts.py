"""A statement is read in the character set of the session that wrote it (B9)."""

from typing import Any

import msgspec

from tests.mysql.conftest import on
from tests.mysql.support import Story, caught_up, run, source_of
from tests.telling import follow
from tests_support.servers import MySqlServer, SqlServer

WORDS = {
    "latin1": ("cp1252", "üé"),
    "latin2": ("iso8859-2", "žš"),
    "cp1251": ("cp1251", "клиент"),
    "cp866": ("cp866", "клиент"),
    "koi8r": ("koi8-r", "клиент"),
    "cp850": ("cp850", "é"),
    "greek": ("iso8859-7", "αβ"),
    "hebrew": ("iso8859-8", "אב"),
    "cp1256": ("cp1256", "سل"),
    "gbk": ("gbk", "臷中"),
    "gb2312": ("gb2312", "中文"),
    "big5": ("big5", "功許"),
    "sjis": ("shift_jis", "表能"),
    "cp932": ("cp932", "表①"),
    "ujis": ("euc-jp", "日本"),
    "eucjpms": ("euc-jp", "日本"),
    "euckr": ("cp949", "한똠"),
    "gb18030": ("gb18030", "臷乣\u00a0"),
}
"""By character set: a codec of Python's for this word. The second byte of 臷, 功, 表 and more is a
backslash, that of 乣 a backquote."""
WHITE = ("latin1", "latin2", "greek", "hebrew")
"""Sets in which 0xA0 is white space."""


@on("mariadb", "mysql")
async def test_statements_of_each_character_set_are_read_as_their_server_reads_them(
    server: SqlServer, database: str
) -> None:
    """In scope they say their names; elsewhere they do nothing."""
    words = {
        charset: how
        for charset, how in WORDS.items()
        if isinstance(server, MySqlServer) or charset != "gb18030"
    }
    other = f"{database}_other"
    source = source_of(server, include=[f"{database}.*"])
    story = await follow(source, Story(), lambda _: True)
    with server.connect() as db:
        run(db, f"CREATE DATABASE {other}")
    try:
        for charset, (codec, word) in words.items():
            with server.connect(database=database) as db:
                run(db, f"SET NAMES {charset}")
                columns = (
                    f"id INT PRIMARY KEY COMMENT '{word}', "
                    f"`{word}` INT AS (id) VIRTUAL COMMENT 'it''s {word}', n INT"
                )
                statements = [
                    f"CREATE TABLE {other}.x_{charset} (`{word}` INT COMMENT '{word}')",
                    f"CREATE TABLE `t_{charset}{word}` ({columns})",
                    f"RENAME TABLE `t_{charset}{word}` TO `{word}_{charset}`",
                    f"INSERT INTO `{word}_{charset}` (id, n) VALUES (1, 2)",
                ]
                if charset in WHITE:
                    name = f"{word}_{charset}"
                    statements.append(
                        f"ALTER\u00a0TABLE\u00a0{name}\u00a0RENAME `{charset}\u00a0w`"
                    )
                for statement in statements:
                    run(db, statement.encode(codec))
        with server.connect() as db:
            run(db, f"CREATE TABLE {database}.end (id INT)")
        await caught_up(server, source, story)
        with server.connect(database=database) as db:
            there = {name for (name,) in run(db, "SHOW TABLES")}
    finally:
        with server.connect() as db:
            run(db, f"DROP DATABASE {other}")
    assert story.system == []
    renamed = [one for one in story.events if one.operation == "rename"]
    told = {to(one) for one in renamed} - {one.collection for one in renamed}
    assert told | {"end"} == there
    assert [msgspec.json.decode(one.full_document or b"") for one in story.changes] == [
        {"id": 1, "n": 2} for _ in words
    ]
    created = [said(one)["statement"] for one in story.events if one.operation == "create"]
    for statement, (_, word) in zip(created, words.values(), strict=False):
        assert f"VIRTUAL COMMENT 'it''s {word}'" in statement


def said(event: Any) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(event.description)
    return found


def to(event: Any) -> str:
    return str(said(event)["to"]["coll"])


@on("mariadb", "mysql")
async def test_a_name_that_cannot_be_read_is_a_gap_where_it_may_be_captured(
    server: SqlServer, database: str
) -> None:
    """The servers make a backslash of the wide one of sjis, which is no backslash to them when they
    read the statement."""
    other = f"{database}_other"
    source = source_of(server, include=[f"{database}.*"])
    story = await follow(source, Story(), lambda _: True)
    name = b"`a\x81\x5f`"
    with server.connect() as db:
        run(db, f"CREATE DATABASE {other}")
        try:
            run(db, "SET NAMES sjis")
            for one in (other, database):
                create = f"CREATE TABLE {one}.".encode() + name + b" (id INT COMMENT '\x81\x5f')"
                run(db, create)
            await caught_up(server, source, story)
        finally:
            run(db, f"DROP DATABASE {other}")
    assert [said(one)["reason"] for one in story.system] == ["unclear_statement"]
    assert len(story.events) == 1
