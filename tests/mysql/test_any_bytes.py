"""Whatever bytes are in what a server describes, its tables are captured and looked at (B10)."""

from typing import Any

import msgspec

from penstock.sources.mysql.doctor import doctor
from penstock.sources.mysql.restoring.server import Server, target_of
from penstock.sources.mysql.restoring.sql import inserts
from tests.mysql.conftest import on
from tests.mysql.support import Story, caught_up, completed, config_of, run, source_of
from tests.telling import follow
from tests_support.servers import MySqlServer, SqlServer

TABLES = {
    "defaults": "id INT PRIMARY KEY, b VARBINARY(8) NOT NULL DEFAULT 0xDEADBEEF27FF",
    "members": "id INT PRIMARY KEY, b ENUM(0xFFFE27, 'plain') CHARACTER SET binary DEFAULT NULL",
    "computed": "id INT PRIMARY KEY, b VARBINARY(9) AS (CONCAT('x', 0xFFFE27)) VIRTUAL",
    "checked": "id INT PRIMARY KEY, b VARBINARY(9) CHECK (b <> _binary X'FFFE')",
}
PARTS = (
    "CREATE TABLE parts (id VARBINARY(9) PRIMARY KEY) "
    "PARTITION BY RANGE COLUMNS (id) (PARTITION p VALUES LESS THAN (0xFFFE27))"
)


@on("mariadb", "mysql")
async def test_a_definition_may_have_any_bytes(server: SqlServer, database: str) -> None:
    options: dict[str, Any] = {"include": [f"{database}.*"], "start": "snapshot"}
    source = source_of(server, **options)
    with server.connect(database=database) as db:
        for table, columns in TABLES.items():
            run(db, f"CREATE TABLE {table} ({columns})", f"INSERT INTO {table} (id) VALUES (1)")
        run(
            *(db, PARTS, "INSERT INTO parts VALUES ('1')"),
            "UPDATE members SET b = 0xFFFE27",
        )
        story = await follow(source, Story(), completed)
        for table in TABLES:
            run(db, f"INSERT INTO {table} (id) VALUES (2)")
        run(db, "UPDATE members SET b = 0xFFFE27", f"CREATE TABLE told ({TABLES['members']})")
        run(db, "INSERT INTO told VALUES (1, 0xFFFE27)")
    await caught_up(server, source, story)
    rows = story.rows(copies=True)
    assert rows[f"{database}.members"] == {
        f'{{"id":{one}}}': {"id": one, "b": r"\xff\xfe'"} for one in (1, 2)
    }
    default = {"$binary": {"base64": "3q2+7yf/", "subType": "00"}}
    assert [row["b"] for row in rows[f"{database}.defaults"].values()] == [default, default]
    assert len(rows[f"{database}.computed"]) == len(rows[f"{database}.checked"]) == 2
    assert len(rows[f"{database}.parts"]) == 1
    told = [msgspec.json.decode(one.description) for one in story.shapes]
    (columns,) = [one["columns"] for one in told if one["ns"]["coll"] == "told"]
    assert columns[1]["values"] == [r"\xff\xfe'", "plain"]
    assert rows[f"{database}.told"] == {'{"id":1}': {"id": 1, "b": r"\xff\xfe'"}}
    checks = await doctor("db", config_of(server, **options), position=story.position)
    assert [check.name for check in checks if not check.ok] == []


@on("mariadb", "mysql")
async def test_what_is_no_member_is_put_back_beside_members_of_any_bytes(
    server: SqlServer, database: str
) -> None:
    name = (database, "members")
    with server.connect(database=database) as db:
        run(db, f"CREATE TABLE members ({TABLES['members']})")
        with Server(target_of(f"mysql://root@127.0.0.1:{server.port}"), "") as target:
            facts = target.facts(name)
            assert facts is not None
            member = r"\xff\xfe'" if isinstance(server, MySqlServer) else "??'"
            assert facts.columns[1].values == (member, "plain")
            rows: list[dict[str, Any]] = [{"id": 1, "b": ""}, {"id": 2, "b": "plain"}]
            target.run(inserts(name, rows, facts, about="rows"))
        assert run(db, "SELECT id, b + 0 FROM members ORDER BY id") == [(1, 0), (2, 2)]
