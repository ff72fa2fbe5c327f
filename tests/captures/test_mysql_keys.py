"""A filter by key finds the rows of a real MySQL and MariaDB: of DECIMAL keys, and of keys of
several columns in any order."""

from typing import Any, Final

import pytest

from penstock.event import Commit
from penstock.log.memory import MemoryLog
from tests.captures.support import captures, rest, subscribed
from tests.conftest import database_of
from tests.mysql.support import caught_up, run, source_of
from tests_support.servers import SqlServer

TABLES: Final = (
    "CREATE TABLE prices (price DECIMAL(9, 2) PRIMARY KEY)",
    "CREATE TABLE bins (bin DECIMAL(20, 0) PRIMARY KEY)",
    "CREATE TABLE parts (code CHAR(1), line INT, part DEC(6, 3), PRIMARY KEY (part, line, code))",
    "INSERT INTO prices VALUES (1.50), (2), (700)",
    "INSERT INTO bins VALUES (7), (12345678901234567890)",
    "INSERT INTO parts VALUES ('a', 1, 2.5), ('a', 1, 2.25), ('b', 1, 2.5)",
)
FOUND: Final[tuple[tuple[str, Any], ...]] = (
    ("prices", 1.5),
    ("prices", {"$numberDecimal": "1.5"}),
    ("prices", {"price": {"$numberDecimal": "1.500"}}),
    ("prices", 2),
    ("prices", {"$numberDecimal": "7E+2"}),
    ("bins", 7.0),
    ("bins", 12345678901234567890),
    ("parts", {"code": "a", "line": 1, "part": 2.5}),
    ("parts", {"part": {"$numberDecimal": "2.5"}, "line": 1.0, "code": "a"}),
    ("parts", {"line": 1, "code": "a", "part": {"$numberDecimal": "2.500"}}),
)
"""A table, and the key of one of its rows in one of its spellings."""
NOT_FOUND: Final[tuple[tuple[str, Any], ...]] = (
    ("prices", "1.5"),
    ("prices", 1.51),
    ("bins", 12345678901234567891),
    ("parts", {"code": "a", "line": 1}),
    ("parts", {"code": "A", "line": 1, "part": 2.5}),
    ("parts", {"code": "a", "line": 1, "part": 2.5, "more": 1}),
)


@pytest.mark.server
@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
async def test_a_filter_by_key_finds_its_row_however_the_key_is_written(
    kind: str, request: pytest.FixtureRequest
) -> None:
    server: SqlServer = request.getfixturevalue(kind)
    with database_of(server) as database:
        source = source_of(server, include=[f"{database}.*"], start="now")
        story = await caught_up(server, source)
        with server.connect(database=database) as db:
            run(db, *TABLES)
        await caught_up(server, source, story)
    log = MemoryLog()
    await log.append([one for one in story.items if isinstance(one, Commit)])
    asked = [
        {
            "id": str(at),
            "since": "beginning",
            "criteria": [{"area": "data", "site": {"entityType": table, "entityPrimaryKey": key}}],
        }
        for at, (table, key) in enumerate((*FOUND, *NOT_FOUND))
    ]
    async with subscribed(log, *asked) as session:
        found = captures(await rest(session))
    times = [sum(str(at) in ids for ids, _, _ in found) for at in range(len(asked))]
    assert times == [1] * len(FOUND) + [0] * len(NOT_FOUND)
