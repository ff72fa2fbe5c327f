"""What the SQL servers of the tests have in common."""

from collections.abc import Callable
from typing import Any

import pytest

from tests_support.servers import SqlServer


@pytest.mark.parametrize("start", ["start_mysql", "start_mariadb"])
@pytest.mark.server
def test_binlogs_that_take_more_than_they_may_are_purged_but_a_new_one(
    start: str, request: pytest.FixtureRequest
) -> None:
    begin: Callable[..., SqlServer] = request.getfixturevalue(start)
    server = begin()

    def binlogs() -> list[Any]:
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SHOW BINARY LOGS")
            return [row[:2] for row in cursor.fetchall()]

    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE mysql.t AS SELECT REPEAT('x', 1000) AS n")
    before = binlogs()
    server.purge_binlogs(bytes_max=sum(size for _, size in before))
    assert binlogs() == before
    server.purge_binlogs(bytes_max=1000)
    ((name, size),) = binlogs()
    assert (name > before[-1][0], size < 1000) == (True, True)
