"""Whose a row is that an update gives another tenant, where rows lack columns."""

import struct
from typing import Any

import pytest

from penstock.capture.tenant import TenantRule, TenantUnknownError
from penstock.errors import UndecodableError
from penstock.event import ChangeEvent
from penstock.sources.mysql import rows
from penstock.sources.mysql.binlog import EventType
from penstock.sources.mysql.events import Place, Teller
from penstock.sources.mysql.origins import Origin, OriginRules
from penstock.sources.mysql.rows import compile_table
from penstock.sources.mysql.tables import Column, ColumnType, Table
from tests.mysql.conftest import on
from tests.mysql.support import caught_up, run
from tests.mysql.test_images import MINIMAL, NOBLOB, begun, told
from tests.mysql.test_mysql_origins import TEXTS
from tests_support.servers import MySqlServer, SqlServer

NUMBER, WORD = (ColumnType.LONG, 0), (ColumnType.VARCHAR, 9)
Row = dict[str, Any]


def updated(before: Row, after: Row, *, key: tuple[int, ...] = (0,), **rule: str) -> list[Any]:
    """The events of an update whose row images have these columns of id, who, n and note."""
    kinds = {"id": NUMBER, "who": WORD, "n": NUMBER, "note": WORD}
    columns = tuple(
        Column(name=name, type=kind, meta=meta, collation=45)
        for name, (kind, meta) in kinds.items()
    )
    table = Table(database="d", name="t", columns=columns, key=key, full=True)
    compiled = compile_table(table, {45: "utf8mb4"})
    images = bytes(
        sum(1 << i for i, name in enumerate(kinds) if name in image) for image in (before, after)
    )
    body = bytes(8) + b"\x04" + images + written(before) + written(after)
    found = rows.changes(EventType.UPDATE_ROWS_V1, body, compiled)
    teller = Teller("db", tenant=TenantRule.model_validate(rule))
    return teller.changes(found, compiled, Place("0-1-1", 0, Origin(OriginRules(), "f", 4)))


def written(image: Row) -> bytes:
    """A row as a binlog has it."""
    return b"\0" + b"".join(
        struct.pack("<I", value) if isinstance(value, int) else bytes([len(value)]) + value.encode()
        for value in image.values()
    )


def shown(events: list[ChangeEvent]) -> list[tuple[str, str, tuple[str, ...]]]:
    return [(one.operation.value, one.tenant, one.unchanged) for one in events]


def test_a_row_image_that_has_the_tenants_column_tells_both_tenants() -> None:
    before: Row = {"id": 1, "who": "acme", "n": 1}
    assert shown(updated(before, {**before, "who": "bolt"}, field="who")) == [
        ("delete", "acme", ()),
        ("insert", "bolt", ("note",)),
    ]
    assert shown(updated(before, {**before, "n": 2}, field="who")) == [
        ("update", "acme", ("note",)),
    ]
    of_key: Row = {"id": 1, "who": "acme"}
    moved = updated(of_key, {"who": "bolt"}, key=(0, 1), field="who")
    assert shown(moved) == [("delete", "acme", ()), ("insert", "bolt", ("n", "note"))]
    other = updated(before, {**before, "who": "bolt"}, field="n", otherwise="x")
    assert shown(other) == [("update", "1", ("note",))]


def test_a_row_image_without_the_tenants_column_tells_no_tenant_alone() -> None:
    for after in ({"who": "bolt"}, {"id": 1, "who": "bolt", "n": 2, "note": "x"}):
        with pytest.raises(TenantUnknownError, match="which it had: its row image of before lacks"):
            updated({"id": 1}, after, field="who", otherwise="x")
    with pytest.raises(TenantUnknownError, match="holds no document with the field who"):
        updated({"id": 1}, {"n": 2}, field="who", otherwise="x")


def test_rows_of_a_table_without_the_tenants_column_are_those_of_the_rest() -> None:
    changes = updated({"id": 1}, {"n": 2}, field="org", otherwise="shared")
    assert shown(changes) == [("update", "shared", ("who", "note"))]


@on("mariadb", "mysql")
async def test_a_row_of_a_partial_image_that_becomes_another_tenants_ends_for_the_one_before(
    server: SqlServer, database: str
) -> None:
    """NOBLOB has the column, and so has MINIMAL where it is of the key."""
    source, story = await begun(server, database, tenant={"field": "who"})
    with server.connect(database=database) as db:
        run(
            db,
            *statements_in_binlog(server),
            "CREATE TABLE a (id INT PRIMARY KEY, who VARCHAR(9), n INT, t TEXT)",
            "CREATE TABLE b (who VARCHAR(9), id INT, n INT, PRIMARY KEY (who, id))",
            "INSERT INTO a VALUES (1, 'acme', 1, 'x')",
            "INSERT INTO b VALUES ('acme', 1, 1)",
            NOBLOB,
            "UPDATE a SET who = 'bolt', n = 2",
            "UPDATE a SET n = 3",
            MINIMAL,
            "UPDATE b SET who = 'bolt'",
        )
    await caught_up(server, source, story)
    assert [(one.tenant, *told(one)) for one in story.changes][2:] == [
        ("acme", "delete", None, None, None, ()),
        ("bolt", "insert", None, {"id": 1, "who": "bolt", "n": 2}, None, ("t",)),
        ("bolt", "update", None, {"id": 1, "who": "bolt", "n": 3}, {"who": "bolt", "n": 3}, ("t",)),
        ("acme", "delete", None, None, None, ()),
        ("bolt", "insert", None, {"who": "bolt", "id": 1}, None, ("n",)),
    ]
    assert len({one.event_id for one in story.changes}) == 7


@on("mariadb", "mysql")
@pytest.mark.parametrize(
    ("image", "column", "update"),
    [
        (MINIMAL, "VARCHAR(9)", "who = 'bolt'"),
        (MINIMAL, "VARCHAR(9)", "who = 'bolt', n = 2"),
        (NOBLOB, "TEXT", "who = 'bolt'"),
    ],
)
async def test_an_update_that_does_not_say_from_whom_a_row_comes_stops_capture(
    server: SqlServer, database: str, image: str, column: str, update: str
) -> None:
    """Else the tenant before would keep it, and nobody would hear of that."""
    rule = {"field": "who", "otherwise": "shared"}
    source, story = await begun(server, database, tenant=rule)
    with server.connect(database=database) as db:
        run(
            db,
            *statements_in_binlog(server),
            f"CREATE TABLE a (id INT PRIMARY KEY, who {column}, n INT)",
            "INSERT INTO a VALUES (1, 'acme', 1)",
            image,
            f"UPDATE a SET {update}",
        )
    with pytest.raises(UndecodableError, match="does not say which it had"):
        await caught_up(server, source, story)
    assert shown(story.changes) == [("insert", "acme", ())]


def statements_in_binlog(server: SqlServer) -> list[str]:
    """Has the server log them: MariaDB does by default."""
    return [TEXTS] if isinstance(server, MySqlServer) else []
