"""A server that does not log every change of the captured tables is refused, and named."""

from collections.abc import Callable
from typing import Any

import pytest

from penstock.errors import ConfigError
from penstock.sources.mysql.doctor import Check, doctor
from penstock.sources.mysql.logged import Filters
from penstock.sources.mysql.scope import Scope
from penstock.testing.servers import MariaDbServer, SqlServer
from tests.mysql.conftest import on
from tests.mysql.support import Story, caught_up, config_of, run, source_of
from tests.telling import follow

Start = Callable[..., SqlServer]


async def checked(server: SqlServer, **options: Any) -> dict[str, Check]:
    """By name: what the doctor found."""
    return {check.name: check for check in await doctor("db", config_of(server, **options))}


async def refused(server: SqlServer, story: Story, *, match: str, **options: Any) -> None:
    told = len(story.items)
    with pytest.raises(ConfigError, match=match):
        await follow(source_of(server, **options), story, lambda _: False)
    assert len(story.items) == told


def replicate(kind: str, port: int) -> str:
    """The statement by which a server is to be the replica of another."""
    if kind == "mariadb":
        return f"CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = {port}, MASTER_USER='r'"
    return (
        f"CHANGE REPLICATION SOURCE TO SOURCE_HOST = '127.0.0.1', SOURCE_PORT = {port}, "
        f"SOURCE_USER = 'r'"
    )


@on("mariadb", "mysql")
async def test_a_replica_that_does_not_log_what_it_replicates_is_refused(
    kind: str, start: Start
) -> None:
    """Whenever it has become one: at the start of every session, whatever was captured before."""
    server = start(options=("--log-slave-updates=0",))
    with server.connect() as db:
        run(db, "CREATE DATABASE d", "CREATE TABLE d.a (id INT PRIMARY KEY)")
        story = await caught_up(server, source_of(server, start="beginning"))
        assert (await checked(server))["logged"].ok
        run(db, replicate(kind, server.port))
        await refused(server, story, match="is OFF and the server is a replica.*penstock snapshot")
        found = (await checked(server))["logged"]
        assert not found.ok
        assert "in the server's file" in found.fix
        run(db, "RESET REPLICA ALL", "INSERT INTO d.a VALUES (1)")
        await caught_up(server, source_of(server), story)
    assert len(story.changes) == 1


async def test_whether_a_server_replicates_is_seen_by_who_may_look_or_while_it_does(
    start_mariadb: Callable[..., MariaDbServer],
) -> None:
    """With the grants that capture needs, MariaDB shows no replica at rest."""
    server = start_mariadb(options=["--log-slave-updates=0"])
    options: dict[str, Any] = {"user": "cdc", "password": "secret", "start": "beginning"}
    with server.connect() as db:
        run(db, "CREATE USER cdc IDENTIFIED BY 'secret'")
        run(db, "GRANT REPLICATION SLAVE, REPLICATION CLIENT, SELECT ON *.* TO cdc")
        run(db, replicate("mariadb", server.port))
        found = (await checked(server, **options))["logged"]
        assert found.ok
        assert "GRANT REPLICA MONITOR" in found.fix
        story = await caught_up(server, source_of(server, **options))
        run(db, "SET GLOBAL gtid_slave_pos = '0-7-9'")
        found = (await checked(server, **options))["logged"]
        assert not found.ok
        assert "it did replicate once" in found.detail
        run(db, "START SLAVE")
        await refused(server, story, match="the server is a replica", **options)
        run(db, "STOP SLAVE", "GRANT REPLICA MONITOR ON *.* TO cdc")
        await refused(server, story, match="the server is a replica", **options)


@on("mariadb", "mysql")
async def test_databases_that_a_server_does_not_log_are_not_captured(start: Start) -> None:
    server = start(options=("--binlog-ignore-db=shop",))
    with server.connect() as db:
        run(db, "CREATE DATABASE shop", "CREATE DATABASE d")
        run(db, "CREATE TABLE shop.a (id INT PRIMARY KEY)", "CREATE TABLE d.a (id INT PRIMARY KEY)")
        story = await caught_up(server, source_of(server, start="beginning", include=["d.*"]))
        for include in ([], ["shop.*"], ["/(d|shop)\\.a/"]):
            await refused(server, story, match=r"ignore_db is shop.*\(shop\)", include=include)
            found = (await checked(server, include=include))["logged"]
            assert not found.ok
            assert "binlog_ignore_db is shop" in found.detail
        run(db, "INSERT INTO d.a VALUES (1)", "INSERT INTO shop.a VALUES (1)")
        await caught_up(server, source_of(server, exclude=["shop.*"]), story)
        assert len(story.changes) == 1
        # What is said of tables, it leaves out by the session's own database.
        run(db, "USE shop", "TRUNCATE d.a")
        found = (await checked(server, include=["d.*"]))["filters"]
        assert not found.ok
        assert "TRUNCATE" in found.detail


@pytest.mark.parametrize(
    ("filters", "scope", "expected"),
    [
        (Filters(), Scope(), []),
        (Filters(ignore=("mysql", "shop")), Scope(), ["shop"]),
        (Filters(ignore=("mysql", "shop")), Scope(exclude=("shop.*",)), []),
        (Filters(ignore=("shop",)), Scope(exclude=("shop.a",)), ["shop"]),
        (Filters(ignore=("shop", "new")), Scope(include=("d.*", "n?w.a")), ["new"]),
        (Filters(ignore=("shop",)), Scope(include=(r"/shop\.orders/",)), ["shop"]),
        (Filters(ignore=("new",)), Scope(include=(r"/new\..*/",)), ["new"]),
        (Filters(do=("shop",)), Scope(), ["*", "d"]),
        (Filters(do=("shop", "d")), Scope(exclude=("d.*",)), ["*"]),
        (Filters(do=("shop",)), Scope(include=("shop.*", r"/shop\..*/", "mysql.*")), []),
        (Filters(do=("shop",)), Scope(include=("s*.orders", "new.a")), ["new", "s*"]),
        (Filters(do=("shop",)), Scope(include=(r"/.*\.things/",)), ["d"]),
        (Filters(do=("shop",), ignore=("shop",)), Scope(include=("shop.*",)), []),
    ],
)
def test_a_database_that_may_come_to_be_captured_must_be_logged(
    filters: Filters, scope: Scope, expected: list[str]
) -> None:
    there = [("shop", "orders"), ("d", "things"), ("mysql", "user")]
    assert filters.left_out(scope, there) == expected
